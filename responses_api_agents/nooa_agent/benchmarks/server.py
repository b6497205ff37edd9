"""A model server on loopback, in a process of its own: real HTTP, canned answers, and the times at which it had what.

`POST /<name>/v1/responses` gives that name's next body; the name `last` always gets the last one. A name that ends in
`-<number>` gets the bodies of the set of that number: no two rollouts of one store should share theirs. `GET /<name>`
gives, for each request of that name, when its first byte of head was there, when its body was, and when the answer
began, on the clock of `time.perf_counter`, which processes of one machine share.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from urllib.request import urlopen

from .workload import Workload


@contextmanager
def serving(workload: Workload, turns: int, sets: int = 1) -> Iterator[str]:
    """The URL of a server whose answers are the bodies of `workload`, of as many random seeds as `sets`."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(workload, turns, sets, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        ours.close()  # tells it to end
        process.join(30)


def times(url: str) -> list[list[float]]:
    """The server's times for the requests of a name, whose URL this is."""
    with urlopen(url) as answer:
        found: list[list[float]] = json.loads(answer.read())
    return found


def serve(workload: Workload, turns: int, sets: int, pipe: Connection) -> None:
    """Serve until the other end of the pipe is closed. Runs in the server's process."""
    bodies = [replace(workload, random_seed=workload.random_seed + each).bodies(turns) for each in range(sets)]
    asked: dict[str, list[list[float]]] = {}
    guard = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            began = time.perf_counter()
            self.rfile.read(int(self.headers["content-length"]))
            received = time.perf_counter()
            name = self.path.split("/")[1]
            with guard:
                seen = asked.setdefault(name, [])
                of_name = bodies[_set(name) % sets]
                body = of_name[-1 if name == "last" else len(seen) % turns]
                seen.append([began, received, time.perf_counter()])
            self._answer(body)

        def do_GET(self) -> None:
            self._answer(json.dumps(asked.get(self.path.strip("/"), [])).encode())

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    pipe.send(server.server_address[1])
    try:
        pipe.recv()
    except EOFError:
        server.shutdown()


def _set(name: str) -> int:
    """The number at the end of a rollout's name."""
    number = name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0
