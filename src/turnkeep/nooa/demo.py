"""The agent of `turnkeep demo`, and the process that it runs and is killed in.

`python -m turnkeep.nooa.demo` is that process: it says `ready` once NOOA is imported, with the seconds that a
practice rollout took where one was asked for; begins when a line comes in; and prints one JSON line with what the agent
returned.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from nooa.storage import SQLiteStorageManager
from pydantic import BaseModel

import nooa
from turnkeep.history.scope import Scope
from turnkeep.nooa.llm import MADE_UP_IDS, TurnkeepLLM
from turnkeep.nooa.snapshot import restore_snapshot, save_snapshot
from turnkeep.rollout.policy import PolicyClient
from turnkeep.rollout.record import Rollout
from turnkeep.store.base import Store
from turnkeep.store.open import open_store

SCOPE = Scope("policy_model")


class Summary(BaseModel):
    """What the surveyor says of the whole."""

    places: int
    highest: str


class Surveyor(nooa.Agent):  # type: ignore[misc]
    """You are a surveyor. You look up how high places lie."""

    def __init__(self, llm: TurnkeepLLM, **options: Any) -> None:
        super().__init__(llm=llm, **options)
        self.notes: dict[str, int] = {}

    async def height(self, place: str) -> int:
        """The height of a place in metres above the sea."""
        return sum(place.encode()) * 37 % 4000

    async def note(self, place: str, metres: int) -> int:
        """Write a height down; gives how many are written down by now."""
        self.notes[place] = metres
        return len(self.notes)

    async def survey(self, goal: str) -> int:  # type: ignore[empty-body] # NOOA makes it
        """Do this and give how many places were looked up: {goal}"""
        ...

    @nooa.strategy(nooa.PredictStrategy())  # type: ignore[untyped-decorator]
    async def summarize(self) -> Summary:  # type: ignore[empty-body]
        """Say how many places you looked up and which lies highest."""
        ...


async def run_survey(url: str, rollout: Rollout, database: Path | None) -> tuple[Any, Any]:
    """Run the agent through its method; gives the result and NOOA's snapshot. `database` is NOOA's own storage."""
    async with PolicyClient(url, rollout, made_up=MADE_UP_IDS) as policy:
        llm = TurnkeepLLM(policy)
        storage = None if database is None else SQLiteStorageManager(str(database))
        agent = llm.attach(Surveyor(llm=llm, storage=storage))
        result = await agent.survey("look up some places")
        snapshot = save_snapshot(agent)
        if storage is not None:
            storage.save_snapshot(agent)
            storage.close()
        return result, snapshot


async def ask_restored(url: str, rollout: Rollout, *, database: Path | None = None, snapshot: Any = None) -> Any:
    """Ask an agent restored from NOOA's storage, or from a snapshot, one more question."""
    async with PolicyClient(url, rollout, made_up=MADE_UP_IDS) as policy:
        llm = TurnkeepLLM(policy)
        if database is None:
            agent = llm.attach(Surveyor(llm=llm))
            restore_snapshot(snapshot, agent)
            return await agent.summarize()
        storage = SQLiteStorageManager(str(database))
        try:
            agent = llm.attach(Surveyor(llm=llm, storage=storage))
            storage.restore_latest_snapshot(agent)
            return await agent.summarize()
        finally:
            storage.close()


def open_demo_rollout(store: Store, rollout: str, *, rerun: bool = False) -> Rollout:
    """The demo's rollout, under the demo's scope."""
    return Rollout.open(store, rollout, scope=SCOPE, rerun=rerun)


def practise(url: str) -> float:
    """How long the agent's rollout takes, in seconds: run once, with stores of its own that are thrown away."""
    with tempfile.TemporaryDirectory(prefix="turnkeep-") as folder:
        begun = time.monotonic()
        with open_store(Path(folder) / "r.db") as store, open_demo_rollout(store, "practice") as rollout:
            asyncio.run(run_survey(url, rollout, Path(folder) / "nooa.db"))
        return time.monotonic() - begun


def main() -> int:
    """Run the agent when told to, from its beginning; what the rollout already holds answers it."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--url", "--store", "--rollout", "--database", "--snapshot"):
        parser.add_argument(name, required=True)
    parser.add_argument("--practise", action="store_true", help="first see how long it takes")
    given = parser.parse_args()
    print(f"ready {practise(given.url) if given.practise else 0.0:.3f}", flush=True)
    if not sys.stdin.readline():
        return 1
    print("begun", flush=True)
    with open_store(given.store) as store, open_demo_rollout(store, given.rollout, rerun=True) as rollout:
        result, snapshot = asyncio.run(run_survey(given.url, rollout, Path(given.database)))
        difference = rollout.difference
    Path(given.snapshot).write_text(json.dumps(snapshot))
    print(json.dumps({"result": result, "difference": difference}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
