"""Builders of wire values, and oracles that share no code with turnkeep."""

import json
import struct
from typing import Any

from turnkeep import Scope

SCOPE = str(Scope("policy_model"))
TRAINING: dict[str, Any] = {
    "prompt_token_ids": [1, 2, 300],
    "generation_token_ids": [4, 70000],
    "generation_log_probs": [-0.25, -0.0],
    "routed_experts": [[[0, 7], [3, -1]], [[2, 2], [255, 4]]],
}


def message(*texts: str, **members: Any) -> dict[str, Any]:
    """A message item of one text block per text."""
    blocks = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"id": "msg_1", "type": "message", "role": "assistant", "content": blocks, **members}


def refusal(text: str) -> dict[str, Any]:
    """A message item that refuses."""
    return {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": text}]}


def reasoning(*texts: str, **members: Any) -> dict[str, Any]:
    """A reasoning item of one content block per text."""
    return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text} for text in texts], **members}


def summary(*texts: str, **members: Any) -> dict[str, Any]:
    """A reasoning item of one summary block per text."""
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text} for text in texts], **members}


def call(call_id: str = "c1", name: str = "f", arguments: str = "{}", **members: Any) -> dict[str, Any]:
    """A function call."""
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **members}


def response(*items: Any, **members: Any) -> dict[str, Any]:
    """A completed Responses object."""
    head = {"id": "resp_1", "object": "response", "status": "completed", "model": "policy-7b"}
    return {**head, "output": list(items), "usage": {"input_tokens": 3}, **members}


def body(*items: Any, **members: Any) -> bytes:
    """A Responses object as it is received: what the standard library writes, ASCII only."""
    return json.dumps(response(*items, **members)).encode()


def exactly(one: Any, other: Any) -> bool:
    """Equal as JSON values: types count, floats by their bits, strings code point for code point, keys in order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(exactly(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(exactly, one, other))
    if isinstance(one, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    return bool(one == other)


def joined(*texts: str, between: str = "") -> str:
    """Texts joined; halves of a surrogate pair that come to stand side by side are what JSON would read back."""
    text: str = json.loads(json.dumps(between.join(texts)))
    return text


def readable(item: dict[str, Any]) -> dict[str, str]:
    """The public fields of an item, by contract 1.1 and 1.3."""
    if item["type"] == "message":
        fields = {"output_text": "text", "refusal": "refusal"}
        blocks = [block for block in item["content"] if block["type"] in fields]
        return {"kind": "text", "text": joined(*(block[fields[block["type"]]] for block in blocks))}
    if item["type"] == "reasoning":
        for field, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
            blocks = [block for block in item.get(field) or [] if block["type"] == kind]
            if text := joined(*(block["text"] for block in blocks), between="\n"):
                return {"kind": "reasoning", "text": text}
        return {"kind": "reasoning", "text": ""}
    if item["type"] == "function_call":
        return {"kind": "tool_call", "id": item["call_id"], "name": item["name"], "arguments": item["arguments"]}
    return {"kind": "text", "text": ""}


def no_nulls(value: Any) -> Any:
    """The value less its null members, at every depth."""
    if isinstance(value, dict):
        return {name: no_nulls(member) for name, member in value.items() if member is not None}
    return [no_nulls(element) for element in value] if isinstance(value, list) else value


def portable(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the parts of a turn's JSON form project to portably, by contract 4.2."""
    items: list[dict[str, Any]] = []
    for part in parts:
        if part["kind"] == "tool_call":
            names = {"call_id": part["id"], "name": part["name"], "arguments": part["arguments"]}
            items.append({"type": "function_call", **names})
        elif part["text"]:
            items.append({"role": "assistant", "content": part["text"]})
    return items


def short(value: object) -> str:
    """A parameter's id, short whatever it is."""
    return "a huge integer" if isinstance(value, int) and abs(value) > 10**30 else ascii(value)[:40]
