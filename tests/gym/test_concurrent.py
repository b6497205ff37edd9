"""Eight rollouts at once in one server: nothing of one gets into another, and one whose client goes away is let go."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
from rows import COUNTER, codes, counter_row, kept, of_the_policy, python, read, result, said
from servers import MODEL, RunningGym, running_gym

from turnkeep.errors import RolloutBusy, UnknownRollout
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.verify import verify_rollout
from turnkeep.rollout.view import RolloutView
from turnkeep.serve.respond import Options
from turnkeep.store.open import open_store
from turnkeep.wire.json import same

AT_ONCE: list[Any] = [
    [
        {"reasoning": "Count."},
        python(
            "await self.increment_counter(count=1)\nawait self.increment_counter(count=2)\n"
            "print(await self.get_counter_value())"
        ),
    ],
    [result("done")],
]
EIGHT = range(8)
LOST = 8


def row_of(number: int) -> dict[str, Any]:
    """A row whose counter begins where no other's does."""
    return counter_row(number, initial_count=1000 + 111 * number, expected_count=1003 + 111 * number)


async def lose(gym: RunningGym, store: Path) -> None:
    """Post a row, go away when its rollout has a turn, and wait until the rollout is let go."""
    async with httpx.AsyncClient(timeout=60) as client:
        posting = asyncio.ensure_future(client.post(f"{gym.agent}/run", json=row_of(LOST)))
        while turns(store, f"0-{LOST}") < 1:
            await asyncio.sleep(0.02)
        posting.cancel()
    while is_busy(store, f"0-{LOST}"):
        await asyncio.sleep(0.02)


def turns(store: Path, rollout: str) -> int:
    """How many turns a rollout has by now."""
    with open_store(store) as opened:
        try:
            return RolloutView(opened, rollout).turn_count
        except UnknownRollout:
            return 0


def is_busy(store: Path, rollout: str) -> bool:
    """Whether somebody is writing a rollout."""
    with open_store(store) as opened:
        try:
            Rollout.open(opened, rollout).close()
        except RolloutBusy:
            return True
        return False


async def run_all(gym: RunningGym, store: Path) -> list[httpx.Response]:
    """Run eight rows at once beside the one that is lost."""
    async with httpx.AsyncClient(timeout=120) as client:
        posts = [client.post(f"{gym.agent}/run", json=row_of(number)) for number in EIGHT]
        losing = asyncio.ensure_future(lose(gym, store))
        answers = await asyncio.gather(*posts)
        await losing
    return answers


def test_nothing_crosses_between_rollouts_and_a_lost_one_goes_on_later(tmp_path: Path) -> None:
    """Each has its own count, cookies, gaps and turns; one whose client went away stops, and its row finishes it."""
    store = tmp_path / "t.db"
    agent = {"store": str(store)}
    with running_gym(AT_ONCE, agent=agent, resources=COUNTER, options=Options(delay=1.0)) as gym:
        answers = asyncio.run(run_all(gym, store))
        cut = turns(store, f"0-{LOST}")
        late = read(gym.run(row_of(LOST)))
        sessions = gym.stats()["by_session"]
    rows = [read(answer) for answer in answers]
    assert [(row.get("error"), row["reward"]) for row in (*rows, late)] == [(None, 1.0)] * 9
    assert cut == 1
    cookies = [{name.partition("___")[2]: value for name, value in answer.cookies.items()} for answer in answers]
    for name in (COUNTER, MODEL):
        assert len({each[name] for each in cookies}) == len(EIGHT)
    assert sum(sessions.values()) in (2 * 9, 2 * 9 + 1)  # the call that was cut off may have arrived
    assert len(sessions) == 9
    for number, row in enumerate((*rows, late)):
        with kept(store, f"0-{number}") as rollout:
            assert row["turnkeep"]["rollout"] == rollout.id
            assert same(of_the_policy(row), said(rollout))
            assert (rollout.used, rollout.difference) == (2, None)
            assert codes(row) == [gap.code for gap in rollout.gaps] == ["non_trainable_terminal_output"]
            assert list(verify_rollout(rollout)) == []
            told = rollout.request(1).decode()
            counts = [f"'count': {1003 + 111 * each}" in told for each in range(9)]
            assert counts == [each == number for each in range(9)]
