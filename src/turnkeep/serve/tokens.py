"""The embedded policy's tokenizer: 256 bytes, some special tokens, and common pieces of English, JSON and Python.

One text has many segmentations. `encode` gives the canonical one (longest piece first), as a chat template does;
`segment` gives a seeded other one, as a policy that samples does. Both decode to the same bytes, so reading a
history back as text and encoding it again loses the ids that were really sampled: the reason why ids are kept.

Text becomes bytes by UTF-8 with `surrogatepass`, so lone surrogates survive. Special tokens never come out of text: a
text that spells `<eos>` is five bytes. Ids 0 to 255 are the bytes, then come the special tokens, then the pieces.
"""

from collections.abc import Iterable

import numpy as np

SPECIAL = (
    "<pad>", "<bos>", "<eos>", "<|system|>", "<|tools|>", "<|user|>", "<|assistant|>", "<|tool|>",
    "<|think|>", "<|/think|>", "<|call|>", "<|arguments|>",
)  # fmt: skip
"""The special tokens; the first has id 256."""

PAD, BOS, EOS, SYSTEM, TOOLS, USER, ASSISTANT, TOOL, THINK, END_THINK, CALL, ARGUMENTS = range(256, 256 + len(SPECIAL))

_WORDS = """
the and of to in is it you that for on are as with be this have from or one by not but what all were we when your can
said there use an each which she do how their if will up other about out many then them these so some her would make
like him into time has look two more write go see number no way could people my than first been call who its now find
long down day did get come made may part answer question tool result value step final check need let think because
therefore function return error file line list data text name number user
"""
_INSIDE = """
ing ion tion ed er es re en at al an th he in or ou st nd ent ar le ll ve ly ess ment able ity ght ough ck sh ch qu un
pre con pro com per dis
"""
_CODE = """
return import from def class self None True False print( for if else elif not and in is with as try: except: lambda
async await yield assert pass raise range(len( str( int( dict list .append( .join( .get( == != >= <= += -> => :: //
( ) [ ] { } () [] {} (" ") (' ') ", '' "" : = + - * / , . ; == __init__ __name__ """
_JSON = """
{" "} ": ":" "," ", [{" }] }} {{ true false null "name" "type" "value" "text" "id" "arguments" "code" "query" "answer"
"result" "status" "content" \\n \\" \\u
"""
_SPACES = ("\n", "\n\n", "  ", "    ", "        ", "\n    ", "\n        ", ", ", ". ", ": ", "? ", "! ", ".\n", ":\n")


def _make_pieces() -> tuple[bytes, ...]:
    """List the pieces, each once and of two bytes or more, in a fixed order."""
    words = _WORDS.split()
    texts = [*_SPACES, *words, *(f" {word}" for word in words), *_INSIDE.split(), *_CODE.split(), *_JSON.split()]
    return tuple(dict.fromkeys(text.encode() for text in texts if len(text) > 1))


PIECES = _make_pieces()
"""The multi-byte pieces; the first has id `256 + len(SPECIAL)`."""

TOKENS: tuple[bytes, ...] = (*(bytes([value]) for value in range(256)), *(name.encode() for name in SPECIAL), *PIECES)
"""The bytes of every token, by id; a special token's are its name."""

VOCABULARY_SIZE = len(TOKENS)


def _index_pieces() -> list[tuple[tuple[bytes, int], ...]]:
    """Index the ways to go on, by first byte: (bytes, id), longest first, the single byte last."""
    found: list[list[tuple[bytes, int]]] = [[] for _ in range(256)]
    for number, piece in enumerate(PIECES, 256 + len(SPECIAL)):
        found[piece[0]].append((piece, number))
    for value, entries in enumerate(found):
        entries.sort(key=lambda entry: -len(entry[0]))
        entries.append((bytes([value]), value))
    return [tuple(entries) for entries in found]


_BY_FIRST_BYTE = _index_pieces()


def to_bytes(text: str) -> bytes:
    """Write text as the bytes the tokenizer sees."""
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    """Read text back: the inverse of `to_bytes`, and the replacement character for what is no text."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def encode(text: str) -> list[int]:
    """Give the canonical token ids of a text: at each place the longest piece."""
    data, position, ids = to_bytes(text), 0, []
    while position < len(data):
        for piece, number in _BY_FIRST_BYTE[data[position]]:
            if data.startswith(piece, position):
                ids.append(number)
                position += len(piece)
                break
    return ids


def segment(text: str, rng: np.random.Generator, keep: float = 0.6) -> list[int]:
    """Give token ids of a text as a sampling policy might emit them: seeded, and usually not the canonical ones.

    At each place the longest piece is taken with probability `keep`, else any that fits, a single byte included.
    A text in which no piece occurs has one segmentation only.
    """
    data, position, ids = to_bytes(text), 0, []
    while position < len(data):
        fits = [entry for entry in _BY_FIRST_BYTE[data[position]] if data.startswith(entry[0], position)]
        choice = 0 if len(fits) == 1 or rng.random() < keep else int(rng.integers(len(fits)))
        piece, number = fits[choice]
        ids.append(number)
        position += len(piece)
    return ids


def decode(ids: Iterable[int]) -> bytes:
    """Give the bytes of token ids: exact for every segmentation; special tokens are spelled by their names."""
    return b"".join(TOKENS[number] for number in ids)
