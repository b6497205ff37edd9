import json
from pathlib import Path
from typing import Any

import pytest
from rollout_tools import SCOPE, USER, Bench, Said, responses, scripted, serving

from turnkeep.errors import (
    BudgetExhausted,
    InvalidPolicyOutput,
    MalformedItem,
    TransportFailure,
    TurnkeepError,
)
from turnkeep.history.capture import capture
from turnkeep.history.gaps import FOREIGN_TURN, MALFORMED_TRAINING, PORTABLE_AFTER_NATIVE, gap
from turnkeep.history.projection import Entry, RuntimeEntry, project
from turnkeep.history.structured import parse_output
from turnkeep.history.turn import Turn
from turnkeep.rollout.outcome import Outcome, outcome
from turnkeep.rollout.policy import PolicyClient
from turnkeep.rollout.verify import verify_rollout

TRAINING = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}


def said(text: str = "Yes.") -> Said:
    return Said(200, responses(text, **TRAINING, routed_experts=[[[0, 1]]]))


def carries_training(body: bytes) -> bool:
    return any(name in item for item in json.loads(body)["input"] for name in (*TRAINING, "routed_experts"))


@pytest.mark.parametrize(("guard", "sent"), [("withhold", False), ("send", True)])
def test_a_portable_turn_after_a_native_one(tmp_path: Path, guard: str, sent: bool) -> None:
    """Training fields are withheld where a server would splice the wrong prefix, or sent if so asked (7.8).

    A gap tells so; history and evidence keep them, and `project` never withholds.
    """

    async def agent(policy: PolicyClient) -> list[Entry]:
        first = await policy.call([USER])
        second = await policy.call([USER, first, USER])
        history: list[Entry] = [USER, first, USER, second.edit(0, text="No."), USER]
        third = await policy.call(history)
        await policy.call([*history, third, USER])
        return history

    with scripted([said("a"), said("b"), said("c"), said("d")]) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        history = bench.run(agent, prefix_guard=guard)
    assert [carries_training(body) for body in heard.bodies] == [False, True, sent, True]
    assert carries_training(project(history, SCOPE).body())
    with bench.view() as view:
        assert {gap(PORTABLE_AFTER_NATIVE), gap(FOREIGN_TURN)} == set(view.gaps)
        assert [view.request(number) for number in range(4)] == heard.bodies
        assert all(carries_training(project([turn], SCOPE).body()) for turn in view.turns)
        assert view.gradable
        assert list(verify_rollout(view)) == []


def test_a_runtime_entry_after_a_native_turn_is_guarded_too(tmp_path: Path) -> None:
    """An entry that the runtime made is no gap of 5.1, but has no ids: 7.8 applies to it (contract 5.4, 7.8)."""
    call = {"id": "prefill_1", "function": {"name": "f", "arguments": "{}"}}
    entry = RuntimeEntry({"role": "assistant", "content": None, "tool_calls": [call]})

    async def agent(policy: PolicyClient) -> None:
        turn = await policy.call([entry, USER])
        await policy.call([USER, turn, entry, USER])

    with scripted([said()]) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        bench.run(agent)
    assert not carries_training(heard.bodies[1])
    with bench.view() as view:
        assert view.gaps == (gap(PORTABLE_AFTER_NATIVE),)
        assert [view.request(number) for number in range(2)] == heard.bodies


@pytest.mark.parametrize("fault", ["inf-log-prob", "missing-log-probs"])
def test_a_malformed_response_can_be_kept_as_a_gap(tmp_path: Path, fault: str) -> None:
    """`on_malformed="gap"` keeps the turn without native, tells so as a gap, and keeps the place in the call (7.9)."""
    with serving(tmp_path, faults=[f"{fault}@0"]) as bench:
        turn = bench.call(on_malformed="gap")
        assert ([part.native for part in turn.parts], turn.content) == ([None], "One.")
        bench.call([USER, turn, USER])
        with bench.view() as view:
            assert set(view.gaps) == {gap(MALFORMED_TRAINING), gap(FOREIGN_TURN)}
            failure = view.calls[0].failure
            assert failure is not None
            assert (failure["type"], failure["item"], failure["field"]) == ("MalformedItem", 0, "generation_log_probs")
            assert (view.gradable, view.failure, view.turn_count) == (True, None, 2)
            body = view.response(0)
            assert body is not None
            assert (b"-Infinity" in body) == (fault == "inf-log-prob")
            assert list(verify_rollout(view)) == []


