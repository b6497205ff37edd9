"""Which rollout of the store a run request is about: the one that it began, or a new one."""

import itertools
import re
from collections.abc import Collection, Mapping
from typing import Any
from uuid import uuid4

from turnkeep.errors import ConfigurationError, UnknownRollout
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.view import RolloutView
from turnkeep.store.base import Store
from turnkeep.wire.json import dumps

_TASK_KEYS = ("task_id", "problem_id", "instance_id", "_ng_task_index")
_ROLLOUT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""What Gym takes for a rollout id (`_ng_rollout_id`): it is a part of a URL and of file names there."""
_OF_AN_ATTEMPT = ("_ng_attempt_index",)
"""Members of a row that say which try this is, not what is asked for."""


def task_id(row: Mapping[str, Any]) -> str:
    """The first of the row's task keys that is there, as text; `unknown` where none is."""
    return next((str(row[key]) for key in _TASK_KEYS if row.get(key) is not None), "unknown")


def rollout_id(row: Mapping[str, Any]) -> str:
    """The id by which Gym knows the run: `_ng_rollout_id`, else `<task index>-<rollout index>`, else a random one.

    Raises ConfigurationError for an id that Gym would not take.
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
    return found


def attempt_id(row: Mapping[str, Any], known_as: str) -> str:
    """The id by which Gym knows one try of a run: what it captures is kept under it, `-a<n>` from the second try on."""
    number = row.get("_ng_attempt_index")
    return f"{known_as}-a{number}" if isinstance(number, int) and number > 0 else known_as


def pick(store: Store, known_as: str, kind: str, row: Mapping[str, Any], answered: Collection[str]) -> str:
    """The id in the store for a run that Gym knows as `known_as`: of the rollout to go on with, or of a new one.

    Gym counts tasks and rollouts anew in each collection and each training step, so an id comes again for other tasks,
    and for the same task under other weights. The newest rollout of the id is gone on with where it began with this
    request (which try it is, `_ng_attempt_index`, does not count) and was not `answered` by this process. Else the run
    is a new rollout: `3-0`, then `3-0.2`, `3-0.3` and so on.
    """
    newest = None
    for number in itertools.count(1):
        name = known_as if number == 1 else f"{known_as}.{number}"
        try:
            store.state(name)
        except UnknownRollout:
            break
        newest = name
    if newest is None or (newest not in answered and _is_of(RolloutView(store, newest), kind, row)):
        return newest or name
    return name


def claim(rollout: Rollout, kind: str, row: Mapping[str, Any]) -> None:
    """Keep the request with a new rollout. Raises ConfigurationError where it holds what another request began."""
    if rollout.origin is None and not rollout.calls:
        rollout.set_origin({"kind": kind, "request": _lasting(row)})
    elif not _is_of(rollout, kind, row):
        raise ConfigurationError("the store holds a rollout of this id that began otherwise", rollout=rollout.id)


def _is_of(rollout: RolloutView, kind: str, row: Mapping[str, Any]) -> bool:
    origin = rollout.origin
    if origin is None:
        return not rollout.calls and not rollout.turn_count
    return _sorted(origin) == _sorted({"kind": kind, "request": _lasting(row)})


def _lasting(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in _OF_AN_ATTEMPT}


def _sorted(value: Any) -> bytes:
    return dumps(_in_order(value))


def _in_order(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _in_order(value[key]) for key in sorted(value)}
    return [_in_order(element) for element in value] if isinstance(value, list | tuple) else value
