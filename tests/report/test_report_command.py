import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import made_rollouts
import pytest

from turnkeep.store.open import open_store

TURNKEEP = [sys.executable, "-m", "turnkeep.cli.main"]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `turnkeep` in a folder."""
    return subprocess.run([*TURNKEEP, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder with the default store, which holds the hostile rollout."""
    with open_store(tmp_path / "rollouts.db") as store:
        made_rollouts.hostile(store, "hostile")
    return tmp_path


def test_report_writes_one_file_and_says_what_is_in_it(folder: Path) -> None:
    """The page is there, whole, and what is printed tells its size; one that is there is not written over."""
    done = run(folder, "report", "hostile", "--out", "page.html", "--json")
    told = json.loads(done.stdout)
    page = (folder / "page.html").read_bytes()
    assert (done.returncode, done.stderr) == (0, "")
    assert (told["file"], told["bytes"]) == ("page.html", len(page))
    assert (told["turns"], told["gaps"]) == (len(made_rollouts.HOSTILE), 1)
    assert page.rstrip().endswith(b"</html>")
    refused = run(folder, "report", "hostile", "--out", "page.html")
    assert (refused.returncode, "--force" in refused.stderr) == (2, True)
    assert run(folder, "report", "hostile", "--out", "page.html", "--force").stdout.startswith("page.html: 9 turns")


def test_a_link_is_written_through(folder: Path) -> None:
    """Writing over a link writes what it leads to, and leaves the link."""
    (folder / "real.html").write_text("old")
    (folder / "link.html").symlink_to("real.html")
    assert run(folder, "report", "hostile", "--out", "link.html", "--force").returncode == 0
    assert (folder / "link.html").is_symlink()
    assert (folder / "real.html").read_bytes().rstrip().endswith(b"</html>")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nope", "--out", "page.html"), 3, "no such rollout"),
        (("hostile", "--out", "missing/page.html"), 2, "does not exist"),
        (("hostile", "--out", "page.html", "--store", "none.db"), 3, "no store"),
        (("hostile", "--out", "page.html", "--store", "."), 3, "it is a folder"),
        (("hostile", "--out", ".", "--force"), 2, "is a folder"),
        (("hostile", "--out", "/dev/full", "--force"), 2, "no file that can be replaced"),
    ],
)
def test_report_leaves_nothing_where_it_cannot_work(
    folder: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    """An error is one line, and neither a page nor a store is made."""
    before = set(folder.iterdir())
    done = run(folder, "report", *arguments)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1)
    assert words in done.stderr
    assert set(folder.iterdir()) == before


@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize("command", ["show", "check"])
def test_a_reader_who_has_had_enough_gets_no_verdict(folder: Path, command: str, form: tuple[str, ...]) -> None:
    """A pipe that was closed ends a command as SIGPIPE would, without a word: neither all is well nor a finding."""
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "wb") as pipe:
        arguments = [*TURNKEEP, command, "hostile", *form]
        done = subprocess.run(arguments, cwd=folder, stdout=pipe, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (141, b"")


def test_without_jinja_the_command_says_what_to_install(folder: Path) -> None:
    """Where the extra is missing, the error names the package and the line that installs it."""
    program = "import sys; sys.modules['jinja2'] = None\nfrom turnkeep.cli.main import main\nmain()"
    command = [sys.executable, "-c", program, "report", "hostile", "--out", "page.html"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "turnkeep[report]" in done.stderr) == (2, True)


def test_view_serves_until_it_is_interrupted(folder: Path) -> None:
    """It prints its address when it can be reached, and Ctrl-C ends it with exit code 0."""
    command = [*TURNKEEP, "view", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
        assert address is not None
        assert "hostile" in httpx.get(address[0], trust_env=False).text
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
