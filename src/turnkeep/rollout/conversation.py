"""The conversation of a rollout: its turns and what was said between them, in order.

The recorded requests say it: each repeats the history, so what a request has beyond those before it came after them.
A rollout that was imported has no requests; its origin lays out what stood between its turns.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from turnkeep.history.projection import Entry
from turnkeep.rollout.evidence import CallRecord, Ref, tail_members
from turnkeep.rollout.view import RolloutView
from turnkeep.wire.json import loads


class Said(NamedTuple):
    """One entry of a conversation.

    `kind` is `turn` (`turn` is its number), `output` (`item` is what a tool gave: its type ends in `_output`) or
    `input` (`item` is any other item; instructions stand as a `system` message). `call` is the policy call that made
    the turn, or the first one whose request carried the item; None where no request shows it.
    """

    kind: Literal["turn", "output", "input"]
    turn: int | None = None
    item: Mapping[str, Any] | None = None
    call: int | None = None


def conversation(rollout: RolloutView) -> Iterator[Said]:
    """Every turn of the rollout once, and every item that a request carried besides, in the order in which they came.

    A history that was rewritten between two requests shows both ways: what is new in a request comes after what was
    there. Turns that nothing places come last. No turn is read.
    Raises CorruptRecord where a piece of a request, or the origin, is damaged.
    """
    told: set[int] = set()
    for said in _by_requests(rollout) if rollout.calls else _by_origin(rollout):
        if said.turn is None:
            yield said
        elif said.turn not in told:
            told.add(said.turn)
            yield said
    for number in range(rollout.turn_count):
        if number not in told:
            yield Said("turn", number, call=rollout.call_of_turn(number))


def whole_history(rollout: RolloutView, call: int | None = None) -> list[Entry]:
    """`RolloutView.history`; of an imported rollout the turns with what its row had before and between them."""
    if rollout.calls or call is not None:
        return rollout.history(call)
    return [
        rollout.turn(said.turn) if said.turn is not None else dict(said.item or {}) for said in conversation(rollout)
    ]


def _by_requests(rollout: RolloutView) -> Iterator[Said]:
    """Turns, as often as they are shown, and each other entry once."""
    known: Counter[Ref] = Counter()
    here: Counter[Ref] = Counter()
    before: tuple[Ref, ...] = ()
    instructions = None
    for call in rollout.calls:
        entries = call.request.entries
        if entries[: len(before)] != before:
            here.clear()
            before = ()
        if (now := _instructions(rollout, call)) != instructions:
            instructions = now
            yield from _said(_system(now), call.number)
        for form, ref in entries[len(before) :]:
            if isinstance(ref, int):
                yield Said("turn", ref, call=rollout.call_of_turn(ref))
                continue
            here[form, ref] += 1
            if here[form, ref] > known[form, ref]:  # as often as it was met in one request, it was said
                known[form, ref] += 1
                yield from _said(literal_items(rollout, call.number, ref), call.number)
        before = entries
        if call.turn is not None:
            yield Said("turn", call.turn, call=call.number)


def _by_origin(rollout: RolloutView) -> Iterator[Said]:
    """What came before the first turn, and the layout that an importer left."""
    origin = rollout.origin or {}
    entries, row = layout(origin, rollout.turn_count), origin.get("row")
    if entries is None:
        return
    params = row.get("responses_create_params") if isinstance(row, dict) else None
    if isinstance(params, dict):
        given = params.get("input")
        yield from _said(_system(params.get("instructions")))
        if isinstance(given, str):
            yield from _said([{"role": "user", "content": given}])
        elif isinstance(given, list):
            yield from _said(given)
    for entry in entries:
        if "turn" in entry:
            yield Said("turn", entry["turn"])
        else:
            yield from _said([entry["item"]])


def layout(origin: Mapping[str, Any], turns: int) -> list[dict[str, Any]] | None:
    """The `output` of an origin, where it is what importers leave: `{"turn": number}` or `{"item": ...}`, in order.

    Else None: an origin may hold anything, and an `output` that is something else, or names a turn that is none of the
    rollout's `turns`, lays nothing out.
    """
    output = origin.get("output")
    if isinstance(output, list) and all(_is_laid_out(entry, turns) for entry in output):
        return output
    return None


def _is_laid_out(entry: Any, turns: int) -> bool:
    if not isinstance(entry, dict):
        return False
    number = entry.get("turn")
    return type(number) is int and 0 <= number < turns if "turn" in entry else "item" in entry


def _said(items: Iterable[Any], call: int | None = None) -> Iterator[Said]:
    for item in items:
        if isinstance(item, dict):
            yield Said("output" if is_output(item) else "input", item=item, call=call)


def _system(instructions: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": instructions}] if instructions else []


def is_output(item: Mapping[str, Any]) -> bool:
    """Whether an item is what a tool gave."""
    return str(item.get("type")).endswith("_output")


def literal_items(rollout: RolloutView, call: int, digest: str) -> list[dict[str, Any]]:
    """The items of an entry of a policy call's request that is no turn, by the digest of its text.

    Raises CorruptRecord that names the call.
    """
    with rollout._named(call):
        items: list[dict[str, Any]] = loads(b"[" + rollout._piece(digest) + b"]")
    return items


def _instructions(rollout: RolloutView, call: CallRecord) -> str | None:
    with rollout._named(call.number):
        tail = rollout._piece(call.request.tail)
    return tail_members(tail).get("instructions") if b'"instructions"' in tail else None
