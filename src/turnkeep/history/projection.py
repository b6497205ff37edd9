"""Projection: a history becomes the input of a request (contract sections 4, 5 and 7.2).

A history is a list of entries: turns, chat dictionaries (`{"role": ...}`), items (`{"type": ...}`), and `RuntimeEntry`
for what the agent's runtime is known to have written itself. Each entry projects to the JSON text of zero or more
items; `Request.input` is what that text parses to, so the two can never differ, and nothing in it is shared with the
history.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, NamedTuple

from turnkeep.errors import ConfigurationError, PreparationFailure
from turnkeep.history.agreement import replays_natively
from turnkeep.history.gaps import FOREIGN_TURN, PORTABLE_AFTER_NATIVE, PUBLIC_ASSISTANT, Gap, gap
from turnkeep.history.scope import Scope, scope_text
from turnkeep.history.turn import Part, Turn
from turnkeep.history.wire_cache import WireCache
from turnkeep.wire.json import dumps, find_unwritable, loads, without_nulls
from turnkeep.wire.training import TRAINING_FIELDS, has_ids
from turnkeep.wire.whole import Node, of_object, of_text, written


class RuntimeEntry(NamedTuple):
    """An assistant dictionary that the runtime is known, from its own records, to have made: no gap (contract 5.4)."""

    message: Mapping[str, Any]


type Entry = Turn | RuntimeEntry | Mapping[str, Any]

type Form = str
"""How it was projected: `native`, `withheld` (native less the training fields), `portable`, `plain`, `runtime`."""


BY_ITEMS = frozenset({"native", "withheld"})
"""Forms in which a turn stands by its items."""


@dataclass(frozen=True, slots=True)
class Projected:
    """One history entry as it stands in a request: its items' JSON text joined with commas, and where it came from.

    A turn that is replayed by its items (`native`, `withheld`) is written when its text is asked for; `literal` is the
    text of anything else.
    """

    form: Form
    literal: bytes = b""
    turn: Turn | None = None
    assistant: bool = False
    """Whether it speaks for the assistant."""
    ids: bool = False
    """Whether it carries token ids."""

    @property
    def text(self) -> bytes:
        """The JSON text."""
        return collected(self.chunks())

    @property
    def is_empty(self) -> bool:
        """Whether there is no text, so that the request shows nothing of the entry."""
        return not (self.turn.parts if self.turn is not None and self.form in BY_ITEMS else self.literal)

    def chunks(self, cache: WireCache | None = None) -> Iterator[bytes]:
        """The JSON text in pieces, none larger than an array's text, or than a turn's where there is a cache."""
        if self.turn is None or self.form not in BY_ITEMS:
            yield self.literal
        elif cache is not None:
            yield cache.text(self.turn, self.form, lambda: self.text)
        else:
            yield from self._items()

    def nodes(self) -> Iterator[Node]:
        """What `turnkeep.wire.whole` writes as the chunks joined."""
        if self.turn is None or self.form != "native":
            yield of_text(self.text)
        else:
            yield from (part.native.wire_node() for part in self.turn.parts if part.native is not None)

    def _items(self) -> Iterator[bytes]:
        assert self.turn is not None
        for index, part in enumerate(self.turn.parts):
            if index:
                yield b","
            assert part.native is not None
            yield from (
                part.native.wire_chunks() if self.form == "native" else part.native.wire_chunks_without_training()
            )


@dataclass(frozen=True, slots=True)
class Request:
    """What a history projects to: the input items, the instructions, and the gaps found on the way."""

    entries: tuple[Projected, ...]
    instructions: str | None
    gaps: tuple[Gap, ...]

    @property
    def input(self) -> list[Any]:
        """The input items as fresh plain values."""
        items: list[Any] = loads(self.input_text())
        return items

    def input_text(self) -> bytes:
        """The input as JSON text."""
        return written(self._nodes())

    def _nodes(self) -> list[Node]:
        return [node for entry in self.entries if not entry.is_empty for node in entry.nodes()]

    def body(self, params: Mapping[str, Any] | None = None, cache: WireCache | None = None) -> bytes:
        """The request's body: `input`, `instructions` where there are any, then the members of `params`."""
        if cache is not None:
            return collected(self.chunks(params, cache))
        tail = {name: of_text(dumps(value)) for name, value in self._members(params).items()}
        return written(of_object({"input": self._nodes(), **tail}))

    def chunks(self, params: Mapping[str, Any] | None = None, cache: WireCache | None = None) -> Iterator[bytes]:
        """`body` in pieces: for sending it without ever holding the whole.

        None is larger than an array's text; with a `cache`, which makes a replay a copy, none larger than a turn's.
        """
        return body_chunks(self.entries, self.tail(params), cache)

    def tail(self, params: Mapping[str, Any] | None = None) -> bytes:
        """What follows the input in `body`, without the closing brace.

        Raises PreparationFailure for a member that JSON cannot hold, ConfigurationError for one that is the history's.
        """
        members = dumps(self._members(params))[1:-1]
        return b"," + members if members else b""

    def _members(self, params: Mapping[str, Any] | None) -> dict[str, Any]:
        given = dict(params or {})
        for name in ("input", "instructions"):
            if name in given:
                raise ConfigurationError(f"{name} comes from the history", field=name)
        if (fault := find_unwritable(given)) is not None:
            field = str(fault.path[0]) if fault.path else None
            raise PreparationFailure(f"a request member cannot be written: {fault.reason}", field=field)
        head = {} if self.instructions is None else {"instructions": self.instructions}
        return {**head, **given}

    def withheld(self) -> "Request":
        """The same request without any training fields (contract 7.8)."""
        return Request(tuple(map(withhold, self.entries)), self.instructions, self.gaps)


