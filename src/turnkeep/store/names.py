"""Which blobs the rows of a SqliteStore name, noted beside the store so that those that none names can be deleted.

Looking at every row takes long in a large store, and whoever deletes keeps others from writing: so the rows are looked
at once before, and in the transaction only those that changed since.
"""

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from turnkeep.errors import CorruptRecord
from turnkeep.store.base import Row, check_row
from turnkeep.store.migrations import CODES

_TABLES = {
    "named": "digest BLOB PRIMARY KEY",
    "noted": "rollout INTEGER, number INTEGER, kind INTEGER, digest BLOB, PRIMARY KEY (rollout, number, kind)",
}
"""The blobs that are named; the rows that were looked at."""


@contextmanager
def names_noted(db: sqlite3.Connection) -> Iterator[None]:
    """While it lasts, names can be noted."""
    try:
        for table, columns in _TABLES.items():
            db.execute(f"CREATE TEMP TABLE {table} ({columns}) WITHOUT ROWID")
        yield
    finally:
        for table in _TABLES:
            db.execute(f"DROP TABLE IF EXISTS temp.{table}")


def note_names(db: sqlite3.Connection, named: Callable[[Row], Iterable[str]], without: Collection[int] = ()) -> None:
    """Note what the rows name that were not looked at as they are now, but for those of the rollouts `without`.

    `note_rows` says that they were looked at. Raises CorruptRecord for a row that is damaged or belongs to no rollout.
    """
    for row in _rows_to_note(db, without):
        used = ((bytes.fromhex(digest),) for digest in named(row))
        db.executemany("INSERT OR IGNORE INTO named VALUES (?)", used)


def note_rows(db: sqlite3.Connection, without: Collection[int]) -> None:
    """Note that every row was looked at, but for those of the rollouts `without`."""
    db.execute("INSERT INTO noted SELECT rollout, number, kind, digest FROM records")
    db.executemany("DELETE FROM noted WHERE rollout = ?", ((key,) for key in without))


def _rows_to_note(db: sqlite3.Connection, without: Collection[int]) -> Iterator[Row]:
    kinds = list(CODES)
    query = (
        "SELECT key, id, number, kind, document, records.digest FROM records LEFT JOIN rollouts ON rollout = key "
        f"LEFT JOIN noted USING (rollout, number, kind) WHERE kind != {CODES['states']} "
        "AND noted.digest IS NOT records.digest"
    )
    for key, rollout, number, code, document, digest in db.execute(query):
        if key in without:
            continue
        if not isinstance(rollout, str) or code not in range(len(kinds)):
            raise CorruptRecord("the store is damaged: a row belongs to no rollout")
        yield check_row(rollout, Row(kinds[code], number, document), digest)


def delete_unnamed(db: sqlite3.Connection) -> tuple[int, int]:
    """Delete the blobs that no row names; gives how many, and their bytes."""
    unnamed = "digest NOT IN (SELECT digest FROM named)"
    found: tuple[int, int]
    found = db.execute(f"SELECT count(*), coalesce(sum(length(data)), 0) FROM blobs WHERE {unnamed}").fetchone()
    db.execute(f"DELETE FROM blobs WHERE {unnamed}")
    return found
