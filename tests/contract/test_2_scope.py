"""Contract section 2: scope."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import SCOPE, TRAINING, body, call, exactly, message, no_nulls, portable

from turnkeep import Scope, Turn, capture, from_json, project, to_json
from turnkeep.testing import strategies

PREFIX = "nemo-gym/responses/v1:"


@pytest.mark.parametrize(
    ("scope", "text"),
    [
        (Scope("policy_model"), PREFIX + '["policy_model", "gym-policy"]'),
        (Scope("policy_model", "other"), PREFIX + '["policy_model", "other"]'),
        (Scope('p"1\\', "gym-é😀"), PREFIX + '["p\\"1\\\\", "gym-\\u00e9\\ud83d\\ude00"]'),
        (Scope("", ""), PREFIX + '["", ""]'),
    ],
)
def test_a_scope_is_spelled_as_the_reference_adapter_spells_it(scope: Scope, text: str) -> None:
    """A scope is the prefix and a JSON array with one space after the comma, non-ASCII escaped (contract 2.1)."""
    assert str(scope) == text


@given(st.lists(strategies.scopes(), min_size=2, max_size=2))
def test_a_scope_says_its_server_and_alias_and_no_more(pair: list[Scope]) -> None:
    """A scope is ASCII, reads back as server and alias, and two of them are equal where those are (contract 2.1)."""
    one, other = pair
    assert str(one).isascii()
    assert json.loads(str(one).removeprefix(PREFIX)) == json.loads(json.dumps([one.server, one.alias]))
    assert (str(one) == str(other)) == (json.dumps([one.server, one.alias]) == json.dumps([other.server, other.alias]))


def test_a_scope_given_as_text_is_the_same() -> None:
    """A Scope and its text are interchangeable at capture and at projection (contract 2.1)."""
    text = body(message("x", **TRAINING))
    assert capture(text, Scope("policy_model")) == capture(text, SCOPE)
    assert project([capture(text, SCOPE)], Scope("policy_model")).gaps == ()


_OTHERS = [
    None,
    "",
    PREFIX,
    PREFIX + '["policy_model","gym-policy"]',
    PREFIX + '["policy_model", "gym-policy-2"]',
    PREFIX + '["judge_model", "gym-policy"]',
    SCOPE + " ",
    SCOPE.upper(),
    "openai:openai:sha256:6b1d",
]


@pytest.mark.parametrize("caller", _OTHERS)
def test_native_replay_needs_equal_scopes(caller: str | None) -> None:
    """A caller of another scope, or of none, gets portable turns and a gap, whichever side has it (contract 2.2)."""
    item = message("x", **TRAINING)
    for turn_scope, caller_scope in ((SCOPE, caller), (caller, SCOPE)):
        projected = project([capture(body(item), turn_scope)], caller_scope)
        assert projected.input == [{"role": "assistant", "content": "x"}]
        assert [gap.code for gap in projected.gaps] == ["foreign_turn_projected_portable"]


@given(strategies.captured_turns(), st.sampled_from(_OTHERS))
def test_only_an_equal_scope_gives_the_items_back(turn: Turn, caller: str | None) -> None:
    """Equal scopes give every item back, any other the public parts only (contract 2.2)."""
    form = to_json(turn)
    assert exactly(project([turn], SCOPE).input, no_nulls([part["native"] for part in form["parts"]]))
    assert exactly(project([turn], caller).input, portable(form["parts"]))


@pytest.mark.parametrize("scope", ["", "openai:openai:sha256:6b1d", "nemo-gym/responses/v2:[]", " " + SCOPE, "None"])
def test_a_foreign_scope_never_replays_natively(scope: str) -> None:
    """A scope without the prefix gives portable turns even where both sides hold it (contract 2.3)."""
    turn = capture(body(message("x"), call()), scope)
    assert turn.scope == scope
    projected = project([turn], scope)
    assert exactly(projected.input, portable(to_json(turn)["parts"]))
    assert [gap.code for gap in projected.gaps] == ["foreign_turn_projected_portable"]


def test_no_scope_on_both_sides_is_not_equal() -> None:
    """Two nulls are not equal scopes (contract 2.2)."""
    turn = capture(body(message("x", **TRAINING)))
    assert turn.scope is None
    assert project([turn]).input == [{"role": "assistant", "content": "x"}]


@pytest.mark.parametrize("scope", [5, True, ["a"], {}])
def test_a_scope_in_an_archive_is_text_or_null(scope: Any) -> None:
    """An archive whose scope is neither text nor null is refused and names the field (contract 2.2)."""
    with pytest.raises(ValueError, match="replay_scope"):
        from_json({"parts": [], "replay_scope": scope})
