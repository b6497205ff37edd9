"""A rollout of the same identity goes on where it was cut short, and nothing sampled is sampled again."""

import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from rows import COUNTER, COUNTING, WEATHER, counter_row, kept, of_the_policy, read, said, weather_row
from servers import RunningGym, running_gym

from turnkeep.rollout.verify import verify_rollout
from turnkeep.wire.json import same


def until_policy_requests(gym: RunningGym, count: int) -> None:
    """Wait until so many requests have arrived at the policy."""
    while gym.stats()["requests"] < count:
        time.sleep(0.05)


def post_and_lose(gym: RunningGym, row: dict[str, Any]) -> threading.Thread:
    """Post a row whose answer never comes, since its server is killed."""

    def post() -> None:
        with pytest.raises(httpx.TransportError):
            gym.run(row)

    thread = threading.Thread(target=post)
    thread.start()
    return thread


def test_a_server_killed_in_a_rollout_goes_on_with_it(tmp_path: Path) -> None:
    """After SIGKILL in the third policy call, the same row is finished by a new process: the two answered calls are not
    made again, the third is sent again under its charge, and the tools run again in a newly seeded session (10.1, 10.3,
    10.5)."""
    store = tmp_path / "t.db"
    with running_gym(
        COUNTING, agent={"store": str(store)}, resources=COUNTER, faults=("slow@2:30",), in_process=False
    ) as gym:
        first = gym.child()
        lost = post_and_lose(gym, counter_row())
        until_policy_requests(gym, 3)
        first.kill()
        lost.join()
        with kept(store, "0-0") as rollout:
            assert (rollout.used, rollout.turn_count) == (3, 2)
            before = rollout.turns
        row = read(gym.child().run(counter_row()))
        stats = gym.stats()
    assert row["reward"] == 1.0
    assert stats["requests"] == 5
    hashes = [entry["sha256"] for entry in stats["log"]]
    assert hashes[2] == hashes[3]
    assert len(set(hashes)) == 4
    assert len(stats["by_session"]) == 1
    with kept(store, "0-0") as rollout:
        assert (rollout.used, rollout.turn_count, rollout.difference) == (4, 4, None)
        assert [turn.digest for turn in rollout.turns[:2]] == [turn.digest for turn in before]
        assert list(verify_rollout(rollout)) == []
        assert same(of_the_policy(row), said(rollout))
    assert (row["turnkeep"]["recorded_calls"], row["turnkeep"]["policy_calls"]) == (2, 4)


def test_a_finished_rollout_met_by_a_new_process_is_answered_from_evidence(tmp_path: Path) -> None:
    """After a restart the same row gives the same response, byte for byte, and the policy hears nothing; a later try
    counts as the same."""
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db")}, in_process=False) as gym:
        child = gym.child()
        first = read(child.run(weather_row()))
        child.kill()
        again = read(gym.child().run(weather_row(_ng_attempt_index=1)))
        asked = gym.stats()["requests"]
    assert asked == 2
    assert same(first["response"], again["response"])
    assert again["turnkeep"]["recorded_calls"] == 2


def test_a_finished_rollout_met_again_by_its_process_is_sampled_anew(tmp_path: Path) -> None:
    """A row that was answered and comes again, as in the next training step, is a new rollout: the policy is asked, and
    Gym is told the id it knows."""
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db")}) as gym:
        rows = [read(gym.run(weather_row())) for _ in range(3)]
        asked = gym.stats()["requests"]
    assert asked == 6
    assert [row["turnkeep"]["rollout"] for row in rows] == ["3-0", "3-0.2", "3-0.3"]
    assert [row["turnkeep"]["recorded_calls"] for row in rows] == [0, 0, 0]


def test_an_id_met_with_another_request_is_a_new_rollout(tmp_path: Path) -> None:
    """Gym's indices count anew in each collection: another task under a known id is neither mixed in nor refused."""
    other = weather_row(verifier_metadata={"difficulty": "hard"})
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db")}) as gym:
        names = [read(gym.run(row))["turnkeep"]["rollout"] for row in (weather_row(), other)]
        asked = gym.stats()["requests"]
    assert (names, asked) == (["3-0", "3-0.2"], 4)
    for name, row in zip(names, (weather_row(), other), strict=True):
        with kept(tmp_path / "t.db", name) as rollout:
            assert rollout.origin is not None
            assert same(rollout.origin["request"], row)


def test_without_resume_each_run_is_a_rollout_of_its_own(tmp_path: Path) -> None:
    """With `resume: false` the same row twice makes two rollouts, and the policy is asked for both."""
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db"), "resume": False}) as gym:
        names = [read(gym.run(weather_row()))["turnkeep"]["rollout"] for _ in range(2)]
        asked = gym.stats()["requests"]
    assert asked == 4
    assert len(set(names)) == 2
    assert all(name.startswith("3-0-") for name in names)
