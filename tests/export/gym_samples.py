"""Rows of NeMo Gym rollout files, made by hand, one of each kind; and what the tests do with them."""

import json
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

from turnkeep.export.gym_import import Result, import_gym
from turnkeep.export.gym_jsonl import Written, export_gym
from turnkeep.store.base import Store

SCOPE = 'nemo-gym/responses/v1:["policy_model", "gym-policy"]'


def message(text: str = "Hi.", **members: Any) -> dict[str, Any]:
    """A message of the policy."""
    content: Any = [{"annotations": [], "text": text, "type": "output_text", "logprobs": None}]
    return {"id": "msg_1", "content": content, "role": "assistant", "status": "completed", "type": "message", **members}


def reasoning(text: str = "Hm.", **members: Any) -> dict[str, Any]:
    """A reasoning item."""
    return {"id": "rs_1", "summary": [{"text": text, "type": "summary_text"}], "type": "reasoning", **members}


def call(arguments: str = '{"city":  "Oslo"}', **members: Any) -> dict[str, Any]:
    """A function call, whose arguments are spelled oddly."""
    return {"arguments": arguments, "call_id": "c_1", "name": "weather", "type": "function_call", **members}


def output(text: str = '{"degrees": -3}', **members: Any) -> dict[str, Any]:
    """What a tool gave."""
    return {"call_id": "c_1", "output": text, "type": "function_call_output", "id": None, **members}


def asked(text: str = "And more?") -> dict[str, Any]:
    """A message of the user, which Gym writes into outputs of several steps."""
    return {"content": text, "role": "user", "type": "message"}


def ids(prompt: int = 9, generated: int = 3, first: int = 100) -> dict[str, Any]:
    """Training fields: a prompt that counts from `first`, a generation that counts on, routes of two layers."""
    tokens = range(first, first + prompt + generated)
    return {
        "prompt_token_ids": [*tokens][:prompt],
        "generation_token_ids": [*tokens][prompt:],
        "generation_log_probs": [-0.1 * number for number in range(1, generated + 1)],
        "routed_experts": [[[token % 7, -1], [1, 2]] for token in tokens],
    }


NO_IDS: dict[str, Any] = {"prompt_token_ids": [], "generation_token_ids": [], "generation_log_probs": []}
"""What harnesses write that have no token ids."""


def row(*items: Any, **members: Any) -> dict[str, Any]:
    """A row of a rollout file with these items as its output."""
    params = {"input": [{"role": "user", "content": "Oslo? ☃"}], "temperature": 1.0, "metadata": None}
    response = {
        "id": "resp_1",
        "created_at": 1.5,
        "output": [*items],
        "status": "completed",
        "usage": {"input_tokens": 2},
    }
    rest = {"reward": 0.0, "agent_ref": {"type": "responses_api_agents", "name": "a"}, "_ng_task_index": 0}
    return {"responses_create_params": params, "response": response, **rest, **members}


ROWS: dict[str, dict[str, Any]] = {
    "text": row(message()),
    "one call of several items": row(reasoning(), message(), call()),
    "tools": row(reasoning(), call(), output(), call(), output(), message("Cold.")),
    "ids": row(reasoning(), call(**ids()), output(), message("Cold.", **ids(20))),
    "two calls side by side": row(message(**ids()), message(**ids(14))),
    "empty ids": row(reasoning(), message(**NO_IDS), call(), output(), message(**NO_IDS)),
    "user between": row(message(), asked(), message()),
    "hosted": row({"type": "web_search_call", "id": "ws", "action": {"query": "a"}, "status": "completed"}, message()),
    "envelope": row(message(**{**ids(), "routed_experts": "nrlre1:int8:1x2x1:AQI="})),
    "nothing said": row(),
    "ends with a tool": row(call(), output()),
    "refusal": row(message() | {"content": [{"type": "refusal", "refusal": "No."}]}),
    "numbers": row(message(), reward=-0.0, scores=[1, 1.0, 1e-7, 2**64, 0.1 + 0.2], deep={"a": [[1, 2], [3, 4]] * 9}),
    "surrogates": row(message("half \ud800"), note="\udfff"),
    "no other members": {"response": {"output": [message()]}},
    "nulls": row(message() | dict.fromkeys(NO_IDS), responses_create_params=None, reward=None),
}
"""A row of each kind."""


def lines(rows: Iterable[Any]) -> bytes:
    """Rows as a rollout file has them; text and bytes stand as they are."""
    texts = (each if isinstance(each, bytes) else json.dumps(each).encode() for each in rows)
    return b"".join(text + b"\n" for text in texts)


def write_rows(path: Path, *rows: Any) -> Path:
    """A rollout file of these rows."""
    path.write_bytes(lines(rows))
    return path


def import_rows(store: Store, path: Path, *rows: Any, **options: Any) -> list[Result]:
    """What became of the rows, imported from a file at `path`."""
    return [*import_gym(write_rows(path, *rows), store, **options)]


def export(store: Store, *rollouts: str) -> tuple[list[bytes], list[Written]]:
    """The rows of rollouts (of all, where none is named), and what became of each."""
    out = BytesIO()
    written = [*export_gym(store, rollouts or store.rollouts(), out)]
    return out.getvalue().splitlines(), written
