"""NOOA's chat messages become a history: the pure part, without NOOA and without HTTP (contract 4, 5)."""

from typing import Any

import generation_d as newer
import pytest
from harness import kinds
from pydantic import BaseModel, ConfigDict

from turnkeep.errors import ConfigurationError, MissingTurn
from turnkeep.history.capture import capture
from turnkeep.history.projection import RuntimeEntry
from turnkeep.history.turn import Turn
from turnkeep.nooa import NOT_EXECUTED
from turnkeep.nooa.messages import to_history
from turnkeep.nooa.parts import native_response
from turnkeep.nooa.request import is_closed, output_format, request_params, usage_counts

pytestmark = pytest.mark.nooa

USER = {"role": "user", "content": "go"}


def call_item(call_id: str) -> dict[str, Any]:
    """A function call as it is on the wire."""
    return {"type": "function_call", "id": "fc" + call_id, "call_id": call_id, "name": "f", "arguments": "{}"}


def text_item(text: str) -> dict[str, Any]:
    """A message as it is on the wire."""
    return {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def turn(*items: dict[str, Any]) -> Turn:
    """The turn of a response with these items."""
    return capture({"output": list(items)}, 'nemo-gym/responses/v1:["s", "a"]')


def called(call_id: str, **carried: Any) -> list[dict[str, Any]]:
    """The two messages that NOOA makes of a call it ran."""
    function = {"name": "f", "arguments": "{}"}
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }
    if carried:
        message["turnkeep"] = {"kind": "call", **carried}
    return [message, {"role": "tool", "tool_call_id": call_id, "content": f"ran {call_id}"}]


def said(**carried: Any) -> dict[str, Any]:
    """An assistant message that carries something."""
    return {"role": "assistant", "content": "x", "turnkeep": carried}


def test_a_turn_stands_whole_where_its_first_message_stood() -> None:
    """Two calls with results between them: the turn, then both results, each where it was."""
    made = turn(text_item("t"), call_item("a"), call_item("b"))
    messages = [USER, *called("a", key="k", turn="d"), USER, *called("b", key="k", turn="d"), USER]
    history, dropped = to_history(messages, lambda carried: made)
    assert history[0] == USER
    assert [entry.content if isinstance(entry, Turn) else dict(entry)["content"] for entry in history] == [  # type: ignore[arg-type]
        "go",
        "t",
        "ran a",
        "go",
        "ran b",
        "go",
    ]
    assert not dropped


def test_calls_without_a_result_are_answered_after_the_last_that_has_one() -> None:
    """NOOA stopped after the first of three: the others get the constant answer, in order, right after its result."""
    made = turn(call_item("a"), call_item("b"), call_item("c"))
    history, dropped = to_history([*called("a", key="k", turn="d"), USER], lambda carried: made)
    assert dropped
    assert history[1:] == [
        {"role": "tool", "tool_call_id": "a", "content": "ran a"},
        {"type": "function_call_output", "call_id": "b", "output": NOT_EXECUTED},
        {"type": "function_call_output", "call_id": "c", "output": NOT_EXECUTED},
        USER,
    ]


def test_a_newer_runtimes_turn_has_its_dropped_calls_answered_too() -> None:
    """There the turn is one message; the call that has no result among the messages gets the constant one."""
    held = native_response(turn(call_item("a"), call_item("b")), newer.LLMResponse, newer)
    history, dropped = to_history([held, called("a")[1], USER], lambda carried: turn())
    assert dropped
    assert history[2] == {"type": "function_call_output", "call_id": "b", "output": NOT_EXECUTED}


def test_equal_turns_at_two_places_stay_two() -> None:
    """The key tells them apart where the digest does not."""
    made = turn(text_item("t"))
    history, _ = to_history([said(kind="text", key=k, turn="d") for k in "ab"], lambda carried: made)
    assert history == [made, made]


def test_a_later_call_without_the_first_is_public_data() -> None:
    """The turn is no longer what it was: the message stays the dictionary that NOOA made, without what it carried."""
    made = turn(call_item("a"), call_item("b"))
    messages = called("b", key="k", turn="d")
    history, dropped = to_history(messages, lambda carried: made)
    assert history == called("b")
    assert not dropped


def test_a_silent_turn_stands_before_its_event() -> None:
    """A turn that NOOA shows only as an error: the turn, its calls not executed, then the error."""
    made = turn(call_item("a"))
    carried = {"kind": "silent", "key": "k", "turn": "d"}
    history, dropped = to_history([{"role": "assistant", "content": None, "turnkeep": carried}, USER], lambda c: made)
    assert history == [made, {"type": "function_call_output", "call_id": "a", "output": NOT_EXECUTED}, USER]
    assert dropped


