"""A whole `/run` and a whole `/v1/responses` of the Gym agent server: bytes in, bytes out.

A run is seed, episode, verify. Whatever happens in it becomes a row: graded, or a failure with its class, since one
rollout must not end the collection of the others. A cancelled run is left as it is, to be taken up again.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import uuid4

from turnkeep.errors import ConfigurationError, TransportFailure, TurnkeepError
from turnkeep.gym import hop, observe
from turnkeep.gym.answer import (
    NON_TRAINABLE,
    NON_TRAINABLE_DETAIL,
    OutputItem,
    fallback_message,
    output_items,
    response_bytes,
    row_bytes,
    turn_of,
)
from turnkeep.gym.config import Setup, read_request
from turnkeep.gym.episode import Episode, PolicyStep, run_episode
from turnkeep.gym.failures import (
    FAILURE_DETAILS,
    TERMINATION_DETAILS,
    EpisodeTimeout,
    Failure,
    failure_of,
)
from turnkeep.gym.identity import attempt_id, claim, pick, rollout_id, task_id
from turnkeep.gym.resources import ResourcesClient, merge_cookies
from turnkeep.history.gaps import Gap
from turnkeep.rollout.gym_row import MEMBER, write_member
from turnkeep.rollout.outcome import outcome
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.rerun import count_answered
from turnkeep.store.base import Store
from turnkeep.wire.json import InexactJson, NotJson, dumps, loads
from turnkeep.wire.scan import scan_body


class Reply(NamedTuple):
    """An HTTP answer: status, JSON body, cookies to set."""

    status: int
    body: bytes
    cookies: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: what kind, the row, its `responses_create_params` as JSON and as Gym's object, its cookies."""

    kind: str
    row: Mapping[str, Any]
    params: Mapping[str, Any]
    request: Any
    cookies: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Around:
    """What a run stands in: the server's setup and store, and the URLs of the other servers.

    `ids_expected` says that the model server is configured to return token ids; `skip_reward` is the reward to give
    where nothing is to be verified, else None.
    """

    setup: Setup
    store: Store
    model_url: str
    resources_url: str
    ids_expected: bool = False
    skip_reward: float | None = None
    answered: set[str] = field(default_factory=set)
    """The rollouts that this process has answered with a graded row, or a response: they are not gone on with."""


@dataclass(slots=True)
class Ended:
    """How a run ended: the run (None where none could begin), the items of its output, why it was cut short."""

    run: Episode | None
    items: list[OutputItem]
    gaps: tuple[Gap, ...] = ()
    reason: str | None = None
    error: str | None = None
    failure: Failure | None = None
    seconds: float = 0.0


def read_run(body: bytes, cookies: Mapping[str, str]) -> Asked:
    """A `/run` request. Raises ConfigurationError."""
    row = _read(body)
    if not isinstance(row, dict) or not isinstance(row.get("responses_create_params"), dict):
        raise ConfigurationError("a run request is a JSON object with an object responses_create_params")
    params = row["responses_create_params"]
    return Asked("gym-run", row, params, read_request("responses_create_params", params), cookies)


def read_responses(body: bytes, cookies: Mapping[str, str], rollout: str | None) -> Asked:
    """A `/v1/responses` request; `rollout` is the id that its URL names, or None. Raises ConfigurationError."""
    params = _read(body)
    if not isinstance(params, dict):
        raise ConfigurationError("a Responses request is a JSON object")
    row = {"responses_create_params": params, **({} if rollout is None else {"_ng_rollout_id": rollout})}
    return Asked("gym-responses", row, params, read_request("request", params), cookies)


def _read(body: bytes) -> Any:
    try:
        return loads(body)
    except (NotJson, InexactJson) as error:
        raise ConfigurationError(f"the body is no JSON that can be kept exactly: {error}") from None


async def answer_run(around: Around, asked: Asked) -> Reply:
    """Seed, run, verify: a graded row, or one that says why it is not."""
    async with AsyncExitStack() as stack:
        ended, resources = await _attempt(around, asked, stack, seed=True)
        if ended.failure is None:
            try:
                row = await _graded_row(around, asked, ended, resources)
                reply = Reply(200, row, _cookies(asked, ended, resources))
                return _answered(around, ended, reply)
            except Exception as error:  # noqa: BLE001 - one rollout must not end the others
                _fail(ended, failure_of(error, None))
        return _failed_reply(around, asked, ended, resources)


