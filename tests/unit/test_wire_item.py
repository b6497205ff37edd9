"""wire/item.py: an item equals its plain JSON form and never changes."""

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeep.testing import strategies
from turnkeep.wire.item import Item, read_item, refusals
from turnkeep.wire.json import dumps, same
from turnkeep.wire.sha import sha256_hex
from turnkeep.wire.training import TRAINING_FIELDS
from turnkeep.wire.whole import written

FIELDS = {
    "prompt_token_ids": [1, 300],
    "generation_token_ids": [2],
    "generation_log_probs": [-0.5],
    "routed_experts": [[[0, -1]]],
}


@given(strategies.output_items())
def test_an_item_equals_its_plain_form(members: dict[str, Any]) -> None:
    """An item reads, iterates, compares and writes as the object it was made of."""
    item = Item(members)
    assert item == members
    assert members == item
    assert same(item.to_json(), members)
    assert item.to_bytes() == dumps(members)
    assert list(item) == list(members)
    assert len(item) == len(members)
    assert all(same(item[name], member) for name, member in members.items())
    assert item == Item(copy.deepcopy(members))
    assert "surely not there" not in item


@given(strategies.output_items(), strategies.output_items())
def test_items_are_equal_where_their_objects_are(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Two items are equal exactly where their plain forms are the same."""
    assert (Item(one) == Item(other)) == same(one, other)
    assert (Item(one) == other) == same(one, other)


@pytest.mark.parametrize("change", [1.0, True, "1", None, [1]])
def test_items_that_python_would_call_equal_differ(change: Any) -> None:
    """A number of another kind and another key order make another item."""
    assert Item({"type": "x", "n": 1}) != Item({"type": "x", "n": change})
    assert Item({"type": "x", "n": 1}) != {"n": 1, "type": "x"}
    assert Item({"type": "x"}) != [("type", "x")]


def _scribble(value: Any) -> None:
    if isinstance(value, dict):
        for member in value.values():
            _scribble(member)
        value.clear()
    elif isinstance(value, list):
        for element in value:
            _scribble(element)
        value.append("scribbled")


@given(strategies.output_items())
def test_nothing_an_item_hands_out_reaches_back(members: dict[str, Any]) -> None:
    """Changing what went in or what came out changes no item."""
    text = dumps(members)
    item = Item(members)
    _scribble(members)
    _scribble(item.to_json())
    _scribble(item.skeleton())
    for name in item:
        _scribble(item[name])
    assert item.to_bytes() == text
    assert list(item.wire_chunks()) == list(Item(json.loads(text)).wire_chunks())


def test_the_arrays_of_an_item_cannot_be_changed() -> None:
    """Arrays are read-only, and so is the mapping that holds them: in an item, in its copies, after a pickle."""
    for item in (Item(FIELDS), copy.copy(Item(FIELDS)), pickle.loads(pickle.dumps(Item(FIELDS)))):
        for array in item.arrays.values():
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
        with pytest.raises((TypeError, AttributeError)):
            item.arrays["prompt_token_ids"] = np.zeros(2)  # type: ignore[index]
        with pytest.raises((TypeError, AttributeError)):
            item.arrays.pop("prompt_token_ids")  # type: ignore[union-attr]
        assert item == FIELDS


def test_arrays_given_to_an_item_do_not_reach_back() -> None:
    """An item made with arrays of another keeps its own, whatever the giver does to the mapping."""
    arrays = dict(Item(FIELDS).arrays)
    item = Item(FIELDS, arrays)
    arrays.clear()
    assert item == FIELDS


DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float64"]


@pytest.mark.parametrize("dtype", [*DTYPES, ">u4", ">f8"])
@pytest.mark.parametrize("order", ["C", "F", "strided", "unaligned"])
@pytest.mark.parametrize("as_member", [True, False])
def test_any_plain_array_is_written_as_its_list(dtype: str, order: str, as_member: bool) -> None:
    """However an array lies in memory, item, bytes, request and digest are those of its list's values."""
    values = [[1, 2, 3], [4, 5, 6]]
    whole = np.array(values, dtype=dtype, order="F" if order == "F" else "C")
    if order == "strided":
        whole = np.repeat(whole, 2, axis=1)[:, ::2]
    if order == "unaligned":
        whole = np.frombuffer(b"-" + whole.tobytes(), dtype=dtype, offset=1).reshape(2, 3)
    item = Item({"type": "x", "n": whole}) if as_member else Item({"type": "x", "n": None}, {"n": whole})
    plain = {"type": "x", "n": whole.tolist()}
    assert item == plain
    assert item.to_bytes() == b"".join(item.wire_chunks()) == written(item.wire_node()) == dumps(plain)
    flags = item.arrays["n"].flags
    assert (flags.writeable, flags.c_contiguous, flags.aligned) == (False, True, True)
    exact = np.array(values, dtype=np.dtype(dtype).newbyteorder("<"))
    assert item.array_digests["n"] == sha256_hex(exact.tobytes())


def test_a_change_of_what_an_item_was_made_of_does_not_reach_it() -> None:
    """An array that can be written to is copied, as a view too, so that a digest computed once stays true."""
    one, base = np.arange(5), np.arange(5)
    item = Item({"type": "x", "a": one, "b": None}, {"b": base[:]})
    before, digests = item.to_bytes(), dict(item.array_digests)
    one[0] = base[0] = 99
    assert item.to_bytes() == before
    assert item.array_digests == digests == Item(item.to_json(), dict(item.arrays)).array_digests


def test_an_array_without_elements_keeps_its_shape() -> None:
    """An array of no elements is written and hashed."""
    item = Item({"x": None}, {"x": np.zeros((3, 0), dtype=np.uint8)})
    assert item.to_bytes() == b'{"x":[[],[],[]]}'
    assert item.array_digests["x"] == sha256_hex(b"")


@pytest.mark.parametrize(
    "array",
    [
        np.array(3),
        np.array(["a"]),
        np.array([1j]),
        np.array([object()]),
        np.array(["2026-01-01"], dtype="datetime64[D]"),
        np.ma.masked_array([1, 2], [True, False]),
        np.int64(3),
    ],
)
def test_what_is_no_plain_array_of_numbers_is_refused(array: Any) -> None:
    """An array that JSON has no list of numbers for is an error where the item is made, not where it is sent."""
    with pytest.raises(ValueError, match="no plain NumPy array"):
        Item({"x": array})
    with pytest.raises(ValueError, match="no plain NumPy array"):
        Item({"x": None}, {"x": array})


def test_an_array_for_no_member_is_refused() -> None:
    """Nothing that is given is left out in silence."""
    with pytest.raises(ValueError, match="'y', which is no member"):
        Item({"x": None}, {"y": np.arange(2)})


def test_the_order_of_arrays_is_that_of_the_members() -> None:
    """Which arrays were given apart changes nothing, neither order nor digest."""
    item = Item({"a": [1, 2], "b": None}, {"b": np.arange(3, dtype="u1")})
    assert list(item.arrays) == ["a", "b"]


@given(strategies.output_items())
def test_copies_and_pickles_are_equal(members: dict[str, Any]) -> None:
    """A copy, a deep copy and a pickle are equal items, with the same arrays in the same dtypes."""
    item = Item(members)
    for other in (copy.copy(item), copy.deepcopy(item), *(pickle.loads(pickle.dumps(item, n)) for n in (2, 5))):
        assert other == item
        assert list(other.arrays) == list(item.arrays)
        for name, array in item.arrays.items():
            assert other.arrays[name].dtype == array.dtype
            assert np.array_equal(other.arrays[name], array)


@given(strategies.output_items())
def test_the_skeleton_is_the_item_less_its_arrays(members: dict[str, Any]) -> None:
    """The skeleton is the plain form with null where an array stands."""
    item = Item(members)
    expected = {name: None if name in item.arrays else member for name, member in members.items()}
    assert same(item.skeleton(), expected)


def _no_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _no_nulls(member) for name, member in value.items() if member is not None}
    return [_no_nulls(element) for element in value] if isinstance(value, list) else value


