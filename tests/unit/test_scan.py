"""The one-scan reader gives what the exact reader gives: the same values, or the same error."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeep.errors import TurnkeepError
from turnkeep.history.capture import capture
from turnkeep.wire import scan
from turnkeep.wire.digits import parse_integers
from turnkeep.wire.json import DEEPEST, InexactJson, NotJson, dumps, loads
from turnkeep.wire.scan import scan_body
from turnkeep.wire.training import to_array


@pytest.fixture(params=[0, scan._SHORT], ids=["digits", "lists"], scope="module", autouse=True)
def _shortest_for_digits(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every property holds whichever of the two readers of integers is asked for arrays as small as these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_SHORT", request.param)
        yield


NUMBERS = st.one_of(
    st.integers(0, 300),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([-0.0, 5e-324, 1e-05, 1e16, 2**63, 2**64, 2**64 - 1, -1, True, None, 1e308]),
)


def rectangles(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Full rectangles of rank 1 to 3, of one kind of leaf."""

    def build(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
        return leaf if not shape else st.lists(build(shape[1:]), min_size=shape[0], max_size=shape[0])

    return st.lists(st.integers(1, 5), min_size=1, max_size=3).flatmap(lambda shape: build(tuple(shape)))


ARRAYS = st.one_of(
    rectangles(st.integers(0, 255)),
    rectangles(st.integers(0, 2**65)),
    rectangles(st.floats(allow_nan=False, allow_infinity=False)),
    rectangles(NUMBERS),
    st.recursive(NUMBERS, lambda inner: st.lists(inner, max_size=4), max_leaves=12),
)
NAMES = st.sampled_from(
    [
        "prompt_token_ids",
        "generation_token_ids",
        "generation_log_probs",
        "routed_experts",
        "w",
        "content",
        "output",
        "é",
    ]
)
VALUES = st.recursive(
    st.one_of(ARRAYS, st.text(max_size=8), st.just('"w":[1,2,3]'), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=8,
)
ITEMS = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "reasoning", "x"]), "content": st.just([])},
    optional={
        "prompt_token_ids": ARRAYS,
        "generation_token_ids": ARRAYS,
        "generation_log_probs": ARRAYS,
        "routed_experts": ARRAYS,
        "extra": VALUES,
    },
)
SPELLINGS = st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :"), (",\n", ":\t")])


@st.composite
def texts(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> bytes:
    """JSON text in some spelling, now and then with a byte too many, too few or another."""
    text = json.dumps(draw(values), ensure_ascii=draw(st.booleans()), separators=draw(SPELLINGS)).encode()
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at = draw(st.integers(0, max(0, len(text) - 1)))
        put = draw(
            st.sampled_from([b"", b"0", b"1", b",", b"[", b"]", b"-", b" ", b'"', b"}", b"e5", b".5", b"1e999", b"NaN"])
        )
        text = text[:at] + put + text[at + draw(st.integers(0, 1)) :]
    return text


def outcome(read: Any, text: bytes) -> Any:
    """What a reader gives, as text; or its error, as class and words."""
    try:
        return dumps(read(text))
    except (NotJson, InexactJson) as error:
        return type(error), str(error)


@given(texts(VALUES))
def test_any_text_reads_as_by_the_exact_reader(text: bytes) -> None:
    """Values, keys and errors are those of the exact reader, whatever stands in the text (contract 1.6)."""
    assert outcome(lambda data: scan_body(data).value, text) == outcome(lambda data: loads(data, DEEPEST), text)


@given(texts(st.fixed_dictionaries({"id": st.just("r"), "output": st.lists(ITEMS, max_size=3)})))
def test_a_body_is_captured_as_its_text_is(body: bytes) -> None:
    """Capture from bytes, which cuts arrays out, gives the turn or error of capture from text (contract 1.5, 1.6)."""

    def captured(given_body: bytes | str) -> Any:
        try:
            return capture(given_body).digest
        except TurnkeepError as error:
            return error.to_json()

    try:
        text = body.decode()
    except UnicodeDecodeError:
        return
    assert captured(body) == captured(text)


@given(texts(ARRAYS))
def test_integers_are_read_only_where_they_are_json(text: bytes) -> None:
    """The digit reader gives exactly the array of the exact reader's list, or nothing."""
    array = parse_integers(text)
    if array is None:
        return
    exact = to_array(loads(text))
    assert exact is not None
    assert (array.dtype, array.shape, array.tobytes()) == (exact.dtype, exact.shape, exact.tobytes())


@given(rectangles(st.integers(0, 999)), st.sampled_from([(",", ":"), (", ", ": ")]))
def test_both_common_spellings_are_read_fast(value: Any, spelling: tuple[str, str]) -> None:
    """Compact arrays and those with a space after each comma need no Python integer for each number."""
    array = parse_integers(json.dumps(value, separators=spelling).encode())
    assert array is not None
    assert array.tolist() == value


@pytest.mark.parametrize("word", ["Infinity", "-Infinity and NaN"])
def test_words_in_strings_hinder_no_cut(word: str) -> None:
    """The word that stands for an array while the rest is read may stand in strings as often as it likes."""
    body = json.dumps({"a": word, "ids": list(range(100)), "b": [word, list(range(100, 200))], word: 1}).encode()
    found = scan_body(body)
    assert len(found.cuts) == 1
    assert {**found.value, "ids": found.value["ids"].tolist()} == json.loads(body)


@pytest.mark.parametrize("text", ['{"ids": %s, "x": Infinity}', '{"x": Infinity, "ids": %s}', '{"ids": -%s}'])
def test_the_word_itself_is_a_fault(text: str) -> None:
    """Where the word that stands for an array is written as a value it is refused as ever (contract 1.6)."""
    with pytest.raises((InexactJson, NotJson)):
        scan_body((text % list(range(100))).encode())
