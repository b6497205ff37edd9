"""A store's rollouts as pages on loopback: read only, and only for who calls this machine by its own name."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from turnkeep.errors import ConfigurationError, TurnkeepError, UnknownRollout
from turnkeep.report.content import gather
from turnkeep.report.glance import Watch
from turnkeep.report.page import policy, render_error, render_list, render_page
from turnkeep.rollout.view import RolloutView
from turnkeep.store.open import open_store

HOST = "127.0.0.1"
_NAMES = [HOST, "localhost"]
"""What a Host header may say: a page of another name that was made to lead here (DNS rebinding) is refused."""


def make_app(url: str) -> Starlette:
    """The application over the store at `url`: `/` lists it, `/rollout?id=` is a page. It is read at each request."""

    def show_list() -> str:
        with open_store(url, create=False) as store:
            return render_list(url, Watch(store).look())

    def show_rollout(rollout: str) -> str:
        with open_store(url, create=False) as store:
            return render_page(gather(RolloutView(store, rollout)), home="/")

    async def index(_: Request) -> Response:
        return await _answer(show_list)

    async def page(request: Request) -> Response:
        return await _answer(lambda: show_rollout(request.query_params.get("id", "")))

    return Starlette(
        routes=[Route("/", index), Route("/rollout", page)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=_NAMES, www_redirect=False)],
    )


async def _answer(render: Callable[[], str]) -> Response:
    """The page, or one that says why there is none."""
    try:
        return _page(await run_in_threadpool(render))
    except UnknownRollout as error:
        return _page(render_error("No such rollout", str(error)), 404)
    except TurnkeepError as error:
        return _page(render_error("It cannot be shown", str(error)), 500)


def _page(text: str, status: int = 200) -> Response:
    headers = {
        "content-security-policy": policy() + "; frame-ancestors 'none'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-store",
    }
    return HTMLResponse(text, status, headers)


@contextmanager
def listening(url: str, port: int) -> Iterator[tuple[uvicorn.Server, socket.socket, str]]:
    """A server that is ready to be run, its socket, and its address. Port 0 is any free port.

    Raises ConfigurationError where the port cannot be had, StoreError where there is no store.
    """
    open_store(url, create=False).close()
    quiet = {"log_config": None, "log_level": "critical", "access_log": False}
    config = uvicorn.Config(make_app(url), lifespan="off", ws="none", timeout_graceful_shutdown=1, **quiet)  # type: ignore[arg-type]
    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        raise ConfigurationError(f"cannot listen on port {port}: {error.strerror}", field="port") from error
    with listener:
        yield uvicorn.Server(config), listener, f"http://{HOST}:{listener.getsockname()[1]}/"


def serve(url: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve until interrupted; `announce` is given the address once connections are accepted."""
    with listening(url, port) as (server, listener, address):
        announce(address)
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
