"""wire/json.py: exact JSON."""

import json
import struct
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeep.testing import strategies
from turnkeep.wire.json import (
    DEEPEST,
    Fault,
    InexactJson,
    NotJson,
    dumps,
    find_unwritable,
    loads,
    merge_surrogates,
    render_path,
    same,
    without_nulls,
)


def exact(one: Any, other: Any) -> bool:
    """Equal by type, by bits, in order: the oracle, which shares no code with `same`."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return [*one] == [*other] and all(exact(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(exact, one, other))
    return struct.pack("<d", one) == struct.pack("<d", other) if isinstance(one, float) else bool(one == other)


@given(strategies.json_values(16))
def test_what_is_written_reads_back(value: Any) -> None:
    """`loads(dumps(value))` is `value`, bit for bit and key for key, and the standard library agrees."""
    assert exact(loads(dumps(value)), value)
    assert exact(json.loads(dumps(value)), value)


@given(strategies.json_values(16), st.booleans())
def test_any_spelling_reads_the_same(value: Any, ascii_only: bool) -> None:
    """However another program spaces and escapes a value, it reads as that value, as text and as bytes."""
    text = json.dumps(value, indent=2, ensure_ascii=ascii_only)
    assert exact(loads(text), value)
    if ascii_only:
        assert exact(loads(text.encode()), value)


@given(strategies.json_values(12))
def test_writing_has_one_spelling(value: Any) -> None:
    """What was read is written as it was written before: compact, UTF-8, no other byte."""
    text = dumps(value)
    assert dumps(loads(text)) == text
    assert text == dumps(json.loads(json.dumps(value)))


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Arbitrary bytes are a value or one of two errors, and where they are a value the standard library agrees."""
    try:
        value = loads(data)
    except (NotJson, InexactJson):
        return
    assert exact(value, json.loads(data.decode()))


@given(strategies.json_values(), strategies.json_values())
def test_same_is_exact_equality(one: Any, other: Any) -> None:
    """`same` holds exactly where type, bits and key order are equal."""
    assert same(one, one)
    assert same(one, other) == exact(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (0.0, -0.0),
        (True, 1),
        (False, 0),
        (None, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ("é", "e\u0301"),
    ],
)
def test_what_python_calls_equal_may_not_be_the_same(one: Any, other: Any) -> None:
    """Numbers of another kind or sign, truth values and another key order are not the same."""
    assert not same(one, other)


@st.composite
def _planted(draw: st.DrawFn) -> tuple[str, tuple[str | int, ...], str]:
    """JSON text with one fault in it, where that is, and a word of its reason."""
    path = draw(st.lists(st.integers(0, 3) | st.sampled_from(["a", "b.c", "[0]", ""]), max_size=6))
    spelled, word = draw(
        st.sampled_from(
            [
                ("NaN", "NaN"),
                ("Infinity", "Infinity"),
                ("-Infinity", "-Infinity"),
                ("1e999", "beyond float64"),
                ("-1" + "0" * 400 + ".0", "beyond float64"),
                ("7" * 5000, "5000 digits"),
                ('{"k":1,"x":2,"k":3}', "duplicate key 'k'"),
                ('{"\\ud83d\\ude00":1,"😀":3}', "duplicate key"),
            ]
        )
    )
    for step in reversed(path):
        if isinstance(step, int):
            spelled = "[" + '"[{\\"",' * step + spelled + "]"
        else:
            spelled = '{"first":[{}],' + json.dumps(step) + ":" + spelled + "}"
    key = ("k",) if "'k'" in word else ("😀",) if "duplicate" in word else ()
    return spelled, (*path, *key), word


@given(_planted())
def test_a_fault_is_found_wherever_it_is(planted: tuple[str, tuple[str | int, ...], str]) -> None:
    """A duplicate key, NaN, an infinity, an overflow and an endless integer are found, with path and reason."""
    text, path, word = planted
    with pytest.raises(InexactJson) as caught:
        loads(text)
    (fault,) = caught.value.faults
    assert fault.path == path
    assert word in fault.reason
    assert render_path(path) in str(caught.value)


def test_every_fault_is_told_and_the_rest_is_there() -> None:
    """All faults come with the error, in order, and the value without them: null for each, the first of each key."""
    with pytest.raises(InexactJson) as caught:
        loads('{"a":[NaN,1],"b":{"c":1,"c":2,"d":-1e999},"e":[{"f":1,"f":[Infinity]}],"a2":7}')
    assert caught.value.value == {"a": [None, 1], "b": {"c": 1, "d": None}, "e": [{"f": 1}], "a2": 7}
    assert [fault.path for fault in caught.value.faults] == [("a", 0), ("b", "c"), ("b", "d"), ("e", 0, "f")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "[1,]",
        "{'a':1}",
        "01",
        "+1",
        ".5",
        "1.",
        "0x1",
        "nul",
        "True",
        '"\n"',
        '"\\x"',
        "1 2",
        "\ufeff1",
        "//1",
        '{"a":1,}',
    ],
)
def test_what_is_no_json_is_refused(text: str) -> None:
    """RFC 8259 is the grammar: what others let pass is NotJson, as text and as bytes."""
    for data in (text, text.encode()):
        with pytest.raises(NotJson):
            loads(data)


