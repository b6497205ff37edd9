"""Contract section 9: the JSON form (9.1), format versions (9.4), NOOA's compact archives (9.5)."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from samples import SCOPE, TRAINING, body, call, exactly, message, no_nulls, reasoning, refusal, summary

from turnkeep import (
    ArchiveError,
    ConfigurationError,
    CorruptRecord,
    MalformedItem,
    Turn,
    TurnkeepError,
    UnsupportedVersion,
    capture,
    dumps_turn,
    from_json,
    loads_turn,
    project,
    to_json,
)
from turnkeep.archive.arrays import attach, detach, read_turn_document
from turnkeep.archive.nooa_form import from_nooa
from turnkeep.rollout.evidence import CallRecord, RequestRecord, read_call, write_call
from turnkeep.rollout.state import State, read_state, write_state
from turnkeep.testing import strategies

_PART = {"kind": "text", "text": "x", "native": None}


@given(strategies.turns())
def test_a_turn_survives_its_json_form(turn: Turn) -> None:
    """A turn comes back equal from its JSON form, as values and as text, and so do digest and replay (9.1)."""
    for restored in (from_json(to_json(turn)), loads_turn(dumps_turn(turn)), loads_turn(dumps_turn(turn).encode())):
        assert restored == turn
        assert restored.digest == turn.digest
        assert exactly(to_json(restored), to_json(turn))
        assert project([restored], SCOPE).input_text() == project([turn], SCOPE).input_text()


@given(strategies.turns())
def test_other_programs_can_carry_the_json_form(turn: Turn) -> None:
    """The JSON form survives being read and written by the standard library in any spacing (contract 9.1)."""
    for text in (json.dumps(to_json(turn), indent=1), json.dumps(json.loads(dumps_turn(turn)))):
        assert loads_turn(text) == turn


@given(strategies.turns())
def test_a_turn_survives_having_its_arrays_apart(turn: Turn) -> None:
    """A turn comes back equal from its document and blobs, and from any sequence with the JSON form (9.1)."""
    for _ in range(2):
        document, blobs = detach(turn)
        restored = attach(read_turn_document(document), blobs.get)
        assert restored == turn
        assert restored.digest == turn.digest
        assert detach(restored) == (document, blobs)
        turn = loads_turn(dumps_turn(restored))


@given(strategies.json_objects(("parts", "replay_scope", "finish_reason")))
def test_other_members_are_kept_as_they_are(members: dict[str, Any]) -> None:
    """Members that nobody here knows stay in an archive, exactly and in order (contract 9.1)."""
    form = {"parts": [_PART], "replay_scope": SCOPE, "finish_reason": "stop", **members}
    assert exactly(to_json(from_json(form)), form)


def test_reading_an_archive_shares_nothing_with_it() -> None:
    """Changing a dictionary after it was read, or one that was written, changes no turn (contract 9.1)."""
    form = to_json(capture(body(message("x", **TRAINING)), SCOPE))
    kept = copy.deepcopy(form)
    turn = from_json(form)
    form["parts"][0]["native"]["prompt_token_ids"][0] = 99
    form["parts"].clear()
    form["usage"]["input_tokens"] = 99
    to_json(turn)["parts"][0]["native"]["content"].clear()
    assert exactly(to_json(turn), kept)


@pytest.mark.parametrize(
    ("form", "item", "field"),
    [
        (None, None, "parts"),
        ([], None, "parts"),
        ({}, None, "parts"),
        ({"parts": {}}, None, "parts"),
        ({"parts": [_PART, None]}, 1, "kind"),
        ({"parts": [_PART, {"text": "x"}]}, 1, "kind"),
        ({"parts": [_PART, {"kind": "image", "text": "x"}]}, 1, "kind"),
        ({"parts": [_PART, {"kind": ["text"], "text": "x"}]}, 1, "kind"),
        ({"parts": [_PART, {"kind": "text"}]}, 1, "text"),
        ({"parts": [_PART, {"kind": "text", "text": None}]}, 1, "text"),
        ({"parts": [_PART, {"kind": "tool_call", "id": "c", "name": "f", "arguments": {}}]}, 1, "arguments"),
        ({"parts": [_PART, {"kind": "text", "text": "x", "native": []}]}, 1, "native"),
        ({"parts": [_PART, {"kind": "text", "text": "x", "more": 1}]}, 1, "more"),
        ({"parts": [_PART], "replay_scope": 5}, None, "replay_scope"),
        ({"parts": [_PART], "finish_reason": None}, None, "finish_reason"),
    ],
)
def test_what_is_no_turn_is_named(form: Any, item: int | None, field: str) -> None:
    """An archive that is no turn is an ArchiveError that names part and field, as values and as text (9.1)."""
    with pytest.raises(ArchiveError) as of_values:
        from_json(form)
    with pytest.raises(ArchiveError) as of_text:
        loads_turn(json.dumps(form))
    for error in (of_values.value, of_text.value):
        assert (error.item, error.field) == (item, field)


@pytest.mark.parametrize("text", ["", "{", '{"parts":[],"a":1,"a":2}', '{"parts":[],"a":NaN}', b'{"parts":["\xff"]}'])
def test_an_archive_that_cannot_be_read_exactly_is_refused(text: str | bytes) -> None:
    """Text that is no JSON, or JSON that cannot be kept exactly, is an ArchiveError (contract 9.1)."""
    with pytest.raises(ArchiveError):
        loads_turn(text)


@pytest.mark.parametrize(
    "value",
    [float("inf"), 10**5000, {1: 2}, b"x", {"\ud83d\ude00": 1, "😀": 2}],
    ids=["inf", "huge", "key", "bytes", "halves"],
)
def test_a_dictionary_that_json_cannot_hold_is_refused(value: Any) -> None:
    """A dictionary with a value that JSON cannot hold exactly is an ArchiveError, wherever the value is (9.1)."""
    for form in ({"parts": [], "x": value}, {"parts": [{**_PART, "native": {"type": "x", "d": value}}]}):
        with pytest.raises(ArchiveError):
            from_json(form)


def test_an_archive_in_the_seeds_shape_opens() -> None:
    """A JSON archive of complete wire items, with the least there can be beside them, opens and replays (9.4)."""
    items = [reasoning("hm"), message("Checking ", "Oslo.", **TRAINING), call("c1", "f", "{ }")]
    parts = [
        {"kind": "reasoning", "text": "hm", "native": items[0]},
        {"kind": "text", "text": "Checking Oslo.", "native": items[1]},
        {"kind": "tool_call", "id": "c1", "name": "f", "arguments": "{ }", "native": items[2]},
    ]
    turn = from_json({"parts": parts, "replay_scope": SCOPE})
    assert turn.finish_reason == "tool_calls"
    assert (turn.usage, turn.model_name, turn.response_id) == (None, None, None)
    assert exactly(project([turn], SCOPE).input, items)
    assert exactly(to_json(turn)["parts"], parts)


_CALL = write_call(CallRecord(0, RequestRecord((), "a", "b", 0)))


@pytest.mark.parametrize("version", [3, 99, "2", None, 0, 1.5])
@pytest.mark.parametrize(
    ("document", "read"),
    [
        (detach(from_json({"parts": []})).document, read_turn_document),
        (write_state(State()), read_state),
        (_CALL, read_call),
    ],
    ids=["turn", "state", "call"],
)
def test_another_version_is_refused_by_number(document: bytes, read: Any, version: Any) -> None:
    """A document of a version that is not known is an UnsupportedVersion that says the number (contract 9.4)."""
    read(document)
    newer = json.dumps({**json.loads(document), "version": version}).encode()
    with pytest.raises(UnsupportedVersion, match=str(version)):
        read(newer)


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b"null", b"{}", b'{"format":"other","version":1}', b"\xff"])
@pytest.mark.parametrize("read", [read_turn_document, read_state, read_call])
def test_what_is_no_document_is_refused(document: bytes, read: Any) -> None:
    """Bytes that are no document of the kind are an ArchiveError and nothing else (contract 9.4)."""
    with pytest.raises(ArchiveError):
        read(document)


def _read_turn(document: bytes) -> Turn:
    return attach(read_turn_document(document), _DETACHED.blobs.get)


_DETACHED = detach(capture(body(message("x", **TRAINING)), SCOPE))
_NEEDED = {
    "turn": (_DETACHED.document, _read_turn, ("turn", "digest", "arrays")),
    "state": (write_state(State()), read_state, ("gaps", "cookies")),
    "call": (_CALL, read_call, ("request", "attempts")),
}


@pytest.mark.parametrize("kind", _NEEDED)
def test_a_document_that_lacks_a_member_is_refused(kind: str) -> None:
    """A document of a known version whose members are missing or odd is an ArchiveError, and never a crash (9.4)."""
    document, read, needed = _NEEDED[kind]
    members = json.loads(document)
    for name in needed:
        for changed in ({n: v for n, v in members.items() if n != name}, {**members, name: 5}, {**members, name: [5]}):
            with pytest.raises((ArchiveError, CorruptRecord)):
                read(json.dumps(changed).encode())


@pytest.mark.parametrize("change", [{"shape": [2, 2]}, {"dtype": "nope"}, {"dtype": "object"}, {"dtype": "uint64"}])
def test_an_array_that_does_not_fit_its_bytes_is_named(change: dict[str, Any]) -> None:
    """An array whose dtype or shape is not that of its bytes is CorruptRecord with part and field (9.3, 9.4)."""
    detached = detach(capture(body(message("x"), message("y", **TRAINING)), SCOPE))
    members = json.loads(detached.document)
    members["arrays"][0].update(change)
    with pytest.raises(CorruptRecord) as caught:
        attach(read_turn_document(json.dumps(members).encode()), detached.blobs.get)
    assert (caught.value.item, caught.value.field) == (1, "prompt_token_ids")


def _part(text: str, item: dict[str, Any], kind: str = "text") -> dict[str, Any]:
    return {"kind": kind, "text": text, "native": item}


def _compact(*parts: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"parts": list(parts), "replay_scope": "openai:openai:sha256:6b1d", "finish_reason": "stop", **members}


def _moved_out(blocks: list[dict[str, Any]], field: str) -> list[dict[str, Any]]:
    return [
        {name: member for name, member in block.items() if name != field} | {"_text_length": len(block[field])}
        for block in blocks
    ]


def compact_item(item: dict[str, Any]) -> dict[str, Any]:
    """The item as NOOA writes it: text moved out, lengths in code points left behind."""
    if item["type"] == "function_call":
        return {name: member for name, member in item.items() if name not in ("call_id", "name", "arguments")}
    field = "summary" if item["type"] == "reasoning" else "content"
    if field not in item:
        return item
    return {
        **item,
        field: _moved_out(item[field], "refusal" if item[field][:1] and "refusal" in item[field][0] else "text"),
    }


@pytest.mark.parametrize("revision", ["0514723", "19caab1"])
@pytest.mark.parametrize(
    ("item", "part"),
    [
        (message("Oslo ", "is 😀", ""), _part("Oslo is 😀", {})),
        (message("a\ud800", "b"), _part("a\ud800b", {})),
        (refusal("no"), _part("no", {})),
        (summary("a", "b\nc", encrypted_content="gA=="), _part("a\nb\nc", {}, "reasoning")),
        ({"type": "web_search_call", "id": "w"}, _part("", {})),
    ],
)
def test_compact_items_come_back_complete(revision: str, item: dict[str, Any], part: Any) -> None:
    """Text comes back into its blocks by their lengths in code points, under the operator's scope (9.5)."""
    compact = item if item["type"] == "web_search_call" else compact_item(item)
    turn = from_nooa(_compact({**part, "native": compact}, usage={"a": 1}), SCOPE, revision)
    assert turn.scope == SCOPE
    assert turn.usage == {"a": 1}
    assert turn.parts[0].native == _text_last(item)
    assert exactly(project([turn], SCOPE).input, [no_nulls(_text_last(item))])


