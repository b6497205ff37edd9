"""What was said in a rollout, as a person reads it: blocks of text with a role, in order."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from turnkeep.history.turn import Part, Turn
from turnkeep.report.measure import kind_of
from turnkeep.rollout.conversation import is_output
from turnkeep.wire.item import refusals
from turnkeep.wire.json import InexactJson, NotJson, dumps, loads

type BlockKind = Literal["text", "refusal", "reasoning", "call", "json"]

LONG = 1500
"""Characters from which what came from outside is folded."""


class Argument(NamedTuple):
    """One argument of a tool call: a string as it reads, anything else as JSON text."""

    name: str
    text: str
    is_text: bool


@dataclass(frozen=True, slots=True)
class Block:
    """A piece to read. `title` is a tool's name, or the type of what is shown as JSON; `id` a call's id."""

    kind: BlockKind
    text: str
    title: str = ""
    id: str = ""
    arguments: tuple[Argument, ...] = ()

    @property
    def is_long(self) -> bool:
        """Whether it is folded where it is not the policy's own."""
        return len(self.text) > LONG or self.text.count("\n") > 24


class Message(NamedTuple):
    """What stood between two turns: who said it, and what. `id` is the call that a tool's output answers."""

    role: str
    id: str
    blocks: tuple[Block, ...]


def blocks_of_turn(turn: Turn) -> tuple[Block, ...]:
    """The turn's parts, each a block; a refusal says that it is one."""
    return tuple(_block_of_part(part) for part in turn.parts)


def _block_of_part(part: Part) -> Block:
    if part.kind == "tool_call":
        return call_block(part.name, part.arguments, part.id)
    kind = kind_of(part)
    members = part.native.skeleton() if part.native is not None else {}
    if kind == "hosted":
        return Block("json", _json(members), str(members.get("type")))
    if kind == "reasoning":
        return Block("reasoning", part.text)
    return Block("refusal" if refusals(members) else "text", part.text)


def call_block(name: str, arguments: str, id: str) -> Block:
    """A tool call; arguments that are no JSON object are shown as the text they are."""
    return Block("call", arguments, name, id, tuple(_arguments(arguments)))


def _arguments(text: str) -> Iterator[Argument]:
    try:
        members = loads(text)
    except (NotJson, InexactJson):
        return
    for name, value in members.items() if isinstance(members, dict) else ():
        is_text = isinstance(value, str)
        yield Argument(name, value if is_text else dumps(value).decode(), is_text)


def message_of(item: Mapping[str, Any]) -> Message:
    """An item of a request that is no turn: a message, a tool's output, or whatever else, as JSON."""
    if is_output(item):
        id = item.get("call_id")
        return Message("tool", id if isinstance(id, str) else "", tuple(_content(item.get("output"))))
    kind = item.get("type")
    role = item.get("role")
    if isinstance(role, str) and kind in (None, "message") and "content" in item:
        return Message(role, "", tuple(_content(item["content"])))
    fields = [item.get(name) for name in ("name", "arguments", "call_id")]
    if kind == "function_call" and all(isinstance(field, str) for field in fields):
        return Message("runtime", "", (call_block(*map(str, fields)),))
    return Message(str(kind or "item"), "", (Block("json", _json(item), str(kind or "item")),))


def _content(content: Any) -> Iterator[Block]:
    """Text, or a list of blocks of which those with a text read as it."""
    if isinstance(content, str):
        yield Block("text", content)
        return
    for block in content if isinstance(content, list) else [content]:
        text = block.get("text") if isinstance(block, Mapping) else None
        if isinstance(text, str):
            yield Block("text", text)
        else:
            kind = block.get("type") if isinstance(block, Mapping) else None
            yield Block("json", _json(block), str(kind or "JSON"))


def _json(value: Any) -> str:
    """JSON text, a member or element a line on the first level."""
    if isinstance(value, Mapping) and value:
        inner = ",\n  ".join(f"{dumps(name).decode()}: {dumps(member).decode()}" for name, member in value.items())
        return f"{{\n  {inner}\n}}"
    return dumps(value).decode()
