"""One policy call, in the order of contract 7.1: project, charge, keep the request, send, keep the response, check.

    async with PolicyClient("http://127.0.0.1:8000", rollout) as policy:
        turn = await policy.call([{"role": "user", "content": "Oslo?"}])

Each step that changes the rollout is durable before the next begins, so a process killed anywhere leaves a rollout
that says exactly how far it got.
"""

import asyncio
import importlib
import itertools
import logging
import random
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Self

from turnkeep.errors import (
    ConfigurationError,
    MalformedItem,
    PreparationFailure,
    TransportFailure,
    TurnkeepError,
    UnsupportedClientCall,
)
from turnkeep.history.capture import capture, capture_without_native
from turnkeep.history.gaps import MALFORMED_TRAINING, PORTABLE_AFTER_NATIVE, Gap, gap
from turnkeep.history.projection import Entry, project
from turnkeep.history.turn import Turn
from turnkeep.history.wire_cache import DEFAULT_BYTES, WireCache
from turnkeep.rollout.body_hash import BodyHash
from turnkeep.rollout.evidence import CallRecord, Prepared, Reply
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.rerun import MadeUpIds
from turnkeep.wire.scan import Scanned

if TYPE_CHECKING:
    import httpx

_log = logging.getLogger("turnkeep")

RETRIED = frozenset({408, 425, 429, *range(500, 600)})
"""HTTP statuses after which a call is tried again."""
_LONGEST_WAIT = 60.0


class Answer(NamedTuple):
    """A policy's turn, and the number of the policy call that it came from: the key of its evidence in the rollout."""

    turn: Turn
    call: int


