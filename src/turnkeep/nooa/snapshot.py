"""Events travel in NOOA's JSON snapshot, which by itself holds an agent's state and context blocks but no events.

They ride in an attribute of the agent while NOOA takes the snapshot, so they are one of the snapshot's `attributes`,
and leave it again when it is restored. The model sees the attribute at no time.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from nooa.context_blocks import EventBase
from nooa.storage import snapshot_from_json, snapshot_to_json

from turnkeep.errors import ArchiveError
from turnkeep.nooa.stored import SNAPSHOT_EVENTS


def save_snapshot(agent: Any) -> dict[str, Any]:
    """NOOA's JSON snapshot of `agent`, with its events: plain JSON values, for `json.dumps`."""
    events = [json.loads(event.model_dump_json()) for event in agent.event_manager.filter()]
    setattr(agent, SNAPSHOT_EVENTS, json.dumps({"events": events, "shown": agent.event_manager.keys()}))
    try:
        snapshot: dict[str, Any] = snapshot_to_json(agent)
    finally:
        delattr(agent, SNAPSHOT_EVENTS)
    return {**snapshot, "type_allowlist": sorted(snapshot["type_allowlist"])}


def restore_snapshot(snapshot: Mapping[str, Any], agent: Any) -> None:
    """Put a snapshot's state and events into a freshly made agent whose history is empty.

    Raises ArchiveError where the snapshot holds no events, or an event of a class that this process has not imported.
    """
    snapshot_from_json(dict(snapshot), agent)
    text = agent.__dict__.pop(SNAPSHOT_EVENTS, None)
    if text is None:
        raise ArchiveError("the snapshot holds no events: it was not made by save_snapshot", field=SNAPSHOT_EVENTS)
    held = json.loads(text)
    classes = {_event_type(cls): cls for cls in _subclasses(EventBase)}
    for members in held["events"]:
        if members["event_type"] not in classes:
            raise ArchiveError(f"no event class {members['event_type']!r} is imported", field="event_type")
    backend = agent.event_manager._backend
    for members in held["events"]:
        event = classes[members["event_type"]].model_validate(members)
        backend.store(event.tag, event)
    for tag in backend.active_tags():
        backend.remove_active_tag(tag)
    for place, tag in enumerate(held["shown"]):
        backend.insert_active_tag(tag, place)


def _event_type(cls: Any) -> str:
    return str(cls.model_fields["event_type"].default or cls.__name__)


def _subclasses(cls: Any) -> Iterator[Any]:
    for each in cls.__subclasses__():
        yield each
        yield from _subclasses(each)
