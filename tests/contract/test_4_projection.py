"""Contract section 4: projection to a request's input."""

import json
import tracemalloc
from http import HTTPMethod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import SCOPE, TRAINING, body, call, exactly, message, no_nulls, portable, reasoning

from turnkeep import (
    AssistantText,
    Item,
    PreparationFailure,
    RuntimeEntry,
    Turn,
    TurnkeepError,
    capture,
    project,
    to_json,
)
from turnkeep.history.projection import Entry
from turnkeep.testing import strategies


@given(st.lists(strategies.captured_turns(), max_size=3))
def test_native_turns_give_their_items_back(turns: list[Turn]) -> None:
    """Native turns project to their items in order, as received less the null members at every depth (4.1)."""
    items = [part["native"] for turn in turns for part in to_json(turn)["parts"]]
    assert exactly(project(turns, SCOPE).input, no_nulls(items))


def test_nulls_go_and_what_is_merely_false_stays() -> None:
    """Null members go at every depth; null elements, zeros, empty texts, arrays and objects stay (contract 4.1)."""
    item = message(
        "null", a=None, b=[None, {"c": None, "d": 0}], e="", f=False, g=[], h={}, i=-0.0, j={"k": {"l": None}}
    )
    left = message("null", b=[None, {"d": 0}], e="", f=False, g=[], h={}, i=-0.0, j={"k": {}})
    assert exactly(project([capture(body(item), SCOPE)], SCOPE).input, [left])


@given(strategies.turns(scope=None))
def test_portable_turns_give_their_public_parts(turn: Turn) -> None:
    """A portable turn projects to its ordered texts and calls; empty text and opaque parts to nothing (4.2)."""
    assert exactly(project([turn], SCOPE).input, portable(to_json(turn)["parts"]))


def test_a_portable_turn_in_order() -> None:
    """Reasoning and text become assistant messages, calls function_call items, all in the turn's order (4.2)."""
    turn = capture(body(call("c", "f", "{ }"), reasoning("hm"), message(""), {"type": "mcp_call"}, message("a", "b")))
    assert exactly(
        project([turn], SCOPE).input,
        [
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{ }"},
            {"role": "assistant", "content": "hm"},
            {"role": "assistant", "content": "ab"},
        ],
    )


def test_system_entries_join_to_instructions() -> None:
    """System dictionaries join with a blank line, empty ones skipped, and are nowhere in the input (4.3)."""
    history: list[Entry] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "system", "content": ""},
        {"role": "system", "content": None},
        {"role": "system", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]},
    ]
    projected = project(history)
    assert projected.instructions == "Be brief.\n\nBe kind."
    assert projected.input == [{"role": "user", "content": "hi"}]
    assert json.loads(projected.body()) == {"input": projected.input, "instructions": "Be brief.\n\nBe kind."}


def test_no_system_entry_is_no_instructions() -> None:
    """Without a system entry that says something there are no instructions, in the body neither (4.3)."""
    projected = project([{"role": "system", "content": ""}])
    assert projected.instructions is None
    assert projected.body() == b'{"input":[]}'


@given(strategies.other_messages().filter(lambda entry: entry["role"] in ("user", "developer")))
def test_user_and_developer_dictionaries_pass_through(entry: dict[str, Any]) -> None:
    """User and developer dictionaries pass through with their content, text or list (contract 4.3)."""
    assert exactly(project([entry], SCOPE).input, [entry])


@given(strategies.other_messages().filter(lambda entry: entry["role"] == "tool"))
def test_tool_dictionaries_become_outputs(entry: dict[str, Any]) -> None:
    """A tool dictionary becomes a function_call_output of its call id and content (contract 4.3)."""
    item = {"type": "function_call_output", "call_id": entry["tool_call_id"], "output": entry["content"]}
    assert exactly(project([entry], SCOPE).input, [item])


@given(strategies.output_items())
def test_items_pass_through(item: dict[str, Any]) -> None:
    """A dictionary with a `type` is an item and passes through, less its null members (contract 4.3)."""
    projected = project([item], SCOPE)
    assert exactly(projected.input, [no_nulls(item)])
    assert projected.gaps == ()


