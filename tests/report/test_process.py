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


def test_the_command_is_there_without_its_script(folder: Path) -> None:
    """`python -m turnkeep` is `turnkeep`."""
    command = [sys.executable, "-m", "turnkeep", "ls"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "hostile" in done.stdout) == (0, True)


@pytest.mark.parametrize("arguments", [("--help",), ("show", "--help"), (), ("export",), ("--version",)])
def test_help_into_a_closed_pipe_ends_as_sigpipe_would(arguments: tuple[str, ...]) -> None:
    """Help that nobody reads to its end is no finding: 141, without a word."""
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "wb") as pipe:
        done = subprocess.run([*TURNKEEP, *arguments], stdout=pipe, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (141, b"")


WRITERS = pytest.mark.parametrize(
    "arguments",
    [
        ("export", "gym", "--all", "--out", "out"),
        ("export", "atif", "--all", "--lenient", "--out", "out"),
        ("export", "parquet", "--all", "--out", "out"),
        ("report", "plain", "--out", "out"),
    ],
    ids=" ".join,
)
"""Commands that write a file or a folder."""


def written_until(folder: Path, happens: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a folder with a store, to which something happens when what it wrote is to become durable."""
    with open_store(folder / "rollouts.db") as store:
        made_rollouts.long(store, "plain", turns=2)
    before = set(folder.iterdir())
    program = f"import os, signal\ndef fsync(_): {happens}\nos.fsync = fsync\n"
    command = [sys.executable, "-c", f"{program}from turnkeep.cli.main import main\nmain()", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert set(folder.iterdir()) == before
    return done


@WRITERS
def test_a_command_that_is_terminated_leaves_nothing_behind(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """SIGTERM while a file is written ends the command with 143, and neither the file nor a part of it is there."""
    done = written_until(tmp_path, "os.kill(os.getpid(), signal.SIGTERM)", *arguments)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")


@WRITERS
def test_a_full_disk_is_told_with_the_file(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Where nothing more can be written, the error names what was to be."""
    done = written_until(tmp_path, "raise OSError(28, os.strerror(28))", *arguments)
    assert (done.returncode, done.stderr) == (3, "turnkeep: [Errno 28] No space left on device: 'out'\n")
