"""From a request to a complete Responses object: prompt, words, true log probs, true routed experts.

Everything in an answer follows from the policy's seed, the prompt's token ids and the step, so equal requests get equal
answers, also from another process; `created_at` is therefore a constant. The training fields stand on the LAST output
item only. `routed_experts` has a row per token of prompt + generation, row t for token t as an input (see `model`).
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from turnkeep.errors import ConfigurationError
from turnkeep.serve import tokens
from turnkeep.serve.chat import InvalidRequest, Prompt, make_prompt, read_messages
from turnkeep.serve.model import Experts, Policy
from turnkeep.serve.parts import Part, cut_parts, join_ids, write_parts
from turnkeep.serve.script import Script, choose_step

CREATED_AT = 1_767_225_600
"""The time in every answer: 2026-01-01 00:00 UTC."""


@dataclass(frozen=True, slots=True)
class Options:
    """How answers are made.

    `experts`: routing as nested lists, as the string envelope `nrlre1:int8:<rows>x<layers>x<top_k>:<base64>`, or left
    out. `experts_rows`: rows for prompt and generation, or for the generation only (which NeMo RL refuses). `delay`:
    seconds before each answer. `temperature` and `max_tokens`: for free sampling, where the request says nothing.
    """

    model: str = "turnkeep-policy"
    experts: Literal["nested", "envelope", "none"] = "nested"
    experts_rows: Literal["all", "generation"] = "all"
    delay: float = 0.0
    temperature: float = 1.0
    max_tokens: int = 256

    def __post_init__(self) -> None:
        if self.experts not in ("nested", "envelope", "none") or self.experts_rows not in ("all", "generation"):
            raise ConfigurationError("experts must be nested, envelope or none, and experts_rows all or generation")
        if self.delay < 0:
            raise ConfigurationError("delay must not be negative")


class Answer(NamedTuple):
    """A Responses object, and the prompt it answers."""

    response: dict[str, Any]
    prompt: Prompt


class Words(NamedTuple):
    """What the policy says: the parts, their token ids, and whether it was all that it had to say."""

    parts: Sequence[Part]
    ids: list[int]
    complete: bool


def answer_request(policy: Policy, script: Script | None, options: Options, body: Mapping[str, Any]) -> Answer:
    """Answer a request; raises InvalidRequest. Without a script the words are sampled from the policy."""
    limit = _read_limit(body)
    messages = read_messages(body)
    prompt = make_prompt(messages)
    key = hashlib.sha256(b"%d:" % policy.seed + np.array(prompt.ids, dtype="<i4").tobytes()).digest()
    rng = np.random.default_rng(np.frombuffer(key, dtype=np.uint32))
    if script is None:
        words = _sample_words(policy, prompt, rng, _read_temperature(body, options), limit or options.max_tokens)
    else:
        words = _script_words(choose_step(script, messages).parts, rng, limit)
    start = len(prompt.ids)
    log_probs, experts = policy.trace([*prompt.ids, *words.ids], start)
    fields: dict[str, Any] = {
        "prompt_token_ids": prompt.ids,
        "generation_token_ids": words.ids,
        "generation_log_probs": log_probs.tolist(),
    }
    if options.experts != "none":
        rows = experts if options.experts_rows == "all" else experts[start:]
        fields["routed_experts"] = rows.tolist() if options.experts == "nested" else write_envelope(rows)
    output = _make_items(words, key.hex()[:24])
    output[-1].update(fields)
    return Answer(_make_response(body, options, key.hex()[:24], output, prompt, words), prompt)


def write_envelope(experts: Experts) -> str:
    """Write a routing array `[rows, layers, top_k]` as NeMo RL's one-string envelope."""
    shape = "x".join(map(str, experts.shape))
    return f"nrlre1:int8:{shape}:{base64.b64encode(experts.astype(np.int8).tobytes()).decode()}"