def body_chunks(entries: Iterable[Projected], tail: bytes, cache: WireCache | None = None) -> Iterator[bytes]:
    """A request's body of its entries, in chunks, and what follows the input."""
    shown = (entry for entry in entries if not entry.is_empty)
    yield b'{"input":'
    yield from bracketed(entry.chunks(cache) for entry in shown)
    yield tail + b"}"


def bracketed(entries: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """The chunks of each entry, a comma between entries, and the brackets of a list around them."""
    yield b"["
    for index, chunks in enumerate(entries):
        if index:
            yield b","
        yield from chunks
    yield b"]"


def collected(chunks: Iterable[bytes]) -> bytes:
    """The chunks joined as they come, none held for longer: half the memory of `bytes.join`, which holds them all."""
    whole = BytesIO()
    for chunk in chunks:
        whole.write(chunk)
    return whole.getvalue()


def body_text(texts: Iterable[bytes], tail: bytes) -> bytes:
    """A request's body of its entries' texts (empty ones vanish) and what follows the input."""
    return b'{"input":[' + b",".join(filter(None, texts)) + b"]" + tail + b"}"


def project(history: Iterable[Entry], scope: Scope | str | None = None) -> Request:
    """The request that `history` makes for a caller of `scope`.

    A turn of an equal scope whose public fields agree with its items gives those items back; any other gives its public
    parts. Raises PreparationFailure, with the index of the entry, where an entry is malformed. The history is not
    changed, and changing the request's input changes nothing.
    """
    caller = scope_text(scope)
    entries: list[Projected] = []
    instructions: list[str] = []
    for index, entry in enumerate(history):
        if isinstance(entry, Mapping) and "type" not in entry and entry.get("role") == "system":
            instructions.append(_system_text(entry, index))
        else:
            entries.append(_project_entry(entry, index, caller))
    return Request(tuple(entries), "\n\n".join(filter(None, instructions)) or None, _gaps(entries))


def _project_entry(entry: Entry, index: int, caller: str | None) -> Projected:
    if isinstance(entry, Turn):
        return project_turn(entry, native=replays_natively(entry, caller))
    if isinstance(entry, RuntimeEntry):
        return _assistant(_writable(entry.message, index), index, "runtime")
    message = _writable(entry, index)
    if "type" in message:
        return _item(message, index)
    role = message.get("role")
    if role in ("user", "developer"):
        _check_content(message, index)
        return Projected("plain", dumps(message))
    if role == "assistant":
        return _assistant(message, index, "portable")
    if role == "tool":
        return Projected("plain", _tool_output(message, index))
    if role == "metadata" and message.get("nooa_cache_boundary") is True:
        return Projected("plain")
    raise PreparationFailure(f"unknown role {role!r}", entry=index, field="role")


def _writable(entry: Mapping[str, Any], index: int) -> dict[str, Any]:
    if not isinstance(entry, Mapping):
        raise PreparationFailure(f"a history entry cannot be a {type(entry).__name__}", entry=index)
    fault = find_unwritable(entry)
    if fault is not None:
        field = fault.path[0] if fault.path and isinstance(fault.path[0], str) else None
        raise PreparationFailure(fault.reason, entry=index, field=field)
    return dict(entry)


def project_turn(turn: Turn, *, native: bool) -> Projected:
    """A turn as its items (`native`) or as its public parts (contract 4.1, 4.2)."""
    if not native:
        texts = (_portable_part(part) for part in turn.parts)
        return Projected("portable", b",".join(filter(None, texts)), turn, assistant=True)
    ids = any(part.native is not None and part.native.has_training for part in turn.parts)
    return Projected("native", b"", turn, assistant=True, ids=ids)


def _portable_part(part: Part) -> bytes:
    if part.kind == "tool_call":
        return _call(part.id, part.name, part.arguments)
    return _said(part.text) if part.text else b""


def _said(content: Any) -> bytes:
    return dumps({"role": "assistant", "content": content})


def _call(call_id: str, name: str, arguments: str) -> bytes:
    return dumps({"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments})


def withhold(entry: Projected) -> Projected:
    """The entry without any training fields (contract 7.8)."""
    if entry.turn is not None:
        return Projected("withheld", b"", entry.turn, assistant=True) if entry.ids else entry
    if not entry.assistant or entry.form != "plain":
        return entry
    members = {name: value for name, value in loads(entry.literal).items() if name not in TRAINING_FIELDS}
    return Projected(entry.form, dumps(members), None, assistant=True)


def _item(members: dict[str, Any], index: int) -> Projected:
    """A dictionary with a `type` passes through, less its null members (contract 4.3)."""
    kind = members["type"]
    if kind in ("function_call", "function_call_output"):
        call_id = members.get("call_id")
        if not isinstance(call_id, str) or (kind == "function_call_output" and not call_id):
            raise PreparationFailure(f"a {kind} needs its call_id", entry=index, field="call_id")
    if kind == "function_call" and not isinstance(members.get("arguments"), str):
        raise PreparationFailure("the arguments of a function_call must be text", entry=index, field="arguments")
    assistant = kind in ("reasoning", "function_call") or (kind == "message" and members.get("role") == "assistant")
    return Projected("plain", without_nulls(dumps(members)), None, assistant, assistant and has_ids(members))


def _check_content(message: Mapping[str, Any], index: int) -> None:
    if not isinstance(message.get("content"), (str, list)):
        role = message.get("role")
        raise PreparationFailure(f"the content of a {role} entry must be text or a list", entry=index, field="content")


def _tool_output(message: Mapping[str, Any], index: int) -> bytes:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or not call_id:
        raise PreparationFailure("a tool result needs the id of its call", entry=index, field="tool_call_id")
    _check_content(message, index)
    return dumps({"type": "function_call_output", "call_id": call_id, "output": message["content"]})


def _system_text(message: Mapping[str, Any], index: int) -> str:
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(block, Mapping) for block in content):
        texts = [block.get("text") for block in content]
        if all(isinstance(text, str) for text in texts):
            content = "".join(texts)
    if not isinstance(content, str):
        raise PreparationFailure("the content of a system entry must be text", entry=index, field="content")
    return content


def _assistant(message: Mapping[str, Any], index: int, form: Form) -> Projected:
    """A public assistant dictionary: its reasoning, its content, its calls (contract 4.4)."""
    reasoning, content = message.get("reasoning_content"), message.get("content")
    if not isinstance(reasoning, str | None):
        raise PreparationFailure("reasoning_content must be text", entry=index, field="reasoning_content")
    if not isinstance(content, str | list | None):
        _check_content(message, index)
    texts = [_said(value) for value in (reasoning, content) if value]
    calls = message.get("tool_calls") or []
    if not isinstance(calls, (list, tuple)):
        raise PreparationFailure("tool_calls must be a list", entry=index, field="tool_calls")
    texts += [_public_call(call, index, position) for position, call in enumerate(calls)]
    return Projected(form, b",".join(texts), None, assistant=True)


def _public_call(call: Any, index: int, position: int) -> bytes:
    function = call.get("function") if isinstance(call, Mapping) else None
    function = function if isinstance(function, Mapping) else {}
    call_id = call.get("id") if isinstance(call, Mapping) else None
    texts = []
    for name, value in (("id", call_id), ("name", function.get("name")), ("arguments", function.get("arguments"))):
        if not isinstance(value, str):
            why = f"a tool call needs its {name} as text"
            raise PreparationFailure(why, entry=index, field="tool_calls", index=position)
        texts.append(value)
    return _call(*texts)


def _gaps(entries: list[Projected]) -> tuple[Gap, ...]:
    """The conditions that these entries show, each once, in the order of contract section 5."""
    codes = []
    if any(entry.turn and entry.turn.parts and entry.form == "portable" for entry in entries):
        codes.append(FOREIGN_TURN)
    if any(entry.turn is None and entry.form == "portable" for entry in entries):
        codes.append(PUBLIC_ASSISTANT)
    if _last_lacks_ids(entries):
        codes.append(PORTABLE_AFTER_NATIVE)
    return tuple(map(gap, codes))


def _last_lacks_ids(entries: list[Projected]) -> bool:
    """Whether the last assistant entry has no token ids while an earlier one has them (contract 7.8).

    Items that stand side by side and belong to no turn are one entry: together they are what one policy call added.
    """
    spoken: list[bool] = []
    loose = False
    for entry in entries:
        if entry.is_empty:
            continue
        if entry.assistant and loose and entry.form == "plain":
            spoken[-1] |= entry.ids
        elif entry.assistant:
            spoken.append(entry.ids)
        loose = entry.assistant and entry.form == "plain"
    return bool(spoken) and not spoken[-1] and any(spoken)
