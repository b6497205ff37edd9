"""ATIF documents into a store: each becomes one rollout, in one transaction.

The history is what was exported, or what somebody made of it since; evidence (requests, responses) does not travel.
"""

from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

from turnkeep.archive.documents import expecting
from turnkeep.errors import ArchiveError, UnsupportedVersion
from turnkeep.export.atif import VERSION
from turnkeep.export.atif_read import FORMAT, Entry, check_texts, read_entries
from turnkeep.export.atif_text import own_extra
from turnkeep.export.imports import keep_whole, turns_there
from turnkeep.history.gaps import UNGRADABLE, Gap, gap
from turnkeep.store.base import Store
from turnkeep.wire.json import InexactJson, NotJson, dumps, loads
from turnkeep.wire.scan import scan_body
from turnkeep.wire.sha import sha256_hex

SOURCE = "atif"
"""What an origin made here says under `source`."""
_VERSIONS = tuple(f"ATIF-v1.{minor}" for minor in range(9))


class Imported(NamedTuple):
    """The rollout, its turns, the turns that were changed since they were exported, whether it was there already."""

    rollout: str
    turns: int
    changed: tuple[int, ...] = ()
    already: bool = False


def import_atif(path: Path, store: Store, *, rollout: str | None = None) -> Imported:
    """Import one document; `rollout` is by default its `trajectory_id`, `session_id` or the file's name.

    A turn that was changed in the file has the change, keeps its items and loses its scope, so that it never replays
    as what the policy said. Raises ArchiveError and MalformedItem, with `turn`, where the document is malformed or
    extra does not fit its fields, or the file cannot be read, ConfigurationError where the store holds another rollout
    of that id.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArchiveError(f"the file cannot be read: {error.strerror}") from error
    document = _read(data)
    with expecting(FORMAT):
        own = own_extra(document)
        if own.get("version", VERSION) != VERSION:
            raise UnsupportedVersion(f"extra.turnkeep is of version {own['version']}; this turnkeep knows {VERSION}")
        scope = own.get("scope")
        name = rollout or document.get("trajectory_id") or document.get("session_id") or path.stem
        about = {"source": SOURCE, "sha256": sha256_hex(data)}
        if (there := turns_there(store, name, about, scope)) is not None:
            return Imported(name, there, already=True)
        check_texts(own, "scope")
        gaps = [Gap(*each) for each in own.get("gaps", ())]
        if not all(isinstance(code, str) and {type(each) for each in rest} <= {str, NoneType} for code, *rest in gaps):
            raise ArchiveError("a gap is [code, invocation or null, detail or null]", field="gaps")
        if "failure" in own:
            gaps.append(gap(UNGRADABLE))
        entries = read_entries(document, scope)
        turns = [entry.turn for entry in entries if entry.turn is not None]
        origin = {**about, "file": path.name, "turns": len(turns), **_layout(document, entries)}
    keep_whole(store, name, turns, origin, scope=scope, gaps=gaps)
    changed = [entry.changed for entry in entries if entry.turn is not None]
    return Imported(name, len(turns), tuple(number for number, each in enumerate(changed) if each))


def _read(data: bytes) -> dict[str, Any]:
    """The document, numeric arrays among its values as NumPy arrays. Raises ArchiveError."""
    try:
        document = scan_body(data).value
    except NotJson as error:
        raise ArchiveError(f"the file is no JSON: {error}") from None
    except InexactJson as error:
        raise ArchiveError(f"the file cannot be read exactly: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("steps"), list):
        raise ArchiveError("an ATIF document is an object with a list of steps", field="steps")
    if document.get("schema_version") not in _VERSIONS:
        told = f"{document.get('schema_version')!r}, which is none of {_VERSIONS[0]} to {_VERSIONS[-1]}"
        raise ArchiveError(f"the document's schema_version is {told}", field="schema_version")
    if document.get("subagent_trajectories") or document.get("continued_trajectory_ref"):
        raise ArchiveError("documents with other trajectories inside or after them are not read", field="steps")
    return document


def _layout(document: dict[str, Any], entries: list[Entry]) -> dict[str, Any]:
    """The conversation as an origin lays it out (`turnkeep.rollout.conversation`), and what else is told of it."""
    first = next((index for index, entry in enumerate(entries) if entry.turn is not None), len(entries))
    own, agent = own_extra(document), document["agent"]
    params: dict[str, Any] = {"input": [entry.item for entry in entries[:first]]}
    if agent.get("tool_definitions"):
        params["tools"] = agent["tool_definitions"]
    row = {"responses_create_params": params, "agent_ref": {"name": agent["name"]}}
    output: list[dict[str, Any]] = []
    turn = 0
    for entry in entries[first:]:
        output.append({"item": entry.item} if entry.turn is None else {"turn": turn})
        turn += entry.turn is not None
    told = {name: own[name] for name in ("reward", "failure") if name in own}
    layout: dict[str, Any] = loads(dumps({"row": row, "output": output, **told}))
    return layout
