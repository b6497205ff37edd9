"""Which experts a rollout's tokens took: how evenly each layer used them in each turn, and each expert's load."""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from turnkeep.check.facts import Array, Sample

MOST_LAYERS, MOST_EXPERTS = 512, 2048
"""Routes beyond these are named and not drawn: a picture of them would show nothing."""


class Experts(NamedTuple):
    """The routed experts of a rollout, each token position counted once.

    `effective` [turns, layers] float32: the number of experts that, used evenly, would be as mixed as those that the
    turn's tokens took (the exponential of the entropy in nats); NaN where the turn has no routes. `used` [turns,
    layers]: how many different ones. `load` [layers, experts]: how often each was taken. `missing`: routes that are -1.
    """

    effective: Array
    used: Array
    load: Array
    missing: int
    remark: str | None = None

    @property
    def least_effective(self) -> float:
        """The lowest of `effective`, to one place."""
        return round(float(np.nanmin(self.effective, initial=np.inf)), 1)

    @property
    def most_effective(self) -> float:
        """The highest of `effective`, to one place."""
        return round(float(np.nanmax(self.effective, initial=0.0)), 1)


class Tally:
    """Counts the routes of a rollout's turns as they come."""

    def __init__(self) -> None:
        self._turns: list[Array | None] = []
        self._missing = 0
        self._remark: str | None = None

    def add(self, samples: Sequence[Sample], shared: Sequence[int | None]) -> None:
        """Count a turn; of a sample's routes that cover its whole prompt, those from position `shared` on are new."""
        counts = None
        for sample, start in zip(samples, shared, strict=True):
            if sample.routes is None or sample.routes.experts is None or not sample.routes.experts.size:
                continue
            counted = self._count(_new_rows(sample, start), sample.turn)
            counts = counted if counts is None or counted is None else _add(counts, counted)
        self._turns.append(counts)

    def _count(self, routes: Array, turn: int) -> Array | None:
        """How often each expert was taken, [layers, experts]."""
        layers = routes.shape[1]
        most = max(0, int(routes.max())) if routes.size else 0
        if layers > MOST_LAYERS or most >= MOST_EXPERTS:
            self._remark = f"the routes of turn {turn} ({layers} layers, expert ids up to {most}) are not drawn"
            return None
        counts = np.zeros((layers, most + 1), dtype=np.int64)
        for layer in range(layers):  # one at a time: bincount widens what it is given to 64 bits
            taken = routes[:, layer, :].ravel()
            there = taken[taken >= 0]
            self._missing += taken.size - there.size
            counts[layer] = np.bincount(there, minlength=most + 1)
        return counts

    def result(self) -> Experts | None:
        """All that was counted; None where no turn has routes. Where none can be drawn there is only the remark."""
        counted = [counts for counts in self._turns if counts is not None]
        if not counted and self._remark is None:
            return None
        load = reduce(_add, counted, np.zeros((0, 0), dtype=np.int64))
        layers = load.shape[0]
        effective = np.full((len(self._turns), layers), np.nan, dtype=np.float32)
        used = np.zeros((len(self._turns), layers), dtype=np.uint16)
        for number, counts in enumerate(self._turns):
            if counts is not None:
                effective[number, : len(counts)] = _effective(counts)
                used[number, : len(counts)] = np.count_nonzero(counts, axis=1)
        return Experts(effective, used, load.astype(np.uint32), self._missing, self._remark)


def _new_rows(sample: Sample, shared: int | None) -> Array:
    """The routes of positions that no earlier turn covered: all, unless they cover prompt and generation."""
    assert sample.routes is not None
    assert sample.routes.experts is not None
    routes = sample.routes.experts
    if sample.prompt is None or sample.generation is None or shared is None:
        return routes
    covers_all = len(routes) == len(sample.prompt) + len(sample.generation)
    return routes[shared:] if covers_all else routes


def _add(one: Array, other: Array) -> Array:
    """The sum of two counts, as large as both."""
    total = np.zeros(np.maximum(one.shape, other.shape), dtype=np.int64)
    total[: one.shape[0], : one.shape[1]] += one
    total[: other.shape[0], : other.shape[1]] += other
    return total


def _effective(counts: Array) -> Array:
    """The exponential of each row's entropy; NaN where a row is empty."""
    totals = counts.sum(axis=1, keepdims=True)
    share = counts / np.where(totals == 0, 1, totals)
    entropy = -(share * np.log(np.where(share == 0, 1, share))).sum(axis=1)
    return np.where(totals[:, 0] == 0, np.nan, np.exp(entropy))
