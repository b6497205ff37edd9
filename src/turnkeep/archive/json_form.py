"""A turn's JSON form: the shape in which NOOA's newer runtime dumps an assistant response, so its archives open here.

    {"parts": [...], "replay_scope": <string or null>, "finish_reason": "...", "usage": ..., "model_name": ...,
     "response_id": ..., <other members as they are>}

A part has `kind`, the public fields of that kind, and `native` (the complete item, or null). An opaque hosted item is a
`text` part with empty text.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from turnkeep.errors import ArchiveError
from turnkeep.history.turn import OWN_MEMBERS, PART_TYPES, PUBLIC_FIELDS, Part, Turn, public_fields
from turnkeep.wire.item import Item
from turnkeep.wire.json import ARCHIVED_DEEPEST, InexactJson, NotJson, dumps, find_unwritable, loads, merge_surrogates
from turnkeep.wire.scan import scan_body

if TYPE_CHECKING:
    from turnkeep.wire.training import Array


def to_json(turn: Turn) -> dict[str, Any]:
    """The turn as plain JSON values, all of it, sharing nothing with the turn."""
    return _form(turn, Item.to_json)


def to_skeleton(turn: Turn) -> dict[str, Any]:
    """`to_json` with null where the training arrays stand: for those who keep the arrays apart."""
    return _form(turn, Item.skeleton)


def _form(turn: Turn, native: Any) -> dict[str, Any]:
    parts = [
        {"kind": part.kind, **public_fields(part), "native": None if part.native is None else native(part.native)}
        for part in turn.parts
    ]
    return {"parts": parts, "replay_scope": turn.scope, "finish_reason": turn.finish_reason, **turn.members}


def dumps_turn(turn: Turn) -> str:
    """The JSON form as text, pure ASCII where it must be and exact: `loads_turn` gives an equal turn."""
    members = {"replay_scope": turn.scope, "finish_reason": turn.finish_reason, **turn.members}
    text = b'{"parts":[' + b",".join(map(_part_text, turn.parts)) + b"]," + dumps(members)[1:]
    return text.decode()


def _part_text(part: Part) -> bytes:
    native = b"null" if part.native is None else part.native.to_bytes()
    return dumps({"kind": part.kind, **public_fields(part)})[:-1] + b',"native":' + native + b"}"


def loads_turn(text: str | bytes) -> Turn:
    """The turn that `dumps_turn` wrote. Raises ArchiveError where the text is no turn."""
    try:
        return _read(_scan(text), ())
    except (NotJson, InexactJson) as error:
        raise ArchiveError(f"the archive cannot be read exactly: {error}") from None


def _scan(text: str | bytes) -> Any:
    """The value of a text, its numeric arrays as NumPy arrays."""
    try:
        return scan_body(text.encode() if isinstance(text, str) else text, ARCHIVED_DEEPEST).value
    except UnicodeEncodeError:  # half of a surrogate pair, as itself
        return loads(text, ARCHIVED_DEEPEST)


def from_json(value: Mapping[str, Any]) -> Turn:
    """The turn of a JSON form. Native items are taken as they are; whether they agree is asked at each replay (3.2).

    Raises ArchiveError, naming part and field, where `value` is no turn.
    """
    fault = find_unwritable(value, ARCHIVED_DEEPEST)
    if fault is not None:
        raise ArchiveError(f"the archive holds what JSON cannot: {fault.reason}")
    return _read(scan_body(dumps(value), ARCHIVED_DEEPEST).value, ())


def from_skeleton(value: Mapping[str, Any], arrays: "tuple[Mapping[str, Array], ...]") -> Turn:
    """The turn of `to_skeleton`, with the arrays of each part's native item by name."""
    return _read(value, arrays)


def _read(value: Any, arrays: "tuple[Mapping[str, Array], ...]") -> Turn:
    if not isinstance(value, Mapping) or not isinstance(value.get("parts"), list):
        raise ArchiveError("a turn's JSON form is an object with a list of parts", field="parts")
    given = arrays or ({},) * len(value["parts"])
    parts = tuple(_read_part(part, index, given[index]) for index, part in enumerate(value["parts"]))
    scope = value.get("replay_scope")
    if not isinstance(scope, str | None):
        raise ArchiveError("replay_scope must be text or null", field="replay_scope")
    calls = any(part.kind == "tool_call" for part in parts)
    reason = value.get("finish_reason", "tool_calls" if calls else "stop")
    if not isinstance(reason, str):
        raise ArchiveError("finish_reason must be text", field="finish_reason")
    rest = {name: member for name, member in value.items() if name not in OWN_MEMBERS}
    return Turn(parts, scope, reason, dumps(rest))


def _read_part(part: Any, index: int, arrays: "Mapping[str, Array]") -> Part:
    kind = part.get("kind") if isinstance(part, Mapping) else None
    if not isinstance(kind, str) or kind not in PART_TYPES:
        raise ArchiveError(f"{kind!r} is no kind of part", item=index, field="kind")
    names = PUBLIC_FIELDS[kind]
    for name in names:
        if not isinstance(part.get(name), str):
            raise ArchiveError(f"a {kind} part needs {name} as text", item=index, field=name)
    for name in part:
        if name not in ("kind", "native", *names):
            raise ArchiveError(f"a {kind} part has no member {name!r}", item=index, field=name)
    native = part.get("native")
    if native is not None and not isinstance(native, Mapping):
        raise ArchiveError("native must be an object or null", item=index, field="native")
    fields = {name: merge_surrogates(part[name]) for name in names}
    return PART_TYPES[kind](**fields, native=None if native is None else Item(native, arrays))