def test_a_stand_in_goes_and_its_result_becomes_a_users() -> None:
    """The tool call that NOOA made of a text is dropped where the text is there, and kept as NOOA's where it is not."""
    made = turn(text_item("t"))
    silent = {"role": "assistant", "content": None, "turnkeep": {"kind": "silent", "key": "k", "turn": "d"}}
    call, result = called("synthetic_1")
    call = {**call, "turnkeep": {"kind": "stand-in", "key": "k"}}
    history, _ = to_history([silent, call, result], lambda carried: made)
    assert history == [made, {"role": "user", "content": "ran synthetic_1"}]
    history, _ = to_history([call, result], lambda carried: made)
    assert isinstance(history[0], RuntimeEntry)
    assert history[1] == result


def test_edits_are_made_on_the_turn() -> None:
    """An edited call loses its native and keeps its place; the other parts keep theirs (1.7)."""
    made = turn(text_item("t"), call_item("a"), call_item("b"))
    new = {"id": "b", "name": "g", "arguments": "{}"}
    messages = [*called("a", key="k", turn="d"), *called("b", key="k", turn="d", edited=new)]
    history, _ = to_history(messages, lambda carried: made)
    edited = history[0]
    assert isinstance(edited, Turn)
    assert kinds(edited) == kinds(made)
    assert [part.native is None for part in edited.parts] == [False, False, True]
    assert edited.tool_calls[1].name == "g"


def test_what_looking_up_a_turn_raises_goes_through() -> None:
    """A missing turn is never a silent portable one."""

    def missing(carried: Any) -> Turn:
        raise MissingTurn("no such turn")

    with pytest.raises(MissingTurn):
        to_history([said(kind="text", key="k", turn="d")], missing)


def test_images_become_responses_blocks() -> None:
    """NOOA's chat blocks are put in the words of the Responses API; the messages themselves stay as they were."""
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}},
        {"type": "image_url", "image_url": "https://x"},
    ]
    message = {"role": "user", "content": blocks}
    history, _ = to_history([message], lambda carried: turn())
    assert history == [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "look"},
                {"type": "input_image", "image_url": "data:x", "detail": "low"},
                {"type": "input_image", "image_url": "https://x"},
            ],
        }
    ]
    assert message["content"] is blocks
    assert blocks[0]["type"] == "text"


class Open(BaseModel):
    """A schema that allows more."""

    a: int


class Closed(BaseModel):
    """A schema that is closed and requires all it names."""

    model_config = ConfigDict(extra="forbid")
    a: int
    b: list[str]


class Optional(BaseModel):
    """A closed schema with an optional member."""

    model_config = ConfigDict(extra="forbid")
    a: int = 0


@pytest.mark.parametrize(("model", "strict"), [(Open, False), (Closed, True), (Optional, False)])
def test_the_output_format_is_strict_only_for_a_closed_schema(model: type[BaseModel], strict: bool) -> None:
    """Named after the class, the schema as pydantic gives it (reference, section 4)."""
    made = output_format(model)
    assert made == {
        "type": "json_schema",
        "name": model.__name__,
        "strict": strict,
        "schema": model.model_json_schema(),
    }


def test_an_output_model_that_is_no_pydantic_model_is_refused() -> None:
    """A ConfigurationError that says what was given."""
    with pytest.raises(ConfigurationError, match="pydantic"):
        output_format(dict)


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, False),
        ({"type": "object", "additionalProperties": True}, False),
        ({"type": "object"}, False),
        ({"type": "array", "items": {"type": "string"}}, True),
        ({"type": "array"}, False),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, False),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, True),
        ({"anyOf": [{"type": "string"}, {}]}, False),
    ],
)
def test_what_can_be_closed(schema: dict[str, Any], closed: bool) -> None:
    """Free-form objects, untyped members, sets and untyped arrays cannot be strict."""
    assert is_closed(schema, closable=True) == closed


def test_options_go_out_as_they_are() -> None:
    """Sampling and the cache key pass through, max_tokens under its Responses name; tool_choice only beside tools."""
    options = {"max_tokens": 5, "temperature": 0.5, "top_p": None, "prompt_cache_key": "k", "tool_choice": "auto"}
    assert request_params(None, None, options) == {"max_output_tokens": 5, "temperature": 0.5, "prompt_cache_key": "k"}
    tool = {"type": "function", "name": "f"}
    assert request_params([tool], None, options)["tool_choice"] == "auto"
    assert request_params([tool], None, options)["tools"] == [tool]


def test_usage_is_counted_under_nooas_names() -> None:
    """What the server gave, numbers only."""
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5, "input_tokens_details": {"cached_tokens": 1}}
    assert usage_counts(usage) == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "cached_tokens": 1}
    assert usage_counts(None) is None
