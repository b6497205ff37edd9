"""What a rollout is: its turns, its policy calls, its gaps and counters, each change durable when the call returns.

    with open_store("rollouts.db") as store, Rollout.open(store, "r-1", scope=Scope("policy_model")) as rollout:
        turn = rollout.add_turn(capture(body, scope=rollout.scope))

A rollout is opened by one writer at a time (`open`) and read by anybody (`read`). The documents it writes are
described in docs/format.md.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from turnkeep.archive.arrays import attach, detach, read_document
from turnkeep.errors import (
    BudgetExhausted,
    ConfigurationError,
    CorruptRecord,
    MissingTurn,
    StoreError,
    TurnkeepError,
)
from turnkeep.history.gaps import DETAILS, Gap
from turnkeep.history.projection import Entry
from turnkeep.history.scope import Scope, scope_text
from turnkeep.history.turn import Turn
from turnkeep.rollout.evidence import (
    Attempt,
    CallRecord,
    RequestRecord,
    history_of,
    read_call,
    rebuild_request,
    write_call,
)
from turnkeep.rollout.state import State, read_state, write_state
from turnkeep.store.base import Row, Store, Writer
from turnkeep.wire.json import dumps, loads
from turnkeep.wire.sha import sha256_hex

UNGRADABLE = ("PreparationFailure", "TransportFailure", "MalformedItem", "UnsupportedClientCall")
"""Failures of the last attempt after which a rollout is not graded (contract 7.3)."""


class Rollout:
    """One run of an agent, as it is kept.

    Use `Rollout.open` to write and `Rollout.read` to read. Methods that change something are safe to call from
    several threads and tasks; each is one transaction.
    """

    def __init__(self, store: Store, rollout: str, writer: Writer | None) -> None:
        self.id = rollout
        self._store = store
        self._writer = writer
        self._lock = threading.RLock()
        self._state = read_state(store.state(rollout))
        self._documents = [read_document(row.document) for row in store.rows(rollout, "turns")]
        self._calls = [read_call(row.document) for row in store.rows(rollout, "calls")]
        self._turns: dict[int, Turn] = {}
        self._numbers = {document["digest"]: number for number, document in reversed(list(enumerate(self._documents)))}
        self._check_counts()

    @classmethod
    def open(
        cls,
        store: Store,
        rollout: str,
        *,
        scope: Scope | str | None = None,
        max_policy_calls: int | None = None,
    ) -> Self:
        """Open a rollout for writing, beginning it where it is new.

        `scope` and `max_policy_calls` are kept with it; given again they must be what they were (a budget may be
        raised). Raises RolloutBusy where another writer has it, ConfigurationError where they do not fit.
        """
        if max_policy_calls is not None and max_policy_calls < 0:
            raise ConfigurationError("max_policy_calls must be 0 or more", field="max_policy_calls", rollout=rollout)
        begun = State(scope=scope_text(scope), max_policy_calls=max_policy_calls)
        writer = store.write(rollout, write_state(begun))
        try:
            opened = cls(store, rollout, writer)
            opened._settle_options(scope_text(scope), max_policy_calls)
        except BaseException:
            writer.release()
            raise
        return opened

    @classmethod
    def read(cls, store: Store, rollout: str) -> Self:
        """Open a rollout for reading, as it is now. Raises UnknownRollout."""
        return cls(store, rollout, None)

    def _settle_options(self, scope: str | None, budget: int | None) -> None:
        if scope is not None and self._state.scope not in (None, scope):
            raise ConfigurationError(f"the rollout's scope is {self._state.scope}, not {scope}", rollout=self.id)
        changed = replace(self._state, scope=scope or self._state.scope)
        if budget is not None:
            changed = replace(changed, max_policy_calls=budget)
        if changed != self._state:
            self._commit(changed)

    def _check_counts(self) -> None:
        for kind, found, told in (
            ("turn", len(self._documents), self._state.turns),
            ("call", len(self._calls), self._state.calls),
        ):
            if found < told:
                raise CorruptRecord(f"{told} {kind}s were written and {found} are there", rollout=self.id)

    # Reading

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
        if not 0 <= number < len(self._documents):
            raise MissingTurn("the rollout has no such turn", rollout=self.id, turn=number)
        if number not in self._turns:
            try:
                self._turns[number] = attach(self._documents[number], self._store.blob)
            except TurnkeepError as error:
                error.rollout, error.turn = self.id, number
                raise
        return self._turns[number]

    def turn_of_digest(self, digest: str) -> Turn:
        """The turn whose `Turn.digest` this is. Raises MissingTurn, which names it."""
        if digest not in self._numbers:
            raise MissingTurn(f"the rollout holds no turn of digest {digest[:12]}", rollout=self.id)
        return self.turn(self._numbers[digest])

    def number_of(self, turn: Turn) -> int | None:
        """The number under which the rollout holds `turn`, or None."""
        return self._numbers.get(turn.digest)

    def call_of_turn(self, number: int) -> int | None:
        """The policy call that made a turn, or None."""
        call: int | None = self._documents[number]["call"]
        return call

    def request(self, call: int) -> bytes:
        """The body that a policy call sent, byte for byte. Raises CorruptRecord."""
        with self._named(call):
            return rebuild_request(self._calls[call].request, self.turn, self._piece)

    def response(self, call: int) -> bytes | None:
        """The body that a policy call received, byte for byte, or None. Raises CorruptRecord."""
        digest = self._calls[call].response
        with self._named(call):
            return None if digest is None else self._piece(digest)

    def attempt_bodies(self, call: int) -> list[bytes | None]:
        """What came back from each attempt of a call that failed, byte for byte."""
        with self._named(call):
            return [None if a.body is None else self._piece(a.body) for a in self._calls[call].attempts]

    def history(self, call: int | None = None) -> list[Entry]:
        """The history as of a policy call (the last by default), with the turn that it made, as entries to project.

        Turns come back as turns; what else stood in the request comes back as it was projected.
        """
        if not self._calls:
            return list(self.turns)
        record = self._calls[call if call is not None else -1]
        with self._named(record.number):
            entries = list(history_of(record.request, self.turn, self._piece))
        return entries if record.turn is None else [*entries, self.turn(record.turn)]

    def _named(self, call: int) -> "_Named":
        return _Named(self.id, call)

    def _piece(self, digest: str) -> bytes:
        data = self._store.blob(digest)
        if data is None:
            raise CorruptRecord(f"the bytes under {digest[:12]} are missing")
        return data

    # Writing

    def add_gaps(self, gaps: Iterable[Gap]) -> None:
        """Collect conditions; one met before changes nothing (contract 5.2)."""
        with self._lock:
            if changed := self._state.with_gaps(gaps):
                self._commit(changed)

    def add_gap(self, code: str, *, detail: str | None = None, invocation: str | None = None) -> None:
        """Collect one condition. `detail` is constant text for a code; the known codes have theirs."""
        self.add_gaps([Gap(code, invocation, DETAILS.get(code) if detail is None else detail)])

    def add_turn(self, turn: Turn, *, call: int | None = None, gaps: Iterable[Gap] = ()) -> Turn:
        """Keep a turn, as the next one, and as the answer of a policy call where `call` is given. Clears `failure`."""
        with self._lock:
            number = len(self._documents)
            document, blobs = detach(turn, call)
            rows = [Row("turns", number, document)]
            calls = list(self._calls)
            if call is not None:
                calls[call] = replace(calls[call], turn=number)
                rows.append(Row("calls", call, write_call(calls[call])))
            state = self._state.with_gaps(gaps) or self._state
            self._commit(replace(state, turns=number + 1, failure=None), rows, blobs)
            self._calls = calls
            self._documents.append(read_document(document))
            self._turns[number] = turn
            self._numbers.setdefault(turn.digest, number)
            return turn

    def begin_call(self, request: RequestRecord, blobs: Mapping[str, bytes], gaps: Iterable[Gap] = ()) -> int:
        """Charge a policy call and keep its request, in one transaction, before it is sent. Returns its number.

        Raises BudgetExhausted, having changed nothing, where `max_policy_calls` are spent; atomic among threads.
        """
        with self._lock:
            budget = self._state.max_policy_calls
            if budget is not None and self._state.used >= budget:
                raise BudgetExhausted(f"all {budget} policy calls are spent", rollout=self.id)
            call = CallRecord(len(self._calls), request)
            state = self._state.with_gaps(gaps) or self._state
            charged = replace(state, used=state.used + 1, calls=call.number + 1)
            self._commit(charged, [Row("calls", call.number, write_call(call))], blobs)
            self._calls.append(call)
            return call.number

    def add_attempt(self, call: int, error: str, status: int | None = None, body: bytes | None = None) -> None:
        """Keep what came of one try that gave no usable response."""
        blobs = {} if body is None else {sha256_hex(body): body}
        attempt = Attempt(error, status, next(iter(blobs), None))
        with self._lock:
            attempts = (*self._calls[call].attempts, attempt)
            self._put_call(self._state, replace(self._calls[call], attempts=attempts), blobs)

    def answer_call(self, call: int, body: bytes, cookies: Mapping[str, str | None] | None = None) -> None:
        """Keep the response, before it is checked, and the cookies that came with it (None takes one away)."""
        digest = sha256_hex(body)
        with self._lock:
            state = self._state.with_cookies(cookies or {})
            self._put_call(state, replace(self._calls[call], response=digest), {digest: body})

    def fail_call(self, call: int, error: TurnkeepError) -> None:
        """Keep what a policy call ended in."""
        with self._lock:
            failure = error.to_json()
            self._put_call(replace(self._state, failure=failure), replace(self._calls[call], failure=failure), {})

    def note_fault(self, call: int, error: TurnkeepError) -> None:
        """Keep what was wrong with a response whose turn lives on without native items (contract 7.9)."""
        with self._lock:
            self._put_call(self._state, replace(self._calls[call], failure=error.to_json()), {})

    def record_failure(self, error: TurnkeepError) -> None:
        """Keep a failure that came before any policy call was charged, such as a PreparationFailure."""
        with self._lock:
            failure = error.to_json()
            number = self._state.failures
            rows = [Row("failures", number, dumps({"format": "turnkeep-failure", "version": 1, **failure}))]
            self._commit(replace(self._state, failure=failure, failures=number + 1), rows)

    def record_difference(self, difference: Mapping[str, Any]) -> None:
        """Keep where a re-run went another way than the evidence."""
        with self._lock:
            self._commit(replace(self._state, difference=dict(difference)))

    @property
    def failures(self) -> list[dict[str, Any]]:
        """The failures that came before any policy call was charged, in order."""
        return [loads(row.document) for row in self._store.rows(self.id, "failures")]

    def tools(self) -> list[dict[str, Any]]:
        """The records of tools marked `once`, in the order in which they began (contract 10.5)."""
        return [loads(row.document) for row in self._store.rows(self.id, "tools")]

    def put_tool(self, number: int, record: Mapping[str, Any]) -> None:
        """Keep the record of a tool marked `once`."""
        with self._lock:
            count = max(self._state.tools, number + 1)
            self._commit(replace(self._state, tools=count), [Row("tools", number, dumps(record))])

    def _put_call(self, state: State, call: CallRecord, blobs: Mapping[str, bytes]) -> None:
        self._commit(state, [Row("calls", call.number, write_call(call))], blobs)
        self._calls[call.number] = call

    def _commit(self, state: State, rows: Iterable[Row] = (), blobs: Mapping[str, bytes] | None = None) -> None:
        if self._writer is None:
            raise StoreError("the rollout was opened for reading", rollout=self.id)
        self._writer.commit(write_state(state), rows, blobs)
        self._state = state

    def close(self) -> None:
        """Give the right to write back. What was written stays."""
        if self._writer is not None:
            self._writer.release()
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Named:
    """Puts rollout and call into the errors that pass."""

    def __init__(self, rollout: str, call: int) -> None:
        self._rollout, self._call = rollout, call

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, TurnkeepError):
            error.rollout = self._rollout
            error.call = self._call if error.turn is None else error.call


def rollouts(store: Store) -> Iterator[Rollout]:
    """Every rollout of a store, opened for reading, in the order in which they began."""
    for rollout in store.rollouts():
        yield Rollout.read(store, rollout)
