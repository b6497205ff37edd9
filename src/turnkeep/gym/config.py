"""What a Gym agent server is told, checked at its start, each fault in one sentence that names the key."""

import importlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import nooa
from turnkeep.errors import ConfigurationError, StoreError
from turnkeep.history.scope import Scope
from turnkeep.store.base import Store
from turnkeep.store.open import open_store
from turnkeep.wire.json import find_unwritable, render_path

TASK_AGENT = "turnkeep.gym.task:TaskAgent"
TASK_ADAPTER = "turnkeep.gym.task:solve"
STORE = "turnkeep.db"
_LONGEST = 200

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
    model: str
    max_policy_calls: int
    run_timeout_secs: float
    sampling: Mapping[str, Any]
    embed: Literal["archive", "reference"]
    on_malformed: Literal["raise", "gap"]
    prefix_guard: Literal["withhold", "send"]
    resume: bool

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


def check_sampling(sampling: Mapping[str, Any]) -> None:
    """That each member is one that Gym's model servers take, and has its type. Raises ConfigurationError."""
    elsewhere = {"model": "the key model", "tools": "the agent"}
    for name, place in {"input": "the history", "instructions": "the history", **elsewhere}.items():
        if name in sampling:
            raise ConfigurationError(f"sampling.{name}: it comes from {place}")
    if (fault := find_unwritable(sampling)) is not None:
        raise ConfigurationError(f"sampling.{render_path(fault.path)}: {fault.reason}")
    read_request("sampling", {"input": "", **sampling})


def read_request(key: str, params: Mapping[str, Any]) -> Any:
    """Gym's object of a Responses request. Raises ConfigurationError that names the member, below `key`."""
    from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
    from pydantic import ValidationError

    try:
        return NeMoGymResponseCreateParamsNonStreaming.model_validate(params)
    except ValidationError as error:
        faults = [{**each, "loc": (key, *_place(each, params))} for each in error.errors()]
        raise ConfigurationError(_fault_in_words(max(faults, key=lambda each: len(each["loc"])))) from None


def _place(error: Mapping[str, Any], value: Any) -> list[str | int]:
    """Where an error is in the value given: pydantic's place without the types that it tried, which it names too."""
    place = []
    for step in error["loc"]:
        if isinstance(value, Mapping):
            here = step in value
        else:
            here = isinstance(value, Sequence) and isinstance(step, int) and step < len(value)
        if here:
            place.append(step)
            value = value[step]
    return [*place, error["loc"][-1]] if error["type"] == "missing" else place


def check_workers(num_workers: int | None, *, resume: bool) -> None:
    """That all runs are answered by one process, which alone knows what it answered. Raises ConfigurationError."""
    if resume and (num_workers or 1) > 1:
        raise ConfigurationError(
            f"num_workers: {num_workers} processes do not know of each other which rollouts they have answered, and "
            "would answer a row that is to be sampled again from evidence; give 1, or resume: false"
        )


def _import(key: str, path: str, what: str) -> Any:
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name.isidentifier():
        raise ConfigurationError(f"{key}: {path!r} is not of the form module.path:{what}")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a module raises while it is imported
        words = f"{type(error).__name__}: {error}".replace("\n", " ")
        raise ConfigurationError(f"{key}: {module_name} cannot be imported: {words}") from error
    if not hasattr(module, name):
        raise ConfigurationError(f"{key}: {module_name} has no {name}")
    return getattr(module, name)


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
    ours = error.get("ctx", {}).get("error")
    if isinstance(ours, ConfigurationError):  # which pydantic has wrapped
        return str(ours)
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"{key}: there is no such key"
    if error["type"] == "missing":
        return f"{key}: this key is needed"
    return f"{key}: {_shortened(error['msg'])}, not {_shortened(repr(error['input']))}"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
