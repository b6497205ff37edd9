"""A tool's JSON schema becomes a method of the agent, and what the agent gives it becomes the tool's arguments."""

import asyncio
import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from turnkeep.errors import ConfigurationError
from turnkeep.gym.task import TaskAgent, last_user_text
from turnkeep.gym.tools import as_text, read_output, read_tools, with_tools


class Said(BaseModel):
    """What an agent may return."""

    word: str


def tool(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A function tool named `send`."""
    return {"type": "function", "name": "send", "parameters": {"type": "object", "properties": properties, **more}}


def calling(made: dict[str, Any], *given_: Any, **named: Any) -> dict[str, Any]:
    """The arguments that reach the tool when the agent's method is called so."""
    seen: list[dict[str, Any]] = []

    async def call(name: str, arguments: dict[str, Any]) -> Any:
        seen.append(arguments)
        return name

    method = with_tools(TaskAgent, read_tools([made]), call).send  # type: ignore[attr-defined]
    assert asyncio.run(method(object(), *given_, **named)) == "send"
    return seen[0]


def test_required_parameters_come_first_and_others_may_be_left_out() -> None:
    """What is left out does not reach the tool, but for a default of the schema, which does."""
    made = tool({"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"default": 7}}, required=["b"])
    method = with_tools(TaskAgent, read_tools([made]), calling).send  # type: ignore[attr-defined, arg-type]
    assert str(inspect.signature(method)) == "(self, b: str, a: int = ..., c: Any = 7) -> Any"
    assert calling(made, "x") == {"b": "x", "c": 7}
    assert calling(made, "x", a=1, c=2) == {"b": "x", "a": 1, "c": 2}


@given(st.dictionaries(st.sampled_from(["from", "to", "a-b", "self", "x"]), st.integers(), min_size=1))
def test_names_that_python_does_not_take_can_be_given_all_the_same(values: dict[str, int]) -> None:
    """A tool with a parameter `from` or `a-b` takes any keyword arguments, and they reach it as they are."""
    values = {"from": 1, **{name: value for name, value in values.items() if name != "self"}}
    assert calling(tool({name: {"type": "integer"} for name in values}), **values) == values


def test_the_schema_stands_where_the_model_reads_it() -> None:
    """The method's docstring has the description and the schema whole, so that enums and limits are not lost."""
    made = {**tool({"unit": {"enum": ["C", "F"]}}), "description": "Send it."}
    method = with_tools(TaskAgent, read_tools([made]), calling).send  # type: ignore[attr-defined, arg-type]
    assert method.__doc__ == 'Send it.\n\nArguments: {"type":"object","properties":{"unit":{"enum":["C","F"]}}}'


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"type": "web_search"}, "tool 0 is a web_search"),
        ({**tool({}), "name": "class"}, "'class' cannot be the name of a method"),
        ({**tool({}), "name": "_hidden"}, "'_hidden' cannot be the name of a method"),
        ({**tool({}), "parameters": {"type": "array"}}, "its parameters must be an object"),
        (tool({"a": {"type": "no type"}}), "its parameters are no JSON Schema"),
    ],
)
def test_a_tool_that_cannot_be_offered_is_named(made: dict[str, Any], words: str) -> None:
    """The error says which tool and why."""
    with pytest.raises(ConfigurationError, match=words):
        read_tools([made])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("\ud83d", "\ud83d"),
        ({"a": "\ud83d", "n": 2**70, "z": -0.0}, r'{"a":"\ud83d","n":1180591620717411303424,"z":-0.0}'),
        (Said(word="\ud83d"), r'{"word":"\ud83d"}'),
        (float("nan"), "NaN"),
    ],
)
def test_a_value_as_text_is_exact(value: Any, text: str) -> None:
    """Text is as it is; all else is JSON with its numbers and lone surrogates, models too (1.6)."""
    assert as_text(value) == text


def test_an_output_is_json_or_text() -> None:
    """A tool's body reads as its JSON value, exactly, and as text where it is none."""
    assert read_output(b'{"n": 18446744073709551617}') == {"n": 2**64 + 1}
    assert read_output(b"Bad gateway") == "Bad gateway"


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("plain", "plain"),
        ([{"role": "user", "content": "first"}, {"role": "user", "content": "last"}], "last"),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}],
            "a\nb",
        ),
    ],
)
def test_the_task_is_the_last_users_text(asked: Any, text: str) -> None:
    """The default agent is given the text of the last user message."""
    assert last_user_text(asked) == text


def test_a_request_without_a_user_has_no_task() -> None:
    """There is nothing to do, and the error says so."""
    with pytest.raises(ValueError, match="no user message"):
        last_user_text([{"role": "system", "content": "You are kind."}])
