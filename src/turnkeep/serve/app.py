"""The HTTP application: `POST /v1/responses`, `GET /health`, `GET /stats`.

`/stats` tells what really arrived: `requests`, `by_session` (how many per session), `log`, one entry per request:
`session` (the cookie that came, or null), `assigned` (the one given out, or null), `sha256` of the body,
`prompt_tokens`, `native_tokens` (how many of them were carried by the history) and `status`; null is not known.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from turnkeep.serve.chat import InvalidRequest
from turnkeep.serve.faults import STATUSES, Fault, spoil_response
from turnkeep.serve.model import Policy
from turnkeep.serve.respond import Answer, Options, answer_request
from turnkeep.serve.script import Script

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

COOKIE = "policy_session"


@dataclass(slots=True)
class Seen:
    """The requests that a server has seen, in order of arrival."""

    log: list[dict[str, Any]] = field(default_factory=list)
    sessions: int = 0

    def note(self, cookie: str | None) -> tuple[int, dict[str, Any]]:
        """Note a request as it arrives; give its number and its entry. Without a cookie it begins a session."""
        assigned = None
        if cookie is None:
            self.sessions += 1
            assigned = str(self.sessions)
        entry = {"session": cookie, "assigned": assigned, "sha256": None, "prompt_tokens": None}
        self.log.append(entry | {"native_tokens": None, "status": None})
        return len(self.log) - 1, self.log[-1]

    def report(self) -> dict[str, Any]:
        """Give what `/stats` tells."""
        sessions = Counter(entry["session"] or entry["assigned"] for entry in self.log)
        return {"requests": len(self.log), "by_session": dict(sessions), "log": self.log}


class CutResponse(Response):
    """A response whose connection closes after half of the promised body."""

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Send the headers of the whole and the first half; returning then makes the server close the connection."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        half = bytes(self.body)[: len(self.body) // 2]
        await send({"type": "http.response.body", "body": half, "more_body": True})


def create_app(
    policy: Policy, script: Script | None = None, faults: Sequence[Fault] = (), options: Options | None = None
) -> Starlette:
    """Make the application; without a script the words are sampled. All its state is what `/stats` tells."""
    settings, seen = options or Options(), Seen()

    async def responses(request: Request) -> Response:
        number, entry = seen.note(request.cookies.get(COOKIE))
        body = await request.body()
        entry["sha256"] = hashlib.sha256(body).hexdigest()
        hit = {fault.name: fault for fault in faults if fault.hits(number)}
        await asyncio.sleep(settings.delay + (hit["slow"].seconds if "slow" in hit else 0.0))
        response = _refuse_or_none(hit) or await _answer(policy, script, settings, body, hit, entry)
        entry["status"] = response.status_code
        if entry["assigned"] is not None:
            response.set_cookie(COOKIE, entry["assigned"], httponly=True)
        return response

    async def stats(_: Request) -> Response:
        return JSONResponse(seen.report())

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    return Starlette(
        routes=[
            Route("/v1/responses", responses, methods=["POST"]),
            Route("/stats", stats),
            Route("/health", health),
        ]
    )


def _refuse_or_none(hit: dict[str, Fault]) -> Response | None:
    """Give the answer of the faults that need no policy."""
    for name, status in STATUSES.items():
        if name in hit:
            kind = "rate_limit_error" if status == 429 else "server_error"
            return _error(status, f"status {name} was asked for by --fault", kind)
    return Response("<html><body>Bad gateway</body></html>", media_type="text/html") if "bad-json" in hit else None


async def _answer(
    policy: Policy, script: Script | None, options: Options, body: bytes, hit: dict[str, Fault], entry: dict[str, Any]
) -> Response:
    """Answer a request body; malformed ones get 400 (no JSON object) or 422 (anything else)."""
    try:
        asked = json.loads(body)
    except ValueError as error:
        return _error(400, f"the body is no JSON: {error}")
    if not isinstance(asked, dict):
        return _error(400, "the body must be a JSON object")
    try:
        answer: Answer = await run_in_threadpool(answer_request, policy, script, options, asked)
    except InvalidRequest as error:
        return _error(422, str(error))
    entry["prompt_tokens"], entry["native_tokens"] = len(answer.prompt.ids), answer.prompt.native
    spoil_response(answer.response, hit)
    # ASCII only: lone surrogates leave as \\u escapes; and -Infinity leaves as such where a fault asks for it
    content = json.dumps(answer.response, separators=(",", ":")).encode()
    if "disconnect" in hit:
        return CutResponse(content, media_type="application/json")
    return Response(content[: len(content) // 2] if "truncated" in hit else content, media_type="application/json")


def _error(status: int, message: str, kind: str = "invalid_request_error") -> Response:
    return JSONResponse({"error": {"message": message, "type": kind}}, status_code=status)
