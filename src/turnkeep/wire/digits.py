"""Arrays of integers as JSON text, read and written without a Python object for each number.

Two spellings are read here: `[1,2]` and `[1, 2]`, nested to any depth, without signs. Everything else is for the slower
reader, which is asked whenever `parse_integers` gives None.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    type Array = np.ndarray[Any, np.dtype[Any]]

_DIGITS = b"0123456789"
MOST_DIMENSIONS = 8
"""Arrays of a higher rank stay plain JSON."""
_LONGEST = 18
"""Digits of an integer that fit 64 bits whatever they are."""


def parse_integers(text: bytes) -> "Array | None":
    """The full rectangle of non-negative integers that `text` spells, in the narrowest dtype; else None.

    The proof that nothing else passes: the text without its digits is compared, whole, with the only spelling of the
    shape; each run of digits stands between `[`, `,` or a space and `,` or `]`; there are as many runs as elements; and
    no run begins with a zero that JSON forbids.
    """
    structure = text.translate(None, _DIGITS)
    between = b", " if b" " in structure else b","
    shape = _read_shape(structure, between)
    if shape is None or text[:1] != b"[" or text[-1:] != b"]":
        return None
    return _read_numbers(text, shape)


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


def _read_numbers(text: bytes, shape: tuple[int, ...]) -> "Array | None":
    import numpy as np

    raw = np.frombuffer(text, dtype=np.uint8)
    digits = raw - np.uint8(48)
    is_digit = digits < 10
    edges = np.flatnonzero(is_digit[1:] != is_digit[:-1])  # text begins and ends with a bracket
    starts, ends = edges[0::2] + 1, edges[1::2]
    if len(starts) != int(np.prod(shape)):
        return None
    before, after = raw[starts - 1], raw[ends + 1]
    if not (
        np.isin(before, np.frombuffer(b"[, ", np.uint8)).all() and np.isin(after, np.frombuffer(b",]", np.uint8)).all()
    ):
        return None
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > _LONGEST or bool(((digits[starts] == 0) & (lengths > 1)).any()):
        return None
    values: Array = digits[ends].astype(np.int64 if longest > 4 else np.int32)
    for place in range(1, longest):
        has = lengths > place
        values = values + np.where(has, digits[ends - place], 0).astype(values.dtype) * 10**place
    values = values.astype(narrowest_dtype(0, int(values.max()))).reshape(shape)
    values.flags.writeable = False
    return values


def narrowest_dtype(low: int, high: int) -> str | None:
    """The narrowest integer dtype that holds `low` to `high`, unsigned where none is negative; None beyond 64 bits."""
    for bits in (8, 16, 32, 64):
        if low >= 0 and high < 1 << bits:
            return f"uint{bits}"
        if low < 0 and -(1 << bits - 1) <= low and high < 1 << bits - 1:
            return f"int{bits}"
    return None
