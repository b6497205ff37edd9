"""One item on the wire: what it holds, and what a person can read of it.

Item types as in the OpenAI Responses API. An item of a type that nobody here has heard of is kept whole and reads as
nothing, so that a newer server loses nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from turnkeep.errors import MalformedItem
from turnkeep.wire.json import dumps, loads, merge_surrogates, same, without_nulls
from turnkeep.wire.sha import sha256_hex
from turnkeep.wire.training import TRAINING_FIELDS, array_bytes, array_text, to_array
from turnkeep.wire.whole import Node, of_array, of_object, of_text

if TYPE_CHECKING:
    from turnkeep.wire.training import Array

CLIENT_CALLS = frozenset({"custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "computer_call"})
"""Calls that the client would have to execute, and that nobody here can answer (contract 7.4)."""

type Kind = Literal["text", "reasoning", "tool_call"]


class Item(Mapping[str, Any]):
    """One element of a Responses API `output` or `input` list, immutable and equal to its plain JSON form.

    Members read as fresh plain values; the numeric arrays among them, of any name (token ids, log probs, routed
    experts, and what trainers add), are also there as read-only NumPy arrays, in `arrays`.
    """

    __slots__ = ("_digests", "_members", "arrays")

    _members: dict[str, bytes | None]
    """Each member's JSON text, None where `arrays` holds it."""
    _digests: Mapping[str, str] | None
    arrays: Mapping[str, "Array"]
    """Numeric members as read-only arrays, by name, in the narrowest exact dtype, or the one they were given in.

    What no array holds stays JSON.
    """

    def __init__(self, members: Mapping[str, Any], arrays: Mapping[str, "Array"] | None = None) -> None:
        """Take a JSON object; `arrays` gives members as arrays already made, whatever `members` holds for them.

        An array that can be written to is copied. Raises ValueError where a member cannot be written as JSON.
        """
        for name in members:
            if not isinstance(name, str):
                raise ValueError(f"the member name {name!r} is no string")
        values = {**members, **(arrays or {})}
        if len(values) > len(members):
            raise ValueError(f"an array is given for {list(values)[-1]!r}, which is no member")
        found = ((name, to_array(value)) for name, value in values.items())
        self.arrays = MappingProxyType({name: array for name, array in found if array is not None})
        self._members = {name: None if name in self.arrays else dumps(value) for name, value in members.items()}
        self._digests = None

    def __getitem__(self, name: str) -> Any:
        text = self._members[name]
        return self.arrays[name].tolist() if text is None else loads(text)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Item):
            return self.to_bytes() == other.to_bytes()
        return isinstance(other, Mapping) and same(self.to_json(), other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = {
            name: f"<{self.arrays[name].dtype} {list(self.arrays[name].shape)}>" if text is None else loads(text)
            for name, text in self._members.items()
        }
        return f"Item({shown!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> "Item":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Item, (self.skeleton(), dict(self.arrays))

    @property
    def has_training(self) -> bool:
        """Whether the item carries training fields, empty ones included."""
        return any(self._members.get(name, b"null") != b"null" for name in TRAINING_FIELDS)

    @property
    def array_digests(self) -> Mapping[str, str]:
        """SHA-256 of the bytes of each array, C-contiguous and little-endian, as hex, by name. Computed once."""
        if self._digests is None:
            self._digests = {name: sha256_hex(array_bytes(array)) for name, array in self.arrays.items()}
        return self._digests

    def skeleton(self) -> dict[str, Any]:
        """A fresh plain copy with None where the arrays stand: for reading without building their lists."""
        return {name: None if text is None else loads(text) for name, text in self._members.items()}

    def to_json(self) -> dict[str, Any]:
        """A fresh plain copy."""
        return {name: self[name] for name in self._members}

    def to_bytes(self) -> bytes:
        """The item's JSON text, in the one spelling of `turnkeep.wire.json.dumps`."""
        return b"".join(self._chunks(self._members.items()))

    def wire_chunks(self) -> Iterator[bytes]:
        """What a request carries, in chunks: `to_bytes` less the members that are null, at every depth (4.1)."""
        return self._chunks(self._wire_members())

    def wire_chunks_without_training(self) -> Iterator[bytes]:
        """`wire_chunks` less the training fields (contract 7.8)."""
        return self._chunks((name, text) for name, text in self._wire_members() if name not in TRAINING_FIELDS)

    def wire_node(self) -> Node:
        """What `turnkeep.wire.whole` writes as `wire_chunks` joined."""
        return of_object(
            {
                name: of_array(self.arrays[name]) if text is None else of_text(text)
                for name, text in self._wire_members()
            }
        )

    def _wire_members(self) -> Iterator[tuple[str, bytes | None]]:
        for name, text in self._members.items():
            if text != b"null":
                yield name, text and without_nulls(text)

    def _chunks(self, members: Iterable[tuple[str, bytes | None]]) -> Iterator[bytes]:
        """An object's JSON text, each array's text a chunk of its own."""
        between = b"{"
        waiting = b""
        for name, text in members:
            waiting += between + dumps(name) + b":"
            between = b","
            if text is None:
                yield waiting
                yield array_text(self.arrays[name])
                waiting = b""
            else:
                waiting += text
        yield waiting + (b"{}" if between == b"{" else b"}")


class Readable(NamedTuple):
    """What a person can read of an item: its kind and the public fields of that kind (contract 1.3)."""

    kind: Kind
    text: str = ""
    id: str = ""
    name: str = ""
    arguments: str = ""


def read_item(members: Mapping[str, Any], item: int = 0) -> Readable:
    """What `members`, output item number `item`, reads as (contract 1.1, 1.3).

    Raises MalformedItem where the item lacks what its type needs. A client-executed call reads as nothing here.
    """
    kind = members.get("type")
    if not isinstance(kind, str):
        raise MalformedItem("an item needs a type", item=item, field="type")
    if kind == "message":
        return Readable("text", _join("", _message_texts(members, item)))
    if kind == "reasoning":
        text = _join("\n", _block_texts(members, "content", "reasoning_text", item))
        return Readable("reasoning", text or _join("\n", _block_texts(members, "summary", "summary_text", item)))
    if kind == "function_call":
        for field in ("call_id", "name", "arguments"):
            if not isinstance(members.get(field), str):
                raise MalformedItem(f"a function_call needs {field} as text", item=item, field=field)
        fields = (merge_surrogates(members[field]) for field in ("call_id", "name", "arguments"))
        return Readable("tool_call", "", *fields)
    return Readable("text")


def refusals(members: Mapping[str, Any]) -> list[str]:
    """The refusals in a message item, in order."""
    blocks = members.get("content") if members.get("type") == "message" else None
    return [str(block.get("refusal")) for block in blocks or () if isinstance(block, dict) and _is(block, "refusal")]


def _is(block: Mapping[str, Any], kind: str) -> bool:
    return block.get("type") == kind


def _join(between: str, texts: list[str]) -> str:
    return merge_surrogates(between.join(texts))


def _message_texts(members: Mapping[str, Any], item: int) -> list[str]:
    if not isinstance(members.get("content"), list):
        raise MalformedItem("a message needs content blocks", item=item, field="content")
    texts = []
    for index, block in _blocks(members["content"], "content", item):
        for kind, field in (("output_text", "text"), ("refusal", "refusal")):
            if _is(block, kind):
                texts.append(_block_text(block, field, "content", item, index))
    return texts


def _block_texts(members: Mapping[str, Any], field: str, kind: str, item: int) -> list[str]:
    blocks = members.get(field)
    if blocks is None:
        return []
    if not isinstance(blocks, list):
        raise MalformedItem(f"the {field} of a reasoning item is no list of blocks", item=item, field=field)
    readable = ((index, block) for index, block in _blocks(blocks, field, item) if _is(block, kind))
    return [_block_text(block, "text", field, item, index) for index, block in readable]


def _blocks(blocks: list[Any], field: str, item: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for index, block in enumerate(blocks):
        if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
            raise MalformedItem("a content block needs a type", item=item, field=field, index=index)
        yield index, block


def _block_text(block: Mapping[str, Any], name: str, field: str, item: int, index: int) -> str:
    text = block.get(name)
    if not isinstance(text, str):
        raise MalformedItem(f"a {block['type']} block needs {name} as text", item=item, field=field, index=index)
    return text
