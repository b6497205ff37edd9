"""Real Gym servers in one process, without Ray: agent, model and resources server on loopback, over real HTTP.

    with running_gym(steps, agent={"store": str(tmp_path / "t.db")}) as gym:
        answer = gym.run(row)          # POST /run of the agent server, an httpx.Response
        gym.stats()["requests"]        # what really arrived at the policy

A server is made as Gym makes it: the class in the folder's app.py that is derived from Gym's base class, the config
class that it names, the routes that it sets up, Gym's liveness, exception and (where it has one) cancellation
middleware. All of them run in one event loop, in a thread, since Gym keeps one HTTP client per process. What is not
there is what would cost a minute: Ray, the head server, an environment per server.

`gym.child(...)` runs an agent server in a process of its own that can be killed; it says the same words to Gym
(NEMO_GYM_CONFIG_DICT, NEMO_GYM_CONFIG_PATH) as Gym's command line does. Run as a program, this module is that child.
"""

import asyncio
import contextlib
import importlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import uvicorn
from nemo_gym import PARENT_DIR, global_config, server_utils
from nemo_gym.config_types import BaseServerConfig
from omegaconf import OmegaConf

from turnkeep.serve.respond import Options
from turnkeep.serve.script import make_script
from turnkeep.serve.server import running_policy

ROOT = Path(__file__).resolve().parent.parent.parent
AGENT_FOLDER = ROOT / "responses_api_agents/nooa_agent"
POLICY_FOLDER = Path(__file__).resolve().parent / "policy_model"
MADE_UP = ["prefill_", "synthetic_", "predict_", "codeact_inline_"]
"""How the ids of calls begin that NOOA makes up: the script's policy turns are counted without them."""

AGENT, MODEL = "nooa_agent", "policy_model"
"""The names of the server instances; the resources server's is its folder's name."""

TIMEOUT = 120.0


@dataclass(frozen=True)
class Place:
    """A server instance: its name, its kind as Gym's configuration calls it, its folder, its keys, its socket."""

    name: str
    kind: str
    folder: Path
    keys: dict[str, Any]
    listener: socket.socket

    @property
    def url(self) -> str:
        """The base URL."""
        host, port = self.listener.getsockname()
        return f"http://{host}:{port}"

    @property
    def config(self) -> dict[str, Any]:
        """The instance's part of Gym's global configuration."""
        host, port = self.listener.getsockname()
        keys = {"entrypoint": "app.py", "host": host, "port": port, **self.keys}
        return {self.name: {self.kind: {self.folder.name: keys}}}


@dataclass(frozen=True)
class Child:
    """An agent server in a process of its own. Its socket is its parent's, so a second child can take its place."""

    url: str
    process: subprocess.Popen[str]

    def run(self, row: dict[str, Any]) -> httpx.Response:
        """Post a row to /run; waits also while the server is still starting."""
        return httpx.post(f"{self.url}/run", json=row, timeout=TIMEOUT)

    def kill(self) -> None:
        """Kill it with SIGKILL and wait for its end."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@dataclass(frozen=True)
class RunningGym:
    """The servers' base URLs (`policy` is the embedded policy behind the model server) and Gym's configuration."""

    agent: str
    model: str
    resources: str
    policy: str
    config: dict[str, Any]
    agent_socket: socket.socket
    children: list[Child] = field(default_factory=list)

    def run(self, row: dict[str, Any], **options: Any) -> httpx.Response:
        """Post a row to the agent server's /run."""
        return httpx.post(f"{self.agent}/run", json=row, timeout=TIMEOUT, **options)

    def stats(self) -> dict[str, Any]:
        """What really arrived at the policy."""
        found: dict[str, Any] = httpx.get(f"{self.policy}/stats", timeout=TIMEOUT).json()
        return found

    def child(self, **keys: Any) -> Child:
        """Start the agent server, whose own keys may be changed by `keys`, in a process of its own.

        Needs `running_gym(..., in_process=False)`, since both would answer at one address. Its output goes to this
        process's, and the block that runs the servers kills it at its end.
        """
        config = json.loads(json.dumps(self.config))
        kind, folder = "responses_api_agents", AGENT_FOLDER.name
        config[AGENT][kind][folder] |= keys
        env = {**os.environ, "NEMO_GYM_CONFIG_DICT": json.dumps(config), "NEMO_GYM_CONFIG_PATH": AGENT}
        fd = self.agent_socket.fileno()
        command = [sys.executable, str(Path(__file__).resolve()), str(AGENT_FOLDER), str(fd)]
        process = subprocess.Popen(command, env=env, pass_fds=[fd], text=True)
        self.children.append(Child(self.agent, process))
        return self.children[-1]


def example_rows(resources: str = "example_single_tool_call") -> list[dict[str, Any]]:
    """The example rows that Gym ships with a resources server."""
    path = PARENT_DIR / "resources_servers" / resources / "data/example.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


@contextlib.contextmanager
def running_gym(
    steps: list[Any] | dict[str, Any],
    *,
    agent: dict[str, Any] | None = None,
    resources: str = "example_single_tool_call",
    model: str = "bytes",
    faults: tuple[str, ...] = (),
    options: Options | None = None,
    extra: dict[str, Any] | None = None,
    in_process: bool = True,
) -> Iterator[RunningGym]:
    """Run a policy that says `steps` and Gym's three servers over it; gives where they are.

    `agent` are the agent server's own keys beside its two references; `resources` a resources server that Gym ships.
    `model` is `bytes` (ours, which hands bytes on) or `typed` (Gym's own openai_model, which reads and writes with
    Gym's models, as vllm_model does). `extra` are top-level keys of Gym's configuration. With `in_process=False` no
    agent server runs until `child()` starts one. Not to be nested: Gym's configuration is one per process.
    """
    script = make_script(steps if isinstance(steps, dict) else {"made_up": MADE_UP, "steps": steps})
    with running_policy(script=script, faults=faults, options=options) as policy, contextlib.ExitStack() as stack:
        places = [_agent(resources, agent or {}), _model(model, policy), _resources(resources)]
        for place in places:
            stack.enter_context(place.listener)
        config = _global_config(places, extra or {})
        urls = [place.url for place in places]
        gym = RunningGym(urls[0], urls[1], urls[2], policy, config, places[0].listener)
        with _configured(config), _serving(places if in_process else places[1:]):
            try:
                yield gym
            finally:
                for child in gym.children:
                    child.kill()


