"""What an assistant message is made of, and how it is written in tokens.

The template: reasoning stands between `<|think|>` and `<|/think|>`, text stands bare, a call is `<|call|>`, its name,
`<|arguments|>` and the argument string; what a server sends beyond that (ids, hosted items) is not written.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, NamedTuple

from turnkeep.serve import tokens

type Encoder = Callable[[str], list[int]]
type Kind = Literal["summary", "reasoning", "text", "refusal", "call", "item"]


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of an assistant message.

    `fields` are the blocks of reasoning (as `summary` or as content, joined by newlines when written), of a text or of
    a refusal, or the name and the argument string of a call; an `item` (any other output item) has none. `extra` are
    further members of the output item.
    """

    kind: Kind
    fields: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


class Fragment(NamedTuple):
    """Tokens and where they come from: a field of a part, or -1 for a mark of the template."""

    part: int
    field: int
    ids: list[int]


def write_parts(parts: Iterable[Part], encode: Encoder) -> list[Fragment]:
    """Write parts in tokens, each field by `encode`, without the header and the end token."""
    return list(chain.from_iterable(_write_part(index, part, encode) for index, part in enumerate(parts)))


def _write_part(index: int, part: Part, encode: Encoder) -> list[Fragment]:
    texts = [Fragment(index, number, encode(text)) for number, text in enumerate(part.fields)]
    match part.kind:
        case "summary" | "reasoning":
            newline = Fragment(index, -1, encode("\n"))
            joined = [fragment for text in texts for fragment in (newline, text)][1:]
            return [Fragment(index, -1, [tokens.THINK]), *joined, Fragment(index, -1, [tokens.END_THINK])]
        case "call":
            name, arguments = texts
            return [Fragment(index, -1, [tokens.CALL]), name, Fragment(index, -1, [tokens.ARGUMENTS]), arguments]
        case _:
            return texts


def join_ids(fragments: Iterable[Fragment]) -> list[int]:
    """Give the token ids of fragments, in order."""
    return list(chain.from_iterable(fragment.ids for fragment in fragments))


def cut_parts(parts: Sequence[Part], fragments: Iterable[Fragment], limit: int) -> list[Part]:
    """Give the parts that the first `limit` tokens spell; the last may be cut short.

    A call whose arguments had not begun is gone, and so is a character whose bytes were not all written. Items, which
    have no tokens, stay where what follows stays.
    """
    found: dict[int, list[str]] = {}
    for fragment in fragments:
        if limit < 0 or (limit == 0 and fragment.ids):
            break
        if fragment.field >= 0:
            whole = len(fragment.ids) <= limit
            text = parts[fragment.part].fields[fragment.field] if whole else _read_cut(fragment.ids[:limit])
            found.setdefault(fragment.part, []).append(text)
        limit -= len(fragment.ids)
    kept = []
    for index, part in enumerate(parts[: max(found, default=-1) + 1]):
        fields = tuple(found.get(index, ()))
        if part.kind == "item" or len(fields) >= (2 if part.kind == "call" else 1):
            kept.append(Part(part.kind, fields, part.extra))
    return kept


def _read_cut(ids: Sequence[int]) -> str:
    """Read the text of ids whose last character may lack bytes; that character is dropped."""
    data = tokens.decode(ids)
    for end in range(len(data), max(len(data) - 4, 0), -1):
        try:
            return data[:end].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            continue
    return ""
