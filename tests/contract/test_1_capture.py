"""Contract section 1: capture."""

import json
from typing import Any

import pytest
from hypothesis import given
from samples import SCOPE, TRAINING, body, call, exactly, joined, message, readable, reasoning, response, short, summary

from turnkeep import (
    AssistantReasoning,
    AssistantText,
    ConfigurationError,
    MalformedItem,
    Rollout,
    RolloutView,
    ToolCall,
    TransportFailure,
    Turn,
    UnsupportedClientCall,
    capture,
    dumps_turn,
    from_json,
    loads_turn,
    open_store,
    project,
    to_json,
)
from turnkeep.history.turn import PUBLIC_FIELDS, public_fields
from turnkeep.testing import strategies
from turnkeep.wire.item import CLIENT_CALLS
from turnkeep.wire.training import TRAINING_FIELDS


@given(strategies.responses(max_items=4))
def test_one_part_per_output_item_in_order(value: dict[str, Any]) -> None:
    """A turn has one part per output item, in order, of the item's kind and readable text (contract 1.1, 1.3)."""
    turn = capture(json.dumps(value), SCOPE)
    assert [{"kind": part.kind, **public_fields(part)} for part in turn.parts] == [*map(readable, value["output"])]


@given(strategies.responses(max_items=4))
def test_each_part_carries_its_complete_item(value: dict[str, Any]) -> None:
    """Each part's native item equals the item on the wire: every member, value and key order (contract 1.2, 1.6)."""
    turn = capture(json.dumps(value), SCOPE)
    natives = [part.native.to_json() for part in turn.parts if part.native is not None]
    assert exactly(natives, value["output"])


@given(strategies.responses(max_items=4))
def test_capture_of_bytes_text_and_object_are_one(value: dict[str, Any]) -> None:
    """A body as bytes, as text and as a parsed object make equal turns (contract 1.6)."""
    text = json.dumps(value)
    turns = [capture(text.encode(), SCOPE), capture(text, SCOPE), capture(value, SCOPE)]
    assert len({turn.digest for turn in turns}) == 1
    assert turns[0] == turns[1] == turns[2]


@given(strategies.responses())
def test_the_rest_of_the_response_stays_as_received(value: dict[str, Any]) -> None:
    """Usage, model and id of the response come back from the turn as they were received (contract 1.6)."""
    turn = capture(json.dumps(value), SCOPE)
    assert exactly(turn.members, {"usage": value["usage"], "model_name": value["model"], "response_id": value["id"]})


@pytest.mark.parametrize("kind", [*strategies.HOSTED_TYPES, "weather_map", "", "computer_call_output"])
def test_hosted_and_unknown_items_are_opaque(kind: str) -> None:
    """A hosted item, and one of a type nobody has heard of, is a part without readable text, kept whole (1.1)."""
    item = {"type": kind, "id": "h", "text": "unseen", "content": [{"type": "output_text", "text": "unseen"}]}
    turn = capture(body(item), SCOPE)
    assert turn.parts == (AssistantText("", turn.parts[0].native),)
    assert turn.parts[0].native == item


@pytest.mark.parametrize("kind", sorted(CLIENT_CALLS))
def test_only_the_five_client_calls_are_refused(kind: str) -> None:
    """A client-executed call is refused, and the error names its item (contract 1.1)."""
    with pytest.raises(UnsupportedClientCall) as caught:
        capture(body(message("x"), {"type": kind, "call_id": "c", "input": ""}), SCOPE)
    assert caught.value.item == 1


