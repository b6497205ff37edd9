"""The chat template: a Responses request becomes the token ids of a prompt that ends in the assistant's header.

`<bos>`, then for each message its header, its text and `<eos>`: instructions, tools, the messages of `input`, and at
the end a bare `<|assistant|>`. Consecutive assistant-side items (reasoning, message, function_call and any item nobody
here knows, which is written as nothing) are one assistant message; it carries the `prompt_token_ids` and
`generation_token_ids` of the LAST of its items that has them.

**The native prefix.** Written text loses the ids that were really sampled, so, as the trainers' servers do: take the
last assistant message that carries ids, write the history up to the last assistant message (not: that one), count its
end tokens, cut the whole written prompt at the end token of that number, and put the carried ids in front.

**The hazard in it** is theirs too. When a later assistant message carries no ids, the cut is at *its* end: that message
and all that stands between it and the native one vanish from the prompt, silently. A client has to guard against that.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from turnkeep.serve import tokens
from turnkeep.serve.parts import Part, join_ids, write_parts

type Item = Mapping[str, Any]
type Role = Literal["system", "tools", "user", "assistant", "tool"]

_HEADERS: dict[Role, int] = {
    "system": tokens.SYSTEM,
    "tools": tokens.TOOLS,
    "user": tokens.USER,
    "assistant": tokens.ASSISTANT,
    "tool": tokens.TOOL,
}
_MESSAGE_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_REQUIRED_TOGETHER = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


class InvalidRequest(ValueError):
    """A request that this server refuses; the message says why."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the history: `text` of the environment's, `items` and perhaps `native` ids of the assistant's."""

    role: Role
    text: str = ""
    items: tuple[Item, ...] = ()
    native: tuple[int, ...] = ()


class Prompt(NamedTuple):
    """Prompt token ids; the first `native` of them were carried by the history, not written by the template."""

    ids: list[int]
    native: int


def read_messages(body: Mapping[str, Any]) -> list[Message]:
    """Read instructions, tools and input of a request; raises InvalidRequest."""
    messages = []
    instructions, tools, given = body.get("instructions"), body.get("tools"), body.get("input")
    if instructions:
        messages.append(Message("system", _text(instructions, "instructions")))
    if tools:
        messages.append(Message("tools", json.dumps(tools)))
    if isinstance(given, str):
        return [*messages, Message("user", given)]
    if not isinstance(given, list):
        raise InvalidRequest("input must be a string or a list of items")
    run: list[Item] = []
    for index, item in enumerate(given):
        message = _read_item(item, f"input[{index}]")
        if message is None:
            run.append(item)
            continue
        messages += [*_close(run), message]
        run = []
    return [*messages, *_close(run)]


def make_prompt(messages: Sequence[Message]) -> Prompt:
    """Write the whole prompt, with the native prefix of the last assistant message that carries one."""
    written = [tokens.BOS, *_write(messages), tokens.ASSISTANT]
    native = next((message.native for message in reversed(messages) if message.native), ())
    if not native:
        return Prompt(written, 0)
    last = max(index for index, message in enumerate(messages) if message.role == "assistant")
    return splice_prefix(native, [tokens.BOS, *_write(messages[: last + 1])], written)


def splice_prefix(native: Sequence[int], history: Sequence[int], written: Sequence[int]) -> Prompt:
    """Put native ids in front of `written`, cut at its end token of the same number as the last one of `history`.

    A native prefix that does not end in an end token (it was cut at a limit) gets the template's.
    """
    prefix = list(native[:-1] if native[-1] == tokens.EOS else native)
    ends = [position for position, number in enumerate(written) if number == tokens.EOS]
    cut = ends[list(history).count(tokens.EOS) - 1]
    return Prompt([*prefix, *written[cut:]], len(native))


def read_parts(item: Item) -> list[Part]:
    """Read the parts of an assistant-side item, as the template writes them."""
    match item.get("type", "message"):
        case "message":
            return [Part("text", (_text(item.get("content"), "content"),))]
        case "reasoning":
            blocks = item.get("content") or item.get("summary") or []
            if not isinstance(blocks, list):
                raise InvalidRequest("the content and summary of reasoning must be lists")
            texts = [_text([block], "reasoning") for block in blocks]
            return [Part("reasoning", tuple(texts))] if texts else []
        case "function_call":
            return [Part("call", (item["name"], item["arguments"]))]
        case _:
            return []


def _write(messages: Sequence[Message]) -> list[int]:
    ids = []
    for message in messages:
        parts = [part for item in message.items for part in read_parts(item)]
        content = join_ids(write_parts(parts, tokens.encode)) if message.items else tokens.encode(message.text)
        ids += [_HEADERS[message.role], *content, tokens.EOS]
    return ids


def _read_item(item: Any, place: str) -> Message | None:
    """Read an item of the environment's side; None for one of the assistant's, once it is checked."""
    if not isinstance(item, Mapping):
        raise InvalidRequest(f"{place} must be an object")
    kind = item.get("type", "message")
    if not isinstance(kind, str):
        raise InvalidRequest(f"{place}.type must be a string")
    if kind == "message":
        role = _MESSAGE_ROLES.get(str(item.get("role")))
        if role is None:
            raise InvalidRequest(f"{place}.role must be one of {', '.join(_MESSAGE_ROLES)}")
        if role != "assistant":
            return Message(role, _text(item.get("content"), f"{place}.content"))
    if kind.endswith("_output"):
        _require_strings(item, ("call_id",), place)
        return Message("tool", _text(item.get("output"), f"{place}.output"))
    if kind == "function_call":
        _require_strings(item, ("call_id", "name", "arguments"), place)
    read_parts(item)
    _check_training_fields(item, place)
    return None


def _close(run: Sequence[Item]) -> list[Message]:
    """Make a run of assistant-side items one message; a run of nothing readable and no ids makes none."""
    native: tuple[int, ...] = ()
    for item in run:
        if item.get("prompt_token_ids") is not None:
            native = (*item["prompt_token_ids"], *item["generation_token_ids"])
    if not native and not any(read_parts(item) for item in run):
        return []
    return [Message("assistant", items=tuple(run), native=native)]


def _text(content: Any, place: str) -> str:
    """Join the text of a content: a string, or blocks, of which those without text (images) give nothing."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(block, Mapping) for block in content):
        raise InvalidRequest(f"{place} must be a string or a list of content blocks")
    texts = [block.get("refusal" if block.get("type") == "refusal" else "text") or "" for block in content]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(f"{place} has a block whose text is no string")
    return "".join(texts)


def _require_strings(item: Item, names: Sequence[str], place: str) -> None:
    for name in names:
        if not isinstance(item.get(name), str):
            raise InvalidRequest(f"{place}.{name} must be a string")


def _check_training_fields(item: Item, place: str) -> None:
    present = [name for name in (*_REQUIRED_TOGETHER, "routed_experts") if item.get(name) is not None]
    missing = [name for name in _REQUIRED_TOGETHER if name not in present]
    if present and missing:
        raise InvalidRequest(f"{place} has {', '.join(present)} but lacks {', '.join(missing)}")
    for name in _REQUIRED_TOGETHER[:2] if present else ():
        ids = item[name]
        if not isinstance(ids, list) or not all(type(number) is int for number in ids):
            raise InvalidRequest(f"{place}.{name} must be a list of integers")
        if ids and not (min(ids) >= 0 and max(ids) < tokens.VOCABULARY_SIZE):
            raise InvalidRequest(f"{place}.{name} has an id outside 0 to {tokens.VOCABULARY_SIZE - 1}")
