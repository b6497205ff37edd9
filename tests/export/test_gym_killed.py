"""Imports and exports that are killed."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gym_samples import call, export, ids, lines, message, output, row
from import_child import __file__ as importer

from turnkeep import RolloutView
from turnkeep.store.sqlite import SqliteStore
from turnkeep.wire.json import dumps

TEXTS = [
    dumps(row(call(**ids(300 + number, 60)), output("x" * number), message(str(number), **ids(500, 80)), number=number))
    for number in range(40)
]


def killed_after(path: Path, file: Path, said: int, seconds: float) -> list[int]:
    """The lines that a child said were in before it was killed, `seconds` after it had said so many."""
    with subprocess.Popen([sys.executable, importer, str(path), str(file)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        heard = [child.stdout.readline() for _ in range(said)]
        time.sleep(seconds)
        child.kill()
        heard += child.stdout.readlines()
    return [int(line) for line in heard if line.endswith("\n")]


def whole_rows(path: Path) -> list[int]:
    """The lines whose rollouts are there; each is whole and exact, and any other rollout has nothing in it."""
    whole = []
    with SqliteStore(path) as store:
        assert store.check_file() == []
        for name in store.rollouts():
            view = RolloutView(store, name)
            if view.origin is None:
                assert (view.turn_count, view.calls) == (0, ())
                continue
            whole.append(int(name.removeprefix("f/")))
            (found,), (written,) = export(store, name)
            assert (view.turn_count, written.error, written.remarks) == (2, None, ())
            assert found == TEXTS[whole[-1] - 1]
    return whole


def test_an_import_killed_at_any_instant_leaves_no_half_rollout(tmp_path: Path) -> None:
    """After a kill each rollout is a whole row or has nothing; importing again completes the file (contract 9.2)."""
    path, file, rng = tmp_path / "a.db", tmp_path / "f.jsonl", random.Random(5)
    file.write_bytes(lines(TEXTS))
    cut_short = 0
    for number in range(5):
        told = killed_after(path, file, 1 + 6 * number, rng.uniform(0, 0.03))
        whole = whole_rows(path)
        assert set(told) <= set(whole)
        cut_short += len(whole) < len(TEXTS)
    assert cut_short >= 3
    subprocess.run([sys.executable, importer, str(path), str(file)], check=True, capture_output=True, timeout=60)
    with SqliteStore(path) as store:
        assert export(store)[0] == TEXTS


@pytest.mark.parametrize(("when", "there"), [("before", [1]), ("after", [1, 2])])
def test_a_row_comes_in_with_one_commit(tmp_path: Path, when: str, there: list[int]) -> None:
    """Killed just before its commit a row has nothing, killed just after it is whole: there is no third (9.2)."""
    path, file = tmp_path / "a.db", tmp_path / "f.jsonl"
    file.write_bytes(lines(TEXTS[:3]))
    command = [sys.executable, importer, str(path), str(file)]
    killed = subprocess.run([*command, when, "2"], check=False, capture_output=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert whole_rows(path) == there
    with SqliteStore(path) as store:
        assert store.rollouts() == ["f/1", "f/2"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    with SqliteStore(path) as store:
        assert export(store)[0] == TEXTS[:3]


EXPORTER = """
import sys
from pathlib import Path
from turnkeep.cli.output import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(b"half a row")
    file.flush()
    print("writes", flush=True)
    sys.stdin.read()
"""


def test_a_killed_export_leaves_the_old_file(tmp_path: Path) -> None:
    """An export takes the place of the file when it is whole: killed before, the old one stands."""
    target = tmp_path / "out.jsonl"
    target.write_bytes(b"old\n")
    command = [sys.executable, "-c", EXPORTER, str(target)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "writes\n"
        child.kill()
    assert target.read_bytes() == b"old\n"
