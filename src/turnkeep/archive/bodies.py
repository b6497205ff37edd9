"""A received body as it is stored: its text in pieces, and the arrays that stood between them, each with a digest.

A response is kept whole as evidence, and the turn that it made is kept too. Both are this one thing: the body comes
back byte for byte (contract 7.11), and the turn is captured again from it. A stored body is a blob, version 1:

    4 bytes   the letters `tkpb`
    2 bytes   the version, 1, little-endian
    the rest  MessagePack: [pieces, holes]

with one piece (binary) more than holes. A hole is an array of eight or more: part, field, between, dtype, shape, the
32 bytes of SHA-256 over the array's bytes, a code, and what the code asks for:

    0, data               the array's bytes
    1                     they are a blob of their own, under that SHA-256
    2, blob, part, data   a prompt: that part's prompt_token_ids in another stored body (its 32 bytes of digest), its
                          generation_token_ids, then data

An array's bytes are C-contiguous and little-endian; data of uint32 below 2**24 leaves out every fourth byte: it is 0.
"""

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from turnkeep.archive.documents import expecting
from turnkeep.errors import ArchiveError, CorruptRecord, TurnkeepError, UnsupportedVersion
from turnkeep.history.capture import cut_out
from turnkeep.history.turn import Hole, Received, Turn
from turnkeep.wire.scan import Scanned, scan_body
from turnkeep.wire.sha import sha256_hex
from turnkeep.wire.training import array_bytes, dtype_name, spell_array

if TYPE_CHECKING:
    from turnkeep.wire.training import Array

MAGIC = b"tkpb"
VERSION = 1
MOST_LINKS = 32
"""How many stored bodies are read at most for one prompt."""
LARGE = 1 << 16
"""Bytes from which an array is a blob of its own."""
_FORM = "stored body"
_PROMPT, _GENERATION = "prompt_token_ids", "generation_token_ids"
_HERE, _APART, _EXTENDS = range(3)
_AT_HAND = 8


class Cutting(NamedTuple):
    """A body cut into pieces around the arrays of its output items, and what reading it gave (None: it is faulty)."""

    received: Received
    arrays: "tuple[Array, ...]"
    scanned: Scanned | None = None
    digests: tuple[str, ...] = ()
    """SHA-256 of the bytes of each array, as hex, where they are known."""


class Link(NamedTuple):
    """One stored body on the way to a prompt: its blob and part, and how many ids its prompt and generation are."""

    blob: str
    part: int
    end: int


class Known(NamedTuple):
    """A prompt and its generation, which a later prompt may extend, and the stored bodies they stand in, root first."""

    prompt: "Array"
    generation: "Array"
    links: tuple[Link, ...]


class Stored(NamedTuple):
    """A body as blobs: the first is the stored body, the others its large arrays. `known` are the prompts in it."""

    blobs: dict[str, bytes]
    known: tuple[Known, ...]

    @property
    def refs(self) -> tuple[str, ...]:
        """The digests of the blobs, the stored body's first."""
        return tuple(self.blobs)


class _Place(NamedTuple):
    """A hole as it is written."""

    part: int
    field: str
    between: bytes
    dtype: str
    shape: Sequence[int]
    sha256: bytes
    code: int
    rest: Sequence[Any]


class _Read(NamedTuple):
    """A stored body that was read, its arrays still bytes."""

    pieces: tuple[bytes, ...]
    places: tuple[_Place, ...]

    def place(self, part: int, field: str) -> _Place:
        """The hole of a field."""
        for place in self.places:
            if (place.part, place.field) == (part, field):
                return place
        raise CorruptRecord("a stored body lacks the ids that a prompt extends", item=part, field=field)


class ReadBlob(Protocol):
    """How a blob is read: None where it is missing, CorruptRecord where it is damaged and `checked`."""

    def __call__(self, digest: str, *, checked: bool = True) -> bytes | None:
        """The bytes of a digest."""
        ...


def cut_body(body: bytes) -> Cutting:
    """Cut the arrays that are members of output items out of a body; what is no exact JSON stays one piece."""
    try:
        scanned = scan_body(body)
    except ValueError:  # capture says what is wrong with it
        return Cutting(Received((body,), ()), ())
    output = scanned.value.get("output") if isinstance(scanned.value, dict) else None
    items = enumerate(output if isinstance(output, list) else ())
    members = ((index, item.items()) for index, item in items if isinstance(item, dict))
    return Cutting(*cut_out(body, scanned.cuts, members), scanned)


def cut_turn(turn: Turn) -> Cutting | None:
    """The body of a captured turn, cut; None where the turn is not just what its body makes."""
    if turn.received is None:
        return None
    natives = [part.native for part in turn.parts]
    places = [(natives[hole.part], hole.field) for hole in turn.received.holes]
    arrays = tuple(native.arrays[field] for native, field in places)  # type: ignore[union-attr] # none is None
    digests = tuple(native.array_digests[field] for native, field in places)  # type: ignore[union-attr]
    return Cutting(turn.received, arrays, None, digests)


