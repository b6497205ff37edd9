"""The training fields of an output item: their arrays and the rules of contract 1.5.

`prompt_token_ids` [P] and `generation_token_ids` [G] are token ids, `generation_log_probs` [G] are natural-log
probabilities, `routed_experts` [tokens, layers, top_k] are the mixture-of-experts routes (-1 marks a missing one), or
an opaque string envelope. Field names as in NeMo Gym's `TokenIDLogProbMixin`.
"""

from collections.abc import Mapping
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from turnkeep.errors import MalformedItem
from turnkeep.wire.digits import MOST_DIMENSIONS, narrowest_dtype
from turnkeep.wire.json import dumps

if TYPE_CHECKING:
    import numpy as np

    type Array = np.ndarray[Any, np.dtype[Any]]

REQUIRED = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
ROUTES = "routed_experts"
TRAINING_FIELDS = (*REQUIRED, ROUTES)


def to_array(value: object) -> "Array | None":
    """`value` as an array in the narrowest dtype that holds it exactly, or None where only plain JSON does.

    An array is what `frozen` makes of it. Integers of at most 64 bits in a full rectangle of rank 1 to 8 become the
    narrowest of uint8 to uint64 (int8 to int64 where one is negative), floats become float64. Everything else (empty,
    ragged, mixed, larger) is None.
    """
    if hasattr(value, "dtype"):
        return frozen(cast("Array", value))
    if not isinstance(value, list):
        return None
    leaf: object = value
    while isinstance(leaf, list) and leaf:
        leaf = leaf[0]
    if type(leaf) not in (int, float):
        return None
    shape, flat = _rectangle(value)
    if len(shape) > MOST_DIMENSIONS:
        return None
    kinds = set(map(type, flat))
    if kinds == {float}:
        dtype: str | None = "float64"
    elif kinds == {int}:
        dtype = narrowest_dtype(min(flat), max(flat))
    else:
        return None
    if dtype is None:
        return None
    import numpy as np

    array = np.array(flat, dtype=dtype)
    array.flags.writeable = False
    return array.reshape(shape)


def _rectangle(value: list[Any]) -> tuple[tuple[int, ...], list[Any]]:
    """The shape of the full rectangle that `value` begins with, and its elements below that."""
    shape, flat = [len(value)], value
    while all(type(row) is list for row in flat) and len(widths := set(map(len, flat))) == 1 and widths != {0}:
        shape.append(widths.pop())
        flat = list(chain.from_iterable(flat))
    return tuple(shape), flat


def frozen(array: "Array") -> "Array":
    """The array itself where nobody can change it and it lies as it is written: C-contiguous, aligned, native.

    Else a copy.

    Raises ValueError for what is no plain array of numbers of rank 1 or more. NaN and infinities pass: they are found
    where they are written or checked.
    """
    import numpy as np

    if type(array) is not np.ndarray or array.dtype.kind not in "iufb" or array.ndim == 0:
        raise ValueError(f"{_show(array)} is no plain NumPy array of numbers")
    flags = array.flags
    if _is_changeable(array) or not (flags.c_contiguous and flags.aligned and array.dtype.isnative):
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
        array.flags.writeable = False
    return array


def _is_changeable(array: "Array") -> bool:
    """Whether the array, or what it is a view of, can be written to."""
    import numpy as np

    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return True
        base = base.base
    try:
        return base is not None and not memoryview(base.obj if isinstance(base, memoryview) else base).readonly
    except TypeError:
        return True


def is_finite(array: "Array") -> bool:
    """Whether an array holds neither NaN nor an infinity."""
    import numpy as np

    return bool(np.isfinite(array).all())


@cache
def dtype_name(dtype: "np.dtype[Any]") -> str:
    """`uint8`, `float64` and so on: what NumPy works out anew each time it is asked."""
    return dtype.name


def array_bytes(array: "Array") -> memoryview:
    """The array's bytes, C-contiguous and little-endian, not copied where they lie so."""
    return array.astype(array.dtype.newbyteorder("<"), order="C", copy=False).reshape(-1).view("uint8").data


