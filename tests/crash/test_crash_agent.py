import asyncio
import hashlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from crash_agent import CALLS, SCRIPT, STEPS, run_agent
from crash_agent import __file__ as agent

from turnkeep.rollout.record import Rollout
from turnkeep.rollout.tools import settle_tool
from turnkeep.rollout.verify import verify_rollout
from turnkeep.rollout.view import RolloutView
from turnkeep.serve.respond import Options
from turnkeep.serve.script import make_script
from turnkeep.serve.server import running_policy
from turnkeep.store.sqlite import SqliteStore


@pytest.fixture
def url() -> Iterator[str]:
    """A policy that answers after 10 ms, so that a kill often falls into a call."""
    with running_policy(script=make_script({"steps": SCRIPT}), options=Options(delay=0.01)) as running:
        yield running


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The turns of a run that nobody killed: digest and count."""
    folder = tmp_path_factory.mktemp("whole")
    with running_policy(script=make_script({"steps": SCRIPT})) as url:
        asyncio.run(run_agent(url, folder / "a.db", folder / "effects", lambda _: None))
    with SqliteStore(folder / "a.db") as store:
        turns = [turn.digest for turn in RolloutView(store, "r").turns]
    assert len(turns) == CALLS
    return {digest: turns.count(digest) for digest in turns}


def killed_run(url: str, folder: Path, seconds: float) -> list[str]:
    """What an agent said before it was killed, `seconds` after it was ready."""
    command = [sys.executable, agent, url, str(folder / "a.db"), str(folder / "effects")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = [child.stdout.readline()]
        time.sleep(seconds)
        child.kill()
        said += child.stdout.readlines()
    return [line.strip() for line in said]


def received(url: str) -> list[dict[str, Any]]:
    """What the server noted of each request that it has read, once it is at rest."""
    deadline = time.monotonic() + 10
    while True:
        log: list[dict[str, Any]] = httpx.get(f"{url}/stats").json()["log"]
        if all(entry["status"] is not None for entry in log) or time.monotonic() > deadline:
            return [entry for entry in log if entry["sha256"] is not None]
        time.sleep(0.01)


def check(url: str, path: Path, said: list[str]) -> None:
    """Hold what is kept to what the agent said and to what the server received."""
    with SqliteStore(path) as store:
        view = RolloutView(store, "r")
        assert list(verify_rollout(view)) == []
        assert view.used == len(view.calls)
        told = [int(word) for word in said if word.isdigit()]
        assert all(turn < view.turn_count for turn in told)
        bodies = [view.request(call.number) for call in view.calls]
        digests = [hashlib.sha256(body).hexdigest() for body in bodies]
        sent = [entry["sha256"] for entry in received(url)]
        assert set(sent) <= set(digests), "something was sent that was not recorded before"
        for call, digest in zip(view.calls, digests, strict=True):
            if call.in_flight:
                assert view.response(call.number) is None
            else:
                assert digest in sent
                assert view.response(call.number)
        assert sum(call.turn is None for call in view.calls) <= (3 if len(view.calls) > STEPS else 1)


def settle(path: Path, said: list[str]) -> None:
    """Settle the tool that an agent could not go on from, as a person would who looks at what it did."""
    found = [int(line.split()[1]) for line in said if line.startswith("unfinished")]
    for number in found:
        with SqliteStore(path) as store, Rollout.open(store, "r", rerun=True) as rollout:
            step = rollout.tools()[number]["arguments"]["step"]
            settle_tool(rollout, number, f"noted {step}")  # whether it did or not: the runs are to be alike


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_agent_goes_on_from_its_evidence(
    url: str, tmp_path: Path, uninterrupted: dict[str, int], seed: int
) -> None:
    """An agent killed again and again ends with the turns of one that was not (contract 7.1, 9.2, 10.1, 10.3, 10.5).

    After each kill: calls charged are calls recorded, what was sent had been recorded and is rebuilt byte for byte,
    every returned turn is there, what was in flight has its request and no response, and no tool ran twice.
    """
    path, effects, rng = tmp_path / "a.db", tmp_path / "effects", random.Random(seed)
    for kills in range(30):
        said = killed_run(url, tmp_path, rng.uniform(0, 0.6) * 1.2**kills)  # on a busy machine too it ends some time
        check(url, path, said)
        settle(path, said)
        if "finished" in said:
            break
    assert said[-1] == "finished"
    with SqliteStore(path) as store:
        view = RolloutView(store, "r")
        turns = [turn.digest for turn in view.turns]
        assert {digest: turns.count(digest) for digest in turns} == uninterrupted
        assert (view.used, len(view.calls), view.difference, view.gradable) == (CALLS, CALLS, None, True)
    steps = effects.read_text().split()
    assert len(steps) == len(set(steps)) <= STEPS


def test_calls_in_flight_together_are_all_there(tmp_path: Path, uninterrupted: dict[str, int]) -> None:
    """Three calls in flight at the kill are three requests without a response, each sent again once (7.1, 10.3)."""
    with running_policy(
        script=make_script({"steps": SCRIPT}), faults=[f"slow@{STEPS},{STEPS + 1},{STEPS + 2}:30"]
    ) as url:
        command = [sys.executable, agent, url, str(tmp_path / "a.db"), str(tmp_path / "effects")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            while httpx.get(f"{url}/stats").json()["requests"] < CALLS:
                assert child.poll() is None, "the agent ended before all its calls were made"
                time.sleep(0.01)
            child.kill()
        with SqliteStore(tmp_path / "a.db") as store:
            calls = RolloutView(store, "r").calls
            assert [call.in_flight for call in calls] == [False] * STEPS + [True] * 3
            sent = [call.request.sha256 for call in calls]
    with running_policy(script=make_script({"steps": SCRIPT})) as url:
        asyncio.run(run_agent(url, tmp_path / "a.db", tmp_path / "effects", lambda _: None))
        assert sorted(entry["sha256"] for entry in received(url)) == sorted(sent[STEPS:])
    with SqliteStore(tmp_path / "a.db") as store:
        view = RolloutView(store, "r")
        assert {turn.digest for turn in view.turns} == set(uninterrupted)
        assert (view.used, len(view.calls)) == (CALLS, CALLS)
