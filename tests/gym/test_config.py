"""Every fault of a configuration is found at start and said in one sentence that names the key."""

from pathlib import Path
from typing import Any

import pytest
from nemo_gym import global_config, server_utils
from nemo_gym.config_types import BaseServerConfig
from omegaconf import OmegaConf
from servers import AGENT_FOLDER, load_app

CONFIG: dict[str, Any] = {
    "name": "agent",
    "host": "127.0.0.1",
    "port": 1,
    "entrypoint": "app.py",
    "resources_server": {"type": "resources_servers", "name": "weather"},
    "model_server": {"type": "responses_api_models", "name": "policy_model"},
}
SERVERS = {
    "weather": {"resources_servers": {"example_single_tool_call": {"host": "127.0.0.1", "port": 2}}},
    "policy_model": {"responses_api_models": {"vllm_model": {"host": "127.0.0.1", "port": 3}}},
    "head_server": {"host": "127.0.0.1", "port": 4},
    "dry_run": True,
}


def make(tmp_path: Path, **keys: Any) -> Any:
    """The server with keys changed; None takes one away."""
    app = load_app(AGENT_FOLDER)
    value = {**CONFIG, "store": str(tmp_path / "t.db"), **keys}
    client = server_utils.ServerClient(
        head_server_config=BaseServerConfig(host="127.0.0.1", port=4), global_config_dict=OmegaConf.create(SERVERS)
    )
    config = app.TurnkeepAgentConfig(**{name: part for name, part in value.items() if part is not None})
    return app.TurnkeepAgent(config=config, server_client=client)


def test_the_defaults_are_those_of_the_adapter_that_gym_ships(tmp_path: Path) -> None:
    """Two references suffice: ten policy calls, 2100 seconds, the task agent, embedded; ours beside it."""
    server = make(tmp_path)
    config = server.config
    server.close()
    assert (config.max_policy_calls, config.run_timeout_secs, config.nooa.execution_mode) == (10, 2100, "embedded")
    assert (config.nooa.agent_class, config.nooa.init_kwargs) == ("turnkeep.gym.task:TaskAgent", {})
    assert (config.model, config.resume, config.on_malformed, config.prefix_guard) == (
        "gym-policy",
        True,
        "raise",
        "withhold",
    )


def nooa(**keys: Any) -> dict[str, Any]:
    """The block `nooa` of a test's agent, with keys changed."""
    return {"nooa": {"agent_class": "echoing:Echo", "invocation_adapter": "echoing:ask", **keys}}


@pytest.mark.parametrize(
    ("keys", "key", "words"),
    [
        ({"max_policy_cals": 3}, "max_policy_cals", "there is no such key"),
        ({"max_policy_calls": 0}, "max_policy_calls", "greater than 0"),
        ({"run_timeout_secs": -1}, "run_timeout_secs", "greater than 0"),
        ({"resources_server": None}, "resources_server", "this key is needed"),
        ({"on_malformed": "ignore"}, "on_malformed", "'raise' or 'gap'"),
        ({"prefix_guard": "guess"}, "prefix_guard", "'withhold' or 'send'"),
        (nooa(agent="x"), "nooa.agent", "there is no such key"),
        (nooa(agent_class="echoing"), "nooa.agent_class", "module.path:ClassName"),
        (nooa(agent_class="no_such_module:X"), "nooa.agent_class", "no_such_module cannot be imported"),
        (nooa(agent_class="echoing:Nobody"), "nooa.agent_class", "echoing has no Nobody"),
        (nooa(agent_class="echoing:Word"), "nooa.agent_class", "no subclass of nooa.Agent"),
        (nooa(agent_class="echoing:OwnModel"), "nooa.agent_class", "llm of its own to say"),
        (nooa(invocation_adapter="echoing:not_async"), "nooa.invocation_adapter", "no async function"),
        (nooa(invocation_adapter="echoing:"), "nooa.invocation_adapter", "module.path:function_name"),
        (nooa(execution_mode="sandboxed"), "nooa.execution_mode", "only 'embedded' exists"),
        (nooa(init_kwargs={"llm": 1}), "nooa.init_kwargs", "'llm'"),
        (nooa(init_kwargs={"colour": 1}), "nooa.init_kwargs", "colour"),
        ({"sampling": {"temprature": 1}}, "sampling.temprature", "there is no such key"),
        ({"sampling": {"temperature": "hot"}}, "sampling.temperature", "valid number"),
        ({"sampling": {"input": "x"}}, "sampling.input", "comes from the history"),
        ({"sampling": {"model": "x"}}, "sampling.model", "comes from the key model"),
        ({"sampling": {"tools": []}}, "sampling.tools", "comes from the agent"),
        ({"sampling": {"temperature": float("nan")}}, "sampling.temperature", "is no JSON number"),
        ({"num_workers": 2}, "num_workers", "would answer a row that is to be sampled again from evidence"),
        ({"store": "/proc/none/t.db"}, "store", "cannot be opened for writing"),
        ({"store": "postgres://host/db"}, "store", "cannot be opened for writing"),
        (
            {"model_server": {"type": "responses_api_models", "name": "policy"}},
            "model_server",
            "no server 'policy' among the responses_api_models that are configured; there are policy_model",
        ),
    ],
)
def test_a_fault_names_its_key_in_one_sentence(tmp_path: Path, keys: dict[str, Any], key: str, words: str) -> None:
    """Whatever is wrong, the sentence begins with the key and says what is wrong with it."""
    told = refusal(tmp_path, keys)
    assert told.startswith(f"{key}: ")
    assert words in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def x(:\n", "SyntaxError: invalid syntax"),
        ("import os\nos.no_such_name\n", "AttributeError: module 'os' has no attribute 'no_such_name'"),
        ("raise RuntimeError('two\\nlines')\n", "RuntimeError: two lines"),
    ],
)
def test_a_module_that_fails_while_it_is_imported_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    """Whatever an agent's module raises, the sentence names the key, the module and the error."""
    name = f"broken_{len(text)}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    told = refusal(tmp_path, nooa(agent_class=f"{name}:X"))
    assert told.startswith(f"nooa.agent_class: {name} cannot be imported: {words}")
    assert "\n" not in told


def test_several_workers_are_taken_where_nothing_is_resumed(tmp_path: Path) -> None:
    """With `resume: false` every run is a new rollout, whichever process it comes to."""
    make(tmp_path, num_workers=2, resume=False).close()


def refusal(tmp_path: Path, keys: dict[str, Any]) -> str:
    """What the server says to a configuration that cannot work."""
    app = load_app(AGENT_FOLDER)
    with pytest.raises(ValueError) as caught:
        make(tmp_path, **keys)
    return str(app.in_words(caught.value))


def test_started_by_gym_a_fault_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a key that is none in Gym's configuration the server ends with one line on stderr and exit code 2."""
    agent = {"responses_api_agents": {"nooa_agent": {**CONFIG, "max_policy_cals": 3}}}
    monkeypatch.setattr(global_config, "_GLOBAL_CONFIG_DICT", OmegaConf.create({**SERVERS, "agent": agent}))
    monkeypatch.setattr(server_utils, "initialize_ray", lambda: None)
    monkeypatch.setenv("NEMO_GYM_CONFIG_PATH", "agent")
    with pytest.raises(SystemExit) as ended:
        load_app(AGENT_FOLDER).main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "turnkeep agent: max_policy_cals: there is no such key\n"
