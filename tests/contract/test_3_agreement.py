"""Contract section 3: agreement."""

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from pydantic import BaseModel
from samples import SCOPE, TRAINING, body, call, exactly, message, no_nulls, portable, readable, reasoning, summary

from turnkeep import (
    Rollout,
    RolloutView,
    Turn,
    capture,
    dumps_turn,
    from_json,
    loads_turn,
    open_store,
    project,
    to_json,
)
from turnkeep.testing import strategies
from turnkeep.wire.item import CLIENT_CALLS


def agrees(form: dict[str, Any]) -> bool:
    """Whether the parts of a JSON form say what their natives say: the oracle."""
    for part in form["parts"]:
        public = {name: member for name, member in part.items() if name != "native"}
        if part["native"] is None or part["native"]["type"] in CLIENT_CALLS or readable(part["native"]) != public:
            return False
    return True


@given(strategies.turns())
def test_a_turn_replays_natively_where_every_part_agrees(turn: Turn) -> None:
    """All parts agreeing with their items, the items go out; one disagreement makes all portable (contract 3.1)."""
    form = to_json(turn)
    projected = project([turn], turn.scope)
    if turn.scope == SCOPE and agrees(form):
        assert exactly(projected.input, no_nulls([part["native"] for part in form["parts"]]))
        assert projected.gaps == ()
    else:
        assert exactly(projected.input, portable(form["parts"]))
        assert [gap.code for gap in projected.gaps][:1] == ["foreign_turn_projected_portable"] * bool(turn.parts)


_FORM = to_json(capture(body(reasoning("hm"), message("Checking ", "Oslo.", **TRAINING), call("c1", "f", "{}")), SCOPE))


def _with(part: int, **members: Any) -> dict[str, Any]:
    form: dict[str, Any] = copy.deepcopy(_FORM)
    form["parts"][part].update(members)
    return form


def _with_native(part: int, **members: Any) -> dict[str, Any]:
    form: dict[str, Any] = copy.deepcopy(_FORM)
    form["parts"][part]["native"].update(members)
    return form


_DISAGREEING = {
    "text": _with(1, text="Checking Oslo!"),
    "text that looks the same": _with(1, text="Checking Oslо."),
    "empty text": _with(1, text=""),
    "reasoning": _with(0, text="hm "),
    "call id": _with(2, id="c2"),
    "call name": _with(2, name="g"),
    "arguments that mean the same": _with(2, arguments="{ }"),
    "no native": _with(1, native=None),
    "native of another kind": _with(1, native=reasoning("Checking Oslo.")),
    "native of a hosted kind": _with(1, native={"type": "mcp_call"}),
    "a client call as native": _with(1, text="", native={"type": "shell_call"}),
    "native without type": _with(1, text="", native={}),
    "native whose type is no text": _with(1, text="", native={"type": []}),
    "native whose type is an object": _with(1, text="", native={"type": {"a": 1}}),
    "native whose blocks are numbers": _with(0, native={**summary("hm"), "content": [1, 2]}),
    "native that is malformed": _with(1, native={"type": "message"}),
    "native with another block": _with_native(1, content=message("Checking Oslo")["content"]),
    "native with another id": _with_native(2, call_id="c2"),
    "native without arguments": _with_native(2, arguments=None),
}


@pytest.mark.parametrize("name", _DISAGREEING)
def test_one_disagreement_makes_the_whole_turn_portable(name: str) -> None:
    """Whatever disagrees, no item of the turn goes out, and no training field with it (contract 3.1)."""
    form = _DISAGREEING[name]
    projected = project([from_json(form)], SCOPE)
    assert exactly(projected.input, portable(form["parts"]))
    assert [gap.code for gap in projected.gaps] == ["foreign_turn_projected_portable"]
    assert b"token_ids" not in projected.input_text()


class _Part(BaseModel):
    """A part as a pydantic runtime models it; natives are kept as they come, the public fields can be set."""

    kind: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    arguments: str | None = None
    native: dict[str, Any] | None = None


class _Response(BaseModel):
    """A response as a pydantic runtime models it."""

    parts: list[_Part]
    replay_scope: str | None
    finish_reason: str


def _through_pydantic(turn: Turn) -> Turn:
    return from_json(_Response.model_validate(to_json(turn)).model_dump(exclude_none=True))


def _through_store(turn: Turn) -> Turn:
    with open_store("memory:") as store:
        with Rollout.open(store, "r") as rollout:
            rollout.add_turn(turn)
        return RolloutView(store, "r").turn(0)


def _through_pickle(turn: Turn) -> Turn:
    copied = pickle.loads(pickle.dumps(turn))
    assert isinstance(copied, Turn)
    return copied


_WAYS: list[Callable[[Turn], Turn]] = [
    lambda turn: from_json(to_json(turn)),
    lambda turn: loads_turn(dumps_turn(turn)),
    _through_store,
    _through_pickle,
    copy.deepcopy,
]


@pytest.mark.parametrize("way", range(len(_WAYS)))
@given(turn=strategies.turns())
def test_agreement_holds_however_the_turn_was_built(way: int, turn: Turn) -> None:
    """A turn that was restored replays as it did before, stale or whole, asked for before or not (contract 3.2)."""
    unasked = _WAYS[way](turn)
    before = project([turn], SCOPE)
    for restored in (unasked, _WAYS[way](turn)):
        assert project([restored], SCOPE).input_text() == before.input_text()
        assert project([restored], SCOPE).gaps == before.gaps


@pytest.mark.parametrize("name", ["text", "id", "name", "arguments"])
def test_a_pydantic_dump_with_a_stale_native_is_portable(name: str) -> None:
    """A public field edited in a pydantic model, its native left, makes the dumped turn portable (contract 3.2)."""
    turn = from_json({member: _FORM[member] for member in ("parts", "replay_scope", "finish_reason")})
    assert project([_through_pydantic(turn)], SCOPE).input_text() == project([turn], SCOPE).input_text()
    model = _Response.model_validate(to_json(turn))
    setattr(model.parts[1 if name == "text" else 2], name, "edited")
    stale = from_json(model.model_dump(exclude_none=True))
    assert stale.parts[1].native is not None
    assert exactly(project([stale], SCOPE).input, portable(to_json(stale)["parts"]))


@pytest.mark.parametrize("scope", [None, "", "other", SCOPE])
@pytest.mark.parametrize("caller", [None, SCOPE])
def test_a_turn_of_no_parts_projects_to_nothing(scope: str | None, caller: str | None) -> None:
    """A turn of no parts is nothing in the request and no gap, whatever the scopes (contract 3.3)."""
    for turn in (capture(body(), scope), from_json(json.loads(json.dumps({"parts": [], "replay_scope": scope})))):
        projected = project([{"role": "user", "content": "a"}, turn, {"role": "user", "content": "b"}], caller)
        assert projected.input == [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
        assert projected.gaps == ()
