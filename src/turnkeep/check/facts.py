"""What the rules see: the training fields of an item, a turn, and what is known of the whole rollout."""

import binascii
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from turnkeep.archive.json_form import to_skeleton
from turnkeep.check.finding import Found
from turnkeep.check.plain import is_plain, read_arguments
from turnkeep.errors import MalformedItem, TurnkeepError
from turnkeep.history.turn import Turn, public_fields
from turnkeep.rollout.conversation import Said
from turnkeep.rollout.view import RolloutView
from turnkeep.wire.item import Item
from turnkeep.wire.training import REQUIRED, ROUTES, check_training, to_array

type Array = np.ndarray[Any, np.dtype[Any]]

PROMPT, GENERATION, LOG_PROBS = REQUIRED
_ENVELOPE_DTYPES = ("int8", "int16", "int32")


class Limits(NamedTuple):
    """How many token ids and how many experts the model has, where that was stated."""

    vocabulary: int | None = None
    experts: int | None = None


class Routes(NamedTuple):
    """The routed experts of an item: integers [tokens, layers, top_k], and the form they came in.

    `experts` is None where they cannot be read; then `fault` says why. `form` is `lists`, or the dtype of an envelope.
    """

    experts: Array | None
    form: str
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """The training fields of output item `item` of turn `turn`: what a trainer would train on.

    `prompt` [P] and `generation` [G] are token ids, `log_probs` [G] float64, in nats; each None where it is missing or
    cannot be read, and then `fault` says why.
    """

    turn: int
    item: int
    prompt: Array | None
    generation: Array | None
    log_probs: Array | None
    routes: Routes | None
    fault: MalformedItem | None = None

    @property
    def is_trainable(self) -> bool:
        """Whether there are generated tokens: a trainer passes over an item that has none."""
        return self.prompt is not None and self.generation is not None and len(self.generation) > 0

    def found(self, message: str, field: str | None = None, index: int | None = None) -> Found:
        """A finding in this item."""
        return Found(message, turn=self.turn, item=self.item, field=field, index=index)


class RoutesBefore(NamedTuple):
    """The last routes that were seen: in which turn, (layers, top_k), and the form; and all of both so far."""

    turn: int
    shape: tuple[int, ...]
    form: str
    shapes: frozenset[tuple[int, ...]]
    forms: frozenset[str]


class SampleFacts(NamedTuple):
    """An item's training fields, and what stood before: the last trainable item, and the last routes."""

    sample: Sample
    before: Sample | None
    parts_at: int | None
    """The first prompt token that is not what the items before would have there; None where the prompt goes on."""
    routes_before: RoutesBefore | None
    limits: Limits


class TurnFacts(NamedTuple):
    """A turn, its number, the policy call that made it, its training fields, and its rollout."""

    number: int
    call: int | None
    turn: Turn
    samples: tuple[Sample, ...]
    rollout: RolloutView

    def found(self, message: str, item: int | None = None, field: str | None = None) -> Found:
        """A finding in this turn."""
        return Found(message, turn=self.number, call=self.call, item=item, field=field)


class TurnNote(NamedTuple):
    """What is remembered of a turn when it has been passed: no text, no array."""

    number: int
    call: int | None
    is_empty: bool
    has_fields: bool
    """Whether any item carries training fields."""
    trainable: tuple[tuple[int, bool], ...]
    """The trainable items, and whether each has routed experts."""
    calls: tuple[tuple[int, str], ...]
    """The tool calls: item and call id."""
    torn: tuple[Found, ...]
    """Where half of a surrogate pair stands."""


class Step(NamedTuple):
    """A tool call (`item` is its place in the turn), or the result of one (`turn` is then the turn before it).

    A call that stands in a request and in no turn was made up by the runtime: it has no `item`.
    """

    is_result: bool
    id: str
    turn: int | None
    item: int | None = None
    call: int | None = None


class Talk(NamedTuple):
    """What is remembered of the conversation of a rollout."""

    steps: tuple[Step, ...] = ()
    """The calls and results, in order."""
    copies: tuple[Step, ...] = ()
    """The calls in requests that have the id of a call before them."""
    torn: tuple[Found, ...] = ()
    """Where half of a surrogate pair stands, turns aside."""
    is_empty: bool = False
    """Whether nothing was said at all."""


