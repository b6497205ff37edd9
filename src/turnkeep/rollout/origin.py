"""Where a rollout came from: a JSON object that whoever made the rollout keeps with it, as a document of its own."""

from collections.abc import Mapping
from typing import Any

from turnkeep.archive.documents import expecting, read_document, write_document
from turnkeep.errors import ArchiveError, ConfigurationError
from turnkeep.wire.json import find_unwritable, render_path

FORMAT = "turnkeep-origin"
VERSION = 1


def write_origin(origin: Mapping[str, Any]) -> bytes:
    """The origin's document. Raises ConfigurationError where it is no JSON object."""
    if not isinstance(origin, Mapping):
        raise ConfigurationError(f"an origin is a JSON object, not a {type(origin).__name__}", field="origin")
    if (fault := find_unwritable(origin)) is not None:
        where = render_path(fault.path)
        raise ConfigurationError(f"an origin must be JSON: {fault.reason} at {where}", field="origin")
    return write_document(FORMAT, VERSION, {"origin": dict(origin)})


def read_origin(document: bytes) -> dict[str, Any]:
    """The origin of a document. Raises ArchiveError, UnsupportedVersion."""
    with expecting(FORMAT):
        origin = read_document(document, FORMAT, VERSION)["origin"]
    if not isinstance(origin, dict):
        raise ArchiveError("an origin is a JSON object", field="origin")
    return origin


def find_reward(origin: Mapping[str, Any] | None) -> int | float | None:
    """The reward that an origin tells, itself or in the row that it keeps, where that is a number."""
    rows = (origin, (origin or {}).get("row"))
    found = (row.get("reward") for row in rows if isinstance(row, Mapping))
    return next((reward for reward in found if type(reward) in (int, float)), None)