def test_the_client_calls_are_five() -> None:
    """The refused item types are those of contract 7.4 and no others (contract 1.1)."""
    names = ("custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "computer_call")
    assert set(names) == CLIENT_CALLS


@pytest.mark.parametrize(
    ("item", "part"),
    [
        (message("a", "", "b\n"), AssistantText("ab\n")),
        (message(), AssistantText("")),
        (reasoning("one", "two"), AssistantReasoning("one\ntwo")),
        (summary("one", "", "two"), AssistantReasoning("one\n\ntwo")),
        ({**summary("short"), **reasoning("long")}, AssistantReasoning("long")),
        ({**summary("short"), "content": []}, AssistantReasoning("short")),
        ({**summary("short"), "content": None}, AssistantReasoning("short")),
        ({**summary("short"), **reasoning("")}, AssistantReasoning("short")),
        ({"type": "reasoning", "encrypted_content": "gA=="}, AssistantReasoning("")),
        (call("c", "f", '{ "b":1,\t"b" : 1.0}\n'), ToolCall("c", "f", '{ "b":1,\t"b" : 1.0}\n')),
        (call("", "", "not json"), ToolCall("", "", "not json")),
    ],
)
def test_readable_text(item: dict[str, Any], part: Any) -> None:
    """Blocks join with nothing in a message and with a newline in reasoning; arguments stay byte for byte (1.3)."""
    captured = capture(body(item), SCOPE).parts[0]
    assert (captured.kind, public_fields(captured)) == (part.kind, public_fields(part))


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (message("a\ud83d", "\ude00b"), "a😀b"),
        (message("\ude00", "\ud83d"), "\ude00\ud83d"),
        (summary("\ud83d", "\ude00"), "\ud83d\n\ude00"),
    ],
)
def test_halves_of_a_pair_become_one_character(item: dict[str, Any], text: str) -> None:
    """Halves of a surrogate pair that joining puts side by side are one character, others stay lone (1.3)."""
    turn = capture(body(item), SCOPE)
    assert getattr(turn.parts[0], "text", None) == text
    assert turn.parts[0].native == item
    assert exactly(project([turn], SCOPE).input, [item])


@given(strategies.turns())
def test_content_is_the_text_parts_joined(turn: Turn) -> None:
    """`Turn.content` is exactly the concatenation of the text parts, however the turn was built (contract 1.4)."""
    assert turn.content == joined(*(part["text"] for part in to_json(turn)["parts"] if part["kind"] == "text"))


def test_content_leaves_out_reasoning_and_calls() -> None:
    """Reasoning, calls and opaque items add nothing to the content (contract 1.4)."""
    turn = capture(body(reasoning("hm"), message("One. "), call(), {"type": "mcp_call"}, message("Two.")), SCOPE)
    assert (turn.content, turn.reasoning) == ("One. Two.", "hm")
    assert [made.id for made in turn.tool_calls] == ["c1"]


@given(strategies.output_items(strategies.messages()), strategies.training_fields())
def test_legal_training_fields_are_kept_exactly(item: dict[str, Any], fields: dict[str, Any]) -> None:
    """Every legal set of training fields is kept, by value and by kind of number, empty arrays too (1.5, 1.6)."""
    item = {name: member for name, member in item.items() if name not in TRAINING_FIELDS} | fields
    native = capture(body(item), SCOPE).parts[0].native
    assert native is not None
    assert native.has_training
    assert exactly(native.to_json(), item)


_GOOD = {**TRAINING, "routed_experts": None}
_ROUTES = "routed_experts"


