"""The archive of a turn in an event's metadata: the whole turn as one text that JSON readers pass over. Pure.

What is written is the packed form of one turn in base64 (`dGtwaw...`), without the received body, which is evidence.
The first archives were the JSON form (`{"parts": ...}`); they are read for ever. The first character tells them apart.
"""

import base64
import binascii
from dataclasses import replace

from turnkeep.archive.json_form import loads_turn
from turnkeep.archive.packed import pack, unpack
from turnkeep.errors import ArchiveError
from turnkeep.history.turn import Turn


def write_archive(turn: Turn) -> str:
    """The turn as one text, pure ASCII; equal turns are equal texts, and `read_archive` gives an equal turn."""
    without_body = replace(turn)
    return base64.b64encode(pack([without_body])).decode()


def read_archive(text: str) -> Turn:
    """The turn of an archive in either form. Raises ArchiveError, CorruptRecord, UnsupportedVersion."""
    if not isinstance(text, str):
        raise ArchiveError(f"an archive is text, not {type(text).__name__}")
    if text.startswith("{"):
        return loads_turn(text)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ArchiveError(f"the archive is neither a packed turn nor a JSON form: {error}") from None
    turns = unpack(data)
    if len(turns) != 1:
        raise ArchiveError(f"an archive holds one turn, not {len(turns)}")
    return turns[0]
