"""An ATIF document made into turns and what stands between them: the fields first, then what only `extra` has.

A document that another tool wrote has no `extra.turnkeep`: its agent steps become turns of what their fields say, with
items only where there are token ids to be carried.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple, Self

from turnkeep.archive.documents import expecting
from turnkeep.errors import ArchiveError, MalformedItem, TurnkeepError
from turnkeep.export.atif_calls import FIELDS, read_call
from turnkeep.export.atif_items import is_turn, read_item_step, read_result, texts_of
from turnkeep.export.atif_text import Place, move_in, own_extra
from turnkeep.export.atif_turn import COUNTS, IN_METRICS, member, part_places
from turnkeep.history.turn import PART_TYPES, PUBLIC_FIELDS, Part, Turn
from turnkeep.wire.item import Item, read_item
from turnkeep.wire.json import dumps, loads
from turnkeep.wire.training import ROUTES, check_training

FORMAT = "ATIF"


class Entry(NamedTuple):
    """One entry of a conversation: a turn, and whether it was changed since it was exported; or an item."""

    turn: Turn | None = None
    item: dict[str, Any] | None = None
    changed: bool = False


def read_entries(document: Mapping[str, Any], scope: str | None) -> list[Entry]:
    """The conversation of a document's steps, in order. Raises ArchiveError, MalformedItem, which name the turn."""
    found: list[tuple[tuple[int, int, int], Entry]] = []
    turns = 0
    for number, step in enumerate(document["steps"], 1):
        with _InStep(number, turns) as here, expecting(FORMAT):
            turn = is_turn(step)
            here.turn = turns if turn else None
            entries = [_read_turn(step, scope)] if turn else _read_items(step)
            found += [((number, 0, 0), entry) for entry in entries]
            found += _read_results(step, number, len(document["steps"]))
            turns += turn
    return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]


class _InStep:
    """Names the step, and the turn where it is one, in errors that pass."""

    def __init__(self, step: int, turn: int | None) -> None:
        self._step, self.turn = step, turn

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TurnkeepError):
            error.message = f"step {self._step}: {error.message}"
            error.args = (error.message,)
            error.turn = self.turn


def _read_items(step: Mapping[str, Any]) -> list[Entry]:
    own = own_extra(step)
    only_results = step["source"] == "system" and step["message"] == "" and step.get("observation") and not own
    return [] if only_results else [Entry(item=item) for item in map(_plain, read_item_step(step))]


def _read_results(step: Mapping[str, Any], number: int, steps: int) -> Iterator[tuple[tuple[int, int, int], Entry]]:
    """The outputs in a step's observation, each with its place in the conversation."""
    for index, result in enumerate((step.get("observation") or {}).get("results") or ()):
        after, place = own_extra(result).get("after") or (number, -1)
        if not number <= after <= steps:
            raise ArchiveError(f"an observation came after step {after}, which is not there or before its call")
        key = (after, 1, index) if place < 0 else (after, 2, place)
        yield key, Entry(item=_plain(read_result(result)))


def _read_turn(step: Mapping[str, Any], scope: str | None) -> Entry:
    own = own_extra(step)
    if "parts" not in own:
        return Entry(_foreign_turn(step, scope))
    entries = deepcopy(list(own["parts"]))
    message = "".join(texts_of(step["message"]))
    check_texts(step, "reasoning_content", "model_name")
    check_texts(own, "scope")
    if not isinstance(own["finish_reason"], str):
        raise ArchiveError("finish_reason must be text", field="finish_reason")
    move_in(_places(entries, "text"), message, "", "message")
    move_in(_places(entries, "reasoning"), step.get("reasoning_content") or "", "\n", "reasoning_content")
    calls = step.get("tool_calls") or []
    if len(calls) != sum(entry["kind"] == "tool_call" for entry in entries):
        raise ArchiveError("the number of tool calls is not that of the parts in extra", field="tool_calls")
    waiting = iter(calls)
    parts = []
    for index, entry in enumerate(entries):
        call = next(waiting) if entry["kind"] == "tool_call" else None
        parts.append(_read_part(entry, call, step.get("metrics") or {}, index))
    turn = Turn(tuple(parts), own.get("scope", scope), own["finish_reason"], dumps(_members(own, step)))
    if turn.digest == own["digest"]:
        return Entry(turn)
    return Entry(replace(turn, scope=None), changed=True)


def check_texts(holder: Mapping[str, Any], *fields: str) -> None:
    """Raise ArchiveError where one of the fields is there and no text."""
    for field in fields:
        if not isinstance(holder.get(field), str | None):
            raise ArchiveError(f"{field} must be text or null", field=field)