class RolloutFacts(NamedTuple):
    """A rollout when all its turns have been passed: what is remembered of them, what could not be read, its tools."""

    rollout: RolloutView
    notes: tuple[TurnNote, ...]
    unreadable: tuple[TurnkeepError, ...]
    lost: tuple[Found, ...]
    """The turns of policy calls that are kept without what was malformed in them (contract 7.9)."""
    lost_of_row: tuple[Found, ...]
    """The same, of a row that was imported."""
    talk: Talk
    knows_results: bool
    """Whether something is there that would show what tools gave."""
    tools: tuple[Mapping[str, Any], ...]
    """The records of tools marked `once`."""


def read_samples(number: int, turn: Turn) -> tuple[Sample, ...]:
    """The training fields of each item of a turn that has any."""
    return tuple(
        _read_sample(number, item, part.native)
        for item, part in enumerate(turn.parts)
        if part.native is not None and part.native.has_training
    )


def take_note(facts: TurnFacts) -> TurnNote:
    """What to remember of a turn."""
    return TurnNote(
        facts.number,
        facts.call,
        not facts.turn.parts,
        bool(facts.samples),
        tuple((sample.item, sample.routes is not None) for sample in facts.samples if sample.is_trainable),
        tuple((item, part.id) for item, part in enumerate(facts.turn.parts) if part.kind == "tool_call"),
        tuple(_read_torn(facts)),
    )


def _read_torn(facts: TurnFacts) -> Iterator[Found]:
    """Where half of a surrogate pair stands in a turn: a part's arguments as JSON may hold one that is written out."""
    turn = facts.turn
    whole = is_plain(to_skeleton(turn))
    torn = []
    for item, part in enumerate(turn.parts):
        if part.kind == "tool_call" and read_arguments(part.arguments).fault == "not-plain":
            torn.append(facts.found("the arguments hold half of a surrogate pair", item, "arguments"))
        elif not whole:
            native = {} if part.native is None else part.native.skeleton()
            members = {**native, **public_fields(part)}
            if not is_plain([native, members]):
                wrong = next((name for name, value in members.items() if not is_plain([name, value])), None)
                torn.append(facts.found("a text holds half of a surrogate pair", item, wrong))
    yield from torn
    if not (whole or torn):
        yield facts.found("what came with the response holds half of a surrogate pair")


def read_lost(rollout: RolloutView) -> Iterator[Found]:
    """The turns that are kept without what was malformed in them, by their policy calls."""
    for call in rollout.calls:
        if call.turn is not None and (failure := call.failure) is not None:
            places = (failure.get(name) for name in ("item", "field", "index"))
            yield Found(str(failure.get("message")), call.turn, call.number, *places)


def read_lost_of_row(entries: Iterable[Mapping[str, Any]]) -> Iterator[Found]:
    """The turns that are kept without what was malformed in them, by an importer's layout."""
    for entry in entries:
        if "turn" in entry and "items" in entry:
            told = entry.get("fault")
            fault: Any = told if isinstance(told, dict) else {"message": "its training fields were malformed"}
            places = (fault.get(name) for name in ("item", "field", "index"))
            yield Found(str(fault.get("message")), entry["turn"], None, *places)


def read_talk(said: Iterable[Said], notes: Iterable[TurnNote]) -> Talk:
    """What is to be remembered of a conversation. A request's own copy of a turn's call is not another call."""
    calls = {note.number: note.calls for note in notes}
    known: set[str] = set()
    last: int | None = None
    steps: list[Step] = []
    copies: list[Step] = []
    torn: list[Found] = []
    is_empty = True
    for each in said:
        is_empty = False
        if each.turn is not None:
            last = each.turn
            steps += (Step(False, id, last, place, each.call) for place, id in calls.get(last, ()))
            known.update(id for _, id in calls.get(last, ()))
            continue
        if not is_plain(each.item):
            torn.append(Found(f"an {each.kind} item holds half of a surrogate pair", last, each.call))
        item = each.item or {}
        name, kind = item.get("call_id"), item.get("type")
        if not isinstance(name, str) or kind not in ("function_call", "function_call_output"):
            continue
        is_copy = kind == "function_call" and name in known
        (copies if is_copy else steps).append(Step(kind == "function_call_output", name, last, None, each.call))
        known.add(name)
    return Talk(tuple(steps), tuple(copies), tuple(torn), is_empty)


