"""What the tests of rollouts share: an agent's surroundings, the embedded policy, a server that says what it is told.

`Bench` holds a store and a URL and runs an agent, a function of a PolicyClient, as one process would.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from turnkeep.history.projection import Entry
from turnkeep.history.turn import Turn
from turnkeep.rollout.policy import PolicyClient
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.rerun import MadeUpIds
from turnkeep.rollout.view import RolloutView
from turnkeep.serve.model import Policy
from turnkeep.serve.respond import Options
from turnkeep.serve.script import make_script
from turnkeep.serve.server import running_policy
from turnkeep.store.sqlite import SqliteStore
from turnkeep.wire.json import dumps

SCOPE = 'nemo-gym/responses/v1:["policy_model", "gym-policy"]'
POLICY = Policy()
MADE_UP = MadeUpIds(patterns=(r"prefill_[0-9a-f]{8}",), members=("cache_key",))
USER: Entry = {"role": "user", "content": "Begin."}


@dataclass
class Bench:
    """A store's file and a model server's URL."""

    path: Path
    url: str
    rollout: str = "r"

    def run[T](
        self,
        agent: Callable[[PolicyClient], Awaitable[T]],
        *,
        rerun: bool = False,
        scope: str | None = SCOPE,
        budget: int | None = None,
        **options: Any,
    ) -> T:
        """What the agent gives or raises, run on the rollout from opening the store to closing it."""

        async def main() -> T:
            with (
                SqliteStore(self.path) as store,
                Rollout.open(store, self.rollout, scope=scope, max_policy_calls=budget, rerun=rerun) as rollout,
            ):
                given = {"backoff": 0.0, "timeout": 30.0, "made_up": MADE_UP, **options}
                async with PolicyClient(self.url, rollout, **given) as policy:
                    return await agent(policy)

        return asyncio.run(main())

    def call(self, history: Sequence[Entry] = (USER,), params: Mapping[str, Any] | None = None, **options: Any) -> Turn:
        """The turn of one policy call, in a process of its own."""
        return self.run(lambda policy: policy.call(history, params), **options)

    @contextmanager
    def view(self) -> Iterator[RolloutView]:
        """The rollout, to be read."""
        with SqliteStore(self.path) as store:
            yield RolloutView(store, self.rollout)

    def log(self) -> list[dict[str, Any]]:
        """What the embedded policy received."""
        log: list[dict[str, Any]] = httpx.get(f"{self.url}/stats").json()["log"]
        return log

    def documents(self) -> list[tuple[Any, ...]]:
        """Every row of the rollout as it is stored, and every blob's digest."""
        with SqliteStore(self.path) as store:
            rows = [tuple(row) for kind in ("calls", "turns", "tools") for row in store.rows(self.rollout, kind)]
            return [*rows, *store._db.execute("SELECT digest FROM blobs ORDER BY digest")]


@contextmanager
def serving(folder: Path, steps: Any = None, faults: Sequence[str] = (), **options: Any) -> Iterator[Bench]:
    """The embedded policy, with experts left out unless they are asked for."""
    script = make_script({"steps": steps or [[{"text": "One."}], [{"text": "Two."}], [{"text": "Three."}]]})
    given = Options(**{"experts": "none", **options})
    with running_policy(policy=POLICY, script=script, faults=faults, options=given) as url:
        yield Bench(folder / "a.db", url)


class Said(NamedTuple):
    """What the scripted server answers: status, body, headers, and how long it waits first."""

    status: int = 200
    body: bytes = b"{}"
    headers: tuple[tuple[str, str], ...] = ()
    wait: float = 0.0


@dataclass
class Heard:
    """What the scripted server received."""

    url: str
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


def responses(text: str = "Yes.", **members: Any) -> bytes:
    """A Responses object of one message, whose training fields and other members are `members`."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    item = {"id": "msg_1", "type": "message", "role": "assistant", "content": content, **members}
    return dumps({"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": [item]})


@contextmanager
def scripted(answers: Sequence[Said] | Callable[[bytes, int], Said], port: int = 0) -> Iterator[Heard]:
    """A real HTTP server that gives one answer after the other, the last for ever; or what a function says.

    The function is given the body and the number of the request, from 0.
    """
    guard = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with guard:
                heard.bodies.append(body)
                heard.headers.append({name.lower(): value for name, value in self.headers.items()})
                number = len(heard.bodies) - 1
            said = answers(body, number) if callable(answers) else answers[min(number, len(answers) - 1)]
            time.sleep(said.wait)
            self.send_response(said.status)
            for name, value in (*said.headers, ("content-length", str(len(said.body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(said.body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that has gone away is no error here."""

    server = Server(("127.0.0.1", port), Handler)
    heard = Heard(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
