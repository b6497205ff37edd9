"""NOOA's newer runtime, whose responses hold ordered `parts` and a `replay_scope`: found by feature, not by version.

There the object that a client returns is what NOOA records and hands back in the messages, so no event handler and no
formatter is needed. It is read as data, each part against its native item anew (contract 3.2): `model_validate` of an
archive keeps stale natives beside edited text, while NOOA's own editing methods strip them.
"""

from collections.abc import Mapping
from typing import Any

from turnkeep.archive.json_form import from_json
from turnkeep.history.turn import Turn, public_fields

_FINISH_REASONS = ("stop", "tool_calls", "length", "error")


def has_ordered_parts(response_type: Any) -> bool:
    """Whether NOOA's LLMResponse class is the newer one."""
    return "parts" in getattr(response_type, "model_fields", {})


def is_native_turn(message: Any) -> bool:
    """Whether a message is a newer runtime's response itself, rather than a dictionary."""
    return hasattr(message, "parts") and hasattr(message, "replay_scope")


def thaw(value: Any) -> Any:
    """Frozen JSON (mappings, tuples) as plain dictionaries and lists, sharing nothing with it."""
    if isinstance(value, Mapping):
        return {name: thaw(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [thaw(member) for member in value]
    return value


def turn_from_native(response: Any) -> Turn:
    """The turn that a newer runtime's response is. Its natives are taken as they are and checked at the projection."""
    parts = []
    for part in response.parts:
        names = ("id", "name", "arguments") if part.kind == "tool_call" else ("text",)
        fields = {name: getattr(part, name) for name in names}
        parts.append({"kind": part.kind, **fields, "native": thaw(part.native)})
    usage: Any = getattr(response, "usage", None)
    return from_json(
        {
            "parts": parts,
            "replay_scope": response.replay_scope,
            "finish_reason": response.finish_reason,
            "usage": usage.model_dump(mode="json") if hasattr(usage, "model_dump") else thaw(usage),
            "model_name": getattr(response, "model_name", None),
        }
    )


def native_response(turn: Turn, response_type: Any, part_types: Any, parsed: Any = None) -> Any:
    """The turn as the newer runtime's response: the parts with their complete items, the scope, the finish reason.

    `part_types` is the module (or namespace) with AssistantText, AssistantReasoning and ToolCall.
    """
    kinds = {
        "text": part_types.AssistantText,
        "reasoning": part_types.AssistantReasoning,
        "tool_call": part_types.ToolCall,
    }
    parts = tuple(
        kinds[part.kind](**public_fields(part), native=None if part.native is None else part.native.to_json())
        for part in turn.parts
    )
    reason = turn.finish_reason if turn.finish_reason in _FINISH_REASONS else "error"
    members: dict[str, Any] = {"parts": parts, "replay_scope": turn.scope, "finish_reason": reason}
    if turn.model_name is not None:
        members["model_name"] = turn.model_name
    if turn.usage is not None:
        members["usage"] = turn.usage
    if parsed is not None:
        members["parsed"] = parsed
    return response_type(**members)
