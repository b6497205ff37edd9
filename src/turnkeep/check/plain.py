"""What a field of a document can show: text without half of a surrogate pair, arguments that are an object."""

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from turnkeep.wire.json import InexactJson, NotJson, loads

DEEPEST = 100
"""Levels of nesting in arguments that are shown as an object: validators have limits of their own."""

_SURROGATE = re.compile("[\ud800-\udfff]")


class Arguments(NamedTuple):
    """Arguments as an object; where no object can stand for the text, an empty one, what is in the way, and words."""

    value: dict[str, Any]
    fault: Literal["not-json", "not-object", "too-deep", "not-plain"] | None = None
    why: str = ""


def read_arguments(text: str) -> Arguments:
    """The object that the arguments of a tool call are."""
    try:
        value = loads(text)
        if text.count("[") + text.count("{") > DEEPEST:
            loads(text, DEEPEST)
    except (NotJson, InexactJson) as error:
        deep = str(error).startswith("nested deeper")
        return Arguments({}, "too-deep" if deep else "not-json", f"are no exact JSON: {error}")
    if not isinstance(value, dict):
        return Arguments({}, "not-object", "are JSON, and no object")
    if not is_plain(text) or not is_plain(value):
        return Arguments({}, "not-plain", "hold half of a surrogate pair")
    return Arguments(value)


def is_plain(value: Any) -> bool:
    """Whether a JSON value holds no half of a surrogate pair, which is no UTF-8."""
    if isinstance(value, str):
        return _SURROGATE.search(value) is None
    if isinstance(value, Mapping):
        return all(is_plain(key) and is_plain(member) for key, member in value.items())
    return all(map(is_plain, value)) if isinstance(value, (list, tuple)) else True
