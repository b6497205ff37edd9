"""Writing a rollout: its turns, its policy calls, its gaps and counters, each change durable when the call returns.

    with open_store("rollouts.db") as store, Rollout.open(store, "r-1", scope=Scope("policy_model")) as rollout:
        turn = rollout.add_turn(capture(body, scope=rollout.scope))

A rollout has one writer at a time; anybody may read it, with `RolloutView`. The documents it writes are described in
docs/format.md.
"""

import contextlib
import operator
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from turnkeep.archive.arrays import detach, read_turn_document, write_body_document
from turnkeep.archive.bodies import Cutting, Known, Stored, cut_body, cut_turn, store_body
from turnkeep.archive.documents import write_document
from turnkeep.errors import BudgetExhausted, ConfigurationError, StoreError, TurnkeepError
from turnkeep.history.gaps import DETAILS, Gap
from turnkeep.history.scope import Scope, scope_text
from turnkeep.history.turn import Turn
from turnkeep.rollout.evidence import Attempt, CallRecord, Reply, RequestRecord, shared_base, write_call
from turnkeep.rollout.origin import write_origin
from turnkeep.rollout.rerun import MadeUpIds, Rerun
from turnkeep.rollout.state import State, write_state
from turnkeep.rollout.view import RolloutView
from turnkeep.store.base import Row, Store, Writer
from turnkeep.wire.json import dumps
from turnkeep.wire.scan import Scanned
from turnkeep.wire.sha import sha256_hex

_RECENT = 8
"""Calls whose requests, and prompts that, a later one is compared with."""
_INLINE, _ALL_INLINE = 1024, 2048
"""Bytes of a text that is kept in its call's row, and of all of them: a row of up to 4 KiB takes no page of its own."""


