"""Running a function in a fresh Python process, so that what is counted for the process is the function's alone."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple


def run_fresh[**P, R](function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What `function` gives, or raises, in a process that has done nothing else."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


class Io(NamedTuple):
    """What this process has written so far, by the kernel's count (`/proc/self/io`)."""

    handed: int
    """Bytes given to write calls."""
    disk: int
    """Bytes of pages sent to storage: whole pages, and a page again each time it was changed after it was clean."""


def io_written() -> Io | None:
    """The kernel's counters, or None where it keeps none."""
    try:
        text = Path("/proc/self/io").read_text()
    except OSError:
        return None
    counters = dict(line.split(": ") for line in text.splitlines())
    return Io(int(counters["wchar"]), int(counters["write_bytes"]))


def resident() -> int | None:
    """This process's resident bytes, or None where /proc does not say."""
    return _status("VmRSS")


def most_resident() -> int | None:
    """The most that this process has had resident."""
    return _status("VmHWM")


def _status(name: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)
