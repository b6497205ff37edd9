"""Rules about routed experts [tokens, layers, top_k], one output item at a time.

Only items with generated tokens are looked at: a trainer passes over the others, and over their routes.
"""

from collections.abc import Iterator

import numpy as np

from turnkeep.check.facts import Array, SampleFacts
from turnkeep.check.finding import ERROR, NOTE, WARNING, For, Found, Rule, rule
from turnkeep.wire.training import ROUTES

_BLOCK = 1 << 20
"""Experts that are sorted at once."""
_TAIL, _TELLING = 3, 16
"""How many equal rows at the end look like padding, and how many numbers must be what they were for that to tell."""
_CHOICES = 8
"""Layers in which expert 0 alone is no choice any more."""

_NEMO_RL = "NeMo RL environments/nemo_gym.py: rows must be at least prompt + generation"
_WHOLE = "Have the server return routes for the prompt too (NeMo RL: at least a row per prompt and generated token)."


def _experts(facts: SampleFacts) -> Array | None:
    routes = facts.sample.routes
    return None if routes is None or not facts.sample.is_trainable else routes.experts


def _rows(facts: SampleFacts) -> tuple[int, int, int] | None:
    """How many rows there are, how many prompt tokens, how many generated ones."""
    experts, prompt, generation = _experts(facts), facts.sample.prompt, facts.sample.generation
    if experts is None or prompt is None or generation is None:
        return None
    return len(experts), len(prompt), len(generation)


def _say_rows(facts: SampleFacts, rows: int, prompt: int, generated: int, what: str) -> Found:
    return facts.sample.found(f"{rows} rows for {prompt} prompt + {generated} generated tokens: {what}", ROUTES)


@rule(
    For(WARNING, ERROR, None, WARNING, ERROR),
    source="NeMo RL's decoder: four parts, known dtype, three dimensions, strict base64, exact length (NeMo RL #3292)",
    todo="Look at the server that wrote it; a string of another kind needs a trainer that knows that kind.",
)
def experts_unreadable(facts: SampleFacts) -> Iterator[Found]:
    """Routed experts can be read: nested lists, or a string `nrlre1:<dtype>:<SxLxK>:<base64>`."""
    routes = facts.sample.routes
    if routes is not None and facts.sample.is_trainable and routes.fault is not None:
        yield facts.sample.found(f"the routed experts cannot be read: {routes.fault}", ROUTES)


@rule(For(WARNING, ERROR, None, WARNING, WARNING), source=f"{_NEMO_RL}; verl fills missing rows with 0", todo=_WHOLE)
def experts_generation_only(facts: SampleFacts) -> Iterator[Found]:
    """Routes cover the prompt, not the generated tokens alone."""
    if (counts := _rows(facts)) is not None:
        rows, prompt, generated = counts
        if rows == generated and prompt > 1:
            yield _say_rows(facts, *counts, "the generation only")


@rule(
    For(WARNING, ERROR, None, WARNING, NOTE),
    source=f"{_NEMO_RL}; a later revision puts -1 there (NeMo RL #3837)",
    todo="The last token is sampled and never run through the model. Have the server pad that row, or use a trainer "
    "that does.",
)
def experts_one_short(facts: SampleFacts) -> Iterator[Found]:
    """The last generated token has a row of routes as well."""
    if (counts := _rows(facts)) is not None:
        rows, prompt, generated = counts
        if rows == prompt + generated - 1 and rows > 0:
            yield _say_rows(facts, *counts, "one short")


@rule(For(WARNING, ERROR, None, WARNING, WARNING), source=f"{_NEMO_RL}; verl fills missing rows with 0", todo=_WHOLE)
def experts_empty(facts: SampleFacts) -> Iterator[Found]:
    """Routes that are there have rows."""
    if (counts := _rows(facts)) is not None and not counts[0]:
        yield _say_rows(facts, *counts, "none at all")


