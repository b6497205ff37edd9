"""The agent's folder: what the wheel makes of it, that Gym finds it there, and that its configuration is one."""

import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from nemo_gym import PARENT_DIR
from servers import AGENT_FOLDER, ROOT, load_app, running_gym

IN_WHEEL = "responses_api_agents/turnkeep_nooa_agent"
CONFIGS = ("nooa_agent.yaml", "turnkeep_nooa_agent.yaml", "example_single_tool_call.yaml")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a Python into whose environment the wheel was installed, beside all that is in this one."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin/python"
    there = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    ours = Path(sysconfig.get_path("purelib"))
    for entry in ours.iterdir():
        if entry.name != "responses_api_agents" and "turnkeep" not in entry.name:
            (there / entry.name).symlink_to(entry)
    (there / "responses_api_agents").mkdir()
    for entry in (ours / "responses_api_agents").iterdir():
        (there / "responses_api_agents" / entry.name).symlink_to(entry)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(there)
    return python


def names_in(wheel: Path) -> set[str]:
    """The files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def gym(python: Path, folder: Path, *arguments: str) -> str:
    """Run Gym's command in `folder` as another user's process would; give what it prints."""
    words = ["-c", "from nemo_gym.cli.main import main; main()", *arguments]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(python), *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read_config(name: str) -> dict[str, Any]:
    """The agent's own block of a configuration file; its folder must be the one that the wheel has."""
    found = yaml.safe_load((AGENT_FOLDER / "configs" / name).read_text())
    block: dict[str, Any] = found["turnkeep_nooa_agent"]["responses_api_agents"]["turnkeep_nooa_agent"]
    return block


def test_the_wheel_has_what_a_server_needs_and_nothing_else(wheel: Path) -> None:
    """Gym's layout under a name of its own, no benchmark, no file in the folder that others share."""
    ours = {name for name in names_in(wheel) if name.startswith("responses_api_agents/")}
    assert {name.split("/")[1] for name in ours} == {"turnkeep_nooa_agent"}
    needed = ("app.py", "requirements.txt", "overrides-gym-0.4.txt", "README.md", "data/example.jsonl")
    configs = (f"configs/{name}" for name in CONFIGS[1:])
    assert {f"{IN_WHEEL}/{name}" for name in (*needed, *configs)} <= ours
    assert not [name for name in ours if "benchmarks" in name or name.endswith("configs/nooa_agent.yaml")]
    assert {name.split("/")[0] for name in names_in(wheel)} == {"turnkeep", "responses_api_agents"} | {
        name.split("/")[0] for name in names_in(wheel) if ".dist-info/" in name
    }


def test_the_wheel_overwrites_no_file_of_gym(wheel: Path) -> None:
    """No file of the wheel is one of the installed Gym's, which from 0.7.0 on ships a `nooa_agent` of its own."""
    theirs = {str(path) for path in importlib.metadata.files("nemo-gym") or ()}
    assert len(theirs) > 1000
    assert theirs & names_in(wheel) == set()


def test_an_installed_wheel_is_found_by_gym(installed: Path, tmp_path: Path) -> None:
    """`gym list agents` names it with its configurations, and one of them resolves from any folder."""
    listed = {each["name"]: each for each in json.loads(gym(installed, tmp_path, "list", "agents", "--json"))}
    assert "simple_agent" in listed
    assert listed["turnkeep_nooa_agent"]["variants"] == ["example_single_tool_call", "turnkeep_nooa_agent"]
    config = f"{IN_WHEEL}/configs/example_single_tool_call.yaml"
    model = ("--model-type", "openai_model", "--model-url", "http://127.0.0.1:1/v1", "--model-api-key", "none")
    assert "valid" in gym(installed, tmp_path, "env", "validate", "--config", config, *model, "-m", "gym-policy")


