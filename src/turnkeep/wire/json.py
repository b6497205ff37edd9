"""Exact JSON: what is read is what was written, or an error that says where.

The standard library reads integers of any size and every float64 exactly; this module closes what it leaves open:
duplicate keys, NaN and infinities (spelled out or by overflow) and nesting beyond the stack are faults. Writing has one
spelling for each value (compact, UTF-8, lone surrogates escaped, floats by their shortest repr), so equal values are
equal bytes. RFC 8259 is the grammar; a byte order mark is not JSON here.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

type Json = bool | int | float | str | list[Json] | dict[str, Json] | None

DEEPEST = 500
"""Levels of nesting that are taken in; more is an error on every Python, rather than a crash on some."""
ARCHIVED_DEEPEST = DEEPEST + 10
"""Levels of a turn's JSON form, which stands around its items."""
_SURELY_WRITABLE = 2_000
"""Bits of an integer that Python writes under any limit of digits."""
_WRAPPING = 50
"""Levels that our own documents may put around what was taken in."""
_BRACKETS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
"""A whole string or a bracket; linear in text that breaks off too, since what was matched is not tried again."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_BAD_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\[\ud800-\udfff]")


class Fault(NamedTuple):
    """One value that JSON text spells and that cannot be kept exactly: where it stands and why it is refused."""

    path: tuple[str | int, ...]
    reason: str


class InexactJson(ValueError):
    """The text is JSON but for its `faults`; `value` is the rest of it, None standing where a fault is."""

    def __init__(self, value: Json, faults: list[Fault]) -> None:
        super().__init__("; ".join(f"{fault.reason} at {render_path(fault.path)}" for fault in faults))
        self.value = value
        self.faults = faults


class NotJson(ValueError):
    """The text is no JSON at all."""


class _Refused:
    """Stands in a parsed value where a number was refused."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


class _Pairs(dict[str, Any]):
    """An object that had duplicate keys: the first of each, and the names that came again."""

    duplicates: list[str]


def render_path(path: tuple[str | int, ...]) -> str:
    """`output[0].content[1]`, or `the top` for the empty path."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.lstrip(".") or "the top"


def loads(data: bytes | str, deepest: int = DEEPEST + _WRAPPING) -> Any:
    """Parse JSON text exactly, nested at most `deepest` levels.

    Raises NotJson where the text is no JSON, or deeper than what is left of Python's stack, and InexactJson where it is
    but holds a duplicate key, NaN, an infinity, a float beyond float64 or an integer beyond Python's digit limit.
    """
    text = _text(data)
    if _is_deeper(text, deepest):
        raise NotJson(f"nested deeper than {deepest} levels")
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse, parse_float=_float)
    except _Fast as fast:
        reason = str(fast)
    except ValueError as error:
        reason = str(error)
    except RecursionError:
        raise NotJson("nested too deeply") from None
    # Something is wrong: parse again with markers, to say what and where.
    try:
        marked = json.loads(
            text, object_pairs_hook=_mark_object, parse_constant=_Refused, parse_float=_mark_float, parse_int=_mark_int
        )
        value, faults = _collect(marked)
    except ValueError as error:
        raise NotJson(str(error)) from None
    except RecursionError:
        raise NotJson("nested too deeply") from None
    if not faults:  # pragma: no cover - both passes follow the same rules
        raise NotJson(reason)
    raise InexactJson(value, faults)


def loads_holes(data: bytes, fillings: Iterator[Any], deepest: int) -> Any:
    """Parse text in which the token `Infinity` stands for values that are at hand, in order.

    Raises ValueError where anything is wrong; the caller then reads the whole text, which says what.
    """
    text = _text(data)
    if _is_deeper(text, deepest):
        raise ValueError("nested too deeply")
    fill = _Filler(fillings)
    return json.loads(text, object_pairs_hook=_object, parse_constant=fill, parse_float=_float)


class _Filler:
    """Gives the next value for each hole."""

    def __init__(self, values: Iterator[Any]) -> None:
        self._values = values

    def __call__(self, name: str) -> Any:
        for value in self._values if name == "Infinity" else ():
            return value
        return _refuse(name)


def _text(data: bytes | str) -> str:
    if isinstance(data, str):
        if _SURROGATE.search(data) is None:
            return data
        if _BAD_ESCAPE.search(data) is not None:
            raise NotJson("a backslash before half of a surrogate pair")
        # a half of a pair may stand beside the other's escape: escaped, they are read as the one character they are
        return data.translate(_ESCAPES)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJson(f"not UTF-8 at byte {error.start}") from None


def _is_deeper(text: str, deepest: int) -> bool:
    if text.count("[") + text.count("{") <= deepest:
        return False
    depth = 0
    for token in _BRACKETS.finditer(text):
        depth += (token[0] in "[{") - (token[0] in "]}")
        if depth > deepest:
            return True
    return False


class _Fast(ValueError):
    """Leaves the fast parse at the first fault."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _Fast("duplicate key")
    return value


def _refuse(name: str) -> Any:
    raise _Fast(f"{name} is no JSON number")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _Fast(f"{text} is beyond float64")
    return value


