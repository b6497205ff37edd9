"""NeMo Gym rollout files into a store: each row becomes one rollout, in one transaction, or is refused with a reason.

A rollout's id is `<file stem>/<line number>`. Numbers that Gym writes (`_ng_task_index`, `_ng_rollout_index`) are
unique within one collection at best, and not every file has them; a file and a line always say where a row stands.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from turnkeep.errors import TurnkeepError
from turnkeep.export.gym_rows import SOURCE, OnMalformed, part_row
from turnkeep.export.imports import OF_ONE_ROLLOUT, keep_whole, turns_there
from turnkeep.store.base import Store
from turnkeep.wire.sha import sha256_hex


class Result(NamedTuple):
    """What became of one row: the line (from 1), its bytes, the rollout, its turns; `already` there, or the refusal."""

    line: int
    size: int
    rollout: str
    turns: int = 0
    already: bool = False
    with_gap: bool = False
    """Whether the rollout has gaps: a turn was kept without native items, or the row told of some."""
    error: TurnkeepError | None = None


def import_gym(
    path: Path,
    store: Store,
    *,
    scope: str | None = None,
    on_malformed: OnMalformed = "refuse",
    name: str | None = None,
) -> Iterator[Result]:
    """Import a rollout file row by row, a row at a time in memory; yields what became of each.

    Blank lines are no rows. `name` stands in the ids in place of the file's stem. Raises OSError where the file cannot
    be read, StoreError where the store cannot be written; all rows before are kept then.
    """
    stem = path.stem if name is None else name
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            size, row = len(line), line.rstrip(b"\r\n")
            if not row.strip():
                continue
            rollout = f"{stem}/{number}"
            about = {"file": path.name, "line": number, "sha256": sha256_hex(row)}
            try:
                result = _import_row(row, store, rollout, about, scope, on_malformed)
            except OF_ONE_ROLLOUT as error:
                result = Result(number, size, rollout, error=error)
            yield result._replace(line=number, size=size)


def _import_row(
    row: bytes, store: Store, rollout: str, about: dict[str, Any], scope: str | None, on_malformed: OnMalformed
) -> Result:
    if (turns := turns_there(store, rollout, {"source": SOURCE, "sha256": about["sha256"]}, scope)) is not None:
        return Result(0, 0, rollout, turns, already=True)
    parted = part_row(row, scope, on_malformed)
    source, *rest = parted.origin.items()
    origin = dict([source, *about.items(), *rest])
    keep_whole(store, rollout, parted.turns, origin, scope=scope, gaps=parted.gaps)
    return Result(0, 0, rollout, len(parted.turns), with_gap=bool(parted.gaps))
