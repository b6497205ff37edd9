"""A turn with its arrays apart: a small document, and each array's bytes under their digest.

The document is versioned JSON, version 1:

    {"format": "turnkeep-turn", "version": 1, "digest": <Turn.digest>, "call": <number or null>,
     "turn": <the JSON form, null where an array stands>,
     "arrays": [{"part": i, "field": name, "dtype": "uint16", "shape": [...], "blob": <SHA-256 of the bytes>}, ...]}

An array's bytes are C-contiguous and little-endian. A turn whose received body is stored needs neither: version 2,

    {"format": "turnkeep-turn", "version": 2, "digest": <Turn.digest>, "call": <number or null>, "scope": <or null>,
     "body": [<digest of the stored body>, <digests of its large arrays>, ...]}

is captured again from that body.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from turnkeep.archive.bodies import Bodies
from turnkeep.archive.documents import expecting, read_document, write_document
from turnkeep.archive.json_form import from_skeleton, to_skeleton
from turnkeep.errors import CorruptRecord, TurnkeepError
from turnkeep.history.capture import capture_again, readings
from turnkeep.history.turn import Turn
from turnkeep.wire.training import array_bytes, dtype_name

if TYPE_CHECKING:
    from turnkeep.wire.training import Array

FORMAT = "turnkeep-turn"
VERSION = 1
BODY_VERSION = 2


class Detached(NamedTuple):
    """A turn's document, and its arrays' bytes by digest."""

    document: bytes
    blobs: dict[str, bytes]


def detach(turn: Turn, call: int | None = None) -> Detached:
    """The turn as a document and blobs; `call` is the policy call that made it."""
    blobs: dict[str, bytes] = {}
    refs: list[dict[str, Any]] = []
    for index, part in enumerate(turn.parts):
        if part.native is None:
            continue
        for name, array in part.native.arrays.items():
            digest = part.native.array_digests[name]
            blobs[digest] = bytes(array_bytes(array))
            place = {"part": index, "field": name}
            refs.append({**place, "dtype": dtype_name(array.dtype), "shape": list(array.shape), "blob": digest})
    members = {"digest": turn.digest, "call": call, "turn": to_skeleton(turn), "arrays": refs}
    return Detached(write_document(FORMAT, VERSION, members), blobs)


def read_turn_document(document: bytes) -> dict[str, Any]:
    """The document's members. Raises ArchiveError, UnsupportedVersion."""
    return read_document(document, FORMAT, VERSION, BODY_VERSION)


def write_body_document(turn: Turn, call: int | None, body: Sequence[str]) -> bytes:
    """The document, version 2, of a turn that is captured again from the stored body `body`."""
    members = {"digest": turn.digest, "call": call, "scope": turn.scope, "body": list(body)}
    return write_document(FORMAT, BODY_VERSION, members)


def read_turn(document: Mapping[str, Any], bodies: Bodies, blob: Callable[[str], bytes | None]) -> Turn:
    """The turn of a document of either version. Raises as `attach` does."""
    if "body" not in document:
        return attach(document, blob)
    with expecting(FORMAT):
        received, arrays, *_ = bodies.read(document["body"][0])
        turn, digest = capture_again(received, arrays, document["scope"]), document["digest"]
    for reading in readings(turn):
        if reading.digest == digest:
            return reading
    raise CorruptRecord("the turn is not what was written: its digest differs")


def attach(document: Mapping[str, Any], blob: Callable[[str], bytes | None]) -> Turn:
    """The turn of a document, its arrays fetched by digest.

    Raises CorruptRecord that names the field of an array that is missing or not what was written, ArchiveError where
    the document lacks what its version has.
    """
    with expecting(FORMAT):
        form, digest = document["turn"], document["digest"]
        arrays: tuple[dict[str, Array], ...] = tuple({} for _ in form["parts"])
        for ref in document["arrays"]:
            arrays[ref["part"]][ref["field"]] = _array(ref, blob)
        turn = from_skeleton(form, arrays)
    if turn.digest != digest:
        raise CorruptRecord("the turn is not what was written: its digest differs")
    return turn


def _array(ref: Mapping[str, Any], blob: Callable[[str], bytes | None]) -> "Array":
    import numpy as np

    place = {"item": ref["part"], "field": ref["field"]}
    try:
        data = blob(ref["blob"])
    except TurnkeepError as error:
        raise CorruptRecord(error.message, **place) from error
    if data is None:
        raise CorruptRecord("the array's bytes are missing", **place)
    try:
        dtype = np.dtype(ref["dtype"]).newbyteorder("<")
        return np.frombuffer(data, dtype=dtype).reshape(ref["shape"]).astype(ref["dtype"], copy=False)
    except (TypeError, ValueError) as error:
        raise CorruptRecord(f"the array's bytes are not of its dtype and shape: {error}", **place) from None
