"""Why exact history matters: log probs can be computed again from what was kept, and only from that."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnkeep import PolicyClient, Rollout, RolloutView, Scope, Turn, open_store
from turnkeep.serve.model import Policy
from turnkeep.serve.script import make_script
from turnkeep.serve.server import running_policy
from turnkeep.serve.tokens import decode, encode, to_text

SCOPE = Scope("policy_model")
SEED = 11
SCRIPT = make_script(
    [
        [{"reasoning": "Which city?"}, {"text": ["Oslo lies ", "by the sea."]}],
        [{"text": "It is cold there."}, {"call": "weather", "arguments": {"city": "Oslo"}}],
        [{"text": "Minus three degrees."}],
    ]
)


def history_after(turns: list[Turn]) -> list[Any]:
    """What is asked after each turn, put between the turns."""
    asked: list[Any] = [{"role": "user", "content": "Tell me of Oslo."}]
    for number, turn in enumerate(turns):
        call = next(iter(turn.tool_calls), None)
        answer = {"role": "tool", "tool_call_id": call.id, "content": "-3"} if call else None
        asked += [turn, answer or {"role": "user", "content": f"And more ({number})?"}]
    return asked


def collect(path: Path) -> None:
    """A rollout of three turns, native all the way, kept at `path`."""

    async def talk(url: str, rollout: Rollout) -> None:
        turns: list[Turn] = []
        async with PolicyClient(url, rollout) as policy:
            for _ in range(3):
                turns.append(await policy.call(history_after(turns)))

    with (
        running_policy(policy=Policy(SEED), script=SCRIPT) as url,
        open_store(path) as store,
        Rollout.open(store, "r", scope=SCOPE) as rollout,
    ):
        asyncio.run(talk(url, rollout))


def carrier(turn: Turn) -> dict[str, Any]:
    """The arrays of the item that has them."""
    native = turn.parts[-1].native
    assert native is not None
    return dict(native.arrays)


@pytest.fixture(scope="module")
def restored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Turn, ...]:
    """The turns of such a rollout, read back from its file."""
    path = tmp_path_factory.mktemp("recompute") / "rollouts.db"
    collect(path)
    with open_store(path) as store:
        return RolloutView(store, "r").turns


def test_a_restored_rollouts_log_probs_are_what_its_ids_and_experts_give(restored: tuple[Turn, ...]) -> None:
    """Scoring the kept ids, routed as kept, gives the kept log probs bit for bit (contract 1.6)."""
    policy = Policy(SEED)
    for turn in restored:
        arrays = carrier(turn)
        prompt, generated = arrays["prompt_token_ids"].tolist(), arrays["generation_token_ids"].tolist()
        scored, _ = policy.score(prompt + generated, len(prompt), experts=arrays["routed_experts"])
        assert scored.tobytes() == arrays["generation_log_probs"].tobytes()


def test_other_experts_give_other_log_probs(restored: tuple[Turn, ...]) -> None:
    """The routed experts are part of what was sampled: with others the same ids score otherwise."""
    arrays = carrier(restored[1])
    prompt, generated = arrays["prompt_token_ids"].tolist(), arrays["generation_token_ids"].tolist()
    other = ((arrays["routed_experts"].astype(np.int64) + 1) % 8).astype(np.uint8)
    scored, _ = Policy(SEED).score(prompt + generated, len(prompt), experts=other)
    assert (scored != arrays["generation_log_probs"]).any()


def test_retokenised_history_gives_other_log_probs(restored: tuple[Turn, ...]) -> None:
    """The same text, cut into tokens anew, is another history: its log probs are not those sampled (contract 4.1)."""
    policy = Policy(SEED)
    arrays = carrier(restored[2])
    prompt, generated = arrays["prompt_token_ids"].tolist(), arrays["generation_token_ids"].tolist()
    again = encode(to_text(decode(prompt)))
    assert decode(again) == decode(prompt)
    assert list(again) != prompt
    scored, _ = policy.score([*again, *generated], len(again))
    assert (scored != arrays["generation_log_probs"]).any()


def test_a_portable_replay_is_retokenised_by_the_server_and_a_native_one_is_not(
    restored: tuple[Turn, ...], tmp_path: Path
) -> None:
    """A history without ids comes back under another prompt; with ids the prompt goes on from the kept tokens."""

    async def prompt_after(url: str, turns: list[Turn], scope: Scope) -> list[int]:
        with open_store("memory:") as store, Rollout.open(store, "r", scope=scope) as rollout:
            async with PolicyClient(url, rollout) as policy:
                answer = await policy.call(history_after(turns))
        ids: list[int] = carrier(answer)["prompt_token_ids"].tolist()
        return ids

    kept = carrier(restored[1])
    before = kept["prompt_token_ids"].tolist() + kept["generation_token_ids"].tolist()
    with running_policy(policy=Policy(SEED), script=SCRIPT) as url:
        native = asyncio.run(prompt_after(url, list(restored[:2]), SCOPE))
        portable = asyncio.run(prompt_after(url, list(restored[:2]), Scope("another")))
    assert native[: len(before)] == before
    assert portable[: len(before)] != before
