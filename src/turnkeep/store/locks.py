"""Which process writes which rollout: a byte of a side file each, locked by the kernel, so that death unlocks it.

POSIX record locks belong to a process: they go when it dies, however it dies, and a forked child does not inherit them
(an `flock` would live on in the child of a killed agent). Two properties need care: locks of one process never conflict
with each other, and closing any descriptor of the file drops them all; hence one descriptor a file and process, held in
a table here.
"""

import fcntl
import os
import struct
import sys
import threading
from pathlib import Path

_guard = threading.Lock()
_open: dict[tuple[int, str], tuple[int, set[int]]] = {}
"""(process, side file) -> its descriptor and the bytes that this process holds."""
EVERY = -1
"""In place of a byte: all of them, so that nobody writes any rollout."""
_FLOCK = "qqihh" if sys.platform == "darwin" else "hhqqi4x"
"""`struct flock`, by fcntl(2): type, whence, start, length and pid, on macOS start, length, pid, type and whence."""


def acquire(path: Path, byte: int) -> bool:
    """Lock a byte of the side file, or EVERY one; False where another writer, here or elsewhere, is in the way.

    Raises OSError where the file cannot be locked at all.
    """
    key = (os.getpid(), str(path))
    with _guard:
        if key not in _open:
            _open[key] = (os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), set())
        descriptor, held = _open[key]
        if byte in held or EVERY in held or (held and byte == EVERY):
            return False
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, *_range(byte))
            held.add(byte)
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, by fcntl(2)
            return False
        finally:
            if not held:
                _close(key)
        return True


def release(path: Path, byte: int) -> None:
    """Unlock a byte that this process holds, or EVERY one; anything else is left alone."""
    key = (os.getpid(), str(path))
    with _guard:
        if key not in _open or byte not in _open[key][1]:
            return
        descriptor, held = _open[key]
        fcntl.lockf(descriptor, fcntl.LOCK_UN, *_range(byte))
        held.discard(byte)
        if not held:
            _close(key)


def is_locked(path: Path, byte: int) -> bool:
    """Whether a byte is locked, by this process or another. Takes nothing.

    The descriptor by which this process holds its own locks is asked where there is one: closing another of the same
    file would drop them all.
    """
    with _guard:
        if (found := _open.get((os.getpid(), str(path)))) is not None:
            return byte in found[1] or EVERY in found[1] or _is_in_the_way(found[0], byte)
        if not path.exists():
            return False
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return _is_in_the_way(descriptor, byte)
        finally:
            os.close(descriptor)


def _is_in_the_way(descriptor: int, byte: int) -> bool:
    """What F_GETLK says of a lock that would be taken: another process's that is in the way, or F_UNLCK."""
    whole = (byte, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
    asked = whole if sys.platform == "darwin" else (*whole[3:], *whole[:3])
    told = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(_FLOCK, *asked)))
    return bool((told[3] if sys.platform == "darwin" else told[0]) != fcntl.F_UNLCK)


def _range(byte: int) -> tuple[int, int]:
    """Length and start; a length of 0 reaches beyond every byte."""
    return (0, 0) if byte == EVERY else (1, byte)


def _close(key: tuple[int, str]) -> None:
    os.close(_open.pop(key)[0])
