"""The store in one SQLite file: WAL, `synchronous=FULL`, one transaction a commit.

Any number of processes read while one writes. A writer holds a kernel lock on its rollout (see `locks`), and each of
its commits checks that no other has taken the rollout over since, so two histories can never mix even where locks do
not work. Rows carry digests and blobs are named by theirs: a flipped bit is found when it is read.
"""

import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain, count
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from turnkeep.errors import (
    ConfigurationError,
    CorruptRecord,
    RolloutBusy,
    StoreError,
    UnknownRollout,
    UnsupportedVersion,
)
from turnkeep.store import forks, locks
from turnkeep.store.base import (
    Deleted,
    Row,
    check_blob,
    check_id,
    check_kind,
    check_row,
    iterate,
    row_digest,
    state_row,
)
from turnkeep.store.migrations import APPLICATION_ID, CODES, NEW, STATE_NUMBER, STEPS, VERSION
from turnkeep.store.names import delete_unnamed, names_noted, note_names, note_rows
from turnkeep.store.wal import LARGE, LogMover, file_at, log_size

_PRAGMAS = (
    "page_size = 16384",
    "journal_mode = WAL",
    "synchronous = FULL",
    "wal_autocheckpoint = 0",  # the log is moved off the path of commits, see turnkeep.store.wal
    f"journal_size_limit = {LARGE}",
)
_PAGE = 16384
_PATIENCE = 60_000
"""Milliseconds to wait for another process's commit."""
_TRIES = 600
"""How often a file that others are opening at the same instant is tried, 0.1 s apart: SQLite does not wait there."""


class Compacted(NamedTuple):
    """Bytes of the file and its log, before and after."""

    before: int
    after: int


