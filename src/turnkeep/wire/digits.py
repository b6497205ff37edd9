"""Arrays of integers as JSON text, read without a Python object for each number.

Two spellings are read: `[1,2]` and `[1, 2]`, nested up to 8 deep, of up to 18 digits and without signs. Everything else
is for the slower reader, which is asked whenever `parse_integers` gives None.
"""

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    type Array = np.ndarray[Any, np.dtype[Any]]
    type Shape = tuple[int, ...]

_OPEN, _CLOSE, _COMMA, _SPACE = b"[], "
MOST_DIMENSIONS = 8
"""Arrays of a higher rank stay plain JSON."""
_BLOCK = 1 << 16
"""Bytes of text that are read at a time, so that what is worked on stays in the processor's cache."""
_PLACES = (3, 6, 9, 18)
"""How many digits of an integer are read before the proof is tried; more may not fit 64 bits."""


def parse_integers(body: bytes, start: int = 0, stop: int | None = None) -> "Array | None":
    """The full rectangle of non-negative integers that `body[start:stop]` spells, in the narrowest dtype; else None.

    The proof that nothing else passes: `_guess_inner_shape` says what the whole must be, and `_is_spelled` that it is.
    """
    stop = len(body) if stop is None else stop
    text = _Text(body, start, stop, guess_between(body, start, stop))
    inner = _guess_inner_shape(text)
    read = None if inner is None else _read_blocks(text, inner[-1] if inner else text.stop - text.start)
    if inner is None or read is None:
        return None
    shape = (read.values.size // prod(inner), *inner)
    if not _is_spelled(text, shape, read):
        return None
    values = read.values.astype(narrowest_dtype(0, int(read.values.max())), copy=False)
    values.flags.writeable = False
    return values.reshape(shape)


def guess_between(body: bytes, start: int, stop: int) -> bytes:
    """What the array that `body[start:stop]` spells has between its elements, if it is spelled alike throughout."""
    comma = body.find(b",", start, stop)
    return b", " if comma >= 0 and body.startswith(b" ", comma + 1) else b","


class _Text(NamedTuple):
    """Where in a body the text of an array stands, which is not copied, and what must be between its elements."""

    body: bytes
    start: int
    stop: int
    between: bytes

    @property
    def raw(self) -> "Array":
        """The text's bytes."""
        import numpy as np

        return np.frombuffer(self.body, np.uint8, self.stop - self.start, self.start)


class _Read(NamedTuple):
    """The elements of a text, where the last of each row ends, and its commas and bytes that are no digits."""

    values: "Array"
    row_ends: "Array"
    commas: int
    others: int


def _guess_inner_shape(text: _Text) -> "Shape | None":
    """The shape below the first dimension if the first row, plane and so on tell it; None where no shape fits them."""
    body, start, stop, _ = text
    front = body[start : min(start + MOST_DIMENSIONS + 1, stop)]
    rank = len(front) - len(front.lstrip(b"["))
    if not 0 < rank <= MOST_DIMENSIONS or not body.endswith(b"]" * rank, start, stop):
        return None
    shape: list[int] = []
    for level in range(1, rank):
        count, left = divmod(body.count(b",", start, body.find(b"]" * level, start, stop)) + 1, prod(shape))
        if left:
            return None
        shape.insert(0, count)
    return tuple(shape)


def _is_spelled(text: _Text, shape: "Shape", read: _Read) -> bool:
    """Whether `text` is the only spelling of its elements in `shape` with `between` among them.

    The text begins and ends with the brackets of its rank, and after the last element of each row stands, byte for
    byte, what closes and opens rows there. What is left of the bytes that are no digits is one comma (with its space,
    which `_read_blocks` saw to) for each of the other gaps; each gap holds something, or its elements would be one; so
    each holds just that.
    """
    elements, rank, between = prod(shape), len(shape), text.between
    brackets = 2 * sum(prod(shape[:level]) for level in range(rank))
    if read.values.size != elements or read.commas != elements - 1:
        return False
    if read.others != brackets + (elements - 1) * len(between):
        return False
    raw, ends = text.raw, read.row_ends
    for closed in range(1, rank):  # `ends`: the last elements of all that `closed` brackets close, or more
        inner = ends.reshape(-1, shape[rank - closed - 1])
        last = inner[:, :-1].ravel()
        for at, byte in enumerate(b"]" * closed + between + b"[" * closed, 1):
            if not (raw[at:].take(last, mode="clip") == byte).all():
                return False
        ends = inner[:, -1]
    return True


def _read_blocks(text: _Text, width: int) -> _Read | None:
    """The elements of `text`, whose rows are `width` long, a block at a time; None where it cannot be an array."""
    import numpy as np

    raw, spaced, size = text.raw, text.between == b", ", text.stop - text.start
    values: list[Array] = []
    row_ends: list[Array] = []
    at = elements = commas = others = 0
    while at < size - 1:
        comma = text.body.find(b",", text.start + at + _BLOCK, text.stop)
        end = size - 1 if comma < 0 else comma - text.start
        block = raw[at : end + 1]
        digits = block - np.uint8(48)
        is_digit = digits < 10  # what is no digit wraps to 10 or more
        is_comma = block == _COMMA
        ends = (is_digit[:-1] > is_digit[1:]).nonzero()[0]
        found = int(np.count_nonzero(is_digit))
        read = _read_elements(digits, is_digit, ends, found)
        if read is None or (spaced and not np.array_equal(is_comma[:-1], block[1:] == _SPACE)):
            return None
        values.append(read)
        row_ends.append(ends[-(elements + 1) % width :: width] + at)
        elements += len(ends)
        commas += int(np.count_nonzero(is_comma[1:]))
        others += len(block) - 1 - found
        at = end
    return _Read(np.concatenate(values), np.concatenate(row_ends), commas, others + 1)


def _read_elements(digits: "Array", is_digit: "Array", ends: "Array", found: int) -> "Array | None":
    """The integers whose last digits are at `ends`; None where one is too long or has a zero in front.

    `number` is what the last `places` digits up to each byte spell; the first byte is no digit. The proof that no more
    stand before them, and no zeros: the numbers, as JSON spells them, take as many digits as were `found`.
    """
    import numpy as np

    mask = is_digit.view(np.uint8)
    tens = mask * np.uint8(10)
    number: Array = digits * mask
    digits, places = number, 1
    for tried in _PLACES:
        while places < tried:
            places += 1
            longer = np.empty(len(number), narrowest_dtype(0, 10**places - 1))
            longer[0] = 0
            np.multiply(number[:-1], tens[1:], out=longer[1:], dtype=longer.dtype)
            longer += digits
            number = longer
        values = number[ends]
        if len(ends) + sum(np.count_nonzero(values >= 10**place) for place in range(1, places)) == found:
            return values
    return None


def narrowest_dtype(low: int, high: int) -> str | None:
    """The narrowest integer dtype that holds `low` to `high`, unsigned where none is negative; None beyond 64 bits."""
    for bits in (8, 16, 32, 64):
        if low >= 0 and high < 1 << bits:
            return f"uint{bits}"
        if low < 0 and -(1 << bits - 1) <= low and high < 1 << bits - 1:
            return f"int{bits}"
    return None
