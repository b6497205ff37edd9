"""Rollouts at a glance, cheap enough to be asked every second: counters and small documents, no array is loaded."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from turnkeep.archive.arrays import read_turn_document
from turnkeep.archive.bodies import Bodies
from turnkeep.archive.documents import read_document
from turnkeep.errors import TurnkeepError
from turnkeep.rollout.evidence import FORMAT, VERSION
from turnkeep.rollout.state import State, read_state
from turnkeep.rollout.view import UNGRADABLE
from turnkeep.store.base import Store
from turnkeep.wire.json import loads

_GENERATION = "generation_token_ids"


class Glance(NamedTuple):
    """A rollout at a glance. `tokens` are the generated ones of all turns; `error` says what is damaged, or is None."""

    rollout: str
    live: bool
    """Whether a process is writing it."""
    begun: str = ""
    turns: int = 0
    calls: int = 0
    max_policy_calls: int | None = None
    in_flight: int = 0
    tokens: int = 0
    gaps: tuple[str, ...] = ()
    graded: bool = True
    failure: str | None = None
    """What the last attempt ended in, in words."""
    error: str | None = None


@dataclass(slots=True)
class _Memory:
    """What is known of a rollout from earlier looks: rows are read once, but for calls that were open."""

    begun: str
    calls: int = 0
    turns: int = 0
    open: set[int] = field(default_factory=set)
    tokens: int = 0


class Watch:
    """Looks at the rollouts of a store again and again, and reads only what is new each time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._bodies = Bodies(store.blob)
        self._memories: dict[str, _Memory] = {}

    def look(self) -> list[Glance]:
        """Every rollout, in the order in which they began. What is damaged says so."""
        glances = [self._glance(rollout) for rollout in self._store.rollouts()]
        if any(glance.error is not None for glance in glances):
            there = self._store.rollouts()  # one that was deleted since it was listed is no damage
            return [glance for glance in glances if glance.error is None or glance.rollout in there]
        return glances

    def _glance(self, rollout: str) -> Glance:
        live = False
        try:
            live = self._store.is_written(rollout)
            with self._store.snapshot():
                state = read_state(self._store.state(rollout))
                memory = self._memories.get(rollout)
                if memory is None or memory.begun != state.begun:  # or it was deleted and began anew
                    memory = self._memories[rollout] = _Memory(state.begun)
                self._read_calls(rollout, memory, state)
                self._read_turns(rollout, memory, state)
        except TurnkeepError as error:
            return Glance(rollout, live, error=error.message)
        failure = state.failure
        return Glance(
            rollout,
            live,
            state.begun,
            state.turns,
            state.used,
            state.max_policy_calls,
            len(memory.open),
            memory.tokens,
            tuple(dict.fromkeys(gap.code for gap in state.gaps)),
            failure is None or failure["type"] not in UNGRADABLE,
            None if failure is None else f"{failure['type']}: {failure['message']}",
        )

    def _read_calls(self, rollout: str, memory: _Memory, state: State) -> None:
        rows = self._rows(rollout, "calls", {*memory.open, *range(memory.calls, state.calls)})
        memory.open = {number for number, document in rows if _is_open(document)}
        memory.calls = state.calls

    def _read_turns(self, rollout: str, memory: _Memory, state: State) -> None:
        for number, document in self._rows(rollout, "turns", set(range(memory.turns, state.turns))):
            memory.tokens += generated_tokens(read_turn_document(document), self._bodies)
            memory.turns = number + 1

    def _rows(self, rollout: str, kind: str, numbers: set[int]) -> Iterator[tuple[int, bytes]]:
        """The documents of the numbers that are there, in order; many are read at once."""
        if len(numbers) > 8:
            yield from ((row.number, row.document) for row in self._store.rows(rollout, kind) if row.number in numbers)
            return
        for number in sorted(numbers):
            if (document := self._store.row(rollout, kind, number)) is not None:
                yield number, document


def _is_open(document: bytes) -> bool:
    call = read_document(document, FORMAT, 1, VERSION)
    return call["response"] is None and call["failure"] is None


def generated_tokens(document: dict[str, Any], bodies: Bodies) -> int:
    """How many tokens the turn of a document generated, told by the shapes of its arrays. Raises CorruptRecord."""
    if "body" not in document:
        parts = ((part.get("native") or {}).get(_GENERATION) for part in document["turn"]["parts"])
        apart: int = sum(ref["shape"][0] for ref in document["arrays"] if ref["field"] == _GENERATION)
        return apart + sum(len(ids) for ids in parts if isinstance(ids, list))
    stored = bodies.open(document["body"][0])
    shapes = [place.shape[0] for place in stored.places if place.field == _GENERATION]
    text = b"null".join(stored.pieces)
    if text.count(b'"' + _GENERATION.encode() + b'"') > len(shapes):  # arrays of few elements stay in the text
        items = loads(text).get("output")
        given = (item.get(_GENERATION) for item in items if isinstance(item, dict))
        shapes += [len(ids) for ids in given if isinstance(ids, list)]
    return int(sum(shapes))