def spell_array(array: "Array", between: bytes) -> bytes:
    """The array as JSON text with `,` or `, ` between elements: the two spellings that servers write."""
    text = array_text(array)
    return text if between == b"," else text.replace(b",", between)


def array_text(array: "Array") -> bytes:
    """The array as JSON text, equal to `dumps` of its plain list."""
    if is_written_alike(array):
        import orjson

        return orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
    return dumps(array.tolist())


def is_written_alike(array: "Array") -> bool:
    """Whether orjson writes an array as Python does: floats in the shortest digits, with exponents only outside."""
    if array.dtype.kind in "iu":
        return True
    if array.dtype != "float64":
        return False
    import numpy as np

    size = np.abs(array)
    return bool(((size >= 1e-4) & (size < 1e16) | (size == 0)).all())


def has_ids(members: Mapping[str, object]) -> bool:
    """Whether an item carries token ids or log probs, empty ones included."""
    return any(members.get(name) is not None for name in REQUIRED)


def check_training(members: Mapping[str, Any], arrays: Mapping[str, "Array"], item: int) -> None:
    """Hold the training fields of output item number `item` to the rules of contract 1.5.

    `arrays` are those of the fields that `to_array` could hold: they are checked without a Python loop. Raises
    MalformedItem at the first field that breaks a rule, naming it and, in an array, the index.
    """
    present = [name for name in TRAINING_FIELDS if name in arrays or members.get(name) is not None]
    if not present:
        return
    for name in REQUIRED:
        if name not in present:
            raise MalformedItem(f"{present[0]} stands without {name}", item=item, field=name)
    for name in REQUIRED[:2]:
        if not (name in arrays and arrays[name].ndim == 1 and arrays[name].dtype.kind == "u"):
            _check_elements(members[name], name, item, _is_id, "a non-negative integer")
    if not (REQUIRED[2] in arrays and arrays[REQUIRED[2]].ndim == 1):
        _check_elements(members[REQUIRED[2]], REQUIRED[2], item, _is_number, "a number")
    generated, scored = (len(arrays[name] if name in arrays else members[name]) for name in REQUIRED[1:])
    if generated != scored:
        raise MalformedItem(f"{generated} generation ids but {scored} log probs", item=item, field=REQUIRED[2])
    if ROUTES in arrays:
        routes = arrays[ROUTES]
        if routes.ndim != 3 or routes.dtype.kind not in "iu" or routes.min() < -1:
            _check_routes(members[ROUTES], item)
    elif ROUTES in present and not isinstance(members[ROUTES], str):
        _check_routes(members[ROUTES], item)


def _is_id(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _check_elements(values: object, field: str, item: int, rule: Any, what: str) -> None:
    if not isinstance(values, list):
        raise MalformedItem(f"{field} is no array", item=item, field=field)
    for index, value in enumerate(values):
        if not rule(value):
            raise MalformedItem(f"{_show(value)} is not {what}", item=item, field=field, index=index)


def _check_routes(routes: object, item: int) -> None:
    """A full rank-3 array of integers from -1 up, or empty."""
    if not isinstance(routes, list):
        raise MalformedItem(f"{ROUTES} is neither an array nor a string", item=item, field=ROUTES)
    width: tuple[int, ...] | None = None
    for index, token in enumerate(routes):

        def fail(why: str, index: int = index) -> MalformedItem:
            return MalformedItem(why, item=item, field=ROUTES, index=index)

        if not isinstance(token, list) or not all(isinstance(layer, list) for layer in token):
            raise fail("routed_experts must be [tokens, layers, top_k]")
        widths = {len(layer) for layer in token}
        if len(widths) != 1 or width not in (None, (len(token), *widths)):
            raise fail("routed_experts must be a full rectangle of [tokens, layers, top_k]")
        width = (len(token), *widths)
        for layer in token:
            for expert in layer:
                if type(expert) is not int or expert < -1:
                    raise fail(f"{_show(expert)} is not an expert: an integer from -1 up")


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
