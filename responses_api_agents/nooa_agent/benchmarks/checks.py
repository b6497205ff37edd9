"""What was restored and what was replayed, held against the bodies field by field, by the standard library alone.

Two values are the same where they spell the same JSON: integers and floats apart, floats to the last bit, members in
order.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from turnkeep import Turn


class NotPreserved(Exception):
    """A field is not what the model server sent. Says which, of which turn and item."""

    def __init__(self, where: str, turn: int, item: int | None, field: str, path: str) -> None:
        self.where, self.turn, self.item, self.field, self.path = where, turn, item, field, path
        of_item = "" if item is None else f", item {item}"
        super().__init__(f"{where} does not preserve turn {turn}{of_item}, {field}: {path}")


def check_restored(bodies: Sequence[bytes], turns: Sequence[Turn], scope: str, *, with_body: bool) -> dict[str, int]:
    """Hold restored turns against the bodies; gives how often each field was compared. Raises NotPreserved."""
    counts: Counter[str] = Counter()
    _same("restore", 0, None, "turns", len(bodies), len(turns))
    for number, (body, turn) in enumerate(zip(bodies, turns, strict=True)):
        response = json.loads(body)
        natives = [None if part.native is None else part.native.to_json() for part in turn.parts]
        counts += _check_items("restore", number, response["output"], natives)
        public = {
            "scope": (scope, turn.scope),
            "content": (_text_of(response["output"]), turn.content),
            "usage": (response["usage"], turn.usage),
            "model": (response["model"], turn.model_name),
            "response id": (response["id"], turn.response_id),
        }
        if with_body:
            public["body, byte for byte"] = (body.decode(), (turn.body or b"").decode())
        for name, (expected, found) in public.items():
            _same("restore", number, None, name, expected, found)
            counts[name] += 1
    return dict(counts)


def check_replayed(bodies: Sequence[bytes], sent: bytes) -> dict[str, int]:
    """Hold a request's body against the responses' items, all of them and no other. Raises NotPreserved."""
    counts: Counter[str] = Counter()
    items = json.loads(sent)["input"]
    place = 0
    for number, body in enumerate(bodies):
        expected = json.loads(body)["output"]
        counts += _check_items("replay", number, expected, items[place : place + len(expected)])
        place += len(expected)
    _same("replay", len(bodies) - 1, None, "number of items", place, len(items))
    return dict(counts)


def check_carried(bodies: Sequence[bytes], sent: bytes) -> dict[str, int]:
    """Hold those items of a request that have an id of the responses' items against them, in order."""
    known = {item["id"] for body in bodies for item in json.loads(body)["output"]}
    items = [item for item in json.loads(sent)["input"] if item.get("id") in known]
    return check_replayed(bodies, json.dumps({"input": items}).encode())


def _check_items(where: str, turn: int, expected: Sequence[Any], found: Sequence[Any]) -> Counter[str]:
    _same(where, turn, None, "number of items", len(expected), len(found))
    counts: Counter[str] = Counter()
    for index, (item, other) in enumerate(zip(expected, found, strict=True)):
        _same(where, turn, index, "names of members", list(item), list(other or ()))
        for name, value in item.items():
            _same(where, turn, index, name, value, other[name])
            counts[name] += 1
    return counts


def _same(where: str, turn: int, item: int | None, field: str, expected: Any, found: Any) -> None:
    if json.dumps(expected) != json.dumps(found):
        raise NotPreserved(where, turn, item, field, first_difference(expected, found))


def first_difference(expected: Any, found: Any, path: str = "") -> str:
    """Where two values that spell different JSON first differ, and what stands there."""
    if type(expected) is type(found) is list and len(expected) == len(found):
        pairs: Iterable[tuple[Any, Any, Any]] = zip(range(len(expected)), expected, found, strict=True)
    elif type(expected) is type(found) is dict and list(expected) == list(found):
        pairs = ((name, expected[name], found[name]) for name in expected)
    else:
        return f"{path or 'the value'} was {_short(expected)} and is {_short(found)}"
    for step, one, other in pairs:
        if json.dumps(one) != json.dumps(other):
            return first_difference(one, other, f"{path}[{step!r}]")
    return f"{path or 'the value'} differs"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _text_of(items: Sequence[Mapping[str, Any]]) -> str:
    blocks = (block for item in items if item["type"] == "message" for block in item["content"])
    return "".join(block["text"] for block in blocks)
