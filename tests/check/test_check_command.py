"""`turnkeep check`, run as a user runs it."""

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from planting import SCOPE, experts, fields, sound, turns_of

from turnkeep import Rollout, open_store
from turnkeep.check.rules import RULES
from turnkeep.wire.json import loads

TURNKEEP = Path(sys.executable).parent / "turnkeep"
GENERATION_ONLY = "experts-generation-only"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a sound rollout, and one whose three turns have routes for the generation alone."""
    path = tmp_path_factory.mktemp("check")
    short = sound()
    for each in short:
        each["routed_experts"] = experts(3)
    with open_store(path / "rollouts.db") as store:
        for name, made in (("good", sound()), ("short", short)):
            with Rollout.open(store, name, scope=SCOPE) as rollout:
                for turn in turns_of(made):
                    rollout.add_turn(turn)
    return path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`turnkeep check` in a terminal of 80 columns."""
    env = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    command = [str(TURNKEEP), "check", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60)


def test_a_sound_rollout_exits_with_0(folder: Path) -> None:
    """One line says that all is well, and for whom."""
    done = run(folder, "good", "--for", "nemo-rl", "--vocabulary", "200", "--experts", "8")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == "the rollout can be trained on by nemo-rl: nothing found"


def test_findings_are_folded_and_fit_the_terminal(folder: Path) -> None:
    """One finding in three turns is one entry: its count, the first place, what is there, what to do, a verdict."""
    done = run(folder, "short", "--for", "nemo-rl")
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"error    {GENERATION_ONLY}  3 times"
    assert lines[1].strip() == "first at turn 0, item 0, field routed_experts"
    assert lines[2].strip() == "3 rows for 4 prompt + 3 generated tokens: the generation only"
    assert lines[-1] == "the rollout cannot be trained on by nemo-rl: 3 errors"
    assert max(map(len, lines)) <= 80


def test_all_rollouts_are_checked_where_none_is_named(folder: Path) -> None:
    """The verdict counts them and names the one that is not fit; the first place names its rollout."""
    done = run(folder, "--for", "nemo-rl")
    assert done.returncode == 1
    assert "first at rollout short, turn 0, item 0" in done.stdout
    assert done.stdout.splitlines()[-2:] == [
        "1 of 2 rollouts cannot be trained on by nemo-rl: 3 errors",
        "         short",
    ]


def test_a_warning_leaves_the_exit_code_at_0(folder: Path) -> None:
    """Without a profile too few rows are a warning, since not every trainer refuses them."""
    done = run(folder)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "all 2 rollouts can be trained on: 3 warnings"


def test_machines_get_every_finding(folder: Path) -> None:
    """With --json nothing is folded, and every member of a finding is there."""
    done = run(folder, "--for", "nemo-rl", "--json")
    told = loads(done.stdout)
    assert (done.returncode, told["fit"], told["profile"]) == (1, False, "nemo-rl")
    good, short = told["rollouts"]
    assert good == {"rollout": "good", "fit": True, "findings": []}
    assert [each["turn"] for each in short["findings"]] == [0, 1, 2]
    first = short["findings"][0]
    assert {name: first[name] for name in ("rule", "severity", "rollout", "item", "field", "index", "call")} == {
        "rule": GENERATION_ONLY,
        "severity": "error",
        "rollout": "short",
        "item": 0,
        "field": "routed_experts",
        "index": None,
        "call": None,
    }
    assert first["message"]
    assert first["todo"]


@pytest.mark.parametrize("arguments", [["--for", "ppo"], ["--vocabulary", "0"], ["--experts", "many"]])
def test_arguments_that_cannot_work_exit_with_2(folder: Path, arguments: list[str]) -> None:
    """They are refused before anything is looked at, and the option is named."""
    done = run(folder, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert arguments[0] in done.stderr


def test_a_rollout_that_is_not_there_is_one_line(folder: Path) -> None:
    """An unknown id is an error that names it, and no traceback."""
    done = run(folder, "nobody")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "turnkeep: rollouts.db holds no such rollout (rollout 'nobody')\n"


def test_text_of_a_rollout_is_made_safe_for_the_terminal(tmp_path: Path) -> None:
    """Control characters that a server put into a finding do not reach the terminal."""
    made = fields([1], [2], routed_experts="nrlre1:\x1b[31m:1x1x1:AA==")
    with open_store(tmp_path / "rollouts.db") as store, Rollout.open(store, "[bold]", scope=SCOPE) as rollout:
        rollout.add_turn(turns_of([made])[0])
    done = run(tmp_path)
    assert "experts-unreadable" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_rollout_that_cannot_be_opened_is_a_finding(tmp_path: Path) -> None:
    """Damage to one rollout's state does not keep the others from being checked (contract 9.3)."""
    with open_store(tmp_path / "rollouts.db") as store:
        for name in ("a", "b"):
            with Rollout.open(store, name, scope=SCOPE) as rollout:
                rollout.add_turn(turns_of(sound(1))[0])
    with sqlite3.connect(tmp_path / "rollouts.db") as database:
        hit = "UPDATE records SET document = CAST('{}' AS BLOB) WHERE kind = 4 AND rollout = 1"
        assert database.execute(hit).rowcount == 1
    database.close()
    done = run(tmp_path, "--json")
    told = loads(done.stdout)
    assert done.returncode == 1
    assert [[each["rule"] for each in rollout["findings"]] for rollout in told["rollouts"]] == [["unreadable"], []]


def test_the_rules_can_be_listed(folder: Path) -> None:
    """--rules names every rule with its sentence; with --for only those of that reader; with --json all about them."""
    done = run(folder, "--rules")
    assert done.returncode == 0
    assert re.findall(r"^(?:error|warning|note) +(\S+)", done.stdout, re.MULTILINE) == [
        rule.name for rule in RULES if rule.severities.all is not None
    ]
    trl = run(folder, "--rules", "--for", "trl")
    assert "expert" not in trl.stdout
    told: list[Any] = [loads(line) for line in run(folder, "--rules", "--json").stdout.splitlines()]
    assert [each["rule"] for each in told] == [rule.name for rule in RULES if rule.severities.all is not None]
    assert told[0]["severities"] == dict.fromkeys(("all", "nemo-rl", "trl", "verl", "atif"), "error")


def test_help_has_an_example(folder: Path) -> None:
    """The help names the options and shows a call."""
    done = run(folder, "--help")
    assert done.returncode == 0
    assert "Example: turnkeep check r-1 --for nemo-rl" in done.stdout