def _text_last(item: dict[str, Any]) -> dict[str, Any]:
    """The item with each block's text as its last member: where an import puts it."""
    expected = dict(item)
    for field in ("content", "summary"):
        if field in item:
            expected[field] = [
                {n: v for n, v in block.items() if n not in ("text", "refusal")}
                | {n: v for n, v in block.items() if n in ("text", "refusal")}
                for block in item[field]
            ]
    return expected


def test_what_was_moved_out_of_a_call_comes_last() -> None:
    """`call_id`, `name` and `arguments` come back as a call's last members, in that order (contract 9.5)."""
    part = {
        "kind": "tool_call",
        "id": "c",
        "name": "f",
        "arguments": "{ }",
        "native": {"type": "function_call", "id": "x"},
    }
    native = from_nooa(_compact(part), SCOPE).parts[0].native
    assert native is not None
    members = {"type": "function_call", "id": "x", "call_id": "c", "name": "f", "arguments": "{ }"}
    assert exactly(native.to_json(), members)


@pytest.mark.parametrize(
    ("revision", "item", "native"),
    [
        ("0514723", summary("a"), False),
        ("19caab1", summary("a"), True),
        ("0514723", summary("a", encrypted_content=""), False),
        ("0514723", summary("a", encrypted_content="gA=="), True),
        ("19caab1", summary(), False),
        ("19caab1", summary(""), False),
        ("0514723", summary(encrypted_content="gA=="), True),
    ],
)
def test_summary_only_reasoning_by_revision(revision: str, item: dict[str, Any], native: bool) -> None:
    """A summary without encrypted content is portable under 0514723, else native where it says anything (9.5)."""
    text = "\n".join(block["text"] for block in item["summary"])
    other = _part("x", compact_item(message("x")))
    turn = from_nooa(_compact(_part(text, compact_item(item), "reasoning"), other), SCOPE, revision)
    assert turn.scope == (SCOPE if native else None)
    assert [part.native is not None for part in turn.parts] == [native, native]
    assert [getattr(part, "text", None) for part in turn.parts] == [text, "x"]


