"""Reading a response body in one scan: numeric arrays go to NumPy, the rest stays the text it was.

`scan_body` cuts every numeric array that a fast reader understands out of the body. What is left, the skeleton, is
parsed by the ordinary exact reader, with the arrays put where they were. Nothing is decided here: where anything is
out of the ordinary the answer is None and the whole body goes to the exact reader, so that both give the same values
and the same errors.
"""

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from turnkeep.wire.digits import MOST_DIMENSIONS, parse_integers
from turnkeep.wire.json import DEEPEST, loads, loads_holes
from turnkeep.wire.training import is_finite, to_array

if TYPE_CHECKING:
    from turnkeep.wire.training import Array

_MEMBER = re.compile(rb'"([A-Za-z0-9_.-]+)"\s*:\s*(?=\[[\[\s]*-?[0-9])')
"""A member name and the colon, before an array that begins with a number."""
_NOT_CUT = frozenset({b"content", b"summary", b"output"})
"""Members whose readers expect lists of objects, and say what is wrong with anything else."""
_SHORTEST = 48
"""Bytes of an array's text from which cutting it out pays."""
_HOLE = b"Infinity"
"""Stands in the skeleton where an array was: a token that JSON does not have and the parser asks about."""


class Cut(NamedTuple):
    """An array that was cut out: where its text stood in the body, and its value."""

    start: int
    end: int
    array: "Array"


def cut_arrays(body: bytes) -> list[Cut]:
    """The numeric arrays of `body` that fast readers understand, in the order of the text."""
    cuts: list[Cut] = []
    at = 0
    while (found := _MEMBER.search(body, at)) is not None:
        start = at = found.end()
        if found[1] in _NOT_CUT:
            continue
        end = _end_of_array(body, start)
        array = read_array(body[start:end]) if end - start >= _SHORTEST else None
        if array is not None:
            cuts.append(Cut(start, end, array))
            at = end
    return cuts


def _end_of_array(body: bytes, start: int) -> int:
    """Where an array of numbers that begins at `start` ends: numbers hold no quote and no brace."""
    stops = [stop for stop in (body.find(b'"', start), body.find(b"}", start)) if stop >= 0]
    end = min(stops, default=len(body))
    while end > start and body[end - 1] != 0x5D:
        end -= 1
        if body[end] not in b', \n\r\t"}':
            return start
    return end


def read_array(text: bytes) -> "Array | None":
    """The array that `text` spells, in the narrowest exact dtype, or None where the exact reader is needed."""
    array = parse_integers(text)
    if array is not None:
        return array
    try:
        array = to_array(json.loads(text, parse_constant=_no_number))
    except (ValueError, RecursionError):
        return None
    return None if array is None or not is_finite(array) else array


def _no_number(name: str) -> Any:
    raise ValueError(name)


def loads_body(body: bytes, deepest: int = DEEPEST) -> Any:
    """What `turnkeep.wire.json.loads` gives, or raises, with numeric arrays among the values as NumPy arrays.

    Arrays of one shape and dtype stand where `to_array` of their plain lists would have given the same.
    """
    cuts = [] if _HOLE in body or b"NaN" in body else cut_arrays(body)
    if not cuts:
        return loads(body, deepest)
    try:
        return loads_holes(skeleton_of(body, cuts), iter([cut.array for cut in cuts]), deepest - MOST_DIMENSIONS)
    except ValueError:
        return loads(body, deepest)


def skeleton_of(body: bytes, cuts: list[Cut]) -> bytes:
    """The body with a hole where each array was."""
    pieces, at = [], 0
    for cut in cuts:
        pieces += [body[at : cut.start], _HOLE]
        at = cut.end
    return b"".join([*pieces, body[at:]])
