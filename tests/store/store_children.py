"""Child processes for the tests of the store: each runs a piece of Python, and is killed when the block ends."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRELUDE = """
import os, sys, time
from turnkeep.errors import RolloutBusy, StoreError
from turnkeep.store.base import Row
from turnkeep.store.sqlite import SqliteStore
path = sys.argv[1]
def say(*words):
    print(*words, flush=True)
def wait():
    return sys.stdin.readline()
"""


@contextmanager
def child(code: str, path: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `code` after PRELUDE, with `path` as its store's file."""
    command = [sys.executable, "-c", PRELUDE + code, str(path), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def heard(process: "subprocess.Popen[str]") -> str:
    """The next line that a child says."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: "subprocess.Popen[str]") -> None:
    """Let a child go on."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
