"""Verifying a rollout: digests, agreement, and that the history is exactly what the evidence holds (contract 9.3)."""

from collections.abc import Iterator
from typing import NamedTuple

from turnkeep.errors import TurnkeepError
from turnkeep.history.agreement import disagreement
from turnkeep.history.capture import capture, capture_without_native
from turnkeep.rollout.evidence import CallRecord
from turnkeep.rollout.view import RolloutView


class Finding(NamedTuple):
    """One thing that is not as it must be, and where: `rule` is a stable name."""

    rule: str
    message: str
    turn: int | None = None
    call: int | None = None
    item: int | None = None
    field: str | None = None


def verify_rollout(rollout: RolloutView) -> Iterator[Finding]:
    """What is wrong with a rollout, as it is found; nothing where all holds.

    Rules: `corrupt` (bytes are not what was written), `disagreement` (a turn's public fields differ from its native
    items), `history_differs` (a turn is not what its response makes), `request_differs` (a request cannot be rebuilt),
    `response_missing`, `turn_missing` (a good response without its turn, where it is not the last call).
    """
    for number in range(rollout.turn_count):
        yield from _verify_turn(rollout, number)
    for call in rollout.calls:
        yield from _verify_call(rollout, call)


def _corrupt(error: TurnkeepError) -> Finding:
    return Finding("corrupt", error.message, error.turn, error.call, error.item, error.field)


def _verify_turn(rollout: RolloutView, number: int) -> Iterator[Finding]:
    try:
        turn = rollout.turn(number)
    except TurnkeepError as error:
        yield _corrupt(error)
        return
    call = rollout.call_of_turn(number)
    kept_malformed = call is not None and rollout.calls[call].failure is not None
    if not kept_malformed and (why := disagreement(turn)) is not None:
        yield Finding("disagreement", why, turn=number, call=call)


def _verify_call(rollout: RolloutView, call: CallRecord) -> Iterator[Finding]:
    try:
        rollout.request(call.number)
        rollout.attempt_bodies(call.number)
        body = rollout.response(call.number)
    except TurnkeepError as error:
        yield _corrupt(error)
        return
    if call.turn is None:
        if body is not None and call.failure is None and call.number < len(rollout.calls) - 1:
            yield Finding("turn_missing", "a response was kept and no turn was made of it", call=call.number)
        return
    if body is None:
        yield Finding("response_missing", "a turn without the response it was made of", call.turn, call.number)
        return
    try:
        kept = rollout.turn(call.turn)
    except TurnkeepError:
        return  # reported with the turn
    make = capture if call.failure is None else capture_without_native
    try:
        same = make(body, rollout.scope).digest == kept.digest
    except TurnkeepError as error:
        yield Finding("history_differs", f"the response makes no turn: {error.message}", call.turn, call.number)
        return
    if not same:
        yield Finding("history_differs", "the turn is not what its response makes", call.turn, call.number)
