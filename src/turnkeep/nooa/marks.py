"""Marks: what the adapter writes into the metadata of a NOOA event, and what a message carries of it. Pure.

An event that holds (part of) a turn has `metadata["turnkeep"]`, a small mark, and at most one event of the turn has
`metadata["turnkeep_archive"]`, the whole turn as one opaque text. NOOA reads every event at every call, so the archive
is a text that JSON readers pass over, and it is apart from the mark so that updating the mark need not rewrite it.

The mark's members:
  key     this turn's place in this history, made up (two calls may bring turns of equal digest)
  turn    the turn's digest; absent in a stand-in whose turn is on another event
  rollout the rollout that made the turn
  kind    "text" (LLMOutput), "call" (ToolCallEvent), "silent" (an event that NOOA does not show as the policy's: the
          turn stands before it), "stand-in" (a tool call that NOOA made out of the turn's text)
  seen    fingerprint of the event's public data as NOOA left it, its own rewrites included; another one is an edit
  calls   on the first event of a turn of several calls: the ids that NOOA recorded; those missing were dropped
"""

import hashlib
import json
from typing import Any, NotRequired, TypedDict

MARK = "turnkeep"
ARCHIVE = "turnkeep_archive"


class Mark(TypedDict):
    """A mark as it stands in an event's metadata; plain JSON."""

    key: str
    kind: str
    seen: str
    turn: NotRequired[str]
    rollout: NotRequired[str]
    calls: NotRequired[list[str]]


class Carried(TypedDict, total=False):
    """What a chat message carries under `MARK` from the event it was made of: the mark's members and two more."""

    kind: str
    key: str
    turn: str
    rollout: str
    calls: list[str]
    edited: dict[str, str]
    """Present when the event's public data is no longer what NOOA left: the public fields as they are now."""


RUNTIME: Carried = {"kind": "runtime"}
"""Carried by an assistant entry that NOOA itself made, by its own records (contract 5.4)."""


def fingerprint(event: Any) -> str:
    """Of the public data of a ToolCallEvent (id, name, arguments) or of an event with `content`; stable over JSON."""
    if hasattr(event, "tool_call_id"):
        value: Any = [event.tool_call_id, event.name, event.arguments]
    else:
        value = event.content
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:32]


def public_fields(event: Any) -> dict[str, str]:
    """The public fields of an event as texts: `id`, `name`, `arguments` of a call, else `text`."""
    if hasattr(event, "tool_call_id"):
        return {"id": event.tool_call_id, "name": event.name, "arguments": json.dumps(event.arguments)}
    return {"text": event.content}


def is_made_by_nooa(event: Any) -> bool:
    """Whether NOOA made this assistant event, by its own records: a prefill, an inline return, or a summary."""
    if getattr(event, "event_type", None) == "Summary":
        return True
    made = event.metadata.get("prefill") or event.metadata.get("synthetic")
    return bool(made) and hasattr(event, "tool_call_id") and hasattr(event, "arguments")


def carried_by(event: Any) -> Carried | None:
    """What the message of `event` is to carry, or None for an event that is nobody's turn."""
    mark: Mark | None = event.metadata.get(MARK)
    if mark is None:
        return RUNTIME if is_made_by_nooa(event) else None
    names = ("kind", "key", "turn", "rollout", "calls")
    carried: Carried = {name: mark[name] for name in names if name in mark}  # type: ignore[assignment, literal-required]
    if mark["seen"] and mark["seen"] != fingerprint(event):
        carried["edited"] = public_fields(event)
    return carried
