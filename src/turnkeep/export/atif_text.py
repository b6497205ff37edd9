"""Texts in an ATIF document: what its fields can hold, and what is kept beside them.

A field cannot hold half of a surrogate pair, which is no UTF-8 and which validators refuse. It then shows U+FFFD there,
and the exact text stands in `extra`, where a half is written as U+FDD0 and its four hexadecimal digits (U+FDD0 itself,
which is no character, as U+FDD0 and `fdd0`). The rule for everything kept beside a field: it counts for as long as the
field is what it was made into; a field that somebody changed wins.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from turnkeep.check.plain import is_plain
from turnkeep.errors import ArchiveError
from turnkeep.wire.json import merge_surrogates

SCHEMA = "ATIF-v1.8"
KEY = "turnkeep"
"""The one member of an `extra` that is ours."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_SEALED = re.compile("\ufdd0([0-9a-f]{4})")
_TO_SEAL = re.compile("[\ud800-\udfff\ufdd0]")
_TEXT_BLOCKS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


class Place(NamedTuple):
    """Where a text stands in an item: in member `key` of `holder`, one of the item's own objects."""

    holder: dict[str, Any]
    key: str

    @property
    def value(self) -> Any:
        """What stands there: a text; or null or its length, where the text was moved out."""
        return self.holder[self.key]


def lossy(text: str) -> str:
    """The text as a field can hold it."""
    return _SURROGATE.sub("\ufffd", text)


def extra(own: Mapping[str, Any]) -> dict[str, Any]:
    """An `extra` with what is ours, which any reader of JSON can read."""
    return {KEY: _each_text(own, lambda text: _TO_SEAL.sub(lambda found: f"\ufdd0{ord(found[0]):04x}", text))}


def own_extra(holder: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What is ours in the `extra` of `holder`, as it was. Raises ArchiveError where that is no object."""
    own = ((holder or {}).get("extra") or {}).get(KEY) or {}
    if not isinstance(own, Mapping):
        raise ArchiveError(f"extra.{KEY} is no object", field="extra")
    unsealed: Mapping[str, Any] = _each_text(
        own, lambda text: merge_surrogates(_SEALED.sub(lambda found: chr(int(found[1], 16)), text))
    )
    return unsealed


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of a JSON value with every text in it changed, names of members too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(name): _each_text(member, change) for name, member in value.items()}
    return [_each_text(element, change) for element in value] if isinstance(value, (list, tuple)) else value


def exact(kept: Any, shown: str) -> str:
    """The text of a field that shows `shown`, beside which `kept` is kept (null where nothing is)."""
    return kept if isinstance(kept, str) and lossy(kept) == shown else shown


def output_places(item: Mapping[str, Any], blocks: str = "content") -> list[Place]:
    """The readable texts of an output item, in order (contract 1.3); of reasoning those in its member `blocks`."""
    if item.get("type") == "message":
        names = {"output_text": "text", "refusal": "refusal"}
        return [Place(block, names[block["type"]]) for block in item["content"] if block["type"] in names]
    if item.get("type") == "reasoning":
        kind = "reasoning_text" if blocks == "content" else "summary_text"
        return [Place(block, "text") for block in item.get(blocks) or () if block["type"] == kind]
    return []


def input_places(item: dict[str, Any]) -> list[Place]:
    """The texts of an item of a request, in order: its content or output, as a text or in blocks."""
    key = "output" if "output" in item else "content"
    value = item.get(key)
    if isinstance(value, list):
        blocks = [block for block in value if isinstance(block, dict) and "text" in block]
        return [Place(block, "text") for block in blocks if block.get("type") in _TEXT_BLOCKS]
    return [Place(item, key)] if key in item else []


def move_out(places: list[Place]) -> list[str]:
    """Take the texts out of an item and give them as fields can hold them.

    Null is left where there is one text, else the length of each; a text that no field can hold stays.
    """
    texts = [place.value for place in places]
    for place, text in zip(places, texts, strict=True):
        if is_plain(text):
            place.holder[place.key] = None if len(places) == 1 else len(text)
    return [lossy(text) for text in texts]


def move_in(places: list[Place], text: str, between: str, field: str) -> None:
    """Put the text of a field back, cut by the lengths that stand in its places.

    Raises ArchiveError where they do not add up, so that nobody can say which part of the text belongs where.
    """
    if len(places) == 1:
        put(places, [text])
        return
    lengths = [len(lossy(place.value)) if isinstance(place.value, str) else place.value for place in places]
    if not all(type(length) is int and length >= 0 for length in lengths):
        raise ArchiveError(f"{field} has {len(places)} parts, and extra does not have a length for each", field=field)
    total = sum(lengths) + len(between) * max(0, len(places) - 1)
    if len(text) != total:
        told = f"{len(text)} characters where its {len(places)} parts have {total}" if places else "no part in extra"
        raise ArchiveError(f"{field} has {told}: edit their lengths too, or the text within them", field=field)
    pieces, at = [], 0
    for length in lengths:
        pieces.append(text[at : at + length])
        at += length
        if between and at < len(text) and text[at : at + len(between)] != between:
            raise ArchiveError(f"{field} has no line break at character {at}, where a part of it ends", field=field)
        at += len(between)
    put(places, pieces)


def put(places: Iterable[Place], texts: Iterable[str]) -> None:
    """Put a text into each place; what stands there exactly counts where the text is as it was shown."""
    for place, text in zip(places, texts, strict=True):
        place.holder[place.key] = exact(place.value, text)
