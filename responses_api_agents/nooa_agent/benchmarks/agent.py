"""A complete NOOA agent checkpoint: a CodeAct method of as many policy calls as there are turns, kept and restored.

Runs in a process of its own, since importing NOOA takes seconds.
"""

# mypy: disable-error-code="empty-body"

import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from turnkeep import PolicyClient, Rollout, open_store

from .checks import check_carried
from .fresh import io_written, most_resident, run_fresh
from .operations import SCOPE, Tell
from .server import serving
from .workload import Workload

type Embed = Literal["archive", "reference"]


def measure_agent(workload: Workload, turns: int, folder: str | None, tell: Tell) -> dict[str, Any]:
    """For turns kept whole in NOOA's events, and by reference: seconds and bytes of keeping and of restoring."""
    measured = {}
    with serving(workload, turns) as url:
        for embed in ("archive", "reference"):
            tell(f"a NOOA agent of {turns} turns, embed={embed!r} (importing NOOA takes seconds)")
            measured[embed] = run_fresh(live_and_restore, workload, turns, url, embed, folder)
    return measured


def live_and_restore(workload: Workload, turns: int, url: str, embed: Embed, folder: str | None) -> dict[str, Any]:
    """Let an agent run, checkpoint it both ways, restore each, and hold the restored agent's request to the bodies."""
    from turnkeep.nooa import TurnkeepLLM, restore_snapshot, save_snapshot  # first: it keeps litellm off the network

    # isort: split
    from nooa.storage import SQLiteStorageManager

    import nooa

    class Worker(nooa.Agent):  # type: ignore[misc]
        """You do as you are told."""

        async def work(self, goal: str) -> int:
            """Do this and give the number of the last step: {goal}"""
            ...  # noqa: PIE790 - that is what makes it a method that NOOA generates

    seconds: dict[str, float] = {}

    def timed(name: str, operation: Callable[[], Any]) -> Any:
        begun = time.perf_counter()
        value = operation()
        seconds[name] = time.perf_counter() - begun
        return value

    async def ask(agent: Any, policy: PolicyClient) -> Any:
        async with policy:
            return await agent.work("all of it")

    def again(store: Any, name: str, restore: Callable[[Any, Any], None], storage: Any) -> dict[str, int]:
        with Rollout.open(store, store.rollouts()[0], scope=SCOPE) as rollout:
            policy = PolicyClient(f"{url}/last", rollout, prefix_guard="send")
            llm = TurnkeepLLM(policy, embed=embed)
            agent = llm.attach(Worker(llm=llm, storage=storage))
            timed(f"restore from {name}", lambda: restore(agent, storage))
            number = rollout.used
            timed(f"first call after it ({name})", lambda: asyncio.run(ask(agent, policy)))
            return check_carried(workload.bodies(turns), rollout.request(number))

    with tempfile.TemporaryDirectory(prefix="turnkeep-", dir=folder) as where:
        place = Path(where)
        with open_store(place / "r.db") as store:
            begun = io_written()
            with Rollout.open(store, "r-1", scope=SCOPE) as rollout, SQLiteStorageManager(str(place / "n.db")) as kept:
                policy = PolicyClient(f"{url}/{embed}", rollout)
                llm = TurnkeepLLM(policy, embed=embed)
                agent = llm.attach(Worker(llm=llm, storage=kept))
                timed("the run", lambda: asyncio.run(ask(agent, policy)))
                timed("snapshot into NOOA's SQLite", lambda: kept.save_snapshot(agent))
                text = timed("snapshot as JSON", lambda: json.dumps(save_snapshot(agent)))
                calls = rollout.used
            ended, most = io_written(), most_resident()  # before the checks, which build lists
            sizes = {path.name: path.stat().st_size for path in place.iterdir()}
            with SQLiteStorageManager(str(place / "n.db")) as kept:
                by_database = again(store, "NOOA's SQLite", lambda a, s: s.restore_latest_snapshot(a), kept)
            snapshot = json.loads(text)
            by_snapshot = again(store, "JSON", lambda a, _: restore_snapshot(snapshot, a), None)
    return {
        "calls": calls,
        "seconds": seconds,
        "nooa_database": sum(size for name, size in sizes.items() if name.startswith("n.db")),
        "turnkeep_store": sum(size for name, size in sizes.items() if name.startswith("r.db")),
        "json_snapshot": len(text),
        "disk": None if begun is None or ended is None else ended.disk - begun.disk,
        "most_resident": most,
        "checked": {"NOOA's SQLite": by_database, "JSON": by_snapshot},
    }