@pytest.mark.parametrize(
    ("lengths", "index"),
    [
        ([3], None),
        ([5], 0),
        ([2, 3], 1),
        ([-1, 5], 0),
        ([True, 3], 0),
        ([4.0], 0),
        ([None], 0),
        (["4"], 0),
        ([2**70], 0),
    ],
)
@pytest.mark.parametrize("field", ["content", "summary"])
def test_wrong_lengths_are_malformed(lengths: list[Any], index: int | None, field: str) -> None:
    """Block lengths that do not fit the text are a MalformedItem with its place (contract 9.5)."""
    kind, block = ("message", "output_text") if field == "content" else ("reasoning", "summary_text")
    item = {"type": kind, field: [{"type": block, "_text_length": length} for length in lengths]}
    part = _part("abcd", item, "text" if field == "content" else "reasoning")
    with pytest.raises(MalformedItem) as caught:
        from_nooa(_compact(_part("x", {"type": "x"}), part), SCOPE)
    assert caught.value.place["item"] == 1
    assert caught.value.place["field"] == field
    if field == "content":
        assert caught.value.place["index"] == index


def test_lengths_count_code_points_not_bytes() -> None:
    """An emoji and a letter with an accent are one code point each (contract 9.5)."""
    item = {"type": "message", "content": [{"type": "output_text", "_text_length": n} for n in (1, 2)]}
    native = from_nooa(_compact(_part("😀éx", item)), SCOPE).parts[0].native
    assert native is not None
    assert [block["text"] for block in native["content"]] == ["😀", "éx"]


