"""Which rollout a run request is about, and whether it is the request that the rollout began with."""

import re
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from turnkeep.errors import ConfigurationError
from turnkeep.rollout.record import Rollout
from turnkeep.wire.json import dumps

_TASK_KEYS = ("task_id", "problem_id", "instance_id", "_ng_task_index")
_ROLLOUT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""What Gym takes for a rollout id (`_ng_rollout_id`): it is a part of a URL and of file names there."""
_OF_AN_ATTEMPT = ("_ng_attempt_index",)
"""Members of a row that say which try this is, not what is asked for."""


def task_id(row: Mapping[str, Any]) -> str:
    """The first of the row's task keys that is there, as text; `unknown` where none is."""
    return next((str(row[key]) for key in _TASK_KEYS if row.get(key) is not None), "unknown")


def rollout_id(row: Mapping[str, Any], *, resume: bool = True) -> str:
    """`_ng_rollout_id`, else `<task index>-<rollout index>`, else a random one.

    Without `resume` a suffix makes it a new one each time. Which try this is (`_ng_attempt_index`) does not count: a
    try after one that was cut short goes on with it. Raises ConfigurationError for an id that Gym would not take.
    """
    found = row.get("_ng_rollout_id")
    if found is None and row.get("_ng_task_index") is not None and row.get("_ng_rollout_index") is not None:
        found = f"{row['_ng_task_index']}-{row['_ng_rollout_index']}"
    if found is None:
        return uuid4().hex
    if not isinstance(found, str) or not _ROLLOUT_ID.fullmatch(found):
        raise ConfigurationError(
            f"_ng_rollout_id: letters, digits, dots, dashes and underscores, beginning with one of the first two, "
            f"not {found!r}"
        )
    return found if resume else f"{found}-{uuid4().hex[:8]}"


def claim(rollout: Rollout, kind: str, row: Mapping[str, Any]) -> None:
    """Keep the request with a new rollout; of one met again, see that it is the same request.

    Raises ConfigurationError where the rollout holds another request, or turns that came from elsewhere.
    """
    asked = {"kind": kind, "request": _lasting(row)}
    origin = rollout.origin
    if origin is None and not rollout.calls:
        rollout.set_origin(asked)
    elif origin is None or _sorted(origin) != _sorted(asked):
        raise ConfigurationError(
            "the store holds a rollout of this id that began with another request: give this run a store of its own, "
            "or a `_ng_rollout_id`, or set resume to false",
            rollout=rollout.id,
        )


def _lasting(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in _OF_AN_ATTEMPT}


def _sorted(value: Any) -> bytes:
    return dumps(_in_order(value))


def _in_order(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _in_order(value[key]) for key in sorted(value)}
    return [_in_order(element) for element in value] if isinstance(value, list | tuple) else value
