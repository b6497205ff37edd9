"""Taking a Gym row apart: which items are a turn, what is refused, what goes to the origin."""

from typing import Any

import pytest
from gym_samples import NO_IDS, ROWS, SCOPE, asked, call, ids, lines, message, output, reasoning, row

from turnkeep import ArchiveError, MalformedItem, TurnkeepError, UnsupportedClientCall, project
from turnkeep.export.gym_rows import is_said, part_row, split_output
from turnkeep.history.gaps import MALFORMED_TRAINING


def line(value: Any) -> bytes:
    """The row's line."""
    return lines([value])[:-1]


@pytest.mark.parametrize(
    ("items", "turns"),
    [
        ([message()], ["0"]),
        ([reasoning(), message(), call()], ["012"]),
        ([reasoning(), call(), output(), message()], ["01", "3"]),
        ([call(), call(), output(), output(), message()], ["01", "4"]),
        ([reasoning(), call(**ids()), message(**ids())], ["01", "2"]),
        ([message(**ids()), reasoning(), message()], ["0", "12"]),
        ([message(**NO_IDS), call(**NO_IDS)], ["01"]),
        ([message(prompt_token_ids=[1], generation_token_ids=[], generation_log_probs=[]), call()], ["0", "1"]),
        ([asked(), message(), asked()], ["1"]),
        ([{"type": "message", "role": "developer", "content": "x"}, {"role": "user", "content": "y"}], []),
        ([message(), {"type": "computer_call_output", "call_id": "c"}, message()], ["0", "2"]),
        ([message(), {"role": "assistant", "content": "x"}, message()], ["0", "2"]),
        ([], []),
    ],
)
def test_a_turn_is_what_one_policy_call_added(items: list[Any], turns: list[str]) -> None:
    """Token ids end a turn, and so does any item that no policy writes; else items side by side are one turn."""
    stretches = split_output(items, is_said)
    assert ["".join(map(str, each.items)) for each in stretches if each.is_turn] == turns
    assert [index for each in stretches for index in each.items] == list(range(len(items)))


@pytest.mark.parametrize("value", ROWS.values(), ids=ROWS)
def test_items_are_kept_exactly_and_replay_with_their_scope(value: dict[str, Any]) -> None:
    """Each turn's native items are the row's, and under its scope it replays by them (contract 1.2, 2.2)."""
    turns, items = part_row(line(value), SCOPE).turns, value["response"]["output"]
    said = [index for each in split_output(items, is_said) if each.is_turn for index in each.items]
    assert [part.native for turn in turns for part in turn.parts] == [items[index] for index in said]
    assert project([*turns], SCOPE).gaps == ()


def test_without_a_scope_turns_replay_portably() -> None:
    """A row imported without a scope gives turns that have none and replay by their public parts (contract 2.2)."""
    parted = part_row(line(ROWS["ids"]), None)
    request = project([*parted.turns], SCOPE)
    assert [gap.code for gap in request.gaps] == ["foreign_turn_projected_portable"]
    assert b"token_ids" not in request.input_text()


def test_the_rest_of_a_row_is_the_origin() -> None:
    """The origin has the row without its output, and the order of turns and other items in that (docs)."""
    origin = part_row(line(ROWS["tools"]), None).origin
    assert origin["row"] == {**ROWS["tools"], "response": {**ROWS["tools"]["response"], "output": None}}
    assert list(origin["row"]["response"]) == list(ROWS["tools"]["response"])
    turn = [{"turn": number} for number in range(3)]
    assert origin["output"] == [turn[0], {"item": output()}, turn[1], {"item": output()}, turn[2]]
    assert (origin["source"], origin["turns"]) == ("gym", 3)


