"""What `scripts/setup` decides, told by running it on a PATH of its own: no network, no interpreter but fakes."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("cat", "cksum", "dirname", "head", "mkdir", "rm", "tail")

PYTHON = """#!/bin/sh
case "$*" in
"-c import sys, sysconfig"*) echo "{version}" ;;
"-m pip --version") exit {pip} ;;
"-m pip "*) mkdir -p .tools/uv/bin; cp "{fetched}" .tools/uv/bin/uv ;;
"-m venv "*) exit {venv} ;;
*) exit 9 ;;
esac
"""
"""A Python of some version. `pip` and `venv` are the exit codes of those modules; pip installs the file `fetched`."""

UV = """#!/bin/sh
[ "$*" = --version ] && exit {runs}
echo "$*" >>"{log}"
case "$1" in
venv)
    [ {makes_venv} = 0 ] || exit 1
    mkdir -p .venv/bin
    cat "{python}" >.venv/bin/python
    chmod +x .venv/bin/python ;;
sync) mkdir -p .venv; exit {syncs} ;;
esac
"""
"""A uv that writes down what it was called with. `python` is what it puts into an environment."""


class Machine:
    """A checkout and a PATH on which nothing is but what a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self.bin, self.pyenv = folder / "checkout", folder / "bin", folder / "pyenv"
        self.log = folder / "uv.log"
        (self.checkout / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        shutil.copy(ROOT / "scripts/setup", self.checkout / "scripts/setup")
        for name in ("uv.lock", "pyproject.toml"):
            (self.checkout / name).write_text(f"{name}\n")
        for name in (*TOOLS, "chmod", "cp"):
            found = shutil.which(name)
            assert found is not None
            (self.bin / name).symlink_to(found)
        self.usable = self.add(folder / "usable", PYTHON, version="3.12")

    def add(self, place: Path | str, script: str, **values: object) -> Path:
        """Put a fake onto PATH, or anywhere else."""
        path = self.bin / place
        path.parent.mkdir(parents=True, exist_ok=True)
        usual = {"pip": 1, "venv": 1, "fetched": "", "runs": 0, "makes_venv": 0, "syncs": 0, "log": self.log}
        python = {"python": getattr(self, "usable", "")}
        path.write_text(script.format(**{**usual, **python, **values}))
        path.chmod(0o755)
        return path

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the script."""
        env = {"PATH": str(self.bin), "HOME": str(self.bin), "PYENV_ROOT": str(self.pyenv), **environment}
        command = ["/bin/sh", str(self.checkout / "scripts/setup"), *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)

    def shown(self, **environment: str) -> dict[str, str]:
        """What `--show` says."""
        done = self.run("--show", **environment)
        assert done.returncode == 0, done.stderr
        return dict(line.split(": ", 1) for line in done.stdout.splitlines())

    @property
    def calls(self) -> list[str]:
        """What uv was called with."""
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Give a machine without any Python or uv."""
    return Machine(tmp_path)


def test_a_python_on_path_counts_only_when_it_runs(machine: Machine) -> None:
    """A `python3.12` that fails, as pyenv's shims do, is passed over for the next that is a 3.12 or 3.13."""
    machine.add("python3.12", "#!/bin/sh\necho 'pyenv: python3.12: command not found' >&2\nexit 127\n")
    machine.add("python3", PYTHON, version="3.11")
    wanted = machine.add("python3.13", PYTHON, version="3.13")
    assert machine.shown()["python"] == str(wanted)


@pytest.mark.parametrize("version", ["3.11", "3.14", "2.7", ""])
def test_other_versions_are_passed_over_for_one_of_pyenv(machine: Machine, version: str) -> None:
    """Where PATH has no 3.12 or 3.13 that wheels are made for, one below PYENV_ROOT is found."""
    machine.add("python3", PYTHON, version=version)
    machine.add(machine.pyenv / "versions/3.11.7/bin/python", PYTHON, version="3.11")
    wanted = machine.add(machine.pyenv / "versions/3.13.0/bin/python", PYTHON, version="3.13")
    assert machine.shown()["python"] == str(wanted)


def test_a_real_python_is_asked_for_its_version(machine: Machine) -> None:
    """The question put to a candidate is one that a real interpreter answers."""
    wanted = machine.add("python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    assert machine.shown()["python"] == str(wanted)


def test_uv_python_decides(machine: Machine) -> None:
    """UV_PYTHON is left to uv: nothing is searched and no environment is made with another Python."""
    machine.add("python3.12", PYTHON, version="3.12")
    machine.add("uv", UV)
    assert machine.shown(UV_PYTHON="3.13")["python"] == "3.13"
    assert machine.run(UV_PYTHON="3.13").returncode == 0
    assert machine.calls == ["sync --locked --quiet"]


def test_a_uv_counts_only_when_it_runs(machine: Machine) -> None:
    """A `uv` that fails, as pyenv's shims do, is passed over for the one fetched before."""
    machine.add("uv", UV, runs=127)
    assert machine.shown()["uv"].startswith("none found")
    machine.add(machine.checkout / ".tools/uv/bin/uv", UV)
    assert machine.shown()["uv"] == ".tools/uv/bin/uv"


def test_the_second_run_does_nothing(machine: Machine) -> None:
    """Set-up makes an environment with the Python it found and fills it; done once, it calls uv no more."""
    python = machine.add("python3.12", PYTHON, version="3.12")
    machine.add("uv", UV)
    assert machine.run().returncode == 0
    assert machine.calls == [f"venv --quiet --python {python} .venv", "sync --locked --quiet"]
    again = machine.run()
    assert (again.returncode, again.stdout, again.stderr, len(machine.calls)) == (0, "", "", 2)


def test_a_new_lock_is_synced_into_the_same_environment(machine: Machine) -> None:
    """When uv.lock or pyproject.toml changed, packages are synced and the environment stays."""
    machine.add("python3.12", PYTHON, version="3.12")
    machine.add("uv", UV)
    for name in ("uv.lock", "pyproject.toml"):
        machine.run()
        before = len(machine.calls)
        (machine.checkout / name).write_text("changed\n")
        assert machine.run().returncode == 0
        assert machine.calls[before:] == ["sync --locked --quiet"]


def test_a_checkout_that_was_moved_gets_a_new_environment(machine: Machine) -> None:
    """An environment names its folder in its scripts, so one that came along with a copy is made anew."""
    python = machine.add("python3.12", PYTHON, version="3.12")
    machine.add("uv", UV)
    machine.run()
    machine.checkout = machine.checkout.rename(machine.checkout.with_name("moved"))
    assert machine.run().returncode == 0
    assert machine.calls[2:] == [f"venv --quiet --python {python} .venv", "sync --locked --quiet"]


def test_uv_is_fetched_with_any_python_that_has_pip(machine: Machine) -> None:
    """A Python too old for turnkeep fetches uv into the checkout, which git then ignores."""
    uv = machine.add(machine.pyenv / "uv-from-pypi", UV)
    machine.add("python3", PYTHON, version="3.8", pip=0, fetched=uv)
    machine.add(machine.pyenv / "versions/3.12.1/bin/python", PYTHON, version="3.12")
    done = machine.run()
    assert done.returncode == 0, done.stderr
    assert machine.calls[-1] == "sync --locked --quiet"
    assert (machine.checkout / ".tools/.gitignore").read_text() == "*\n"


def last_sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The line that a failed run ends in."""
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_no_python_at_all_is_said(machine: Machine) -> None:
    """Without any Python and without uv the last line says so and what to install."""
    assert "no Python at all runs here: install one" in last_sentence(machine.run())


def test_a_python_without_pip_and_venv_is_said(machine: Machine) -> None:
    """A Python that cannot fetch anything, as Debian's bare one, is named as the reason."""
    machine.add("python3", PYTHON, version="3.12")
    assert "no Python here has pip or venv" in last_sentence(machine.run())


def test_a_failed_fetch_is_said(machine: Machine) -> None:
    """Without a network the reason that pip gives stands above the sentence."""
    script = PYTHON.replace("mkdir -p .tools/uv/bin", "echo 'no route to host' >&2; exit 1")
    machine.add("python3", script, version="3.12", pip=0)
    done = machine.run()
    assert "uv could not be fetched from PyPI" in last_sentence(done)
    assert "no route to host" in done.stderr


def test_no_suitable_python_is_said(machine: Machine) -> None:
    """uv's own download is the last resort, and where it fails the last line says what to do."""
    machine.add("python3", PYTHON, version="3.11")
    machine.add("uv", UV, makes_venv=1)
    assert "install one (Debian, Ubuntu: apt-get install python3; pyenv:" in last_sentence(machine.run())
    assert machine.calls == ["venv --quiet --python >=3.12,<3.14 .venv"]


def test_a_failed_sync_is_said_and_tried_again(machine: Machine) -> None:
    """What was not filled is not taken for ready."""
    machine.add("python3.12", PYTHON, version="3.12")
    machine.add("uv", UV, syncs=2)
    assert "uv could not fill .venv from uv.lock" in last_sentence(machine.run())
    machine.add("uv", UV)
    assert machine.run().returncode == 0


def test_an_unknown_argument_is_refused(machine: Machine) -> None:
    """A misspelt option sets nothing up."""
    assert "unknown argument --shwo" in last_sentence(machine.run("--shwo"))
    assert not (machine.checkout / ".venv").exists()


@pytest.mark.parametrize("name", ["scripts/setup", ".ci/run"])
def test_scripts_can_be_run(name: str) -> None:
    """Make calls scripts by name, so they are executable."""
    assert os.access(ROOT / name, os.X_OK)


def test_what_is_published_can_be_set_up(tmp_path: Path) -> None:
    """The source distribution has every file that the Makefile and the scripts go by, and they are executable there."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        modes = {member.name.partition("/")[2]: member.mode for member in archive}
    assert {"Makefile", "pyproject.toml", "uv.lock", "scripts/gym07.txt"} <= set(modes)
    assert all(modes[name] & 0o100 for name in ("scripts/setup", "scripts/test-gym", ".ci/run"))
