"""history/turn.py: a turn never changes, and its digest is its identity."""

import copy
import dataclasses
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeep import (
    AssistantText,
    ConfigurationError,
    Item,
    Rollout,
    RolloutView,
    ToolCall,
    Turn,
    TurnkeepError,
    capture,
    dumps_turn,
    from_json,
    pack,
    to_json,
    unpack,
)
from turnkeep.history.turn import PUBLIC_FIELDS, public_fields
from turnkeep.store.memory import MemoryStore
from turnkeep.testing import strategies

_CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
_TURN = capture(
    {
        "id": "r",
        "model": "m",
        "usage": {"a": 1},
        "output": [
            {"type": "message", "content": [{"type": "output_text", "text": "x"}], "prompt_token_ids": None, "n": 1},
            {
                **_CALL,
                "prompt_token_ids": [1, 2],
                "generation_token_ids": [3],
                "generation_log_probs": [-0.5],
                "routed_experts": [[[1], [2]]],
            },
        ],
    },
    "scope",
)


@given(strategies.turns(), strategies.turns())
def test_equal_digests_are_equal_turns(one: Turn, other: Turn) -> None:
    """Two turns have equal digests exactly where they are equal, which is where their JSON forms are (contract 9.3)."""
    assert (one.digest == other.digest) == (one == other) == (dumps_turn(one) == dumps_turn(other))


@given(strategies.turns())
def test_copies_are_equal(turn: Turn) -> None:
    """A deep copy, a pickle and a JSON form are equal turns of equal digest, asked for before or after."""
    unasked = [copy.deepcopy(turn), pickle.loads(pickle.dumps(turn)), from_json(to_json(turn))]
    digest = turn.digest
    for other in (*unasked, copy.deepcopy(turn), pickle.loads(pickle.dumps(turn))):
        assert other == turn
        assert other.digest == digest


def _changed(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    form = to_json(_TURN)
    node: Any = form
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    return form


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("replay_scope",), None),
        (("replay_scope",), "other"),
        (("finish_reason",), "stop"),
        (("usage",), None),
        (("usage", "a"), 1.0),
        (("usage", "a"), True),
        (("more",), None),
        (("parts", 0, "text"), "y"),
        (("parts", 0, "kind"), "reasoning"),
        (("parts", 0, "native"), None),
        (("parts", 0, "native", "n"), 1.0),
        (("parts", 0, "native", "n"), None),
        (("parts", 0, "native", "prompt_token_ids"), []),
        (("parts", 1, "id"), "d"),
        (("parts", 1, "name"), "g"),
        (("parts", 1, "arguments"), "{ }"),
        (("parts", 1, "native", "prompt_token_ids"), None),
        (("parts", 1, "native", "prompt_token_ids"), [2, 1]),
        (("parts", 1, "native", "prompt_token_ids"), [[1, 2]]),
        (("parts", 1, "native", "prompt_token_ids"), [1, 256]),
        (("parts", 1, "native", "prompt_token_ids"), [1.0, 2.0]),
        (("parts", 1, "native", "generation_log_probs"), [-0.5000000000000001]),
        (("parts", 1, "native", "generation_log_probs"), [0.0]),
        (("parts", 1, "native", "generation_token_ids"), [2**70]),
        (("parts", 1, "native", "routed_experts"), [[[1, 2]]]),
        (("parts", 1, "native", "routed_experts"), [[[1]], [[2]]]),
        (("parts", 1, "native", "routed_experts"), "[[[1],[2]]]"),
    ],
)
def test_every_change_changes_the_digest(path: tuple[str | int, ...], value: Any) -> None:
    """Whatever changes in a turn, if only a number's kind or an array's shape, the digest changes (contract 9.3)."""
    other = from_json(_changed(path, value))
    assert other != _TURN
    assert other.digest != _TURN.digest


def test_key_order_and_part_order_change_the_digest() -> None:
    """Members and parts in another order are another turn."""
    form = to_json(_TURN)
    form["parts"].reverse()
    native = to_json(_TURN)
    native["parts"][0]["native"] = dict(reversed(native["parts"][0]["native"].items()))
    rest = dict(reversed(to_json(_TURN).items()))
    assert len({turn.digest for turn in (_TURN, *map(from_json, (form, native, rest)))}) == 4


def test_swapping_arrays_between_fields_changes_the_digest() -> None:
    """An array belongs to its field: two that change places are another turn."""
    form = to_json(_TURN)
    native = form["parts"][1]["native"]
    native["prompt_token_ids"], native["generation_token_ids"] = (
        native["generation_token_ids"],
        native["prompt_token_ids"],
    )
    assert from_json(form).digest != _TURN.digest


