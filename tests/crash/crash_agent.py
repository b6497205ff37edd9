"""An agent that talks to the embedded policy, as a child to be killed and as the same thing run whole.

It makes `STEPS` calls one after the other, with a tool marked `once` between them that leaves a line in a file, and
then three calls at once. Started again it begins from the beginning, on a rollout opened for a re-run.
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx  # noqa: F401 - so that it is imported before the kill is timed

from turnkeep.errors import UnfinishedTool
from turnkeep.rollout.policy import PolicyClient
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.tools import once_sync
from turnkeep.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from turnkeep.history.projection import Entry

SCOPE = 'nemo-gym/responses/v1:["policy_model", "gym-policy"]'
STEPS = 5
CALLS = STEPS + 3
SCRIPT: list[Any] = [
    [{"reasoning": f"Step {step}."}, {"call": "note", "arguments": {"step": step}}] for step in range(STEPS)
]


async def run_agent(url: str, path: Path, effects: Path, say: Callable[[Any], None]) -> None:
    """Run to the end; `say` is told the number of each call whose turn was returned."""
    with SqliteStore(path) as store, Rollout.open(store, "r", scope=SCOPE, rerun=True) as rollout:
        async with PolicyClient(url, rollout) as policy:
            policy._client()  # making it takes longer than a call: not the time that the kills are to fall into
            say("ready")
            history: list[Entry] = [{"role": "user", "content": "Begin."}]
            for step in range(STEPS):
                turn = await policy.call(history, {"temperature": 1.0})
                say(rollout.number_of(turn))
                output = once_sync(rollout, "note", {"step": step}, lambda step=step: note(effects, step))  # type: ignore[misc]
                call_id = turn.tool_calls[0].id
                history += [turn, {"role": "tool", "tool_call_id": call_id, "content": output}]
            last = [[*history, {"role": "user", "content": f"Part {part}?"}] for part in range(3)]
            for answer in asyncio.as_completed([policy.call(entries) for entries in last]):
                say(rollout.number_of(await answer))
            say("finished")


def note(effects: Path, step: int) -> str:
    """Leave a line, as a tool that must not run twice."""
    with effects.open("a") as file:
        file.write(f"{step}\n")
    return f"noted {step}"


def main(url: str, path: str, effects: str) -> None:
    """Run as a child."""
    try:
        asyncio.run(run_agent(url, Path(path), Path(effects), lambda words: print(words, flush=True)))
    except UnfinishedTool as error:
        print("unfinished", error.index, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
