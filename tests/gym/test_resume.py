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
    assert (row["turnkeep"]["recorded_calls"], row["turnkeep"]["policy_calls"]) == (3, 4)


def test_a_finished_rollout_met_again_is_answered_from_evidence(tmp_path: Path) -> None:
    """The same row gives the same response, byte for byte, and the policy hears nothing; a later try counts as same."""
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db")}) as gym:
        first, again = read(gym.run(weather_row())), read(gym.run(weather_row(_ng_attempt_index=1)))
        asked = gym.stats()["requests"]
    assert asked == 2
    assert same(first["response"], again["response"])
    assert again["turnkeep"]["recorded_calls"] == 2


def test_a_rollout_met_with_another_request_is_one_clear_error(tmp_path: Path) -> None:
    """What is kept of another request is neither mixed in nor overwritten: the row fails and names the rollout."""
    other = weather_row(verifier_metadata={"difficulty": "hard"})
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db")}) as gym:
        read(gym.run(weather_row()))
        failed = read(gym.run(other))
        asked = gym.stats()["requests"]
    assert asked == 2
    assert (failed["reward"], failed["_ng_failure_class"]) == (0.0, "legitimate")
    assert "began with another request" in failed["error"]
    assert "rollout '3-0'" in failed["error"]
    with kept(tmp_path / "t.db", "3-0") as rollout:
        assert rollout.origin is not None
        assert same(rollout.origin["request"], weather_row())


def test_without_resume_each_run_is_a_rollout_of_its_own(tmp_path: Path) -> None:
    """With `resume: false` the same row twice makes two rollouts, and the policy is asked for both."""
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db"), "resume": False}) as gym:
        names = [read(gym.run(weather_row()))["turnkeep"]["rollout"] for _ in range(2)]
        asked = gym.stats()["requests"]
    assert asked == 4
    assert len(set(names)) == 2
    assert all(name.startswith("3-0-") for name in names)
