"""What a checkpoint after each turn writes to the disk, counted by the kernel while it happens.

Each way runs in a process of its own, which writes nothing else. The store is SQLite with one durable transaction a
turn; its write-ahead log and what is moved from it to the database are both in the count. The other two are files of
the form's snapshot, each flushed to the disk: the whole history written anew each turn, and a file a turn.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from turnkeep import Rollout, Turn, open_store

from .fresh import io_written, run_fresh
from .operations import FORMS, SCOPE, Tell, capture_all
from .workload import Workload

STORE, REWRITE, FILES = "SQLite store, a turn a transaction", "whole history, each turn", "a file a turn"


def measure_checkpoints(workload: Workload, turns: int, form: str, folder: str | None, tell: Tell) -> dict[str, Any]:
    """By each way: bytes written after the last turn, and after each turn; bytes kept; seconds."""
    measured = {}
    for way in (STORE, REWRITE, FILES):
        tell(f"{turns} turns, {form}: on disk, {way}")
        measured[way] = run_fresh(checkpoint, way, workload, turns, form, folder)
    return measured


def checkpoint(way: str, workload: Workload, turns: int, form: str, folder: str | None) -> dict[str, Any]:
    """Write a checkpoint after each turn, and say what that wrote. To be run in a fresh process."""
    captured = capture_all(workload.bodies(turns))
    with tempfile.TemporaryDirectory(prefix="turnkeep-", dir=folder) as place:
        ways: dict[str, Callable[[], Iterator[None]]] = {
            STORE: lambda: _store(Path(place), captured),
            REWRITE: lambda: _rewrite(Path(place), captured, form),
            FILES: lambda: _files(Path(place), captured, form),
        }
        begun = io_written()
        after: list[list[int]] = []
        steps = []
        started = time.perf_counter()
        for _ in ways[way]():
            steps.append(time.perf_counter() - started)
            if begun is not None and (now := io_written()) is not None:
                after.append([now.handed - begun.handed, now.disk - begun.disk])
            started = time.perf_counter()
        kept = sum(path.stat().st_size for path in Path(place).iterdir())
    return {
        "handed_to_write": after[-1][0] if after else None,
        "disk": after[-1][1] if after else None,
        "disk_after_each_turn": [disk for _, disk in after[:turns]],
        "kept": kept,
        "seconds_of_each_turn": steps[:turns],
    }


def _store(place: Path, turns: Sequence[Turn]) -> Iterator[None]:
    with open_store(place / "rollouts.db") as store, Rollout.open(store, "r-1", scope=SCOPE) as rollout:
        for turn in turns:
            rollout.add_turn(turn)
            yield
    yield  # closing moves what is left in the log to the database


def _rewrite(place: Path, turns: Sequence[Turn], form: str) -> Iterator[None]:
    snapshot = FORMS[form].snapshot
    lines = [snapshot([turn]) for turn in turns] if form == "json" else []  # the bytes are what is measured here
    for count in range(1, len(turns) + 1):
        data = b"\n".join(lines[:count]) if lines else snapshot(turns[:count])
        _write_durably(place / "history.new", data)
        (place / "history.new").replace(place / "history")
        yield


def _files(place: Path, turns: Sequence[Turn], form: str) -> Iterator[None]:
    for number, turn in enumerate(turns):
        _write_durably(place / f"turn-{number:04}", FORMS[form].snapshot([turn]))
        yield


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
