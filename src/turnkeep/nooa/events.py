"""Event handlers: they put a turn into the metadata of the NOOA events that it becomes, before those are stored.

NOOA adds an LLMOutput after every response. CodeAct then removes it and adds a ToolCallEvent for each call that it
gets to; a text-only turn becomes a TextOnlyReply (never shown to the model) and a tool call that NOOA makes up; a call
whose arguments are no JSON becomes an Error alone. Handlers run inside EventManager.add, ahead of the storage.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4
from weakref import WeakSet

from turnkeep.history.turn import Turn
from turnkeep.nooa.marks import ARCHIVE, MARK, Mark, fingerprint

_HANDLED = ("LLMCallStart", "LLMOutput", "ToolCallEvent", "TextOnlyReply", "DebugTrace", "Error", "AfterTurn")


@dataclass
class Flight:
    """A turn between the client's return and the end of NOOA's turn: what events it has become so far."""

    turn: Turn
    rollout: str
    archive: str | None
    """The whole turn as one text, or None where the store keeps it (`embed="reference"`)."""
    tools: bool
    """Whether the call offered tools, so that CodeAct replaces the LLMOutput of a turn with calls."""
    key: str = field(default_factory=lambda: uuid4().hex)
    events: list[Any] = field(default_factory=list)
    archived: Any = None
    """The event that has the archive."""
    stand_in: bool = False
    generation: str | None = field(default_factory=lambda: _generation.get())
    """NOOA's generation that the call belongs to, by its own event; sealed when that generation's turn ends."""


_generation: ContextVar[str | None] = ContextVar("turnkeep_nooa_generation", default=None)
current: ContextVar[Flight | None] = ContextVar("turnkeep_nooa_flight", default=None)
"""The turn that this context's last call brought. Concurrent generations run in contexts of their own."""


_heard: WeakSet[Any] = WeakSet()


def is_heard(event_manager: Any) -> bool:
    """Whether the turns of this event manager's agent are kept."""
    return event_manager in _heard


def listen(event_manager: Any) -> None:
    """Keep the turns of this event manager's agent in its events, from now on. Twice is as good as once."""
    if is_heard(event_manager):
        return
    _heard.add(event_manager)
    flights: list[Flight] = []
    for kind in _HANDLED:
        event_manager.on(kind, _handler(kind, event_manager, flights))


def _handler(kind: str, event_manager: Any, flights: list[Flight]) -> Callable[[Any], None]:
    if kind == "LLMCallStart":
        return _on_call_start
    if kind == "LLMOutput":
        return lambda event: _on_output(event, event_manager, flights)
    if kind == "ToolCallEvent":
        return lambda event: _on_call(event, flights)
    if kind == "AfterTurn":
        return lambda event: _seal(event, event_manager, flights)
    return lambda event: _on_silent(event, event_manager)


def _on_call_start(event: Any) -> None:
    _generation.set(event.generation_id)


def _on_output(event: Any, event_manager: Any, flights: list[Flight]) -> None:
    flight = current.get()
    if flight is None or _shown(flight, event_manager):
        return
    if flight not in flights:
        flights.append(flight)
    replaced = flight.tools and bool(flight.turn.tool_calls)
    _house(flight, event, "text", archive=not replaced)


def _shown(flight: Flight, event_manager: Any) -> bool:
    """Whether an event of the flight still stands: strategies remove an LLMOutput before they add what replaces it."""
    shown = set(event_manager.keys()) if flight.events else set()
    return any(each.tag in shown for each in flight.events)


def _on_call(event: Any, flights: list[Flight]) -> None:
    flight = _flight_of(event.tool_call_id, flights)
    if flight is not None:
        _house(flight, event, "call")
        return
    flight = current.get()
    if flight is None or flight.stand_in or flight.turn.tool_calls or event.metadata.get("prefill"):
        return
    made_of_text = event.metadata.get("synthetic_type") in ("predict_return_result", "text_response")
    silent = any(_kind(each) == "silent" for each in flight.events)
    if made_of_text or (silent and event.tool_call_id.startswith("synthetic_")):
        flight.stand_in = True
        _house(flight, event, "stand-in", archive=not silent, turn=not silent)


def _on_silent(event: Any, event_manager: Any) -> None:
    """An event that tells what became of a turn which NOOA does not record as the policy's own."""
    flight = current.get()
    if flight is None or any(_kind(each) in ("call", "silent", "stand-in") for each in flight.events):
        return
    told = {
        "TextOnlyReply": True,
        "DebugTrace": _is_empty(flight.turn),
        "Error": not _shown(flight, event_manager),
    }
    if told[event.event_type]:
        _house(flight, event, "silent")


def _is_empty(turn: Turn) -> bool:
    return not turn.content.strip() and not turn.tool_calls


def _flight_of(call_id: str, flights: list[Flight]) -> Flight | None:
    """The turn that made a call: this context's own first, since equal requests may get equal ids."""
    own = current.get()
    for flight in ([own] if own is not None else []) + flights[::-1]:
        if any(call.id == call_id for call in flight.turn.tool_calls) and not _has_call(flight, call_id):
            return flight
    return None


def _has_call(flight: Flight, call_id: str) -> bool:
    return any(_kind(event) == "call" and event.tool_call_id == call_id for event in flight.events)


def _kind(event: Any) -> str:
    return str(event.metadata[MARK]["kind"])


def _house(flight: Flight, event: Any, kind: str, *, archive: bool = True, turn: bool = True) -> None:
    """Mark an event as (part of) the flight's turn; the first that may have the archive gets it."""
    seen = "" if event.event_type in ("Error", "DebugTrace") else fingerprint(event)  # their text is not the policy's
    mark: Mark = {"key": flight.key, "kind": kind, "seen": seen}
    if turn:
        mark["turn"] = flight.turn.digest
        mark["rollout"] = flight.rollout
    event.metadata[MARK] = mark
    if flight.archive is not None and archive and (flight.archived is None or _kind(flight.archived) == "text"):
        event.metadata[ARCHIVE] = flight.archive
        flight.archived = event
    flight.events.append(event)


def _seal(after: Any, event_manager: Any, flights: list[Flight]) -> None:
    """At the end of NOOA's turn: what NOOA rewrote since it added an event is no edit; what it dropped is known."""
    own = current.get()
    for flight in [each for each in flights if each is own or each.generation == after.generation_id]:
        flights.remove(flight)
        calls = [event for event in flight.events if _kind(event) == "call"]
        for event in calls:
            _seal_event(event_manager, flight, event, [each.tool_call_id for each in calls])
    if own is not None and own not in flights:
        current.set(None)


def _seal_event(event_manager: Any, flight: Flight, event: Any, calls: list[str]) -> None:
    now = event_manager.get(event.tag) if event.tag is not None else None
    if now is None or MARK not in now.metadata:
        return
    mark: Mark = dict(now.metadata[MARK])  # type: ignore[assignment]
    mark["seen"] = fingerprint(now)
    if len(flight.turn.tool_calls) > 1 and calls and event.tool_call_id == calls[0]:
        mark["calls"] = calls
    if mark != now.metadata[MARK]:
        event_manager.update(event.tag, metadata={MARK: mark})
