"""Which process writes which rollout: a byte of a side file each, locked by the kernel, so that death unlocks it.

POSIX record locks belong to a process: they go when it dies, however it dies, and a forked child does not inherit them
(an `flock` would live on in the child of a killed agent). Two properties need care: locks of one process never conflict
with each other, and closing any descriptor of the file drops them all; hence one descriptor a file and process, held in
a table here.
"""

import fcntl
import os
import threading
from pathlib import Path

_guard = threading.Lock()
_open: dict[tuple[int, str], tuple[int, set[int]]] = {}
"""(process, side file) -> its descriptor and the bytes that this process holds."""
EVERY = -1
"""In place of a byte: all of them, so that nobody writes any rollout."""


def acquire(path: Path, byte: int) -> bool:
    """Lock a byte of the side file, or EVERY one; False where another writer, here or elsewhere, is in the way."""
    key = (os.getpid(), str(path))
    with _guard:
        if key not in _open:
            _open[key] = (os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), set())
        descriptor, held = _open[key]
        if byte in held or EVERY in held or (held and byte == EVERY):
            return False
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, *_range(byte))
        except OSError:
            if not held:
                _close(key)
            return False
        held.add(byte)
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


def _range(byte: int) -> tuple[int, int]:
    """Length and start; a length of 0 reaches beyond every byte."""
    return (0, 0) if byte == EVERY else (1, byte)


def _close(key: tuple[int, str]) -> None:
    os.close(_open.pop(key)[0])