class Rollout(RolloutView):
    """A rollout that is being written: `Rollout.open`.

    Methods that change something are one transaction each, and safe to call from several threads and tasks.
    """

    def __init__(self, store: Store, rollout: str, writer: Writer) -> None:
        super().__init__(store, rollout)
        self._writer: Writer | None = writer
        self._lock = threading.RLock()
        self._unsure = False
        self._recorded: tuple[CallRecord, ...] = ()
        self._recorded_tools: list[dict[str, Any]] = []
        self._rerun: Rerun | None = None

    @classmethod
    def open(
        cls,
        store: Store,
        rollout: str,
        *,
        scope: Scope | str | None = None,
        max_policy_calls: int | None = None,
        rerun: bool = False,
    ) -> Self:
        """Open a rollout for writing, beginning it where it is new.

        `scope` and `max_policy_calls` are kept with it; a scope given again must be what it was, a budget may change.
        `rerun` says that the agent starts again from its beginning: what is recorded answers it (contract section 10);
        for a new rollout it changes nothing. Raises RolloutBusy where another writer has the rollout,
        ConfigurationError where the options do not fit it.
        """
        if max_policy_calls is not None and max_policy_calls < 0:
            raise ConfigurationError("max_policy_calls must be 0 or more", field="max_policy_calls", rollout=rollout)
        begun = State(scope=scope_text(scope), max_policy_calls=max_policy_calls)
        writer = store.write(rollout, write_state(begun))
        try:
            opened = cls(store, rollout, writer)
            with opened._changing():
                opened._settle_options(scope_text(scope), max_policy_calls)
            if rerun:
                if opened.difference is not None:
                    opened.record_difference(None)
                opened._recorded = opened.calls
                opened._recorded_tools = opened.tools()
        except BaseException:
            writer.release()
            raise
        return opened

    def _load(self) -> None:
        super()._load()
        self._known: deque[Known] | None = None
        self._answered: dict[int, tuple[Cutting, Stored]] = {}

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """One change of the rollout, in the store and then in memory.

        Where an error came between the two (a signal's, say) what the store has is read again before the next change.
        """
        with self._lock:
            if self._unsure:
                self._load()
                self._unsure = False
            yield
            self._unsure = False

    def _settle_options(self, scope: str | None, budget: int | None) -> None:
        if scope is not None and self._state.scope not in (None, scope):
            raise ConfigurationError(f"the rollout's scope is {self._state.scope}, not {scope}", rollout=self.id)
        changed = replace(self._state, scope=scope or self._state.scope)
        if budget is not None:
            changed = replace(changed, max_policy_calls=budget)
        if changed != self._state:
            self._commit(changed)

    def rerun(self, made_up: MadeUpIds) -> Rerun | None:
        """The evidence that answers a re-run of the agent; None where the rollout was not opened for one.

        `made_up` are the ids that the agent's runtime makes up; what is given first holds.
        """
        with self._lock:
            if self._rerun is None and self._recorded:
                self._rerun = Rerun(self._recorded, self._piece, made_up)
            return self._rerun

    def take_recorded_tool(self, name: str, arguments: bytes) -> dict[str, Any] | None:
        """The first record not yet used of a tool marked `once` with these arguments, in a re-run; or None.

        One without an output is not used up: it stands in the way until it is settled.
        """
        with self._lock:
            for record in self._recorded_tools:
                if record["name"] == name and dumps(record["arguments"]) == arguments:
                    if record["state"] == "done":
                        self._recorded_tools.remove(record)
                    return record
        return None

    def add_gaps(self, gaps: Iterable[Gap]) -> None:
        """Collect conditions; one met before changes nothing (contract 5.2)."""
        with self._changing():
            if changed := self._state.with_gaps(gaps):
                self._commit(changed)

    def add_gap(self, code: str, *, detail: str | None = None, invocation: str | None = None) -> None:
        """Collect one condition. `detail` is constant text for a code; the known codes have theirs."""
        self.add_gaps([Gap(code, invocation, DETAILS.get(code) if detail is None else detail)])

    def add_turn(
        self,
        turn: Turn,
        *,
        call: int | None = None,
        gaps: Iterable[Gap] = (),
        fault: TurnkeepError | None = None,
    ) -> Turn:
        """Keep a turn, as the next one, and as the answer of a policy call where `call` is given. Clears `failure`.

        `fault` is what was wrong with a response whose turn lives on without native items (contract 7.9).
        """
        with self._changing():
            if call is not None:
                self._call(call)
            number = len(self._documents)
            document, blobs, known = self._detach(turn, call)
            rows = [Row("turns", number, document)]
            calls = list(self._calls)
            if call is not None:
                calls[call] = replace(calls[call], turn=number, failure=None if fault is None else fault.to_json())
                rows.append(Row("calls", call, write_call(calls[call])))
            state = self._state.with_gaps(gaps) or self._state
            self._commit(replace(state, turns=number + 1, failure=None), rows, blobs)
            self._calls = calls
            self._keep_known(known)
            if call is not None:
                self._answered.pop(call, None)
            self._documents.append(read_turn_document(document))
            self._keep_at_hand(number, turn)
            self._numbers.setdefault(turn.digest, number)
            return turn

    def add_turns(
        self, turns: Iterable[Turn], *, origin: Mapping[str, Any] | None = None, gaps: Iterable[Gap] = ()
    ) -> None:
        """Keep turns as the next ones, and where they came from, in one transaction: all of it or nothing.

        Raises ConfigurationError as `set_origin` does.
        """
        with self._changing():
            rows, blobs = ([] if origin is None else [_origin_row(self.id, origin)]), {}
            first = len(self._documents)
            added: list[bytes] = []
            try:
                for turn in turns:
                    document, new, known = self._detach(turn, None)
                    added.append(document)
                    blobs.update(new)
                    self._keep_known(known)
                rows += [Row("turns", number, document) for number, document in enumerate(added, first)]
                state = self._state.with_gaps(gaps) or self._state
                origins = state.origins if origin is None else 1
                self._commit(replace(state, turns=first + len(added), origins=origins, failure=None), rows, blobs)
            except BaseException:
                self._known = None  # some of them are not on disk
                raise
            for number, members in enumerate(map(read_turn_document, added), first):
                self._documents.append(members)
                self._numbers.setdefault(members["digest"], number)

    def set_origin(self, origin: Mapping[str, Any]) -> None:
        """Say where the rollout came from: a JSON object, kept exactly, in the place of one that was there.

        Raises ConfigurationError where it is no JSON object.
        """
        row = _origin_row(self.id, origin)
        with self._changing():
            self._commit(replace(self._state, origins=1), [row])

    def _detach(self, turn: Turn, call: int | None) -> tuple[bytes, dict[str, bytes], tuple[Known, ...]]:
        """The turn's document, the blobs that are not there yet, and the prompts in them.

        The body is shared with the call's response.
        """
        cutting = cut_turn(turn)
        if cutting is None:
            return *detach(turn, call), ()
        answered = None if call is None else self._answered.get(call)
        if answered is not None and _is_same(answered[0], cutting):
            return write_body_document(turn, call, answered[1].refs), {}, ()
        stored = self._store_body(cutting)
        return write_body_document(turn, call, stored.refs), stored.blobs, stored.known

    def _store_body(self, cutting: Cutting) -> Stored:
        """The body as blobs, its prompts as extensions of recent ones."""
        if self._known is None:
            self._known = deque(self._recorded_prompts(), _RECENT)
        return store_body(cutting, self._known)

    def _keep_known(self, known: Iterable[Known]) -> None:
        """Let later prompts extend these, now that they are on disk."""
        if self._known is not None:
            self._known.extend(known)

    def _recorded_prompts(self) -> Iterator[Known]:
        """The prompts of the last stored bodies, the newest last; one that is damaged is nothing to build on."""
        bodies = [document["body"][0] for document in self._documents[-_RECENT:] if "body" in document]
        for body in bodies:
            with contextlib.suppress(TurnkeepError):
                yield from self._bodies.known(body)

    def begin_call(self, request: RequestRecord, blobs: Mapping[str, bytes], gaps: Iterable[Gap] = ()) -> int:
        """Charge a policy call and keep its request, in one transaction, before it is sent. Returns its number.

        Raises BudgetExhausted, having changed nothing, where `max_policy_calls` are spent; atomic among threads.
        """
        with self._changing():
            budget = self._state.max_policy_calls
            if budget is not None and self._state.used >= budget:
                raise BudgetExhausted(f"all {budget} policy calls are spent", rollout=self.id)
            base = shared_base(request.entries, self._calls[-_RECENT:])
            if base is not None:  # one object for what requests have in common
                begun = self._calls[base[0]].request.entries[: base[1]]
                request = replace(request, entries=(*begun, *request.entries[base[1] :]))
            texts = self._inline(blobs)
            call = CallRecord(len(self._calls), request, texts=texts, base=base)
            kept = {digest: text for digest, text in blobs.items() if digest not in texts and digest not in self._texts}
            state = self._state.with_gaps(gaps) or self._state
            charged = replace(state, used=state.used + 1, calls=call.number + 1)
            self._commit(charged, [Row("calls", call.number, write_call(call))], kept)
            self._calls.append(call)
            self._texts.update((digest, blobs[digest]) for digest in texts)
            return call.number

    def _inline(self, blobs: Mapping[str, bytes]) -> dict[str, str]:
        """The small texts that are new, to be kept in their call's row."""
        texts: dict[str, str] = {}
        left = _ALL_INLINE
        for digest, text in blobs.items():
            if len(text) <= min(_INLINE, left) and digest not in self._texts:
                texts[digest] = text.decode()
                left -= len(text)
        return texts

    def add_attempt(self, call: int, reply: Reply) -> None:
        """Keep what came of one try that gave no usable response."""
        blobs = {} if reply.body is None else {sha256_hex(reply.body): reply.body}
        attempt = Attempt(reply.error or "", reply.status, next(iter(blobs), None))
        with self._changing():
            attempts = (*self._calls[call].attempts, attempt)
            state = self._state.with_cookies(reply.cookies)
            self._put_call(state, replace(self._calls[call], attempts=attempts), blobs)

    def answer_call(self, call: int, reply: Reply) -> Scanned | None:
        """Keep the response, before it is checked, and the cookies that came with it.

        Gives what reading its body gave, for `capture`; None where the body is faulty.
        """
        body = reply.body or b""
        digest, cutting = sha256_hex(body), cut_body(body)
        with self._changing():
            state = self._state.with_cookies(reply.cookies)
            stored = self._store_body(cutting)
            record = replace(self._calls[call], response=digest, body=stored.refs)
            self._put_call(state, record, stored.blobs)
            self._keep_known(stored.known)
            self._answered[call] = cutting._replace(scanned=None), stored
            return cutting.scanned

    def fail_call(self, call: int, error: TurnkeepError) -> None:
        """Keep what a policy call ended in."""
        with self._changing():
            self._answered.pop(call, None)
            failure = error.to_json()
            self._put_call(replace(self._state, failure=failure), replace(self._calls[call], failure=failure), {})

    def reopen_call(self, call: int) -> CallRecord:
        """Make a failed call one that is in flight, to be sent again under its charge. Gives its record.

        What it had got stays with it: a response that was none becomes an attempt.
        """
        with self._changing():
            failed, blobs = self._calls[call], {}
            attempts = failed.attempts
            if (body := self.response(call)) is not None:
                blobs[sha256_hex(body)] = body
                reason = str((failed.failure or {}).get("message", ""))
                attempts = (*attempts, Attempt(reason, None, sha256_hex(body)))
            reopened = replace(failed, attempts=attempts, response=None, body=(), failure=None)
            self._put_call(self._state, reopened, blobs)
            return reopened

    def record_failure(self, error: TurnkeepError) -> None:
        """Keep a failure that came before any policy call was charged, such as a PreparationFailure."""
        with self._changing():
            failure = error.to_json()
            number = self._state.failures
            rows = [Row("failures", number, write_document("turnkeep-failure", 1, failure))]
            self._commit(replace(self._state, failure=failure, failures=number + 1), rows)

    def settle(self, failure: Mapping[str, Any] | None) -> None:
        """Say what the last attempt ended in, where a re-run met it again (None: it succeeded)."""
        with self._changing():
            if failure != self._state.failure:
                self._commit(replace(self._state, failure=failure))

    def record_difference(self, difference: Mapping[str, Any] | None) -> None:
        """Keep where a re-run went another way than the evidence; None: it did not."""
        with self._changing():
            self._commit(replace(self._state, difference=difference))

    def add_tool(self, record: Mapping[str, Any]) -> int:
        """Keep that a tool marked `once` begins, before it does. Returns its number."""
        with self._changing():
            number = self._state.tools
            rows = [Row("tools", number, write_document("turnkeep-tool", 1, {"number": number, **record}))]
            self._commit(replace(self._state, tools=number + 1), rows)
            return number

    def put_tool(self, number: int, record: Mapping[str, Any]) -> None:
        """Keep how a tool marked `once` ended."""
        with self._changing():
            self._commit(
                self._state, [Row("tools", number, write_document("turnkeep-tool", 1, {"number": number, **record}))]
            )
            for recorded in self._recorded_tools:
                if recorded["number"] == number:
                    recorded.update(record)

    def _put_call(self, state: State, call: CallRecord, blobs: Mapping[str, bytes]) -> None:
        self._commit(state, [Row("calls", call.number, write_call(call))], blobs)
        self._calls[call.number] = call

    def _commit(self, state: State, rows: Iterable[Row] = (), blobs: Mapping[str, bytes] | None = None) -> None:
        if self._writer is None:
            raise StoreError("the rollout was closed", rollout=self.id)
        self._unsure = True
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


def _origin_row(rollout: str, origin: Mapping[str, Any]) -> Row:
    try:
        return Row("origins", 0, write_origin(origin))
    except ConfigurationError as error:
        error.rollout = rollout
        raise


def _is_same(one: Cutting, other: Cutting) -> bool:
    """Whether a turn's body is the one that was stored: the same pieces around the same arrays."""
    return one.received == other.received and all(map(operator.is_, one.arrays, other.arrays))
