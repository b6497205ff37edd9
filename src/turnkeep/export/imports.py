"""What every import does: a rollout comes in whole, in one transaction, and nothing that is there is written over."""

from collections.abc import Iterable, Mapping
from typing import Any

from turnkeep.errors import (
    ArchiveError,
    ConfigurationError,
    CorruptRecord,
    MalformedItem,
    RolloutBusy,
    UnknownRollout,
    UnsupportedClientCall,
)
from turnkeep.history.gaps import Gap
from turnkeep.history.turn import Turn
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.view import RolloutView
from turnkeep.store.base import Store

OF_ONE_ROLLOUT = (ArchiveError, ConfigurationError, CorruptRecord, MalformedItem, RolloutBusy, UnsupportedClientCall)
"""Errors that are about one row or document; others, such as a full disk, end the import."""


def turns_there(store: Store, rollout: str, about: Mapping[str, Any], scope: str | None) -> int | None:
    """How many turns the rollout has, where the same was imported before; None where there is nothing yet.

    The same means that its origin has all members of `about`, and its scope is `scope`. A rollout that was begun and
    never written, as an import leaves it that was killed between the two, is nothing. Raises ConfigurationError.
    """
    try:
        view = RolloutView(store, rollout)
    except UnknownRollout:
        return None
    origin = view.origin
    if origin is None and not (view.turn_count or view.calls or view.used or view.failures or view.tools()):
        return None
    if origin is None or any(origin.get(name) != value for name, value in about.items()):
        raise ConfigurationError("the store holds another rollout of this id; it is left as it is", rollout=rollout)
    if view.scope != scope:
        raise ConfigurationError(f"it was imported under the scope {view.scope}, not {scope}", rollout=rollout)
    if view.turn_count != origin["turns"]:
        raise ConfigurationError("it was imported, and has gone on since; it is left as it is", rollout=rollout)
    return view.turn_count


def keep_whole(
    store: Store,
    rollout: str,
    turns: Iterable[Turn],
    origin: Mapping[str, Any],
    *,
    scope: str | None,
    gaps: Iterable[Gap] = (),
) -> None:
    """Keep a new rollout, all of it in one transaction. Raises ConfigurationError where another process was quicker."""
    with Rollout.open(store, rollout, scope=scope) as opened:
        if opened.turn_count or opened.origin is not None:
            raise ConfigurationError("another process has just written it", rollout=rollout)
        opened.add_turns(turns, origin=origin, gaps=gaps)