def test_both_names_in_a_checkout_are_one_folder() -> None:
    """The name that configurations use, which is the wheel's, leads to the folder in a checkout too."""
    assert (ROOT / IN_WHEEL).resolve() == AGENT_FOLDER
    assert (AGENT_FOLDER / "configs/turnkeep_nooa_agent.yaml").resolve() == AGENT_FOLDER / "configs/nooa_agent.yaml"
    assert not (ROOT / "responses_api_agents/__init__.py").exists()


@pytest.mark.parametrize("name", CONFIGS)
def test_every_configuration_is_one_that_the_server_accepts(name: str) -> None:
    """A file's block, with what Gym adds, is a configuration, and what it writes out are the defaults."""
    block = read_config(name)
    if block["resources_server"]["name"] == "???":
        block["resources_server"]["name"] = "example_single_tool_call"
    config_class = load_app(AGENT_FOLDER).TurnkeepAgentConfig
    added = {"host": "127.0.0.1", "port": 1, "name": "turnkeep_nooa_agent"}
    config = config_class.model_validate({**block, **added})
    least = {key: block[key] for key in ("entrypoint", "resources_server", "model_server")}
    default = config_class.model_validate({**least, **added})
    shown = {key: value for key, value in config.model_dump().items() if key not in ("datasets", "description")}
    assert shown == {key: default.model_dump()[key] for key in shown}


def test_the_base_configuration_shows_every_key_of_ours() -> None:
    """Each key that the server reads besides Gym's own stands in the file, with its default."""
    config_class = load_app(AGENT_FOLDER).TurnkeepAgentConfig
    ours = set(config_class.__annotations__) - {"datasets", "description", "model_config"}
    assert ours <= set(read_config("nooa_agent.yaml"))


def test_the_example_rows_run() -> None:
    """Five rows, as Gym wants them, and the default agent gets each of them done and graded."""
    rows = [json.loads(line) for line in (AGENT_FOLDER / "data/example.jsonl").read_text().splitlines()]
    assert len(rows) == 5
    assert len({row["task_id"] for row in rows}) == 5
    code = {"code": "print(await self.get_weather(city='Oslo'))"}
    steps = [
        [{"call": "execute_python", "arguments": code}],
        [{"call": "return_result", "arguments": {"result": "It is cold."}}],
    ]
    with running_gym(steps, agent={"store": "memory:"}) as servers:
        answers = [servers.run({**row, "_ng_task_index": at, "_ng_rollout_index": 0}) for at, row in enumerate(rows)]
        assert [answer.status_code for answer in answers] == [200] * 5
        assert [answer.json()["reward"] for answer in answers] == [1.0] * 5
        assert "The weather in Oslo is cold" in answers[0].text


def test_the_override_for_older_gyms_is_the_one_that_is_tested() -> None:
    """The file that users install with says what the checkout's environment is locked with."""
    lines = (AGENT_FOLDER / "overrides-gym-0.4.txt").read_text().splitlines()
    override = next(line for line in lines if not line.startswith("#"))
    assert f'override-dependencies = ["{override}"]' in (ROOT / "pyproject.toml").read_text()
    assert PARENT_DIR.name == "site-packages"


def test_a_relative_store_lies_where_gym_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gym starts a server in the server's own folder: a relative path counts from Gym's, which it hands on."""
    monkeypatch.chdir(tmp_path)
    started = tmp_path / "project"
    started.mkdir()
    for name, url in (("a.db", "a.db"), ("b.db", "sqlite:///b.db")):
        with running_gym([], agent={"store": url}, extra={"uv_venv_dir": str(started)}):
            assert (started / name).exists()
    with running_gym([], agent={"store": f"sqlite:///{tmp_path}/c.db"}, extra={"uv_venv_dir": str(started)}):
        assert (tmp_path / "c.db").exists()


def test_the_folders_own_tests_pass() -> None:
    """What `gym env test` runs in the agent's folder passes: pytest there, with the folder on the path."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    env = {**os.environ, "PYTHONPATH": str(AGENT_FOLDER)}
    done = subprocess.run(command, cwd=AGENT_FOLDER, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
