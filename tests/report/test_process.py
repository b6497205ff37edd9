"""The command as a process: output that cannot hold a character, a pipe that is closed, a signal that ends it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import made_rollouts
import pytest

from turnkeep.store.open import open_store

TURNKEEP = [sys.executable, "-m", "turnkeep.cli.main"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder with the default store, which holds the hostile rollout."""
    with open_store(tmp_path / "rollouts.db") as store:
        made_rollouts.hostile(store, "hostile")
    return tmp_path


@pytest.mark.parametrize(
    "arguments", [("ls",), ("show", "hostile"), ("top", "--once"), ("diff", "hostile", "--replay"), ("replay", "none…")]
)
def test_what_a_terminal_cannot_write_is_escaped(folder: Path, arguments: tuple[str, ...]) -> None:
    """A command prints as much where output is ASCII alone, and ends with the same exit code."""
    command = [*TURNKEEP, *arguments]
    plain, utf8 = (
        subprocess.run(
            command, cwd=folder, capture_output=True, timeout=60, env={**os.environ, "PYTHONIOENCODING": encoding}
        )
        for encoding in ("ascii", "utf-8")
    )
    assert plain.returncode == utf8.returncode
    assert plain.stdout.isascii()
    assert b"Traceback" not in plain.stderr
    assert len(plain.stdout.splitlines()) >= len(utf8.stdout.splitlines())


@pytest.mark.parametrize("arguments", [("--help",), ("show", "--help"), (), ("export",), ("--version",)])
def test_help_into_a_closed_pipe_ends_as_sigpipe_would(arguments: tuple[str, ...]) -> None:
    """Help that nobody reads to its end is no finding: 141, without a word."""
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "wb") as pipe:
        done = subprocess.run([*TURNKEEP, *arguments], stdout=pipe, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (141, b"")


TERMINATED = """
import os, signal, sys
from turnkeep.cli.main import main
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGTERM)
main()
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ("export", "gym", "--all", "--out", "out"),
        ("export", "atif", "--all", "--lenient", "--out", "out"),
        ("export", "parquet", "--all", "--out", "out"),
        ("report", "plain", "--out", "out"),
    ],
    ids=" ".join,
)
def test_a_command_that_is_terminated_leaves_nothing_behind(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """SIGTERM while a file is written ends the command with 143, and neither the file nor a part of it is there."""
    with open_store(tmp_path / "rollouts.db") as store:
        made_rollouts.long(store, "plain", turns=2)
    before = set(tmp_path.iterdir())
    command = [sys.executable, "-c", TERMINATED, *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")
    assert set(tmp_path.iterdir()) == before