@pytest.mark.parametrize(
    ("changes", "field", "index"),
    [
        ({"prompt_token_ids": None}, "prompt_token_ids", None),
        ({"generation_token_ids": None}, "generation_token_ids", None),
        ({"generation_log_probs": None}, "generation_log_probs", None),
        ({"prompt_token_ids": 5}, "prompt_token_ids", None),
        ({"prompt_token_ids": "AQI="}, "prompt_token_ids", None),
        ({"prompt_token_ids": {}}, "prompt_token_ids", None),
        ({"prompt_token_ids": [1, -1]}, "prompt_token_ids", 1),
        ({"prompt_token_ids": [1, 2.0]}, "prompt_token_ids", 1),
        ({"prompt_token_ids": [1.0, 2.0]}, "prompt_token_ids", 0),
        ({"prompt_token_ids": [1, True]}, "prompt_token_ids", 1),
        ({"prompt_token_ids": [1, None]}, "prompt_token_ids", 1),
        ({"prompt_token_ids": [1, "2"]}, "prompt_token_ids", 1),
        ({"prompt_token_ids": [[1, 2]]}, "prompt_token_ids", 0),
        ({"prompt_token_ids": [2**70, -(2**70)]}, "prompt_token_ids", 1),
        ({"generation_token_ids": [1, -1]}, "generation_token_ids", 1),
        ({"generation_token_ids": [1, 2, 3]}, "generation_log_probs", None),
        ({"generation_log_probs": [-0.5]}, "generation_log_probs", None),
        ({"generation_log_probs": [-0.5, None]}, "generation_log_probs", 1),
        ({"generation_log_probs": [-0.5, "x"]}, "generation_log_probs", 1),
        ({"generation_log_probs": [False, -0.5]}, "generation_log_probs", 0),
        ({"generation_log_probs": [[-0.5, -0.5]]}, "generation_log_probs", 0),
        ({"generation_log_probs": "x"}, "generation_log_probs", None),
        ({_ROUTES: 5}, _ROUTES, None),
        ({_ROUTES: {}}, _ROUTES, None),
        ({_ROUTES: [1, 2]}, _ROUTES, 0),
        ({_ROUTES: [[1, 2]]}, _ROUTES, 0),
        ({_ROUTES: [[[[1]]]]}, _ROUTES, 0),
        ({_ROUTES: [[[1]], [[-2]]]}, _ROUTES, 1),
        ({_ROUTES: [[[1.0]]]}, _ROUTES, 0),
        ({_ROUTES: [[[1]], [[True]]]}, _ROUTES, 1),
        ({_ROUTES: [[[1]], [[None]]]}, _ROUTES, 1),
        ({_ROUTES: [[[1]], [[2, 3]]]}, _ROUTES, 1),
        ({_ROUTES: [[[1], [2]], [[3]]]}, _ROUTES, 1),
        ({_ROUTES: [[[1], [2, 3]]]}, _ROUTES, 0),
        ({_ROUTES: [[]]}, _ROUTES, 0),
        ({_ROUTES: [[[1]], [[2**70]], [[-(2**70)]]]}, _ROUTES, 2),
    ],
)
def test_illegal_training_fields_are_named(changes: dict[str, Any], field: str, index: int | None) -> None:
    """A training field that breaks a rule is a MalformedItem whose place is item, field and index (contract 1.5)."""
    with pytest.raises(MalformedItem) as caught:
        capture(body(message("fine", **TRAINING), call(**{**_GOOD, **changes})), SCOPE)
    assert caught.value.place == {"item": 1, "field": field, "index": index}


@pytest.mark.parametrize("field", TRAINING_FIELDS)
def test_a_training_field_never_stands_alone(field: str) -> None:
    """One training field alone is refused, and named is the first that it lacks (contract 1.5)."""
    lacking = next(name for name in TRAINING_FIELDS if name != field)
    with pytest.raises(MalformedItem) as caught:
        capture(body(message("x", **{field: TRAINING[field]})), SCOPE)
    assert caught.value.place == {"item": 0, "field": lacking, "index": None}


def test_null_training_fields_count_as_absent() -> None:
    """A training field that is null counts as absent, and stays in the item as null (contract 1.5)."""
    item = message("x", **dict.fromkeys(TRAINING_FIELDS))
    native = capture(body(item), SCOPE).parts[0].native
    assert native is not None
    assert not native.has_training
    assert exactly(native.to_json(), item)


_DEEP: Any = 7
for _ in range(100):
    _DEEP = [_DEEP]


@pytest.mark.parametrize("field", TRAINING_FIELDS)
def test_a_training_field_nested_beyond_any_array_is_named(field: str) -> None:
    """An array of more dimensions than NumPy has is a MalformedItem like any other of a wrong rank (contract 1.5)."""
    with pytest.raises(MalformedItem) as caught:
        capture(body(message("x", **{**TRAINING, field: _DEEP})), SCOPE)
    assert caught.value.place == {"item": 0, "field": field, "index": 0}


