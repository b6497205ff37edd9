"""Files in which NOOA's events stand: its SQLite storage, and the JSON snapshot that `save_snapshot` makes.

They are read as data, without NOOA: a process that has not imported an agent's own event classes would read its events
as others and write back less. A changed file is first made whole beside the old one (`NAME.migrating`), and takes its
name in one step. What a killed process left of that copy is written over by the next.
"""

import fcntl
import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from turnkeep.errors import ArchiveError, ConfigurationError, CorruptRecord, StoreError, UnsupportedVersion

type Event = dict[str, Any]
type Change = Callable[[str, Event], Event | None]
"""Takes an event's tag and members; gives the members as they are to be, or None where they stay."""

SNAPSHOT_EVENTS = "_turnkeep_events"
"""The attribute of a snapshot in which the events are, as one text."""

_SCHEMA_VERSION = 1
_COLUMNS = ("tag", "event_id", "event_type", "status", "data", "insertion_order")


class EventFile(Protocol):
    """A file with NOOA's events, held against every other process until it is left."""

    path: Path
    kind: str

    def count(self) -> int:
        """How many events there are."""
        ...

    def events(self) -> Iterator[tuple[str, Event]]:
        """Each event's tag and members, in the order in which they were made. Raises CorruptRecord."""
        ...

    def rest(self) -> str:
        """SHA-256 over everything in the file but the members of its events."""
        ...

    def copy(self, change: Change, target: Path) -> None:
        """Write the file with its events changed, whole, as `target`."""
        ...

    def let_go(self) -> None:
        """Stop reading, so that the file can be replaced. It stays locked against NOOA."""
        ...


@contextmanager
def open_events(path: Path, *, locked: bool = True) -> Iterator[EventFile]:
    """The file, of whichever kind it is, while nobody else has it open.

    `locked=False` is for a copy that only this process knows. Raises StoreError where the file is not there or in use.
    """
    if not path.is_file():
        raise StoreError(f"there is no file {path}")
    with path.open("rb") as file:
        is_database = file.read(16) == b"SQLite format 3\0"
    with ExitStack() as stack:
        if is_database:
            if locked:
                for lock in sorted(
                    {path.with_suffix(".lock").resolve(), path.resolve().with_suffix(".lock").resolve()}
                ):
                    stack.enter_context(_nooa_lock(lock, path))
            with _clear_errors(path):
                database = stack.enter_context(closing(_connect(path.resolve())))
                yield SqliteEvents(path.resolve(), database)
        else:
            if locked:
                stack.enter_context(_lock(path, "another migration has it"))
            yield SnapshotEvents(path.resolve())


class SqliteEvents:
    """NOOA's SQLite storage, schema version 1."""

    kind = "sqlite"

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path = path
        self._db = database
        _check_schema(path, database)

    def count(self) -> int:
        """How many events there are."""
        return int(self._db.execute("SELECT count(*) FROM events").fetchone()[0])

    def events(self) -> Iterator[tuple[str, Event]]:
        """Each event's tag and members, in the order of insertion."""
        with _clear_errors(self.path):
            for tag, data in self._db.execute("SELECT tag, data FROM events ORDER BY insertion_order, tag"):
                yield tag, _members(data, f"{self.path.name}: event {tag}")

    def rest(self) -> str:
        """SHA-256 over the schema and every row of every table, but for the column `data` of `events`."""
        digest = hashlib.sha256()
        with _clear_errors(self.path):
            schema = self._db.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()
            for row in schema:
                digest.update(repr(row).encode("utf-8", "backslashreplace"))
            for name in (name for kind, name, _ in schema if kind == "table"):
                columns = ", ".join(c for c in _COLUMNS if c != "data") if name == "events" else "*"
                order = "ORDER BY insertion_order, tag" if name == "events" else ""
                quoted = name.replace('"', '""')
                for row in self._db.execute(f'SELECT {columns} FROM "{quoted}" {order}'):
                    digest.update(repr((name, row)).encode("utf-8", "backslashreplace"))
        return digest.hexdigest()

    def copy(self, change: Change, target: Path) -> None:
        """SQLite's own backup, the changed rows written into it, and the room that they no longer take given back."""
        for name in (target, *_beside(target)):
            name.unlink(missing_ok=True)
        with _clear_errors(target), closing(sqlite3.connect(target, isolation_level=None)) as copy:
            self._db.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE").fetchall()
            copy.execute("BEGIN")
            for tag, members in self.events():
                if (changed := change(tag, members)) is not None:
                    copy.execute("UPDATE events SET data = ? WHERE tag = ?", (_text(changed), tag))
            copy.execute("COMMIT")
            copy.execute("VACUUM")
        _finish(self.path, target)

    def let_go(self) -> None:
        """Close the database, its log written into it; raises StoreError where another has opened it meanwhile."""
        self._db.close()
        wal, _, journal = _beside(self.path)  # a killed process leaves the middle one, which says nothing
        if wal.exists() or journal.exists():
            raise StoreError(f"{self.path} is open elsewhere: close it there first")


