"""What every store must hold to, as tests: a backend subclasses `StoreContract` and says how it is opened and damaged.

    class TestMyStore(StoreContract):
        def open_store(self, folder): return MyStore(folder / "mine")
        def flip(self, folder, place, bit): ...flip one bit of the stored bytes, past the store...

pytest then runs the contract, and a state machine that does the same things to the backend and to MemoryStore, the
oracle, and compares what is read. Needs pytest and hypothesis.
"""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from turnkeep.errors import ConfigurationError, CorruptRecord, RolloutBusy, StoreError, UnknownRollout
from turnkeep.store.base import KINDS, Row, Store, blob_digest
from turnkeep.testing.store_machine import StoreMachine

AWKWARD_IDS = ("a b", "Ü-日本-😀", "it's", 'say "x"; DROP TABLE rollouts', "-1", "0", "None", "%_*?[", "x" * 512)
"""Ids that a store must hold as they are."""
IMPOSSIBLE_IDS = ("", "a\nb", "a\0b", "\ud800", "x" * 513)
"""Ids that every store refuses."""
AWKWARD_BYTES = (b"", b"\0", b"\xff\xfe\x00", "naïve 😀".encode(), b"null", bytes(range(256)) * 300)
"""Documents and blobs that a store must hold as they are."""


class Place(NamedTuple):
    """Where `StoreContract.flip` does its damage: a rollout's state, one of its rows, or a blob by its digest."""

    what: str
    """`state`, `blob`, or a kind of row."""
    rollout: str = ""
    number: int = 0
    digest: str = ""