def _mark_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(reversed(pairs))
    value = {key: value[key] for key, _ in pairs}
    if len(value) == len(pairs):
        return value
    marked = _Pairs(value)
    seen: set[str] = set()
    marked.duplicates = [key for key, _ in pairs if key in seen or seen.add(key)]  # type: ignore[func-returns-value]
    return marked


def _mark_float(text: str) -> float | _Refused:
    value = float(text)
    return _Refused(f"{_short(text)} is beyond float64") if math.isinf(value) else value


def _mark_int(text: str) -> int | _Refused:
    try:
        return int(text)
    except ValueError:  # sys.get_int_max_str_digits
        return _Refused(f"an integer of {len(text)} digits is beyond Python's limit")


def _short(text: str) -> str:
    return text if len(text) <= 24 else text[:20] + "..."


def _collect(marked: Any) -> tuple[Any, list[Fault]]:
    """The value with every fault taken out, and the faults, in the order of the text."""
    faults: list[Fault] = []

    def walk(value: Any, path: tuple[str | int, ...]) -> Any:
        if isinstance(value, _Refused):
            faults.append(Fault(path, value.reason if " " in value.reason else f"{value.reason} is no JSON number"))
            return None
        if isinstance(value, dict):
            if isinstance(value, _Pairs):
                faults.extend(Fault((*path, key), f"duplicate key {key!r}") for key in value.duplicates)
            return {key: walk(member, (*path, key)) for key, member in value.items()}
        if isinstance(value, list):
            return [walk(element, (*path, index)) for index, element in enumerate(value)]
        return value

    return walk(marked, ()), faults


def dumps(value: Any) -> bytes:
    """The one spelling of a JSON value, as UTF-8.

    Raises ValueError where `value` holds what JSON cannot: NaN, an infinity, a key that is no string, another type.
    Mappings and tuples are written as objects and arrays.
    """
    try:
        text = _ENCODER.encode(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except TypeError as error:
        raise ValueError(str(error)) from None
    try:
        return text.encode()
    except UnicodeEncodeError:  # halves of a pair that stand side by side are one character to every reader
        return merge_surrogates(text).translate(_ESCAPES).encode()


class _Escapes(dict[int, str]):
    """Maps a surrogate to its JSON escape and leaves everything else."""

    def __missing__(self, code: int) -> str:
        return f"\\u{code:04x}" if 0xD800 <= code <= 0xDFFF else chr(code)


_ESCAPES = _Escapes()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):  # a NumPy array
        return value.tolist()
    raise TypeError(f"JSON cannot hold a {type(value).__name__}")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)


def merge_surrogates(text: str) -> str:
    """Join the two halves of a surrogate pair wherever they stand side by side: the one character JSON would read."""
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def find_unwritable(value: Any, deepest: int = DEEPEST) -> Fault | None:
    """The first place in `value` that JSON cannot hold, or None.

    A key that is no string counts, since `dumps` coerces it, and so do two keys that a JSON reader takes for one.
    """
    stack: list[tuple[Any, tuple[str | int, ...], tuple[int, ...]]] = [(value, (), ())]
    while stack:
        node, path, within = stack.pop()
        if isinstance(node, Mapping):
            members: list[tuple[Any, Any]] = list(node.items())
            reason = _why_no_object(node)
        elif isinstance(node, (list, tuple)):
            members, reason = list(enumerate(node)), None
        else:
            members, reason = [], _why_no_leaf(node)
        if members and (id(node) in within or len(within) >= deepest):
            reason = "a value that contains itself" if id(node) in within else "nested too deeply"
        if reason is not None:
            return Fault(path, reason)
        stack.extend((member, (*path, key), (*within, id(node))) for key, member in reversed(members))
    return None


def _why_no_object(node: Mapping[Any, Any]) -> str | None:
    for key in node:
        if not isinstance(key, str):
            return f"the key {key!r} is no string"
    return None if len(set(map(merge_surrogates, node))) == len(node) else "two keys that JSON would read as one"


def _why_no_leaf(node: Any) -> str | None:
    if node is None or isinstance(node, (str, bool)):
        return None
    if isinstance(node, int):
        fits = node.bit_length() <= _SURELY_WRITABLE or _is_writable(node)
        return None if fits else "an integer beyond Python's limit of digits"
    if isinstance(node, float):
        return None if math.isfinite(node) else f"{node} is no JSON number"
    return f"JSON cannot hold a {type(node).__name__}"


def _is_writable(number: int) -> bool:
    try:
        str(number)
    except ValueError:  # sys.get_int_max_str_digits
        return False
    return True


def same(one: Any, other: Any) -> bool:
    """Equal as JSON values: types count, floats by their bits, keys in order."""
    try:
        return dumps(one) == dumps(other)
    except ValueError:
        return False


def without_nulls(text: bytes) -> bytes:
    """JSON text as `dumps` writes it, less the members that are null, at every depth; nulls in arrays stay (4.1)."""
    if b"null" not in text:
        return text
    return dumps(json.loads(text, object_pairs_hook=_drop_nulls))


def _drop_nulls(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in pairs if value is not None}