class PolicyClient:
    """Calls a model server's `/v1/responses` for one rollout.

    `sampling` are request members that win over those of a call. `timeout` is in seconds, for each try. `retries`
    bounds how often a try is repeated after a connection error or one of `RETRIED`, waiting `backoff` seconds, then
    twice that, and so on (a server's Retry-After wins). `on_malformed="gap"` keeps a turn without native items where
    the default raises (7.9). `prefix_guard="send"` sends training fields even where a server would splice the wrong
    prefix (7.8). `made_up` are the ids that the agent's runtime makes up, for a re-run; an adapter sets it.
    `cache_bytes` bounds the memory that holds turns ready to be sent.
    """

    def __init__(
        self,
        url: str,
        rollout: Rollout,
        *,
        sampling: Mapping[str, Any] = MappingProxyType({}),
        timeout: float = 600.0,
        retries: int = 3,
        backoff: float = 0.5,
        on_malformed: Literal["raise", "gap"] = "raise",
        prefix_guard: Literal["withhold", "send"] = "withhold",
        headers: Mapping[str, str] = MappingProxyType({}),
        made_up: MadeUpIds = MadeUpIds(),  # noqa: B008 - immutable
        cache_bytes: int = DEFAULT_BYTES,
    ) -> None:
        if on_malformed not in ("raise", "gap") or prefix_guard not in ("withhold", "send"):
            raise ConfigurationError('on_malformed is "raise" or "gap", prefix_guard is "withhold" or "send"')
        if timeout <= 0 or retries < 0 or backoff < 0:
            raise ConfigurationError("timeout must be above 0 seconds, retries and backoff 0 or more")
        self.url = _endpoint(url)
        self.rollout = rollout
        self.made_up = made_up
        self._sampling = dict(sampling)
        self._timeout, self._retries, self._backoff = timeout, retries, backoff
        self._on_malformed, self._prefix_guard = on_malformed, prefix_guard
        self._headers = dict(headers)
        self._cache = WireCache(cache_bytes)
        self._hashed = BodyHash()
        self._http: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None
        importlib.import_module("httpx")  # now, so that the first call is as quick as the others

    async def call(self, history: Iterable[Entry], params: Mapping[str, Any] | None = None) -> Turn:
        """The policy's turn after `history`, kept before it is returned.

        `params` are the request's other members: `tools`, `tool_choice`, `text`, and so on. Raises PreparationFailure
        (nothing charged), BudgetExhausted (nothing sent), TransportFailure, MalformedItem, UnsupportedClientCall; the
        rollout knows of each.
        """
        return (await self.answer(history, params)).turn

    async def answer(self, history: Iterable[Entry], params: Mapping[str, Any] | None = None) -> Answer:
        """`call`, with the number of the policy call beside the turn."""
        try:
            prepared, gaps = self._prepare(history, params or {})
        except PreparationFailure as error:
            error.rollout = self.rollout.id
            self.rollout.record_failure(error)
            raise
        prepared, recorded = self._look_up(prepared)
        if recorded is None:
            record, blobs = prepared.record(self.rollout.number_of, self._cache, self._hashed)
            number, length = self.rollout.begin_call(record, blobs, gaps), record.length
        elif not recorded.in_flight:
            self.rollout.add_gaps(gaps)
            return Answer(self._answer_again(recorded), recorded.number)
        else:  # in flight when the process died, or reopened: sent again, under its first charge
            number, length = recorded.number, recorded.request.length
        return Answer(self._take(number, *await self._exchange(number, prepared, length)), number)

    def _prepare(self, history: Iterable[Entry], params: Mapping[str, Any]) -> tuple[Prepared, tuple[Gap, ...]]:
        request = project(history, self.rollout.scope)
        if self._prefix_guard == "withhold" and gap(PORTABLE_AFTER_NATIVE) in request.gaps:
            request = request.withheld()
        return Prepared(request.entries, request.tail({**params, **self._sampling})), request.gaps

    def _look_up(self, prepared: Prepared) -> tuple[Prepared, CallRecord | None]:
        """The request with recorded ids, and the recorded call that it equals, in a re-run."""
        rollout, rerun = self.rollout, self.rollout.rerun(self.made_up)
        if rerun is None:
            return prepared, None
        recorded = rerun.take(prepared, rollout.number_of)
        if recorded is not None and recorded.number in rerun.to_be_sent_anew:
            recorded = rollout.reopen_call(recorded.number)
        renamed = rerun.with_recorded_ids(prepared)
        if recorded is None:
            rerun.note_difference(renamed, rollout.number_of, rollout.request)
        if (difference := rerun.difference) != rollout.difference:
            rollout.record_difference(difference)
            if difference is None:
                _log.warning("rollout %s goes the way of its evidence after all", rollout.id)
            else:
                _log.warning("rollout %s goes another way than its evidence: %s", rollout.id, difference)
        return renamed, recorded

    def _answer_again(self, recorded: CallRecord) -> Turn:
        """What a recorded call gave: nothing is sent and nothing is charged."""
        rollout = self.rollout
        if recorded.turn is not None:
            rollout.settle(None)
            return rollout.turn(recorded.turn)
        body = rollout.response(recorded.number)
        if body is not None:
            return self._take(recorded.number, body)
        failure = dict(recorded.failure or {})
        rollout.settle(failure)
        bodies = rollout.attempt_bodies(recorded.number)
        status = recorded.attempts[-1].status if recorded.attempts else None
        raise TransportFailure(
            failure.get("message", "the call failed"),
            status=status,
            body=bodies[-1] if bodies else None,
            rollout=rollout.id,
            call=recorded.number,
        )

    async def _exchange(self, number: int, prepared: Prepared, length: int) -> tuple[bytes, Scanned | None]:
        """Send until a whole 2xx response is kept, or the retries are spent: its body, and what reading it gave."""
        for attempt in itertools.count():
            reply = await self._post(prepared, length)
            if reply.error is None:
                return reply.body or b"", self.rollout.answer_call(number, reply)
            self.rollout.add_attempt(number, reply)
            if not reply.retry or attempt == self._retries:
                return self._fail(number, TransportFailure(reply.error, status=reply.status, body=reply.body))
            wait = reply.wait if reply.wait is not None else self._backoff * 2**attempt * random.uniform(0.75, 1.25)
            await asyncio.sleep(min(wait, _LONGEST_WAIT))
        raise AssertionError  # pragma: no cover - the loop has no other end

    def _take(self, number: int, body: bytes, scanned: Scanned | None = None) -> Turn:
        """The turn of a kept response, kept in its turn."""
        rollout = self.rollout
        try:
            return rollout.add_turn(capture(body, rollout.scope, scanned), call=number)
        except (TransportFailure, UnsupportedClientCall) as error:
            self._fail(number, error)
        except MalformedItem as error:
            if self._on_malformed == "raise":
                self._fail(number, error)
            malformed = error
        try:
            turn = capture_without_native(body, rollout.scope)
        except TurnkeepError as error:
            self._fail(number, error)
        return rollout.add_turn(turn, call=number, gaps=[gap(MALFORMED_TRAINING)], fault=malformed)

    def _fail(self, number: int, error: TurnkeepError) -> NoReturn:
        error.rollout, error.call = self.rollout.id, number
        self.rollout.fail_call(number, error)
        raise error

    async def _post(self, prepared: Prepared, length: int) -> Reply:
        """One try, the body sent in chunks. What came back is kept even where it broke off."""
        import httpx

        headers = {"content-type": "application/json", "accept-encoding": "identity", **self._headers}
        headers["content-length"] = str(length)
        if cookies := self.rollout.cookies:
            headers["cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        received = bytearray()
        status = None
        try:
            async with self._client().stream(
                "POST", self.url, content=_stream(prepared.chunks(self._cache)), headers=raw
            ) as response:
                status = response.status_code
                async for chunk in response.aiter_bytes():
                    received += chunk
        except (httpx.TransportError, httpx.DecodingError) as error:
            timed_out = isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout)
            words = f"{type(error).__name__} from {self.url}: {error}".rstrip(": ")
            return Reply(words, status, bytes(received) if status else None, retry=not timed_out)
        given = (value.decode("latin-1") for name, value in response.headers.raw if name.lower() == b"set-cookie")
        set_cookies = read_cookies(given)
        if 200 <= status < 300:
            return Reply(None, status, bytes(received), set_cookies)
        excerpt = received[:2000].decode("utf-8", "replace")
        error_text = f"{self.url} answered {status}: {excerpt}"
        wait = _seconds(response.headers.get("retry-after"))
        return Reply(error_text, status, bytes(received), set_cookies, status in RETRIED, wait)

    def _client(self) -> "httpx.AsyncClient":
        """The HTTP client of the running event loop."""
        import httpx

        loop = asyncio.get_running_loop()
        if self._http is None or self._http[0] is not loop:
            timeout = httpx.Timeout(self._timeout, connect=min(self._timeout, 30.0))
            verify = self.url.startswith("https:")  # certificates take long to load, and plain HTTP needs none
            limits = httpx.Limits(max_connections=None)
            self._http = (loop, httpx.AsyncClient(timeout=timeout, limits=limits, verify=verify))
        return self._http[1]

    async def aclose(self) -> None:
        """Close the connections."""
        if self._http is not None and self._http[0] is asyncio.get_running_loop():
            await self._http[1].aclose()
        self._http = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def _stream(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def _endpoint(url: str) -> str:
    """`/v1/responses` below a base URL; a URL that ends in `/v1` or `/responses` is taken at its word."""
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"a model server's URL begins with http:// or https://, not {url!r}", field="url")
    base = url.rstrip("/")
    if base.endswith("/responses"):
        return base
    return base + ("/responses" if base.endswith("/v1") else "/v1/responses")


def read_cookies(headers: Iterable[str]) -> dict[str, str | None]:
    """Cookies by name, values as received (RFC 6265, 5.2); one that has run out takes its name away."""
    cookies: dict[str, str | None] = {}
    for header in headers:
        pair, *rest = header.split(";")
        name, equals, value = pair.partition("=")
        attributes = {text.partition("=")[0].strip().lower(): text.partition("=")[2].strip() for text in rest}
        if equals and name.strip():
            cookies[name.strip()] = None if _expired(attributes) else value.strip()
    return cookies


def _expired(attributes: Mapping[str, str]) -> bool:
    """Whether a cookie has run out: by Max-Age, which wins, or by Expires."""
    age = attributes.get("max-age", "")
    if re.fullmatch("-?[0-9]+", age):
        return age.startswith("-") or not age.strip("0")
    try:
        return parsedate_to_datetime(attributes["expires"]) <= datetime.now(UTC)
    except (KeyError, ValueError, TypeError, OverflowError):
        return False


def _seconds(text: str | None) -> float | None:
    """A Retry-After in seconds; a date is not waited for."""
    return float(text) if text is not None and re.fullmatch("[0-9]+", text.strip()) else None
