"""Where two rollouts, or a rollout and its own evidence, first differ: which turn, item, field and index.

Exact: integers by value, floats by their bits, strings code point for code point, members in order.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, NamedTuple

from turnkeep.errors import ConfigurationError, PreparationFailure, TurnkeepError
from turnkeep.history.projection import project
from turnkeep.history.turn import Part, Turn, public_fields
from turnkeep.history.wire_cache import WireCache
from turnkeep.rollout.conversation import Said, conversation
from turnkeep.rollout.evidence import CallRecord, captured, tail_members
from turnkeep.rollout.view import RolloutView
from turnkeep.wire.item import Item
from turnkeep.wire.json import loads, render_path, same

type Path = tuple[str | int, ...]


class Nothing:
    """What stands for a value that one side does not have: `NOTHING` is the only one."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING = Nothing()
_PUBLIC = {"id": "call_id"}
"""Public fields of a tool call that have another name on the wire."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two sides differ, and what each has there.

    `what` names the kind of place in words; `path` is the place inside the field, `index` the first position in an
    array, or in a text the first code point, at which they differ.
    """

    what: str
    one: Any
    other: Any
    turn: int | None = None
    item: int | None = None
    field: str | None = None
    path: str | None = None
    index: int | None = None
    call: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The difference as data; a value that one side does not have is left out."""
        members = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in members.items() if value is not NOTHING}


class Compared(NamedTuple):
    """How many turns, and requests or messages between turns, were equal before the first difference, if any."""

    turns: int
    others: int
    difference: Difference | None


def compare_rollouts(one: RolloutView, other: RolloutView, ignore: frozenset[str] = frozenset()) -> Compared:
    """Compare two conversations, entry by entry. Members named in `ignore` are left out, at every depth.

    Raises CorruptRecord where one is damaged.
    """
    turns = others = 0
    for left, right in zip_longest(conversation(one), conversation(other)):
        difference = _compare_said(one, other, left, right, ignore)
        if difference is not None:
            return Compared(
                turns, others, difference if difference.turn is not None else replace(difference, turn=turns)
            )
        turns += left.turn is not None
        others += left.turn is None
    return Compared(turns, others, None)


def _compare_said(
    one: RolloutView, other: RolloutView, left: Said | None, right: Said | None, ignore: frozenset[str]
) -> Difference | None:
    if left is None or right is None:
        return Difference("one rollout ends where the other goes on", _brief(left), _brief(right))
    if left.turn is not None and right.turn is not None:
        found = compare_turns(one.turn(left.turn), other.turn(right.turn), ignore)
        return None if found is None else replace(found, turn=left.turn, call=left.call)
    if left.turn is not None or right.turn is not None:
        return Difference("a turn stands where the other has something else", _brief(left), _brief(right))
    return _compare_json("what was said before the turn", left.item, right.item, ignore)


def _brief(said: Said | None) -> Any:
    if said is None:
        return NOTHING
    return f"turn {said.turn}" if said.turn is not None else dict(said.item or {})


def compare_turns(one: Turn, other: Turn, ignore: frozenset[str] = frozenset()) -> Difference | None:
    """Where two turns first differ: their parts in order, each with its item, then what the turn has besides."""
    for index, (left, right) in enumerate(zip_longest(one.parts, other.parts)):
        if left is None or right is None:
            return Difference("one turn has more parts", _kind(left), _kind(right), item=index)
        found = _compare_parts(left, right, ignore)
        if found is not None:
            return replace(found, item=index)
    left_rest, right_rest = (
        {"scope": turn.scope, "finish_reason": turn.finish_reason, **turn.members} for turn in (one, other)
    )
    return _compare_json("what the turn has besides its parts", left_rest, right_rest, ignore)


def _kind(part: Part | None) -> Any:
    return NOTHING if part is None else part.kind


def _compare_parts(one: Part, other: Part, ignore: frozenset[str]) -> Difference | None:
    if one.kind != other.kind:
        return Difference("the kind of the part", one.kind, other.kind, field="kind")
    if one.native is not None and other.native is not None:
        found = _compare_items(one.native, other.native, ignore)
        if found is not None:
            return found
    values = public_fields(other)
    for name, value in public_fields(one).items():
        if value != values[name] and not {name, _PUBLIC.get(name, name)} & ignore:
            return _difference("what the part says", (name,), value, values[name])
    if (one.native is None) != (other.native is None):
        left, right = (NOTHING if part.native is None else "there" for part in (one, other))
        return Difference("the native item", left, right)
    return None


def _compare_items(one: Item, other: Item, ignore: frozenset[str]) -> Difference | None:
    """Two native items: equal arrays are passed over without building their lists."""
    equal = {name for name in one.arrays if name in other.arrays and _is_equal(one.arrays[name], other.arrays[name])}
    left, right = ({name: None if name in equal else item[name] for name in item} for item in (one, other))
    return _compare_json("the native item", left, right, ignore)


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two arrays, each in the narrowest exact dtype, hold the same."""
    return bool(one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes())


