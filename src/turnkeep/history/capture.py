"""Capture: a model server's response becomes a turn (contract section 1)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from turnkeep.errors import MalformedItem, TransportFailure, UnsupportedClientCall
from turnkeep.history.scope import Scope, scope_text
from turnkeep.history.turn import PART_TYPES, PUBLIC_FIELDS, Hole, Part, Received, Turn, with_body
from turnkeep.wire.digits import MOST_DIMENSIONS
from turnkeep.wire.item import CLIENT_CALLS, Item, Readable, read_item
from turnkeep.wire.json import DEEPEST, Fault, InexactJson, NotJson, dumps, find_unwritable, loads
from turnkeep.wire.scan import Cut, Scanned, fill_in, scan_body, take_out
from turnkeep.wire.training import TRAINING_FIELDS, check_training

if TYPE_CHECKING:
    from turnkeep.wire.training import Array


def capture(
    body: bytes | str | Mapping[str, Any], scope: Scope | str | None = None, scanned: Scanned | None = None
) -> Turn:
    """The turn that a Responses object makes: one part per output item, each with its complete item.

    `body` is the response as received, or the parsed object. `scanned` is what `scan_body` gave for it, where storing
    the body has made that; its arrays were hashed then. Raises TransportFailure where it is no Responses object,
    MalformedItem where an item breaks contract 1.5 or 1.6, UnsupportedClientCall for a call nobody here can answer.
    """
    response = _read_response(body, scanned)
    if response.faults:
        raise response_fault(response.faults[0])
    parts = tuple(_part(*_checked(members, index)) for index, members in enumerate(response.value["output"]))
    _refuse_client_calls(response.value["output"])
    if scanned is None:
        _hash_arrays(parts)
    return _turn(response, parts, scope)


def _hash_arrays(parts: Sequence[Part]) -> None:
    """Compute the digests that `pack` needs, while the arrays are still in the processor's cache."""
    for part in parts:
        if part.native is not None:
            _ = part.native.array_digests


def capture_without_native(body: bytes | str | Mapping[str, Any], scope: Scope | str | None = None) -> Turn:
    """The turn of a response whose training fields are malformed, kept by its public parts alone (contract 7.9).

    Raises as `capture` does where the fault reaches what a person can read, since then no turn can be made of it.
    """
    response = _read_response(body)
    for fault in response.faults:
        if not _in_training(fault):
            raise response_fault(fault)
    parts = tuple(_part(_readable(members, index), None) for index, members in enumerate(response.value["output"]))
    _refuse_client_calls(response.value["output"])
    return _turn(response._replace(body=None), parts, scope)  # the body would make a turn with natives


def capture_again(received: Received, arrays: "Sequence[Array]", scope: str | None) -> Turn:
    """The turn of a body that was captured before, from its pieces and the arrays for its holes.

    Raises as `capture` does; a body that was captured once raises nothing.
    """
    deepest = DEEPEST + MOST_DIMENSIONS  # of arrays that are in no hole
    value = fill_in(received.pieces, arrays, deepest) if arrays else loads(received.pieces[0], DEEPEST)
    parts = tuple(_part(_readable(members, index), Item(members)) for index, members in enumerate(value["output"]))
    return with_body(_turn(_Response(value, ()), parts, scope), received)


def readings(turn: Turn) -> Iterator[Turn]:
    """The turn that a response makes, and as it was read when only a status told an incomplete or failed response."""
    yield turn
    yield with_body(replace(turn, finish_reason=_finish_reason_of(turn.parts)), turn.received)


class _Response(NamedTuple):
    """A Responses object, what is wrong inside its output items (None standing there), and the text it came as."""

    value: dict[str, Any]
    faults: Sequence[Fault]
    body: bytes | None = None
    cuts: Sequence[Cut] = ()


def _read_response(body: bytes | str | Mapping[str, Any], scanned: Scanned | None = None) -> _Response:
    """The Responses object of a body.

    Raises TransportFailure where it is no Responses object, or where something is wrong outside the items.
    """
    raw = body if isinstance(body, bytes) else None
    try:
        response = _parse(body) if scanned is None else _Response(scanned.value, (), raw, scanned.cuts)
    except NotJson as error:
        raise TransportFailure(f"the response is no JSON: {error}", body=raw) from None
    if not isinstance(response.value, dict) or not isinstance(response.value.get("output"), list):
        raise TransportFailure("the response is no Responses object: it has no list of output items", body=raw)
    for fault in response.faults:
        if isinstance(whole := response_fault(fault, raw), TransportFailure):
            raise whole
    return response


