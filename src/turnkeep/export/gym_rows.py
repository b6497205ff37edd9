"""One row of a NeMo Gym rollout file, taken apart: its turns, and everything else as the rollout's origin.

A row is a JSON object whose `response.output` lists what the policy said and what was answered to it, in order. A turn
is what one policy call added: the items that a policy writes, up to the one that carries token ids (Gym puts them on
the last item of a call), or up to an item that no policy writes. The rest of the row becomes the origin:

    {"source": "gym", "file": <name>, "line": <from 1>, "sha256": <of the line>, "turns": <how many>,
     "row": <the row, null for response.output>,
     "output": [{"turn": 0}, {"item": <an item of no turn>}, {"turn": 1}, ...]}

`{"turn": n, "items": [...], "fault": {"message", "item", "field", "index"}}` is a turn kept without native items
(contract 7.9), with its items as they stood, and what is wrong with them (`item` counts in the turn). Where one of them
holds what JSON cannot, `text` is the whole line. docs/gym-rollouts.md tells the same to users.

What the member `turnkeep` of a row of our own tells (`turnkeep.rollout.gym_row`) is taken in with it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from turnkeep.errors import ArchiveError, MalformedItem, TurnkeepError
from turnkeep.history.capture import capture, capture_without_native
from turnkeep.history.gaps import MALFORMED_TRAINING, Gap, gap
from turnkeep.history.turn import Turn
from turnkeep.rollout.gym_row import Told, is_of_server, read_member, response_id
from turnkeep.wire.item import Item
from turnkeep.wire.json import DEEPEST, Fault, InexactJson, NotJson, dumps, loads, render_path
from turnkeep.wire.scan import scan_body
from turnkeep.wire.training import TRAINING_FIELDS

SOURCE = "gym"
"""What an origin made here says under `source`."""

_AROUND = 10
"""Levels of nesting that the origin puts around what stands in a row."""

type OnMalformed = Literal["refuse", "gap"]


class Stretch(NamedTuple):
    """Items of an output that belong together, by index: what one policy call added, or an item of no turn."""

    is_turn: bool
    items: list[int]


class Parted(NamedTuple):
    """A row taken apart."""

    turns: tuple[Turn, ...]
    origin: dict[str, Any]
    gaps: tuple[Gap, ...]


def split_output(items: Sequence[Any], said: Callable[[Mapping[str, Any]], bool]) -> list[Stretch]:
    """The turns in an output, and the items between them, `said` telling of an item whether the policy wrote it.

    Raises MalformedItem for an item that is no object.
    """
    stretches: list[Stretch] = []
    ended = True
    for index, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise MalformedItem(f"an output item must be an object, not {_kind(item)}", item=index)
        if not said(item):
            stretches.append(Stretch(False, [index]))
            ended = True
            continue
        if ended:
            stretches.append(Stretch(True, []))
        stretches[-1].items.append(index)
        ended = _has_tokens(item)
    return stretches


def is_said(item: Mapping[str, Any]) -> bool:
    """Whether a policy writes such an item: no answer to a call, no message of another role or of an input."""
    kind = item.get("type")
    answers = isinstance(kind, str) and (kind.endswith("_output") or kind == "mcp_approval_response")
    return not answers and item.get("role", "assistant") == "assistant" and not _is_input_message(item)


def _is_input_message(item: Mapping[str, Any]) -> bool:
    """Whether an item is a message as only an input has it: without a type, and without token ids."""
    return "type" not in item and {"role", "content"} <= item.keys() and not _has_tokens(item)


def _is_said_in_ours(item: Mapping[str, Any]) -> bool:
    """Whether a policy wrote such an item of a row that has our member."""
    return is_said(item) and (_has_tokens(item) or not is_of_server(item))


def _has_tokens(item: Mapping[str, Any]) -> bool:
    """Whether an item carries token ids; harnesses that have none write empty lists."""
    values = (item.get(name) for name in TRAINING_FIELDS[:2])
    return any(value is not None and not (hasattr(value, "__len__") and len(value) == 0) for value in values)


def part_row(line: bytes, scope: str | None, on_malformed: OnMalformed = "refuse") -> Parted:
    """The turns and the origin of a row; each item stays exactly what it was.

    Raises ArchiveError where the line is no rollout, MalformedItem (its `item` is the index in `response.output`) and
    UnsupportedClientCall where no turn can be made of an item. With `on_malformed="gap"` a turn whose training fields
    are malformed is kept by its public parts, its items in the origin.
    """
    row, faults = _read(line)
    response = _response(row)
    told = read_member(row)
    turns: list[Turn] = []
    output: list[dict[str, Any]] = []
    stretches = split_output(response["output"], is_said if told is None else _is_said_in_ours)
    last = max((number for number, stretch in enumerate(stretches) if stretch.is_turn), default=None)
    for number, stretch in enumerate(stretches):
        items = [response["output"][index] for index in stretch.items]
        if not stretch.is_turn:
            output.append({"item": _plain(items[0])})
            continue
        entry: dict[str, Any] = {"turn": len(turns)}
        body = _body(items, _ended(response, told) if number == last else {})
        try:
            _raise_fault(faults, stretch)
            turns.append(_capture(body, scope, stretch))
        except MalformedItem as error:
            if on_malformed == "refuse" or error.field not in TRAINING_FIELDS:
                raise
            turns.append(_capture_public(body, scope, stretch))
            entry |= {"items": _plain(items), "fault": _fault(error, stretch)}
        output.append(entry)
    for fault in faults:  # those in items of no turn
        if on_malformed == "refuse" or not _is_training(fault):
            raise _fault_error(fault)
    rest = _plain({**row, "response": {**response, "output": None}})
    origin = {"source": SOURCE, "turns": len(turns), "row": rest, "output": output}
    if faults:
        origin["text"] = line.decode()
    return Parted(tuple(turns), origin, gaps_of_row(row, output))


def gaps_of_row(row: Mapping[str, Any], output: Sequence[Mapping[str, Any]]) -> tuple[Gap, ...]:
    """The gaps that a row tells of, and one where a turn of its layout is without native items. Raises ArchiveError."""
    told = read_member(row)
    malformed = any("items" in entry for entry in output)
    return (*(() if told is None else told.gaps), *([gap(MALFORMED_TRAINING)] if malformed else []))


def _read(line: bytes) -> tuple[Any, Sequence[Fault]]:
    """The row, numeric arrays among its values as NumPy arrays, and what in it JSON cannot hold, null in its place."""
    try:
        return scan_body(line, DEEPEST - _AROUND).value, ()
    except NotJson as error:
        raise ArchiveError(f"the row is no JSON: {error}") from None
    except InexactJson as error:
        for fault in error.faults:
            if isinstance(wrong := _fault_error(fault), ArchiveError):
                raise wrong from None
        return error.value, error.faults


def _response(row: Any) -> dict[str, Any]:
    """The row's response, which has a list of output items."""
    if not isinstance(row, dict):
        raise ArchiveError(f"a row is a JSON object, not {_kind(row)}")
    if "response" not in row:
        raise ArchiveError("the row has no response: it is no rollout", field="response")
    response = row["response"]
    if not isinstance(response, dict):
        raise ArchiveError(f"response is {_kind(response)}, not an object", field="response")
    if "output" not in response:
        raise ArchiveError("response has no output", field="output")
    output = response["output"]
    if not isinstance(output, list):
        raise ArchiveError(f"response.output is {_kind(output)}, not a list of items", field="output")
    return response


