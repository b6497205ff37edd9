"""`turnkeep demo`, run as a person runs it: a real agent, killed with SIGKILL at a seeded moment."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def turnkeep(*arguments: str, cwd: Path, code: int = 0) -> str:
    """What the command prints on standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "turnkeep.cli.main", *arguments], cwd=cwd, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == code, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.nooa
def test_the_demo_kills_resumes_and_replays_exactly(tmp_path: Path) -> None:
    """A killed agent resumes and repeats no call; three restores equal the evidence; prompts stay contiguous (10.1)."""
    printed = turnkeep("demo", "--dir", "d", "--turns", "5", "--seed", "3", "--json", cwd=tmp_path)
    report = json.loads(printed.splitlines()[-1])
    assert report["turns"] == 5
    assert 0 <= report["killed_at_turn"] <= 5  # at 5 the last turn was kept and its answer not yet acted on
    assert report["resumed"] is True
    assert report["policy_calls_repeated"] == 0
    assert report["replayed_exactly"] is True
    assert report["contiguous"] is True
    assert report["stores"] == {"nooa-sqlite": True, "nooa-snapshot": True, "turnkeep-store": True}
    assert report["gaps"] == []
    assert report["broken"]["gaps"] == ["foreign_turn_projected_portable"]
    store = report["store_path"]
    assert (tmp_path / store).exists()

    listed = [json.loads(line) for line in turnkeep("ls", "--store", store, "--json", cwd=tmp_path).splitlines()]
    assert report["rollout"] in [row["rollout"] for row in listed]
    verified = json.loads(turnkeep("verify", "--store", store, "--json", cwd=tmp_path))
    assert verified["sound"] is True
    shown = json.loads(turnkeep("show", report["rollout"], "--store", store, "--json", cwd=tmp_path))
    assert [turn["native"] for turn in shown["turn_list"]] == [True] * 5
    table = turnkeep("show", report["rollout"], "--store", store, cwd=tmp_path)
    assert all(str(turn["prompt_tokens"]) in table for turn in shown["turn_list"])  # 80 columns hide no number
    assert table.count("native") == 5
    scope = shown["scope"]
    replayed = json.loads(
        turnkeep("replay", report["rollout"], "--scope", scope, "--store", store, "--json", cwd=tmp_path)
    )
    assert replayed["gaps"] == []
    assert sum("generation_token_ids" in item for item in replayed["input"]) == 5
