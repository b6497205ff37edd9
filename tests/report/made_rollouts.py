"""Rollouts to look at: one by the embedded policy, one of hostile text, a long one, and ones with something wrong."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnkeep.errors import TransportFailure
from turnkeep.history.capture import capture
from turnkeep.history.projection import Entry, project
from turnkeep.rollout.evidence import Prepared, Reply
from turnkeep.rollout.policy import PolicyClient
from turnkeep.rollout.record import Rollout
from turnkeep.serve.model import Policy
from turnkeep.serve.respond import Options
from turnkeep.serve.script import make_script
from turnkeep.serve.server import running_policy
from turnkeep.store.base import Store
from turnkeep.store.open import open_store

SCOPE = 'nemo-gym/responses/v1:["policy_model", "gym-policy"]'
GOAL = "Find out how high Oslo and Lima lie, and say which of the two lies higher."
STEPS: list[list[dict[str, Any]]] = [
    [
        {"reasoning": "Two cities. I look up each height, then compare them."},
        {"call": "look_up", "arguments": {"place": "Oslo", "field": "elevation", "limit": 3}},
    ],
    [
        {"reasoning": "23 m. Now Lima, and I keep both in a table."},
        {
            "call": "execute_ipython_cell",
            "arguments": {"code": "heights = {'Oslo': 23}\nfor place in heights:\n    print(place)"},
        },
    ],
    [{"call": "look_up", "arguments": {"place": "Lima", "field": "elevation", "limit": 3}}],
    [{"reasoning": "154 m is more than 23 m."}, {"text": "Lima lies higher: 154 m against 23 m in Oslo."}],
]
OUTPUTS = ('{"place": "Oslo", "elevation": 23}', "Oslo", '{"place": "Lima", "elevation": 154}')

HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "<svg/onload=document.title='owned'>",
    "\"><style>*{display:none}</style><base href='http://203.0.113.1/'>",
    "javascript:document.title='owned' {{ 7*7 }} {% for x in y %}",
    "bidi \u202egpj.exe\u202c, null \x00, bell \x07, escape \x1b[31m, return \r, zero\u200bwidth, BOM \ufeff",
    "half \ud83d alone, line\u2028separator, tag \U000e0041, private \ue000",
    "family \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "]]>--><!-- &lt; &amp; &#0;",
)
"""Texts that a page must show and never obey."""


async def survey(policy: PolicyClient, calls: int = len(STEPS)) -> None:
    """Make the policy calls of the story, answering each tool call."""
    history: list[Entry] = [{"role": "system", "content": "Answer in one sentence."}, {"role": "user", "content": GOAL}]
    for number in range(calls):
        turn = await policy.call(history)
        history.append(turn)
        history += [{"role": "tool", "tool_call_id": call.id, "content": OUTPUTS[number]} for call in turn.tool_calls]


def by_policy(path: Path, rollout: str = "survey", calls: int = len(STEPS)) -> None:
    """A rollout by the embedded policy, with true log probs and experts."""
    import asyncio

    async def main(url: str) -> None:
        with open_store(path) as store, Rollout.open(store, rollout, scope=SCOPE, max_policy_calls=20) as opened:
            async with PolicyClient(url, opened) as policy:
                await survey(policy, calls)

    with running_policy(policy=Policy(7), script=make_script({"steps": STEPS}), options=Options()) as url:
        asyncio.run(main(url))


def response(items: Sequence[Mapping[str, Any]], number: int = 0) -> bytes:
    """A Responses object of these items."""
    head = {"id": f"resp_{number}", "object": "response", "status": "completed", "model": "policy-7b"}
    return json.dumps({**head, "output": list(items)}).encode()


def message(text: str, **members: Any) -> dict[str, Any]:
    """A message item."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": "msg_1", "type": "message", "role": "assistant", "content": content, **members}


def training(prompt: Sequence[int], generation: Sequence[int], log_probs: Sequence[float]) -> dict[str, Any]:
    """The three training fields."""
    return {
        "prompt_token_ids": list(prompt),
        "generation_token_ids": list(generation),
        "generation_log_probs": list(log_probs),
    }


def say(rollout: Rollout, history: list[Entry], body: bytes) -> None:
    """One policy call: the request of the history, the response, the turn."""
    call = begin(rollout, history)
    rollout.answer_call(call, Reply(None, 200, body))
    history.append(rollout.add_turn(capture(body, rollout.scope), call=call))


def begin(rollout: Rollout, history: Sequence[Entry]) -> int:
    """Charge a call for a history."""
    request = project(history, rollout.scope)
    record, blobs = Prepared(request.entries, request.tail()).record(rollout.number_of)
    return rollout.begin_call(record, blobs, request.gaps)


def hostile(store: Store, rollout: str = "hostile <b>") -> None:
    """A rollout in which all that a model, a tool or a person can write is hostile."""
    history: list[Entry] = [{"role": "system", "content": HOSTILE[0]}, {"role": "user", "content": "\n".join(HOSTILE)}]
    with Rollout.open(store, rollout, scope=SCOPE) as opened:
        for number, text in enumerate(HOSTILE):
            items = [
                {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]},
                message(text, **training([1, 2], [3, 70_000 + number], [-0.5, -1e-7])),
                {
                    "type": "function_call",
                    "call_id": text,
                    "name": text,
                    "arguments": json.dumps({text: text, "n": [text]}),
                },
                {"type": "web_search_call", "id": text, "status": text},
            ]
            say(opened, history, response(items, number))
            history.append({"role": "tool", "tool_call_id": text, "content": text})
        opened.add_gap(HOSTILE[1], detail=HOSTILE[0], invocation=HOSTILE[5])
        opened.fail_call(begin(opened, history), TransportFailure(HOSTILE[0]))
        begin(opened, history)


def long(store: Store, rollout: str = "long", turns: int = 200, generated: int = 250) -> None:
    """A rollout of many turns, each prompt going on from the one before; imported, so it has no policy calls."""
    rng = random.Random(1)
    prompt = [rng.randrange(150_000) for _ in range(400)]
    made = []
    for number in range(turns):
        ids = [rng.randrange(150_000) for _ in range(generated)]
        log_probs = [-rng.expovariate(2) if rng.random() < 0.4 else -rng.random() * 1e-3 for _ in ids]
        made.append(
            capture(response([message("Word by word. " * 60, **training(prompt, ids, log_probs))], number), SCOPE)
        )
        prompt = prompt + ids + [rng.randrange(150_000) for _ in range(30)]
    with Rollout.open(store, rollout, scope=SCOPE) as opened:
        opened.add_turns(made)