def _places(entries: list[dict[str, Any]], kind: str) -> list[Place]:
    return [place for entry in entries if entry["kind"] == kind for place in part_places(entry)]


def _read_part(entry: dict[str, Any], call: Mapping[str, Any] | None, metrics: Mapping[str, Any], index: int) -> Part:
    """A part of its entry, in which the texts are again, of its tool call, and of the metrics if it carries these."""
    kind = entry["kind"]
    kept, public = (entry, None) if call is None else (own_extra(call), read_call(call))
    members = kept.get("item", kept.get("stale"))
    if members is not None:
        members = dict(members)
        for field in kept.get("moved", ()):
            members[field] = _trained(metrics, field, index)
        if public is not None and "item" in kept:
            members.update(zip(FIELDS, public.values(), strict=True))
        native = Item(members)
        if kept.get("moved"):
            check_training(native, native.arrays, index)
    else:
        native = None
    if "item" in kept:
        readable = read_item(members, index)
        if readable.kind != kind:
            raise ArchiveError(f"part {index} is a {kind}, and its item a {readable.kind}", item=index)
        public = {name: getattr(readable, name) for name in PUBLIC_FIELDS[kind]}
    elif public is None:
        check_texts(entry, "text")
        public = {"text": entry["text"] or ""}
    return PART_TYPES[kind](**public, native=native)


def _trained(metrics: Mapping[str, Any], field: str, item: int) -> Any:
    """The array of a training field. Raises MalformedItem where the metrics have none."""
    name = IN_METRICS.get(field, field)
    holder = (metrics.get("extra") or {}) if field == ROUTES else metrics
    if holder.get(name) is None:
        where = "metrics.extra" if field == ROUTES else "metrics"
        raise MalformedItem(f"{where} has no {name}, and the item had it", item=item, field=field)
    return holder[name]


def _members(own: Mapping[str, Any], step: Mapping[str, Any]) -> dict[str, Any]:
    """The turn's other members, with what the step's fields have."""
    members: dict[str, Any] = deepcopy(dict(own["members"]))
    metrics = step.get("metrics") or {}
    fields: dict[str, Any] = {".".join(path): metrics.get(name) for name, path in COUNTS.items()}
    fields["model_name"] = step.get("model_name")
    for path in own["moved"]:
        if type(fields.get(path)) is not (str if path == "model_name" else int):
            raise ArchiveError(f"the step has no field for {path}, and the turn had it", field=path)
        *outer, last = path.split(".")
        member(members, outer)[last] = fields[path]
    return members


def _foreign_turn(step: Mapping[str, Any], scope: str | None) -> Turn:
    """The turn of an agent step that another tool wrote."""
    check_texts(step, "reasoning_content", "model_name")
    metrics = step.get("metrics") or {}
    items: list[dict[str, Any]] = []
    if reasoning := step.get("reasoning_content"):
        block = {"type": "reasoning_text", "text": reasoning}
        items.append({"type": "reasoning", "summary": [], "content": [block]})
    if message := "".join(texts_of(step["message"])):
        block = {"type": "output_text", "text": message, "annotations": []}
        items.append({"type": "message", "role": "assistant", "status": "completed", "content": [block]})
    for call in step.get("tool_calls") or ():
        items.append({"type": "function_call", **dict(zip(FIELDS, read_call(call).values(), strict=True))})
    trained = {field: metrics.get(name) for field, name in IN_METRICS.items()}
    has_ids = all(value is not None for value in trained.values())
    if has_ids:
        if not items:
            items.append({"type": "message", "role": "assistant", "status": "completed", "content": []})
        routes = (metrics.get("extra") or {}).get(ROUTES)
        items[-1] |= trained if routes is None else {**trained, ROUTES: routes}
        check_training(items[-1], Item(items[-1]).arrays, len(items) - 1)
    readable = [read_item(item) for item in items]
    parts = tuple(
        PART_TYPES[read.kind](
            **{name: getattr(read, name) for name in PUBLIC_FIELDS[read.kind]}, native=Item(item) if has_ids else None
        )
        for read, item in zip(readable, items, strict=True)
    )
    counted = {path[-1]: metrics[name] for name, path in list(COUNTS.items())[:2] if metrics.get(name) is not None}
    rest = {"usage": counted or None, "model_name": step.get("model_name"), "response_id": None}
    reason = "tool_calls" if step.get("tool_calls") else "stop"
    return Turn(parts, scope, reason, dumps(rest))


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    """The value in plain lists, as a JSON reader gives it."""
    plain: dict[str, Any] = loads(dumps(value))
    return plain