def _compare_json(what: str, one: Any, other: Any, ignore: frozenset[str]) -> Difference | None:
    left, right = _without(one, ignore), _without(other, ignore)
    return None if same(left, right) else _difference(what, *_first_place(left, right, ()))


def _without(value: Any, ignore: frozenset[str]) -> Any:
    if not ignore:
        return value
    if isinstance(value, Mapping):
        return {name: _without(member, ignore) for name, member in value.items() if name not in ignore}
    return [_without(element, ignore) for element in value] if isinstance(value, list) else value


def _first_place(one: Any, other: Any, path: Path) -> tuple[Path, Any, Any]:
    """The path of the first place at which two JSON values that differ do so, and what each has there."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in (*one, *(name for name in other if name not in one)):
            pair = one.get(name, NOTHING), other.get(name, NOTHING)
            if NOTHING in pair or not same(*pair):
                return _first_place(*pair, (*path, name))
        return path, list(one), list(other)  # the same members in another order
    if isinstance(one, list) and isinstance(other, list):
        for index, values in enumerate(zip_longest(one, other, fillvalue=NOTHING)):
            if NOTHING in values or not same(*values):
                return _first_place(*values, (*path, index))
    return path, one, other


def _difference(what: str, path: Path, one: Any, other: Any) -> Difference:
    """A difference at a path; its index is the first in the path, or in two texts the first code point that differs."""
    field = next((step for step in path[:1] if isinstance(step, str)), None)
    index = next((step for step in path if isinstance(step, int)), None)
    if index is None and isinstance(one, str) and isinstance(other, str):
        index = text_index(one, other)
    return Difference(what, one, other, field=field, path=render_path(path) or None, index=index)


def text_index(one: str, other: str) -> int:
    """The first code point at which two texts differ."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (left, right) in pairs if left != right), min(len(one), len(other)))


def replay(rollout: RolloutView, advance: Callable[[], None] = lambda: None) -> Compared:
    """Compare a rollout with its evidence: each turn captured again from its response, each request projected again.

    `advance` is called after each policy call.
    Raises ConfigurationError where it has no policy calls, CorruptRecord where it is damaged.
    """
    if not rollout.calls:
        raise ConfigurationError("the rollout has no policy calls: there is nothing to replay", rollout=rollout.id)
    turns = requests = 0
    cache = WireCache()
    for call in rollout.calls:
        found = _replay_request(rollout, call, cache)
        if found is not None:
            return Compared(turns, requests, replace(found, call=call.number))
        requests += 1
        if call.turn is not None:
            found = _replay_turn(rollout, call, call.turn)
            if found is not None:
                return Compared(turns, requests, replace(found, call=call.number, turn=call.turn))
            turns += 1
        advance()
    return Compared(turns, requests, None)


def _replay_turn(rollout: RolloutView, call: CallRecord, number: int) -> Difference | None:
    body, kept = rollout.response(call.number), rollout.turn(number)
    if body is None:
        return Difference("the response that the turn was made of", f"turn {number}", NOTHING, field="response")
    try:
        again = captured(call, body, kept)
    except TurnkeepError as error:
        return Difference("what the response makes", f"turn {number}", str(error), field="response")
    return None if again.digest == kept.digest else compare_turns(kept, again)


def _replay_request(rollout: RolloutView, call: CallRecord, cache: WireCache) -> Difference | None:
    """Bodies are compared by length and SHA-256, and spelled out only where these differ."""
    entries = rollout.history(call.number)
    members = tail_members(rollout._piece(call.request.tail))
    members.pop("instructions", None)
    try:
        request = project(entries if call.turn is None else entries[:-1], rollout.scope)
        if any(form == "withheld" for form, _ in call.request.entries):
            request = request.withheld()
        digest, length = hashlib.sha256(), 0
        for chunk in request.chunks(members, cache):
            digest.update(chunk)
            length += len(chunk)
    except PreparationFailure as error:
        return Difference("what the history makes", "a request", str(error), field="request")
    if (length, digest.hexdigest()) == (call.request.length, call.request.sha256):
        return None
    recorded, now = loads(rollout.request(call.number)), loads(request.body(members))
    return _compare_json("the request", recorded, now, frozenset())
