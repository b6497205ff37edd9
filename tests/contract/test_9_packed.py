"""Contract 9: the packed form, its bodies byte for byte, and what is damaged in it."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import SCOPE

from turnkeep import Turn, capture, pack, project, to_json, unpack
from turnkeep.errors import ArchiveError, CorruptRecord, TurnkeepError, UnsupportedVersion
from turnkeep.history.capture import capture_without_native
from turnkeep.testing import strategies
from turnkeep.wire.json import dumps


def body(**training: Any) -> bytes:
    """A response with one message that carries `training`."""
    block = {"type": "output_text", "text": "Oslo", "annotations": []}
    item = {"id": "m", "type": "message", "role": "assistant", "content": [block], **training}
    return json.dumps({"id": "r", "model": "m", "status": "completed", "output": [item]}).encode()


LARGE = body(
    prompt_token_ids=list(range(70_000, 70_100)),
    generation_token_ids=list(range(64)),
    generation_log_probs=[-0.5 - number / 64 for number in range(64)],
    routed_experts=[[[number % 256, 255 - number % 256]] * 3 for number in range(64)],
)
COMPACT = json.dumps(json.loads(LARGE), separators=(",", ":")).encode()


@given(st.lists(strategies.turns(), max_size=3))
def test_packed_turns_come_back_equal(turns: list[Turn]) -> None:
    """Turns however built (captured, edited, with stale natives) survive the packed form whole (contract 9.1)."""
    again = unpack(pack(turns))
    assert [dumps(to_json(turn)) for turn in again] == [dumps(to_json(turn)) for turn in turns]
    assert [turn.digest for turn in again] == [turn.digest for turn in turns]
    assert [turn.body for turn in again] == [turn.body for turn in turns]


@pytest.mark.parametrize(
    "received",
    [
        LARGE,
        COMPACT,
        LARGE.replace(b"-0.5,", b"-5e-1,"),
        LARGE.replace(b", 70001", b",  70001"),
        LARGE.replace(b"[0, 1,", b"[\n0, 1,"),
        LARGE.replace(b"Oslo", b"\\u004fslo \\ud83d\\ude00 \xc3\xa9\\/"),
        b" \r\n" + COMPACT + b"\n",
        body(),
        body(weights=[[0.25, -0.5]] * 40, sampler_support=[[[[1]]]] * 20, nested={"prompt_token_ids": [1] * 40}),
    ],
    ids=["spaced", "compact", "exponent", "two spaces", "a line break", "escapes", "around", "none", "other arrays"],
)
def test_the_received_body_comes_back_byte_for_byte(received: bytes) -> None:
    """What the server sent is what a packed turn gives back, in whatever spelling (contract 9.1)."""
    turn = capture(received, SCOPE)
    assert turn.body == received
    again = unpack(pack([turn]))[0]
    assert again.body == received
    assert project([again], SCOPE).body() == project([turn], SCOPE).body()


@given(strategies.responses())
def test_any_captured_body_comes_back(response: dict[str, Any]) -> None:
    """Every body that can be captured is given back byte for byte (contract 9.1)."""
    received = dumps(response)
    assert unpack(pack([capture(received, SCOPE)]))[0].body == received


def test_large_arrays_are_not_written_as_text() -> None:
    """Arrays in a common spelling are kept raw in the narrowest dtype, so the packed form is the smaller (9.1)."""
    experts = [[[(token * 7 + layer) % 256] * 8 for layer in range(16)] for token in range(64)]
    received = body(prompt_token_ids=[1], generation_token_ids=[2], generation_log_probs=[-1.0], routed_experts=experts)
    assert len(pack([capture(received, SCOPE)])) < 64 * 16 * 8 + 1000


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_turns_do_not_change_with_what_they_were_read_from(kind: Any) -> None:
    """Arrays of unpacked turns are read-only, lie aligned and are their own where the packed form can be written to."""
    data = kind(pack([capture(COMPACT), capture(LARGE)]))
    turns = unpack(data)
    arrays = [array for turn in turns for part in turn.parts if part.native for array in part.native.arrays.values()]
    assert all(array.flags.aligned and not array.flags.writeable for array in arrays)
    if isinstance(data, bytearray):
        data[:] = bytes(len(data))
    assert [turn.body for turn in turns] == [COMPACT, LARGE]
    assert [turn.body for turn in unpack(pack(turns))] == [COMPACT, LARGE]


@pytest.mark.parametrize("count", [0, 1, 15, 16, 70_000])
def test_packed_turns_are_framed_as_messagepack_writes_them(count: int) -> None:
    """Whatever the number of turns, the bytes are those of a MessagePack library for the same (docs/format.md)."""
    packed = pack([capture(b'{"output":[]}')] * count)
    assert packed[38:] == msgspec.msgpack.encode(msgspec.msgpack.decode(packed[38:]))


@pytest.mark.parametrize("size", [2, 255, 256, 65_535, 65_536])
def test_packed_arrays_are_framed_as_messagepack_writes_them(size: int) -> None:
    """Whatever the bytes of an array, it is framed as a MessagePack library does it (docs/format.md)."""
    packed = pack([capture(body(routed_experts=None, sampler_support=[7] * size))])
    assert packed[38:] == msgspec.msgpack.encode(msgspec.msgpack.decode(packed[38:]))
    assert len(packed) < size + 1000


def test_an_edited_turn_has_no_body() -> None:
    """A turn that was changed is no longer what was received (contract 1.7, 7.11)."""
    edited = capture(LARGE, SCOPE).edit(0, text="Bergen")
    assert edited.body is None
    assert unpack(pack([edited]))[0] == edited


def test_a_turn_kept_by_its_text_alone_stays_so() -> None:
    """A turn that was kept without native items, for malformed training fields, gets none when packed (7.9, 9.1)."""
    turn = capture_without_native(LARGE.replace(b"-0.5,", b"NaN,", 1), SCOPE)
    assert turn.body is None
    again = unpack(pack([turn]))[0]
    assert again == turn
    assert [part.native for part in again.parts] == [None]


def test_a_flipped_bit_is_found_anywhere() -> None:
    """Whatever bit of a packed turn is flipped, reading it is an error of turnkeep (contract 9.3)."""
    packed = pack([capture(LARGE, SCOPE), capture(COMPACT, SCOPE).edit(0, text="x")])
    for at in range(0, len(packed), 7):
        for bit in (0, 5):
            flipped = bytearray(packed)
            flipped[at] ^= 1 << bit
            with pytest.raises(TurnkeepError):
                unpack(bytes(flipped))


def test_a_damaged_array_is_named() -> None:
    """A bit flipped in an array's bytes names the turn and the field (contract 9.3)."""
    turn = capture(LARGE, SCOPE)
    native = turn.parts[0].native
    assert native is not None
    packed = pack([capture(COMPACT, SCOPE), turn])
    raw = native.arrays["routed_experts"].tobytes()
    at = packed.rindex(raw)
    with pytest.raises(CorruptRecord) as caught:
        unpack(packed[: at + 9] + bytes([packed[at + 9] ^ 16]) + packed[at + 10 :])
    assert (caught.value.turn, caught.value.field) == (1, "routed_experts")


def test_a_newer_packed_form_is_refused_by_number() -> None:
    """A packed form of a version that is not known says its number (contract 9.4)."""
    packed = pack([capture(LARGE, SCOPE)])
    with pytest.raises(UnsupportedVersion, match="version 2"):
        unpack(packed[:4] + b"\x02\x00" + packed[6:])


@pytest.mark.parametrize("data", [b"", b"tkp", b"{}" * 40, b"tkpk" + b"\0" * 20])
def test_other_bytes_are_no_packed_form(data: bytes) -> None:
    """Bytes that are no packed form are an ArchiveError (contract 9.4)."""
    with pytest.raises(ArchiveError):
        unpack(data)
