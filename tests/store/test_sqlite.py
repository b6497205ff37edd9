import sqlite3
from contextlib import closing
from pathlib import Path

from turnkeep.store.base import Store
from turnkeep.store.migrations import CODES, STATE_NUMBER
from turnkeep.store.sqlite import SqliteStore
from turnkeep.testing.store_contract import Place, StoreContract


class TestSqliteStore(StoreContract):
    """The store in an SQLite file holds to the contract of stores."""

    def open_store(self, folder: Path) -> Store:
        """The store in one file of the folder."""
        return SqliteStore(folder / "rollouts.db")

    def flip(self, folder: Path, store: Store, place: Place, bit: int) -> None:
        """Change one bit of a cell by SQL of its own, digests left as they are."""
        kind, number = ("states", STATE_NUMBER) if place.what == "state" else (place.what, place.number)
        owned = "rollout = (SELECT key FROM rollouts WHERE id = ?) AND kind = ? AND number = ?"
        table, column, where, values = {
            "blob": ("blobs", "data", "digest = ?", (bytes.fromhex(place.digest or "00"),)),
        }.get(place.what, ("records", "document", owned, (place.rollout, CODES.get(kind), number)))
        with closing(sqlite3.connect(folder / "rollouts.db", isolation_level=None)) as db:
            (data,) = db.execute(f"SELECT {column} FROM {table} WHERE {where}", values).fetchone()
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            assert db.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (changed, *values)).rowcount == 1
