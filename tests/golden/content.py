"""What the golden files hold, written out: version 1's content never changes."""

import json
from typing import Any

import turnkeep
from turnkeep import Gap, Turn

SCOPE = turnkeep.Scope('pölicy "1"', "gym-policy")
ITEMS: dict[str, list[dict[str, Any]]] = {
    "everything": [
        {
            "id": "rs_1",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "short"}],
            "content": [{"type": "reasoning_text", "text": "First."}, {"type": "reasoning_text", "text": "Then."}],
            "encrypted_content": "gAAAAB+/=",
            "status": None,
        },
        {"type": "web_search_call", "id": "ws_1", "action": {"query": "oslo", "sources": None}},
        {
            "zeta": 1,
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "half \ud83d", "annotations": [{"b": 1, "a": [None, {}]}]},
                {"type": "output_text", "text": "\ude00 lone \ud800", "annotations": []},
                {"type": "refusal", "refusal": " no"},
                {"type": "output_scent", "text": "unseen"},
            ],
            "numbers": [0, -0.0, 5e-324, 1.7976931348623157e308, 1e22, 2**70, -(2**63), True, None],
            "prompt_token_ids": [0, 255, 256, 65536],
            "generation_token_ids": [2**32, 2**64 - 1, 1],
            "generation_log_probs": [-0.0, -5e-324, -0.30000000000000004],
            "routed_experts": [[[0, 7], [-1, 300]], [[1, 1], [2, 2]]],
        },
        {
            "type": "function_call",
            "call_id": "c\udfff",
            "name": "wéather",
            "arguments": '{ "b":1,\t"a" : [ 1.0,1 ]}\n',
            "prompt_token_ids": [],
            "generation_token_ids": [2**70],
            "generation_log_probs": [-1],
            "routed_experts": "nrlre1:int8:1x2x1:AQI=",
        },
        {"type": "weather_map", "tiles": [[1, 2], [3]], "x": {"": {"null": None}}},
    ],
    "experts": [
        {
            "type": "message",
            "content": [],
            "prompt_token_ids": [7, 8],
            "generation_token_ids": [9],
            "generation_log_probs": [
                0,
            ],
            "routed_experts": [[[0, 127]], [[3, 4]], [[5, 6]]],
            "teacher_log_probs": [[-1.5, -0.0], [0.25, 1e-310]],
            "mask": [0, 1],
        }
    ],
    "nothing": [],
}
"""The output items of each turn."""


def responses() -> dict[str, dict[str, Any]]:
    """A Responses object of each turn's items."""
    return {
        name: {
            "id": f"resp_{name}",
            "object": "response",
            "status": "incomplete" if name == "experts" else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if name == "experts" else None,
            "model": "policy-7b" if items else None,
            "output": items,
            "usage": {"input_tokens": 9, "details": {"cached": 0, "ratio": 1.0}},
        }
        for name, items in ITEMS.items()
    }


def turns() -> dict[str, Turn]:
    """Turns of every kind, by name: captured, edited, with a stale native, brought along by an archive."""
    captured = {name: turnkeep.capture(response, SCOPE) for name, response in responses().items()}
    stale = turnkeep.to_json(captured["everything"])
    stale["parts"][2]["text"] = "edited"
    foreign = {"parts": [{"kind": "text", "text": "x"}], "note": {"b": [1.0], "a": None}, "finish_reason": "weird"}
    return {
        **captured,
        "edited": captured["everything"].edit(3, arguments="{}"),
        "stale": turnkeep.from_json(stale),
        "foreign": turnkeep.from_json(foreign),
    }


def stored_bodies() -> list[bytes]:
    """Bodies with long arrays: ids of three bytes and of four, experts large enough to stand apart, two spellings."""
    prompt, generation = list(range(70_000, 70_060)), list(range(2**24, 2**24 + 40))
    found = []
    for number in range(2):
        message: dict[str, Any] = {
            "id": f"msg_{number}",
            "type": "message",
            "content": [{"type": "output_text", "text": f"Turn {number}, é.", "annotations": []}],
            "prompt_token_ids": prompt,
            "generation_token_ids": generation,
            "generation_log_probs": [-token / 64 for token in range(40)],
            "routed_experts": [[[(token * 31 + layer) % 256] * 8 for layer in range(210)] for token in range(40)],
        }
        text = json.dumps({"id": f"resp_{number}", "model": "m", "status": "completed", "output": [message]})
        found.append((text.replace(", ", ",") if number else text).encode())
        prompt = [*prompt, *generation, 7, 8, 9]
    return found


GAPS = (Gap("foreign_turn_projected_portable", "inv-1", "detail"), Gap("own", None, None))
REQUEST = b'{"input":[{"role":"user","content":"hi \\ud800"}],"instructions":"Be brief.","model":"m"}'
