"""What `scripts/test-gym` does where there is no Python 3.13, told by running it on a PATH of its own."""

import shutil
import subprocess
from pathlib import Path

import pytest
from servers import ROOT

TOOLS = ("cat", "cksum", "dirname", "rm")
PYTHON = "#!/bin/sh\nexit {fits}\n"
UV = '#!/bin/sh\n[ "$*" = --version ] && exit 0\necho "$*" >>calls\n[ "$1" = pip ] && exit 1\nexit {makes_venv}\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Give a checkout with the script alone, and a PATH with a uv that makes no environment."""
    made = tmp_path / "checkout"
    for folder in ("scripts", "bin"):
        (made / folder).mkdir(parents=True)
    shutil.copy(ROOT / "scripts/test-gym", made / "scripts/test-gym")
    for name in ("scripts/gym07.txt", "pyproject.toml"):
        (made / name).write_text(f"{name}\n")
    for name in TOOLS:
        (made / "bin" / name).symlink_to(str(shutil.which(name)))
    write(made / "bin/uv", UV.format(makes_venv=1))
    return made


def write(path: Path, text: str) -> None:
    """Write a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def run(checkout: Path) -> subprocess.CompletedProcess[str]:
    """Run the script in a checkout, on its PATH alone."""
    env = {"PATH": str(checkout / "bin"), "PYENV_ROOT": str(checkout / "pyenv"), "HOME": str(checkout)}
    command = ["/bin/sh", str(checkout / "scripts/test-gym")]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_without_a_python_3_13_the_tests_are_skipped_in_one_line(checkout: Path) -> None:
    """Where there is none and uv fetches none, the last line says what was skipped and why; that is no failure."""
    write(checkout / "bin/python3", PYTHON.format(fits=1))
    done = run(checkout)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1].startswith("test-gym: skipped: there is no Python 3.13 here")
    assert (checkout / "calls").read_text().splitlines() == ["venv --quiet --python 3.13 .gym07"]


def test_a_python_of_pyenv_is_found(checkout: Path) -> None:
    """A 3.13 below PYENV_ROOT makes the environment where PATH has another Python alone."""
    write(checkout / "bin/python3", PYTHON.format(fits=1))
    wanted = checkout / "pyenv/versions/3.13.0/bin/python"
    write(wanted, PYTHON.format(fits=0))
    run(checkout)
    assert (checkout / "calls").read_text().splitlines()[0] == f"venv --quiet --python {wanted} .gym07"


def test_an_environment_that_cannot_be_made_is_a_failure(checkout: Path) -> None:
    """With a 3.13 at hand, an environment that uv does not make of it is no reason to skip."""
    write(checkout / "bin/python3.13", PYTHON.format(fits=0))
    done = run(checkout)
    assert done.returncode == 1
    assert "skipped" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("test-gym: .gym07 could not be made with ")


def test_without_uv_nothing_is_skipped(checkout: Path) -> None:
    """Where there is no uv the script says what gets one, and fails."""
    (checkout / "bin/uv").unlink()
    done = run(checkout)
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["test-gym: there is no uv: make setup gets it"]


def test_a_failed_download_is_a_failure(checkout: Path) -> None:
    """With a 3.13 at hand, packages that do not come are no reason to skip: the exit code says so."""
    write(checkout / "bin/python3.13", PYTHON.format(fits=0))
    write(checkout / "bin/uv", UV.format(makes_venv=0))
    assert run(checkout).returncode == 1
    assert "pip install" in (checkout / "calls").read_text()
