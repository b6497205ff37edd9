"""What turnkeep itself says in a row of NeMo Gym, written by the agent server and by exports, and read by imports.

The member `turnkeep` names the rollout, its gaps, and the failure of one that is not to be graded. The agent server
adds items that no policy said, known by their ids: calls of the resources server's tools that the agent's code made,
and a message that has what the agent returned.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from turnkeep.errors import ArchiveError
from turnkeep.history.gaps import UNGRADABLE, Gap, gap

MEMBER = "turnkeep"
FALLBACK_ID = "nooa_fallback"
"""The id of the message that has what the agent returned."""


class Told(NamedTuple):
    """What the member of a row tells: the rollout, and its gaps, one of them for a failure."""

    rollout: str | None
    gaps: tuple[Gap, ...]


def write_member(rollout: str | None, gaps: Iterable[Gap], failure: Mapping[str, Any] | None) -> dict[str, Any]:
    """The member; `failure` is why the rollout is not to be graded, with its `type`, or None."""
    return {"rollout": rollout, "gaps": [each._asdict() for each in gaps], "failure": failure}


def read_member(row: Mapping[str, Any]) -> Told | None:
    """What a row's member tells; None where the row has none of ours. Raises ArchiveError where its gaps are none."""
    member = row.get(MEMBER)
    if not isinstance(member, dict) or "gaps" not in member:
        return None
    gaps = member["gaps"]
    if not isinstance(gaps, list):
        raise ArchiveError("gaps is not a list", field=MEMBER)
    for index, each in enumerate(gaps):
        if not _is_gap(each):
            raise ArchiveError("a gap is {code, invocation or null, detail or null}", field=MEMBER, index=index)
    failed = () if member.get("failure") is None else (gap(UNGRADABLE),)
    return Told(member.get("rollout"), (*(Gap(**each) for each in gaps), *failed))


def _is_gap(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != set(Gap._fields):
        return False
    code, *rest = (value[name] for name in Gap._fields)
    return isinstance(code, str) and all(each is None or isinstance(each, str) for each in rest)


def resource_id(number: int) -> str:
    """The id of a tool call that the agent's code made, by its number in the run."""
    return f"resource_{number}"


def is_of_server(item: Mapping[str, Any]) -> bool:
    """Whether an output item of a row that has the member was added by the agent server."""
    name = item.get("id")
    if item.get("type") == "message":
        return name == FALLBACK_ID
    is_call = item.get("type") == "function_call" and name == item.get("call_id")
    return is_call and isinstance(name, str) and re.fullmatch("resource_[0-9]+", name) is not None


def response_id(rollout: str | None) -> str:
    """The id of the agent server's response, whose status is that of the run and of no policy call."""
    return "turnkeep-none" if rollout is None else f"turnkeep-{rollout}"
