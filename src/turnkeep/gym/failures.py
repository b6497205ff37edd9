"""What the end of a run is called, for Gym: a reason of a graded end, or the class of a failure."""

from collections.abc import Iterator
from typing import NamedTuple

import httpx

from turnkeep.errors import RolloutBusy, TransportFailure
from turnkeep.rollout.outcome import words_of
from turnkeep.rollout.policy import RETRIED
from turnkeep.rollout.view import RolloutView

TERMINATION_DETAILS = {
    "policy_budget_exceeded": "The agent wanted more policy calls than max_policy_calls; it was graded as it stood.",
    "invalid_policy_output": "The policy's output did not satisfy the schema asked for; it was graded as it stood.",
}
"""The gap that comes with each reason of a graded end (`nooa_termination_reason`)."""

FAILURE_DETAILS = {
    "transient": "The run failed for a reason that may pass: a connection, a timeout or a server error.",
    "timeout_exceeded": "The run took longer than run_timeout_secs.",
    "legitimate": "The run failed for a reason that will not pass by itself.",
}
"""The gap that comes with each class of failure (`_ng_failure_class`)."""


class Failure(NamedTuple):
    """A run that is not graded: Gym's class, whether it is never to be tried again, the error in words and its type.

    `status` is the HTTP status that says the same, for an answer that has no row to say it in.
    """

    failure_class: str
    terminal: bool
    error: str
    kind: str
    status: int


class EpisodeTimeout(TimeoutError):
    """The run took longer than `run_timeout_secs`."""


def failure_of(error: BaseException | None, rollout: RolloutView | None) -> Failure:
    """The failure that an error that reached the top makes, or (None) a rollout that is not fit to be graded."""
    if isinstance(error, EpisodeTimeout):
        return Failure("timeout_exceeded", True, str(error), "EpisodeTimeout", 504)
    failed = {} if rollout is None or error is not None else rollout.failure or {}
    kind = str(failed.get("type")) if error is None else type(error).__name__
    text = f"{kind}: {failed.get('message')}" if error is None else words_of(error)
    passing = any(map(_may_pass, _causes(error))) or (rollout is not None and _last_call_may_pass(rollout))
    return Failure("transient" if passing else "legitimate", False, text, kind, _status(error, passing))


def _status(error: BaseException | None, passing: bool) -> int:
    if any(isinstance(cause, RolloutBusy) for cause in _causes(error)):
        return 409
    return 502 if passing else 500


def _may_pass(error: BaseException) -> bool:
    """Connections, timeouts and server errors, wherever in the chain of causes they are; also another writer."""
    if isinstance(error, TransportFailure):
        return _broke_off(error.status) and (error.status is not None or error.body is None)
    import aiohttp  # Gym's, whose import takes a while

    of_httpx = (httpx.NetworkError, httpx.TimeoutException, httpx.RemoteProtocolError)
    of_aiohttp = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)
    if isinstance(error, (RolloutBusy, TimeoutError, ConnectionError, *of_httpx, *of_aiohttp)):
        return True
    status = getattr(error, "status", getattr(getattr(error, "response", None), "status_code", None))
    return isinstance(status, int) and status in RETRIED  # aiohttp's and httpx's, from an adapter's own calls


def _last_call_may_pass(rollout: RolloutView) -> bool:
    """Whether the last attempt failed in transport and may pass; the agent may have hidden the error."""
    failure = rollout.failure or {}
    if rollout.gradable or failure.get("type") != "TransportFailure" or "call" not in failure:
        return False
    call = rollout.calls[failure["call"]]
    return call.response is None and (not call.attempts or _broke_off(call.attempts[-1].status))


def _broke_off(status: int | None) -> bool:
    """Whether no answer came, only a part of one (whose status was good), or one that may be another next time."""
    return status is None or 200 <= status < 300 or status in RETRIED


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and all that stands behind it: by cause, by context, in a group."""
    waiting, seen = [error], set[int]()
    while waiting:
        now = waiting.pop(0)
        if now is None or id(now) in seen:
            continue
        seen.add(id(now))
        yield now
        waiting += [now.__cause__, now.__context__, *(now.exceptions if isinstance(now, BaseExceptionGroup) else ())]
