"""Moving SQLite's log into the database on a thread of its own, so that no commit waits for it.

A commit appends to the log and is durable then; when the log's content is copied into the database matters to nobody
but the disk. SQLite would do it inside the commit that makes the log large enough: here that is switched off.
"""

import contextlib
import sqlite3
import threading
from pathlib import Path

LARGE = 8 << 20
"""Bytes committed through one store from which the log is moved."""
LARGEST = 24 << 20
"""Bytes of log from which a commit waits until it is moved: writers that never pause cannot make it grow for ever."""
_TRIES = 3

type File = tuple[int, int]
"""A file on this machine, whatever its name: device and inode."""


class LogMover:
    """Moves the log of one database when enough has been committed. Its users call it one at a time."""

    def __init__(self, path: Path, file: File | None) -> None:
        self._path, self._file = path, file
        self._waiting = 0
        self._most = LARGEST
        self._thread: threading.Thread | None = None

    def committed(self, size: int) -> None:
        """Count `size` bytes of a commit, and begin to move the log where that makes enough."""
        self._waiting += size
        if self._waiting < LARGE:
            return
        if (length := log_size(self._path)) > self._most:
            self.wait()
            move_log(self._path, self._file)
            self._most = max(LARGEST, length + LARGE)  # where a reader is in the way, not at each commit
        elif self._thread is None or not self._thread.is_alive():
            self._most = LARGEST
            self._thread = threading.Thread(target=move_log, args=(self._path, self._file), name="turnkeep-log")
            with contextlib.suppress(RuntimeError):  # the interpreter is ending: closing the store moves the log
                self._thread.start()
                self._waiting = 0
                return
            self._thread = None

    def wait(self) -> None:
        """Return when no log is being moved."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def log_size(path: Path) -> int:
    """Bytes of the log of the database at `path`."""
    try:
        return path.with_name(path.name + "-wal").stat().st_size
    except FileNotFoundError:
        return 0


def file_at(path: Path) -> File | None:
    """Which file a path names now, or None."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def move_log(path: Path, file: File | None) -> None:
    """Copy the log into the database, as far as readers allow; commits go on meanwhile.

    A log that was copied whole is begun anew by the next commit. A failure loses nothing: the log stays, is read as
    before, and is moved another time. Nothing is done where the path names another file than `file`.
    """
    if file_at(path) != file:
        return
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_connect(path)) as db:
        for _ in range(_TRIES):
            _, pages, moved = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if pages == moved:
                return


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path.as_uri() + "?mode=rw", isolation_level=None, timeout=5.0, uri=True)  # never a new one
    db.execute("PRAGMA synchronous = FULL").fetchall()
    return db
