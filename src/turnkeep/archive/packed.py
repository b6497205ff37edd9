"""The packed form, version 1: turns as bytes, arrays raw, the received bodies byte for byte.

    4 bytes   the letters `tkpk`
    2 bytes   the version, 1, little-endian
    32 bytes  SHA-256 of the rest, each array standing in it for its own SHA-256
    the rest  MessagePack: an array of turns

A turn is a MessagePack array of four: the head (binary, JSON text), the other members of the JSON form (binary, JSON
text), the pieces of the received body (an array of binaries, or nil), and the arrays' bytes (an array of binaries,
C-contiguous, little-endian). The head is

    {"scope": <text or null>, "finish_reason": <text>,
     "holes": [[part, field, between], ...],          the places between the pieces of the body, in order
     "parts": <the JSON form's parts, null where an array stands; or null where there is a body>,
     "arrays": [[part, field, dtype, shape, SHA-256], ...]}

A turn with a body is read by capturing the body again, so its parts are not written twice. docs/format.md has the same
to the byte.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from turnkeep.archive.documents import expecting
from turnkeep.archive.json_form import from_skeleton, to_skeleton
from turnkeep.errors import ArchiveError, CorruptRecord, UnsupportedVersion
from turnkeep.history.capture import capture_again, readings
from turnkeep.history.turn import Hole, Received, Turn
from turnkeep.wire.json import dumps, loads
from turnkeep.wire.sha import sha256_hex
from turnkeep.wire.training import array_bytes, dtype_name

if TYPE_CHECKING:
    from turnkeep.wire.training import Array

MAGIC = b"tkpk"
VERSION = 1
_HEAD = 38
_FORM = "packed turn"


class _Entry(NamedTuple):
    """One turn as it is framed."""

    head: bytes
    rest: bytes
    pieces: Sequence[bytes] | None
    data: Sequence[memoryview]


def pack(turns: Iterable[Turn]) -> bytes:
    """The turns in the packed form; `unpack` gives equal turns, whose bodies are those received."""
    entries = [_entry(turn) for turn in turns]
    return b"".join((MAGIC, VERSION.to_bytes(2, "little"), _digest(entries), *_framed(entries)))


def unpack(data: bytes) -> list[Turn]:
    """The turns of a packed form, their large arrays read-only views of `data`, which they keep in memory.

    Raises UnsupportedVersion for a newer version, CorruptRecord where bytes are not what was written (it names turn and
    field where an array is hit), ArchiveError where `data` is no packed form.
    """
    import msgspec

    view = memoryview(data)
    if len(view) < _HEAD or view[:4] != MAGIC:
        raise ArchiveError("these bytes are no packed turns")
    if (version := int.from_bytes(view[4:6], "little")) != VERSION:
        raise UnsupportedVersion(f"packed turns of version {version}; this turnkeep knows version {VERSION}")
    try:
        entries = msgspec.msgpack.decode(
            view[_HEAD:], type=list[tuple[bytes, bytes, list[bytes] | None, list[memoryview]]]
        )
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"the packed turns are not what was written: {error}") from None
    found = [_Entry(*entry) for entry in entries]
    if _digest(found) != view[6:_HEAD]:
        raise CorruptRecord("the packed turns are not what was written: their digest differs")
    return [_turn(entry, number) for number, entry in enumerate(found)]


def _entry(turn: Turn) -> _Entry:
    refs: list[list[Any]] = []
    data: list[memoryview] = []
    received = turn.received
    in_body = None if received is None else {(hole.part, hole.field) for hole in received.holes}
    for index, part in enumerate(turn.parts):
        if part.native is None:
            continue
        for name, array in part.native.arrays.items():
            if in_body is not None and (index, name) not in in_body:
                continue  # its text is in the pieces
            refs.append([index, name, dtype_name(array.dtype), list(array.shape), part.native.array_digests[name]])
            data.append(array_bytes(array))
    head = {
        "scope": turn.scope,
        "finish_reason": turn.finish_reason,
        "holes": [[hole.part, hole.field, hole.between.decode()] for hole in received.holes] if received else [],
        "parts": None if received else to_skeleton(turn)["parts"],
        "arrays": refs,
    }
    return _Entry(dumps(head), turn.rest, received.pieces if received else None, data)


def _framed(entries: Sequence[_Entry]) -> Iterator[bytes | memoryview]:
    """The entries as MessagePack, in pieces, so that an array is copied once: to where it will stand."""
    import msgspec

    encode = msgspec.msgpack.encode
    yield _array_head(len(entries))
    for entry in entries:
        yield _array_head(len(entry))
        yield from map(encode, entry[:3])
        yield _array_head(len(entry.data))
        for raw in entry.data:
            yield _binary_head(len(raw))
            yield raw


def _array_head(count: int) -> bytes:
    """What stands before the elements of an array (MessagePack's fixarray, array 16 and array 32)."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2) if count < 1 << 16 else b"\xdd" + count.to_bytes(4)


def _binary_head(size: int) -> bytes:
    """What stands before the bytes of a binary (MessagePack's bin 8, bin 16 and bin 32)."""
    if size < 1 << 8:
        return b"\xc4" + size.to_bytes(1)
    return b"\xc5" + size.to_bytes(2) if size < 1 << 16 else b"\xc6" + size.to_bytes(4)


def _digest(entries: Iterable[_Entry]) -> bytes:
    """Over all but the arrays' bytes, each text with its length before it; the heads hold the arrays' digests."""
    digest = hashlib.sha256()
    for entry in entries:
        pieces = (b"nil",) if entry.pieces is None else (b"body", *entry.pieces)
        for text in (entry.head, entry.rest, *pieces):
            digest.update(len(text).to_bytes(8, "little"))
            digest.update(text)
    return digest.digest()


def _turn(entry: _Entry, number: int) -> Turn:
    with expecting(_FORM):
        head: Mapping[str, Any] = loads(entry.head)
        arrays = {
            (part, field): _array(dtype, shape, digest, raw, {"turn": number, "item": part, "field": field})
            for (part, field, dtype, shape, digest), raw in zip(head["arrays"], entry.data, strict=True)
        }
        if entry.pieces is None:
            held: tuple[dict[str, Array], ...] = tuple({} for _ in head["parts"])
            for (part, field), array in arrays.items():
                held[part][field] = array
            value = {"parts": head["parts"], "replay_scope": head["scope"], "finish_reason": head["finish_reason"]}
            return from_skeleton({**value, **loads(entry.rest)}, held)
        holes = tuple(Hole(part, field, between.encode()) for part, field, between in head["holes"])
        received = Received(tuple(entry.pieces), holes)
        turn = capture_again(received, [arrays[hole.part, hole.field] for hole in holes], head["scope"])
        reason = head["finish_reason"]
        found = (reading for reading in readings(turn) if reading.finish_reason == reason)
        return next(found, None) or replace(turn, finish_reason=reason)


def _array(dtype: str, shape: Sequence[int], digest: str, raw: memoryview, place: Mapping[str, Any]) -> "Array":
    import numpy as np

    if sha256_hex(raw) != digest:
        raise CorruptRecord("the array is not what was written: its digest differs", **place)
    array = np.frombuffer(raw, dtype=np.dtype(dtype).newbyteorder("<")).reshape(shape)
    return array.astype(dtype, copy=False)
