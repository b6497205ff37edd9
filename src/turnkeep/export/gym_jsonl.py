"""Rollouts as NeMo Gym rollout JSONL, one row each: what NeMo RL's and TRL's Gym integrations read.

An imported rollout gives its row back: the same members in the same order, every item of `response.output` as it was.
Any other rollout gives a row of its policy calls:

    {"responses_create_params": <the request of its first turn, as it was sent>,
     "response": {<the last response's members>, "output": [<every turn's items, what was answered between>], "usage"},
     <the other members of the origin's `row`, or `request`>, "reward": <where the origin has one>,
     "turnkeep": <the rollout, its gaps and its failure, where there is one of them>}
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from turnkeep.errors import ArchiveError, CorruptRecord, TurnkeepError
from turnkeep.export.gym_rows import SOURCE, gaps_of_row, is_said
from turnkeep.history.gaps import Gap
from turnkeep.history.turn import Part, Turn
from turnkeep.rollout.conversation import conversation, layout
from turnkeep.rollout.gym_row import MEMBER, write_member
from turnkeep.rollout.view import RolloutView
from turnkeep.store.base import Store
from turnkeep.wire.json import dumps
from turnkeep.wire.scan import scan_body

NOT_IN_ROW = "turn_not_in_row"
GAP_NOT_IN_ROW = "gap_not_in_row"
NO_REQUEST = "no_request"
NOT_ONE_CONVERSATION = "not_one_conversation"
NO_NATIVE = "no_native_item"
LOOKS_LIKE_A_TURN = "looks_like_a_turn"


class Remark(NamedTuple):
    """What a row does not say of a rollout: a stable name, the turn (None where it is of the whole), and words."""

    rule: str
    turn: int | None
    message: str


class Written(NamedTuple):
    """What became of one rollout: the turns in its row, its bytes, what the row does not say, or why there is none."""

    rollout: str
    turns: int = 0
    size: int = 0
    remarks: tuple[Remark, ...] = ()
    error: TurnkeepError | None = None


def export_gym(store: Store, rollouts: Iterable[str], out: BinaryIO) -> Iterator[Written]:
    """Write a row for each rollout, piece by piece; yields what became of each.

    `out` must be seekable: where a rollout is damaged or empty, what was written of its row is taken back.
    """
    for rollout in rollouts:
        begun = out.tell()
        remarks: list[Remark] = []
        try:
            view = RolloutView(store, rollout)
            for chunk in row_chunks(view, remarks):
                out.write(chunk)
            out.write(b"\n")
        except (ArchiveError, CorruptRecord) as error:
            out.seek(begun)
            out.truncate()
            yield Written(rollout, error=error)
            continue
        yield Written(rollout, view.turn_count, out.tell() - begun, tuple(remarks))


def row_chunks(view: RolloutView, remarks: list[Remark]) -> Iterator[bytes]:
    """The row of a rollout in pieces, none larger than an item; what it does not say is added to `remarks`.

    Raises ArchiveError for a rollout with nothing in it, CorruptRecord where something is not what was written.
    """
    origin = view.origin or {}
    if origin.get("source") == SOURCE and "output" in origin:
        yield from _imported(view, origin, remarks)
    elif view.turn_count or view.calls:
        yield from _collected(view, origin, remarks)
    else:
        raise ArchiveError("the rollout has neither turns nor policy calls", rollout=view.id)


def _imported(view: RolloutView, origin: Mapping[str, Any], remarks: list[Remark]) -> Iterator[bytes]:
    """The row that the rollout came from."""
    entries = layout(origin, view.turn_count)
    turns = [entry["turn"] for entry in entries or () if "turn" in entry]
    if entries is None or turns != list(range(len(turns))) or origin.get("turns") != len(turns):
        raise CorruptRecord("the origin does not name each turn once, in order", rollout=view.id, field="origin")
    for number in range(len(turns), view.turn_count):
        remarks.append(Remark(NOT_IN_ROW, number, "it was added after the import; the row is as it was imported"))
    row = origin.get("row")
    members = row.get("response") if isinstance(row, dict) else None
    if not isinstance(row, dict) or not isinstance(members, dict):
        raise CorruptRecord("the origin has no row with a response", rollout=view.id, field="origin")
    remarks += _unsaid(view, gaps_of_row(row, entries))
    if "text" in origin:
        yield origin["text"].encode()
        return
    response = {**_written(members), "output": _listed(_items(view, entries))}
    yield from _object({**_written(row), "response": _object(response)})


def _unsaid(view: RolloutView, told: Sequence[Gap]) -> Iterator[Remark]:
    """The gaps that are not `told`, and the failure of an ungradable rollout: they came after the import."""
    found = [each.code for each in view.gaps if each not in told]
    if (failure := _failure(view)) is not None:
        found.append(f"{failure['type']}: {failure['message']}")
    for each in found:
        yield Remark(GAP_NOT_IN_ROW, None, f"{each}, which came after the import; the row is as it was imported")


def _failure(view: RolloutView) -> Mapping[str, Any] | None:
    """What makes a rollout ungradable, or None."""
    return None if view.gradable else view.failure


def _written(members: Mapping[str, Any]) -> dict[str, Iterable[bytes]]:
    return {name: [dumps(value)] for name, value in members.items()}


def _items(view: RolloutView, entries: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    for entry in entries:
        if "item" in entry:
            yield dumps(entry["item"])
        elif "items" in entry:
            yield from map(dumps, entry["items"])
        else:
            yield from _turn_items(view.turn(entry["turn"]), entry["turn"], [])


def _turn_items(turn: Turn, number: int, remarks: list[Remark]) -> Iterator[bytes]:
    """The items of a turn; a part without one is written as an item of what a person can read."""
    for index, part in enumerate(turn.parts):
        if part.native is not None:
            yield part.native.to_bytes()
            continue
        message = f"part {index} has no native item: it is written by its public fields, without token ids"
        remarks.append(Remark(NO_NATIVE, number, message))
        yield dumps(_public_item(part))


def _public_item(part: Part) -> dict[str, Any]:
    if part.kind == "tool_call":
        return {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": part.arguments}
    if part.kind == "reasoning":
        return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": part.text}]}
    block = {"type": "output_text", "text": part.text, "annotations": []}
    return {"type": "message", "role": "assistant", "status": "completed", "content": [block]}


def _collected(view: RolloutView, origin: Mapping[str, Any], remarks: list[Remark]) -> Iterator[bytes]:
    """The row of a rollout that was not imported from one."""
    first = view.call_of_turn(0) if view.turn_count else 0
    head, usage = _response_members(view)
    response = {
        **_written(head),
        "output": _listed(_output(view, remarks)),
        **({} if usage is None else _written({"usage": usage})),
    }
    told: Mapping[str, Any] = next(
        (origin[name] for name in ("row", "request") if isinstance(origin.get(name), dict)), {}
    )
    asked = dumps(told.get("responses_create_params", {"input": []})) if first is None else view.request(first)
    row: dict[str, Iterable[bytes]] = {"responses_create_params": [asked], "response": _object(response)}
    rest = {**told, **{name: origin[name] for name in ("reward",) if name in origin}}
    if view.gaps or not view.gradable:
        rest[MEMBER] = write_member(view.id, view.gaps, _failure(view))
    yield from _object({**row, **_written({name: value for name, value in rest.items() if name not in row})})


def _response_members(view: RolloutView) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The members of the last response, without its output; and the usage of all turns together."""
    if not view.turn_count:
        return {"object": "response"}, None
    usage: Any = None
    for number in range(view.turn_count):
        turn = view.turn(number)
        usage = _added(usage, turn.usage)
    body = turn.body
    if body is None:
        members = turn.members
        return {"id": members.get("response_id"), "object": "response", "model": members.get("model_name")}, usage
    head = dict(scan_body(body).value)
    del head["output"]
    head.pop("usage", None)
    return head, usage