@pytest.mark.parametrize(
    ("entry", "dropped"),
    [
        ({"role": "metadata", "nooa_cache_boundary": True}, True),
        ({"role": "metadata", "nooa_cache_boundary": True, "content": "x"}, True),
        ({"role": "metadata", "nooa_cache_boundary": False}, False),
        ({"role": "metadata", "nooa_cache_boundary": 1}, False),
        ({"role": "metadata"}, False),
    ],
)
def test_only_cache_markers_are_dropped(entry: dict[str, Any], dropped: bool) -> None:
    """A cache marker is dropped; any other metadata is malformed and not dropped in silence (contract 4.3)."""
    if dropped:
        assert project([entry]).input == []
    else:
        with pytest.raises(PreparationFailure) as caught:
            project([{"role": "user", "content": "x"}, entry])
        assert caught.value.entry == 1


@given(strategies.assistant_messages())
def test_public_assistant_dictionaries_project_portably(entry: dict[str, Any]) -> None:
    """A public assistant dictionary gives its reasoning, content and calls; empty and null vanish (4.4)."""
    expected: list[dict[str, Any]] = [
        {"role": "assistant", "content": said}
        for said in (entry.get("reasoning_content"), entry.get("content"))
        if said
    ]
    for made in entry.get("tool_calls") or []:
        names = {"call_id": made["id"], **made["function"]}
        expected.append({"type": "function_call", **{name: names[name] for name in ("call_id", "name", "arguments")}})
    projected = project([entry], SCOPE)
    assert exactly(projected.input, expected)
    assert [gap.code for gap in projected.gaps] == ["public_assistant_metadata_unavailable"]


def test_native_data_in_a_public_dictionary_is_never_guessed() -> None:
    """Training fields and items beside a public assistant dictionary stay out of the request (contract 4.4)."""
    entry = {"role": "assistant", "content": "x", **TRAINING, "native": message("x", **TRAINING)}
    assert project([entry], SCOPE).input == [{"role": "assistant", "content": "x"}]


def _scribble(value: Any) -> None:
    """Change everything in a plain value in place."""
    if isinstance(value, dict):
        for member in value.values():
            _scribble(member)
        value.clear()
        value["scribbled"] = True
    elif isinstance(value, list):
        for element in value:
            _scribble(element)
        value[:] = ["scribbled"]


def _plain(entry: Entry) -> Any:
    if isinstance(entry, Turn):
        return to_json(entry)
    return dict(entry.message) if isinstance(entry, RuntimeEntry) else entry


@given(strategies.histories())
def test_changing_a_request_changes_nothing_else(history: list[Entry]) -> None:
    """Scribbling over a projected input leaves history and later projections as they were (contract 4.5)."""
    before = json.dumps([*map(_plain, history)])
    projected = project(history, SCOPE)
    text = projected.input_text()
    _scribble(projected.input)
    for entry in history:
        if isinstance(entry, Turn):
            _scribble(to_json(entry))
            _scribble([part.native.to_json() for part in entry.parts if part.native is not None])
            _scribble(entry.members)
    assert json.dumps([*map(_plain, history)]) == before
    assert project(history, SCOPE).input_text() == projected.input_text() == text


def test_changing_an_entry_later_changes_no_request() -> None:
    """A request keeps what the entry was when it was projected (contract 4.5)."""
    entry: dict[str, Any] = {"role": "user", "content": [{"type": "input_text", "text": "x"}]}
    projected = project([entry])
    entry["content"][0]["text"] = "y"
    assert projected.input == [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]


@given(
    strategies.histories(),
    st.none() | st.sampled_from([SCOPE, "other"]),
    st.dictionaries(strategies.texts(4), strategies.json_values(), max_size=2),
)
def test_a_body_is_its_chunks_joined(history: list[Entry], scope: str | None, params: dict[str, Any]) -> None:
    """What is written at once and what is streamed are the same bytes, whatever the members are called (4.1)."""
    request = project(history, scope)
    params = {name: value for name, value in params.items() if name not in ("input", "instructions")}
    for form in (request, request.withheld()):
        assert form.body(params) == b"".join(form.chunks(params))
        assert form.body(params).startswith(b'{"input":' + form.input_text())


@given(strategies.histories(), st.sampled_from([SCOPE, None]))
def test_the_bytes_parse_to_the_input(history: list[Entry], scope: str | None) -> None:
    """The body's bytes parse, with the standard library, to exactly the projected input (contract 4.6)."""
    projected = project(history, scope)
    parsed = json.loads(projected.body({"model": "m", "temperature": 1.0}))
    assert exactly(parsed["input"], projected.input)
    assert parsed.get("instructions") == projected.instructions
    assert (parsed["model"], parsed["temperature"]) == ("m", 1.0)


