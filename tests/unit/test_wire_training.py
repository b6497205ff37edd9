"""wire/training.py: arrays in the narrowest exact dtype."""

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeep.testing import strategies
from turnkeep.wire.digits import MOST_DIMENSIONS
from turnkeep.wire.json import dumps
from turnkeep.wire.training import array_text, has_ids, to_array

_LEAVES = strategies.integers() | strategies.floats() | st.booleans() | st.none() | st.just("1")
_VALUES = st.recursive(_LEAVES, lambda inner: st.lists(inner, max_size=3), max_leaves=12)
_KINDS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float64")


def _flat(value: Any) -> list[Any]:
    return [leaf for element in value for leaf in _flat(element)] if isinstance(value, list) else [value]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    return type(one) is type(other) and bool(one == other)


@given(_VALUES | strategies.token_ids() | strategies.routed_experts() | st.lists(strategies.floats(), max_size=4))
def test_an_array_is_the_list_exactly_or_none(value: Any) -> None:
    """What becomes an array reads back as the very list: kinds of number, bits, shape, and its JSON text too."""
    array = to_array(value)
    if array is None:
        return
    assert _equal(array.tolist(), value)
    assert array_text(array) == dumps(value) == json.dumps(value, separators=(",", ":")).encode()
    assert array.dtype.name in _KINDS
    assert array.flags.c_contiguous
    assert not array.flags.writeable
    assert array.dtype.isnative


@given(st.lists(st.floats(-20.0, -0.0) | st.floats(1e-4, 1e16, exclude_max=True) | st.sampled_from([0.0, 1e-4, -1e-4])))
def test_ordinary_floats_are_written_as_python_writes_them(value: list[float]) -> None:
    """Log probs and other floats of common size have the text that `json.dumps` gives them, whoever writes it."""
    array = np.array(value, dtype=np.float64)
    assert array_text(array) == json.dumps(value, separators=(",", ":")).encode()


@given(_VALUES | strategies.token_ids() | strategies.routed_experts())
def test_an_integer_array_has_the_narrowest_dtype(value: Any) -> None:
    """No narrower dtype holds the values; unsigned unless one is negative."""
    array = to_array(value)
    if array is None or array.dtype.kind == "f":
        return
    low, high = min(_flat(value)), max(_flat(value))
    fitting = [name for name in _KINDS[:8] if np.iinfo(name).min <= low and high <= np.iinfo(name).max]
    wanted = [name for name in fitting if name.startswith("u") == (low >= 0)]
    assert array.dtype.name == wanted[0]


@given(
    st.integers(0, 3).flatmap(
        lambda rank: st.tuples(st.just(rank), st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    )
)
def test_full_rectangles_of_small_integers_become_arrays(case: tuple[int, list[int]]) -> None:
    """A full rectangle of any rank becomes an array of that shape: none is left as JSON without need."""
    _, inner = case
    shape = [2, *inner]
    value = np.arange(np.prod(shape)).reshape(shape).tolist()
    array = to_array(value)
    assert array is not None
    assert list(array.shape) == shape


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        "12",
        {},
        (1, 2),
        [],
        [[]],
        [[], []],
        [1, 2.0],
        [1, True],
        [True, False],
        [1, None],
        [1, [2]],
        [[1], 2],
        [[1], [2, 3]],
        [[[1]], [[2], [3]]],
        [[1.5], [2]],
        [2**64],
        [-1, 2**63],
        [-(2**63) - 1],
        [["1"]],
    ],
)
def test_what_no_array_holds_exactly_stays_json(value: Any) -> None:
    """Empty, ragged, mixed, of another type, beyond 64 bits: no array."""
    assert to_array(value) is None


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([0], "uint8"),
        ([255], "uint8"),
        ([256], "uint16"),
        ([65536], "uint32"),
        ([2**32], "uint64"),
        ([2**64 - 1], "uint64"),
        ([-1], "int8"),
        ([-1, 127], "int8"),
        ([-1, 128], "int16"),
        ([-129], "int16"),
        ([-1, 2**31], "int64"),
        ([-(2**63), 2**63 - 1], "int64"),
        ([-0.0, 5e-324], "float64"),
        ([[[0, -1]]], "int8"),
    ],
)
def test_dtypes_at_their_edges(value: Any, dtype: str) -> None:
    """Each dtype is taken up to its last value and no further."""
    array = to_array(value)
    assert array is not None
    assert array.dtype.name == dtype


@pytest.mark.parametrize("levels", [2, MOST_DIMENSIONS, MOST_DIMENSIONS + 1, 64, 65, 400])
def test_ever_deeper_rectangles_are_exact_or_stay_json(levels: int) -> None:
    """A rectangle of more dimensions than arrays may have stays JSON."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    array = to_array(value)
    assert array is None or array.tolist() == value
    assert (array is None) == (levels > MOST_DIMENSIONS)


@pytest.mark.parametrize(
    ("members", "has"),
    [
        ({}, False),
        ({"prompt_token_ids": None}, False),
        ({"prompt_token_ids": []}, True),
        ({"generation_log_probs": [1]}, True),
    ],
)
def test_an_item_has_ids_where_a_field_is_not_null(members: dict[str, Any], has: bool) -> None:
    """Empty arrays count as training fields, null does not."""
    assert has_ids(members) is has
