"""What a Gym agent server is told, checked at its start, each fault in one sentence that names the key."""

import importlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import nooa
from turnkeep.errors import ConfigurationError, StoreError
from turnkeep.history.scope import DEFAULT_ALIAS, Scope
from turnkeep.store.base import Store
from turnkeep.store.open import open_store

TASK_AGENT = "turnkeep.gym.task:TaskAgent"
TASK_ADAPTER = "turnkeep.gym.task:solve"
STORE = "turnkeep.db"

type Adapter = Callable[[Any, Any], Awaitable[object]]
"""Calls the agent with a Responses request (Gym's `NeMoGymResponseCreateParamsNonStreaming`)."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """How an agent is made and called: its class, the adapter, the keyword arguments of the class besides `llm`."""

    agent_class: type
    adapter: Adapter
    init_kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Setup:
    """What every rollout of a server has in common. Times are in seconds."""

    model_server: str
    invocation: Invocation
    model: str = DEFAULT_ALIAS
    max_policy_calls: int = 10
    run_timeout_secs: float = 2100
    sampling: Mapping[str, Any] = field(default_factory=dict)
    embed: Literal["archive", "reference"] = "reference"
    on_malformed: Literal["raise", "gap"] = "raise"
    prefix_guard: Literal["withhold", "send"] = "withhold"
    resume: bool = True

    @property
    def scope(self) -> Scope:
        """The scope of the turns: the model server's name and the alias."""
        return Scope(self.model_server, self.model)


def read_invocation(
    agent_class: str, invocation_adapter: str, execution_mode: str, init_kwargs: Mapping[str, Any]
) -> Invocation:
    """Import what the keys of the block `nooa` name. Raises ConfigurationError."""
    if execution_mode != "embedded":
        raise ConfigurationError("nooa.execution_mode: only 'embedded' exists; put a sandbox around the server")
    if "llm" in init_kwargs:
        raise ConfigurationError("nooa.init_kwargs: 'llm' is given to each rollout's agent by the server")
    made = _import("nooa.agent_class", agent_class, "ClassName")
    if not (inspect.isclass(made) and issubclass(made, nooa.Agent)):
        raise ConfigurationError(f"nooa.agent_class: {agent_class} is no subclass of nooa.Agent")
    adapter = _import("nooa.invocation_adapter", invocation_adapter, "function_name")
    if not inspect.iscoroutinefunction(adapter):
        raise ConfigurationError(f"nooa.invocation_adapter: {invocation_adapter} is no async function")
    _check_call("nooa.init_kwargs", made, {"llm": None, **init_kwargs})
    _check_call("nooa.invocation_adapter", adapter, {}, None, None)
    _check_methods(agent_class, made)
    return Invocation(made, adapter, dict(init_kwargs))


def _import(key: str, path: str, what: str) -> Any:
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name.isidentifier():
        raise ConfigurationError(f"{key}: {path!r} is not of the form module.path:{what}")
    try:
        return getattr(importlib.import_module(module_name), name)
    except ImportError as error:
        raise ConfigurationError(f"{key}: {module_name} cannot be imported: {error}") from error
    except AttributeError:
        raise ConfigurationError(f"{key}: {module_name} has no {name}") from None


def _check_call(key: str, callee: Any, named: Mapping[str, Any], *given: Any) -> None:
    try:
        inspect.signature(callee).bind(*given, **named)
    except TypeError as error:
        raise ConfigurationError(f"{key}: {callee.__qualname__} cannot be called so: {error}") from None


def _check_methods(path: str, agent_class: type) -> None:
    """A method with a client of its own would call a policy that the rollout does not see."""
    own = [name for name, value in inspect.getmembers_static(agent_class) if getattr(value, "_plan_llm", None)]
    if own:
        raise ConfigurationError(f"nooa.agent_class: {path} gives an llm of its own to {', '.join(own)}")


def check_servers(known: Mapping[str, Any], refs: Mapping[str, tuple[str, str]]) -> None:
    """That each reference (key: type and name) is in Gym's global configuration. Raises ConfigurationError."""
    for key, (kind, name) in refs.items():
        entry = known.get(name)
        if not isinstance(entry, Mapping) or kind not in entry:
            of_kind = [each for each, value in known.items() if isinstance(value, Mapping) and kind in value]
            there = f"there are {', '.join(map(str, of_kind))}" if of_kind else "there are none"
            raise ConfigurationError(f"{key}: no server {name!r} among the {kind} that are configured; {there}")


def open_configured_store(url: str, folder: str | Path = ".") -> Store:
    """The store of a server; a relative path is below `folder`. Raises ConfigurationError where it cannot be opened."""
    try:
        return open_store(_below(folder, url))
    except (ConfigurationError, StoreError, OSError) as error:
        raise ConfigurationError(f"store: {url} cannot be opened for writing: {error}") from error


def _below(folder: str | Path, url: str) -> str:
    path = url.removeprefix("sqlite:///")
    return url if url == "memory:" or not path or "://" in path else str(Path(folder) / path)


def faults_in_words(errors: Iterable[Mapping[str, Any]]) -> str:
    """Pydantic's errors, a sentence each, as `key: what is wrong`."""
    return "; ".join(_fault_in_words(error) for error in errors)


def _fault_in_words(error: Mapping[str, Any]) -> str:
    if error["type"] == "value_error":  # one of ours, which pydantic has wrapped
        return str(error["ctx"]["error"])
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"{key}: there is no such key"
    if error["type"] == "missing":
        return f"{key}: this key is needed"
    return f"{key}: {error['msg']}, not {error['input']!r}"
