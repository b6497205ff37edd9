"""What a rollout keeps beside its rows: scope, budget, counters, gaps, cookies, the last failure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from turnkeep.archive.documents import expecting, read_document, write_document
from turnkeep.history.gaps import Gap

FORMAT = "turnkeep-rollout"
VERSION = 2
"""Written where there is an origin; a rollout without one has version 1, which lacks its count."""


@dataclass(frozen=True, slots=True)
class State:
    """The small part of a rollout, replaced whole at each commit."""

    scope: str | None = None
    max_policy_calls: int | None = None
    used: int = 0
    """Policy calls charged."""
    calls: int = 0
    turns: int = 0
    tools: int = 0
    failures: int = 0
    gaps: tuple[Gap, ...] = ()
    cookies: tuple[tuple[str, str], ...] = ()
    failure: Mapping[str, Any] | None = None
    """What the last attempt ended in, or None."""
    difference: Mapping[str, Any] | None = None
    """Where a re-run first went another way than the evidence."""
    origins: int = 0
    """1 where the rollout says where it came from."""
    begun: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))

    def with_gaps(self, gaps: Iterable[Gap]) -> "State | None":
        """The state with more gaps, or None where all were there."""
        merged = tuple(dict.fromkeys((*self.gaps, *gaps)))
        return None if merged == self.gaps else replace(self, gaps=merged)

    def with_cookies(self, changes: Mapping[str, str | None]) -> "State":
        """The state with cookies set, and those that are None taken away."""
        merged = {**dict(self.cookies), **changes}
        return replace(self, cookies=tuple((name, value) for name, value in merged.items() if value is not None))


def write_state(state: State) -> bytes:
    """The state's document."""
    value: dict[str, Any] = {name: getattr(state, name) for name in State.__slots__}
    if not state.origins:
        del value["origins"]
        return write_document(FORMAT, 1, value)
    return write_document(FORMAT, VERSION, value)


def read_state(document: bytes) -> State:
    """The state of a document. Raises ArchiveError, UnsupportedVersion."""
    value = read_document(document, FORMAT, 1, VERSION)
    with expecting(FORMAT):
        value["gaps"] = tuple(Gap(*gap) for gap in value["gaps"])
        value["cookies"] = tuple((name, cookie) for name, cookie in value["cookies"])
        return State(**value)
