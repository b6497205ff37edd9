"""A turn as an agent step of an ATIF document.

What ATIF has a field for stands there; `extra.turnkeep` of the step holds the rest, with null (or a length) where
something was moved to a field:

    {"digest": <Turn.digest>, "finish_reason": ..., "scope": <where it is not the rollout's>, "parts": [PART, ...],
     "members": <usage, model_name, response_id and more>, "moved": ["model_name", "usage.input_tokens", ...]}

A PART is `{"kind": "text", "item": <the item>}`, with `"moved": [...]` for training fields that stand in `metrics`,
`"blocks": "summary"` where reasoning reads from there; `"stale"` in place of `item` where that disagrees with `text`;
`{"kind": "text", "text": ...}` where there is no item. A tool call's item stands in the extra of its call.
The `extra` of the metrics says of routes `"tokens": [start, stop]`, where they are not for all of prompt + completion,
and `"missing": -1`, where some of them are marked as missing.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from turnkeep.check.plain import is_plain
from turnkeep.errors import MalformedItem
from turnkeep.export.atif_calls import FIELDS, write_call
from turnkeep.export.atif_text import Place, extra, move_out, output_places
from turnkeep.export.samples import first_token
from turnkeep.history.agreement import part_disagreement
from turnkeep.history.turn import Part, Turn
from turnkeep.wire.item import Item
from turnkeep.wire.training import REQUIRED, ROUTES, TRAINING_FIELDS, check_training

IN_METRICS: Mapping[str, str] = dict(
    zip(REQUIRED, ("prompt_token_ids", "completion_token_ids", "logprobs"), strict=True)
)
"""Where ATIF has what a training field is called on the wire."""
COUNTS: Mapping[str, tuple[str, ...]] = {
    "prompt_tokens": ("usage", "input_tokens"),
    "completion_tokens": ("usage", "output_tokens"),
    "cached_tokens": ("usage", "input_tokens_details", "cached_tokens"),
}
"""Where a turn has what ATIF's metrics count."""


class AgentStep(NamedTuple):
    """A step but for its `step_id` and observation; what is in `metrics` apart, since it holds arrays."""

    members: dict[str, Any]
    metrics: dict[str, Any]
    routes: dict[str, Any]
    """The `extra` of the metrics."""


def carrier_of(turn: Turn) -> int | None:
    """The last part whose item has training fields that ATIF can hold, with generated tokens where one has any."""
    able = [index for index, part in enumerate(turn.parts) if part.native is not None and _is_movable(part.native)]
    told = [index for index in able if length_of(turn.parts[index].native, REQUIRED[1])]
    return next(reversed(told or able), None)


def _is_movable(item: Item) -> bool:
    """Whether the training fields keep contract 1.5, and validators can read them."""
    if not all(name in item.arrays or item.get(name) is not None for name in REQUIRED):
        return False
    try:
        check_training(item, item.arrays, 0)
        if REQUIRED[2] not in item.arrays:
            for value in item[REQUIRED[2]]:
                float(value)
    except (MalformedItem, OverflowError):
        return False
    return ROUTES in item.arrays or is_plain(item.get(ROUTES))


def length_of(item: Item | None, name: str) -> int:
    """How many elements a member of an item has."""
    return 0 if item is None else len(item.arrays[name] if name in item.arrays else item[name])


def write_turn(turn: Turn, scope: str | None) -> AgentStep:
    """The step of a turn in a rollout of `scope`."""
    carrier = carrier_of(turn)
    texts: list[Place] = []
    thoughts: list[Place] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for index, part in enumerate(turn.parts):
        kept = _keep(part, moving=index == carrier)
        if part.kind == "tool_call":
            calls.append(write_call(part.id, part.name, part.arguments, kept))
            parts.append({"kind": part.kind})
            continue
        entry = {"kind": part.kind, **kept}
        parts.append(entry)
        places = part_places(entry)
        (texts if part.kind == "text" else thoughts).extend(places)
    counts = _counts(turn, None if carrier is None else turn.parts[carrier].native)
    members, moved = _move_members(turn, counts)
    own = {
        "digest": turn.digest,
        "finish_reason": turn.finish_reason,
        **({} if turn.scope == scope else {"scope": turn.scope}),
        "parts": parts,
        "members": members,
        "moved": moved,
    }
    step = {
        "source": "agent",
        "model_name": turn.model_name if "model_name" in moved else None,
        "message": "".join(move_out(texts)),
        "reasoning_content": "\n".join(move_out(thoughts)) or None,
        "tool_calls": calls or None,
        "llm_call_count": 1,
        "extra": extra(own),
    }
    written = {name: value for name, value in step.items() if value is not None}
    return AgentStep(written, {**counts, **_arrays(turn, carrier)}, _routes(turn, carrier))


