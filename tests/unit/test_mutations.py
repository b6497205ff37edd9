"""Valid values with one thing put wrong somewhere: turnkeep gives a result that holds, or an error of its own."""

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from turnkeep import (
    Rollout,
    RolloutView,
    Turn,
    TurnkeepError,
    capture,
    dumps_turn,
    from_json,
    loads_turn,
    open_store,
    parse_output,
    project,
    to_json,
)
from turnkeep.archive.nooa_form import from_nooa
from turnkeep.cli.apply import apply_one
from turnkeep.testing import strategies


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, member in members for place in _places(member, (*path, key)))]


@st.composite
def _mutated(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> Any:
    """A value of `values` in which one node is replaced, taken away, or doubled."""
    value = copy.deepcopy(draw(values))
    path = draw(st.sampled_from(_places(value)))
    strange = (
        st.none() | st.booleans() | st.integers(-2, 2) | st.just(1.5) | st.sampled_from(["", "x", [], {}, [[]], [1]])
    )
    new = draw(strange | strategies.json_values(4))
    if not path:
        return new
    node = value
    for step in path[:-1]:
        node = node[step]
    if draw(st.booleans()):
        node[path[-1]] = new
    elif isinstance(node, dict):
        del node[path[-1]]
    else:
        node.append(copy.deepcopy(node[path[-1]]))
    return value


def _holds(turn: Turn) -> None:
    """Everything that may follow a turn works and keeps it."""
    assert loads_turn(dumps_turn(turn)) == turn
    for scope in (turn.scope, None):
        request = project([turn, {"role": "user", "content": "x"}], scope)
        assert json.dumps(json.loads(request.body())["input"]) == json.dumps(request.input)
    with open_store("memory:") as store:
        with Rollout.open(store, "r") as rollout:
            rollout.add_turn(turn)
        assert RolloutView(store, "r").turn(0) == turn


@given(_mutated(strategies.responses()))
def test_a_mutated_response_is_a_turn_or_an_error(response: Any) -> None:
    """A response with one thing wrong is captured whole, or is an error of turnkeep (contract 1.5)."""
    try:
        turn = capture(json.dumps(response), strategies.SCOPE)
    except TurnkeepError:
        return
    natives = [part.native for part in turn.parts]
    assert json.dumps([native and native.to_json() for native in natives]) == json.dumps(response["output"])
    _holds(turn)
    try:
        parse_output(turn, response, {"type": "object"})
    except TurnkeepError:
        return


@given(_mutated(strategies.turns().map(to_json)))
def test_a_mutated_archive_is_a_turn_or_an_error(form: Any) -> None:
    """A JSON form with one thing wrong opens as what it says, or is an error of turnkeep (contract 3.2, 9.1)."""
    try:
        turn = from_json(form)
    except TurnkeepError:
        return
    _holds(turn)
    said = {**form, "parts": [{"native": None, **part} for part in form["parts"]]}
    assert {name: member for name, member in to_json(turn).items() if name in said} == said


@given(_mutated(strategies.turns().map(to_json)), st.sampled_from(["0514723", "19caab1"]))
def test_a_mutated_import_is_a_turn_or_an_error(form: Any, revision: str) -> None:
    """An import with one thing wrong is a turn that holds, or an error of turnkeep (contract 9.5)."""
    try:
        turn = from_nooa(form, strategies.SCOPE, revision)
    except TurnkeepError:
        return
    _holds(turn)


@given(
    _mutated(
        st.lists(strategies.other_messages() | strategies.assistant_messages() | strategies.output_items(), max_size=3)
    )
)
def test_a_mutated_history_is_a_request_or_an_error(history: Any) -> None:
    """A history with one thing wrong is a request that parses to its input, or an error of turnkeep (4.6, 7.2)."""
    if not isinstance(history, list):
        return
    try:
        request = project(history, strategies.SCOPE)
    except TurnkeepError:
        return
    assert json.dumps(json.loads(request.body())["input"]) == json.dumps(request.input)
    assert json.dumps(json.loads(request.withheld().body())["input"]) == json.dumps(request.withheld().input)


def _requests() -> st.SearchStrategy[Any]:
    form, scope = strategies.turns().map(to_json), st.none() | st.just(strategies.SCOPE)
    entries = st.lists(
        strategies.other_messages() | strategies.output_items() | form.map(lambda turn: {"turn": turn}), max_size=2
    )
    return st.one_of(
        st.fixed_dictionaries({"op": st.just("capture"), "response": strategies.responses(1), "scope": scope}),
        st.fixed_dictionaries({"op": st.just("project"), "history": entries, "scope": scope}),
        st.fixed_dictionaries({"op": st.just("roundtrip"), "turn": form, "through": st.just(["json"])}),
        st.fixed_dictionaries(
            {"op": st.just("parse"), "response": strategies.responses(1), "schema": st.just({"type": "array"})}
        ),
        st.fixed_dictionaries({"op": st.just("scope"), "server": strategies.texts(), "alias": strategies.texts()}),
        st.fixed_dictionaries({"op": st.just("edit"), "turn": form, "part": st.just(0), "set": st.just({"text": "x"})}),
        st.fixed_dictionaries(
            {"op": st.just("import_nooa"), "turn": form, "scope": st.just("s"), "revision": st.just("19caab1")}
        ),
    )


@given(_mutated(_requests()))
def test_a_mutated_request_is_answered(request: Any) -> None:
    """`apply` answers a request with one thing wrong with a result or an error, and never stops."""
    answer = apply_one(json.dumps(request).encode())
    assert answer
    assert ("error" in answer) == (set(answer) == {"error"})
