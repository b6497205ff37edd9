"""Arrays of integers as JSON text, read and written without a Python object for each number.

Two spellings are read here: `[1,2]` and `[1, 2]`, nested to any depth, without signs. Everything else is for the slower
reader, which is asked whenever `parse_integers` gives None.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    type Array = np.ndarray[Any, np.dtype[Any]]

_OPEN, _CLOSE, _COMMA, _SPACE = b"[], "
MOST_DIMENSIONS = 8
"""Arrays of a higher rank stay plain JSON."""
_BLOCK = 1 << 16
"""Bytes of text that are read at a time."""
_LONGEST = 18
"""Digits of an integer that fit 64 bits whatever they are."""


def parse_integers(text: bytes) -> "Array | None":
    """The full rectangle of non-negative integers that `text` spells, in the narrowest dtype; else None.

    The proof that nothing else passes: digits stand in each place of an element and nowhere else, no zero is in front
    that JSON forbids, and the text without its digits is compared, whole, with the only spelling of the shape.
    """
    if text[:1] != b"[" or text[-1:] != b"]":
        return None
    between = b", " if b" " in text else b","
    read = _read_blocks(text, between[-1])
    shape = None if read is None else _read_shape(read.structure, between)
    if read is None or shape is None:
        return None
    values = read.values.astype(narrowest_dtype(0, int(read.values.max())), copy=False).reshape(shape)
    values.flags.writeable = False
    return values


class _Read(NamedTuple):
    """The elements of a text, and the text without their digits."""

    values: "Array"
    structure: bytes


def _read_shape(structure: bytes, between: bytes) -> tuple[int, ...] | None:
    """The shape whose only spelling `structure` is, or None."""
    rank = len(structure) - len(structure.lstrip(b"["))
    if not 0 < rank <= MOST_DIMENSIONS:
        return None
    shape: list[int] = []
    unit = b""
    for level in range(rank, 0, -1):
        head = b"[" * level if not unit else b"[" * (level - 1) + b"["
        end = structure.find(b"]" * (rank - level + 1))
        if end < 0:
            return None
        inner = structure[len(head) : end + rank - level]
        width = len(unit) + len(between)
        if (len(inner) + len(between)) % width:
            return None
        count = (len(inner) + len(between)) // width
        if not count:
            return None
        unit = b"[" + between.join([unit] * count) + b"]"
        shape.insert(0, count)
    return tuple(shape) if unit == structure else None


def _read_blocks(text: bytes, before_element: int) -> "_Read | None":
    """Read a block at a time, so that what is worked on stays in the processor's cache."""
    import numpy as np

    raw = np.frombuffer(text, dtype=np.uint8)
    blocks: list[_Read] = []
    start = 0
    while start < len(text) - 1:
        end = text.find(b",", start + _BLOCK)
        end = len(text) - 1 if end < 0 else end
        block = _read_block(raw[start : end + 1], before_element)
        if block is None:
            return None
        blocks.append(block)
        start = end
    return _Read(np.concatenate([block.values for block in blocks]), b"[" + b"".join(b.structure for b in blocks))


def _read_block(raw: "Array", before_element: int) -> "_Read | None":
    """What stands between the first byte, which is no digit, and the last, and the last; None where it is no array."""
    import numpy as np

    digits = raw - np.uint8(48)  # what is no digit wraps to 10 or more
    marks = np.flatnonzero(digits > 9)
    before, after = raw[marks[:-1]], raw[marks[1:]]
    lengths = np.diff(marks) - 1
    element = lengths > 0
    opens = (before == _OPEN) | (before == before_element)
    if not np.array_equal(element, opens & ((after == _COMMA) | (after == _CLOSE))):
        return None
    lengths, ends = lengths[element], marks[1:][element] - 1
    longest = int(lengths.max(initial=1))
    if longest > _LONGEST or bool(((digits[ends - lengths + 1] == 0) & (lengths > 1)).any()):
        return None  # too long, or a zero in front
    values: Array = digits[ends].astype(np.int64 if longest > 4 else np.uint16)
    for place in range(1, longest):
        values = values + digits[ends - place] * (lengths > place) * values.dtype.type(10**place)
    return _Read(values, after.tobytes())


def narrowest_dtype(low: int, high: int) -> str | None:
    """The narrowest integer dtype that holds `low` to `high`, unsigned where none is negative; None beyond 64 bits."""
    for bits in (8, 16, 32, 64):
        if low >= 0 and high < 1 << bits:
            return f"uint{bits}"
        if low < 0 and -(1 << bits - 1) <= low and high < 1 << bits - 1:
            return f"int{bits}"
    return None
