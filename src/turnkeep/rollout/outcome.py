"""How a rollout ended: graded or not, and why (contract 7.3, 7.10)."""

from itertools import chain
from typing import NamedTuple

from turnkeep.errors import BudgetExhausted, InvalidPolicyOutput
from turnkeep.rollout.view import RolloutView


class Outcome(NamedTuple):
    """Whether a rollout is graded, the reason of its end where it was cut short, and the error in words."""

    graded: bool
    reason: str | None = None
    error: str | None = None


_GRADED = ((BudgetExhausted, "policy_budget_exceeded"), (InvalidPolicyOutput, "invalid_policy_output"))
"""Errors that end a rollout which is still graded, the stronger first; reasons as in the reference adapter."""


def outcome(rollout: RolloutView, error: BaseException | None = None) -> Outcome:
    """The outcome of a rollout whose agent has returned, or has let `error` reach the top.

    An exhausted budget and an invalid output, anywhere in the error's chain of causes, are graded; so is a group of
    errors that all are. Any other error is not, and neither is a rollout whose last attempt failed, whatever the agent
    made of it.
    """
    if not rollout.gradable:
        failure = rollout.failure or {}
        return Outcome(False, "ungradable", f"{failure.get('type')}: {failure.get('message')}")
    behind = _graded_behind(error)
    for kind, reason in _GRADED:
        for cause in behind:
            if isinstance(cause, kind):
                return Outcome(True, reason, str(cause))
    if error is not None:
        return Outcome(False, "error", words_of(error))
    return Outcome(True)


def words_of(error: BaseException) -> str:
    """An error's type and message as text that anyone can read: no half of a surrogate pair, whatever the error is."""
    try:
        message = str(error)
    except Exception as broken:  # noqa: BLE001 - it is somebody else's __str__
        message = f"its message cannot be made: {type(broken).__name__}"
    return f"{type(error).__name__}: {message}".encode(errors="backslashreplace").decode()


def _graded_behind(error: BaseException | None, seen: frozenset[int] = frozenset()) -> list[BaseException]:
    """The errors behind `error` that end a graded rollout; none where one of a group has nothing such behind it."""
    if error is None or id(error) in seen:
        return []
    seen |= {id(error)}
    caused = _graded_behind(error.__cause__ or error.__context__, seen)
    if isinstance(error, BaseExceptionGroup):
        each = [_graded_behind(one, seen) for one in error.exceptions]
        return [*chain.from_iterable(each), *caused] if all(each) else caused
    return [error, *caused] if isinstance(error, tuple(kind for kind, _ in _GRADED)) else caused