class SnapshotEvents:
    """A JSON snapshot with its events in an attribute."""

    kind = "snapshot"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = path.read_bytes()
        self._snapshot = _read_snapshot(path, self._data)
        self._held = _members(self._snapshot["attributes"][SNAPSHOT_EVENTS], f"{path.name}: {SNAPSHOT_EVENTS}")
        if not isinstance(self._held.get("events"), list):
            raise CorruptRecord(f"{path} is damaged: its {SNAPSHOT_EVENTS} have no list of events")

    def count(self) -> int:
        """How many events there are."""
        return len(self._held["events"])

    def events(self) -> Iterator[tuple[str, Event]]:
        """Each event's tag and members, in order, in copies."""
        for members in self._held["events"]:
            tag = members.get("tag") if isinstance(members, dict) else None
            yield str(tag), _members(json.dumps(members), f"{self.path.name}: event {tag}")

    def rest(self) -> str:
        """SHA-256 over the snapshot less its events."""
        others = {name: value for name, value in self._held.items() if name != "events"}
        attributes = {**self._snapshot["attributes"], SNAPSHOT_EVENTS: others}
        return hashlib.sha256(json.dumps({**self._snapshot, "attributes": attributes}).encode()).hexdigest()

    def copy(self, change: Change, target: Path) -> None:
        """The snapshot with its events changed, as Python's `json.dumps` writes it."""
        events = [each if (changed := change(tag, each)) is None else changed for tag, each in self.events()]
        attributes = {**self._snapshot["attributes"], SNAPSHOT_EVENTS: json.dumps({**self._held, "events": events})}
        target.write_text(json.dumps({**self._snapshot, "attributes": attributes}), "utf-8")
        _finish(self.path, target)

    def let_go(self) -> None:
        """Nothing is held open; raises StoreError where another has written the file since it was read."""
        if self.path.read_bytes() != self._data:
            raise StoreError(f"{self.path} was written by another while it was read")


def replace_file(path: Path, copy: Path, backup: Path | None) -> None:
    """Give `copy` the name of `path` in one step; at every instant one of the two has it. Durable on return."""
    if backup is not None:
        if is_unfinished(path, backup):
            backup.unlink()
        os.link(path, backup)
    copy.replace(path)
    _sync(path.parent)


def is_unfinished(path: Path, backup: Path) -> bool:
    """Whether the backup is a second name of the file itself: a migration was killed just before its last step."""
    return backup.exists() and backup.samefile(path)


def _connect(path: Path) -> sqlite3.Connection:
    """A connection that no other can be beside. SQLite would wait without end for a copy made in a transaction."""
    database = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=1)
    try:
        database.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
        database.execute("BEGIN EXCLUSIVE")
        database.execute("COMMIT")
        found = [line for (line,) in database.execute("PRAGMA integrity_check(5)")]
        if found != ["ok"]:
            raise CorruptRecord(f"{path} is damaged: {'; '.join(found)}")
    except BaseException:
        database.close()
        raise
    return database


def _check_schema(path: Path, database: sqlite3.Connection) -> None:
    """Refuse what is not the storage that this module knows, before anything is read as one."""
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"schema_version", "events", "active_tags", "snapshots"} <= tables:
        raise ConfigurationError(f"{path} is an SQLite database, but no storage of NOOA")
    versions = [version for (version,) in database.execute("SELECT version FROM schema_version")]
    if versions != [_SCHEMA_VERSION]:
        found = ", ".join(map(str, versions)) or "none"
        raise UnsupportedVersion(f"{path} has NOOA's schema version {found}; this turnkeep knows {_SCHEMA_VERSION}")
    columns = tuple(row[1] for row in database.execute("PRAGMA table_info(events)"))
    if columns != _COLUMNS:
        raise UnsupportedVersion(f"{path}: NOOA's table `events` has the columns {', '.join(columns)}, not those known")


def _read_snapshot(path: Path, data: bytes) -> dict[str, Any]:
    try:
        snapshot = json.loads(data)
    except ValueError:
        raise ConfigurationError(f"{path} is neither an SQLite database nor JSON") from None
    attributes = snapshot.get("attributes") if isinstance(snapshot, dict) else None
    if not isinstance(attributes, dict):
        raise ConfigurationError(f"{path} is JSON, but no snapshot of NOOA")
    if not isinstance(attributes.get(SNAPSHOT_EVENTS), str):
        raise ArchiveError(f"{path} holds no events: it was not made by save_snapshot", field=SNAPSHOT_EVENTS)
    found: dict[str, Any] = snapshot
    return found


def _members(text: Any, name: str) -> Event:
    try:
        value = json.loads(text)
    except (TypeError, ValueError) as error:
        raise CorruptRecord(f"{name} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise CorruptRecord(f"{name} is no JSON object")
    return value


def _text(members: Event) -> str:
    """An event's members as pydantic spells them."""
    return json.dumps(members, ensure_ascii=False, separators=(",", ":"))


def _finish(original: Path, copy: Path) -> None:
    """Give the copy the original's rights and put it on the disk."""
    shutil.copymode(original, copy)
    _sync(copy)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(path: Path) -> list[Path]:
    return [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal")]


@contextmanager
def _nooa_lock(lock: Path, database: Path) -> Iterator[None]:
    """NOOA's own lock on a storage: an flock on `NAME.lock`, with the number of the process in it."""
    lock.touch(exist_ok=True)
    held = lock.read_text("ascii", "replace").strip()
    with _lock(lock, f"NOOA has {database} open in process {held or '?'}: end it first") as descriptor:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield


@contextmanager
def _lock(path: Path, busy: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(busy) from None
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours."""
    try:
        yield
    except sqlite3.OperationalError as error:
        busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
        raise StoreError(f"{path} is open elsewhere: close it there first" if busy else f"{path}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise CorruptRecord(f"{path} is damaged or no SQLite database: {error}") from error