@pytest.mark.parametrize(
    ("item", "place"),
    [
        (b"5", (None, None)),
        (b"null", (None, None)),
        (b'"text"', (None, None)),
        (b"[]", (None, None)),
        (b"{}", ("type", None)),
        (b'{"type":null}', ("type", None)),
        (b'{"type":["message"]}', ("type", None)),
        (b'{"type":"message"}', ("content", None)),
        (b'{"type":"message","content":"text"}', ("content", None)),
        (b'{"type":"message","content":[{"type":"output_text","text":"a"},5]}', ("content", 1)),
        (b'{"type":"message","content":[{"text":"a"}]}', ("content", 0)),
        (b'{"type":"message","content":[{"type":"output_text"}]}', ("content", 0)),
        (b'{"type":"message","content":[{"type":"output_text","text":null}]}', ("content", 0)),
        (b'{"type":"message","content":[{"type":"refusal","refusal":5}]}', ("content", 0)),
        (b'{"type":"reasoning","content":"text"}', ("content", None)),
        (b'{"type":"reasoning","summary":[{"type":"summary_text"}]}', ("summary", 0)),
        (b'{"type":"function_call","name":"f","arguments":"{}"}', ("call_id", None)),
        (b'{"type":"function_call","call_id":"c","name":5,"arguments":"{}"}', ("name", None)),
        (b'{"type":"function_call","call_id":"c","name":"f","arguments":{}}', ("arguments", None)),
        (b'{"type":"x","a":NaN}', ("a", None)),
        (b'{"type":"x","a":[0,Infinity]}', ("a", 1)),
        (b'{"type":"x","a":[0,1,{"b":-Infinity}]}', ("a", 2)),
        (b'{"type":"x","a":{"b":[1e999]}}', ("a", None)),
        (b'{"type":"x","generation_log_probs":[-1e309]}', ("generation_log_probs", 0)),
        (b'{"type":"x","a":1,"a":1}', ("a", None)),
        (b'{"type":"x","a":[{"b":1,"b":2}]}', ("a", 0)),
        (b'{"type":"x","a":' + b"9" * 5000 + b"}", ("a", None)),
    ],
    ids=short,
)
def test_what_is_wrong_inside_an_item_has_its_place(item: bytes, place: tuple[str | None, int | None]) -> None:
    """What is wrong inside an output item is a MalformedItem with its item, field and index (contract 1.5, 1.6)."""
    with pytest.raises(MalformedItem) as caught:
        capture(b'{"output":[{"type":"x"},' + item + b"]}", SCOPE)
    assert caught.value.place == {"item": 1, "field": place[0], "index": place[1]}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<html>",
        b"5",
        b"null",
        b"[]",
        b"{}",
        b'{"output":null}',
        b'{"output":{}}',
        b'{"output":[]',
        b'{"output":[]}x',
        b'\xef\xbb\xbf{"output":[]}',
        b'{"output":["\xff"]}',
        b'{"output":[],"usage":NaN}',
        b'{"output":[],"usage":{"a":1e999}}',
        b'{"output":[],"id":"a","id":"a"}',
        b'{"output":[],"output":[]}',
        b'{"output":[' + b"[" * 100_000 + b"]" * 100_000 + b"]}",
    ],
    ids=short,
)
def test_what_is_wrong_outside_the_items_is_a_transport_failure(text: bytes) -> None:
    """What is no Responses object, or is wrong outside the items, is a TransportFailure with its bytes (1.5)."""
    with pytest.raises(TransportFailure) as caught:
        capture(text, SCOPE)
    assert caught.value.body == text


@pytest.mark.parametrize("value", [None, 5, [], True])
def test_what_is_no_object_is_a_transport_failure(value: Any) -> None:
    """A parsed response that is no object is a TransportFailure like its text (contract 1.5)."""
    with pytest.raises(TransportFailure):
        capture(value, SCOPE)


_UNWRITABLE = [float("nan"), 10**5000, {1: 2}, b"", {"\ud83d\ude00": 1, "😀": 2}, {1, 2}]


@pytest.mark.parametrize("value", _UNWRITABLE, ids=short)
def test_a_value_that_json_cannot_hold_is_named(value: Any) -> None:
    """In a parsed response, a value that JSON cannot hold exactly is a MalformedItem with its place (1.5, 1.6)."""
    with pytest.raises(MalformedItem) as caught:
        capture(response(message("x"), message("y", a=[0, value])), SCOPE)
    assert caught.value.place == {"item": 1, "field": "a", "index": 1}


@pytest.mark.parametrize("depth", [100, *range(488, 504), 540, 3_000, 100_000])
@pytest.mark.parametrize("shape", ["list", "object"])
def test_deep_nesting_is_kept_whole_or_refused(depth: int, shape: str) -> None:
    """A response nested ever so deep is refused at capture, or everything that follows keeps it whole (1.6)."""
    opening, closing = (b"[", b"]") if shape == "list" else (b'{"a":', b"}")
    text = b'{"output":[{"type":"x","d":' + opening * depth + b"null" + closing * depth + b"}]}"
    try:
        turn = capture(text, SCOPE)
    except (TransportFailure, MalformedItem):
        return
    assert len(project([turn], SCOPE).input) == 1
    assert loads_turn(dumps_turn(turn)) == from_json(to_json(turn)) == turn
    with open_store("memory:") as store:
        with Rollout.open(store, "r") as rollout:
            rollout.add_turn(turn)
        assert RolloutView(store, "r").turn(0) == turn


