"""What docs/ tells a newcomer is true: its blocks run as they stand and print what is shown, its names and links exist.

What a reader does by hand is done here: a terminal of its own for the policy, saving a program, and waiting for the
moment of the kill. The policy takes a free port, not 8000.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import typer.main

from turnkeep import RolloutView, open_store
from turnkeep.cli.main import app
from turnkeep.serve.respond import Options
from turnkeep.serve.script import load_script
from turnkeep.serve.server import running_policy

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
URL = "http://127.0.0.1:8000"
PATIENCE = 120.0
"""Seconds after which something that has to come is given up."""


class Block(NamedTuple):
    """A fenced block: its language, its text, the name under which a reader saves it, and what is shown below it."""

    language: str
    text: str
    saved_as: str | None
    shown: str | None


def blocks(page: str) -> list[Block]:
    """The bash and Python blocks of a page, in order."""
    found = re.findall(
        r"(?:Save this as `([\w.]+)`:\n\n)?^```(bash|python)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?",
        PAGES[page],
        re.MULTILINE | re.DOTALL,
    )
    return [Block(language, text, name or None, shown or None) for name, language, text, shown in found]


class Desk(NamedTuple):
    """A folder to work in, and the address of the policy."""

    folder: Path
    url: str

    def command(self, block: Block) -> list[str]:
        """How a reader runs a block."""
        text = block.text.replace(URL, self.url)
        return ["bash", "-ec", text] if block.language == "bash" else [sys.executable, "-c", text]

    def start(self, command: list[str], **options: Any) -> subprocess.Popen[str]:
        """Start a program in the folder, with `turnkeep` and `python` of these tests on PATH."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "COLUMNS": "80", "NO_COLOR": "1"}
        return subprocess.Popen(
            command, cwd=self.folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
        )

    def say(self, command: list[str], codes: tuple[int, ...] = (0,)) -> str:
        """Run a program to its end; give what it printed."""
        with self.start(command) as started:
            try:
                out, errors = started.communicate(timeout=PATIENCE)
            finally:
                started.kill()
        assert started.returncode in codes, f"{command[-1]}\n{out}{errors}"
        return out

    def run(self, block: Block, codes: tuple[int, ...] = (0,)) -> str:
        """Do what a reader does with a block; give what it printed, which has every line that is shown, in order."""
        if block.saved_as is not None:
            (self.folder / block.saved_as).write_text(block.text.replace(URL, self.url))
            return ""
        out = self.say(self.command(block), codes)
        printed = iter(out.splitlines())
        for expected in (block.shown or "").splitlines():
            assert any(alike(line).startswith(alike(expected)) for line in printed), f"{expected!r} is not in\n{out}"
        return out

    def kill_at_request(self, block: Block, count: int) -> None:
        """Run a `timeout -s KILL N PROGRAM` block, but kill the program once the policy has its request `count`."""
        words = shlex.split(block.text)
        assert words[:3] == ["timeout", "-s", "KILL"]
        with self.start(words[4:]) as started:
            try:
                end = time.monotonic() + PATIENCE
                while self.requests() < count:
                    assert started.poll() is None, started.communicate()
                    assert time.monotonic() < end, "the request that hangs did not come"
                    time.sleep(0.05)
            finally:
                started.kill()

    def requests(self) -> int:
        """How many requests the policy has got."""
        requests: int = httpx.get(f"{self.url}/stats").json()["requests"]
        return requests


def alike(line: str) -> str:
    """A line less what may differ: spaces, ports, digits behind a point or between commas, bars of log probs."""
    line = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8000", " ".join(line.split()))
    line = re.sub(r"\d+(?:,\d{3})+|\d+\.\d+", "#", line)
    return re.sub("[▁-█]+", "▇", line)


@contextmanager
def terminal(desk: Desk, block: Block) -> Iterator[Desk]:
    """The policy's block in a terminal of its own; gives the desk with its address."""
    line = block.text.strip()
    assert line.startswith("turnkeep serve-policy --port 8000 ")
    with desk.start(shlex.split(line.replace("--port 8000", "--port 0"))) as server:
        try:
            assert server.stdout is not None
            yield desk._replace(url=server.stdout.readline().split()[-1])
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Give the desk of somebody who has done the quickstart, the policy still running."""
    desk = Desk(tmp_path_factory.mktemp("quickstart"), "")
    script, policy, agent, kill, *rest = blocks("docs/quickstart.md")
    desk.run(script)
    with terminal(desk, policy) as desk:
        desk.run(agent)
        desk.kill_at_request(kill, 3)
        for block in rest:
            desk.run(block)
        yield desk


def test_the_quickstart_leads_to_a_resumed_rollout(worked: Desk) -> None:
    """The killed agent ends with one request more than it has calls, and every file that the page names is there."""
    assert worked.requests() == 4
    with open_store(worked.folder / "rollouts.db", create=False) as store:
        view = RolloutView(store, "r-1")
        assert (view.turn_count, view.used, view.gaps, view.gradable) == (3, 3, (), True)
    files = ("r-1.html", "rows.jsonl", "trajectories/r-1.json", "dataset/turns.parquet")
    assert [name for name in files if not (worked.folder / name).stat().st_size] == []


AS_DICTIONARY = """calls = [{"name": call.name, "arguments": call.arguments} for call in turn.tool_calls]
        calls = [{"id": call.id, "function": each} for call, each in zip(turn.tool_calls, calls)]
        history.append({"role": "assistant", "content": turn.content, "tool_calls": calls})"""
FAULTY: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "rewritten": ({"history.append(turn)": AS_DICTIONARY}, {}),
    "routes": ({}, {"options": Options(experts_rows="generation")}),
    "failed": ({", rollout) as policy": ", rollout, retries=0) as policy"}, {"faults": ["503@2"]}),
}
"""The faulty rollouts of the recipes: what is changed in the quickstart's program, and how the policy is set."""


