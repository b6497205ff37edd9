"""A file of NOOA's compact archives (contract 9.5) into a store: its turns, in order, become one rollout.

The file is one archive (a JSON object), a list of them, or JSON lines.
"""

from pathlib import Path
from typing import Any, NamedTuple

from turnkeep.archive.nooa_form import REVISIONS, from_nooa
from turnkeep.errors import ArchiveError, TurnkeepError
from turnkeep.export.imports import keep_whole, turns_there
from turnkeep.history.turn import Turn
from turnkeep.store.base import Store
from turnkeep.wire.json import ARCHIVED_DEEPEST, InexactJson, NotJson, loads
from turnkeep.wire.sha import sha256_hex

SOURCE = "nooa"
"""What an origin made here says under `source`."""


class Imported(NamedTuple):
    """The rollout, its turns, how many of them have no native items, and whether it was there already."""

    rollout: str
    turns: int
    portable: int = 0
    already: bool = False


def import_nooa(
    path: Path, store: Store, *, scope: str, revision: str = REVISIONS[1], rollout: str | None = None
) -> Imported:
    """Import the archives of a file, all of them or none; `rollout` is by default the file's stem.

    Raises ArchiveError and MalformedItem, with `turn`, where an archive is malformed, ConfigurationError where the
    store holds another rollout of that id, OSError where the file cannot be read.
    """
    data, name = path.read_bytes(), rollout or path.stem
    about = {"source": SOURCE, "revision": revision, "sha256": sha256_hex(data)}
    if (there := turns_there(store, name, about, scope)) is not None:
        return Imported(name, there, already=True)
    turns = [_read_turn(archive, number, scope, revision) for number, archive in enumerate(_archives(data))]
    origin = {**about, "file": path.name, "turns": len(turns)}
    keep_whole(store, name, turns, origin, scope=scope)
    return Imported(name, len(turns), sum(turn.scope is None for turn in turns))


def _read_turn(archive: Any, number: int, scope: str, revision: str) -> Turn:
    try:
        return from_nooa(archive, scope, revision)
    except TurnkeepError as error:
        error.turn = number
        raise


def _archives(data: bytes) -> list[Any]:
    """The archives in a file. Raises ArchiveError, which names the line, where it is no JSON."""
    try:
        value = loads(data, ARCHIVED_DEEPEST + 1)
    except InexactJson as error:
        raise ArchiveError(f"the file cannot be read exactly: {error}") from None
    except NotJson as error:
        lines = [(number, line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]
        if len(lines) < 2:
            raise ArchiveError(f"the file is no JSON: {error}") from None
        return [_read_line(line, number) for number, line in lines]
    return value if isinstance(value, list) else [value]


def _read_line(line: bytes, number: int) -> Any:
    try:
        return loads(line, ARCHIVED_DEEPEST)
    except (NotJson, InexactJson) as error:
        raise ArchiveError(f"line {number} cannot be read exactly: {error}") from None