def test_a_fault_in_what_is_read_cannot_be_kept_as_a_gap(tmp_path: Path) -> None:
    """Where the fault reaches what a person reads no turn can be made, and even `on_malformed="gap"` raises (7.9)."""
    body = responses().replace(b'"text":"Yes."', b'"text":7')
    with scripted([Said(200, body)]) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        with pytest.raises(MalformedItem) as caught:
            bench.call(on_malformed="gap")
    assert caught.value.place == {"item": 0, "field": "content", "index": 0}
    with bench.view() as view:
        assert (view.turn_count, view.gradable, view.response(0)) == (0, False, body)


def test_evidence_is_what_was_sent_and_received(tmp_path: Path) -> None:
    """Editing, projecting and dropping history leaves every request and response as it was on the wire (7.11)."""

    async def agent(policy: PolicyClient) -> None:
        history: list[Entry] = [{"role": "system", "content": "Be\u2028exact \ud800."}, USER]
        for number in range(4):
            turn = await policy.call(history, {"metadata": {"n": number, "x": 1e22, "y": -0.0, "z": None}})
            history += [turn.edit(0, text="edited") if number == 1 else turn, {"role": "user", "content": "\U0001f600"}]
            project(history, SCOPE).input.clear()
        del history[1:5]
        await policy.call(history)
        history.clear()

    bodies = [b" " + responses(str(number), **TRAINING) + b"\n\n" for number in range(5)]
    with scripted([Said(200, body) for body in bodies]) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        bench.run(agent)
    with bench.view() as view:
        assert [view.request(number) for number in range(5)] == heard.bodies
        assert [view.response(number) for number in range(5)] == bodies
        assert [turn.content for turn in view.turns] == list("01234")


def test_evidence_never_authorises_replay_of_an_edited_turn(tmp_path: Path) -> None:
    """A turn whose text was edited goes out portably, though the rollout holds its native items (contract 7.11)."""

    async def agent(policy: PolicyClient) -> None:
        turn = await policy.call([USER])
        await policy.call([USER, turn.edit(0, text="Edited."), USER])
        await policy.call([USER, turn, USER])

    with scripted([said()]) as heard:
        Bench(tmp_path / "a.db", heard.url).run(agent)
    _, edited, native = (json.loads(body)["input"] for body in heard.bodies)
    assert edited[1] == {"role": "assistant", "content": "Edited."}
    assert native[1]["generation_token_ids"] == [3]


def test_a_turn_of_another_rollout_comes_back_as_it_was_sent(tmp_path: Path) -> None:
    """The history of a call projects to the request that was sent, also where a turn was made elsewhere (7.11).

    The turn of another rollout of the same scope is replayed natively: reasoning, call, message, training fields.
    """
    output = [
        {"id": "rs_9", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"id": "fc_9", "type": "function_call", "call_id": "c", "name": "f", "arguments": "{ }", **TRAINING},
    ]
    elsewhere = capture({"id": "resp_9", "output": output}, SCOPE)
    result = {"role": "tool", "tool_call_id": "c", "content": "3"}
    with scripted([said()]) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        bench.call([USER, elsewhere, result])
    with bench.view() as view:
        assert view.request(0) == heard.bodies[0]
        assert carries_training(heard.bodies[0])
        assert project(view.history(0)[:-1], SCOPE).body() == heard.bodies[0]


