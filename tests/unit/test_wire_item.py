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
from turnkeep.wire.training import TRAINING_FIELDS

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