def store_body(cutting: Cutting, known: Sequence[Known] = ()) -> Stored:
    """The body as blobs. A prompt that begins with one of `known` brings in only its new ids."""
    import msgspec

    apart: dict[str, bytes] = {}
    holes: list[list[Any]] = []
    ways: dict[int, tuple[Link, ...]] = {}
    digests = cutting.digests or map(sha256_hex, map(array_bytes, cutting.arrays))
    for hole, array, digest in zip(cutting.received.holes, cutting.arrays, digests, strict=True):
        base = _extended(array, known) if hole.field == _PROMPT else ()
        start = base[-1].end if base else 0
        if base:
            last = base[-1]
            source = [_EXTENDS, bytes.fromhex(last.blob), last.part, _narrow(array[start:])]
        elif array.nbytes >= LARGE:
            source = [_APART]
            apart[digest] = _bytes(array)
        else:
            source = [_HERE, _narrow(array)]
        if hole.field == _PROMPT and _is_ids(array):
            ways[hole.part] = base
        holes.append([*hole, dtype_name(array.dtype), list(array.shape), bytes.fromhex(digest), *source])
    blob = MAGIC + VERSION.to_bytes(2, "little") + msgspec.msgpack.encode([cutting.received.pieces, holes])
    blobs = {sha256_hex(blob): blob, **apart}
    return Stored(blobs, tuple(_known(cutting, ways, next(iter(blobs)))))


def _known(cutting: Cutting, ways: Mapping[int, tuple[Link, ...]], blob: str) -> Iterator[Known]:
    holes = zip(cutting.received.holes, cutting.arrays, strict=True)
    found = {(hole.part, hole.field): array for hole, array in holes}
    for part, way in ways.items():
        prompt, generation = found[part, _PROMPT], found.get((part, _GENERATION))
        if generation is not None and _is_ids(generation):
            yield Known(prompt, generation, (*way, Link(blob, part, prompt.size + generation.size)))


def _is_ids(array: "Array") -> bool:
    return array.ndim == 1 and array.dtype.kind == "u"


def _extended(array: "Array", known: Sequence[Known]) -> tuple[Link, ...]:
    """The links that lead to the longest of `known` that the prompt begins with, at most MOST_LINKS with its own."""
    best = max((each for each in known if _begins(array, each)), key=lambda each: each.links[-1].end, default=None)
    if best is None:
        return ()
    links = best.links
    if len(links) < MOST_LINKS:
        return links
    before = 0
    for index, link in enumerate(links):  # what is written again is at most doubled: an id is written log n times
        if link.end - before <= array.size - link.end:
            return links[:index]
        before = link.end
    return links[:-1]


def _begins(array: "Array", known: Known) -> bool:
    import numpy as np

    if not _is_ids(array):
        return False
    first, end = known.prompt.size, known.links[-1].end
    return (
        array.size >= end
        and np.array_equal(array[first:end], known.generation)
        and np.array_equal(array[:first], known.prompt)
    )


def _bytes(array: "Array") -> bytes:
    return bytes(array_bytes(array))


def _narrow(array: "Array") -> bytes:
    """The array's bytes, three for each id where that is enough."""
    import numpy as np

    raw = _bytes(array)
    if dtype_name(array.dtype) != "uint32" or (array.size and int(array.max()) >= 1 << 24):
        return raw
    return np.frombuffer(raw, dtype=np.uint8).reshape(-1, 4)[:, :3].tobytes()