def first_difference(prompt: Array, old: Array, new: Array) -> int | None:
    """Where `prompt` [P] first differs from `old` [p] followed by `new` [g], which it has to begin with; or None."""
    start = 0
    for tokens in (old, new):
        part = prompt[start : start + len(tokens)]
        differs = np.flatnonzero(part != tokens[: len(part)])
        if differs.size:
            return start + int(differs[0])
        if len(part) < len(tokens):
            return start + len(part)
        start += len(tokens)
    return None


def _read_sample(turn: int, item: int, native: Item) -> Sample:
    fault = None
    try:
        check_training(native, {name: array for name, array in native.arrays.items() if array.size}, item)
    except MalformedItem as error:
        fault = error
    return Sample(
        turn,
        item,
        _ids(native, PROMPT),
        _ids(native, GENERATION),
        _log_probs(native),
        None if fault is not None and fault.field == ROUTES else _routes(native),
        fault,
    )


def _ids(native: Item, name: str) -> Array | None:
    """A member as token ids [n]: unsigned, or objects where 64 bits do not hold them."""
    array = native.arrays.get(name)
    if array is not None and array.ndim == 1 and (array.dtype.kind == "u" or not array.size):
        return array
    values = native.get(name)
    if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
        return None
    return np.array(values, dtype=np.uint64 if max(values, default=0) < 1 << 64 else object)


def _log_probs(native: Item) -> Array | None:
    """The log probs as float64 [n]; an integer that no float reaches is infinite, as it is for a trainer."""
    array = native.arrays.get(LOG_PROBS)
    if array is not None and array.ndim == 1 and array.dtype.kind in "fiu":
        return array.astype(np.float64, copy=False)
    values = native.get(LOG_PROBS)
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        return None
    return np.array([_as_float(value) for value in values], dtype=np.float64)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return np.inf if value > 0 else -np.inf


def _routes(native: Item) -> Routes | None:
    array = native.arrays.get(ROUTES)
    value: Any = array if array is not None else native.get(ROUTES)
    if value is None:
        return None
    if isinstance(value, str):
        return read_envelope(value)
    experts = np.zeros((0, 0, 0), dtype=np.uint8) if isinstance(value, list) and not value else to_array(value)
    if experts is None or experts.ndim != 3 or experts.dtype.kind not in "iu":
        return Routes(None, "lists", "they are no full array [tokens, layers, top_k] of integers of up to 64 bits")
    return Routes(experts, "lists")


def read_envelope(text: str) -> Routes:
    """The routes of a string `nrlre1:<int8|int16|int32>:<tokens>x<layers>x<top_k>:<base64>`, C-contiguous.

    As NeMo RL reads it: four parts, a known dtype, three dimensions, strict base64, exactly as many bytes as they say.
    Little-endian.
    """

    def faulty(why: str) -> Routes:
        return Routes(None, "envelope", why)

    parts = text.split(":")
    if len(parts) != 4 or parts[0] != "nrlre1":
        return faulty("the string does not read nrlre1:<dtype>:<tokens>x<layers>x<top_k>:<base64>")
    dtype, dimensions, data = parts[1:]
    if dtype not in _ENVELOPE_DTYPES:
        return faulty(f"its dtype {dtype[:20]!r} is none of {', '.join(_ENVELOPE_DTYPES)}")
    if not re.fullmatch(r"[0-9]{1,9}x[0-9]{1,9}x[0-9]{1,9}", dimensions):
        return faulty(f"its dimensions {dimensions[:40]!r} are not <tokens>x<layers>x<top_k>")
    shape = tuple(map(int, dimensions.split("x")))
    try:
        content = binascii.a2b_base64(data, strict_mode=True)
    except ValueError as error:  # binascii.Error is one, and so is what text beyond ASCII raises
        return faulty(f"its base64 cannot be read: {error}")
    size = shape[0] * shape[1] * shape[2] * np.dtype(dtype).itemsize
    if len(content) != size:
        return faulty(f"it holds {len(content)} bytes where {dimensions} of {dtype} take {size}")
    return Routes(np.frombuffer(content, dtype=np.dtype(dtype).newbyteorder("<")).reshape(shape), dtype)


def strings(value: Any) -> list[str]:
    """Every string in a JSON value, member names aside."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [text for each in inner for text in strings(each)]
