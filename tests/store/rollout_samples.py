"""A rollout with something of everything, made without a server, and all that can be read of it."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from turnkeep.archive.json_form import to_json
from turnkeep.errors import PreparationFailure, TransportFailure
from turnkeep.history.capture import capture
from turnkeep.history.projection import Entry, project
from turnkeep.rollout.evidence import Prepared, Reply
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.tools import once_sync
from turnkeep.rollout.view import RolloutView
from turnkeep.store.base import Store

SCOPE = 'nemo-gym/responses/v1:["policy_model", "gym-policy"]'


def make_response(number: int, tokens: int = 40) -> dict[str, Any]:
    """A Responses object with reasoning, a message that carries all four training fields, and a call."""
    rng = random.Random(number)
    ids = [rng.randrange(50_000) for _ in range(tokens)]
    message = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": f"Turn {number}, ☃.", "annotations": []}],
        "prompt_token_ids": [rng.randrange(50_000) for _ in range(tokens)],
        "generation_token_ids": ids,
        "generation_log_probs": [-rng.random() for _ in ids],
        "routed_experts": [[[rng.randrange(256) for _ in range(2)] for _ in range(3)] for _ in ids],
    }
    thought = {"id": f"rs_{number}", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"c_{number}", "name": "f", "arguments": "{ }"}
    response = {"id": f"resp_{number}", "object": "response", "status": "completed", "model": "m"}
    return {**response, "usage": {"output_tokens": tokens}, "output": [thought, message, call]}


def fill_rollout(rollout: Rollout, turns: int = 4) -> None:
    """Make `turns` policy calls, the second with a failed attempt before it; a tool; a failure; a call in flight."""
    history: list[Entry] = [{"role": "system", "content": "Be exact."}, {"role": "user", "content": "Go. " * 300}]
    for number in range(turns):
        call = begin(rollout, history)
        if number == 1:
            rollout.add_attempt(call, Reply("answered 503", 503, b"<busy>", {"lane": "7"}, retry=True))
        body = json.dumps(make_response(number)).encode()
        rollout.answer_call(call, Reply(None, 200, body, {"session": f"s{number}"}))
        turn = rollout.add_turn(capture(body, rollout.scope), call=call)
        output = once_sync(rollout, "f", {"n": number}, lambda number=number: {"result": number})  # type: ignore[misc]
        history += [turn, {"role": "tool", "tool_call_id": f"c_{number}", "content": json.dumps(output)}]
    rollout.set_origin({"source": "samples", "turns": turns})
    rollout.record_failure(PreparationFailure("an entry was wrong", entry=3))
    rollout.fail_call(begin(rollout, history[:2]), TransportFailure("nothing came"))
    begin(rollout, history)


def begin(rollout: Rollout, history: list[Entry]) -> int:
    """Charge a call for a history."""
    request = project(history, rollout.scope)
    record, blobs = Prepared(request.entries, request.tail({"temperature": 1.0})).record(rollout.number_of)
    return rollout.begin_call(record, blobs, request.gaps)


def readings(store: Store, rollout: str, turns: int, calls: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Everything that can be read of a rollout, by name; each reads anew, so that one error hides no other."""

    def of_view(read: Callable[[RolloutView], Any]) -> Callable[[], Any]:
        return lambda: read(RolloutView(store, rollout))

    names = ("scope", "max_policy_calls", "used", "gaps", "cookies", "failure", "begun", "turn_count", "failures")
    for name in names:
        yield name, of_view(lambda view, name=name: getattr(view, name))  # type: ignore[misc]
    yield "origin", of_view(lambda view: view.origin)
    yield "tools", of_view(lambda view: view.tools())
    for turn in range(turns):
        yield f"turn {turn}", of_view(lambda view, turn=turn: to_json(view.turn(turn)))  # type: ignore[misc]
    yield "calls", of_view(lambda view: [(c.number, c.turn, c.response, c.attempts, c.in_flight) for c in view.calls])
    for call in range(calls):
        yield f"request {call}", of_view(lambda view, call=call: view.request(call))  # type: ignore[misc]
        yield f"response {call}", of_view(lambda view, call=call: view.response(call))  # type: ignore[misc]
        yield f"attempts {call}", of_view(lambda view, call=call: view.attempt_bodies(call))  # type: ignore[misc]
    yield "history", of_view(lambda view: project(view.history(), SCOPE).body())
