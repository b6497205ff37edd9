"""Gym's observations of a rollout, for the generations of Gym that have them (`nemo_gym.rollout_observability`).

One invocation, the agent's, with its conversation and the references of its model calls; a turn for each policy call;
a record for each tool call. Training fields are left out: the row's response has them, and Gym's strict export refuses
them here.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import msgspec

from turnkeep.gym import hop
from turnkeep.gym.answer import tool_items, turn_items, turn_of
from turnkeep.gym.episode import Episode, OutputStep, PolicyStep, ToolStep
from turnkeep.history.gaps import Gap
from turnkeep.rollout.view import RolloutView
from turnkeep.wire.training import TRAINING_FIELDS

ROOT = "root"
"""The invocation's id."""


class _Created(msgspec.Struct):
    """The one member that is read; the others, arrays among them, are passed over."""

    created_at: float = 0.0


class Told(NamedTuple):
    """What Gym is to know of a run besides its steps: ids, how it ended, its length in milliseconds, the gaps."""

    task_id: str
    model_server: str
    status: str
    error: str | None
    duration_ms: float
    gaps: Sequence[Gap]


@cache
def is_there() -> bool:
    """Whether the Gym at hand has observations."""
    return find_spec("nemo_gym.rollout_observability") is not None


def observations(episode: Episode, params: Mapping[str, Any], told: Told) -> dict[str, Any]:
    """The row's members `ng_agent_observations` and `ng_trajectory`; none where this Gym has no observations."""
    if not is_there():
        return {}
    gaps = [{"code": gap.code, "invocation_id": gap.invocation, "detail": gap.detail} for gap in told.gaps]
    invocation = _invocation(episode, params, told)
    tools = list(_tool_calls(episode))
    records = [invocation, *({name: v for name, v in tool.items() if name != "output"} for tool in tools)]
    trajectory = {
        "schema_version": "1.0",
        "task_id": told.task_id,
        "rollout_id": episode.known_as,
        "invocations": [invocation],
        "turns": list(_turns(episode, params, told)),
        "model_calls": [],
        "tool_calls": tools,
        "gaps": gaps,
    }
    return {
        "ng_agent_observations": {"source": "nooa", "records": records, "gaps": gaps},
        "ng_trajectory": trajectory,
    }


def _invocation(episode: Episode, params: Mapping[str, Any], told: Told) -> dict[str, Any]:
    calls = [step.call for step in episode.steps if isinstance(step, PolicyStep)]
    return {
        "kind": "agent_invocation",
        "invocation_id": ROOT,
        "parent_invocation_id": None,
        "spawned_by_tool_call_id": None,
        "status": told.status,
        "duration_ms": told.duration_ms,
        "error_type": told.error,
        "model_calls": [_reference(episode.rollout, call, told.model_server) for call in calls],
        "conversation": [item for item in _conversation(episode, params) if not hop.is_refused(item)],
    }


def _conversation(episode: Episode, params: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    asked = params.get("input")
    yield from map(_lean, [{"role": "user", "content": asked}] if isinstance(asked, str) else asked or [])
    for step in episode.steps:
        if isinstance(step, PolicyStep):
            yield from _lean_turn(episode.rollout, step.call)
        elif isinstance(step, OutputStep):
            yield step.item
        else:
            yield from tool_items(step)


def _turns(episode: Episode, params: Mapping[str, Any], told: Told) -> Iterable[dict[str, Any]]:
    """A turn for each policy call, its question the request's input (first) or the outputs that went to it."""
    question: list[Any] = [params.get("input")] if isinstance(params.get("input"), str) else list(params["input"])
    number = 0
    for step in episode.steps:
        if isinstance(step, OutputStep):
            question.append(step.item)
        elif isinstance(step, PolicyStep):
            number += 1
            answer = list(_lean_turn(episode.rollout, step.call))
            yield {
                "invocation_id": ROOT,
                "task_id": told.task_id,
                "rollout_id": episode.known_as,
                "turn_no": number,
                "timestamp": _created(episode.rollout, step.call),
                "question": [_lean(item) if isinstance(item, Mapping) else item for item in question],
                "answer": answer,
                "reasoning_content": turn_of(episode.rollout, step.call).reasoning,
                "resolved": None,
                "step_count": number,
                "model_calls": [_reference(episode.rollout, step.call, told.model_server)],
            }
            question = []


def _tool_calls(episode: Episode) -> Iterable[dict[str, Any]]:
    """The policy's own calls that were answered, without times, and those of the agent's code, with them."""
    names: dict[str, str] = {}
    for step in episode.steps:
        if isinstance(step, PolicyStep):
            names.update((call.id, call.name) for call in turn_of(episode.rollout, step.call).tool_calls)
        elif isinstance(step, OutputStep):
            told = {"tool_name": names.get(step.call_id), "status": "completed", "output": step.item["output"]}
            yield _tool_record(step.call_id, told)
        elif isinstance(step, ToolStep):
            yield _tool_record(step.call_id, _timed(step))


def _timed(step: ToolStep) -> dict[str, Any]:
    return {
        "tool_name": step.name,
        "started_at": step.began,
        "completed_at": step.ended,
        "duration_ms": None if step.ended is None else (step.ended - step.began) * 1000,
        "timing_source": "harness",
        "status": step.status,
        "error_type": step.error,
        "output": step.output,
    }


def _tool_record(call_id: str, told: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": "tool_call", "invocation_id": ROOT, "tool_call_id": call_id, **told}


def _lean_turn(rollout: RolloutView, call: int) -> Iterable[dict[str, Any]]:
    return (_lean(item.lean) for item in turn_items(rollout, call))


def _lean(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in TRAINING_FIELDS and value is not None}


def _reference(rollout: RolloutView, call: int, model_server: str) -> dict[str, Any]:
    """How Gym joins a call to what it captured of it: the model server and the response's id."""
    answer = turn_of(rollout, call).response_id or f"{rollout.id}-{call}"
    return {"model_ref": {"type": "responses_api_models", "name": model_server}, "response_id": answer}


def _created(rollout: RolloutView, call: int) -> float:
    try:
        return msgspec.json.decode(rollout.response(call) or b"{}", type=_Created).created_at
    except msgspec.DecodeError:
        return 0.0
