"""What the operations allocate: a `tracemalloc` run of its own for each, counting nothing that was there before."""

import gc
import tracemalloc
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .operations import Form, Tell, capture_all, replay, replay_streamed


class Peaks(NamedTuple):
    """Bytes at the peak of each operation, and what the captured turns hold when it is over, beside the bodies."""

    peaks: dict[str, int]
    retained: int


def measure_peaks(bodies: Sequence[bytes], form: Form, tell: Tell) -> Peaks:
    """One run each of the seed's operations and of a streamed replay under `tracemalloc`, which NumPy reports to."""
    peaks: dict[str, int] = {}
    kept: dict[str, int] = {}

    def traced[**P, R](name: str, operation: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        tell(f"{len(bodies)} turns, {form.name}: allocation of {name}")
        gc.collect()
        tracemalloc.start()
        try:
            value = operation(*args, **kwargs)
            kept[name], peaks[name] = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        return value

    turns = traced("capture", capture_all, bodies)
    snapshot = traced("snapshot", form.snapshot, turns)
    del turns
    restored = traced("restore", form.restore, snapshot)
    traced("replay", replay, restored)
    traced("replay, streamed", replay_streamed, restored)
    return Peaks(peaks, kept["capture"])
