"""The commands of docs/gym.md, run as they stand and in their order: Gym's own command line, Ray and all.

It takes minutes, so only with TURNKEEP_E2E_GYM=1. What a reader does by hand is done here: terminals of their own
(`turnkeep serve-policy`, `gym env start`), waiting until the servers are ready and four rollouts have ended, and the
killing. Besides: `turnkeep` is the wheel of this checkout instead of PyPI's.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
GUIDE = (ROOT / "docs/gym.md").read_text(encoding="utf-8")
OWN_TERMINAL = ("turnkeep serve-policy", "RAY_AUTH_MODE=disabled gym env start")
POLICY = "http://127.0.0.1:8000"
PATIENCE = 600.0

pytestmark = pytest.mark.skipif(os.environ.get("TURNKEEP_E2E_GYM") != "1", reason="TURNKEEP_E2E_GYM=1 runs it")


@dataclass
class Desk:
    """A folder, and the terminals that are open in it."""

    folder: Path
    terminals: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def words(self, block: str) -> list[str]:
        """Say a block to bash, in the environment that the guide made."""
        return ["bash", "-ec", f"[ ! -d .venv ] || . .venv/bin/activate\n{block}"]

    def run(self, block: str) -> str:
        """Run a block to its end; give what it printed."""
        done = subprocess.run(
            self.words(block), cwd=self.folder, env=environment(), capture_output=True, text=True, check=False
        )
        print(block, done.stdout, done.stderr, sep="\n")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def open(self, block: str) -> subprocess.Popen[bytes]:
        """Run a block in a terminal of its own; its output goes to a file."""
        with (self.folder / f"terminal-{len(self.terminals)}.log").open("wb") as log:
            opened = subprocess.Popen(
                self.words(block), cwd=self.folder, env=environment(), stdout=log, stderr=log, start_new_session=True
            )
        self.terminals.append(opened)
        return opened

    def log(self, number: int) -> str:
        """What a terminal shows."""
        return (self.folder / f"terminal-{number}.log").read_text(errors="replace")

    def kill(self) -> None:
        """Kill all that runs in the terminals with SIGKILL, grandchildren too: the machine loses power."""
        sessions = ",".join(str(opened.pid) for opened in self.terminals)
        listed = subprocess.run(["ps", "-o", "pid=", "-s", sessions], capture_output=True, text=True, check=False)
        for pid in map(int, listed.stdout.split()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for opened in self.terminals:
            opened.wait()


def environment() -> dict[str, str]:
    """This process's environment, without the checkout's virtual environment."""
    left_out = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    env = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**env, "COLUMNS": "200", "NO_COLOR": "1"}


def guide_blocks() -> Iterator[str]:
    """The guide's blocks, in order."""
    yield from re.findall(r"^```bash\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def install_line(block: str, wheel: Path) -> str:
    """The install block, with this checkout's wheel and the Python that runs the tests."""
    named = block.replace("'turnkeep[gym,serve]'", shlex.quote(f"{wheel}[gym,serve]"))
    return named.replace("--python 3.12", f"--python {shlex.quote(sys.executable)}")


def wait_until(holds: Any, what: str) -> None:
    """Wait for something that comes, however slow the machine is; fail where it does not come at all."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(1)


def is_served() -> bool:
    """Whether the policy answers."""
    with suppress(httpx.HTTPError):
        return httpx.get(f"{POLICY}/health").status_code == 200
    return False


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rollouts that Gym has written so far."""
    path = folder / "results/rollouts.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Give a folder to work in, and leave no process behind."""
    made = Desk(tmp_path)
    yield made
    made.kill()


def test_the_guide_leads_to_a_resumed_rollout(desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> None:
    """From an empty folder to five graded rollouts, one of which was killed and asked the policy but once more."""
    built = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)], cwd=ROOT, check=True)
    install, links, script, policy, servers, collect, look, policy_again, resume = guide_blocks()
    assert policy.startswith(OWN_TERMINAL[0])
    assert servers.startswith(OWN_TERMINAL[1])
    desk.run(install_line(install, next(built.glob("*.whl"))))
    desk.run(links)
    desk.run(script)
    desk.open(policy)
    wait_until(is_served, "the policy's first answer")
    start_servers(desk, servers)
    desk.open(collect)
    wait_until(lambda: len(rows(desk.folder)) == 4, "the end of four rollouts")
    assert httpx.get(f"{POLICY}/stats").json()["requests"] == 10
    desk.kill()
    assert [line.split()[1:3] for line in desk.run(look).splitlines()[1:]].count(["2", "2"]) == 4

    desk.open(policy_again)
    wait_until(is_served, "the policy's first answer")
    start_servers(desk, servers)
    said = desk.run(resume)
    assert httpx.get(f"{POLICY}/stats").json()["requests"] == 1
    collected = rows(desk.folder)
    assert [row["reward"] for row in collected] == [1.0] * 5
    assert len({row["turnkeep"]["rollout"] for row in collected}) == 5
    resumed = [row for row in collected if row["turnkeep"]["recorded_calls"]]
    assert [row["turnkeep"]["policy_calls"] for row in resumed] == [2]
    assert all(trained(row) == 2 for row in collected)
    print(said)


def start_servers(desk: Desk, block: str) -> None:
    """Start Gym's servers and wait until they are ready."""
    opened, number = desk.open(block), len(desk.terminals) - 1

    def is_ready() -> bool:
        assert opened.poll() is None, desk.log(number)
        return "servers ready! Polling" in desk.log(number)

    wait_until(is_ready, "the servers' start")


def trained(row: dict[str, Any]) -> int:
    """How many items of a row a trainer would train on."""
    return len([item for item in row["response"]["output"] if item.get("generation_token_ids")])
