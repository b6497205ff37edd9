"""Runs the embedded policy on loopback: in the foreground (`run`) or in a thread of this process (`running_policy`)."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import uvicorn

from turnkeep.errors import ConfigurationError
from turnkeep.serve.app import create_app
from turnkeep.serve.faults import Fault, parse_fault
from turnkeep.serve.model import Policy
from turnkeep.serve.respond import Options
from turnkeep.serve.script import Script


@dataclass(frozen=True, slots=True)
class RunningPolicy:
    """A server in a thread: `url` is its base URL."""

    url: str
    server: uvicorn.Server
    thread: threading.Thread

    def stop(self) -> None:
        """Stop the server and wait until its thread has ended."""
        self.server.should_exit = True
        self.thread.join()


def run(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    policy: Policy | None = None,
    script: Script | None = None,
    faults: Sequence[str | Fault] = (),
    options: Options | None = None,
) -> None:
    """Serve until interrupted; print one line with the URL once connections are accepted. Port 0 is any free port."""
    server = _make_server(policy, script, faults, options)
    listener = _listen(host, port)
    print(f"turnkeep policy on {_url(listener)}", flush=True)
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def start(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    policy: Policy | None = None,
    script: Script | None = None,
    faults: Sequence[str | Fault] = (),
    options: Options | None = None,
) -> RunningPolicy:
    """Serve in a thread of this process; connections are accepted when this returns. The caller stops it."""
    server = _make_server(policy, script, faults, options)
    listener = _listen(host, port)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="turnkeep-policy", daemon=True)
    thread.start()
    return RunningPolicy(_url(listener), server, thread)


@contextmanager
def running_policy(
    *,
    policy: Policy | None = None,
    script: Script | None = None,
    faults: Sequence[str | Fault] = (),
    options: Options | None = None,
    port: int = 0,
) -> Iterator[str]:
    """Serve in a thread while the block runs; gives the base URL."""
    running = start(port=port, policy=policy, script=script, faults=faults, options=options)
    try:
        yield running.url
    finally:
        running.stop()


def _make_server(
    policy: Policy | None, script: Script | None, faults: Sequence[str | Fault], options: Options | None
) -> uvicorn.Server:
    parsed = [parse_fault(fault) if isinstance(fault, str) else fault for fault in faults]
    app = create_app(policy or Policy(), script, parsed, options)
    quiet = {"log_config": None, "log_level": "critical", "access_log": False}
    return uvicorn.Server(
        uvicorn.Config(app, lifespan="off", ws="none", http="h11", timeout_graceful_shutdown=1, **quiet)  # type: ignore[arg-type]
    )


def _listen(host: str, port: int) -> socket.socket:
    """Listen before the server runs: from here on a client's connection waits, and is not refused.

    The protocol is named because asyncio turns Nagle's delay (40 ms per answer) off only where it is.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"cannot listen on {host}, port {port}: {error}") from error
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
