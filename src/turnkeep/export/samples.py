"""A rollout as what a trainer puts into a batch: token ids, loss mask, log probs and routed experts, each per token.

A turn's prompt repeats all that came before, so one sequence holds as many turns as extend one another: the last
prompt and the last generation, the earlier generations within the prompt. Where a prompt does not begin with the
prompt and generation before it (history was rewritten, another branch), a new sample begins.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from turnkeep.errors import MalformedItem
from turnkeep.rollout.view import RolloutView
from turnkeep.wire.training import REQUIRED, ROUTES

if TYPE_CHECKING:
    from turnkeep.check.facts import Sample
    from turnkeep.wire.training import Array

_LARGEST_ID = (1 << 63) - 1
_LARGEST_EXPERT = (1 << 31) - 1


class Generation(NamedTuple):
    """What one output item added to a sample: its turn and item, and its tokens `[start:stop]`."""

    turn: int
    item: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSample:
    """One sequence of T tokens, and what the policy did in it.

    `token_ids` int64 [T]. `loss_mask` bool [T]: True where the policy generated the token. `log_probs` float64 [T], in
    nats, as recorded; 0.0 where the mask is False, which says nothing (NaN would outlive a multiplication by the mask).
    `routed_experts` int32 [T, layers, top_k], or None where no turn has any; -1 where a route is not known, since 0 is
    a real expert.
    """

    rollout: str
    generations: tuple[Generation, ...]
    token_ids: "Array"
    loss_mask: "Array"
    log_probs: "Array"
    routed_experts: "Array | None"

    @property
    def turns(self) -> tuple[int, ...]:
        """The turns whose tokens it trains on, in order."""
        return tuple(dict.fromkeys(generation.turn for generation in self.generations))


def to_training_samples(rollout: RolloutView) -> list[TrainingSample]:
    """The samples of a rollout, in the order of its turns; none where no turn has generated token ids.

    Each turn's tokens are trained on once. Routes: each token has those of the first turn that recorded them, but the
    last token of a generation, which was sampled and not yet run through the model, those that the next turn's prompt
    has for it (as NeMo RL does). Rows of routes may be for prompt + generation, for that less the last token, or for
    the generation alone. Raises MalformedItem, which names rollout, turn, item and field, where training fields are
    malformed, rows are for tokens that cannot be known, or a number does not fit; CorruptRecord.
    """
    from turnkeep.check.facts import first_difference  # needs NumPy

    segments: list[list[Generation]] = []
    before: Sample | None = None
    for sample in _trainable(rollout):
        prompt, generation = _fields(sample)[:2]
        extends = before is not None and first_difference(prompt, *_fields(before)[:2]) is None
        if not extends:
            segments.append([])
        segments[-1].append(Generation(sample.turn, sample.item, len(prompt), len(prompt) + len(generation)))
        before = replace(sample, routes=None)
    return [_build(rollout, tuple(segment)) for segment in segments]


def first_token(rows: int, prompt: int, generated: int) -> int | None:
    """The token of prompt + generation to which the first row of routes belongs; None where nobody can know it.

    As `turnkeep check` reads them: rows for all tokens, for all but the last, or for the generation alone.
    """
    if rows in (prompt + generated, prompt + generated - 1):
        return 0
    return prompt if rows == generated else None


def _trainable(rollout: RolloutView) -> Iterator["Sample"]:
    """The items with generated tokens, one turn in memory at a time. Raises MalformedItem."""
    for number in range(rollout.turn_count):
        yield from _samples(rollout, number)


def _samples(rollout: RolloutView, number: int) -> Iterator["Sample"]:
    from turnkeep.check.facts import read_samples

    for sample in read_samples(number, rollout.turn(number)):
        if sample.fault is not None:
            sample.fault.rollout, sample.fault.turn = rollout.id, number
            raise sample.fault
        if sample.is_trainable:
            yield sample


def _fields(sample: "Sample") -> "tuple[Array, Array, Array]":
    """Prompt, generation and log probs, which an item without fault has."""
    assert sample.prompt is not None
    assert sample.generation is not None
    assert sample.log_probs is not None
    return sample.prompt, sample.generation, sample.log_probs


def _build(rollout: RolloutView, generations: Sequence[Generation]) -> TrainingSample:
    """The sample of generations that extend one another."""
    import numpy as np

    last = generations[-1]
    token_ids = np.empty(last.stop, dtype=np.int64)
    loss_mask = np.zeros(last.stop, dtype=np.bool_)
    log_probs = np.zeros(last.stop, dtype=np.float64)
    routes = _Routes(None, np.zeros(last.stop, dtype=np.bool_))
    previous: Generation | None = None
    for each in generations:
        sample = next(sample for sample in _samples(rollout, each.turn) if sample.item == each.item)
        prompt, generation, scores = _fields(sample)
        seen = 0 if previous is None else previous.stop
        token_ids[seen : each.start] = fitting_ids(rollout, sample, REQUIRED[0], prompt)[seen:]
        token_ids[each.start : each.stop] = fitting_ids(rollout, sample, REQUIRED[1], generation)
        loss_mask[each.start : each.stop] = True
        log_probs[each.start : each.stop] = exact_scores(rollout, sample, scores)
        routes = _with_routes(routes, rollout, sample, None if previous is None else previous.stop - 1)
        previous = each
    return TrainingSample(rollout.id, tuple(generations), token_ids, loss_mask, log_probs, routes.experts)


class _Routes(NamedTuple):
    """The routes of a sample so far [T, layers, top_k], and which of its tokens have some [T]."""

    experts: "Array | None"
    known: "Array"


def _with_routes(routes: _Routes, rollout: RolloutView, sample: "Sample", unrun: int | None) -> _Routes:
    """The routes with those of one more item, where none are known yet, and for the token `unrun`."""
    import numpy as np

    rows = _rows(rollout, sample)
    if rows is None:
        return routes
    prompt, generation, _ = _fields(sample)
    start = first_token(len(rows), len(prompt), len(generation))
    if start is None:
        told = f"{len(rows)} rows for {len(prompt)} prompt + {len(generation)} generated tokens"
        raise _malformed(rollout, sample, f"{told}: which tokens they belong to is not known", ROUTES)
    experts = routes.experts
    if experts is None:
        experts = np.full((len(routes.known), *rows.shape[1:]), -1, dtype=np.int32)
    if experts.shape[1:] != rows.shape[1:]:
        now, then = ("x".join(map(str, shape[1:])) for shape in (rows.shape, experts.shape))
        raise _malformed(rollout, sample, f"layers x top_k is {now}, and {then} in the turns before", ROUTES)
    covered = slice(start, start + len(rows))
    there = (rows != -1).any(axis=(1, 2))
    taken = there & ~routes.known[covered]
    if unrun is not None and start <= unrun < covered.stop:
        taken[unrun - start] = there[unrun - start]
    experts[covered][taken] = rows[taken]
    routes.known[covered] |= there
    return _Routes(experts, routes.known)


def _rows(rollout: RolloutView, sample: "Sample") -> "Array | None":
    """The rows of routes that an item has, or None. Raises MalformedItem."""
    if sample.routes is None:
        return None
    rows = sample.routes.experts
    if rows is None:
        raise _malformed(rollout, sample, f"the routed experts cannot be read: {sample.routes.fault}", ROUTES)
    if not rows.size:
        return None
    largest = int(rows.max())
    if largest > _LARGEST_EXPERT:
        raise _malformed(rollout, sample, f"the expert {largest} does not fit into 32 bits", ROUTES)
    return rows


def fitting_ids(rollout: RolloutView, sample: "Sample", field: str, ids: "Array") -> "Array":
    """Token ids that fit into int64. Raises MalformedItem where one does not."""
    largest = int(ids.max()) if len(ids) else 0
    if largest > _LARGEST_ID:
        raise _malformed(rollout, sample, f"the token id {largest} does not fit into 63 bits", field)
    return ids


def exact_scores(rollout: RolloutView, sample: "Sample", scores: "Array") -> "Array":
    """The log probs, each the number that was recorded. Raises MalformedItem for one that no float64 is."""
    native = rollout.turn(sample.turn).parts[sample.item].native
    assert native is not None
    array = native.arrays.get(REQUIRED[2])
    if array is None or array.dtype.kind != "f":
        for index, (score, value) in enumerate(zip(scores.tolist(), native[REQUIRED[2]], strict=True)):
            if score != value:
                told = f"{value}" if abs(value) < 1 << 64 else f"{str(value)[:20]}..."
                raise _malformed(rollout, sample, f"the log prob {told} is no float64", REQUIRED[2], index)
    return scores


def _malformed(
    rollout: RolloutView, sample: "Sample", message: str, field: str, index: int | None = None
) -> MalformedItem:
    return MalformedItem(message, rollout=rollout.id, turn=sample.turn, item=sample.item, field=field, index=index)