def _keep(part: Part, *, moving: bool) -> dict[str, Any]:
    """What stands beside the fields of a part; texts are still in it. The carrier's training fields are moved out."""
    kept: dict[str, Any] = {}
    if part.native is None:
        return kept if part.kind == "tool_call" else {"text": part.text}
    moved = [name for name in TRAINING_FIELDS if _is_there(part.native, name)] if moving else []
    members = {name: None if name in moved else part.native[name] for name in part.native}
    agrees = part_disagreement(part) is None
    if agrees and part.kind == "tool_call":
        members.update(dict.fromkeys(FIELDS))
    if agrees and part.kind == "reasoning" and not "\n".join(map(_text, output_places(members))):
        kept["blocks"] = "summary"
    kept["item" if agrees else "stale"] = members
    if moved:
        kept["moved"] = moved
    if not agrees and part.kind != "tool_call":
        kept["text"] = part.text
    return kept


def _text(place: Place) -> str:
    return str(place.value)


def _is_there(item: Item, name: str) -> bool:
    return name in item.arrays or item.get(name) is not None


def part_places(entry: dict[str, Any]) -> list[Place]:
    """Where the texts of a part stand in its entry."""
    return output_places(entry["item"], entry.get("blocks", "content")) if "item" in entry else [Place(entry, "text")]


def _arrays(turn: Turn, carrier: int | None) -> dict[str, Any]:
    item = None if carrier is None else turn.parts[carrier].native
    return {} if item is None else {ours: _value(item, name) for name, ours in IN_METRICS.items()}


def _routes(turn: Turn, carrier: int | None) -> dict[str, Any]:
    """The routed experts, and to which tokens they belong where they are not of all of prompt and completion."""
    item = None if carrier is None else turn.parts[carrier].native
    if item is None or not _is_there(item, ROUTES):
        return {}
    own: dict[str, Any] = {}
    experts = read_routes(item)
    if experts is not None:
        prompt, generated = length_of(item, REQUIRED[0]), length_of(item, REQUIRED[1])
        start = first_token(len(experts), prompt, generated)
        if len(experts) != prompt + generated and start is not None:
            own["tokens"] = [start, start + len(experts)]
        if experts.dtype.kind == "i" and bool((experts == -1).any()):
            own["missing"] = -1
    return {ROUTES: _value(item, ROUTES), **(extra(own) if own else {})}


def read_routes(item: Item) -> Any:
    """The routes as an array of integers, or None where they are none that can be read."""
    from turnkeep.check.facts import read_envelope

    value = _value(item, ROUTES)
    if isinstance(value, str):
        return read_envelope(value).experts
    return value if hasattr(value, "dtype") else None


def _value(item: Item, name: str) -> Any:
    return item.arrays[name] if name in item.arrays else item[name]


def _counts(turn: Turn, item: Item | None) -> dict[str, int]:
    """How many tokens: as many as there are ids, else as the usage counts."""
    members = turn.members
    counted = {name: value for name, path in COUNTS.items() if _is_count(value := member(members, path))}
    if item is not None:
        counted |= {"prompt_tokens": length_of(item, REQUIRED[0]), "completion_tokens": length_of(item, REQUIRED[1])}
    return {name: counted[name] for name in COUNTS if name in counted}


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _move_members(turn: Turn, counts: Mapping[str, int]) -> tuple[dict[str, Any], list[str]]:
    """The turn's other members, null for those that a field of the step has, and the paths of these."""
    members, moved = turn.members, []
    name = members.get("model_name")
    if isinstance(name, str) and name and is_plain(name):
        members["model_name"] = None
        moved.append("model_name")
    for count, path in COUNTS.items():
        value = member(members, path)
        if _is_count(value) and value == counts[count]:
            member(members, path[:-1])[path[-1]] = None
            moved.append(".".join(path))
    return members, moved


def member(value: Any, path: Sequence[str]) -> Any:
    """What stands at a path of member names, or None."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
