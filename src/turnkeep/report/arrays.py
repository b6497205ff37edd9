"""Arrays as a page carries them: base64 of little-endian bytes, in a type that a browser has."""

import base64
import json
from typing import NamedTuple

import numpy as np

from turnkeep.check.facts import Array

_TYPES = ("uint8", "uint16", "uint32", "uint64", "float32", "float64")


class Carried(NamedTuple):
    """An array for an attribute: `type` is a NumPy dtype's name with the bytes as base64, or `json` with a list."""

    type: str
    data: str


def carry(array: Array) -> Carried:
    """The array, exact; integers beyond 64 bits become a JSON list of their digits."""
    if array.dtype.name not in _TYPES:
        return Carried("json", json.dumps(list(map(str, array.tolist()))))
    if array.dtype.name == "uint64" and array.size and int(array.max()) < 1 << 32:
        array = array.astype(np.uint32)
    raw = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return Carried(array.dtype.name, base64.b64encode(raw).decode())
