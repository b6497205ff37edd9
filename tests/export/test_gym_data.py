"""Real Gym rollout files, where they lie beside the checkout: everything that can be a rollout comes back exactly."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from gym_samples import export, ids, message, output, row, write_rows

from turnkeep import RolloutView, open_store
from turnkeep.export.gym_import import import_gym
from turnkeep.rollout.verify import verify_rollout
from turnkeep.wire.json import dumps, loads, same

_BESIDE = Path(__file__).parents[3] / "shared" / "data" / "gym_rollouts"
FOLDER = Path(os.environ.get("TURNKEEP_GYM_ROLLOUTS") or _BESIDE)


def is_rollout(line: bytes) -> bool:
    """Whether a row is a rollout: it has a response with a list of objects."""
    value = json.loads(line)
    items = value["response"]["output"] if "response" in value else None
    return isinstance(items, list) and all(isinstance(item, dict) for item in items)


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no Gym rollout files at {FOLDER}")
def test_every_real_row_comes_back_exactly(tmp_path: Path) -> None:
    """Each row of each file that is a rollout exports with equal values in equal order; the others are refused."""
    counts = Counter[str]()
    with open_store(tmp_path / "a.db") as store:
        for path in sorted(FOLDER.glob("*.jsonl")):
            counts["files"] += 1
            rows = {number: line for number, line in enumerate(path.read_bytes().split(b"\n"), 1) if line.strip()}
            results = [*import_gym(path, store)]
            assert [result.line for result in results] == list(rows)
            refused = {result.line for result in results if result.error is not None}
            assert refused == {number for number, line in rows.items() if not is_rollout(line)}
            names = [result.rollout for result in results if result.error is None]
            found, _ = export(store, *names) if names else ([], [])
            wanted = [line for number, line in rows.items() if number not in refused]
            assert all(same(loads(one), loads(other)) for one, other in zip(found, wanted, strict=True)), path.name
            assert [*(each for name in names for each in verify_rollout(RolloutView(store, name)))] == []
            counts.update(rows=len(rows), refused=len(refused), turns=sum(result.turns for result in results))
    assert counts["rows"] > counts["refused"]


def peak(*words: str) -> int:
    """The most memory, in bytes, that a command had."""
    code = (
        "import resource, sys\nfrom turnkeep.cli.main import main\ntry: main()\n"
        "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True, timeout=120)
    return int(done.stderr.split()[-1]) * (1 if sys.platform == "darwin" else 1024)


def big_row(number: int, turns: int = 2) -> dict[str, Any]:
    """A row with routed experts of `[512, 48, 8]` in each turn: about 0.7 MB of text for a turn."""
    items: list[Any] = []
    for turn in range(turns):
        experts = [
            [[(token + layer * number + k) % 256 for k in range(8)] for layer in range(48)] for token in range(512)
        ]
        items += [message(**{**ids(256, 256, first=turn), "routed_experts": experts}), output()]
    return row(*items, number=number)


def test_memory_stays_flat_over_a_long_file(tmp_path: Path) -> None:
    """Six rows take hardly more memory than one, either way, and a row less than four times its text and the start."""
    rows = [dumps(big_row(number)) for number in range(6)]
    one, six = write_rows(tmp_path / "1.jsonl", rows[0]), write_rows(tmp_path / "6.jsonl", *rows)
    start = peak("ls", "--store", str(_empty(tmp_path)))
    peaks = []
    for file in (one, six):
        store = ("--store", f"{file}.db")
        peaks.append([peak("import", "gym", str(file), *store)])
        peaks[-1].append(peak("export", "gym", "--all", *store, "--out", f"{file}.out"))
        with open_store(f"{file}.db") as opened:
            assert len(opened.rollouts()) == (1 if file == one else 6)
    size = one.stat().st_size
    assert all(more < less + 2 * size + (16 << 20) for less, more in zip(*peaks, strict=True)), (start, peaks, size)
    assert max(peaks[0]) < start + 4 * size + (32 << 20), (start, peaks, size)
    assert Path(f"{six}.out").read_bytes() == six.read_bytes()


def _empty(folder: Path) -> Path:
    with open_store(folder / "empty.db"):
        return folder / "empty.db"