async def answer_responses(around: Around, asked: Asked) -> Reply:
    """Run, without seed and verify: the Responses object, or an HTTP error that says what the run failed with."""
    async with AsyncExitStack() as stack:
        ended, resources = await _attempt(around, asked, stack, seed=False)
        failure = ended.failure
        if failure is None:
            try:
                reply = Reply(200, _response(around, asked, ended), _cookies(asked, ended, resources))
                return _answered(around, ended, reply)
            except Exception as error:  # noqa: BLE001 - the answer says what is wrong, as for any other failure
                failure = failure_of(error, None)
        return error_reply(failure.status, failure.error, failure.kind)


def _answered(around: Around, ended: Ended, reply: Reply) -> Reply:
    if ended.run is not None:
        around.answered.add(ended.run.rollout.id)
    return reply


def error_reply(status: int, message: str, kind: str) -> Reply:
    """An error as the Responses API words it."""
    return Reply(status, dumps({"error": {"message": message, "type": kind}}), {})


async def _attempt(
    around: Around, asked: Asked, stack: AsyncExitStack, *, seed: bool
) -> tuple[Ended, ResourcesClient | None]:
    """Open the rollout and run the agent in it. Nothing but a cancellation gets out of here."""
    begun = time.monotonic()
    run: Episode | None = None
    resources: ResourcesClient | None = None
    error: BaseException | None = None
    try:
        run = stack.enter_context(_opened(around, asked))
        timeout = around.setup.run_timeout_secs
        client = ResourcesClient(around.resources_url, asked.cookies, timeout)
        resources = await stack.enter_async_context(client)
        if seed:
            await resources.post_checked("/seed_session", dumps(asked.row))
        await _run_in_time(around, asked, run, resources)
    except asyncio.CancelledError as caught:
        task = asyncio.current_task()
        if task is None or task.cancelling():  # the client has gone, or the server ends
            raise
        error = caught  # the agent's own: something that it waited for was cancelled
    except Exception as caught:  # noqa: BLE001 - one rollout must not end the others
        error = caught
    try:
        ended = _end(around, run, error)
    except TurnkeepError as broken:  # the store does not give back what the run was told
        ended = _fail(Ended(None, []), failure_of(broken, None))
    ended.seconds = time.monotonic() - begun
    return ended, resources


@contextmanager
def _opened(around: Around, asked: Asked) -> Iterator[Episode]:
    """The rollout that a request is about, and its run that begins now."""
    setup = around.setup
    known_as = rollout_id(asked.row)
    if setup.resume:
        name = pick(around.store, known_as, asked.kind, asked.row, around.answered)
    else:
        name = f"{known_as}-{uuid4().hex[:8]}"
    budget = setup.max_policy_calls
    with Rollout.open(around.store, name, scope=setup.scope, max_policy_calls=budget, rerun=setup.resume) as rollout:
        claim(rollout, asked.kind, asked.row)
        yield Episode(rollout, attempt_id(asked.row, known_as), recorded=count_answered(rollout.calls))


async def _run_in_time(around: Around, asked: Asked, run: Episode, resources: ResourcesClient) -> None:
    late: Exception | None = None
    try:
        async with asyncio.timeout(around.setup.run_timeout_secs) as limit:
            await run_episode(
                around.setup,
                run,
                asked.request,
                asked.params,
                model_url=around.model_url,
                members=hop.request_members(),
                cookies=asked.cookies,
                resources=resources,
            )
    except Exception as error:
        if not limit.expired():
            raise
        late = error
    if limit.expired():  # also where the agent made light of being stopped
        seconds = around.setup.run_timeout_secs
        raise EpisodeTimeout(f"the run took longer than run_timeout_secs={seconds:g} seconds") from late


def _end(around: Around, run: Episode | None, error: BaseException | None) -> Ended:
    """What an agent that returned, or an error that reached the top, makes of a run."""
    if run is None:
        return _fail(Ended(None, []), failure_of(error, None))
    if run.fault is not None and not isinstance(error, EpisodeTimeout):
        error = run.fault
    result = outcome(run.rollout, error)
    items = list(output_items(run.rollout, run.steps))
    turns = [turn_of(run.rollout, step.call) for step in run.steps if isinstance(step, PolicyStep)]
    gaps = hop.turn_gaps(turns, ids_expected=around.ids_expected)
    if not result.graded or isinstance(error, EpisodeTimeout):
        run.rollout.add_gaps(gaps)
        return _fail(Ended(run, items, run.rollout.gaps), failure_of(error, run.rollout))
    if result.reason is not None:
        gaps.append(Gap(result.reason, None, TERMINATION_DETAILS[result.reason]))
    message = fallback_message(run.value, items) if error is None else None
    if message is not None:
        items.append(message)
        gaps.append(Gap(NON_TRAINABLE, None, NON_TRAINABLE_DETAIL))
    run.rollout.add_gaps(gaps)
    return Ended(run, items, run.rollout.gaps, result.reason, result.error)


