"""How the public API is used, with every result given the type a user may rely on. Lint checks it; a test runs it."""

import asyncio
from pathlib import Path
from typing import Any, Literal, assert_type

import turnkeep as tk

RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "model": "policy",
    "output": [
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": '{"metres": 23}', "annotations": []}],
            "prompt_token_ids": [1, 2],
            "generation_token_ids": [3],
            "generation_log_probs": [-0.5],
        }
    ],
}


def capture_and_project(scope: tk.Scope) -> tk.Turn:
    """A response becomes a turn, and a turn becomes a request."""
    turn = tk.capture(RESPONSE, scope=scope)
    assert_type(turn.content, str)
    assert_type(turn.scope, str | None)
    assert_type(turn.tool_calls, tuple[tk.ToolCall, ...])
    for part in turn.parts:
        assert_type(part, tk.AssistantText | tk.AssistantReasoning | tk.ToolCall)
        assert_type(part.kind, Literal["text", "reasoning", "tool_call"])
        assert_type(part.native, tk.Item | None)
    request = tk.project([{"role": "user", "content": "Oslo?"}, tk.RuntimeEntry({"role": "assistant"}), turn], scope)
    assert_type(request, tk.Request)
    assert_type(request.gaps, tuple[tk.Gap, ...])
    assert_type(request.body({"max_output_tokens": 64}), bytes)
    assert_type(turn.edit(0, text="other"), tk.Turn)
    assert_type(tk.loads_turn(tk.dumps_turn(turn)), tk.Turn)
    assert_type(tk.from_json(tk.to_json(turn)), tk.Turn)
    tk.parse_output(turn, RESPONSE, {"type": "object"})
    return turn


def keep(path: Path, turn: tk.Turn) -> tk.Outcome:
    """A rollout is written by one, read by any."""
    with tk.open_store(path) as store:
        with tk.Rollout.open(store, "r-1", scope=turn.scope, max_policy_calls=2) as rollout:
            assert_type(rollout, tk.Rollout)
            assert_type(rollout.add_turn(turn), tk.Turn)
            rollout.add_gap("mine", detail="What it means.")
            tk.once_sync(rollout, "order", {"place": "Oslo"}, lambda: "ordered")
        view = tk.RolloutView(store, "r-1")
        assert_type(view.turns, tuple[tk.Turn, ...])
        assert_type(view.gradable, bool)
        assert_type(tk.to_training_samples(view), list[tk.TrainingSample])
        try:
            tk.RolloutView(store, "r-2")
        except tk.UnknownRollout as error:
            assert_type(error.rollout, str | None)
        return tk.outcome(view)


async def refused_before_anything_is_sent(path: Path) -> int | None:
    """A policy call whose history is malformed says which entry it is."""
    made_up = tk.MadeUpIds(patterns=("call_[0-9a-f]{8}",))
    with tk.open_store(path) as store, tk.Rollout.open(store, "r-3") as rollout:
        async with tk.PolicyClient("http://127.0.0.1:9", rollout, sampling={"top_p": 1}, made_up=made_up) as policy:
            try:
                assert_type(await policy.call([{"role": "tool", "content": "no id"}]), tk.Turn)
            except tk.PreparationFailure as error:
                return error.entry
    return None


def main(folder: Path) -> None:
    """Run all of it."""
    turn = capture_and_project(tk.Scope("policy_model"))
    assert keep(folder / "r.db", turn).graded
    assert asyncio.run(refused_before_anything_is_sent(folder / "r.db")) == 0
