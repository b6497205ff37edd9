import json
import math
import subprocess
import sys
from pathlib import Path

import made_rollouts
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_rollouts import SCOPE, message, response, training
from rich.cells import cell_len

from turnkeep.cli.look import sparkline
from turnkeep.history.capture import capture
from turnkeep.rollout.record import Rollout
from turnkeep.store.open import open_store

BARS = "▁▂▃▄▅▆▇█"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `turnkeep show` on a terminal of 80 columns that shows no colour."""
    command = [sys.executable, "-m", "turnkeep.cli.main", "show", *arguments]
    environment = {"COLUMNS": "80", "PATH": "", "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=60, env=environment)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a store with a hostile rollout, and one with an edited turn and a prompt that breaks the sequence."""
    path = tmp_path_factory.mktemp("show") / "a.db"
    with open_store(path) as opened:
        made_rollouts.hostile(opened)
        with Rollout.open(opened, "r", scope=SCOPE) as rollout:
            for prompt in ([1, 2], [9, 9]):
                item = message("Said.", **training(prompt, [3], [-0.125]))
                rollout.add_turn(capture(response([item]), SCOPE))
            rollout.add_turn(capture(response([message("Said.")]), SCOPE).edit(0, text="Edited."))
    return path


def test_a_rollout_fits_a_terminal_of_80_columns(store: Path) -> None:
    """No line is wider, and no control character, surrogate or bidirectional control reaches the terminal."""
    done = run("hostile <b>", "--store", str(store))
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(cell_len, done.stdout.splitlines())) <= 80
    assert not set("\x00\x07\x1b\r\u202e\u200b\ufeff\u2028") & set(done.stdout)
    assert "hosted    web_search_call" in done.stdout


def test_each_turn_says_what_it_is(store: Path) -> None:
    """Numbers, log probs as bars, kinds, why a turn is portable, and how much the doctor finds."""
    lines = run("r", "--store", str(store)).stdout.splitlines()
    first = next(line for line in lines if line.startswith("   0 "))
    assert first.split() == ["0", "2", "1", "-0.125", sparkline([-0.125]), "-", "native"]
    assert any(line.split() == ["text", "Edited."] for line in lines)
    assert any("why: part 0: it has no native item" in line for line in lines)
    assert lines[-1].startswith("findings: 1 error, ")


def test_json_has_it_for_machines(store: Path) -> None:
    """Kinds, prompt, shared and generated tokens, mean and least log prob, and findings by severity."""
    shown = json.loads(run("r", "--store", str(store), "--json").stdout)
    names = ("kinds", "prompt_tokens", "shared_tokens", "generation_tokens", "mean_log_prob", "least_log_prob")
    assert [shown["turn_list"][1][name] for name in names] == [["text"], 2, 0, 1, -0.125, -0.125]
    assert (shown["turn_list"][2]["native"], shown["turn_list"][2]["prompt_tokens"]) == (False, None)
    assert shown["findings"]["error"] == 1


def test_what_a_runtime_or_a_tool_left_is_told_safely(tmp_path: Path) -> None:
    """An unfinished tool shows, and names, scopes and gaps of odd characters reach the terminal spelled out."""
    odd, path = "a \x1b[31m \ud83d", str(tmp_path / "a.db")
    with open_store(path) as opened, Rollout.open(opened, "r", scope=odd) as rollout:
        rollout.add_gap(odd, detail=odd)
        rollout.add_tool({"name": odd, "arguments": "{}", "state": "begun"})
    for arguments in (["ls"], ["show", "r"]):
        command = [sys.executable, "-m", "turnkeep.cli.main", *arguments, "--store", path]
        environment = {"COLUMNS": "300", "PATH": "", "PYTHONIOENCODING": "utf-8"}
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert ("\\u001b[31m \\ud83d" in done.stdout, "\x1b" in done.stdout) == (True, False)
    assert "began and left no output" in done.stdout


@given(st.lists(st.floats(-12, 1), max_size=90), st.integers(1, 30))
def test_a_sparkline_shows_the_least_likely_token(log_probs: list[float], width: int) -> None:
    """It is as long as there are tokens, or as wide as it may be, and its tallest bar is the least likely token's."""
    line = sparkline(log_probs, width)
    assert len(line) == min(width, len(log_probs))
    assert set(line) <= set(BARS)
    if log_probs:
        height = math.sqrt(min(1.0, max(0.0, -min(log_probs) / 10)))
        assert max(map(BARS.index, line)) == math.floor(height * 7)
        assert (BARS[-1] in line) == (min(log_probs) <= -10)
