"""Contract section 6: structured output."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from pydantic import BaseModel
from samples import SCOPE, body, call, exactly, message, reasoning, refusal, response, summary

from turnkeep import (
    ConfigurationError,
    InvalidPolicyOutput,
    Rollout,
    RolloutView,
    capture,
    dumps_turn,
    loads_turn,
    open_store,
    outcome,
    parse_output,
)
from turnkeep.testing import strategies

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "size": {"multipleOf": 0.5}},
    "required": ["city"],
}


class City(BaseModel):
    """A schema as a pydantic model."""

    city: str


@given(strategies.json_values())
def test_the_value_is_parsed_whole_and_exactly(value: Any) -> None:
    """What the text holds is the value, exactly, wherever blocks and messages cut it (contract 6.1)."""
    text = json.dumps(value)
    cuts = sorted({0, len(text) // 3, len(text) // 2, len(text)})
    pieces = [text[start:end] for start, end in itertools.pairwise(cuts)]
    given_response = response(message(*pieces[:1]), reasoning("{"), message(*pieces[1:]))
    turn = capture(given_response, SCOPE)
    assert turn.content == text
    assert exactly(parse_output(turn, given_response, {}), value)


@pytest.mark.parametrize("schema", [CITY, City])
def test_a_restored_turn_parses_to_the_same(schema: Any) -> None:
    """After a JSON form and a store, without the response, the turn parses to the same value (contract 6.1)."""
    given_response = response(message('{"city":"Os', 'lo"}'))
    turn = capture(given_response, SCOPE)
    value = parse_output(turn, given_response, schema)
    assert value in ({"city": "Oslo"}, City(city="Oslo"))
    with open_store("memory:") as store:
        with Rollout.open(store, "r") as rollout:
            rollout.add_turn(loads_turn(dumps_turn(turn)))
        assert parse_output(RolloutView(store, "r").turn(0), None, schema) == value


@pytest.mark.parametrize("text", ['Here: {"city":"Oslo"}', '```json\n{"city":"Oslo"}\n```', '{"city":"Oslo"}{}', ""])
def test_text_around_the_value_fails(text: str) -> None:
    """The text is parsed whole: nothing is cut away around the JSON in it (contract 6.1)."""
    with pytest.raises(InvalidPolicyOutput):
        parse_output(capture(body(message(text)), SCOPE), None, CITY)


def test_reasoning_is_not_parsed() -> None:
    """JSON that only the reasoning holds is no output (contract 6.1)."""
    with pytest.raises(InvalidPolicyOutput):
        parse_output(capture(body(summary('{"city":"Oslo"}')), SCOPE), None, CITY)


@pytest.mark.parametrize("text", ["no", "", '{"city":"Oslo"}'])
@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("restored", [True, False])
def test_a_refusal_fails_even_beside_valid_json(text: str, beside: bool, restored: bool) -> None:
    """A refusal anywhere fails, beside valid JSON, as valid JSON, empty, and after a restore (contract 6.2)."""
    items = ([message('{"city":"Oslo"}')] if beside else []) + [refusal(text)]
    turn = capture(body(*items), SCOPE)
    with pytest.raises(InvalidPolicyOutput, match="refused"):
        parse_output(loads_turn(dumps_turn(turn)), None if restored else response(*items), CITY)


@pytest.mark.parametrize("items", [[call()], [message("no json"), call()], [refusal("no"), call()]])
def test_with_tool_calls_nothing_is_parsed_and_nothing_fails(items: list[Any]) -> None:
    """A turn with tool calls parses to None, refusal or not (contract 6.2)."""
    assert parse_output(capture(body(*items), SCOPE), response(*items), CITY) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"town":"Oslo"}', "'city' is a required property"),
        ('{"city":5}', "5 is not of type 'string' at $.city"),
        ('{"city":"a","city":"b"}', "duplicate key 'city'"),
        ("NaN", "NaN is no JSON number"),
        ("{", "no JSON"),
        ("[" * 100_000, "nested deeper than"),
        ('{"city":"a","size":1%s}' % ("0" * 400), "the value has a number that the schema cannot be held to"),
    ],
)
def test_a_failure_carries_the_validators_message(text: str, words: str) -> None:
    """Text that does not satisfy the schema is InvalidPolicyOutput with the validator's own message (6.3)."""
    with pytest.raises(InvalidPolicyOutput) as caught:
        parse_output(capture(body(message(text)), SCOPE), None, CITY)
    assert words in str(caught.value)


def test_a_failure_of_pydantic_carries_its_message() -> None:
    """A pydantic model's own message is carried, and the error is there as the cause (contract 6.3)."""
    with pytest.raises(InvalidPolicyOutput, match="Input should be a valid string") as caught:
        parse_output(capture(body(message('{"city":5}')), SCOPE), None, City)
    assert type(caught.value.__cause__).__name__ == "ValidationError"


def test_an_invalid_output_leaves_the_rollout_graded() -> None:
    """Invalid output that reaches the top ends a rollout that is graded: the call was charged and kept (6.3)."""
    with open_store("memory:") as store, Rollout.open(store, "r", scope=SCOPE) as rollout:
        turn = rollout.add_turn(capture(body(message("no json")), SCOPE))
        with pytest.raises(InvalidPolicyOutput) as caught:
            parse_output(turn, None, CITY)
        assert outcome(rollout, caught.value)[:2] == (True, "invalid_policy_output")


@pytest.mark.parametrize(
    "schema",
    [
        5,
        None,
        str,
        {"type": "nope"},
        {"properties": 5},
        {"pattern": "["},
        {"patternProperties": {"(": {}}},
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"$ref": "http://localhost:1/schema"},
    ],
    ids=ascii,
)
def test_a_schema_that_cannot_work_is_the_callers_error(schema: Any) -> None:
    """A schema that is none, or that leads nowhere, is a ConfigurationError and no fault of the policy (6.3)."""
    with pytest.raises(ConfigurationError):
        parse_output(capture(body(message('"x"')), SCOPE), None, schema)


def test_a_value_too_deep_for_a_sound_schema_is_the_policys_error() -> None:
    """A schema that refers to itself by turns is sound; a value too deep for it is invalid output, and graded (6.3)."""
    tree = {"type": "array", "items": {"$ref": "#"}}
    assert parse_output(capture(body(message("[[],[[]]]")), SCOPE), None, tree) == [[], [[]]]
    with pytest.raises(InvalidPolicyOutput):
        parse_output(capture(body(message("[" * 499 + "5" + "]" * 499)), SCOPE), None, tree)


def test_a_schema_may_refer_to_the_meta_schema() -> None:
    """The meta-schema is at hand without any fetching (contract 6.3)."""
    schema = {"$ref": "https://json-schema.org/draft/2020-12/schema"}
    assert parse_output(capture(body(message('{"type":"string"}')), SCOPE), None, schema) == {"type": "string"}
    with pytest.raises(InvalidPolicyOutput):
        parse_output(capture(body(message('{"type":5}')), SCOPE), None, schema)