def _parse(body: bytes | str | Mapping[str, Any]) -> _Response:
    if isinstance(body, bytes):
        try:
            value, cuts = scan_body(body)
            return _Response(value, (), body, cuts)
        except InexactJson as error:
            return _Response(error.value, error.faults, body)  # type: ignore[arg-type] # the caller looks
    if not isinstance(body, str):
        fault = find_unwritable(body)
        if fault is not None:
            return _Response(body, [fault])  # type: ignore[arg-type] # the caller looks
        body = dumps(body).decode()
    try:
        return _Response(loads(body, DEEPEST), ())
    except InexactJson as error:
        return _Response(error.value, error.faults)  # type: ignore[arg-type] # the caller looks


def response_fault(fault: Fault, body: bytes | None = None) -> MalformedItem | TransportFailure:
    """The error of a value in a response that cannot be kept: of its item, or of the whole where it is in none.

    In an item, field is the item's member and index the place in that.
    """
    if len(fault.path) < 2 or fault.path[0] != "output":
        return TransportFailure(f"the response holds a value that cannot be kept: {fault.reason}", body=body)
    item, *inner = fault.path[1:]
    field = inner[0] if inner and isinstance(inner[0], str) else None
    index = inner[1] if len(inner) > 1 and isinstance(inner[1], int) else None
    return MalformedItem(fault.reason, item=int(item), field=field, index=index)


def _in_training(fault: Fault) -> bool:
    """Whether a fault is in a training field, so that what a person reads is whole."""
    return len(fault.path) > 2 and fault.path[2] in TRAINING_FIELDS


def _checked(members: Any, index: int) -> tuple[Readable, Item]:
    readable = _readable(members, index)
    item = Item(members)
    check_training(item, item.arrays, index)
    return readable, item


def _readable(members: Any, index: int) -> Readable:
    if not isinstance(members, dict):
        raise MalformedItem("an output item must be an object", item=index)
    return read_item(members, index)


def _refuse_client_calls(items: Sequence[Mapping[str, Any]]) -> None:
    for index, members in enumerate(items):
        if members["type"] in CLIENT_CALLS:
            raise UnsupportedClientCall(f"nobody here can answer a {members['type']}", item=index)


def _part(readable: Readable, native: Item | None) -> Part:
    fields = {name: getattr(readable, name) for name in PUBLIC_FIELDS[readable.kind]}
    return PART_TYPES[readable.kind](**fields, native=native)


def _turn(response: _Response, parts: tuple[Part, ...], scope: Scope | str | None) -> Turn:
    value = response.value
    rest = {"usage": value.get("usage"), "model_name": value.get("model"), "response_id": value.get("id")}
    native = ((index, part.native.arrays.items()) for index, part in enumerate(parts) if part.native)
    received = None if response.body is None else cut_out(response.body, response.cuts, native)[0]
    return with_body(Turn(parts, scope_text(scope), finish_reason(value, parts), dumps(rest)), received)


def cut_out(
    body: bytes, cuts: Iterable[Cut], items: Iterable[tuple[int, Iterable[tuple[str, Any]]]]
) -> tuple[Received, "tuple[Array, ...]"]:
    """The body in pieces around the arrays that are members of `items`, and those; one of another spelling stays text.

    `items` are members by name, with the number of the item.
    """
    owners = {id(value): (index, name) for index, members in items for name, value in members}
    kept = [cut for cut in cuts if cut.between is not None and id(cut.array) in owners]
    holes = tuple(Hole(*owners[id(cut.array)], cut.between or b",") for cut in kept)
    return Received(tuple(take_out(body, kept)), holes), tuple(cut.array for cut in kept)


def finish_reason(response: Mapping[str, Any], parts: Sequence[Part]) -> str:
    """`length`, `error`, `tool_calls` or `stop`, by contract 1.8.

    A response without a status is failed where it has an error, and incomplete where it says why: so Gym's model server
    for vLLM writes them.
    """
    status, details = response.get("status"), response.get("incomplete_details")
    if status is None and response.get("error") is not None:
        status = "failed"
    elif status is None and details:
        status = "incomplete"
    if status == "incomplete" and isinstance(details, Mapping) and details.get("reason") == "max_output_tokens":
        return "length"
    if status in ("incomplete", "failed", "cancelled"):
        return "error"
    return _finish_reason_of(parts)


def _finish_reason_of(parts: Sequence[Part]) -> str:
    """Of a response that was neither cut short nor failed."""
    return "tool_calls" if any(part.kind == "tool_call" for part in parts) else "stop"