class Bodies:
    """Stored bodies, read from their blobs. The last few prompts stay at hand, since the next one extends them."""

    def __init__(self, blob: ReadBlob) -> None:
        self._blob = blob
        self._prompts: OrderedDict[tuple[str, int], Array] = OrderedDict()
        self._naming: set[str] = set()

    def read(self, digest: str) -> Cutting:
        """The body under a digest. Raises CorruptRecord, which names item and field where an array is hit."""
        stored = self.open(digest)
        with expecting(_FORM):
            arrays = tuple(self._array(digest, place) for place in stored.places)
            return Cutting(Received(stored.pieces, tuple(Hole(*place[:3]) for place in stored.places)), arrays)

    def text(self, digest: str) -> bytes:
        """The body under a digest, byte for byte."""
        received, arrays, *_ = self.read(digest)
        texts = [received.pieces[0]]
        for hole, array, piece in zip(received.holes, arrays, received.pieces[1:], strict=True):
            texts += [spell_array(array, hole.between), piece]
        return b"".join(texts)

    def known(self, digest: str) -> tuple[Known, ...]:
        """The prompts under a digest that a later one may extend."""
        cutting, stored = self.read(digest), self.open(digest)
        with expecting(_FORM):
            prompts = [place for place in stored.places if place.field == _PROMPT]
            ways = {place.part: tuple(link for link, _ in self._way(place))[::-1] for place in prompts}
            return tuple(_known(cutting, ways, digest))

    def _way(self, place: _Place) -> Iterator[tuple[Link, _Read]]:
        """The stored bodies that a prompt leads to, the nearest first."""
        for _ in range(MOST_LINKS):
            if place.code != _EXTENDS:
                return
            digest, part = place.rest[0].hex(), place.rest[1]
            stored = self.open(digest)
            place, generation = stored.place(part, _PROMPT), stored.place(part, _GENERATION)
            yield Link(digest, part, place.shape[0] + generation.shape[0]), stored
        raise CorruptRecord(f"a prompt is spread over more than {MOST_LINKS} stored bodies")

    def open(self, digest: str) -> _Read:
        """What is written of a body, its arrays still apart. Raises CorruptRecord."""
        try:
            data = self._blob(digest)
        except CorruptRecord:
            self._name(digest)
            raise
        if data is None:
            raise CorruptRecord(f"the stored body {digest[:12]} is missing")
        return _parse(data)

    def _name(self, digest: str) -> None:
        """Raise CorruptRecord that names the array of a damaged body that was hit, where it was an array."""
        if digest in self._naming:  # what stands in its place leads back to it
            return
        self._naming.add(digest)
        try:
            for place in _parse(self._blob(digest, checked=False) or b"").places:
                self._prompts.pop((digest, place.part), None)
                with expecting(_FORM):
                    if place.code != _APART and sha256_hex(_bytes(self._array(digest, place))) != place.sha256.hex():
                        raise CorruptRecord("the array is not what was written: its digest differs", **_where(place))
        except ArchiveError:
            return
        finally:
            self._naming.discard(digest)

    def _array(self, digest: str, place: _Place) -> "Array":
        if place.code == _EXTENDS:
            return self._prompt(digest, place)
        if place.code == _HERE:
            return _array(place.rest[0], place, place.shape)
        try:
            raw = self._blob(place.sha256.hex())
        except TurnkeepError as error:
            raise CorruptRecord(error.message, **_where(place)) from error
        if raw is None:
            raise CorruptRecord("the array's bytes are missing", **_where(place))
        return _array(raw, place, place.shape)

    def _prompt(self, digest: str, place: _Place) -> "Array":
        """A prompt that extends others: at hand, or read. Threads may ask at once."""
        key = (digest, place.part)
        found = self._prompts.pop(key, None)
        if found is None:
            found = self._read_prompt(place)
        self._prompts[key] = found
        while len(self._prompts) > _AT_HAND:
            self._prompts.popitem(last=False)
        return found

    def _read_prompt(self, place: _Place) -> "Array":
        """The ids of others and its own, held against their digest."""
        import numpy as np

        try:
            whole = np.concatenate(list(self._spread(place))[::-1]).astype(place.dtype)
        except TurnkeepError as error:
            raise CorruptRecord(error.message, **_where(place)) from error
        if sha256_hex(_bytes(whole)) != place.sha256.hex():
            raise CorruptRecord("the array is not what was written: its digest differs", **_where(place))
        whole.flags.writeable = False
        return whole

    def _spread(self, place: _Place) -> "Iterator[Array]":
        """The arrays that a prompt consists of, the last first."""
        for link, stored in self._way(place):
            yield _array(place.rest[-1], place, (place.shape[0] - link.end,))
            yield self._array(link.blob, stored.place(link.part, _GENERATION))
            place = stored.place(link.part, _PROMPT)
            if (at_hand := self._prompts.get((link.blob, link.part))) is not None:
                yield at_hand
                return
        yield self._array("", place)


def _parse(data: bytes) -> _Read:
    import msgspec

    if data[:4] != MAGIC:
        raise ArchiveError("these bytes are no stored body")
    if (version := int.from_bytes(data[4:6], "little")) != VERSION:
        raise UnsupportedVersion(f"a stored body of version {version}; this turnkeep knows version {VERSION}")
    try:
        pieces, holes = msgspec.msgpack.decode(memoryview(data)[6:], type=tuple[tuple[bytes, ...], list[list[Any]]])
        return _Read(pieces, tuple(_place(*hole) for hole in holes))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise ArchiveError(f"a stored body does not hold what its version has: {error}") from None


def _place(part: int, field: str, between: bytes, dtype: str, shape: list[int], *rest: Any) -> _Place:
    sha256, code, *source = rest
    return _Place(part, field, between, dtype, shape, sha256, code, source)


def _array(data: bytes, place: _Place, shape: Sequence[int]) -> "Array":
    """The array of a place's data, made four bytes wide where every fourth was left out."""
    import numpy as np

    count = math.prod(shape)
    if place.dtype == "uint32" and len(data) == 3 * count:
        wide = np.zeros((count, 4), dtype=np.uint8)
        wide[:, :3] = np.frombuffer(data, dtype=np.uint8).reshape(count, 3)
        data = wide.tobytes()
    array = np.frombuffer(data, dtype=np.dtype(place.dtype).newbyteorder("<")).reshape(shape)
    return array.astype(place.dtype, copy=False)


def _where(place: _Place) -> dict[str, Any]:
    return {"item": place.part, "field": place.field}
