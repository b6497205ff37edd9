"""Writing a large JSON text in one go: a tree of texts and arrays that orjson writes into one buffer.

A node is what the functions here make, a NumPy array of `of_array` among them, or a list of nodes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from turnkeep.wire.json import dumps
from turnkeep.wire.training import array_text, is_written_alike

if TYPE_CHECKING:
    from turnkeep.wire.training import Array

type Node = Any


def written(node: Node) -> bytes:
    """The JSON text of a node, in the spelling of `turnkeep.wire.json.dumps`."""
    import orjson

    return orjson.dumps(node, option=orjson.OPT_SERIALIZE_NUMPY)


def of_text(text: bytes) -> Node:
    """A JSON text, or in a list several with commas between them."""
    import orjson

    return orjson.Fragment(text)


def of_array(array: "Array") -> Node:
    """An array."""
    return array if is_written_alike(array) else of_text(array_text(array))


def of_object(members: Mapping[str, Node]) -> Node:
    """An object. Names that orjson might spell in its own way, or not at all, are not left to it."""
    if all(type(name) is str and name.isascii() and name.isprintable() for name in members):
        return members
    return of_text(b"{" + b",".join(dumps(name) + b":" + written(node) for name, node in members.items()) + b"}")
