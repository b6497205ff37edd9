"""Policy calls end to end: HTTP out and in, and the commits; where their time goes, and eight rollouts at once.

Nothing of turnkeep is replaced: the rollout is a `Rollout` whose public methods also note when they began and ended,
and the server notes when it had the request. What lies between two notes is a stage.
"""

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turnkeep import PolicyClient, Rollout, Turn, open_store

from .checks import check_replayed
from .fresh import io_written, most_resident, resident, run_fresh
from .operations import SCOPE, Tell
from .server import serving, times
from .workload import Workload

STAGES = (
    "project, and the request's digest",
    "charge and record (commit)",
    "send",
    "receive",
    "keep the answer (commit)",
    "capture",
    "keep the turn (commit)",
    "the rest",
)

GO_ON = {"role": "user", "content": "Go on."}


class NotingRollout(Rollout):
    """A rollout that notes when the steps of a policy call began and ended."""

    notes: list[float]

    @contextmanager
    def _noted(self) -> Iterator[None]:
        self.notes.append(time.perf_counter())
        yield
        self.notes.append(time.perf_counter())

    def begin_call(self, *args: Any, **kwargs: Any) -> int:
        """Charge and keep the request."""
        with self._noted():
            return super().begin_call(*args, **kwargs)

    def answer_call(self, *args: Any, **kwargs: Any) -> Any:
        """Keep the response; gives what the scan of it found, which capture goes on from."""
        with self._noted():
            return super().answer_call(*args, **kwargs)

    def add_turn(self, *args: Any, **kwargs: Any) -> Turn:
        """Keep the turn."""
        with self._noted():
            return super().add_turn(*args, **kwargs)


def measure_one_call(workload: Workload, turns: int, repeats: int, folder: str | None, tell: Tell) -> dict[str, Any]:
    """Seconds of each stage of the first, second and last policy call of a rollout: medians of `repeats` rollouts.

    The first call also makes the HTTP client and its connection.
    """
    with serving(workload, turns) as url:
        rollouts = []
        for number in range(repeats):
            tell(f"one policy call: rollout {number + 1} of {repeats}, {turns} turns")
            rollouts.append(run_fresh(stages_of_rollout, workload, turns, f"{url}/one{number}", folder))
    calls = {
        str(turn + 1): {
            stage: statistics.median(rollout["stages"][turn][place] for rollout in rollouts)
            for place, stage in enumerate(STAGES)
        }
        for turn in sorted({0, min(1, turns - 1), turns - 1})
    }
    commits = [stages[place] for rollout in rollouts for stages in rollout["stages"] for place in (1, 4, 6)]
    return {
        "seconds_by_turn": calls,
        "request_bytes": rollouts[0]["request_bytes"],
        "commit": {"median": statistics.median(commits), "most": max(commits), "count": len(commits)},
        "disk": rollouts[0]["disk"],
        "checked": rollouts[0]["checked"],
    }


def stages_of_rollout(workload: Workload, turns: int, url: str, folder: str | None) -> dict[str, Any]:
    """One rollout, in a fresh process: the seconds of each stage of each call, and that the last request is exact."""
    with tempfile.TemporaryDirectory(prefix="turnkeep-", dir=folder) as place:
        begun = io_written()
        with open_store(Path(place) / "r.db") as store, NotingRollout.open(store, "r-1", scope=SCOPE) as rollout:
            spans = asyncio.run(_noted_calls(rollout, url, turns))
            sent = rollout.request(turns - 1)
        ended = io_written()
    seen = times(url)
    told = [_stages(span, server) for span, server in zip(spans, seen, strict=True)]
    return {
        "stages": told,
        "request_bytes": len(sent),
        "disk": None if begun is None or ended is None else ended.disk - begun.disk,
        "checked": _check_sent(workload, turns, sent),
    }


async def _noted_calls(rollout: NotingRollout, url: str, turns: int) -> list[list[float]]:
    history: list[Any] = [GO_ON]
    spans = []
    async with PolicyClient(url, rollout) as policy:
        for _ in range(turns):
            rollout.notes = [time.perf_counter()]
            turn = await policy.call(history)
            spans.append([*rollout.notes, time.perf_counter()])
            history += [turn, GO_ON]
    return spans


def _stages(notes: list[float], server: list[float]) -> list[float]:
    """The stages' seconds from the client's eight notes and the server's three."""
    start, charge, charged, answered, kept, captured, stored, end = notes
    _, received, replying = server
    between = (
        charge - start,
        charged - charge,
        received - charged,
        answered - replying,
        kept - answered,
        captured - kept,
        stored - captured,
    )
    return [*between, end - start - sum(between)]


def _check_sent(workload: Workload, turns: int, sent: bytes) -> dict[str, int]:
    """The request of the last call has every turn before it; what the caller put between is taken out by its text."""
    items = [item for item in json.loads(sent)["input"] if item != GO_ON]
    return check_replayed(workload.bodies(turns)[: turns - 1], json.dumps({"input": items}).encode())


def measure_concurrent(workload: Workload, turns: int, count: int, folder: str | None, tell: Tell) -> dict[str, Any]:
    """`count` rollouts in one process and one store, all at once, and one alone beside them."""
    measured = {}
    with serving(workload, turns, count) as url:
        for together in (1, count):
            tell(f"{together} rollouts at once, {turns} turns each")
            measured[str(together)] = run_fresh(run_together, url, turns, together, folder)
    return measured


def run_together(url: str, turns: int, count: int, folder: str | None) -> dict[str, Any]:
    """Rollouts at once, in a fresh process: seconds of the whole and of each call, resident memory, bytes written."""

    async def call_all(rollout: Rollout, number: int) -> list[float]:
        history: list[Any] = [GO_ON]
        seconds = []
        async with PolicyClient(f"{url}/{count}-{number}", rollout) as policy:
            for _ in range(turns):
                begun = time.perf_counter()
                turn = await policy.call(history)
                seconds.append(time.perf_counter() - begun)
                history += [turn, GO_ON]
        return seconds

    async def everything(rollouts: list[Rollout]) -> list[float]:
        done = await asyncio.gather(*(call_all(rollout, number) for number, rollout in enumerate(rollouts)))
        return sorted(second for seconds in done for second in seconds)

    with (
        tempfile.TemporaryDirectory(prefix="turnkeep-", dir=folder) as place,
        open_store(Path(place) / "r.db") as store,
    ):
        rollouts = [Rollout.open(store, f"r-{number}", scope=SCOPE) for number in range(count)]
        before, begun = io_written(), time.perf_counter()
        rss = resident()
        calls = asyncio.run(everything(rollouts))
        wall = time.perf_counter() - begun
        after = io_written()
        for rollout in rollouts:
            rollout.close()
    return {
        "seconds": wall,
        "calls": len(calls),
        "call_median": statistics.median(calls),
        "call_95": calls[int(len(calls) * 0.95)],
        "disk": None if before is None or after is None else after.disk - before.disk,
        "resident_before": rss,
        "most_resident": most_resident(),
    }
