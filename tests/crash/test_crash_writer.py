import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from crash_writer import SCOPE, make_turn
from crash_writer import __file__ as writer

from turnkeep.rollout.record import Rollout
from turnkeep.rollout.verify import verify_rollout
from turnkeep.rollout.view import RolloutView
from turnkeep.store.sqlite import SqliteStore


def killed_after(path: Path, seconds: float, *, lines: int) -> list[str]:
    """What the child said before it was killed, `seconds` after it had said so many lines: `ready`, then the turns."""
    with subprocess.Popen([sys.executable, writer, str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = [child.stdout.readline() for _ in range(lines)]
        time.sleep(seconds)
        child.kill()
        said += child.stdout.readlines()
    return [line.strip() for line in said if line.endswith("\n")]


def check(path: Path, said: list[str], before: int) -> int:
    """Hold the rollout to what the child said; gives how many turns there are now."""
    told = [int(word) for word in said if word != "ready"]
    assert told == list(range(before, before + len(told)))
    with SqliteStore(path) as store:
        assert store.check_file() == []
        view = RolloutView(store, "r")
        assert 0 <= view.turn_count - before - len(told) <= 1
        assert [turn.digest for turn in view.turns] == [make_turn(n).digest for n in range(view.turn_count)]
        assert list(verify_rollout(view)) == []
        return view.turn_count


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_writer_loses_no_turn(tmp_path: Path, seed: int) -> None:
    """A process killed at any instant loses no turn whose `add_turn` had returned and leaves no half (contract 9.2).

    Each next process goes on with the same rollout.
    """
    path, rng, count = tmp_path / "a.db", random.Random(seed), 0
    for number in range(8):  # at any instant after it was ready, and by turns after its first turn
        count = check(path, killed_after(path, rng.uniform(0, 0.2), lines=1 + number % 2), count)
    assert count >= 4
    with SqliteStore(path) as store, Rollout.open(store, "r") as rollout:
        rollout.add_turn(make_turn(count))
        assert rollout.turn_count == count + 1


def test_a_process_killed_while_it_begins_leaves_no_trouble(tmp_path: Path) -> None:
    """A process killed while it opens the store or begins the rollout leaves a file that the next one opens (9.2)."""
    rng = random.Random(11)
    for number in range(12):
        path = tmp_path / f"{number}.db"
        said = killed_after(path, rng.uniform(0.02, 0.4), lines=0)
        with SqliteStore(path) as store, Rollout.open(store, "r", scope=SCOPE):
            assert store.check_file() == []
        count = check(path, said, 0)
        assert count >= len(said) - 1