def _added(one: Any, other: Any) -> Any:
    """Two usages together, as Gym's agents add them: numbers added, objects by member; else the later value."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _added(one.get(name), other.get(name)) for name in {**one, **other}}
    if type(one) is int and type(other) is int:
        return one + other
    return one if other is None else other


def _output(view: RolloutView, remarks: list[Remark]) -> Iterator[bytes]:
    """Every turn's items in order, and what was said between them. What came before the first is in its request."""
    before: list[int | None] = []
    last: int | None = None
    for said in conversation(view):
        if said.turn is None:
            if before and said.item is not None:
                if is_said(said.item):
                    message = f"a {said.item.get('type')} that its history has after this turn reads like the policy's"
                    remarks.append(Remark(LOOKS_LIKE_A_TURN, last, message))
                yield dumps(said.item)
            continue
        last, turn = said.turn, view.turn(said.turn)
        remarks += _context_remarks(view, said.turn, before)
        yield from _turn_items(turn, said.turn, remarks)
        before.append(view.number_of(turn))


def _context_remarks(view: RolloutView, number: int, before: list[int | None]) -> Iterator[Remark]:
    """Whether a turn was asked for with the turns before it, and these alone: a row is one conversation."""
    call = view.call_of_turn(number)
    if call is None:
        yield Remark(NO_REQUEST, number, "it has no recorded request: what stood before it is not known")
        return
    turns = [ref for _, ref in view.calls[call].request.entries if isinstance(ref, int)]
    if turns != before:
        shown = f"the turns {', '.join(map(str, turns))}" if turns else "no turn"
        message = f"its request had {shown} before it, not all that came before: trainers find it not contiguous"
        yield Remark(NOT_ONE_CONVERSATION, number, message)


def _object(members: Mapping[str, Iterable[bytes]]) -> Iterator[bytes]:
    """An object's JSON text, its members' values in pieces."""
    yield b"{"
    for index, (name, pieces) in enumerate(members.items()):
        yield (b"," if index else b"") + dumps(name) + b":"
        yield from pieces
    yield b"}"


def _listed(items: Iterable[bytes]) -> Iterator[bytes]:
    """A list's JSON text."""
    yield b"["
    for index, item in enumerate(items):
        yield b"," + item if index else item
    yield b"]"