def _kind(value: Any) -> str:
    """What a JSON value is, in words; an array that was read as NumPy's is a list."""
    if value is None:
        return "null"
    names = {dict: "an object", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "a list")


def _fault_error(fault: Fault) -> MalformedItem | ArchiveError:
    """The error of a value that JSON cannot hold: of its item, or of the row where it is in none."""
    match fault.path:
        case ("response", "output", int(item), *inner):
            field = inner[0] if inner and isinstance(inner[0], str) else None
            index = inner[1] if len(inner) > 1 and isinstance(inner[1], int) else None
            return MalformedItem(fault.reason, item=item, field=field, index=index)
        case _:
            return ArchiveError(f"the row cannot be kept exactly: {fault.reason} at {render_path(fault.path)}")


def _is_training(fault: Fault) -> bool:
    return len(fault.path) > 3 and fault.path[3] in TRAINING_FIELDS


def _raise_fault(faults: Sequence[Fault], stretch: Stretch) -> None:
    """Raise the first fault in the turn's items; one outside the training fields comes before others."""
    found = [fault for fault in faults if fault.path[2] in stretch.items]
    for fault in sorted(found, key=_is_training):
        raise _fault_error(fault)


def _fault(error: MalformedItem, stretch: Stretch) -> dict[str, Any]:
    """What is wrong with a turn: words, and the place, `item` counted in the turn."""
    item = stretch.items.index(error.item) if error.item in stretch.items else None
    return {"message": error.message, "item": item, "field": error.field, "index": error.index}


def _capture(body: bytes, scope: str | None, stretch: Stretch) -> Turn:
    with _InRow(stretch):
        return capture(body, scope)


def _capture_public(body: bytes, scope: str | None, stretch: Stretch) -> Turn:
    with _InRow(stretch):
        return capture_without_native(body, scope)


class _InRow:
    """Makes the item in errors that pass the one of the row."""

    def __init__(self, stretch: Stretch) -> None:
        self._items = stretch.items

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TurnkeepError) and error.item is not None:
            error.item = self._items[error.item]


def _ended(response: Mapping[str, Any], told: Told | None) -> dict[str, Any]:
    """How a row's response says that its last policy call ended; the agent server's says it of the run alone."""
    if told is not None and response.get("id") == response_id(told.rollout):
        return {}
    return {name: response[name] for name in ("status", "incomplete_details", "error") if name in response}


def _body(items: Sequence[Mapping[str, Any]], ended: Mapping[str, Any]) -> bytes:
    """A Responses object of these items that ended so."""
    texts = b",".join(Item(item).to_bytes() for item in items)
    return b'{"output":[' + texts + b"]" + (b"," + dumps(ended)[1:-1] if ended else b"") + b"}"


def _plain(value: Any) -> Any:
    """The value in plain lists."""
    return loads(dumps(value))
