"""A hypothesis state machine that does the same things to a store and to MemoryStore, and compares what is read."""

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from turnkeep.errors import RolloutBusy, TurnkeepError
from turnkeep.store.base import KINDS, Row, Store, Writer, blob_digest
from turnkeep.store.memory import MemoryStore

_NAMES = st.sampled_from(["one", "two", "drei ü"])
_DATA = st.binary(max_size=40)
_ROWS = st.lists(st.builds(Row, st.sampled_from(KINDS), st.integers(0, 3) | st.integers(0, 2**62), _DATA), max_size=4)


class StoreMachine(RuleBasedStateMachine):
    """Takes, writes, releases and reopens; after each step both stores read the same."""

    def __init__(self, open_store: Callable[[], Store], *, reopens: bool) -> None:
        """`reopens`: whether closing and opening again keeps what was written."""
        super().__init__()
        self._open_store, self._reopens = open_store, reopens
        self._store, self._oracle = open_store(), MemoryStore()
        self._writers: dict[str, tuple[Writer, Writer]] = {}
        self._spent: list[tuple[Writer, Writer]] = []
        self._digests: set[str] = {blob_digest(b"never written")}

    @rule(name=_NAMES, state=_DATA)
    def take(self, name: str, state: bytes) -> None:
        """Take the right to write a rollout; both give it, or both are busy."""
        taken = [_outcome(store, name, state) for store in (self._store, self._oracle)]
        if name in self._writers:
            assert taken == [None, None]
        else:
            mine, theirs = taken
            assert mine is not None
            assert theirs is not None
            self._writers[name] = (mine, theirs)

    @precondition(lambda self: self._writers)
    @rule(data=st.data(), state=_DATA, rows=_ROWS, blobs=st.lists(_DATA, max_size=3))
    def commit(self, data: st.DataObject, state: bytes, rows: list[Row], blobs: list[bytes]) -> None:
        """Write."""
        kept = {blob_digest(blob): blob for blob in blobs}
        for writer in self._writers[data.draw(st.sampled_from(sorted(self._writers)))]:
            writer.commit(state, rows, kept)
        self._digests |= set(kept)

    @precondition(lambda self: self._writers)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Give the right back."""
        pair = self._writers.pop(data.draw(st.sampled_from(sorted(self._writers))))
        for writer in pair:
            writer.release()
        self._spent.append(pair)

    @precondition(lambda self: self._spent)
    @rule(data=st.data(), state=_DATA)
    def use_spent(self, data: st.DataObject, state: bytes) -> None:
        """A writer that was given back can neither write nor give back another's right."""
        for writer in data.draw(st.sampled_from(self._spent)):
            try:
                writer.commit(state, [Row("turns", 0, b"late")])
            except TurnkeepError:
                writer.release()
            else:
                raise AssertionError("a writer that was given back has written")

    @precondition(lambda self: self._reopens)
    @rule()
    def reopen(self) -> None:
        """Close and open again; nobody has a writer then."""
        self._store.close()
        self._store = self._open_store()
        for writer in (pair[1] for pair in self._writers.values()):
            writer.release()
        self._spent += self._writers.values()
        self._writers.clear()

    @invariant()
    def reads_the_same(self) -> None:
        """Everything that can be read is the same in both."""
        assert _everything(self._store, self._digests) == _everything(self._oracle, self._digests)

    def teardown(self) -> None:
        """Close the store."""
        self._store.close()


def _outcome(store: Store, name: str, state: bytes) -> Writer | None:
    try:
        return store.write(name, state)
    except RolloutBusy:
        return None


def _everything(store: Store, digests: set[str]) -> object:
    rollouts = store.rollouts()
    states = [store.state(name) for name in rollouts]
    rows = {(name, kind): store.rows(name, kind) for name in rollouts for kind in KINDS}
    singles = [store.row(name, kind, number) for name in rollouts for kind in KINDS for number in range(4)]
    return rollouts, states, rows, singles, {digest: store.blob(digest) for digest in digests}