@pytest.mark.parametrize(
    ("status", "details", "reasons"),
    [
        ("incomplete", {"reason": "max_output_tokens"}, ["tool_calls", "length"]),
        ("failed", None, ["tool_calls", "error"]),
        ("completed", None, ["tool_calls", "stop"]),
    ],
)
def test_the_last_turn_ended_as_the_response_says(status: str, details: Any, reasons: list[str]) -> None:
    """The response's status is that of its last policy call (contract 1.8)."""
    value = row(call(), output(), message())
    value["response"] |= {"status": status, "incomplete_details": details}
    assert [turn.finish_reason for turn in part_row(line(value), None).turns] == reasons


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"version https://git-lfs.github.com/spec/v1", "no JSON"),
        (b'{"response": {"output": []}', "no JSON"),
        (b"\xff", "not UTF-8 at byte 0"),
        (b"[1, 2]", "a row is a JSON object, not a list"),
        (b'"row"', "not a string"),
        (b'{"reward": 1}', "no response"),
        (b'{"response": null}', "response is null"),
        (b'{"response": [{"output": []}]}', "response is a list"),
        (b'{"response": "x"}', "response is a string"),
        (b'{"response": {"id": "r"}}', "no output"),
        (b'{"response": {"output": null}}', "response.output is null"),
        (b'{"response": {"output": {"0": {}}}}', "response.output is an object"),
        (b'{"response": {"output": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18]}}', "not a number"),
        (b'{"reward": NaN, "response": {"output": []}}', "NaN is no JSON number at reward"),
        (b'{"reward": 1e999, "response": {"output": []}}', "beyond float64 at reward"),
        (b'{"a": 1, "a": 1, "response": {"output": []}}', "duplicate key 'a' at a"),
        (b'{"response": {"output": []}, "response": {"output": []}}', "duplicate key 'response'"),
        (b'{"response": {"output": [], "output": []}}', "duplicate key 'output'"),
        (b'{"a":' * 495 + b"1" + b"}" * 495, "nested deeper"),
    ],
)
@pytest.mark.parametrize("how", ["refuse", "gap"])
def test_what_is_no_rollout_is_refused(text: bytes, why: str, how: Any) -> None:
    """A line that is no row, or cannot be kept exactly, is refused with the reason, whatever is asked (1.6)."""
    with pytest.raises((ArchiveError, MalformedItem)) as caught:
        part_row(text, None, how)
    assert why in str(caught.value)


NAN, TWICE = float("nan"), b'"generation_token_ids"'
MALFORMED: list[tuple[Any, int, str, int | None]] = [
    (row(message(), output(), message(**{**ids(), "prompt_token_ids": [1, -1]})), 2, "prompt_token_ids", 1),
    (row(reasoning(), message(**{**ids(), "generation_log_probs": [-0.1]})), 1, "generation_log_probs", None),
    (row(message(generation_token_ids=[1])), 0, "prompt_token_ids", None),
    (row(message(**{**ids(), "routed_experts": [[[1], [2]], [[1]]]})), 0, "routed_experts", 1),
    (row(output(), message(**{**ids(), "generation_log_probs": [0.0, NAN, -1.0]})), 1, "generation_log_probs", 1),
    (row(output(), message(**{**ids(), "generation_log_probs": "x"})), 1, "generation_log_probs", None),
    (
        line(row(call(), output(), call(**ids()))).replace(TWICE, TWICE + b":[]," + TWICE),
        2,
        "generation_token_ids",
        None,
    ),
]


@pytest.mark.parametrize(("value", "item", "field", "index"), MALFORMED)
def test_malformed_training_fields_are_refused_or_kept_as_a_gap(
    value: Any, item: int, field: str, index: int | None
) -> None:
    """A fault is named by item of the row, field and index; asked so, the turn lives without natives (1.5, 7.9)."""
    with pytest.raises(MalformedItem) as caught:
        part_row(line(value), SCOPE)
    assert caught.value.place == {"item": item, "field": field, "index": index}
    parted = part_row(line(value), SCOPE, "gap")
    assert [gap.code for gap in parted.gaps] == [MALFORMED_TRAINING]
    kept = [[part.native is None for part in turn.parts] for turn in parted.turns]
    assert all(kept[-1])
    assert not any(any(parts) for parts in kept[:-1])


@pytest.mark.parametrize(
    ("items", "kind", "place"),
    [
        ([message(), "text"], MalformedItem, (1, None, None)),
        ([message(), None], MalformedItem, (1, None, None)),
        ([message(), [message()]], MalformedItem, (1, None, None)),
        ([output(), call() | {"arguments": None}], MalformedItem, (1, "arguments", None)),
        ([output(), message(content="text")], MalformedItem, (1, "content", None)),
        ([output(), {"content": "text"}], MalformedItem, (1, "type", None)),
        ([output(), {"role": "assistant", "content": "text", **ids()}], MalformedItem, (1, "type", None)),
        ([message(), output(), reasoning(), {"type": "custom_tool_call"}], UnsupportedClientCall, (3, None, None)),
        ([output(output=NAN)], MalformedItem, (0, "output", None)),
        ([message(x=NAN, generation_log_probs=[float("inf")])], MalformedItem, (0, "x", None)),
        ([message(**{**ids(), "generation_log_probs": [NAN]}), message(id=2e308)], MalformedItem, (1, "id", None)),
    ],
)
def test_what_makes_no_turn_is_refused_even_as_a_gap(items: Any, kind: type[TurnkeepError], place: Any) -> None:
    """An item that cannot be read, or a call nobody can answer, refuses the row and is named (1.5, 7.4, 7.9)."""
    with pytest.raises(kind) as caught:
        part_row(line(row(*items)), None, "gap")
    assert (caught.value.item, caught.value.field, caught.value.index) == place