def test_public_text_is_set_by_the_items() -> None:
    """The public text of an import is what the complete item reads as: content before summary (contract 9.5)."""
    item = {**compact_item(summary("short", encrypted_content="x")), **reasoning("long")}
    part = from_nooa(_compact(_part("short", item, "reasoning")), SCOPE).parts[0]
    assert getattr(part, "text", None) == "long"
    assert part.native == {**_text_last(summary("short", encrypted_content="x")), **reasoning("long")}


@pytest.mark.parametrize("part", [_part("x", {"type": "shell_call"}), {"kind": "text", "text": "x"}, _PART])
def test_a_portable_verdict_nulls_every_native_and_the_scope(part: dict[str, Any]) -> None:
    """One part that may not replay natively takes every native and the scope with it (contract 9.5)."""
    turn = from_nooa(_compact(_part("y", compact_item(message("y"))), part), SCOPE)
    assert turn.scope is None
    assert [made.native for made in turn.parts] == [None, None]


def test_an_import_without_scope_in_the_archive_is_portable() -> None:
    """An archive that was portable for NOOA stays portable, whatever scope the operator states (contract 9.5)."""
    turn = from_nooa({**_compact(_part("y", compact_item(message("y")))), "replay_scope": None}, SCOPE)
    assert (turn.scope, turn.parts[0].native) == (None, None)


@pytest.mark.parametrize(
    ("form", "scope", "revision"),
    [
        (None, SCOPE, "19caab1"),
        ({"parts": 5}, SCOPE, "19caab1"),
        ({"parts": [5]}, SCOPE, "19caab1"),
        (_compact(_part("x", {"type": []})), SCOPE, "19caab1"),
        (_compact(_part("x", {"type": {}})), SCOPE, "19caab1"),
        (_compact({"kind": "text", "native": {"type": "message", "content": [{"_text_length": 1}]}}), SCOPE, "19caab1"),
        (_compact({"kind": "tool_call", "native": {"type": "function_call"}}), SCOPE, "19caab1"),
        (_compact(_part("x", message("x"))), None, "19caab1"),
        (_compact(_part("x", message("x"))), 5, "19caab1"),
        (_compact(_part("x", message("x"))), SCOPE, "deadbee"),
        (_compact(_part("x", message("x"))), SCOPE, []),
    ],
)
def test_what_cannot_be_imported_is_refused(form: Any, scope: Any, revision: Any) -> None:
    """An import that cannot work is an error of turnkeep, never a crash and never a turn of scope 'None' (9.5)."""
    with pytest.raises(TurnkeepError) as caught:
        from_nooa(form, scope, revision)
    assert isinstance(caught.value, (ArchiveError, MalformedItem, ConfigurationError))