@pytest.mark.parametrize("data", [b"\xff", b'"\xc3"', b'"\xed\xa0\x80"', '"é"'.encode("latin-1"), "1".encode("utf-16")])
def test_bytes_that_are_no_utf8_are_refused(data: bytes) -> None:
    """Bytes in another encoding are NotJson, lone surrogates written as bytes among them."""
    with pytest.raises(NotJson):
        loads(data)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
@pytest.mark.parametrize("levels", [DEEPEST + 60, 10_000, 1_000_000])
def test_deep_nesting_is_a_clear_error(opening: str, closing: str, levels: int) -> None:
    """Nesting beyond the limit is NotJson that says so, whole or broken off, and never a crash."""
    for text in (opening * levels + "1" + closing * levels, opening * levels):
        with pytest.raises(NotJson, match=str(DEEPEST)):
            loads(text, DEEPEST)
        with pytest.raises(NotJson, match="nested deeper"):
            loads(text)


def test_nesting_up_to_the_limit_reads_and_writes() -> None:
    """A value of as many levels as allowed is read and written exactly; brackets in texts are no levels."""
    text = "[" * DEEPEST + "]" * DEEPEST
    assert dumps(loads(text)) == text.encode()
    strings = json.dumps(["[{" * 2000, '"[' * 2000, "\\" * 3 + "[" * 2000])
    assert loads(strings) == json.loads(strings)


def test_text_that_breaks_off_inside_a_string_is_refused() -> None:
    """A body cut inside a long text of escaped quotes is NotJson; its depth is found in one pass, not in minutes."""
    text = "[" + "[1]," * 1000 + '"' + '\\"' * 200_000
    with pytest.raises(NotJson):
        loads(text)


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": -float("inf")}, b"", {1, 2}, object()])
def test_what_json_cannot_hold_is_not_written(value: Any) -> None:
    """Writing NaN, an infinity or another type is a ValueError."""
    with pytest.raises(ValueError, match=r"."):
        dumps(value)


_CYCLE: list[Any] = []
_CYCLE.append({"again": _CYCLE})
_TWICE: list[Any] = [1]


@pytest.mark.parametrize(
    ("value", "path", "word"),
    [
        ([1, {"a": float("nan")}], (1, "a"), "nan"),
        ({"a": [0, 1, b""]}, ("a", 2), "bytes"),
        ({"a": {1: 2}}, ("a",), "key"),
        ({"a": {None: 2}}, ("a",), "key"),
        ([{"a": 10**5000}], (0, "a"), "digit"),
        ([{"\ud83d\ude00": 1, "😀": 2}], (0,), "key"),
        (_CYCLE, (0, "again"), "itself"),
    ],
    ids=["nan", "bytes", "int key", "null key", "huge", "halves", "cycle"],
)
def test_what_cannot_be_written_is_found(value: Any, path: tuple[str | int, ...], word: str) -> None:
    """The first place that JSON cannot hold is told with path and reason."""
    fault = find_unwritable(value)
    assert isinstance(fault, Fault)
    assert fault.path[: len(path)] == path
    assert word in fault.reason


@given(strategies.json_values())
def test_what_can_be_written_has_no_fault(value: Any) -> None:
    """Every JSON value is writable, one that stands in two places too."""
    assert find_unwritable([value, value, _TWICE, _TWICE]) is None


@given(
    st.text(st.characters(exclude_categories=()), max_size=8),
    st.text(st.sampled_from("\ud83d\ude00\ud800a"), max_size=8),
)
def test_merged_surrogates_are_what_json_reads_back(one: str, other: str) -> None:
    """Merging gives what the standard library reads back from its own escapes, and merging again nothing new."""
    for text in (one, other, one + other):
        merged = merge_surrogates(text)
        assert merged == json.loads(json.dumps(text))
        assert merge_surrogates(merged) == merged
        assert loads(dumps(text)) == merged


def _oracle(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _oracle(member) for key, member in value.items() if member is not None}
    return [_oracle(element) for element in value] if isinstance(value, list) else value


_NULLISH = st.recursive(
    st.none() | st.just("null") | st.just(0),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["null", "a", ""]), inner, max_size=3),
    max_leaves=12,
)


@given(strategies.json_values(12) | _NULLISH)
def test_without_nulls_is_the_recursive_rule(value: Any) -> None:
    """Null members go at every depth, null elements and everything else stay, in the one spelling."""
    assert without_nulls(dumps(value)) == dumps(_oracle(value))


@pytest.mark.parametrize(
    ("path", "text"), [((), "the top"), (("a", 0, "b"), "a[0].b"), ((0, "a"), "[0].a"), ((0, 1), "[0][1]")]
)
def test_a_path_is_rendered(path: tuple[str | int, ...], text: str) -> None:
    """A path reads as one writes it in code."""
    assert render_path(path) == text


@pytest.mark.parametrize("text", ['"\\\ud83d"', '"\\\\\\\ud83d"'])
def test_a_backslash_escapes_no_half_of_a_pair(text: str) -> None:
    """A backslash before a raw half of a surrogate pair is no JSON, as it is before any other such character."""
    with pytest.raises(NotJson):
        loads(text)
    assert loads('"\\\\\ud83d"') == "\\\ud83d"


def test_text_too_deep_for_the_stack_is_an_error() -> None:
    """Nested text that is read where little of the stack is left is NotJson and no RecursionError."""

    def below(frames: int) -> None:
        if frames:
            return below(frames - 1)
        with pytest.raises((NotJson, InexactJson)):
            loads("[" * 480 + "NaN" + "]" * 480)
        return None

    below(sys.getrecursionlimit() - 250)
