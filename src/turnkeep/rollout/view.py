"""Reading a rollout: its turns, its policy calls and their evidence, its gaps and counters."""

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from turnkeep.archive.arrays import read_turn, read_turn_document
from turnkeep.archive.bodies import Bodies
from turnkeep.archive.documents import read_document
from turnkeep.errors import ConfigurationError, CorruptRecord, MissingTurn, TurnkeepError
from turnkeep.history.gaps import Gap
from turnkeep.history.projection import Entry, Form
from turnkeep.history.turn import Turn
from turnkeep.history.wire_cache import WireCache
from turnkeep.rollout.evidence import CallRecord, history_of, read_call, rebuild_request, turn_text
from turnkeep.rollout.origin import read_origin
from turnkeep.rollout.state import read_state
from turnkeep.store.base import Store
from turnkeep.wire.sha import sha256_hex

UNGRADABLE = ("PreparationFailure", "TransportFailure", "MalformedItem", "UnsupportedClientCall")
"""Failures of the last attempt after which a rollout is not graded (contract 7.3)."""


_AT_HAND = 64 << 20
"""Bytes of turns that a rollout holds in memory; the others are read when they are asked for."""


class RolloutView:
    """One run of an agent, as it is kept: read whole but for the arrays, which are read with the turn that has them.

    Raises UnknownRollout where the store has none of that id, CorruptRecord where something is not what was written.
    """

    def __init__(self, store: Store, rollout: str) -> None:
        self.id = rollout
        self._store = store
        self._bodies = Bodies(store.blob)
        self._wire = WireCache(_AT_HAND // 2)
        self._at_hand = threading.Lock()
        self._load()

    def _load(self) -> None:
        """Read what is kept in memory."""
        store, rollout = self._store, self.id
        with store.snapshot():
            self._state = read_state(store.state(rollout))
            self._documents = [read_turn_document(row.document) for row in store.rows(rollout, "turns")]
            rows = store.rows(rollout, "calls")
        self._calls: list[CallRecord] = []
        self._texts: dict[str, bytes] = {}
        for row in rows:
            self._calls.append(read_call(row.document, self._calls))
            self._texts.update((digest, text.encode()) for digest, text in self._calls[-1].texts.items())
        self._turns: dict[int, tuple[Turn, int]] = {}
        self._held = 0
        self._numbers = {document["digest"]: number for number, document in reversed(list(enumerate(self._documents)))}
        self._check_count("turn", len(self._documents), self._state.turns)
        self._check_count("call", len(self._calls), self._state.calls)

    def _check_count(self, kind: str, found: int, told: int) -> None:
        if found < told:
            raise CorruptRecord(f"{told} {kind}s were written and {found} are there", rollout=self.id)

    @property
    def scope(self) -> str | None:
        """The scope its turns are made under."""
        return self._state.scope

    @property
    def max_policy_calls(self) -> int | None:
        """How many policy calls it may make; None is no bound."""
        return self._state.max_policy_calls

    @property
    def used(self) -> int:
        """How many policy calls were charged."""
        return self._state.used

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The conditions met so far, each once, in the order in which they were met."""
        return self._state.gaps

    @property
    def cookies(self) -> dict[str, str]:
        """The cookies that go out with the next call, by name."""
        return dict(self._state.cookies)

    @property
    def failure(self) -> Mapping[str, Any] | None:
        """What the last attempt ended in, where it failed: an error as `TurnkeepError.to_json` gives it."""
        return self._state.failure

    @property
    def gradable(self) -> bool:
        """Whether the last attempt left the rollout fit to be graded (contract 7.3)."""
        return self._state.failure is None or self._state.failure["type"] not in UNGRADABLE

    @property
    def difference(self) -> Mapping[str, Any] | None:
        """Where a re-run first went another way than the evidence: `call`, `path`, `recorded`, `now`; or None."""
        return self._state.difference

    @property
    def begun(self) -> str:
        """When it began, UTC, ISO 8601."""
        return self._state.begun

    @property
    def calls(self) -> tuple[CallRecord, ...]:
        """Its policy calls, in the order in which they were charged."""
        return tuple(self._calls)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Its turns, in the order in which they were made. Raises CorruptRecord, which names turn and field."""
        return tuple(self.turn(number) for number in range(len(self._documents)))

    @property
    def turn_count(self) -> int:
        """How many turns it has, without reading them."""
        return len(self._documents)

    def turn(self, number: int) -> Turn:
        """One turn by its number. Raises MissingTurn, CorruptRecord."""
        self._check_turn(number)
        found = self._turns.get(number)
        if found is None:
            try:
                turn = read_turn(self._documents[number], self._bodies, self._store.blob)
            except TurnkeepError as error:
                error.rollout, error.turn = self.id, number
                raise
            self._keep_at_hand(number, turn)
            return turn
        return found[0]

    def _check_turn(self, number: int) -> None:
        if not 0 <= number < len(self._documents):
            raise MissingTurn("the rollout has no such turn", rollout=self.id, turn=number)

    def _keep_at_hand(self, number: int, turn: Turn) -> None:
        size = turn_size(turn)
        with self._at_hand:
            self._held += size - self._turns.pop(number, (turn, 0))[1]
            self._turns[number] = turn, size
            while self._held > _AT_HAND and len(self._turns) > 1:
                self._held -= self._turns.pop(next(iter(self._turns)))[1]

    def turn_of_digest(self, digest: str) -> Turn:
        """The turn whose `Turn.digest` this is. Raises MissingTurn, which names it."""
        if digest not in self._numbers:
            raise MissingTurn(f"the rollout holds no turn of digest {digest[:12]}", rollout=self.id)
        return self.turn(self._numbers[digest])

    def number_of(self, turn: Turn) -> int | None:
        """The number under which the rollout holds `turn`, or None."""
        return self._numbers.get(turn.digest)

    def call_of_turn(self, number: int) -> int | None:
        """The policy call that made a turn, or None. Raises MissingTurn."""
        self._check_turn(number)
        call: int | None = self._documents[number]["call"]
        return call

    def request(self, call: int) -> bytes:
        """The body that a policy call sent, byte for byte. Raises CorruptRecord."""
        with self._named(call):
            return rebuild_request(self._call(call).request, self._turn_text, self._piece)

    def _turn_text(self, number: int, form: Form) -> bytes:
        turn = self.turn(number)
        return self._wire.text(turn, form, lambda: turn_text(turn, form))

    def _call(self, number: int) -> CallRecord:
        if not 0 <= number < len(self._calls):
            raise ConfigurationError(f"the rollout has {len(self._calls)} policy calls", rollout=self.id, call=number)
        return self._calls[number]

    def response(self, call: int) -> bytes | None:
        """The body that a policy call received, byte for byte, or None. Raises CorruptRecord."""
        record = self._call(call)
        with self._named(call):
            if record.response is None or not record.body:
                return None if record.response is None else self._piece(record.response)
            body = self._bodies.text(record.body[0])
            if sha256_hex(body) != record.response:
                raise CorruptRecord("the response is not what was received: its digest differs", field="response")
            return body

    def attempt_bodies(self, call: int) -> list[bytes | None]:
        """What came back from each attempt of a call that failed, byte for byte."""
        with self._named(call):
            return [None if a.body is None else self._piece(a.body) for a in self._call(call).attempts]

    def history(self, call: int | None = None) -> list[Entry]:
        """The history as of a policy call (the last by default), with the turn that it made, as entries to project.

        Turns come back as turns; what else stood in the request comes back as it was projected. Where there are no
        policy calls it is the turns alone; `conversation.whole_history` has what an importer kept beside them, too.
        """
        if not self._calls and call is None:
            return list(self.turns)
        record = self._call(call if call is not None else len(self._calls) - 1)
        with self._named(record.number):
            entries = list(history_of(record.request, self.turn, self._piece))
        return entries if record.turn is None else [*entries, self.turn(record.turn)]

    def _named(self, call: int) -> "_Named":
        return _Named(self.id, call)

    def _piece(self, digest: str) -> bytes:
        data = self._texts[digest] if digest in self._texts else self._store.blob(digest)
        if data is None:
            raise CorruptRecord(f"the bytes under {digest[:12]} are missing")
        return data

    @property
    def failures(self) -> list[dict[str, Any]]:
        """The failures that came before any policy call was charged, in order."""
        found = [read_document(row.document, "turnkeep-failure", 1) for row in self._store.rows(self.id, "failures")]
        self._check_count("failure", len(found), self._state.failures)
        return found

    @property
    def origin(self) -> dict[str, Any] | None:
        """Where it came from, a fresh copy of what `Rollout.set_origin` was given; None where it does not say.

        Raises CorruptRecord.
        """
        if not self._state.origins:
            return None
        rows = self._store.rows(self.id, "origins")
        self._check_count("origin", len(rows), self._state.origins)
        return read_origin(rows[0].document)

    def tools(self) -> list[dict[str, Any]]:
        """The records of tools marked `once`, in the order in which they began (contract 10.5)."""
        found = [read_document(row.document, "turnkeep-tool", 1) for row in self._store.rows(self.id, "tools")]
        self._check_count("tool", len(found), self._state.tools)
        return found


def turn_size(turn: Turn) -> int:
    """About how many bytes a turn takes in memory."""
    arrays = sum(array.nbytes for part in turn.parts if part.native for array in part.native.arrays.values())
    received = 0 if turn.received is None else sum(map(len, turn.received.pieces))
    return arrays + 2 * received + len(turn.rest) + 4096


class _Named:
    """Puts rollout and call into the errors that pass."""

    def __init__(self, rollout: str, call: int) -> None:
        self._rollout, self._call = rollout, call

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, TurnkeepError):
            error.rollout = self._rollout
            error.call = self._call if error.turn is None else error.call
