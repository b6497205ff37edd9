"""Between Starlette and a service: raw JSON out, cookies as they came, and a run that ends when its client is gone."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from turnkeep.gym.service import Reply

CLIENT_GONE = 499
"""The status, seen by nobody, of a request whose client went away (nginx's)."""


def to_response(reply: Reply) -> Response:
    """The reply as it goes out: its bytes, and each cookie with its value as the server behind gave it."""
    response = Response(reply.body, reply.status, media_type="application/json")
    for name, value in reply.cookies.items():
        response.raw_headers.append((b"set-cookie", f"{name}={value}; Path=/; SameSite=lax".encode("latin-1")))
    return response


async def while_connected(request: Request, work: Awaitable[Reply]) -> Response:
    """What `work` gives; it is cancelled when the client goes away, or this is.

    The body of `request` must have been read.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return to_response(task.result()) if task.done() else Response(status_code=CLIENT_GONE)
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    message: Mapping[str, Any] = {}
    while message.get("type") != "http.disconnect":
        message = await request.receive()