@rule(
    For(WARNING, ERROR, None, WARNING, ERROR),
    source=f"{_NEMO_RL}; verl fills missing rows with 0; nobody can know whose rows they are",
    todo=_WHOLE,
)
def experts_short(facts: SampleFacts) -> Iterator[Found]:
    """Routes have a row for each token of prompt and generation."""
    if (counts := _rows(facts)) is not None:
        rows, prompt, generated = counts
        if 0 < rows < prompt + generated - 1 and not (rows == generated and prompt > 1):
            yield _say_rows(facts, *counts, f"{prompt + generated - rows} short")


@rule(
    For(NOTE, NOTE, None, WARNING, ERROR),
    source="NeMo RL takes as many rows as there are tokens; nobody can know whose rows they are",
    todo="See which tokens the rows belong to: rows that begin elsewhere replay the wrong routes.",
)
def experts_extra(facts: SampleFacts) -> Iterator[Found]:
    """Routes have no more rows than prompt and generation have tokens."""
    if (counts := _rows(facts)) is not None:
        rows, prompt, generated = counts
        if rows > prompt + generated:
            yield _say_rows(facts, *counts, f"{rows - prompt - generated} too many")


@rule(
    For(ERROR, ERROR, None, ERROR, ERROR),
    source="contract 1.5 (-1 marks a missing route, nothing is below it); the number of experts that was stated",
    todo="See whether the routes, or the number stated, belong to another model.",
)
def expert_range(facts: SampleFacts) -> Iterator[Found]:
    """Experts are from -1 up, and below the number of experts where that is stated."""
    experts, most = _experts(facts), facts.limits.experts
    if experts is None or not experts.size:
        return
    low, high = int(experts.min()), int(experts.max())
    if low < -1 or (most is not None and high >= most):
        wrong = (experts < -1) if most is None else (experts < -1) | (experts >= most)
        place = tuple(int(axis[0]) for axis in np.nonzero(wrong))
        bound = "there is none below -1" if most is None else f"there are {most}"
        message = f"{int(wrong.sum())} out of range, first {int(experts[place])} in layer {place[1]}; {bound}"
        yield facts.sample.found(message, ROUTES, place[0])