@given(strategies.output_items())
def test_the_wire_form_is_the_item_less_its_nulls(members: dict[str, Any]) -> None:
    """The wire form drops null members; withheld, it drops the training fields too and no other (contract 7.8)."""
    item = Item(members)
    assert b"".join(item.wire_chunks()) == dumps(_no_nulls(members))
    rest = {name: member for name, member in members.items() if name not in TRAINING_FIELDS}
    assert b"".join(item.wire_chunks_without_training()) == dumps(_no_nulls(rest))
    assert item.has_training == any(members.get(name) is not None for name in TRAINING_FIELDS)


@pytest.mark.parametrize("members", [{1: 2}, {None: 1}, {"a": float("nan")}, {"a": b""}])
def test_what_json_cannot_hold_is_no_item(members: Any) -> None:
    """An item of what JSON cannot hold is a ValueError, and no member name is changed in silence."""
    with pytest.raises(ValueError, match=r"."):
        Item(members)


def test_an_item_shows_its_arrays_by_shape() -> None:
    """The representation says dtype and shape, not a million numbers."""
    shown = repr(Item({"type": "message", **FIELDS}))
    assert "'type': 'message'" in shown
    assert "<int8 [1, 1, 2]>" in shown
    assert "<uint16 [2]>" in shown


def test_an_item_has_no_hash() -> None:
    """An item is compared by value and cannot be a key."""
    with pytest.raises(TypeError):
        hash(Item({}))


@given(st.lists(strategies.texts(), max_size=4))
def test_refusals_are_read_in_order(texts: list[str]) -> None:
    """The refusals of a message are its refusal blocks' texts, in order, and only a message has any."""
    blocks: list[dict[str, Any]] = [{"type": "refusal", "refusal": text} for text in texts]
    content = [{"type": "output_text", "text": "x"}, *blocks]
    assert refusals({"type": "message", "content": content}) == texts
    assert refusals({"type": "reasoning", "content": content}) == []


@given(strategies.output_items())
def test_the_skeleton_reads_as_the_item_does(members: dict[str, Any]) -> None:
    """What a person can read needs no array: item, skeleton and plain form read the same."""
    assert read_item(Item(members).skeleton()) == read_item(members) == read_item(Item(members))
