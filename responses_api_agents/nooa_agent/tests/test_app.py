"""The server as Gym's own tests make one: without other servers, run by `gym env test` or from the repository."""

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from app import TurnkeepAgent, TurnkeepAgentConfig
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.server_utils import ServerClient
from starlette.testclient import TestClient


def make(tmp_path: Path, **keys: Any) -> TurnkeepAgent:
    """A server whose references lead nowhere."""
    config = TurnkeepAgentConfig(
        name="nooa_agent",
        host="127.0.0.1",
        port=1,
        entrypoint="app.py",
        resources_server=ResourcesServerRef(type="resources_servers", name="resources"),
        model_server=ModelServerRef(type="responses_api_models", name="policy_model"),
        store=str(tmp_path / "turnkeep.db"),
        **keys,
    )
    return TurnkeepAgent(config=config, server_client=MagicMock(spec=ServerClient))


def test_the_store_is_made_at_start_and_closed_with_the_web_server(tmp_path: Path) -> None:
    """A server that has come up has a store to write to."""
    server = make(tmp_path)
    with TestClient(server.setup_webserver()):
        assert (tmp_path / "turnkeep.db").is_file()
    server.close()


def test_a_request_that_is_none_is_refused(tmp_path: Path) -> None:
    """What is no run request gets a 422 in words."""
    with TestClient(make(tmp_path).setup_webserver()) as client:
        answer = client.post("/run", content=b"[]")
    assert answer.status_code == 422
    assert "responses_create_params" in answer.json()["error"]["message"]


def test_an_agent_class_that_is_none_is_refused(tmp_path: Path) -> None:
    """What the configuration names must be there when the server starts."""
    with pytest.raises(ValueError, match=r"nooa.agent_class: builtins has no Agent"):
        make(tmp_path, nooa={"agent_class": "builtins:Agent"})
