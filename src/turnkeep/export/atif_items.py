"""What stands between turns, as steps and observations of an ATIF document, and back.

`extra.turnkeep` has `item`, with null (or a length) where a text was moved to the field, or `whole`, the item as it is,
where no text could be moved. Neither is there where the item is what everybody would take the field for.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from turnkeep.check.plain import is_plain
from turnkeep.errors import ArchiveError
from turnkeep.export.atif_calls import FIELDS, read_call, write_call
from turnkeep.export.atif_text import exact, extra, input_places, lossy, own_extra, put
from turnkeep.wire.json import same

_SOURCES = {"system": "system", "developer": "system", "user": "user"}
_CALL_ID = "call_id"


def write_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """The step of an item that is no turn. The assistant's are agent steps that made no policy call."""
    if item.get("type") == "function_call" and all(isinstance(item.get(name), str) for name in FIELDS):
        members = {**item, **dict.fromkeys(FIELDS)}
        call = write_call(item["call_id"], item["name"], item["arguments"], {"item": members})
        step = {"source": "agent", "message": "", "tool_calls": [call], "llm_call_count": 0}
        return {**step, "extra": extra({"item": None})}
    content, own = _write_content(item)
    source = _SOURCES.get(str(item.get("role")), "agent")
    if isinstance(content, str) and same(item, {"role": source, "content": content}):
        return {"source": source, "message": content}
    step = {"source": source, "message": content, "extra": extra(own)}
    return {**step, "llm_call_count": 0} if source == "agent" else step


def read_item_step(step: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items of a step that is no turn. Raises ArchiveError where its extra does not fit its fields."""
    own = own_extra(step)
    calls = step.get("tool_calls") or []
    if "whole" in own or own.get("item") is not None:
        return [_read_content(own, step["message"], "message")]
    if "item" in own and len(calls) == 1:
        return [_read_call_item(calls[0])]
    if "item" in own:
        raise ArchiveError("the step stands for one tool call, and has another number of them", field="tool_calls")
    role = "assistant" if step["source"] == "agent" else step["source"]
    said = [{"role": role, **_plain_content(step["message"])}] if step["message"] or not calls else []
    return said + [_read_call_item(call) for call in calls]


def _read_call_item(call: Mapping[str, Any]) -> dict[str, Any]:
    members = own_extra(call).get("item") or {"type": "function_call"}
    return {**members, **dict(zip(FIELDS, read_call(call).values(), strict=True))}


def write_result(item: Mapping[str, Any], call_id: str | None, after: list[int] | None) -> dict[str, Any]:
    """The observation of a tool's output.

    `after` is given where it did not come right after its call: the step that it came after, and its place there.
    """
    content, own = _write_content(item)
    if call_id is None:
        return {"content": content, "extra": extra(own)}
    shown = lossy(call_id)
    result = {"source_call_id": shown, "content": content}
    usual = {"type": "function_call_output", _CALL_ID: shown, "output": content}
    if shown == call_id:
        for members in own.values():
            members[_CALL_ID] = None
    kept: dict[str, Any] = {} if isinstance(content, str) and same(item, usual) else own
    if after is not None:
        kept = {**kept, "after": after}
    return {**result, "extra": extra(kept)} if kept else result


def read_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """The item of an observation. Raises ArchiveError where its extra does not fit its content."""
    own = own_extra(result)
    call_id, content = result.get("source_call_id"), result.get("content") or ""
    if not isinstance(call_id, str | None):
        raise ArchiveError("source_call_id is no text", field="source_call_id")
    if "item" in own or "whole" in own:
        item = _read_content(own, content, "content")
        if call_id is not None and _CALL_ID in item:
            item[_CALL_ID] = exact(item[_CALL_ID], call_id)
        return item
    output = content if isinstance(content, str) else _plain_content(content)["content"]
    return {"type": "function_call_output", _CALL_ID: call_id, "output": output}


def _write_content(item: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """An item's texts as ATIF content, and the item without them."""
    members = deepcopy(dict(item))
    places = input_places(members)
    texts = [place.value for place in places]
    if not all(isinstance(text, str) for text in texts):
        return "", {"whole": members}
    for place in places:
        if is_plain(place.value):
            place.holder[place.key] = None
    return _content(list(map(lossy, texts))), {"item": members}


def _content(texts: list[str]) -> Any:
    if len(texts) > 1:
        return [{"type": "text", "text": text} for text in texts]
    return texts[0] if texts else ""


def _read_content(own: Mapping[str, Any], content: Any, field: str) -> dict[str, Any]:
    """The item with the texts of `content` in it. Raises ArchiveError where their number differs."""
    item: dict[str, Any] = deepcopy(dict(own["item"] if "item" in own else own["whole"]))
    places = input_places(item) if "item" in own else []
    texts = texts_of(content)
    if not places and texts == [""]:
        return item
    if len(texts) != len(places):
        raise ArchiveError(f"{field} has {len(texts)} texts, and its item in extra holds {len(places)}", field=field)
    put(places, texts)
    return item


def texts_of(content: Any) -> list[str]:
    """The texts of ATIF content, a string or a list of parts. Raises ArchiveError for parts that are no text."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise ArchiveError("a message is text, or a list of parts", field="content")
    texts = [part.get("text") if part.get("type") == "text" else None for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise ArchiveError("images and audio are not read from ATIF", field="content")
    return [str(text) for text in texts]


def _plain_content(content: Any) -> dict[str, Any]:
    """The content of a message that another tool wrote."""
    if isinstance(content, str):
        return {"content": content}
    return {"content": [{"type": "input_text", "text": text} for text in texts_of(content)]}


def is_turn(step: Mapping[str, Any]) -> bool:
    """Whether a step is a turn: an agent's, that made a policy call. Raises ArchiveError where nobody can say."""
    own = own_extra(step)
    if step["source"] not in ("system", "user", "agent"):
        raise ArchiveError("source is neither system, user nor agent", field="source")
    if step["source"] != "agent" and "parts" in own:
        raise ArchiveError("the step is a turn by its extra, and not the agent's", field="source")
    if step["source"] != "agent" or "item" in own or "whole" in own:
        return False
    return "parts" in own or step.get("llm_call_count") != 0
