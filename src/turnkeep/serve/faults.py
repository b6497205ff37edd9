"""Failures on request, so that a client can be tested against them: `NAME[@N[,N...]][:ARGUMENT]`.

N is the 0-based number of a request among those this server has seen, or `*`; without `@` every request is meant.

| name | what happens |
|---|---|
| `500`, `503`, `429` | that status, with a JSON error |
| `slow:SECONDS` | the answer comes so much later |
| `bad-json` | status 200, but the body is HTML |
| `truncated` | the body stops in the middle of the JSON; its length header agrees with what comes |
| `disconnect` | the body stops in the middle, the length header says more, and the connection closes |
| `inf-log-prob` | the first generation log prob is `-Infinity` |
| `missing-log-probs` | the training fields lack `generation_log_probs` |
| `client-call` | one more output item, a `custom_tool_call`, before the last |
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from turnkeep.errors import ConfigurationError

STATUSES = {"500": 500, "503": 503, "429": 429}
NAMES = (*STATUSES, "slow", "bad-json", "truncated", "disconnect", "inf-log-prob", "missing-log-probs", "client-call")


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure, the requests it hits (None: all), and for `slow` the seconds."""

    name: str
    requests: frozenset[int] | None = None
    seconds: float = 0.0

    def hits(self, request: int) -> bool:
        """Say whether the request of this number is hit."""
        return self.requests is None or request in self.requests


def parse_fault(text: str) -> Fault:
    """Read a fault as it is written on the command line; raises ConfigurationError."""
    head, _, argument = text.partition(":")
    name, at, places = head.partition("@")
    if name not in NAMES:
        raise ConfigurationError(f"unknown fault {name!r}: one of {', '.join(NAMES)}")
    requests = None
    if at and places != "*":
        if not all(place.isdecimal() for place in places.split(",")):
            raise ConfigurationError(f"fault {text!r}: {places!r} must be * or request numbers with commas between")
        requests = frozenset(map(int, places.split(",")))
    if name != "slow":
        if argument:
            raise ConfigurationError(f"fault {text!r}: {name} takes no argument")
        return Fault(name, requests)
    try:
        seconds = float(argument)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ConfigurationError(f"fault {text!r}: slow takes seconds, for example slow@0:1.5")
    return Fault(name, requests, seconds)


def spoil_response(response: dict[str, Any], names: Iterable[str]) -> None:
    """Change a Responses object in place as the faults of these names say."""
    last = response["output"][-1]
    if "inf-log-prob" in names and last["generation_log_probs"]:
        last["generation_log_probs"][0] = -math.inf
    if "missing-log-probs" in names:
        del last["generation_log_probs"]
    if "client-call" in names:
        key = response["id"].removeprefix("resp_")
        call = {"type": "custom_tool_call", "id": f"ctc_{key}", "call_id": f"call_{key}_c", "status": "completed"}
        response["output"].insert(-1, {**call, "name": "on_the_client", "input": "anything"})