def test_the_history_of_each_call_projects_to_its_request(tmp_path: Path) -> None:
    """`RolloutView.history` of a call, less the turn it made, is the history that its request was made of (7.11)."""

    async def agent(policy: PolicyClient) -> None:
        call = {"id": "prefill_1", "function": {"name": "f", "arguments": "{}"}}
        history: list[Entry] = [
            {"role": "system", "content": "Be exact."},
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            RuntimeEntry({"role": "assistant", "content": "Look:", "tool_calls": [call]}),
            {"role": "tool", "tool_call_id": "prefill_1", "content": "4"},
            {"role": "metadata", "nooa_cache_boundary": True},
            {"role": "assistant", "reasoning_content": "So", "content": "example", "tool_calls": [call]},
        ]
        for _ in range(3):
            turn = await policy.call(history)
            history += [turn, {"role": "developer", "content": "Go on."}, {"type": "item_reference", "id": "x"}]
        await policy.call([*history, turn.edit(0, text="z"), USER])

    with scripted([said()]) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        bench.run(agent, prefix_guard="send")
    with bench.view() as view:
        for number, body in enumerate(heard.bodies):
            assert view.request(number) == body
            *history, turn = view.history(number)
            assert project(history, SCOPE).body() == body
            assert isinstance(turn, Turn)


def test_routes_alone_are_withheld_too(tmp_path: Path) -> None:
    """Where training fields are withheld no item of the assistant has any, whichever it had (contract 7.8)."""
    routed = {"type": "message", "role": "assistant", "content": [], "routed_experts": [[[0, 1]]]}

    async def agent(policy: PolicyClient) -> None:
        turn = await policy.call([USER])
        await policy.call([routed, USER, turn, USER, turn.edit(0, text="z"), USER])

    with scripted([said()]) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        bench.run(agent)
    assert not carries_training(heard.bodies[1])
    with bench.view() as view:
        assert view.request(1) == heard.bodies[1]


def ended(bench: Bench, error: BaseException | None) -> Outcome:
    with bench.view() as view:
        return outcome(view, error)


def raised(agent: Any) -> TurnkeepError:
    with pytest.raises(TurnkeepError) as caught:
        agent()
    return caught.value


def test_a_spent_budget_at_the_top_is_graded(tmp_path: Path) -> None:
    """A budget that is spent ends the rollout graded, with its reason, also as the cause of another error (7.10)."""
    with serving(tmp_path) as bench:
        bench.call(budget=1)
        error = raised(bench.call)
    assert isinstance(error, BudgetExhausted)
    assert ended(bench, error)[:2] == (True, "policy_budget_exceeded")
    wrapped = RuntimeError("the agent gave up")
    wrapped.__cause__ = error
    assert ended(bench, wrapped)[:2] == (True, "policy_budget_exceeded")
    grouped = ExceptionGroup("both", [wrapped, ExceptionGroup("inner", [InvalidPolicyOutput("no")])])
    assert ended(bench, grouped)[:2] == (True, "policy_budget_exceeded")
    assert ended(bench, ExceptionGroup("both", [wrapped, ValueError("mine")]))[:2] == (False, "error")
    assert ended(bench, None) == (True, None, None)


def test_invalid_output_at_the_top_is_graded(tmp_path: Path) -> None:
    """Output that fails its schema ends the rollout graded, with its reason (6.3, 7.10)."""
    with serving(tmp_path) as bench:
        turn = bench.call()
        error = raised(lambda: parse_output(turn, None, {"type": "integer"}))
    assert isinstance(error, InvalidPolicyOutput)
    assert ended(bench, error)[:2] == (True, "invalid_policy_output")
    both = BudgetExhausted("spent")
    both.__context__ = error
    assert ended(bench, both)[:2] == (True, "policy_budget_exceeded")
    error.__cause__ = BudgetExhausted("spent")
    assert ended(bench, error)[:2] == (True, "policy_budget_exceeded")


def test_other_errors_at_the_top_are_not_graded(tmp_path: Path) -> None:
    """Any other error at the top, and an ungradable state at the end, make a row that is not graded (7.10)."""
    with serving(tmp_path, faults=["bad-json@1"]) as bench:
        bench.call()
        assert ended(bench, KeyError("x")) == (False, "error", "KeyError: 'x'")
        error = raised(bench.call)
    assert isinstance(error, TransportFailure)
    for last in (error, None, BudgetExhausted("spent"), InvalidPolicyOutput("no")):
        assert ended(bench, last)[:2] == (False, "ungradable")


def test_a_circle_of_causes_ends(tmp_path: Path) -> None:
    """Errors that are each other's causes are looked through once (contract 7.10)."""
    with serving(tmp_path) as bench:
        bench.call()
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert ended(bench, one)[:2] == (False, "error")
