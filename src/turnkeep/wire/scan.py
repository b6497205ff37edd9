"""Reading a response body in one scan: numeric arrays go to NumPy, the rest stays the text it was.

`scan_body` cuts every numeric array that a fast reader understands out of the body. What is left is parsed by the
ordinary exact reader, with the arrays put where they were. Nothing is decided here: where anything is
out of the ordinary the answer is None and the whole body goes to the exact reader, so that both give the same values
and the same errors.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from turnkeep.wire.digits import MOST_DIMENSIONS, guess_between, parse_integers
from turnkeep.wire.json import DEEPEST, loads, loads_holes
from turnkeep.wire.training import is_finite, spell_array, to_array

if TYPE_CHECKING:
    from turnkeep.wire.training import Array

_MEMBER = re.compile(rb'"([A-Za-z0-9_.-]+)"\s*:\s*(?=\[[\[\s]*-?[0-9])')
"""A member name and the colon, before an array that begins with a number."""
_NOT_CUT = frozenset({b"content", b"summary", b"output", b"type", b"role", b"status", b"error", b"incomplete_details"})
"""Members whose readers look at what they hold, and say what is wrong with anything else: to them a list is a list."""
_SHORTEST = 48
"""Bytes of an array's text from which cutting it out pays."""
_SHORT = 4096
"""Bytes of an array's text below which a Python int for each number is the faster way."""
_ELSEWISE = (b"  ", b"\n", b"\t", b"\r")
"""What stands in neither of the two spellings that `spell_array` has."""
_HOLE = b"Infinity"
"""Stands in the skeleton where an array was: a token that JSON does not have and the parser asks about."""


class Cut(NamedTuple):
    """An array that was cut out: where its text stood in the body, its value, and how the text was spelled."""

    start: int
    end: int
    array: "Array"
    between: bytes | None
    """What stood between elements, where the text is `spell_array(array, between)`; None for another spelling."""


class Scanned(NamedTuple):
    """A body's value, with the arrays that were cut out among it; the cuts, in the order of the text."""

    value: Any
    cuts: tuple[Cut, ...]


def cut_arrays(body: bytes) -> tuple[Cut, ...]:
    """The numeric arrays of `body` that fast readers understand, in the order of the text."""
    cuts: list[Cut] = []
    at = 0
    while (found := _MEMBER.search(body, at)) is not None:
        start = at = found.end()
        if found[1] in _NOT_CUT:
            continue
        end = _end_of_array(body, start)
        read = read_array(body, start, end) if end - start >= _SHORTEST else None
        if read is not None:
            cuts.append(Cut(start, end, *read))
            at = end
    return tuple(cuts)


def _end_of_array(body: bytes, start: int) -> int:
    """Where an array of numbers that begins at `start` ends: numbers hold no quote and no brace."""
    quote = body.find(b'"', start)
    end = len(body) if quote < 0 else quote
    brace = body.find(b"}", start, end)
    end = end if brace < 0 else brace
    while end > start and body[end - 1] != 0x5D:
        end -= 1
        if body[end] not in b', \n\r\t"}':
            return start
    return end


def read_array(body: bytes, start: int, end: int) -> "tuple[Array, bytes | None] | None":
    """The array that `body[start:end]` spells, in the narrowest exact dtype, and its spelling (see `Cut`).

    None where the exact reader is needed.
    """
    if end - start >= _SHORT and b"." not in body[start : start + _SHORTEST]:
        integers = parse_integers(body, start, end)
        if integers is not None:  # it reads nothing but the two spellings
            return integers, guess_between(body, start, end)
    import orjson

    text = body[start:end]
    between = guess_between(body, start, end)
    if not any(blank in text for blank in _ELSEWISE):
        array = _array_of(orjson.loads, text)  # faster and sometimes wrong, but not where it gives the text back
        if array is not None and spell_array(array, between) == text:
            return array, between
    array = _array_of(_loads, text)
    return None if array is None or not is_finite(array) else (array, None)


def _array_of(read: Callable[[bytes], Any], text: bytes) -> "Array | None":
    try:
        return to_array(read(text))
    except (ValueError, RecursionError):
        return None


def _no_number(name: str) -> Any:
    raise ValueError(name)


_loads = partial(json.loads, parse_constant=_no_number)


def scan_body(body: bytes, deepest: int = DEEPEST) -> Scanned:
    """What `turnkeep.wire.json.loads` gives, or raises, with numeric arrays among the values as NumPy arrays.

    Arrays of one shape and dtype stand where `to_array` of their plain lists would have given the same.
    """
    cuts = cut_arrays(body)
    pieces = take_out(body, cuts)
    if cuts:
        try:
            return Scanned(fill_in(pieces, [cut.array for cut in cuts], deepest), cuts)
        except ValueError:
            pass  # the exact reader says what is wrong
    return Scanned(loads(body, deepest), ())


def take_out(body: bytes, cuts: Sequence[Cut]) -> list[bytes]:
    """The pieces of text around the cuts: one more than there are cuts."""
    ends = [0, *(cut.end for cut in cuts)]
    starts = [*(cut.start for cut in cuts), len(body)]
    return [body[end:start] for end, start in zip(ends, starts, strict=True)]


def fill_in(pieces: Sequence[bytes], arrays: "Sequence[Array]", deepest: int = DEEPEST) -> Any:
    """The value of a body whose arrays were taken out, with the arrays in their places.

    Raises ValueError; also where the hole's token stands among the pieces, in which case there are not arrays enough.
    """
    return loads_holes(_HOLE.join(pieces), iter(arrays), deepest - MOST_DIMENSIONS)
