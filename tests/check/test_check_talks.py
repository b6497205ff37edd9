"""Rules about turns, calls, results and requests, in rollouts collected over HTTP from the embedded policy."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from planting import Fields, check_turns, message, places, tool_call, turn
from talking import USER, results, talk

from turnkeep import Turn
from turnkeep.check.finding import PROFILES
from turnkeep.history.projection import Entry
from turnkeep.serve.respond import Options

TEXT = [{"text": "Done."}]
TWO_CALLS = [
    {"reasoning": "Both."},
    {"call": "one", "arguments": {"n": 1}, "extra": {"call_id": "a"}},
    {"call": "two", "extra": {"call_id": "b"}},
]
ONE_CALL = [{"call": "one", "extra": {"call_id": "a"}}]


def result(call_id: str) -> Entry:
    """A tool's result."""
    return {"role": "tool", "tool_call_id": call_id, "content": "yes"}


@pytest.mark.parametrize("form", ["nested", "envelope", "none"])
def test_a_rollout_of_the_embedded_policy_is_sound(tmp_path: Path, form: Any) -> None:
    """Reasoning, two calls with their results, another call, and an end: no reader has anything to say against it."""
    another = [{"call": "one", "extra": {"call_id": "c"}}]
    steps = [TWO_CALLS, [{"reasoning": "So."}, {"text": ["Once ", "more."]}], another, TEXT]
    talked = talk(tmp_path, steps, [results, results, results], served=Options(experts=form))
    assert [talked.check(profile) for profile in (None, *PROFILES)] == [[]] * 5


def test_routes_of_the_generation_alone_are_found_in_every_turn(tmp_path: Path) -> None:
    """A server that returns routes as the seed's benchmark has them is refused by NeMo RL, turn by turn."""
    talked = talk(tmp_path, [ONE_CALL, TEXT], [results], served=Options(experts_rows="generation"))
    found = talked.check("nemo-rl")
    assert [(each.rule, each.turn, each.severity) for each in found] == [
        ("experts-generation-only", 0, "error"),
        ("experts-generation-only", 1, "error"),
    ]


def test_a_call_without_a_result_is_found(tmp_path: Path) -> None:
    """The call that no later request answers is named, and the answered one is not."""
    talked = talk(tmp_path, [TWO_CALLS, TEXT], [lambda turn: [turn, result("a")]])
    assert places(talked.check()) == [("unanswered-call", 0, 2, "call_id", None)]
    assert talked.check("atif")[0].severity == "error"


def test_a_call_that_ends_the_rollout_is_noted(tmp_path: Path) -> None:
    """A rollout may end with a call that only the agent answered; a strict document may, too, with a warning."""
    talked = talk(tmp_path, [TEXT, ONE_CALL], [results])
    found = talked.check()
    assert places(found) == [("unanswered-last-call", 1, 0, "call_id", None)]
    assert (found[0].severity, talked.check("atif")[0].severity) == ("note", "warning")


def test_results_in_another_order_are_noted(tmp_path: Path) -> None:
    """The result that comes after one of a later call is named, with the policy call whose request has it."""
    talked = talk(tmp_path, [TWO_CALLS, TEXT], [lambda turn: [turn, result("b"), result("a")]])
    found = talked.check()
    assert places(found) == [("results-out-of-order", 0, None, "call_id", None)]
    assert (found[0].call, found[0].message) == (1, "the result for 'a' comes late")


def test_a_result_that_nobody_asked_for_is_found(tmp_path: Path) -> None:
    """A result whose id no call has is named."""
    talked = talk(tmp_path, [ONE_CALL, TEXT], [lambda turn: [turn, result("a"), result("c")]])
    found = talked.check()
    assert places(found) == [("result-without-call", 0, None, "call_id", None)]
    assert found[0].message == "a result for 'c', which nobody has called before"


def test_a_second_result_is_found(tmp_path: Path) -> None:
    """A call that was answered is not answered again."""
    talked = talk(tmp_path, [ONE_CALL, TEXT], [lambda turn: [turn, result("a"), result("a")]])
    assert places(talked.check()) == [("result-twice", 0, None, "call_id", None)]


def test_an_id_that_two_calls_share_is_found(tmp_path: Path) -> None:
    """The later call is named, and where the id was before; each has its result, so nothing else is wrong."""
    talked = talk(tmp_path, [TEXT, ONE_CALL, ONE_CALL, TEXT], [results, results, results])
    found = talked.check()
    assert places(found) == [("duplicate-call-id", 2, 0, "call_id", None)]
    assert found[0].message == "'a' is also the id of a call in turn 1, item 0"


def test_a_call_that_the_runtime_made_up_is_nobodys_fault(tmp_path: Path) -> None:
    """A call that stands in the history and in no turn may have a result, and need not."""
    made_up = {"type": "function_call", "call_id": "prefill_1", "name": "look", "arguments": "{}"}
    other = {**made_up, "call_id": "prefill_2"}
    talked = talk(tmp_path, [TEXT, TEXT], [lambda turn: [turn, USER, made_up, other, result("prefill_1")]])
    assert [each.rule for each in talked.check() if each.rule != "gap"] == []


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ("", "arguments-not-json"),
        ("{'n': 1}", "arguments-not-json"),
        ('{"n": 1, "n": 2}', "arguments-not-json"),
        ('{"n": NaN}', "arguments-not-json"),
        ("[1]", "arguments-not-object"),
        ("null", "arguments-not-object"),
    ],
)
def test_arguments_that_are_no_object_are_found(tmp_path: Path, arguments: str, rule: str) -> None:
    """What a document cannot hold as an object is named, at its item; a trainer hardly cares."""
    call = {"call": "one", "arguments": arguments, "extra": {"call_id": "a"}}
    talked = talk(tmp_path, [[{"text": "Look."}, call], TEXT], [results])
    assert places(talked.check()) == [(rule, 0, 1, "arguments", None)]
    severities = {profile: talked.check(profile)[0].severity for profile in PROFILES}
    assert severities == {"nemo-rl": "note", "trl": "note", "verl": "note", "atif": "error"}


