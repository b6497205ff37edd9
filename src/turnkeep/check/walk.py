"""One walk along a rollout, a turn in memory at a time, on which every rule looks."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from turnkeep.check.facts import (
    Limits,
    RolloutFacts,
    RoutesBefore,
    Sample,
    SampleFacts,
    Talk,
    TurnFacts,
    TurnNote,
    first_difference,
    read_lost,
    read_lost_of_row,
    read_samples,
    read_talk,
    take_note,
)
from turnkeep.check.finding import Found, Rule
from turnkeep.check.rules import ROLLOUT_RULES, SAMPLE_RULES, TURN_RULES
from turnkeep.errors import TurnkeepError
from turnkeep.rollout.conversation import conversation, layout
from turnkeep.rollout.view import RolloutView

type Met = tuple[Rule[Any], Found]


def walk(rollout: RolloutView, vocabulary: int | None, experts: int | None) -> Iterator[Met]:
    """What the rules find, turn by turn, and at the end what those about the whole find."""
    limits = Limits(vocabulary, experts)
    notes: list[TurnNote] = []
    damage: list[TurnkeepError] = []
    chain = _Chain()
    routes: RoutesBefore | None = None
    for number in range(rollout.turn_count):
        try:
            turn = rollout.turn(number)
        except TurnkeepError as error:
            damage.append(error)
            chain = _Chain()  # what the next prompt has to begin with is not known
            continue
        facts = TurnFacts(number, rollout.call_of_turn(number), turn, read_samples(number, turn), rollout)
        for sample in facts.samples:
            parts_at = _parts_at(sample, chain)
            seen = SampleFacts(sample, chain.last, parts_at, routes, limits)
            yield from ((rule, found) for rule in SAMPLE_RULES for found in rule.find(seen))
            chain, routes = _grown(chain, sample, parts_at), _last_routes(sample, routes)
        yield from ((rule, found) for rule in TURN_RULES for found in rule.find(facts))
        notes.append(take_note(facts))
    whole = _whole(rollout, notes, damage)
    yield from ((rule, found) for rule in ROLLOUT_RULES for found in rule.find(whole))


class _Chain(NamedTuple):
    """What the next prompt has to begin with: the last trainable item, with its token ids alone.

    Where that one did not go on from those before it, `intact` is the last that did.
    """

    last: Sample | None = None
    intact: Sample | None = None


def _parts_at(sample: Sample, chain: _Chain) -> int | None:
    """Where a prompt parts from what it has to begin with; None where it does not."""
    if chain.last is None or not sample.is_trainable:
        return None
    index = _difference(sample, chain.last)
    if index is not None and chain.intact is not None and _difference(sample, chain.intact) is None:
        return None
    return index


def _difference(sample: Sample, before: Sample) -> int | None:
    assert sample.prompt is not None
    assert before.prompt is not None
    assert before.generation is not None
    return first_difference(sample.prompt, before.prompt, before.generation)


def _grown(chain: _Chain, sample: Sample, parts_at: int | None) -> _Chain:
    """The chain with one more item; empty where its token ids cannot be read."""
    if sample.prompt is None or sample.generation is None:
        return _Chain()
    if not sample.is_trainable:
        return chain
    last = replace(sample, routes=None, log_probs=None)
    return _Chain(last, None if parts_at is None else chain.intact or chain.last)


def _last_routes(sample: Sample, before: RoutesBefore | None) -> RoutesBefore | None:
    """What the next routes are compared with."""
    routes = sample.routes
    if not sample.is_trainable or routes is None or routes.experts is None or not routes.experts.size:
        return before
    shape, form = routes.experts.shape[1:], routes.form
    shapes, forms = (frozenset(), frozenset()) if before is None else (before.shapes, before.forms)
    return RoutesBefore(sample.turn, shape, form, shapes | {shape}, forms | {form})


def _whole(rollout: RolloutView, notes: list[TurnNote], damage: list[TurnkeepError]) -> RolloutFacts:
    """What the rules about the whole rollout see."""
    of_row: tuple[Found, ...] = ()
    talk = Talk()
    knows = bool(rollout.calls)
    tools: list[dict[str, Any]] = []
    try:
        entries = layout(rollout.origin or {}, rollout.turn_count)
        knows = knows or entries is not None
        of_row = tuple(read_lost_of_row(entries or ()))
        talk = read_talk(conversation(rollout), notes)
    except TurnkeepError as error:
        damage.append(error)
    try:
        tools = rollout.tools()
    except TurnkeepError as error:
        damage.append(error)
    lost = tuple(read_lost(rollout))
    return RolloutFacts(rollout, tuple(notes), tuple(damage), lost, of_row, talk, knows, tuple(tools))
