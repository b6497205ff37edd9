"""A turn: what one policy call added to the history, as readable parts, each beside its complete native item."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from turnkeep.errors import ConfigurationError
from turnkeep.wire.item import Item
from turnkeep.wire.json import ARCHIVED_DEEPEST, InexactJson, NotJson, dumps, loads, merge_surrogates
from turnkeep.wire.training import array_bytes, dtype_name, spell_array

type FinishReason = str
"""`stop`, `tool_calls`, `length` or `error` (contract 1.8); archives of other runtimes may say something else."""


@dataclass(frozen=True, slots=True)
class AssistantText:
    """A message, or an opaque hosted item, which reads as empty text."""

    kind: Literal["text"] = field(default="text", init=False)
    text: str
    native: Item | None = None


@dataclass(frozen=True, slots=True)
class AssistantReasoning:
    """A reasoning item."""

    kind: Literal["reasoning"] = field(default="reasoning", init=False)
    text: str
    native: Item | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call; `arguments` is the text as received, never parsed and written again."""

    kind: Literal["tool_call"] = field(default="tool_call", init=False)
    id: str
    name: str
    arguments: str
    native: Item | None = None


type Part = AssistantText | AssistantReasoning | ToolCall

PUBLIC_FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"text": ("text",), "reasoning": ("text",), "tool_call": ("id", "name", "arguments")}
)
"""The public fields of each kind of part."""
OWN_MEMBERS = ("parts", "replay_scope", "finish_reason")
"""Members of a turn's JSON form that are fields of the turn; the others are its `rest`."""
PART_TYPES: Mapping[str, type[Part]] = MappingProxyType(
    {"text": AssistantText, "reasoning": AssistantReasoning, "tool_call": ToolCall}
)


def public_fields(part: Part) -> dict[str, str]:
    """The public fields of `part` by name, in order."""
    return {name: getattr(part, name) for name in PUBLIC_FIELDS[part.kind]}


class Hole(NamedTuple):
    """A place in a received body where an array was: the part and member that hold it, the text between elements."""

    part: int
    field: str
    between: bytes


