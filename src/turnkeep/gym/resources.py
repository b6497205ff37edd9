"""The resources server, over HTTP: bytes out, bytes back, cookies carried by hand.

A client belongs to one rollout, so that no cookie of one can reach another. A request that never got there is tried
again; one that may have got there is not, since a tool would run twice.
"""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx

from turnkeep.errors import TransportFailure
from turnkeep.rollout.policy import read_cookies

_CONNECT_TRIES = 4
_BACKOFF = 0.25


class Answered(NamedTuple):
    """What a resources server said: HTTP status and body."""

    status: int
    body: bytes


class ResourcesClient:
    """Calls a resources server for one rollout. `cookies` are those that the run request came with."""

    def __init__(self, url: str, cookies: Mapping[str, str], timeout: float) -> None:
        self.url = url.rstrip("/")
        self.cookies = dict(cookies)
        # no connection is kept: one that the server closes while it is taken up again would leave a call in doubt
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        # certificates take long to load, and plain HTTP needs none
        verify = self.url.startswith("https:")
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(timeout, connect=30.0), limits=limits, verify=verify)
        self._order = asyncio.Lock()

    async def post(self, path: str, body: bytes) -> Answered:
        """POST JSON, one request at a time, so that each carries the cookies that the one before it brought.

        Raises TransportFailure where no whole answer came.
        """
        async with self._order:
            return await self._post(f"{self.url}{path}", body)

    async def post_checked(self, path: str, body: bytes) -> bytes:
        """`post`, whose answer must be a 2xx. Raises TransportFailure with status and body."""
        answered = await self.post(path, body)
        if 200 <= answered.status < 300:
            return answered.body
        words = answered.body[:2000].decode("utf-8", "replace")
        message = f"the resources server answered {path} with {answered.status}: {words}"
        raise TransportFailure(message, status=answered.status, body=answered.body)

    async def _post(self, url: str, body: bytes) -> Answered:
        headers = {"content-type": "application/json", "accept-encoding": "identity", **cookie_header(self.cookies)}
        for attempt in range(_CONNECT_TRIES):
            try:
                response = await self._http.post(url, content=body, headers=_raw(headers))
            except (httpx.TransportError, httpx.DecodingError) as error:
                if isinstance(error, httpx.ConnectError) and attempt + 1 < _CONNECT_TRIES:
                    await asyncio.sleep(_BACKOFF * 2**attempt)
                    continue
                words = f"{type(error).__name__} from {url}: {error}".rstrip(": ")
                raise TransportFailure(words) from error
            self._take_cookies(response)
            return Answered(response.status_code, response.content)
        raise AssertionError  # pragma: no cover - the loop has no other end

    def _take_cookies(self, response: httpx.Response) -> None:
        given = (value.decode("latin-1") for name, value in response.headers.raw if name.lower() == b"set-cookie")
        merged: dict[str, Any] = {**self.cookies, **read_cookies(given)}
        self.cookies = {name: value for name, value in merged.items() if value is not None}

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]


def cookie_header(cookies: Mapping[str, str]) -> dict[str, str]:
    """The header that carries cookies; none where there are none."""
    return {"cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())} if cookies else {}


def merge_cookies(given: Mapping[str, str], model: Mapping[str, str], resources: Mapping[str, str]) -> dict[str, str]:
    """The cookies of both servers, for the answer. Raises CookieConflict where they set a name to two values.

    `resources` begins with the cookies `given` with the request: one that is as it was given was not set by it.
    """
    own = {name: value for name, value in resources.items() if given.get(name) != value}
    torn = sorted(name for name in model.keys() & own.keys() if model[name] != own[name])
    if torn:
        raise CookieConflict(f"model and resources server set the same cookie to different values: {', '.join(torn)}")
    return {**resources, **model}


class CookieConflict(ValueError):
    """Model and resources server set one cookie to two values, and an answer can carry only one."""