def run_faulty(desk: Desk, name: str) -> None:
    """Let the quickstart's agent, or one that is written wrongly, make a faulty rollout."""
    changes, options = FAULTY[name]
    program = (desk.folder / "agent.py").read_text().replace('"r-1"', repr(name))
    for old, new in changes.items():
        assert program.count(old) == 1
        program = program.replace(old, new)
    with running_policy(script=load_script(desk.folder / "script.json"), **options) as url:
        desk.say([sys.executable, "-c", program.replace(desk.url, url)], codes=(int(name == "failed"),))


def test_the_recipes_find_what_they_say(worked: Desk) -> None:
    """Each recipe's commands run in order on the quickstart's store, and show the fault that the recipe is about."""
    for name in FAULTY:
        run_faulty(worked, name)
    printed = {}
    for block in blocks("docs/recipes.md"):
        faulty = re.match("turnkeep check (rewritten|routes)", block.text)
        printed[block.text.split("\n")[0]] = worked.run(block, codes=(int(faulty is not None),))
    sent, received, attempts = printed["from turnkeep import RolloutView, open_store"].splitlines()
    assert len(json.loads(sent)["input"]) == 4
    assert (json.loads(received)["object"], attempts) == ("response", "()")
    replay = next(out for line, out in printed.items() if line.startswith("turnkeep replay"))
    assert "generation_log_probs" in replay
    assert re.findall("`(equal: .*?)`", PAGES["docs/recipes.md"]) == [replay.splitlines()[-1]]


COMMANDS = typer.main.get_command(app)


def named_commands(text: str) -> Iterator[str]:
    """What a page calls as `turnkeep ...`: lines of blocks, and words in backquotes."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language in ("", "bash", "console"):
            yield from re.findall(r"(?:^|[|;] )turnkeep ([a-z].*)$", block, re.MULTILINE)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for found in re.findall(r"`turnkeep ([a-z][^`]*)`", prose):
        yield " ".join(found.split())


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_is_named_exists(page: str) -> None:
    """Each `turnkeep X --option` on a page is a command with that option."""
    for line in named_commands(PAGES[page]):
        words = shlex.split(line, comments=True)
        command: Any = COMMANDS
        while hasattr(command, "commands") and words:
            assert words[0] in command.commands, f"turnkeep {line}"
            command = command.commands[words.pop(0)]
        options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}
        given = {word.split("=")[0] for word in words if word.startswith("--")}
        assert given <= options, f"turnkeep {line}"


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links_and_their_anchors_lead_somewhere(page: str) -> None:
    """Every relative link is a file of the checkout, and its anchor a heading there."""
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", PAGES[page]):
        target = (ROOT / page).parent / link if link else ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{link}#{anchor}"


def test_the_index_has_every_page() -> None:
    """docs/README.md links each page of docs/ once."""
    linked = re.findall(r"^\|.*\[([\w-]+\.md)\]\(\1\)", PAGES["docs/README.md"], re.MULTILINE)
    assert sorted(linked) == sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.name != "README.md")


def test_the_extras_that_are_shown_exist() -> None:
    """Each extra in a `pip install` line is one of the project's, and README has all that a user installs."""
    text = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n[")[0]
    declared = set(re.findall(r"^(\w+) = ", text, re.MULTILINE))
    shown = {
        page: set(re.findall(r"\w+", " ".join(re.findall(r"turnkeep\[([\w,]+)\]", PAGES[page])))) for page in PAGES
    }
    assert set().union(*shown.values()) <= declared
    assert shown["README.md"] == declared


CLAUSES = re.findall(r"^- (\d+\.\d+) ", PAGES["docs/contract.md"], re.MULTILINE)


def test_the_contract_is_numbered_in_order() -> None:
    """The clauses of each section count from 1, and the sections are 1 to 10."""
    sections = [int(number) for number in re.findall(r"^## (\d+)\.", PAGES["docs/contract.md"], re.MULTILINE)]
    assert sections == [*range(1, 11)]
    counts = {section: sum(clause.startswith(f"{section}.") for clause in CLAUSES) for section in sections}
    assert [f"{section}.{number}" for section in sections for number in range(1, counts[section] + 1)] == CLAUSES


def test_each_clause_is_held_by_a_test() -> None:
    """Every clause on the page is named by some test, and no test names a clause that is not there."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py")))
    surely = set(re.findall(r"\d+\.\d+", " ".join(re.findall(r"\(contract ([\d., ]+)\)", text))))
    maybe = set(re.findall(r"\d+\.\d+", " ".join(re.findall(r"\((\d+\.\d+(?:, \d+\.\d+)*)\)\.\"\"\"", text))))
    assert [clause for clause in CLAUSES if clause not in surely | maybe] == []
    assert sorted(surely - set(CLAUSES)) == []
