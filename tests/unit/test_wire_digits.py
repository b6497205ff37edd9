"""wire/digits.py: integers read and written without Python objects, and never wrongly."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnkeep.wire import digits
from turnkeep.wire.digits import parse_integers


@pytest.fixture(params=[1, 7, digits._BLOCK], scope="module", autouse=True)
def _block(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything holds whatever the size of a block, so that small texts cross block borders too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "_BLOCK", request.param)
        yield


@st.composite
def _rectangles(draw: st.DrawFn) -> Any:
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    number = (
        st.integers(0, 9) | st.sampled_from([10, 255, 65536, 10**17, 10**18 - 1, 10**18, 2**63, 2**70]) | st.integers(0)
    )

    def build(widths: list[int]) -> Any:
        return [build(widths[1:]) if len(widths) > 1 else draw(number) for _ in range(widths[0])]

    return build(shape)


def _spelled(value: Any, spaced: bool) -> str:
    return json.dumps(value, separators=(", ", ": ") if spaced else (",", ":"))


def _check(text: str) -> bool:
    """Whether `text` was read, alone and within other text; if so, that the standard library reads the same list."""
    array = parse_integers(text.encode())
    around = f"[[7,{text},7]]".encode()
    within = parse_integers(around, 4, len(around) - 4)
    assert (array is None) == (within is None)
    if array is None:
        return False
    assert within is not None
    assert (within.dtype, within.tolist()) == (array.dtype, array.tolist())
    value = json.loads(text)
    assert json.dumps(array.tolist()) == json.dumps(value)
    return True


@given(_rectangles(), st.booleans())
def test_a_rectangle_is_read_exactly(value: Any, spaced: bool) -> None:
    """A rectangle of integers in either spelling is read as the list it is; small numbers always are."""
    text = _spelled(value, spaced)
    read = _check(text)
    largest = max(int(run) for run in text.replace("[", " ").replace("]", " ").replace(",", " ").split())
    assert read or largest >= 10**18


@settings(max_examples=300)
@given(_rectangles(), st.booleans(), st.data())
def test_text_with_something_else_in_it_is_not_misread(value: Any, spaced: bool, data: st.DataObject) -> None:
    """With characters put in, taken out or exchanged anywhere, the text is left alone or read as JSON reads it."""
    text = [*_spelled(value, spaced)]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(0, len(text) - 1)))
        what = data.draw(
            st.sampled_from(["", "0", "1", ",", " ", ", ", "[", "]", "-", ".", "e", "\n", '"', "[]", "null"])
        )
        match data.draw(st.sampled_from(["put", "take", "swap"])):
            case "put":
                text.insert(at, what)
            case "take":
                text[at : at + 1] = []
            case _:
                other = data.draw(st.integers(0, max(0, len(text) - 1)))
                if text:
                    text[at], text[other] = text[other], text[at]
    _check("".join(text))


@settings(max_examples=300)
@given(st.text(st.sampled_from("01[], "), max_size=16))
def test_any_text_of_the_same_characters_is_not_misread(text: str) -> None:
    """Brackets, commas, spaces and digits in any order are left alone or read as JSON reads them."""
    _check(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "[]",
        "[[]]",
        "[1,]",
        "[12,]",
        "[,12]",
        "[1 2,]",
        "[1 2]",
        "[1, 2,3]",
        "[1,2 ]",
        "[ 1,2]",
        "[01]",
        "[00]",
        "[1][2]",
        "[[1],[2,3]]",
        "[[1],2]",
        "[1,[2]]",
        "[[1]2,[]]",
        "1[,2]",
        "[1,2]3",
        "[-1]",
        "[1.0]",
        "[1e3]",
        "[true]",
        "[\u0661]",
        "[[1, 2],[3, 4]]",
        "[1\n]",
    ],
)
def test_what_is_no_such_array_is_left_alone(text: str) -> None:
    """Anything but a full rectangle in one of the two spellings is None or what JSON reads, and never a crash."""
    _check(text)


@pytest.mark.parametrize("value", [[0], [10**17], [10**18 - 1], [[0, 10], [200, 3]], [9, 10, 99, 100], [2**53 + 1]])
def test_edges_are_read(value: Any) -> None:
    """Zero, many digits and different lengths side by side are read."""
    assert _check(_spelled(value, spaced=False))
    assert _check(_spelled(value, spaced=True))