class StoreContract(ABC):
    """The tests of a store backend; subclass it as `Test...` and give the two methods."""

    lasts: ClassVar[bool] = True
    """Whether what was written is there when the store is opened again."""
    examples: ClassVar[int] = 60
    """How many runs the state machine makes."""

    @abstractmethod
    def open_store(self, folder: Path) -> Store:
        """The store kept in `folder`, which is empty the first time."""

    @abstractmethod
    def flip(self, folder: Path, store: Store, place: Place, bit: int) -> None:
        """Flip one bit of the bytes stored at `place`, not through the store. `bit` counts from the first byte's 1."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        """An empty store."""
        with self.open_store(tmp_path) as store:
            yield store

    def test_new_store_is_empty(self, store: Store) -> None:
        """A new store holds no rollout and no blob."""
        assert store.rollouts() == []
        assert store.blob(blob_digest(b"")) is None

    def test_state_is_what_was_committed_last(self, store: Store) -> None:
        """The state is that of the beginning until a commit replaces it whole."""
        writer = store.write("r", b"begun")
        assert store.state("r") == b"begun"
        writer.commit(b"")
        assert store.state("r") == b""

    def test_taking_a_rollout_again_keeps_its_state(self, store: Store) -> None:
        """The state given to `write` is for a new rollout only."""
        store.write("r", b"first").release()
        store.write("r", b"second").release()
        assert store.state("r") == b"first"

    @pytest.mark.parametrize("rollout", ["nobody", "\ud800", "", "a\0b"])
    def test_unknown_rollout_is_named(self, store: Store, rollout: str) -> None:
        """Reading a rollout that is not there raises UnknownRollout, which names it, whatever its id looks like."""
        reads = (
            lambda: store.state(rollout),
            lambda: store.rows(rollout, "turns"),
            lambda: store.row(rollout, "turns", 0),
        )
        for read in reads:
            with pytest.raises(UnknownRollout) as caught:
                read()
            assert caught.value.rollout == rollout

    @pytest.mark.parametrize("rollout", AWKWARD_IDS)
    def test_awkward_ids_are_kept(self, store: Store, rollout: str) -> None:
        """Any printable id of up to 512 characters is kept as it is."""
        store.write(rollout, b"{}").commit(b"s", [Row("turns", 0, b"t")])
        assert store.rollouts() == [rollout]
        assert (store.state(rollout), store.row(rollout, "turns", 0)) == (b"s", b"t")

    @pytest.mark.parametrize("rollout", IMPOSSIBLE_IDS)
    def test_impossible_ids_are_refused(self, store: Store, rollout: str) -> None:
        """An id that not every store could hold is refused by all, and nothing begins."""
        with pytest.raises(ConfigurationError):
            store.write(rollout, b"{}")
        assert store.rollouts() == []

    def test_rollouts_come_in_the_order_they_began(self, store: Store) -> None:
        """Rollouts are listed in the order in which they began, whichever was written last."""
        writers = [store.write(name, b"{}") for name in ("b", "c", "a")]
        writers[0].commit(b"later")
        assert store.rollouts() == ["b", "c", "a"]

    def test_rows_come_by_number_and_of_one_kind(self, store: Store) -> None:
        """Rows are read in the order of their numbers, those of one rollout and kind only; numbers may have holes."""
        other = store.write("other", b"{}")
        other.commit(b"{}", [Row("turns", 1, b"theirs")])
        writer = store.write("r", b"{}")
        writer.commit(b"{}", [Row("turns", 2**40, b"z"), Row("turns", 0, b"a"), Row("calls", 0, b"call")])
        writer.commit(b"{}", [Row("turns", 7, b"m")])
        assert store.rows("r", "turns") == [Row("turns", 0, b"a"), Row("turns", 7, b"m"), Row("turns", 2**40, b"z")]
        assert store.rows("r", "calls") == [Row("calls", 0, b"call")]
        assert store.rows("r", "tools") == []
        assert [store.row("r", "turns", number) for number in (0, 1, 7)] == [b"a", None, b"m"]

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_row_replaces_that_of_its_number(self, store: Store, kind: str) -> None:
        """A row takes the place of the one of its kind and number, also within one commit."""
        writer = store.write("r", b"{}")
        writer.commit(b"{}", [Row(kind, 0, b"one"), Row(kind, 1, b"x")])
        writer.commit(b"{}", [Row(kind, 0, b"two"), Row(kind, 0, b"three")])
        assert store.rows("r", kind) == [Row(kind, 0, b"three"), Row(kind, 1, b"x")]

    def test_any_bytes_are_kept(self, store: Store) -> None:
        """States, rows and blobs are bytes of any content and come back as they were."""
        writer = store.write("r", b"{}")
        for number, data in enumerate(AWKWARD_BYTES):
            writer.commit(data, [Row("turns", number, data)], {blob_digest(data): data})
            assert store.state("r") == data
        for number, data in enumerate(AWKWARD_BYTES):
            assert store.row("r", "turns", number) == data
            assert store.blob(blob_digest(data)) == data

    def test_blobs_are_shared(self, store: Store) -> None:
        """A blob kept twice, by one rollout or by two, is there once and for both."""
        one, two = store.write("one", b"{}"), store.write("two", b"{}")
        for writer in (one, one, two):
            writer.commit(b"{}", blobs={blob_digest(b"same"): b"same"})
        assert store.blob(blob_digest(b"same")) == b"same"
        assert store.blob(blob_digest(b"other")) is None

    def test_a_commit_is_all_or_nothing(self, store: Store) -> None:
        """A commit that fails in the middle leaves state, rows and blobs as they were."""
        writer = store.write("r", b"before")

        def rows() -> Iterator[Row]:
            yield Row("turns", 0, b"half")
            raise LookupError("in the middle")

        with pytest.raises(LookupError):
            writer.commit(b"after", rows(), {blob_digest(b"half"): b"half"})
        with pytest.raises(ConfigurationError):
            writer.commit(b"after", [Row("turns", 0, b"half"), Row("wrong", 0, b"x")], {blob_digest(b"h"): b"h"})
        assert (store.state("r"), store.rows("r", "turns"), store.blob(blob_digest(b"half"))) == (b"before", [], None)
        writer.commit(b"after")
        assert store.state("r") == b"after"

    def test_unknown_kinds_are_refused(self, store: Store) -> None:
        """A kind of row that is not one of KINDS is refused when read, too."""
        store.write("r", b"{}")
        for kind in ("rollouts", "", "turns; DROP TABLE turns"):
            with pytest.raises(ConfigurationError):
                store.rows("r", kind)
            with pytest.raises(ConfigurationError):
                store.row("r", kind, 0)

    def test_a_rollout_has_one_writer(self, store: Store) -> None:
        """A second writer is refused with RolloutBusy, which names the rollout; other rollouts are free."""
        writer = store.write("r", b"{}")
        with pytest.raises(RolloutBusy) as caught:
            store.write("r", b"{}")
        assert caught.value.rollout == "r"
        store.write("other", b"{}").commit(b"free")
        writer.commit(b"still mine")
        assert store.state("r") == b"still mine"

    def test_it_says_what_has_a_writer(self, store: Store) -> None:
        """`is_written` is true from `write` to `release`, of that rollout alone, and takes nothing."""
        writer = store.write("r", b"{}")
        store.write("other", b"{}").release()
        assert (store.is_written("r"), store.is_written("other")) == (True, False)
        writer.commit(b"still mine")
        writer.release()
        assert not store.is_written("r")
        with pytest.raises(UnknownRollout):
            store.is_written("unknown")

    def test_a_released_writer_writes_no_more(self, store: Store) -> None:
        """After its release a rollout has room for another writer, and the first can neither write nor release it."""
        first = store.write("r", b"{}")
        first.release()
        with pytest.raises(RolloutBusy):
            first.commit(b"too late")
        second = store.write("r", b"{}")
        first.release()
        with pytest.raises(RolloutBusy):
            store.write("r", b"{}")
        with pytest.raises(RolloutBusy):
            first.commit(b"too late")
        second.commit(b"second")
        assert store.state("r") == b"second"

    def test_closing_gives_writers_back(self, tmp_path: Path) -> None:
        """Closing the store gives back what its writers held, and they can write no more."""
        store = self.open_store(tmp_path)
        writer = store.write("r", b"{}")
        store.close()
        with pytest.raises(StoreError) as caught:
            writer.commit(b"too late")
        assert not isinstance(caught.value, CorruptRecord)
        with self.open_store(tmp_path) as again:
            again.write("r", b"{}").commit(b"again")
            writer.release()
            with pytest.raises(RolloutBusy):
                again.write("r", b"{}")

    def test_it_is_there_when_opened_again(self, tmp_path: Path) -> None:
        """What was committed is there when the store is opened again."""
        if not self.lasts:
            return
        with self.open_store(tmp_path) as store:
            store.write("r", b"{}").commit(b"s", [Row("calls", 3, b"c")], {blob_digest(b"b"): b"b"})
        with self.open_store(tmp_path) as store:
            assert store.rollouts() == ["r"]
            assert (store.state("r"), store.rows("r", "calls")) == (b"s", [Row("calls", 3, b"c")])
            assert store.blob(blob_digest(b"b")) == b"b"

    def test_deleting_takes_rollouts_whole(self, store: Store) -> None:
        """Deleted rollouts are gone, with blobs that no row left names; one with a writer stays, as do the others."""
        data = {blob_digest(text): text for text in (b"one", b"both", b"two")}
        one, both, two = data
        for name, named in (("one", (one, both)), ("two", (both, two)), ("busy", ())):
            rows = [Row("turns", number, digest.encode()) for number, digest in enumerate(named)]
            writer = store.write(name, b"{}")
            writer.commit(name.encode(), rows, {digest: data[digest] for digest in named})
            if name != "busy":
                writer.release()
        with pytest.raises(UnknownRollout):
            store.delete(["one", "nobody"], _named)
        with pytest.raises(LookupError):
            store.delete(["one"], _fail)
        assert store.blob(one) == b"one"
        deleted = store.delete(["one", "busy", "one"], _named)
        assert deleted == (("one",), 1, 3, ("busy",))
        assert (store.rollouts(), store.state("busy")) == (["two", "busy"], b"busy")
        assert [store.blob(digest) for digest in data] == [None, b"both", b"two"]
        with pytest.raises(UnknownRollout):
            store.state("one")
        again = store.write("one", b"again")
        assert (store.state("one"), store.rows("one", "turns")) == (b"again", [])
        again.release()
        assert store.delete([], _named) == ((), 0, 0, ())

    def test_a_snapshot_is_one_instant(self, store: Store) -> None:
        """In a snapshot everything can be read, errors pass, and afterwards the store goes on."""
        writer = store.write("r", b"{}")
        with store.snapshot():
            assert store.state("r") == b"{}"
            assert store.rows("r", "turns") == []
        with pytest.raises(UnknownRollout), store.snapshot():
            store.state("nobody")
        with store.snapshot():
            with store.snapshot():
                assert store.state("r") == b"{}"
            assert store.rows("r", "turns") == []
        writer.commit(b"after", [Row("turns", 0, b"t")])
        assert store.rows("r", "turns") == [Row("turns", 0, b"t")]

    def test_threads_may_share_a_store(self, store: Store) -> None:
        """Threads that write rollouts of their own through one store lose nothing."""

        def work(name: str) -> int:
            writer = store.write(name, b"{}")
            for number in range(10):
                writer.commit(str(number).encode(), [Row("turns", number, name.encode())])
                assert store.state(name) == str(number).encode()
            return len(store.rows(name, "turns"))

        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(work, [f"r{index}" for index in range(4)])) == [10] * 4

    @pytest.mark.parametrize("what", ["state", "blob", *KINDS])
    def test_a_flipped_bit_is_found(self, store: Store, tmp_path: Path, what: str) -> None:
        """A bit flipped in a state, a row or a blob is a CorruptRecord that names what it can (contract 9.3)."""
        data = b"some thirty bytes of something"
        digest = blob_digest(data)
        writer = store.write("r", data)
        rows = [Row(kind, number, data) for kind in KINDS for number in range(3)]
        writer.commit(data, rows, {digest: data, blob_digest(b"x"): b"x"})
        for bit in (0, 7, 100, len(data) * 8 - 1):
            place = Place(what, "r", 1, digest)
            self.flip(tmp_path, store, place, bit)
            with pytest.raises(CorruptRecord) as caught:
                _read(store, place)
            if what != "blob":
                assert caught.value.rollout == "r"
            if what in ("turns", "calls"):
                assert getattr(caught.value, what[:-1]) == 1
                with pytest.raises(CorruptRecord):
                    store.rows("r", what)
            self.flip(tmp_path, store, place, bit)
            assert _read(store, place) == data
        assert store.row("r", "turns", 0) == data
        assert store.blob(blob_digest(b"x")) == b"x"

    def test_it_agrees_with_the_oracle(self) -> None:
        """Whatever is done to it, the store reads as a MemoryStore does to which the same was done."""
        contract = self

        class Machine(StoreMachine):
            def __init__(self) -> None:
                self._folder = tempfile.TemporaryDirectory(prefix="turnkeep-")
                super().__init__(lambda: contract.open_store(Path(self._folder.name)), reopens=contract.lasts)

            def teardown(self) -> None:
                super().teardown()
                self._folder.cleanup()

        checks: Any = settings(
            max_examples=self.examples,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        run_state_machine_as_test(Machine, settings=checks)


def _named(row: Row) -> list[str]:
    return [row.document.decode()]


def _fail(row: Row) -> list[str]:
    raise LookupError(row.number)


def _read(store: Store, place: Place) -> bytes | None:
    if place.what == "blob":
        return store.blob(place.digest)
    return store.state(place.rollout) if place.what == "state" else store.row(place.rollout, place.what, place.number)
