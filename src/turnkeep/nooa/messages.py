"""NOOA's chat messages become a turnkeep history. Pure: no NOOA, no HTTP.

A message may carry, under `turnkeep`, what its event knows about the turn it belongs to (`marks.Carried`). NOOA splits
a turn over several messages and puts tool results and outputs between them; here the turn stands whole where its first
message stood, and everything else keeps its order.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from turnkeep.history.projection import RuntimeEntry
from turnkeep.history.turn import Turn
from turnkeep.nooa.marks import MARK, RUNTIME, Carried
from turnkeep.nooa.parts import is_native_turn, turn_from_native

NOT_EXECUTED = "status: not executed"
"""The answer to a call that NOOA dropped: it runs the calls of a turn in order and stops at the first error."""

NOT_EXECUTED_GAP = "tool_call_not_executed"
NOT_EXECUTED_DETAIL = (
    "NOOA recorded no result for a call of a turn of several, since an earlier one failed (or is still running); "
    "the request answers it with a constant text."
)

type Entry = Turn | RuntimeEntry | dict[str, Any]


@dataclass
class _Group:
    """The messages of one turn: where the first stands, and what they carry."""

    first: int
    carried: list[Carried] = field(default_factory=list)
    called: list[str] = field(default_factory=list)


@dataclass
class _State:
    entries: list[Entry] = field(default_factory=list)
    dropped: bool = False
    natives: set[str] = field(default_factory=set)
    stand_ins: set[str] = field(default_factory=set)
    unanswered: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def to_history(messages: Iterable[Any], turn_of: Callable[[Carried], Turn]) -> tuple[list[Entry], bool]:
    """The history that `messages` tell, and whether a dropped call was answered with `NOT_EXECUTED`.

    `turn_of` gives the turn that a message carries; what it raises goes through. A turn of which NOOA shows only some
    messages (the rest was summarized, removed or filtered away) stays the public dictionaries it is in NOOA.
    """
    listed = list(messages)
    groups = _groups(listed)
    state = _State()
    for index, message in enumerate(listed):
        carried = message.get(MARK) if isinstance(message, Mapping) else None
        if is_native_turn(message):
            turn = turn_from_native(message)
            state.entries.append(turn)
            _answer_dropped([call.id for call in turn.tool_calls], _answered(turn, listed[index:]), state)
        elif carried is None:
            _add_plain(message, state)
        elif carried["kind"] == RUNTIME["kind"]:
            state.entries.append(RuntimeEntry(_plain(message)))
        else:
            _add_carried(index, message, carried, groups[carried["key"]], turn_of, state)
    return state.entries, state.dropped


def _groups(messages: list[Any]) -> dict[str, _Group]:
    groups: dict[str, _Group] = {}
    for index, message in enumerate(messages):
        carried = message.get(MARK) if isinstance(message, Mapping) else None
        if carried is None or "key" not in carried:
            continue
        group = groups.setdefault(carried["key"], _Group(index))
        group.carried.append(carried)
        if carried["kind"] == "call":
            group.called.append(_call_id(message))
    return groups


def _add_plain(message: Any, state: _State) -> None:
    call_id = message.get("tool_call_id")
    if message.get("role") == "tool" and call_id in state.stand_ins:
        state.entries.append({"role": "user", "content": message["content"]})
        return
    state.entries.append(_plain(message))
    if message.get("role") == "tool" and call_id in state.unanswered:
        state.entries += state.unanswered.pop(call_id)


def _add_carried(
    index: int, message: Any, carried: Carried, group: _Group, turn_of: Callable[[Carried], Turn], state: _State
) -> None:
    key = carried["key"]
    if index == group.first and (holder := next((each for each in group.carried if "turn" in each), None)):
        turn = turn_of(holder)
        if _is_whole(turn, group):
            state.natives.add(key)
            state.entries.append(_edited(turn, group))
            _answer_dropped([call.id for call in turn.tool_calls], group.called, state)
    if carried["kind"] == "stand-in":
        if key in state.natives and "edited" not in carried:
            state.stand_ins.add(_call_id(message))
        else:
            state.entries.append(_plain(message) if "edited" in carried else RuntimeEntry(_plain(message)))
    elif key not in state.natives and carried["kind"] != "silent":
        state.entries.append(_plain(message))


def _is_whole(turn: Turn, group: _Group) -> bool:
    """Whether NOOA still shows every message it made of the turn. It records calls in order, from the first."""
    ids = [call.id for call in turn.tool_calls]
    shown = [each for each in group.carried if each["kind"] == "call"]
    if len(shown) > len(ids) or any(
        "edited" not in each and called != wanted
        for each, called, wanted in zip(shown, group.called, ids, strict=False)
    ):
        return False
    new_text = any("text" in each.get("edited", {}) for each in group.carried)
    if new_text and not any(part.kind == "text" for part in turn.parts):
        return False  # there is no part to put it into
    recorded = next((each["calls"] for each in group.carried if "calls" in each), None)
    return recorded is None or len(recorded) == len(shown)


def _edited(turn: Turn, group: _Group) -> Turn:
    """The turn with what somebody changed in NOOA's events since NOOA left them; unchanged it is the turn itself."""
    calls = [part for part, value in enumerate(turn.parts) if value.kind == "tool_call"]
    texts = [part for part, value in enumerate(turn.parts) if value.kind == "text"]
    nth = 0
    for carried in group.carried:
        new = carried.get("edited")
        if carried["kind"] == "call":
            if new is not None:
                turn = turn.edit(calls[nth], **new)
            nth += 1
        elif new is not None and "text" in new and texts:
            for part in texts:  # as NOOA does it: the whole text in the first place, none in the others
                turn = turn.edit(part, text=new["text"] if part == texts[0] else "")
    return turn


def _answered(turn: Turn, messages: list[Any]) -> list[str]:
    """The ids of the turn's calls that have a result among the messages, in the turn's order."""
    found = {message.get("tool_call_id") for message in messages if isinstance(message, Mapping)}
    return [call.id for call in turn.tool_calls if call.id in found]


def _answer_dropped(made: list[str], called: list[str], state: _State) -> None:
    dropped = [call for call in made if call not in called] if set(called) <= set(made) else made[len(called) :]
    outputs = [{"type": "function_call_output", "call_id": call, "output": NOT_EXECUTED} for call in dropped]
    if not outputs:
        return
    state.dropped = True
    if called:
        state.unanswered[called[-1]] = outputs
    else:
        state.entries += outputs


def _call_id(message: Any) -> str:
    calls = message.get("tool_calls") or [{}]
    return str(calls[0].get("id"))


def _plain(message: Any) -> dict[str, Any]:
    """The message without what it carries, its images in the Responses form."""
    plain = {name: value for name, value in message.items() if name != MARK}
    if isinstance(plain.get("content"), list):
        plain["content"] = [_block(block) for block in plain["content"]]
    return plain


def _block(block: Any) -> Any:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind == "text":
        return {"type": "input_text", "text": block["text"]}
    if kind == "image_url":
        image = block["image_url"]
        members = {"image_url": image} if isinstance(image, str) else {"image_url": image["url"]}
        detail = image.get("detail") if isinstance(image, Mapping) else None
        return {"type": "input_image", **members, **({"detail": detail} if detail else {})}
    return block