def test_a_response_cut_at_the_limit_is_found(tmp_path: Path) -> None:
    """A turn that ended at max_output_tokens is named (contract 1.8)."""
    talked = talk(tmp_path, [[{"text": "A long story that does not end."}]], [], params={"max_output_tokens": 4})
    assert places(talked.check()) == [("truncated", 0, None, "finish_reason", None)]


@pytest.mark.parametrize("status", ["failed", "cancelled", "incomplete"])
def test_a_response_that_failed_is_found(tmp_path: Path, status: str) -> None:
    """A turn whose response is not complete, for another reason than the limit, is named (contract 1.8)."""
    members: Fields = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-1.0]}
    found = check_turns(tmp_path, [turn(message(**members), status=status)])
    assert places(found) == [("failed-response", 0, None, "finish_reason", None)]


@pytest.mark.parametrize(("field", "counted"), [("input_tokens", 2), ("output_tokens", 3)])
def test_a_usage_that_counts_otherwise_is_noted(tmp_path: Path, field: str, counted: int) -> None:
    """Tokens that the server counts and ids that it sends are the same number."""
    members: Fields = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-1.0]}
    usage = {"input_tokens": 1, "output_tokens": 1, field: counted}
    found = check_turns(tmp_path, [turn(message(**members), usage=usage)])
    assert places(found) == [("usage-differs", 0, None, field, None)]


def test_a_usage_of_two_items_is_compared_with_neither(tmp_path: Path) -> None:
    """Where two items of a turn have ids, no usage can be that of both."""
    first: Fields = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-1.0]}
    second = {**first, "prompt_token_ids": [1, 2]}
    usage = {"input_tokens": 1, "output_tokens": 3}
    found = check_turns(tmp_path, [turn(message(**first), message(**second), usage=usage)])
    assert places(found) == [("token-ids-twice", 0, 0, "prompt_token_ids", None)]


def test_an_edited_turn_is_found(tmp_path: Path) -> None:
    """A turn whose part lost its native says which part, and keeps the ids of what was said (contract 3.1)."""
    members: Fields = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-1.0]}
    made = turn(message("One."), message("Two.", **members))
    assert places(check_turns(tmp_path, [made.edit(0, text="Other.")])) == [("edited-turn", 0, 0, None, None)]


def as_dictionary(turn: Turn) -> Sequence[Entry]:
    """A dictionary in the place of the turn, without its reasoning."""
    return [{"role": "assistant", "content": turn.content}, USER]


def as_dictionary_whole(turn: Turn) -> Sequence[Entry]:
    """A dictionary in the place of the turn, its reasoning with it."""
    return [{"role": "assistant", "content": turn.content, "reasoning_content": turn.reasoning}, USER]


def with_words_put_in(turn: Turn) -> Sequence[Entry]:
    """The turn itself, and words that the agent puts into the policy's mouth."""
    return [turn, USER, {"role": "assistant", "content": "I said so."}, USER]


@pytest.mark.parametrize(
    ("reply", "dropped"),
    [(as_dictionary, [0]), (as_dictionary_whole, []), (results, []), (with_words_put_in, [])],
)
def test_reasoning_that_is_not_replayed_is_found(tmp_path: Path, reply: Any, dropped: list[int]) -> None:
    """A turn that an agent repeats as a dictionary without its reasoning is named, at the reasoning's item."""
    talked = talk(tmp_path, [[{"reasoning": ["Why?", "Because."]}, {"text": "So."}], TEXT], [reply])
    found = [each for each in talked.check() if each.rule == "reasoning-dropped"]
    assert [(each.turn, each.item) for each in found] == [(0, item) for item in dropped]


def test_an_edited_turn_in_a_history_shows_as_its_own_copy_of_calls(tmp_path: Path) -> None:
    """The calls of an edited turn stand in the request as text: they are the turn's calls, and no others."""
    steps = [[{"text": "One."}, {"call": "one", "extra": {"call_id": "a"}}], TEXT]
    talked = talk(tmp_path, steps, [lambda turn: [turn.edit(0, text="Other."), result("a")]])
    assert {each.rule for each in talked.check()} == {"gap", "prompt-contiguity"}


def test_results_are_unknown_where_no_request_was_recorded(tmp_path: Path) -> None:
    """Turns alone do not show what tools gave: that is said once, and no call is called unanswered."""
    members: Fields = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-1.0]}
    longer = {**members, "prompt_token_ids": [1, 2, 3]}
    turns = [turn(tool_call("a"), tool_call("b", **members)), turn(tool_call("c", **longer))]
    assert places(check_turns(tmp_path, turns)) == [("results-unknown", 0, 0, "call_id", None)]
