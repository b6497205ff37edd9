"""The store in memory: the oracle that every other backend is held against, and handy in tests."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from turnkeep.errors import RolloutBusy, UnknownRollout
from turnkeep.store.base import (
    Deleted,
    Row,
    check_blob,
    check_id,
    check_kind,
    check_row,
    iterate,
    row_digest,
    state_row,
)


class MemoryStore:
    """A store that lives as long as the object."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._writers: dict[str, MemoryWriter] = {}
        self._states: dict[str, tuple[Row, bytes]] = {}
        self._rows: dict[tuple[str, str, int], tuple[Row, bytes]] = {}
        self._blobs: dict[str, bytes] = {}

    def rollouts(self) -> list[str]:
        """The ids of all rollouts, in the order in which they began."""
        with self._lock:
            return list(self._states)

    def write(self, rollout: str, state: bytes) -> "MemoryWriter":
        """Take the right to write a rollout."""
        check_id(rollout)
        with self._lock:
            if rollout in self._writers:
                raise RolloutBusy("the rollout has a writer", rollout=rollout)
            writer = self._writers[rollout] = MemoryWriter(self, rollout)
            if rollout not in self._states:
                writer.commit(state)
            return writer

    def state(self, rollout: str) -> bytes:
        """The rollout's state document."""
        with self._lock:
            self._check_known(rollout)
            row, digest = self._states[rollout]
            return check_row(rollout, row, digest).document

    def _check_known(self, rollout: str) -> None:
        if rollout not in self._states:
            raise UnknownRollout("no such rollout", rollout=rollout)

    def is_written(self, rollout: str) -> bool:
        """Whether the rollout has a writer."""
        with self._lock:
            self._check_known(rollout)
            return rollout in self._writers

    def rows(self, rollout: str, kind: str) -> list[Row]:
        """The rollout's rows of one kind, by number."""
        check_kind(kind)
        with self._lock:
            self._check_known(rollout)
            keys = sorted(key for key in self._rows if key[:2] == (rollout, kind))
            return [check_row(rollout, *self._rows[key]) for key in keys]

    def row(self, rollout: str, kind: str, number: int) -> bytes | None:
        """One document, or None."""
        with self._lock:
            self._check_known(rollout)
            found = self._rows.get((rollout, check_kind(kind), number))
            return None if found is None else check_row(rollout, *found).document

    def blob(self, digest: str, *, checked: bool = True) -> bytes | None:
        """The bytes of a digest, or None."""
        with self._lock:
            data = self._blobs.get(digest)
            return data if data is None or not checked else check_blob(digest, data)

    def delete(self, rollouts: Iterable[str], named: Callable[[Row], Iterable[str]]) -> Deleted:
        """Delete rollouts whole, and every blob that no row left names."""
        with self._lock:
            asked = list(dict.fromkeys(rollouts))
            for rollout in asked:
                self._check_known(rollout)
            gone = tuple(rollout for rollout in asked if rollout not in self._writers)
            left = [(key[0], found) for key, found in self._rows.items() if key[0] not in gone]
            used = {digest for rollout, found in left for digest in named(check_row(rollout, *found))}
            lost = {digest: data for digest, data in self._blobs.items() if digest not in used}
            self._blobs = {digest: data for digest, data in self._blobs.items() if digest in used}
            self._states = {rollout: found for rollout, found in self._states.items() if rollout not in gone}
            self._rows = {key: found for key, found in self._rows.items() if key[0] not in gone}
            busy = tuple(rollout for rollout in asked if rollout not in gone)
            return Deleted(gone, len(lost), sum(map(len, lost.values())), busy)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """What is read is the store as of one instant."""
        with self._lock:
            yield

    def close(self) -> None:
        """Nothing to release: the store can be read again."""
        self._writers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class MemoryWriter:
    """The sole right to write one rollout of a MemoryStore."""

    def __init__(self, store: MemoryStore, rollout: str) -> None:
        self._store = store
        self.rollout = rollout

    def commit(self, state: bytes, rows: Iterable[Row] = (), blobs: Mapping[str, bytes] | None = None) -> None:
        """Write the state, rows and blobs, all or nothing."""
        store, rows = self._store, list(iterate(rows))
        with store._lock:
            if store._writers.get(self.rollout) is not self:
                raise RolloutBusy("another writer has taken the rollout over", rollout=self.rollout)
            store._blobs.update(blobs or {})
            for row in rows:
                store._rows[self.rollout, row.kind, row.number] = (row, row_digest(self.rollout, row))
            row = state_row(state)
            store._states[self.rollout] = (row, row_digest(self.rollout, row))

    def release(self) -> None:
        """Give the right back."""
        with self._store._lock:
            if self._store._writers.get(self.rollout) is self:
                del self._store._writers[self.rollout]
