"""The arguments of a tool call: the object that ATIF holds, and how its text was spelled.

ATIF has the arguments as an object; the policy wrote a text. Where writing the object again gives another text, its
spelling is kept, without the strings that the object has already:

    {"indent": 2, "separators": [",", ": "], "ascii": true}     as Python's json.dumps with these options spells it
    {"between": [...], "ascii": false, "literals": {"3": ...}}   the text between the string literals, in order, and the
                                                                literals that are escaped in another way, by number
    {"text": ...}                                               the whole text, where no object can stand for it
"""

import json
import re
from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

from turnkeep.check.plain import read_arguments
from turnkeep.errors import ArchiveError
from turnkeep.wire.json import InexactJson, NotJson, dumps, loads, same

_LITERAL = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_STYLES = tuple(
    {"indent": indent, "separators": list(separators), "ascii": ascii}
    for (indent, separators), ascii in product(
        ((None, (", ", ": ")), (None, (",", ":")), (2, (",", ": ")), (4, (",", ": "))), (False, True)
    )
)


class Spelled(NamedTuple):
    """Arguments as an object (empty where none can stand for the text), and their spelling (null: the usual)."""

    value: dict[str, Any]
    spelling: dict[str, Any] | None


def take_apart(text: str) -> Spelled:
    """The object and the spelling of arguments as received."""
    value, fault, _ = read_arguments(text)
    if fault is not None:
        return Spelled({}, {"text": text})
    if dumps(value).decode() == text:
        return Spelled(value, None)
    style = next((style for style in _STYLES if _spell(value, style) == text), None)
    return Spelled(value, style or _between(text, value))


def put_together(value: Mapping[str, Any], spelling: Mapping[str, Any] | None) -> str:
    """The text of arguments. Where the spelling does not fit the object, somebody changed that: the usual spelling.

    Raises ArchiveError for a spelling of no known kind.
    """
    usual = dumps(value).decode()
    if spelling is None:
        return usual
    if "text" in spelling:
        return usual if value else str(spelling["text"])
    if "between" not in spelling:
        if spelling not in _STYLES:
            raise ArchiveError("the spelling of the arguments is none that is known", field="arguments")
        return _spell(value, spelling)
    literals = _LITERAL.findall(usual)
    between = spelling["between"]
    if len(between) != len(literals) + 1:
        return usual
    text = str(between[0])
    for index, (literal, after) in enumerate(zip(literals, between[1:], strict=True)):
        text += _literal(literal, index, spelling) + after
    try:
        return text if same(loads(text), value) else usual
    except (NotJson, InexactJson):
        return usual


def _spell(value: Mapping[str, Any], style: Mapping[str, Any]) -> str:
    separators = tuple(style["separators"])
    return json.dumps(
        value,
        indent=style["indent"],
        separators=separators,
        ensure_ascii=style["ascii"],
        default=lambda array: array.tolist(),  # a NumPy array, as a document is read
    )


def _between(text: str, value: dict[str, Any]) -> dict[str, Any]:
    """The spelling of a text whose object is `value`: both have the same strings in the same order."""
    usual, found = _LITERAL.findall(dumps(value).decode()), _LITERAL.findall(text)
    ascii = any(one != other and one == json.dumps(json.loads(other)) for one, other in zip(found, usual, strict=True))
    spelling: dict[str, Any] = {"between": _LITERAL.split(text), "ascii": ascii, "literals": {}}
    for index, (one, other) in enumerate(zip(found, usual, strict=True)):
        if one != _literal(other, index, spelling):
            spelling["literals"][str(index)] = one
    return spelling


def _literal(usual: str, index: int, spelling: Mapping[str, Any]) -> str:
    """The string literal number `index`, whose usual spelling is given."""
    kept = spelling["literals"].get(str(index))
    if kept is not None and json.loads(kept) == json.loads(usual):
        return str(kept)
    return json.dumps(json.loads(usual)) if spelling["ascii"] else usual
