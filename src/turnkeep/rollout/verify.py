"""Verifying a rollout: digests, agreement, and that the history is exactly what the evidence holds (contract 9.3)."""

from collections.abc import Iterator
from dataclasses import dataclass

from turnkeep.errors import TurnkeepError
from turnkeep.history.agreement import part_disagreement
from turnkeep.rollout.evidence import CallRecord, captured
from turnkeep.rollout.view import RolloutView


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it must be, and where: `rule` is a stable name."""

    rule: str
    message: str
    turn: int | None = None
    call: int | None = None
    item: int | None = None
    field: str | None = None
    index: int | None = None


def verify_rollout(rollout: RolloutView) -> Iterator[Finding]:
    """What is wrong with a rollout, as it is found; nothing where all holds.

    Rules: `corrupt` (bytes are not what was written, a request cannot be rebuilt), `disagreement` (a part differs from
    its native item), `history_differs` (a turn is not what its response makes),
    `response_missing` (a turn without the response that it was made of).
    """
    for number in range(rollout.turn_count):
        yield from _verify_turn(rollout, number)
    for read in (lambda: rollout.origin, rollout.tools, lambda: rollout.failures):
        try:
            read()
        except TurnkeepError as error:
            yield corrupt(error)
    for call in rollout.calls:
        yield from _verify_call(rollout, call)


def corrupt(error: TurnkeepError) -> Finding:
    """The finding that an error is which reading raised."""
    return Finding("corrupt", error.message, error.turn, error.call, error.item, error.field, error.index)


def _verify_turn(rollout: RolloutView, number: int) -> Iterator[Finding]:
    try:
        turn = rollout.turn(number)
    except TurnkeepError as error:
        yield corrupt(error)
        return
    for index, part in enumerate(turn.parts):
        if part.native is not None and (why := part_disagreement(part)) is not None:
            yield Finding("disagreement", why, turn=number, call=rollout.call_of_turn(number), item=index)


def _verify_call(rollout: RolloutView, call: CallRecord) -> Iterator[Finding]:
    try:
        rollout.request(call.number)
        rollout.attempt_bodies(call.number)
        body = rollout.response(call.number)
    except TurnkeepError as error:
        yield corrupt(error)
        return
    if call.turn is None:
        return  # failed, in flight, or answered when the process died: a re-run makes the turn
    if body is None:
        yield Finding("response_missing", "a turn without the response it was made of", call.turn, call.number)
        return
    try:
        kept = rollout.turn(call.turn)
    except TurnkeepError:
        return  # reported with the turn
    try:
        same = captured(call, body, kept).digest == kept.digest
    except TurnkeepError as error:
        yield Finding("history_differs", f"the response makes no turn: {error.message}", call.turn, call.number)
        return
    if not same:
        yield Finding("history_differs", "the turn is not what its response makes", call.turn, call.number)
