"""What README and docs say is true: their programs run, their commands exist, their names can be imported."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from turnkeep.serve.__main__ import make_parser
from turnkeep.serve.faults import NAMES
from turnkeep.serve.script import make_script
from turnkeep.serve.server import running_policy

ROOT = Path(__file__).resolve().parent.parent
DOCS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
README = DOCS["README.md"]
FIRST_SCREEN = "\n".join(README.splitlines()[:35])


def blocks(text: str, language: str = "") -> list[str]:
    """The fenced blocks of a language."""
    return [
        body
        for found, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        if found == language
    ]


def turnkeep_lines() -> list[str]:
    """The lines of README's section on commands, without their comments."""
    section = README.split("## Commands")[1].split("##")[0]
    return [line.split("  #")[0].split(" # ")[0].strip() for line in blocks(section)[0].splitlines()]


def run(command: str | list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell line or a program in `folder`, with `turnkeep` on PATH. COLUMNS keeps help on long lines."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(
        command,
        shell=isinstance(command, str),
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder in which README's first program was run."""
    folder = tmp_path_factory.mktemp("readme")
    done = run([sys.executable, "-c", blocks(README, "python")[0]], folder)
    assert (done.returncode, done.stderr) == (0, "")
    (folder / "said").write_text(done.stdout)
    (folder / "requests.jsonl").write_text('{"op": "scope", "server": "policy_model"}\n')
    return folder


def test_the_first_program_prints_what_its_comment_says(kept: Path) -> None:
    """Capture, store, reopen and project give back the log probs, in about ten lines on the first screen."""
    program = blocks(README, "python")[0]
    assert program in FIRST_SCREEN
    assert (kept / "said").read_text().strip() == program.strip().rpartition("# ")[2]
    assert len([line for line in program.splitlines() if line.strip()]) <= 14


def test_the_commands_of_the_first_screen_are_make_targets() -> None:
    """Every `make` command named anywhere is a target, and the first screen names the two that matter."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make (\w+)", FIRST_SCREEN, re.MULTILINE)) == {"demo", "test"}
    for text in DOCS.values():
        assert set(re.findall(r"(?:`|^)make (\w+)", text, re.MULTILINE)) <= targets


def test_every_command_exists_and_its_help_has_an_example(tmp_path: Path) -> None:
    """`turnkeep X --help` works for every X that README's commands name, shows an example, and none is left out."""
    named = [line.split()[1] for line in turnkeep_lines()]
    listed = re.findall(r"^│ ([a-z-]+) ", run("turnkeep --help", tmp_path).stdout.split("Commands")[-1], re.MULTILINE)
    assert sorted(named) == sorted(listed)
    for name in named:
        done = run(f"turnkeep {name} --help", tmp_path)
        assert done.returncode == 0, done.stderr
        assert "Example: turnkeep " + name in done.stdout or f"| turnkeep {name}" in done.stdout, name


QUICK = ("ls", "show", "replay", "verify", "check", "apply")


@pytest.mark.parametrize("name", QUICK)
def test_the_quick_commands_work_as_they_are_written(kept: Path, name: str) -> None:
    """README's lines run on the store that its first program made, and give JSON where they say so."""
    line = next(line for line in turnkeep_lines() if line.split()[1] == name)
    done = run(line, kept)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    if name != "apply":
        json.loads(run(f"{line} --json", kept).stdout)


def test_a_replay_as_written_has_the_log_probs(kept: Path) -> None:
    """The scope in README's replay line is that of its first program."""
    line = next(line for line in turnkeep_lines() if " replay " in line)
    assert json.loads(run(line, kept).stdout)[0]["generation_log_probs"] == [-0.25, -1.5]


@pytest.mark.nooa
def test_the_agent_runs_and_runs_again_from_the_evidence(tmp_path: Path) -> None:
    """README's agent gives its result, and the same program again gives it without a single request."""
    steps = json.loads(blocks(README, "json")[0])["steps"]
    program = blocks(README, "python")[1]
    assert program.count("http://127.0.0.1:8000") == 1
    with running_policy(script=make_script(steps)) as url:
        twice = f"text = {program.replace('http://127.0.0.1:8000', url)!r}\nexec(text)\nexec(text)\n"
        done = run([sys.executable, "-c", twice], tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-2:] == ["2 ()", "2 ()"]
        assert httpx.get(f"{url}/stats").json()["requests"] == 2


@pytest.mark.parametrize("name", DOCS)
def test_what_the_docs_import_is_there(name: str) -> None:
    """Every Python block parses, and every name that it imports from turnkeep exists."""
    for block in blocks(DOCS[name], "python"):
        tree = compile(block, name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("turnkeep"):
                module = importlib.import_module(str(node.module))
                assert [each.name for each in node.names if not hasattr(module, each.name)] == []


@pytest.mark.parametrize("name", DOCS)
def test_links_lead_somewhere(name: str) -> None:
    """Every relative link, and every source file that a doc names, is a file of the checkout."""
    folder = (ROOT / name).parent
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", DOCS[name]):
        assert (folder / link).exists(), link
    for path in re.findall(r"`(turnkeep/[\w/]+\.py)`", DOCS[name]):
        assert (ROOT / "src" / path).exists(), path


def test_the_file_tree_is_what_is_there() -> None:
    """README's tree has a line for every package, and names nothing that is gone."""
    tree = next(block for block in blocks(README) if "src/turnkeep/" in block)
    named = set(re.findall(r"^  (\w+)/", tree, re.MULTILINE))
    assert named == {path.parent.name for path in (ROOT / "src/turnkeep").glob("*/__init__.py")}
    assert all((ROOT / folder).is_dir() for folder in re.findall(r"^(\w[\w/]*)/ ", tree, re.MULTILINE))


def test_the_extras_that_are_named_exist() -> None:
    """`pip install 'turnkeep[x]'` is shown for extras that the project declares."""
    declared = set(
        re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text().split("[project.optional")[1], re.MULTILINE)
    )
    assert set(re.findall(r"turnkeep\[(\w+)\]", "".join(DOCS.values()))) <= declared


def test_the_policy_servers_guide_is_complete() -> None:
    """Its script is one, its table of faults is the server's list, and the options it names exist."""
    guide = DOCS["docs/policy-server.md"]
    assert len(make_script(json.loads(blocks(guide, "json")[0])).steps) == 2
    table = guide.split("## Faults")[1].split("##")[0]
    rows = [row for row in table.splitlines() if row.startswith("| `")]
    named = [name.split(":")[0] for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(NAMES)
    options = re.findall(r"`(--[\w-]+)", guide.split("`python -m turnkeep.serve`")[1].split("In a test")[0])
    assert len(options) == 5
    assert set(options) <= set(make_parser()._option_string_actions)