def _fail(ended: Ended, failure: Failure) -> Ended:
    """The same run as one that failed, with the gap that says so."""
    told = Gap(failure.failure_class, None, FAILURE_DETAILS[failure.failure_class])
    ended.failure, ended.gaps = failure, (*ended.gaps, told)
    return ended


async def _graded_row(around: Around, asked: Asked, ended: Ended, resources: ResourcesClient | None) -> bytes:
    assert ended.run is not None
    assert resources is not None
    members = {name: value for name, value in asked.row.items() if name != "response"}
    response = _response(around, asked, ended)
    if around.skip_reward is not None:
        verified = {"reward": around.skip_reward, "verification_skipped": True}
    else:
        shown = _shown_to_verifier(ended)
        seen = response if shown is ended.items else _response(around, asked, ended, shown)
        verified = _verdict(await resources.post_checked("/verify", row_bytes(members, seen)))
    if ended.reason is not None:
        members |= {"nooa_termination_reason": ended.reason, "nooa_termination_error": ended.error}
    return row_bytes({**members, **verified, **_evidence(around, asked, ended)}, response)


def _verdict(body: bytes) -> dict[str, Any]:
    """What the verifier says, less its echoes of the request and the response, which its Gym's classes have been at."""
    try:
        said = scan_body(body).value
    except (NotJson, InexactJson) as error:
        raise TransportFailure(f"/verify answered with no JSON that can be kept: {error}", body=body) from None
    if not isinstance(said, dict) or type(said.get("reward")) not in (int, float):
        shown = body[:200].decode(errors="replace")
        raise TransportFailure(f"/verify answered without a reward that is a number: {shown}", body=body)
    return {name: value for name, value in said.items() if name not in ("response", "responses_create_params")}


def _shown_to_verifier(ended: Ended) -> list[OutputItem]:
    """The items that the classes of this Gym let through; all of them in most runs."""
    assert ended.run is not None
    lean = [item for item in ended.items if not hop.is_refused(item.lean)]
    if len(lean) == len(ended.items):
        return ended.items
    ended.run.rollout.add_gap(hop.ITEM_WITHHELD, detail=hop.DETAILS[hop.ITEM_WITHHELD])
    ended.gaps = ended.run.rollout.gaps
    return lean


def _failed_reply(around: Around, asked: Asked, ended: Ended, resources: ResourcesClient | None) -> Reply:
    failure = ended.failure
    assert failure is not None
    try:
        cookies = _cookies(asked, ended, resources)
    except ValueError:
        cookies = {}
    routing = {"reward": 0.0, "_ng_failure_class": failure.failure_class, "error": failure.error}
    if failure.terminal:
        routing["_ng_failure_terminal"] = True
    members = {**asked.row, **routing, **_evidence(around, asked, ended)}
    reply = Reply(200, row_bytes(members, _response(around, asked, ended)), cookies)
    return reply if failure.failure_class == "transient" else _answered(around, ended, reply)


def _response(around: Around, asked: Asked, ended: Ended, items: Sequence[OutputItem] | None = None) -> bytes:
    error = None
    if ended.failure is not None:
        status = "incomplete" if ended.failure.failure_class == "timeout_exceeded" else "failed"
        error = (status, ended.failure.error)
    elif ended.reason is not None:
        error = ("failed", ended.error or ended.reason)
    shown = ended.items if items is None else items
    return response_bytes(ended.run, asked.params, shown, around.setup.model_server, error)


def _evidence(around: Around, asked: Asked, ended: Ended) -> dict[str, Any]:
    """What the row says besides: where the rollout is, its gaps, and Gym's observations."""
    failure = ended.failure
    told = None if failure is None else {"type": failure.kind, "status": failure.status}
    if ended.run is None:
        return {MEMBER: write_member(None, ended.gaps, told)}
    rollout = ended.run.rollout
    member = write_member(rollout.id, ended.gaps, told)
    member |= {"recorded_calls": ended.run.recorded, "policy_calls": rollout.used, "difference": rollout.difference}
    reason = failure.failure_class if failure is not None else ended.reason
    status = "failed" if reason is not None else "completed"
    facts = observe.Told(
        task_id(asked.row), around.setup.model_server, status, reason, ended.seconds * 1000, ended.gaps
    )
    return {MEMBER: member, **observe.observations(ended.run, asked.params, facts)}


def _cookies(asked: Asked, ended: Ended, resources: ResourcesClient | None) -> dict[str, str]:
    model = {} if ended.run is None else ended.run.rollout.cookies
    return merge_cookies(asked.cookies, model, {} if resources is None else resources.cookies)