@rule(
    For(WARNING, WARNING, None, WARNING, WARNING),
    source="a router picks top_k different experts",
    todo="The rows are filled or damaged: router replay would weigh one expert twice.",
)
def experts_duplicate(facts: SampleFacts) -> Iterator[Found]:
    """The experts of one token in one layer are different ones (rows of zeros and -1 have rules of their own)."""
    experts = _experts(facts)
    if experts is None or experts.shape[2] < 2 or not experts.size:
        return
    step = max(1, _BLOCK // (experts.shape[1] * experts.shape[2]))
    first, rows = None, 0
    for start in range(0, len(experts), step):
        block = experts[start : start + step]
        ordered = np.sort(block, axis=2)
        twice = (ordered[:, :, 1:] == ordered[:, :, :-1]) & (ordered[:, :, 1:] != -1)
        twice &= block.any(axis=(1, 2))[:, None, None]
        if first is None and twice.any():
            row, layer, place = (int(axis[0]) for axis in np.nonzero(twice))
            first = start + row, layer, int(ordered[row, layer, place])
        rows += int(twice.any(axis=(1, 2)).sum())
    if first is not None:
        what = "1 row names" if rows == 1 else f"{rows} rows name"
        message = f"{what} an expert twice, first expert {first[2]} in layer {first[1]}"
        yield facts.sample.found(message, ROUTES, first[0])


@rule(
    For(WARNING, WARNING, None, WARNING, WARNING),
    source="verl and prime-rl fill missing routes with 0; replay cannot tell them from a choice (SGLang #36404)",
    todo="Expert 0 is a real expert, so these routes would be replayed. Have what is missing marked with -1.",
)
def experts_zero_rows(facts: SampleFacts) -> Iterator[Found]:
    """No token has expert 0 in every place of every layer (looked at where top_k is above 1, or layers are 8)."""
    experts = _experts(facts)
    if experts is None or not experts.size or (experts.shape[2] < 2 and experts.shape[1] < _CHOICES):
        return
    if (rows := np.flatnonzero(~experts.any(axis=(1, 2)))).size:
        yield facts.sample.found(f"{len(rows)} of {len(experts)} rows are all zeros", ROUTES, int(rows[0]))


@rule(
    For(NOTE, NOTE, None, NOTE, NOTE),
    source="engines that pad to a fixed length repeat a row",
    todo="See whether the engine pads routes; if so, have it send as many rows as there are tokens.",
)
def experts_repeated_rows(facts: SampleFacts) -> Iterator[Found]:
    """The routes do not end in one row over and over."""
    experts = _experts(facts)
    if experts is None or not experts.size or not experts[-1].any() or (experts[-1] == -1).any():
        return
    others = np.flatnonzero((experts != experts[-1]).any(axis=(1, 2)))
    first = int(others[-1]) + 1 if others.size else 0
    equal = len(experts) - first
    if equal >= _TAIL and (equal - 1) * experts[-1].size >= _TELLING:
        yield facts.sample.found(f"the last {equal} rows are equal", ROUTES, first)


@rule(
    For(NOTE, NOTE, None, WARNING, NOTE),
    source="contract 1.5; NeMo RL marks a missing route with -1 and fills the last row of a turn from the next",
    todo="Nothing for NeMo RL. A trainer that takes -1 for an expert needs it to be masked first.",
)
def experts_sentinel(facts: SampleFacts) -> Iterator[Found]:
    """Every route is there: none is marked as missing with -1."""
    experts = _experts(facts)
    if experts is None or not experts.size or experts.dtype.kind == "u":
        return
    if (rows := np.flatnonzero((experts == -1).any(axis=(1, 2)))).size:
        yield facts.sample.found(f"{len(rows)} of {len(experts)} rows hold -1, a missing route", ROUTES, int(rows[0]))


@rule(
    For(WARNING, ERROR, None, ERROR, NOTE),
    source="trainers join the routes of all turns into one array",
    todo="Two models, or two configurations, wrote this rollout: find out which turns belong to which.",
)
def experts_shape_changed(facts: SampleFacts) -> Iterator[Found]:
    """Layers and top_k are the same in all turns."""
    experts, before = _experts(facts), facts.routes_before
    if experts is not None and before is not None and experts.size and experts.shape[1:] not in before.shapes:
        now, then = ("x".join(map(str, shape)) for shape in (experts.shape[1:], before.shape))
        yield facts.sample.found(f"layers x top_k is {now}, and {then} in turn {before.turn}", ROUTES)


@rule(
    For(NOTE, NOTE, None, NOTE, NOTE),
    source="NeMo Gym #2089: an envelope is kept as the string it is, and its dtype is a fact of the server",
    todo="Two servers or versions wrote this rollout; most readers take both forms.",
)
def experts_form_changed(facts: SampleFacts) -> Iterator[Found]:
    """Routes come in one form, nested lists or an envelope of one dtype, in all turns."""
    before, routes = facts.routes_before, facts.sample.routes
    if _experts(facts) is not None and before is not None and routes is not None and routes.form not in before.forms:
        yield facts.sample.found(f"routes come as {routes.form}, and as {before.form} in turn {before.turn}", ROUTES)


RULES: tuple[Rule[SampleFacts], ...] = (
    experts_unreadable,
    experts_generation_only,
    experts_one_short,
    experts_empty,
    experts_short,
    experts_extra,
    expert_range,
    experts_duplicate,
    experts_zero_rows,
    experts_repeated_rows,
    experts_sentinel,
    experts_shape_changed,
    experts_form_changed,
)
