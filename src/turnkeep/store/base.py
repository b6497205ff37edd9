"""What a store is: rollouts, each with one state document, numbered rows of a few kinds, and blobs by digest.

A store keeps bytes under keys and knows nothing of turns. Two promises make it one: `Writer.commit` is a transaction
that is durable when it returns, and what is read is what was written or a CorruptRecord. Only one writer at a time has
a rollout; any number of readers, in other processes too, see whole commits.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from turnkeep.errors import ConfigurationError, CorruptRecord

KINDS = ("calls", "turns", "tools", "failures", "origins")
"""The kinds of rows: policy calls, turns, tools marked `once`, failures before a call, and a rollout's origin."""

_LONGEST_ID = 512


class Row(NamedTuple):
    """One numbered document of a rollout."""

    kind: str
    number: int
    document: bytes


class Deleted(NamedTuple):
    """What `Store.delete` deleted: the rollouts, how many blobs, their bytes; and the rollouts that had a writer."""

    rollouts: tuple[str, ...]
    blobs: int
    size: int
    busy: tuple[str, ...]


class Writer(Protocol):
    """The sole right to write one rollout, until it is released or its process dies."""

    @property
    def rollout(self) -> str:
        """The rollout's id."""
        ...

    def commit(self, state: bytes, rows: Iterable[Row] = (), blobs: Mapping[str, bytes] | None = None) -> None:
        """Write the state, put `rows` (a row replaces the one of its kind and number) and keep `blobs`: all or nothing.

        `blobs` maps `blob_digest(data)` to data. Durable on return. Raises RolloutBusy where another writer has taken
        the rollout over since.
        """
        ...

    def release(self) -> None:
        """Give the right back; done by itself when the process dies."""
        ...


class Store(Protocol):
    """Where rollouts are kept."""

    def rollouts(self) -> list[str]:
        """The ids of all rollouts, in the order in which they began."""
        ...

    def write(self, rollout: str, state: bytes) -> Writer:
        """Take the right to write a rollout, beginning it with `state` where it is new.

        Raises RolloutBusy where another writer has it.
        """
        ...

    def is_written(self, rollout: str) -> bool:
        """Whether anybody has the right to write the rollout now, in whatever process. Raises UnknownRollout."""
        ...

    def state(self, rollout: str) -> bytes:
        """The rollout's state document. Raises UnknownRollout."""
        ...

    def rows(self, rollout: str, kind: str) -> list[Row]:
        """The rollout's rows of one kind, by number. Raises UnknownRollout, CorruptRecord."""
        ...

    def row(self, rollout: str, kind: str, number: int) -> bytes | None:
        """One document, or None. Raises UnknownRollout, CorruptRecord."""
        ...

    def blob(self, digest: str, *, checked: bool = True) -> bytes | None:
        """The bytes of a digest, or None. Raises CorruptRecord where they are others.

        `checked=False` gives them as they are: for saying which part of them was hit.
        """
        ...

    def delete(self, rollouts: Iterable[str], named: Callable[[Row], Iterable[str]]) -> "Deleted":
        """Delete rollouts whole, and every blob that no row left names by `named`: all or nothing, durable on return.

        Those that have a writer are left. Raises UnknownRollout, and what `named` raises, having deleted nothing.
        """
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """While it lasts, what this thread reads is the store as of one instant, whatever is written meanwhile."""
        ...

    def close(self) -> None:
        """Release what the store holds."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def blob_digest(data: bytes) -> str:
    """SHA-256 of a blob, as hex: its key."""
    return hashlib.sha256(data).hexdigest()


def row_digest(rollout: str, row: Row) -> bytes:
    """SHA-256 over a row and its place, so that a row in another's place shows."""
    head = f"{rollout}\0{row.kind}\0{row.number}\0".encode()
    return hashlib.sha256(head + row.document).digest()


def check_row(rollout: str, row: Row, digest: bytes) -> Row:
    """The row, where its digest holds. Raises CorruptRecord that names rollout and turn or call."""
    if isinstance(row.document, bytes) and row_digest(rollout, row) == digest:
        return row
    error = CorruptRecord(f"the {row.kind[:-1]} is not what was written: its digest differs", rollout=rollout)
    setattr(error, {"turns": "turn", "calls": "call"}.get(row.kind, "index"), row.number)
    raise error


def state_row(state: bytes) -> Row:
    """The state as a row, for its digest."""
    return Row("states", 0, state)


def check_blob(digest: str, data: bytes) -> bytes:
    """The data, where its digest holds. Raises CorruptRecord."""
    if isinstance(data, bytes) and blob_digest(data) == digest:
        return data
    raise CorruptRecord(f"the bytes under {digest[:12]} are not what was written: their digest differs")


def check_id(rollout: str) -> str:
    """A rollout id that every store can hold. Raises ConfigurationError."""
    if not isinstance(rollout, str) or not rollout or len(rollout) > _LONGEST_ID or not rollout.isprintable():
        raise ConfigurationError(f"a rollout id is 1 to {_LONGEST_ID} printable characters, not {rollout!r}")
    return rollout


def check_kind(kind: str) -> str:
    """A known kind of row. Raises ConfigurationError."""
    if kind not in KINDS:
        raise ConfigurationError(f"unknown kind of row {kind!r}; there are {', '.join(KINDS)}")
    return kind


def iterate(rows: Iterable[Row]) -> Iterator[Row]:
    """Rows with their kinds checked."""
    for row in rows:
        check_kind(row.kind)
        yield row