class Received(NamedTuple):
    """A response's body as received, less the arrays that the turn's items hold: one piece more than holes."""

    pieces: tuple[bytes, ...]
    holes: tuple[Hole, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """What one policy call added: parts in the order of the output items, the scope it was made under, and the rest.

    Immutable. `rest` is the JSON text of every other member of the turn's JSON form (`usage`, `model_name`,
    `response_id`, and whatever an archive brought along), in order, in the one spelling of `turnkeep.wire.json.dumps`.
    Raises ConfigurationError, with the part's index and the field, for what no turn can be.
    """

    parts: tuple[Part, ...]
    scope: str | None
    finish_reason: FinishReason
    rest: bytes = b"{}"
    received: Received | None = field(default=None, init=False, compare=False, repr=False)
    """The response's body, where the turn is what that makes: see `with_body`. A turn made of another has none."""
    _cache: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Hold what was given to what can be written and read again, and `rest` to its one spelling."""
        for name, value in (("scope", self.scope), ("finish_reason", self.finish_reason)):
            if not isinstance(value, str) and (name, value) != ("scope", None):
                raise ConfigurationError(f"a turn's {name} is text, not {type(value).__name__}", field=name)
        for index, part in enumerate(self.parts):
            for name, value in public_fields(part).items():
                if not isinstance(value, str):
                    why = f"{name} of a {part.kind} part is text, not {type(value).__name__}"
                    raise ConfigurationError(why, field=name, index=index)
        object.__setattr__(self, "rest", _spelled(self.rest))

    def known(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` gives, made once: a turn never changes, and one that is made of another knows nothing of it."""
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]

    @property
    def content(self) -> str:
        """The concatenation of the text parts: what is persisted and what is parsed (contract 1.4)."""
        return merge_surrogates("".join(part.text for part in self.parts if part.kind == "text"))

    @property
    def reasoning(self) -> str | None:
        """The reasoning parts joined with a newline, or None where there is none."""
        texts = [part.text for part in self.parts if part.kind == "reasoning"]
        return merge_surrogates("\n".join(texts)) if texts else None

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The function calls, in order."""
        return tuple(part for part in self.parts if part.kind == "tool_call")

    @property
    def members(self) -> dict[str, Any]:
        """A fresh copy of the other members of the JSON form: `usage`, `model_name`, `response_id` and more."""
        value: dict[str, Any] = loads(self.rest)
        return value

    @property
    def usage(self) -> dict[str, Any] | None:
        """The response's usage as received; None where that is no object (`members` has what it is)."""
        usage = self.members.get("usage")
        return usage if isinstance(usage, dict) else None

    @property
    def model_name(self) -> str | None:
        """The response's `model`; None where that is no text."""
        name = self.members.get("model_name")
        return name if isinstance(name, str) else None

    @property
    def response_id(self) -> str | None:
        """The response's `id`; None where that is no text."""
        response_id = self.members.get("response_id")
        return response_id if isinstance(response_id, str) else None

    @property
    def digest(self) -> str:
        """SHA-256 over everything in the turn, as hex: equal digests are equal turns."""
        digest: str = self.known("digest", lambda: _digest(self))
        return digest

    def edit(self, part: int, /, **fields: str) -> "Turn":
        """The turn with public fields of one part set; that part loses its native, so the turn replays portably (1.7).

        The other parts and the scope stay as they were. Setting a field to the value it has changes nothing. Raises
        ConfigurationError for a part or a field that is not there, or a value that is no text.
        """
        if type(part) is not int or not 0 <= part < len(self.parts):
            raise ConfigurationError(f"the turn has {len(self.parts)} parts, and none of index {part!r}", index=part)
        old = self.parts[part]
        for name, value in fields.items():
            if name not in PUBLIC_FIELDS[old.kind]:
                raise ConfigurationError(f"a {old.kind} part has no public field {name!r}", field=name, index=part)
            if not isinstance(value, str):
                raise ConfigurationError(f"{name} must be text, not {type(value).__name__}", field=name, index=part)
        changed = {name: merge_surrogates(value) for name, value in fields.items()}
        if all(getattr(old, name) == value for name, value in changed.items()):
            return self
        new = PART_TYPES[old.kind](**{**public_fields(old), **changed}, native=None)
        return replace(self, parts=(*self.parts[:part], new, *self.parts[part + 1 :]))

    @property
    def body(self) -> bytes | None:
        """The body of the response byte for byte as received, or None where the turn was not captured from bytes."""
        if self.received is None:
            return None
        pieces = [self.received.pieces[0]]
        for hole, piece in zip(self.received.holes, self.received.pieces[1:], strict=True):
            native = self.parts[hole.part].native
            assert native is not None
            pieces += [spell_array(native.arrays[hole.field], hole.between), piece]
        return b"".join(pieces)


def with_body(turn: Turn, received: Received | None) -> Turn:
    """`turn`, just made, which is what `received` makes: the one way in which a turn comes by its body."""
    object.__setattr__(turn, "received", received)
    return turn


def _spelled(rest: bytes) -> bytes:
    """The members of `rest` as JSON writes them here. Raises ConfigurationError where they are none."""
    if rest == b"{}":
        return rest
    try:
        members = loads(rest, ARCHIVED_DEEPEST)
    except (InexactJson, NotJson) as error:
        raise ConfigurationError(f"a turn's rest is a JSON object: {error}", field="rest") from None
    if not isinstance(members, dict) or any(name in members for name in OWN_MEMBERS):
        own = ", ".join(OWN_MEMBERS)
        raise ConfigurationError(f"a turn's rest is a JSON object without {own}", field="rest")
    return dumps(members)


def _digest(turn: Turn) -> str:
    """Over the turn's head, then each part's public fields and its item, each array by its dtype, shape and bytes."""
    digest = hashlib.sha256()

    def add(*pieces: bytes) -> None:
        for piece in pieces:
            digest.update(len(piece).to_bytes(8, "little") + piece)

    add(dumps([turn.scope, turn.finish_reason]), turn.rest)
    for part in turn.parts:
        add(dumps([part.kind, *public_fields(part).values()]))
        if part.native is not None:
            add(dumps(part.native.skeleton()))
            for name, array in part.native.arrays.items():
                add(json.dumps([name, array_digest(array)]).encode())
    return digest.hexdigest()


def array_digest(array: Any) -> str:
    """SHA-256 over an array's dtype, shape and little-endian bytes, as hex."""
    digest = hashlib.sha256(f"{dtype_name(array.dtype)}{list(array.shape)}".encode())
    digest.update(array_bytes(array))
    return digest.hexdigest()