@given(strategies.histories())
def test_a_projected_history_projects_to_itself(history: list[Entry]) -> None:
    """What a request carries can be given as a history of items and public entries again, unchanged (4.3, 4.6)."""
    projected = project(history, SCOPE)
    items = [{"type": "message", **item} if "type" not in item else item for item in projected.input]
    assert exactly(project(items, SCOPE).input, items)


@pytest.mark.parametrize("name", [HTTPMethod.GET, 'a"b', "caf\u00e9", "\x7f", "\udc00"])
def test_members_of_any_name_are_written(name: str) -> None:
    """A member's name may be any string: of a subclass, with escapes, outside ASCII, half of a pair (4.1)."""
    request = project([{"role": "user", "content": "x"}])
    assert request.body({name: 1}) == b"".join(request.chunks({name: 1}))


def test_the_input_of_a_body_is_the_history_alone() -> None:
    """A request member named `input` would stand in the body twice: it is refused (contract 4.6)."""
    with pytest.raises(ValueError, match="input"):
        project([{"role": "user", "content": "x"}]).body({"input": []})


_CYCLE: list[Any] = []
_CYCLE.append(_CYCLE)


@pytest.mark.parametrize(
    "value",
    [float("nan"), 10**5000, {1: 2}, b"bytes", {"\ud83d\ude00": 1, "😀": 2}, {1, 2}, _CYCLE, object()],
    ids=["nan", "huge", "key", "bytes", "halves", "set", "cycle", "object"],
)
@pytest.mark.parametrize("kind", ["user", "item", "assistant", "tool", "call"])
def test_a_value_that_json_cannot_hold_names_its_entry(value: Any, kind: str) -> None:
    """A value that JSON cannot hold is a PreparationFailure with its entry, whatever the entry is (4.6, 7.2)."""
    entry: dict[str, Any] = {
        "user": {"role": "user", "content": [value]},
        "item": {"type": "function_call_output", "call_id": "c", "output": [value]},
        "assistant": {"role": "assistant", "content": [value]},
        "tool": {"role": "tool", "tool_call_id": "c", "content": [value]},
        "call": {**call(), "extra": value, "none": None},
    }[kind]
    with pytest.raises(PreparationFailure) as caught:
        project([{"role": "user", "content": "x"}, entry], SCOPE)
    assert caught.value.entry == 1


@pytest.mark.parametrize("depth", [100, *range(488, 504), 540, 2_000])
@pytest.mark.parametrize("kind", ["user", "item", "assistant", "params"])
def test_a_deep_value_is_projected_or_refused(kind: str, depth: int) -> None:
    """A value nested ever so deep goes out whole, or is refused before anything is sent (contract 4.6, 7.2)."""
    value: Any = None
    for _ in range(depth):
        value = [value]
    entry = {
        "user": {"role": "user", "content": [value]},
        "item": {"type": "x", "d": value, "n": None},
        "assistant": {"role": "assistant", "content": [value]},
        "params": {"role": "user", "content": "x"},
    }[kind]
    try:
        projected = project([entry], SCOPE)
        text = projected.body({"tools": value} if kind == "params" else None)
    except TurnkeepError:
        return
    assert json.dumps(json.loads(text)["input"]) == json.dumps(projected.input)


@pytest.mark.parametrize("entry", [None, 5, "text", [], ("role", "user"), RuntimeEntry("x")])  # type: ignore[arg-type]
def test_an_entry_of_another_type_is_named(entry: Any) -> None:
    """What is no history entry is a PreparationFailure with its index (contract 4.3, 7.2)."""
    with pytest.raises(PreparationFailure) as caught:
        project([{"role": "user", "content": "x"}, entry], SCOPE)
    assert caught.value.entry == 1


def test_the_bytes_need_no_list_of_the_arrays() -> None:
    """A body of large arrays of ids is made in about its own size, where lists would need many times that (4.6)."""
    ids = np.arange(1_000_000, dtype=np.uint32)
    item = Item({"type": "message", "content": [], "routed_experts": None}, {"routed_experts": ids.reshape(-1, 10, 10)})
    turn = Turn((AssistantText("", item),), SCOPE, "stop")
    project([turn], SCOPE).body()  # what is imported on the way does not count
    tracemalloc.start()
    body = project([turn], SCOPE).body()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(body) > 6_000_000
    assert peak < 4 * len(body)  # lists of a million integers take 40 MB and more before they are written
    assert json.loads(body)["input"][0]["routed_experts"][-1][-1][-1] == 999_999
