"""Rollouts collected over HTTP from the embedded policy: what the doctor sees of calls, results and requests."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from turnkeep import Finding, PolicyClient, Rollout, RolloutView, Scope, Turn, TurnkeepError, check_rollout, open_store
from turnkeep.history.projection import Entry
from turnkeep.serve.model import Policy
from turnkeep.serve.respond import Options
from turnkeep.serve.script import make_script
from turnkeep.serve.server import running_policy

SCOPE = Scope("policy_model")
POLICY = Policy()
USER = {"role": "user", "content": "Begin."}

type Reply = Callable[[Turn], Sequence[Entry]]
"""What an agent puts into the history after a turn: the turn itself, or what stands for it, and what was answered."""


class Talk(NamedTuple):
    """A store with one rollout, `r`."""

    path: Path

    def check(self, profile: str | None = None) -> list[Finding]:
        """What the doctor finds."""
        with open_store(self.path) as store:
            return check_rollout(RolloutView(store, "r"), profile)


def results(turn: Turn) -> Sequence[Entry]:
    """The turn, and a result for each of its calls, in order; a word where there are none."""
    given = [{"role": "tool", "tool_call_id": call.id, "content": f"{call.name} done"} for call in turn.tool_calls]
    return [turn, *given] if given else [turn, {"role": "user", "content": "Go on."}]


def talk(
    folder: Path,
    steps: Any,
    replies: Sequence[Reply],
    *,
    params: dict[str, Any] | None = None,
    faults: Sequence[str] = (),
    served: Options | None = None,
    **options: Any,
) -> Talk:
    """A rollout of one policy call more than there are replies; an error of a call ends it."""

    async def run(url: str, rollout: Rollout) -> None:
        history: list[Entry] = [{"role": "system", "content": "Be brief."}, USER]
        async with PolicyClient(url, rollout, retries=0, **options) as policy:
            for reply in (*replies, results):
                history += reply(await policy.call(history, params or {}))

    path = folder / "rollouts.db"
    with (
        running_policy(policy=POLICY, script=make_script(steps), faults=faults, options=served) as url,
        open_store(path) as store,
        Rollout.open(store, "r", scope=SCOPE) as rollout,
        suppress(TurnkeepError),
    ):
        asyncio.run(run(url, rollout))
    return Talk(path)