@pytest.mark.parametrize("name", ["parts", "scope", "finish_reason", "rest"])
def test_a_turn_cannot_be_assigned_to(name: str) -> None:
    """Turns and parts are frozen."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(_TURN, name, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(_TURN.parts[0], "text", "y")  # noqa: B010 - mypy refuses the plain assignment


def test_members_are_handed_out_fresh() -> None:
    """Changing the members or the usage that a turn hands out changes no turn."""
    digest = _TURN.digest
    _TURN.members.clear()
    usage = _TURN.usage
    assert usage == {"a": 1}
    usage.clear()
    assert _TURN.usage == {"a": 1}
    assert from_json(to_json(_TURN)).digest == digest


@given(strategies.turns(), st.data())
def test_an_edit_that_changes_nothing_is_the_turn_itself(turn: Turn, data: st.DataObject) -> None:
    """Setting public fields to the values they have gives the same turn, natives and all (contract 1.7)."""
    for index, part in enumerate(turn.parts):
        names = data.draw(st.sets(st.sampled_from(PUBLIC_FIELDS[part.kind])))
        assert turn.edit(index, **{name: public_fields(part)[name] for name in names}) is turn


def test_an_edit_does_not_inherit_what_was_worked_out() -> None:
    """Digest and agreement of an edited turn are its own, though they were asked of the first (contract 1.7)."""
    asked = _TURN.digest
    edited = _TURN.edit(0, text="y")
    assert edited.digest != asked
    assert edited.edit(0, text="x") != _TURN
    assert edited.parts[1] is _TURN.parts[1]


@pytest.mark.parametrize("part", [5, -1, "0", None, 0.0, True])
@pytest.mark.parametrize("value", [None, 5, b"x"])
def test_an_edit_that_cannot_be_is_refused(part: Any, value: Any) -> None:
    """A part that is no index of the turn, and a value that is no text, are ConfigurationErrors."""
    with pytest.raises(ConfigurationError):
        _TURN.edit(part, text="x")
    with pytest.raises(ConfigurationError):
        _TURN.edit(0, text=value)


def test_halves_of_a_pair_in_an_edit_are_joined() -> None:
    """An edit takes what JSON would read back, so that the turn survives its archive (contract 1.3)."""
    edited = _TURN.edit(0, text="\ud83d\ude00")
    assert edited == _TURN.edit(0, text="😀")
    assert from_json(to_json(edited)) == edited


@pytest.mark.parametrize("odd", ["n/a", 5, [1], True])
def test_odd_members_are_kept_and_not_promised(odd: Any) -> None:
    """A usage that is no object, a model and an id that are no text, stay in `members` and are None elsewhere."""
    value = {"output": [], "usage": odd, "model": [odd], "id": [odd]}
    turn = capture(value)
    assert (turn.usage, turn.model_name, turn.response_id) == (None, None, None)
    assert turn.members == {"usage": odd, "model_name": [odd], "response_id": [odd]}


_IDS = list(range(100))
_MESSAGE = {
    "type": "message",
    "content": [],
    "prompt_token_ids": _IDS,
    "generation_token_ids": [3],
    "generation_log_probs": [-0.5],
}


def kept(turn: Turn) -> Turn:
    """The turn as another process reads it."""
    with MemoryStore() as store:
        with Rollout.open(store, "r") as rollout:
            rollout.add_turn(turn)
        return RolloutView(store, "r").turn(0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scope": "s"},
        {"rest": b'{ "usage": {"a": 1.50}, "b": [ ] }'},
        {"parts": ()},
        {"parts": "without"},
        {"parts": "wide"},
        {"parts": "others"},
    ],
    ids=str,
)
def test_a_turn_made_of_another_is_kept_and_has_no_body(changes: dict[str, Any]) -> None:
    """What `dataclasses.replace` makes of a captured turn has no body, and comes back from store and pack (1.7)."""
    turn = capture(json.dumps({"output": [_MESSAGE]}).encode())
    (part,) = turn.parts
    natives = {
        "without": None,
        "wide": Item(_MESSAGE, {"prompt_token_ids": np.arange(100)}),
        "others": Item({**_MESSAGE, "prompt_token_ids": [7] * 20}),
    }
    if (name := changes.get("parts")) in natives:
        changes = {"parts": (dataclasses.replace(part, native=natives[name]),)}
    made = dataclasses.replace(turn, **changes)
    assert turn.body is not None
    assert made.body is None
    for back in (kept(made), unpack(pack([made]))[0]):
        assert (back, back.digest) == (made, made.digest)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"scope": 5}, "scope"),
        ({"finish_reason": None}, "finish_reason"),
        ({"parts": (AssistantText(text=None),)}, "text"),  # type: ignore[arg-type]
        ({"parts": (ToolCall(id="c", name="f", arguments={}),)}, "arguments"),  # type: ignore[arg-type]
        ({"rest": b"[]"}, "rest"),
        ({"rest": b"{"}, "rest"),
        ({"rest": b'{"a":NaN}'}, "rest"),
        ({"rest": b'{"parts":[]}'}, "rest"),
    ],
    ids=str,
)
def test_what_no_turn_can_be_is_refused_where_it_is_made(changes: dict[str, Any], field: str) -> None:
    """A turn that could not be read again is a ConfigurationError that names the field, before anything is kept."""
    with pytest.raises(ConfigurationError) as caught:
        dataclasses.replace(_TURN, **changes)
    assert caught.value.field == field


@pytest.mark.parametrize("levels", range(480, 501, 4))
def test_a_turn_with_arrays_at_any_depth_comes_back(levels: int) -> None:
    """A body is read again as deep as it was captured, whichever of its arrays stay text (contract 1.6)."""
    deep: Any = {"w": _IDS}
    for _ in range(levels):
        deep = [deep]
    body = json.dumps({"output": [{"type": "x", "a": _IDS, "b": deep}]}).encode()
    try:
        turn = capture(body)
    except TurnkeepError:
        assert levels > 490
        return
    for back in (kept(turn), unpack(pack([turn]))[0], kept(dataclasses.replace(turn, scope="s"))):
        assert back.parts == turn.parts


def test_an_array_that_somebody_else_can_change_is_copied() -> None:
    """An item never changes, though it was given a read-only view of an array or buffer that does (contract 1.7)."""
    array, buffer = np.arange(3, dtype="uint8"), bytearray(3)
    view = array[:]
    view.flags.writeable = False
    views = [view, np.frombuffer(memoryview(buffer).toreadonly(), "uint8")]
    items = [Item({"type": "x", "w": None}, {"w": each}) for each in views]
    array[0] = buffer[0] = 9
    assert [item["w"] for item in items] == [[0, 1, 2], [0, 0, 0]]