def _agent(resources: str, keys: dict[str, Any]) -> Place:
    references = {
        "resources_server": {"type": "resources_servers", "name": resources},
        "model_server": {"type": "responses_api_models", "name": MODEL},
    }
    return Place(AGENT, "responses_api_agents", AGENT_FOLDER, {**references, **keys}, _listen())


def _model(kind: str, policy: str) -> Place:
    if kind == "bytes":
        return Place(MODEL, "responses_api_models", POLICY_FOLDER, {"base_url": policy}, _listen())
    keys = {"openai_base_url": f"{policy}/v1", "openai_api_key": "none", "openai_model": "gym-policy"}
    folder = PARENT_DIR / "responses_api_models/openai_model"
    return Place(MODEL, "responses_api_models", folder, keys, _listen())


def _resources(name: str) -> Place:
    folder = PARENT_DIR / "resources_servers" / name
    return Place(name, "resources_servers", folder, {"domain": "agent", "verified": False}, _listen())


def _listen() -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    return listener


def _global_config(places: list[Place], extra: dict[str, Any]) -> dict[str, Any]:
    """What Gym's command line would hand to each server."""
    head = {"head_server": {"host": "127.0.0.1", "port": 1}, "dry_run": False}
    return {**head, **{name: part for place in places for name, part in place.config.items()}, **extra}


@contextlib.contextmanager
def _configured(config: dict[str, Any]) -> Iterator[None]:
    """Make Gym's configuration that of this process, as Gym does for a server's process."""
    before = global_config._GLOBAL_CONFIG_DICT
    global_config._GLOBAL_CONFIG_DICT = OmegaConf.create(config)
    try:
        yield
    finally:
        global_config._GLOBAL_CONFIG_DICT = before


@contextlib.contextmanager
def _serving(places: list[Place]) -> Iterator[None]:
    """Serve while the block runs, in a thread with one event loop."""
    servers = [make_server(place.folder, place.name) for place in places]
    running = [uvicorn_server(server) for server in servers]

    async def serve() -> None:
        listeners = [place.listener for place in places]
        await asyncio.gather(*(each.serve(sockets=[at]) for each, at in zip(running, listeners, strict=True)))
        await _close_client()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="gym-servers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        for each in running:
            each.should_exit = True
        thread.join()


async def _close_client() -> None:
    """Close Gym's HTTP client, which belongs to the loop that ends here."""
    if server_utils._GLOBAL_AIOHTTP_CLIENT is not None:
        await server_utils._GLOBAL_AIOHTTP_CLIENT.close()
        server_utils._GLOBAL_AIOHTTP_CLIENT = None


def make_server(folder: Path, name: str) -> Any:
    """Make the server of a folder's app.py as Gym's `run_webserver` does; the configuration is Gym's global one."""
    app = load_app(folder)
    made: list[Any] = [each for each in vars(app).values() if isinstance(each, type)]
    servers = [each for each in made if _is_server(each, app.__name__)]
    assert len(servers) == 1, f"{folder}/app.py has {len(servers)} server classes"
    keys = global_config.get_first_server_config_dict(global_config.get_global_config_dict(), name)
    config_class = servers[0].model_fields["config"].annotation
    config = config_class.model_validate(OmegaConf.to_container(keys, resolve=True) | {"name": name})
    client = server_utils.ServerClient(
        head_server_config=BaseServerConfig.model_validate(global_config.get_global_config_dict()["head_server"]),
        global_config_dict=global_config.get_global_config_dict(),
    )
    return servers[0](config=config, server_client=client)


def _is_server(found: type, module: str) -> bool:
    return issubclass(found, server_utils.SimpleServer) and found.__module__ == module


def load_app(folder: Path) -> ModuleType:
    """Import a server folder's app.py: by its name where it lies in an environment, else by its path."""
    if folder.is_relative_to(PARENT_DIR):
        return importlib.import_module(".".join((*folder.relative_to(PARENT_DIR).parts, "app")))
    name = f"{folder.name}_app"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, folder / "app.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def uvicorn_server(server: Any) -> uvicorn.Server:
    """Put a server's routes, with Gym's middleware in Gym's order, into a uvicorn that is ready to serve."""
    app = server.setup_webserver()
    server.setup_liveness(app)
    server.setup_exception_middleware(app)
    if hasattr(server, "setup_cancellation_middleware"):
        server.setup_cancellation_middleware(app)
    quiet: dict[str, Any] = {"log_config": None, "log_level": "critical", "access_log": False}
    return uvicorn.Server(uvicorn.Config(app, ws="none", timeout_graceful_shutdown=1, **quiet))


def main() -> None:
    """Serve the folder and the listening file descriptor that are named on the command line."""
    server = make_server(Path(sys.argv[1]), os.environ["NEMO_GYM_CONFIG_PATH"])
    with socket.socket(fileno=int(sys.argv[2])) as listener:
        uvicorn_server(server).run(sockets=[listener])


if __name__ == "__main__":
    main()
