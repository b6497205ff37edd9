"""One walk along a rollout, a turn in memory at a time, on which every rule looks."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from turnkeep.check.facts import (
    Limits,
    RolloutFacts,
    RoutesBefore,
    Sample,
    SampleFacts,
    Step,
    TurnFacts,
    TurnNote,
    read_lost,
    read_samples,
    read_steps,
    take_note,
)
from turnkeep.check.finding import Found, Rule
from turnkeep.check.rules import ROLLOUT_RULES, SAMPLE_RULES, TURN_RULES
from turnkeep.errors import TurnkeepError
from turnkeep.rollout.conversation import conversation
from turnkeep.rollout.view import RolloutView

type Met = tuple[Rule[Any], Found]


def walk(rollout: RolloutView, vocabulary: int | None, experts: int | None) -> Iterator[Met]:
    """What the rules find, turn by turn, and at the end what those about the whole find."""
    limits = Limits(vocabulary, experts)
    notes: list[TurnNote] = []
    damage: list[TurnkeepError] = []
    before: Sample | None = None
    routes: RoutesBefore | None = None
    for number in range(rollout.turn_count):
        try:
            turn = rollout.turn(number)
        except TurnkeepError as error:
            damage.append(error)
            before = None  # what the next prompt has to begin with is not known
            continue
        facts = TurnFacts(number, rollout.call_of_turn(number), turn, read_samples(number, turn), rollout)
        for sample in facts.samples:
            seen = SampleFacts(sample, before, routes, limits)
            yield from ((rule, found) for rule in SAMPLE_RULES for found in rule.find(seen))
            before, routes = _last_tokens(sample, before), _last_routes(sample, routes)
        yield from ((rule, found) for rule in TURN_RULES for found in rule.find(facts))
        notes.append(take_note(facts))
    whole = _whole(rollout, notes, damage)
    yield from ((rule, found) for rule in ROLLOUT_RULES for found in rule.find(whole))


def _last_tokens(sample: Sample, before: Sample | None) -> Sample | None:
    """The last trainable item, with its token ids alone; None where they cannot be read."""
    if sample.prompt is None or sample.generation is None:
        return None
    return replace(sample, routes=None, log_probs=None) if sample.is_trainable else before


def _last_routes(sample: Sample, before: RoutesBefore | None) -> RoutesBefore | None:
    """What the next routes are compared with."""
    routes = sample.routes
    if not sample.is_trainable or routes is None or routes.experts is None or not routes.experts.size:
        return before
    return RoutesBefore(sample.turn, routes.experts.shape[1:], routes.form)


def _whole(rollout: RolloutView, notes: list[TurnNote], damage: list[TurnkeepError]) -> RolloutFacts:
    """What the rules about the whole rollout see."""
    lost: tuple[Found, ...] = ()
    steps: tuple[Step, ...] = ()
    knows = bool(rollout.calls)
    try:
        knows = knows or "output" in (rollout.origin or {})
        lost = tuple(read_lost(rollout))
        steps = tuple(read_steps(conversation(rollout), notes))
    except TurnkeepError as error:
        damage.append(error)
    return RolloutFacts(rollout, tuple(notes), tuple(damage), lost, steps, knows)