@given(strategies.json_values(12))
def test_values_are_exact(value: Any) -> None:
    """Any JSON value in an item comes back the same: numbers by kind and bits, strings, key order (contract 1.6)."""
    native = capture(body({"type": "x", "value": value}), SCOPE).parts[0].native
    assert native is not None
    assert exactly(native["value"], value)


@pytest.mark.parametrize(
    "number", ["-0.0", "5e-324", "1E400", "-0", "1.0", "1", "100000000000000000000000.0", "1e-400"]
)
def test_numbers_as_they_are_spelled(number: str) -> None:
    """A number is what Python's reader makes of its spelling, or refused where that is infinite (contract 1.6)."""
    text = f'{{"output":[{{"type":"x","n":{number}}}]}}'
    if number == "1E400":
        with pytest.raises(MalformedItem):
            capture(text, SCOPE)
    else:
        native = capture(text, SCOPE).parts[0].native
        assert native is not None
        assert exactly(native["n"], json.loads(number))


@given(strategies.turns(), strategies.texts())
def test_an_edit_gives_a_new_turn(turn: Turn, text: str) -> None:
    """An edit leaves the old turn as it was, takes the native of the changed part only, and keeps the scope (1.7)."""
    before, digest = to_json(turn), turn.digest
    for index, part in enumerate(turn.parts):
        name = PUBLIC_FIELDS[part.kind][-1]
        edited = turn.edit(index, **{name: text})
        if text == public_fields(part)[name]:
            assert edited is turn
            continue
        expected = json.loads(json.dumps(before))
        expected["parts"][index] |= {name: text, "native": None}
        assert exactly(to_json(edited), expected)
        assert edited.digest != digest
        assert project([edited], SCOPE).gaps[0].code == "foreign_turn_projected_portable"
    assert exactly(to_json(turn), before)


@pytest.mark.parametrize(
    ("part", "fields"), [(2, {"text": "x"}), (-1, {"text": "x"}), (0, {"id": "x"}), (1, {"text": "x"})]
)
def test_an_edit_of_what_is_not_there_is_refused(part: int, fields: dict[str, str]) -> None:
    """Editing a part or a field that the turn has not is a ConfigurationError that names it (contract 1.7)."""
    with pytest.raises(ConfigurationError) as caught:
        capture(body(message("x"), call()), SCOPE).edit(part, **fields)
    assert caught.value.index == part


@pytest.mark.parametrize("name", ["part", "self"])
def test_a_field_may_have_any_name(name: str) -> None:
    """A field that no part has is refused by name even where the method has a parameter of that name (1.7)."""
    with pytest.raises(ConfigurationError) as caught:
        capture(body(message("x")), SCOPE).edit(0, **{name: "x"})
    assert caught.value.field == name


_MAX = {"reason": "max_output_tokens"}


@pytest.mark.parametrize(
    ("items", "members", "reason"),
    [
        ((message("x"),), {}, "stop"),
        ((), {}, "stop"),
        ((message("x"), call()), {}, "tool_calls"),
        (({"type": "web_search_call"},), {}, "stop"),
        ((call(),), {"status": "incomplete", "incomplete_details": _MAX}, "length"),
        ((call(),), {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "error"),
        ((message("x"),), {"status": "incomplete", "incomplete_details": None}, "error"),
        ((call(),), {"status": "failed", "incomplete_details": None}, "error"),
        ((message("x"),), {"status": "completed", "incomplete_details": _MAX}, "stop"),
        ((call(),), {"status": None, "incomplete_details": _MAX}, "length"),
        ((message("x"),), {"status": None, "incomplete_details": {"reason": "content_filter"}}, "error"),
        ((call(),), {"status": None, "incomplete_details": None, "error": {"code": "server_error"}}, "error"),
        ((call(),), {"status": None, "incomplete_details": None, "error": None}, "tool_calls"),
        ((call(),), {"status": None, "incomplete_details": list(range(40))}, "error"),
        ((call(),), {"status": list(range(40)), "incomplete_details": None}, "tool_calls"),
    ],
)
def test_finish_reason(items: tuple[Any, ...], members: dict[str, Any], reason: str) -> None:
    """`finish_reason` says length, error, tool_calls or stop by the response's status and items (contract 1.8)."""
    assert capture(body(*items, **members), SCOPE).finish_reason == reason
