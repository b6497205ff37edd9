"""docs/gym-rollouts.md says what is true."""

import json
import re
import shlex
from pathlib import Path

import pytest
from gym_samples import ROWS, write_rows
from test_nooa_files import ARCHIVES
from typer.testing import CliRunner

from turnkeep import RolloutView, open_store
from turnkeep.cli.main import app
from turnkeep.export import gym_jsonl
from turnkeep.wire.json import dumps

GUIDE = (Path(__file__).parents[2] / "docs" / "gym-rollouts.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^turnkeep (.*)$", GUIDE, re.MULTILINE)


def test_the_commands_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide's commands do what it says: the file that comes out is the file that went in, byte for byte."""
    monkeypatch.chdir(tmp_path)
    write_rows(Path("collected.jsonl"), *map(dumps, ROWS.values()))
    Path("turns.json").write_text(json.dumps(ARCHIVES))
    assert len(COMMANDS) == 5
    for command in COMMANDS:
        done = CliRunner().invoke(app, shlex.split(command))
        assert done.exit_code == 0, done.output
    assert Path("again.jsonl").read_bytes() == Path("collected.jsonl").read_bytes()
    with open_store("rollouts.db") as store:
        origins = [RolloutView(store, name).origin or {} for name in ("collected/4", "turns")]
    assert [[*origin] for origin in origins] == [
        ["source", "file", "line", "sha256", "turns", "row", "output"],
        ["source", "revision", "sha256", "file", "turns"],
    ]
    assert [[*entry] for entry in origins[0]["output"]] == [["turn"], ["item"], ["turn"]]


def test_the_remarks_are_those_of_the_export() -> None:
    """Every rule that an export may name is in the guide's table, and no other."""
    table = GUIDE.split("What a row cannot say")[1].split("##")[0]
    rules = {gym_jsonl.NOT_ONE_CONVERSATION, gym_jsonl.NO_REQUEST, gym_jsonl.NO_NATIVE, gym_jsonl.LOOKS_LIKE_A_TURN}
    rules |= {gym_jsonl.NOT_IN_ROW, gym_jsonl.GAP_NOT_IN_ROW}
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == rules
