"""The response and the row that a run is answered with, as bytes: nothing that the policy said goes through a model.

The output holds, in the order in which things happened, every item of every turn as the rollout keeps it, between them
the output of each call as the policy got it, and each call of a resources server's tool that the agent's code made (a
`function_call` and its output with ids `resource_<n>` and without token ids: verifiers look for them, trainers pass
them over).
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeGuard

from turnkeep.errors import TurnkeepError
from turnkeep.gym.episode import Episode, OutputStep, PolicyStep, Step, ToolStep
from turnkeep.history.turn import Turn
from turnkeep.rollout.gym_row import FALLBACK_ID, response_id
from turnkeep.rollout.view import RolloutView
from turnkeep.wire.json import InexactJson, dumps, loads
from turnkeep.wire.training import TRAINING_FIELDS

NON_TRAINABLE = "non_trainable_terminal_output"
NON_TRAINABLE_DETAIL = (
    "The agent returned a value that is not the policy's last message; it was added for the verifier as a message of "
    "its own, which has no token ids."
)
_ECHOED = ("instructions", "metadata", "temperature", "top_p", "max_output_tokens")
_USAGE = ("input_tokens", "output_tokens", "total_tokens")
_USAGE_DETAILS = (("input_tokens_details", "cached_tokens"), ("output_tokens_details", "reasoning_tokens"))


class OutputItem(NamedTuple):
    """An item of the output: its JSON text, and what it says less its training fields and arrays."""

    text: bytes
    lean: Mapping[str, Any]


def output_items(rollout: RolloutView, steps: Sequence[Step]) -> Iterator[OutputItem]:
    """The items of a run's output. Raises CorruptRecord."""
    for step in steps:
        if isinstance(step, PolicyStep):
            yield from turn_items(rollout, step.call)
        else:
            items = [step.item] if isinstance(step, OutputStep) else tool_items(step)
            yield from (OutputItem(dumps(item), item) for item in items)


def turn_items(rollout: RolloutView, call: int) -> Iterator[OutputItem]:
    """A turn's items whole; of one that lives on without its natives (contract 7.9), less their training fields."""
    natives = [part.native for part in turn_of(rollout, call).parts]
    for native in natives:
        if native is not None:
            yield OutputItem(native.to_bytes(), _lean(native.skeleton()))
    if None in natives:
        for item in map(_lean, response_of(rollout, call).get("output", [])):
            yield OutputItem(dumps(item), item)


def _lean(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in TRAINING_FIELDS}


def turn_of(rollout: RolloutView, call: int) -> Turn:
    """The turn that a policy call made. Raises TurnkeepError where it made none."""
    number = rollout.calls[call].turn
    if number is None:
        raise TurnkeepError("the policy call made no turn", rollout=rollout.id, call=call)
    return rollout.turn(number)


def response_of(rollout: RolloutView, call: int) -> dict[str, Any]:
    """A policy call's response, parsed; what JSON cannot hold in it is None."""
    try:
        value: dict[str, Any] = loads(rollout.response(call) or b"{}")
    except InexactJson as error:
        value = error.value  # type: ignore[assignment]
    return value


def tool_items(step: ToolStep) -> list[dict[str, Any]]:
    """A resources server's tool call as items: the call and its output."""
    return [
        {
            "type": "function_call",
            "id": step.call_id,
            "call_id": step.call_id,
            "name": step.name,
            "arguments": step.arguments,
            "status": "completed",
        },
        {
            "type": "function_call_output",
            "call_id": step.call_id,
            "output": step.output,
            "status": "completed" if step.status == "completed" else "incomplete",
        },
    ]


def fallback_message(text: str | None, items: Sequence[OutputItem]) -> OutputItem | None:
    """The message that tells a verifier what the agent returned; None where the last item says just that already."""
    if text is None:
        return None
    last = items[-1].lean if items else {}
    if last.get("type") == "message" and last.get("status", "completed") == "completed":
        said = [block.get("text", "") for block in last.get("content", []) if block.get("type") == "output_text"]
        if "".join(said) == text:
            return None
    message = {
        "id": FALLBACK_ID,
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
    return OutputItem(dumps(message), message)


def response_bytes(
    run: Episode | None,
    params: Mapping[str, Any],
    items: Sequence[OutputItem],
    model: str,
    error: tuple[str, str] | None = None,
) -> bytes:
    """A Responses object with `items` as its output; `error` is its status and the reason, where it did not complete.

    `model` is the name where neither the request nor the policy gives one. `run` is None where none could begin.
    """
    turns = [] if run is None else [turn_of(run.rollout, step.call) for step in run.steps if _is_policy(step)]
    head = {
        "id": response_id(None if run is None else run.rollout.id),
        "object": "response",
        "created_at": 0.0 if run is None else datetime.fromisoformat(run.rollout.begun).timestamp(),
        "model": params.get("model") or (turns[-1].model_name if turns else None) or model,
        "status": "completed" if error is None else error[0],
        "error": None if error is None else {"code": "server_error", "message": error[1]},
        "incomplete_details": None,
        **{name: params.get(name) for name in _ECHOED},
        "parallel_tool_calls": params.get("parallel_tool_calls", True),
        "tool_choice": params.get("tool_choice") or "auto",
        "tools": params.get("tools") or [],
        "usage": _usage([turn.usage for turn in turns]),
    }
    return dumps(head)[:-1] + b',"output":[' + b",".join(item.text for item in items) + b"]}"


def _is_policy(step: Step) -> TypeGuard[PolicyStep]:
    return isinstance(step, PolicyStep)


def _usage(usages: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The sum, in the shape that Gym asks for; None where a call told none."""
    if not usages or any(usage is None or not all(_is_count(usage.get(name)) for name in _USAGE) for usage in usages):
        return None
    known = [usage for usage in usages if usage is not None]
    total: dict[str, Any] = {name: sum(usage[name] for usage in known) for name in _USAGE}
    for group, name in _USAGE_DETAILS:
        groups = (usage.get(group) for usage in known)
        counts = [details.get(name) for details in groups if isinstance(details, Mapping)]
        total[group] = {name: sum(count for count in counts if _is_count(count))}
    return total


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def row_bytes(members: Mapping[str, Any], response: bytes) -> bytes:
    """A row whose member `response` is the given text, wherever it stands; the last where it is not there."""
    texts = {name: dumps(value) for name, value in members.items()}
    texts["response"] = response
    return b"{" + b",".join(dumps(name) + b":" + text for name, text in texts.items()) + b"}"
