"""SHA-256 of requests that grow: what a policy call writes down of the body that it sends."""

import hashlib
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from turnkeep.history.projection import Projected
from turnkeep.history.wire_cache import WireCache
from turnkeep.wire.sha import sha256_hex

_OPENING = b'{"input":['


class Hashed(NamedTuple):
    """A body's SHA-256 and length, and SHA-256 of the text of each entry that is no turn's (None: it is a turn's)."""

    body: str
    length: int
    texts: tuple[str | None, ...]


class _Known(NamedTuple):
    """A body as far as its entries: these, the digests of their texts, the hash up to there, and how long that is."""

    entries: tuple[Projected, ...] = ()
    texts: tuple[str | None, ...] = ()
    state: Any = hashlib.sha256(_OPENING)
    length: int = len(_OPENING)


class BodyHash:
    """Hashes one request's body after the other, where a longer one costs only what it adds.

    A request whose first entries are all those of the request before is hashed on from there.
    """

    def __init__(self) -> None:
        self._last = _Known()

    def add(self, entries: Sequence[Projected], tail: bytes, cache: WireCache | None = None) -> Hashed:
        """The digests of the body that `body_chunks` gives for the same."""
        known = self._last if _begin_alike(entries, self._last.entries) else _Known()
        new = entries[len(known.entries) :]
        state, length = known.state.copy(), known.length
        for entry in new:
            if entry.is_empty:
                continue
            for chunk in chain([b","] if length > len(_OPENING) else [], entry.chunks(cache)):
                state.update(chunk)
                length += len(chunk)
        texts = (*known.texts, *(sha256_hex(entry.literal) if entry.turn is None else None for entry in new))
        self._last = _Known(tuple(entries), texts, state.copy(), length)
        state.update(closing := b"]" + tail + b"}")
        return Hashed(state.hexdigest(), length + len(closing), texts)


def _begin_alike(entries: Sequence[Projected], known: Sequence[Projected]) -> bool:
    """Whether `known` are the first of `entries`: the same turns, not merely equal ones, and equal texts."""
    return len(known) <= len(entries) and all(
        one.form == other.form and one.turn is other.turn and one.literal == other.literal
        for one, other in zip(entries, known, strict=False)
    )