def _script_words(parts: Sequence[Part], rng: np.random.Generator, limit: int | None) -> Words:
    fragments = write_parts(parts, partial(tokens.segment, rng=rng))
    ids = [*join_ids(fragments), tokens.EOS]
    if limit is None or len(ids) <= limit:
        return Words(parts, ids, complete=True)
    return Words(cut_parts(parts, fragments, limit), ids[:limit], complete=False)


def _sample_words(policy: Policy, prompt: Prompt, rng: np.random.Generator, temperature: float, limit: int) -> Words:
    ids = policy.sample(prompt.ids, rng, limit, temperature)
    complete = ids[-1] == tokens.EOS
    return Words([Part("text", (tokens.to_text(tokens.decode(ids[:-1] if complete else ids)),))], ids, complete)


def _make_items(words: Words, key: str) -> list[dict[str, Any]]:
    """Make the output items; where a limit left nothing readable, one empty message carries the training fields."""
    parts = words.parts or [Part("text", ("",))]
    items = [_make_item(part, f"{key}_{index}") for index, part in enumerate(parts)]
    if not words.complete and parts[-1].kind != "item":
        items[-1]["status"] = "incomplete"
    return items


def _make_item(part: Part, key: str) -> dict[str, Any]:
    """Make one output item; its ids end in `key`."""
    match part.kind:
        case "summary" | "reasoning":
            item: dict[str, Any] = {"id": f"rs_{key}", "type": "reasoning", "summary": [], "status": "completed"}
            kind, member = ("summary_text", "summary") if part.kind == "summary" else ("reasoning_text", "content")
            item[member] = [{"type": kind, "text": text} for text in part.fields]
        case "text":
            blocks = [{"type": "output_text", "text": text, "annotations": []} for text in part.fields]
            item = {
                "id": f"msg_{key}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": blocks,
            }
        case "refusal":
            blocks = [{"type": "refusal", "refusal": text} for text in part.fields]
            item = {
                "id": f"msg_{key}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": blocks,
            }
        case "call":
            name, arguments = part.fields
            item = {"id": f"fc_{key}", "type": "function_call", "status": "completed", "call_id": f"call_{key}"}
            item |= {"name": name, "arguments": arguments}
        case "item":
            item = {}
    return item | dict(part.extra)


def _make_response(
    body: Mapping[str, Any], options: Options, key: str, output: list[dict[str, Any]], prompt: Prompt, words: Words
) -> dict[str, Any]:
    def asked(name: str, default: Any) -> Any:
        value = body.get(name)
        return default if value is None else value

    thought = sum(len(join_ids(write_parts([part], tokens.encode))) for part in words.parts if _is_reasoning(part))
    return {
        "id": f"resp_{key}",
        "object": "response",
        "created_at": CREATED_AT,
        "status": "completed" if words.complete else "incomplete",
        "error": None,
        "incomplete_details": None if words.complete else {"reason": "max_output_tokens"},
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": asked("metadata", {}),
        "model": asked("model", options.model),
        "output": output,
        "parallel_tool_calls": asked("parallel_tool_calls", True),
        "previous_response_id": None,
        "temperature": asked("temperature", 1.0),
        "text": asked("text", {"format": {"type": "text"}}),
        "tool_choice": asked("tool_choice", "auto"),
        "tools": asked("tools", []),
        "top_p": asked("top_p", 1.0),
        "truncation": "disabled",
        "usage": {
            "input_tokens": len(prompt.ids),
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": len(words.ids),
            "output_tokens_details": {"reasoning_tokens": thought},
            "total_tokens": len(prompt.ids) + len(words.ids),
        },
    }


def _is_reasoning(part: Part) -> bool:
    return part.kind in ("summary", "reasoning")


def _read_limit(body: Mapping[str, Any]) -> int | None:
    limit = body.get("max_output_tokens")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InvalidRequest("max_output_tokens must be a positive integer")
    if body.get("stream"):
        raise InvalidRequest("this server does not stream")
    return limit


def _read_temperature(body: Mapping[str, Any], options: Options) -> float:
    value = body.get("temperature")
    if value is None:
        return options.temperature
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise InvalidRequest("temperature must be a number from 0 up")
    return float(value)