class SqliteStore:
    """A store in the SQLite file at `path`, made where there is none (`create=False` refuses instead)."""

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        try:
            self.path = Path(path).resolve()  # one name for the file, since locks go by it
        except RuntimeError as error:  # a loop of links
            raise StoreError(f"unable to open {path}: {error}") from None
        if not create and not self.path.exists():
            raise StoreError(f"there is no store at {path}")
        if self.path.is_dir():
            raise StoreError(f"unable to open {path or self.path}: it is a folder, and a store is a file")
        if not self.path.parent.is_dir():
            raise ConfigurationError(f"the folder of {path} does not exist")
        if not create and not self.path.stat().st_size:
            raise StoreError(f"{path} is empty: it is no store, or nothing is left of one")
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._closed = self._away = self._in_snapshot = False
        self._held: set[int] = set()
        with _clear_errors(self.path):
            self._connect()
        self._log = LogMover(self.path, self._file)
        forks.watched.add(self)

    def _connect(self) -> None:
        for attempt in count(1):
            self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, cached_statements=64)
            self._db.text_factory = _lenient_text
            self._file = file_at(self.path)
            try:
                self._prepare()
                return
            except BaseException as error:
                self._db.close()
                busy = isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF == 5
                if not busy or attempt == _TRIES:
                    raise
            time.sleep(0.1)

    def _prepare(self) -> None:
        self._db.execute(f"PRAGMA busy_timeout = {_PATIENCE}").fetchall()
        self._version()  # before anything is changed in a file that is not ours
        for pragma in _PRAGMAS:
            self._db.execute(f"PRAGMA {pragma}").fetchall()
        self._migrate()

    def _migrate(self) -> None:
        version = self._version()
        if version == VERSION:
            return
        with ExitStack() as stack:
            if version:  # an older turnkeep that writes would find its tables gone
                stack.enter_context(self._nobody_writing("the store is written by an older turnkeep; let it end first"))
            stack.enter_context(self._transaction())
            version = self._version()  # again: another process may have migrated in between
            self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            for statement in chain.from_iterable(STEPS[version:]) if version else NEW:
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {VERSION}")

    def _version(self) -> int:
        """The store's version, 0 for a new file. The marks of use are read first: another process may be beginning."""
        used = self._db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None
        version = int(self._pragma("user_version"))
        if (used or version) and self._pragma("application_id") != APPLICATION_ID:
            raise StoreError(f"{self.path} is an SQLite database, but no turnkeep store")
        if version > VERSION:
            raise UnsupportedVersion(f"{self.path} has store version {version}; this turnkeep knows up to {VERSION}")
        return version

    def _pragma(self, name: str) -> Any:
        return self._db.execute(f"PRAGMA {name}").fetchone()[0]

    @contextmanager
    def _nobody_writing(self, why: str) -> Iterator[None]:
        """While it lasts, no rollout of the file has a writer. Raises RolloutBusy where one has."""
        if not self._lock_byte(locks.EVERY):
            raise RolloutBusy(f"{self.path}: {why}")
        try:
            yield
        finally:
            locks.release(self.lock_path, locks.EVERY)

    def _lock_byte(self, byte: int) -> bool:
        try:
            return locks.acquire(self.lock_path, byte)
        except OSError as error:
            raise StoreError(f"{self.lock_path}: {error.strerror}") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._reading():
            if self._in_snapshot:
                raise StoreError(f"{self.path}: nothing can be written while a snapshot is read")
            self._roll_back()  # what an error in the middle of one left behind
            self._be_there()
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def _be_there(self) -> None:
        """Raise StoreError where the path is no longer that of the open file: what is written would be lost."""
        now = file_at(self.path)
        if now == self._file:
            return
        told = "What was kept before is in it, under its new name"
        if not self._save_log():
            told = f"The log {self.path.name}-wal is the old file's: move it beside that before either is opened"
        befell = "moved or deleted" if now is None else "replaced by another file"
        raise StoreError(f"{self.path} was {befell} while it was open: nothing more is kept in it. {told}")

    def _save_log(self) -> bool:
        """Move the log into a file that was moved, since SQLite would leave it under the old name; whether it is there.

        Not where another file has the name: the log may be that one's, too.
        """
        if file_at(self.path) is not None:
            return False
        if self._away:  # it was moved when the connection was closed
            return True
        try:
            busy, _, _ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error:
            return False
        return not busy

    @contextmanager
    def _reading(self) -> Iterator[None]:
        if os.getpid() != self._process:
            raise StoreError(f"{self.path} was opened in another process: open it again in this one")
        with self._lock, _clear_errors(self.path):
            if self._closed:
                raise StoreError(f"{self.path} was closed")
            if self._away:
                self._be_there()
                self._away = False
                try:
                    self._connect()
                except BaseException:
                    self._away = True
                    raise
            yield

    def before_fork(self) -> None:
        """Hold the store, and close the connection until it is next needed (see `forks`)."""
        self._lock.acquire()
        if not self._closed:
            self._log.wait()
            self._db.close()
            self._away = True

    def after_fork(self) -> None:
        """Let go of the store."""
        self._lock.release()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """While it lasts, what this thread reads is the store as of one instant."""
        with self._reading():
            if self._in_snapshot:  # one is read already, by this thread: the others wait
                yield
                return
            self._roll_back()
            self._in_snapshot = True
            try:
                self._db.execute("BEGIN")
                yield
            finally:
                self._in_snapshot = False
                if self._db.in_transaction:
                    self._db.execute("COMMIT")  # what was noted meanwhile in tables of this connection stays

    def rollouts(self) -> list[str]:
        """The ids of all rollouts, in the order in which they began."""
        with self._reading():
            found = [rollout for (rollout,) in self._db.execute("SELECT id FROM rollouts ORDER BY key")]
        if not all(isinstance(rollout, str) for rollout in found):
            raise CorruptRecord(f"{self.path}: the id of a rollout is not what was written")
        return found

    def write(self, rollout: str, state: bytes) -> "SqliteWriter":
        """Take the right to write a rollout, beginning it with `state` where it is new."""
        check_id(rollout)
        with ExitStack() as undo:
            with self._transaction():
                new = self._db.execute(
                    "INSERT OR IGNORE INTO rollouts (id, epoch, writer) VALUES (?, 0, '')", (rollout,)
                )
                key, writer = self._one("SELECT key, writer FROM rollouts WHERE id = ?", rollout)
                if new.rowcount == 1:
                    self._put(rollout, key, [state_row(state)])
                self._acquire(rollout, key, writer)
                undo.callback(self._give_back, key)
                self._db.execute("UPDATE rollouts SET epoch = epoch + 1, writer = ? WHERE key = ?", (_whoami(), key))
                (epoch,) = self._one("SELECT epoch FROM rollouts WHERE key = ?", key)
            undo.pop_all()
        return SqliteWriter(self, rollout, key, epoch)

    def _acquire(self, rollout: str, key: int, writer: str) -> None:
        if not self._lock_byte(key):
            raise RolloutBusy(f"another writer has the rollout: {writer}", rollout=rollout)
        self._held.add(key)

    def _put(self, rollout: str, key: int, rows: Iterable[Row]) -> None:
        self._db.executemany(
            "INSERT OR REPLACE INTO records (rollout, number, kind, document, digest) VALUES (?, ?, ?, ?, ?)",
            ((key, _stored_number(row), CODES[row.kind], row.document, row_digest(rollout, row)) for row in rows),
        )

    def _give_back(self, key: int) -> None:
        with self._lock:
            if key in self._held:
                self._held.remove(key)
                locks.release(self.lock_path, key)

    def _one(self, query: str, value: str | int) -> tuple[Any, ...]:
        """The row that must be there."""
        found: tuple[Any, ...] | None = self._db.execute(query, (value,)).fetchone()
        if found is None:
            raise CorruptRecord(f"{self.path} is damaged: its index and its table differ")
        return found

    @property
    def lock_path(self) -> Path:
        """The side file whose bytes say which rollouts have a writer. It may be deleted when nothing writes."""
        return self.path.with_name(self.path.name + "-writers")

    def _key(self, rollout: str) -> int:
        storable = isinstance(rollout, str) and rollout.isprintable()
        found = storable and self._db.execute("SELECT key FROM rollouts WHERE id = ?", (rollout,)).fetchone()
        if not found:
            raise UnknownRollout(f"{self.path.name} holds no such rollout", rollout=rollout)
        return int(found[0])

    def is_written(self, rollout: str) -> bool:
        """Whether the rollout has a writer, in this process or another."""
        with self._reading():
            return locks.is_locked(self.lock_path, self._key(rollout))

    def state(self, rollout: str) -> bytes:
        """The rollout's state document."""
        with self._reading():
            key = self._key(rollout)
            found = self._document(key, state_row(b""))
        if found is None:
            raise CorruptRecord(f"{self.path.name}: the rollout's state is missing", rollout=rollout)
        return check_row(rollout, state_row(found[0]), found[1]).document

    def _document(self, key: int, row: Row) -> tuple[Any, Any] | None:
        found: tuple[Any, Any] | None = self._db.execute(
            "SELECT document, digest FROM records WHERE rollout = ? AND number = ? AND kind = ?",
            (key, _stored_number(row), CODES[row.kind]),
        ).fetchone()
        return found

    def rows(self, rollout: str, kind: str) -> list[Row]:
        """The rollout's rows of one kind, by number."""
        with self._reading():
            found = self._db.execute(
                "SELECT number, document, digest FROM records WHERE rollout = ? AND kind = ? ORDER BY number",
                (self._key(rollout), CODES[check_kind(kind)]),
            ).fetchall()
        return [check_row(rollout, Row(kind, number, document), digest) for number, document, digest in found]

    def row(self, rollout: str, kind: str, number: int) -> bytes | None:
        """One document, or None."""
        with self._reading():
            found = self._document(self._key(rollout), Row(check_kind(kind), number, b""))
        return None if found is None else check_row(rollout, Row(kind, number, found[0]), found[1]).document

    def blob(self, digest: str, *, checked: bool = True) -> bytes | None:
        """The bytes of a digest, checked, or None."""
        with self._reading():
            found = self._db.execute("SELECT data FROM blobs WHERE digest = ?", (bytes.fromhex(digest),)).fetchone()
        if found is None or not (checked or isinstance(found[0], bytes)):
            return None
        return check_blob(digest, found[0]) if checked else bytes(found[0])

    def delete(self, rollouts: Iterable[str], named: Callable[[Row], Iterable[str]]) -> Deleted:
        """Delete rollouts whole, and every blob that no row left names: one transaction."""
        asked = list(dict.fromkeys(rollouts))
        with self._reading(), names_noted(self._db), ExitStack() as locked:
            with self.snapshot():
                doomed = {self._key(rollout) for rollout in asked}
                note_names(self._db, named, doomed)
                note_rows(self._db, doomed)
            with self._transaction():
                keys = {rollout: self._key(rollout) for rollout in asked}
                gone = tuple(rollout for rollout in asked if self._lock_byte(keys[rollout]))
                for rollout in gone:
                    locked.callback(locks.release, self.lock_path, keys[rollout])
                gone_keys = [(keys[rollout],) for rollout in gone]
                self._db.executemany("DELETE FROM records WHERE rollout = ?", gone_keys)
                self._db.executemany("DELETE FROM rollouts WHERE key = ?", gone_keys)
                note_names(self._db, named)
                blobs, size = delete_unnamed(self._db)
        return Deleted(gone, blobs, size, tuple(rollout for rollout in asked if rollout not in gone))

    def compact(self) -> Compacted:
        """Write the file anew without what was deleted, and empty its log.

        Raises RolloutBusy where a rollout has a writer. Readers go on; a process killed in the middle changes nothing.
        """
        with self._reading():
            self._log.wait()
            with self._nobody_writing("a rollout is being written; compact when it is done"):
                before = self._size()
                self._db.execute("VACUUM")
                self._db.execute("PRAGMA busy_timeout = 1000").fetchall()  # a reader in the way: the log is moved later
                try:
                    self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                finally:
                    self._db.execute(f"PRAGMA busy_timeout = {_PATIENCE}").fetchall()
                return Compacted(before, self._size())

    def _size(self) -> int:
        return self.path.stat().st_size + log_size(self.path)

    def check_file(self) -> list[str]:
        """What SQLite itself finds wrong with the file, one line each: damage below the level of rows."""
        with self._reading():
            lines = [line for (line,) in self._db.execute("PRAGMA integrity_check(20)")]
        return [] if lines == ["ok"] else lines

    def close(self) -> None:
        """Close the file, and give back what its writers still hold."""
        forks.watched.discard(self)
        if os.getpid() != self._process:
            return
        with self._lock:
            for key in list(self._held):
                self._give_back(key)
            self._log.wait()
            self._save_log()
            self._db.close()
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SqliteWriter:
    """The sole right to write one rollout of a SqliteStore."""

    def __init__(self, store: SqliteStore, rollout: str, key: int, epoch: int) -> None:
        self._store = store
        self.rollout = rollout
        self._key = key
        self._epoch = epoch
        self._released = False

    def commit(self, state: bytes, rows: Iterable[Row] = (), blobs: Mapping[str, bytes] | None = None) -> None:
        """Write the state, rows and blobs in one transaction, durable on return."""
        store, rows = self._store, list(iterate(rows))
        if self._released:
            raise RolloutBusy("the right to write the rollout was given back", rollout=self.rollout)
        kept = {bytes.fromhex(digest): data for digest, data in (blobs or {}).items()}
        with store._transaction():
            epoch, writer = self._seat()
            if epoch != self._epoch:
                raise RolloutBusy(f"another writer has taken the rollout over: {writer}", rollout=self.rollout)
            store._db.executemany("INSERT OR IGNORE INTO blobs (digest, data) VALUES (?, ?)", kept.items())
            store._put(self.rollout, self._key, [*rows, state_row(state)])
        with store._lock:
            store._log.committed(_PAGE + sum(len(row.document) for row in rows) + sum(map(len, kept.values())))

    def _seat(self) -> tuple[int, str]:
        """Who took the rollout last."""
        query = "SELECT epoch, writer FROM rollouts WHERE key = ?"
        found = self._store._db.execute(query, (self._key,)).fetchone()
        return (-1, "it is there no more") if found is None else found

    def release(self) -> None:
        """Give the right back."""
        if not self._released:
            self._released = True
            self._store._give_back(self._key)


def _stored_number(row: Row) -> int:
    return STATE_NUMBER if row.kind == "states" else row.number


def _lenient_text(data: bytes) -> str:
    """Text that is no UTF-8 is damage, to be found by its digest or to be shown."""
    return data.decode("utf-8", "surrogateescape")


def _whoami() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


@contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours, which name the file and say what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        read_only = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_READONLY
        why = "; reading, too, needs a folder that can be written, for SQLite's log" if read_only else ""
        raise StoreError(f"{path}: {error}{why}") from error
    except (sqlite3.ProgrammingError, sqlite3.DataError, sqlite3.NotSupportedError) as error:
        raise StoreError(f"{path}: {error}") from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter from names in a damaged schema
        raise CorruptRecord(f"{path} is damaged or no SQLite database: {error}") from error
