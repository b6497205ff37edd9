"""NOOA's compact archives: text moved out of the native items, block lengths left behind (contract 9.5).

In this form a block of a message or of a reasoning summary holds `_text_length` (code points) in place of its text,
and a function call lacks `call_id`, `name` and `arguments`: all of that stands once, in the public fields. Facts from
NOOA's revisions 0514723 and 19caab1, which differ in when a summary without encrypted content may replay natively.
"""

from collections.abc import Mapping
from typing import Any

from turnkeep.archive.json_form import from_json
from turnkeep.errors import ArchiveError, ConfigurationError, MalformedItem
from turnkeep.history.scope import Scope
from turnkeep.history.turn import Turn
from turnkeep.wire.item import CLIENT_CALLS, read_item

REVISIONS = ("0514723", "19caab1")

_BETWEEN = {"message": "", "reasoning": "\n"}
_MOVED = ("call_id", "name", "arguments")


def from_nooa(value: Mapping[str, Any], scope: Scope | str, revision: str = REVISIONS[1]) -> Turn:
    """The turn of NOOA's compact form, under a scope that the operator states.

    Where the rules of `revision` make the turn portable, every native and the scope are left out. Raises MalformedItem
    where block lengths do not fit the text, ArchiveError where `value` is no turn, ConfigurationError for a revision
    that is not known.
    """
    if not isinstance(scope, Scope | str):
        raise ConfigurationError("an import needs the scope that the turn is to have", field="scope")
    if revision not in REVISIONS:
        raise ConfigurationError(f"unknown NOOA revision {revision!r}: {' and '.join(REVISIONS)} are known")
    if not isinstance(value, Mapping) or not isinstance(value.get("parts"), list):
        raise ArchiveError("a turn's JSON form is an object with a list of parts", field="parts")
    parts = [_expand(part, index) for index, part in enumerate(value["parts"])]
    native = value.get("replay_scope") is not None and all(_stays_native(part["native"], revision) for part in parts)
    if not native:
        parts = [{**part, "native": None} for part in parts]
    return from_json({**value, "parts": parts, "replay_scope": str(scope) if native else None})


def _expand(part: Any, index: int) -> dict[str, Any]:
    """The part with its item made complete, and its public text set by contract 1.3."""
    if not isinstance(part, Mapping):
        raise ArchiveError("a part must be an object", item=index)
    native = part.get("native")
    if not isinstance(native, Mapping):
        return {**part, "native": None}
    kind = native.get("type")
    if not isinstance(kind, str):
        raise MalformedItem("an item needs a type", item=index, field="type")
    if kind == "function_call":
        public = {"call_id": part.get("id"), "name": part.get("name"), "arguments": part.get("arguments")}
        kept = {name: member for name, member in native.items() if name not in _MOVED}
        item = {**kept, **{name: native.get(name, public[name]) for name in _MOVED}}
        return {**part, "native": item}
    if kind not in _BETWEEN:
        return dict(part)
    item = _put_text_back(native, part.get("text"), _BETWEEN[kind], index)
    return {**part, "text": read_item(item, index).text, "native": item}


def _put_text_back(native: Mapping[str, Any], text: Any, between: str, index: int) -> dict[str, Any]:
    """The item with each block's text cut from `text` again, in the order of the blocks."""
    if not isinstance(text, str):
        raise ArchiveError("a part needs its text", item=index, field="text")
    item = dict(native)
    for field in ("content", "summary"):
        blocks = native.get(field)
        if not isinstance(blocks, list) or not any(map(_moved_out, blocks)):
            continue
        rest, filled, cut_before = text, [], ""
        for position, block in enumerate(blocks):
            place = {"item": index, "field": field, "index": position}
            if not _moved_out(block):
                filled.append(block)
                continue
            piece, rest = _cut(rest, block["_text_length"], cut_before, place)
            cut_before = between
            kept = {name: member for name, member in block.items() if name != "_text_length"}
            filled.append({**kept, "refusal" if block.get("type") == "refusal" else "text": piece})
        if rest:
            raise MalformedItem(f"the block lengths leave {len(rest)} characters over", item=index, field=field)
        item[field] = filled
    return item


def _moved_out(block: Any) -> bool:
    return isinstance(block, Mapping) and "_text_length" in block


def _cut(rest: str, length: Any, between: str, place: dict[str, Any]) -> tuple[str, str]:
    if type(length) is not int or length < 0:
        raise MalformedItem(f"{length!r} is no text length", **place)
    if not rest.startswith(between):
        raise MalformedItem("the text has no line break where one block ends", **place)
    rest = rest[len(between) :]
    if length > len(rest):
        raise MalformedItem(f"a block of {length} characters, but {len(rest)} are left", **place)
    return rest[:length], rest[length:]


def _stays_native(native: Mapping[str, Any] | None, revision: str) -> bool:
    """Whether an item may replay natively by the rules of a NOOA revision, encryption not required."""
    if native is None or native["type"] in CLIENT_CALLS:
        return False
    if native["type"] != "reasoning" or native.get("encrypted_content") or native.get("content"):
        return True
    return revision == "19caab1" and bool(read_item(native).text)
