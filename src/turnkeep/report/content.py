"""What the page of a rollout tells, gathered: numbers, the conversation, findings, and arrays for its pictures."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from turnkeep.check.doctor import check_rollout
from turnkeep.check.facts import Array, Sample
from turnkeep.check.finding import Finding, Severity
from turnkeep.errors import TurnkeepError
from turnkeep.report.arrays import Carried, carry
from turnkeep.report.experts import Experts, Tally
from turnkeep.report.measure import Numbers, Seen, finite_mean, see_turns, unsettled, why_portable
from turnkeep.report.talk import Block, Message, blocks_of_turn, message_of
from turnkeep.rollout.conversation import conversation
from turnkeep.rollout.evidence import CallRecord
from turnkeep.rollout.view import RolloutView


class Tokens(NamedTuple):
    """The generated tokens of one item: how many, their ids, and their log probs where there are as many."""

    item: int
    length: int
    ids: Carried
    log_probs: Carried | None


@dataclass(frozen=True, slots=True)
class Card:
    """One turn of the conversation; sizes are in bytes, None where they are not known."""

    number: int
    call: int | None
    numbers: Numbers
    blocks: tuple[Block, ...] = ()
    tokens: tuple[Tokens, ...] = ()
    portable: str | None = None
    """Why it replays by its public parts, or None where it replays natively."""
    finish_reason: str = ""
    model: str | None = None
    request_size: int | None = None
    response_size: int | None = None
    error: str | None = None
    """What is damaged."""


class FindingGroup(NamedTuple):
    """What one rule found: the first finding speaks for all, `places` says where each is."""

    severity: Severity
    rule: str
    message: str
    todo: str
    places: tuple[tuple[int | None, str], ...]
    """The turn, and the whole place in words."""


class Series(NamedTuple):
    """Numbers for a chart of columns, one for each turn; NaN is not known."""

    name: str
    values: Carried


@dataclass(frozen=True, slots=True)
class Content:
    """A rollout as its page shows it."""

    rollout: RolloutView
    cards: tuple[Card, ...]
    entries: tuple[Card | Message, ...]
    findings: tuple[FindingGroup, ...]
    unusual: tuple[CallRecord, ...]
    """The policy calls that failed, are in flight, were tried again or made no turn."""
    failures: tuple[str, ...]
    """Failures that came before any call, and tools marked `once` that a person has to settle."""
    experts: Experts | None
    prompts: tuple[Series, ...]
    sizes: tuple[Series, ...]
    surprise: tuple[Series, ...]
    damage: str | None = None
    """Why the conversation could not be told in order."""

    @property
    def generated(self) -> int:
        """How many tokens were generated."""
        return sum(card.numbers.generated or 0 for card in self.cards)

    @property
    def mean_log_prob(self) -> float | None:
        """The mean log prob of all generated tokens; None where there is none that is finite."""
        log_probs = [card.numbers.log_probs for card in self.cards if card.numbers.log_probs is not None]
        return finite_mean(np.concatenate(log_probs)) if log_probs else None

    def count(self, severity: str) -> int:
        """How many findings are of a severity."""
        return sum(len(group.places) for group in self.findings if group.severity == severity)


def gather(rollout: RolloutView, advance: Callable[[], object] = lambda: None) -> Content:
    """Everything the page tells of a rollout. `advance` is called after each turn. Damage is told, not raised."""
    cards, tally = [], Tally()
    for seen in see_turns(rollout):
        cards.append(make_card(rollout, seen))
        tally.add(seen.samples, seen.shared)
        advance()
    entries, damage = _entries(rollout, cards)
    return Content(
        rollout,
        tuple(cards),
        entries,
        group_findings(check_rollout(rollout)),
        tuple(call for call in rollout.calls if call.failure or call.attempts or call.turn is None),
        tuple(unsettled(rollout)),
        tally.result(),
        _prompts(cards),
        (
            _series("request", (card.request_size for card in cards)),
            _series("response", (card.response_size for card in cards)),
        ),
        (_series("mean surprise, nats", (_surprise(card) for card in cards)),),
        damage,
    )


def make_card(rollout: RolloutView, seen: Seen) -> Card:
    """One turn as the page shows it."""
    request = None if seen.call is None else rollout.calls[seen.call].request.length
    if seen.turn is None:
        return Card(seen.number, seen.call, seen.numbers, request_size=request, error=str(seen.error))
    body = seen.turn.body
    return Card(
        seen.number,
        seen.call,
        seen.numbers,
        blocks_of_turn(seen.turn),
        tuple(_tokens(sample) for sample in seen.samples if sample.generation is not None),
        why_portable(seen.turn, rollout.scope),
        seen.turn.finish_reason,
        seen.turn.model_name,
        request,
        None if body is None else len(body),
    )


def _tokens(sample: Sample) -> Tokens:
    assert sample.generation is not None
    ids, log_probs = sample.generation, sample.log_probs
    alike = log_probs is not None and len(log_probs) == len(ids)
    return Tokens(sample.item, len(ids), carry(ids), carry(log_probs) if alike and log_probs is not None else None)


def _entries(rollout: RolloutView, cards: list[Card]) -> tuple[tuple[Card | Message, ...], str | None]:
    """The conversation; where it cannot be read, the turns alone and the reason."""
    try:
        return tuple(
            cards[said.turn] if said.turn is not None else message_of(said.item or {}) for said in conversation(rollout)
        ), None
    except TurnkeepError as error:
        return tuple(cards), str(error)


def group_findings(findings: Iterable[Finding]) -> tuple[FindingGroup, ...]:
    """Findings by rule and severity, the gravest first."""
    groups: dict[tuple[Severity, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.rule), []).append(finding)
    order = list(Severity)
    return tuple(
        FindingGroup(severity, rule, found[0].message, found[0].todo, tuple((f.turn, place_of(f)) for f in found))
        for (severity, rule), found in sorted(groups.items(), key=lambda group: order.index(group[0][0]))
    )


def place_of(finding: Finding) -> str:
    """`turn 3, item 0, generation_log_probs[17]`."""
    field = "" if finding.field is None else finding.field + ("" if finding.index is None else f"[{finding.index}]")
    call = finding.call if finding.turn is None else None
    places = (("turn", finding.turn), ("call", call), ("item", finding.item))
    told = [f"{name} {value}" for name, value in places if value is not None]
    return ", ".join([*told, *([field] if field else [])]) or "the rollout"


def _prompts(cards: list[Card]) -> tuple[Series, ...]:
    """Each prompt in two pieces, what it shares with what came before it and what is new, and the generation."""
    numbers = [card.numbers for card in cards]
    return (
        _series("shared with the turn before", (n.shared or (0 if n.prompt is not None else None) for n in numbers)),
        _series("new in the prompt", (None if n.prompt is None else n.prompt - (n.shared or 0) for n in numbers)),
        _series("generated", (n.generated for n in numbers)),
    )


def _surprise(card: Card) -> float | None:
    mean = card.numbers.mean_log_prob
    return None if mean is None else -mean


def _series(name: str, values: Iterable[float | None]) -> Series:
    array: Array = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return Series(name, carry(array))
