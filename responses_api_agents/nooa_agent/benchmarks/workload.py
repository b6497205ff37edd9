"""Synthetic response bodies, as a model server sends them: the seed's turns, and three kinds that it leaves out.

`seed`: one assistant message a turn, prompt and generation ids below 150,000, experts `[generated, layers, top_k]`
uniform over 256. `growing`: each prompt is the one before, its generation, and as many new tokens; no experts. `dense`:
experts for prompt and generation, as a trainer with router replay has them, skewed, often those of the token before.
`items`: the seed's, with a reasoning item before the message and a tool call behind it, which carries the arrays.
`agent`: the seed's arrays on tool calls that a NOOA CodeAct method runs, the last one giving its result.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

WORKLOADS = ("seed", "growing", "dense", "items", "agent")

VOCABULARY = 150_000
EXPERTS = 256
TEXT_PER_TOKEN = 18
"""Characters of text for each generated token. The seed does not say how long its text is; that its text-only fixture
takes 0.29 MiB for 32 turns comes to about 9 KiB a turn, which is this."""

_WORDS = [
    "the",
    "route",
    '"north"',
    "holds\n",
    "until",
    "dusk,",
    "and",
    "then\\or",
    "so",
    "it",
    "is",
    "said",
    "the",
    "ferry",
    "stops",
    "for",
    "good",
]
_POOL = 512
"""Sets of experts that a layer's router chooses among, in `dense`."""
_STAYS = 0.5
"""How often a token takes the experts of the one before it, in `dense`."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a turn is like; equal workloads give equal bodies."""

    kind: str = "seed"
    prompt_tokens: int = 2048
    generated_tokens: int = 512
    layers: int = 64
    top_k: int = 8
    random_seed: int = 7

    def bodies(self, turns: int) -> list[bytes]:
        """The bodies of the responses to the first `turns` policy calls."""
        rng = np.random.default_rng(self.random_seed)
        prompt = _ids(rng, self.prompt_tokens)
        bodies = []
        for number in range(turns):
            arrays = self._arrays(rng, prompt)
            items = _items(self.kind, number, turns, self._text(rng), arrays)
            bodies.append(_body(number, items))
            new = _ids(rng, self.generated_tokens)
            prompt = (
                [*prompt, *arrays["generation_token_ids"], *new] if self.kind == "growing" else _ids(rng, len(prompt))
            )
        return bodies

    def _arrays(self, rng: np.random.Generator, prompt: list[int]) -> dict[str, Any]:
        arrays: dict[str, Any] = {
            "prompt_token_ids": prompt,
            "generation_token_ids": _ids(rng, self.generated_tokens),
            "generation_log_probs": (-rng.exponential(size=self.generated_tokens)).tolist(),
        }
        if self.kind == "dense":
            arrays["routed_experts"] = _skewed(rng, len(prompt) + self.generated_tokens, self.layers, self.top_k)
        elif self.kind != "growing":
            shape = (self.generated_tokens, self.layers, self.top_k)
            arrays["routed_experts"] = rng.integers(EXPERTS, size=shape).tolist()
        return arrays

    def _text(self, rng: np.random.Generator) -> str:
        length = self.generated_tokens * TEXT_PER_TOKEN
        picked = rng.integers(len(_WORDS), size=length // 4 + 1)
        return " ".join(_WORDS[word] for word in picked)[:length]


def _ids(rng: np.random.Generator, count: int) -> list[int]:
    ids: list[int] = rng.integers(VOCABULARY, size=count).tolist()
    return ids


def _skewed(rng: np.random.Generator, tokens: int, layers: int, top_k: int) -> Any:
    """Experts `[tokens, layers, top_k]`, distinct in each set: a few are popular in each layer, and tokens repeat."""
    popularity = 1.0 / np.arange(1, EXPERTS + 1)
    stays = rng.random(tokens) < _STAYS
    stays[0] = False
    taken_from = np.maximum.accumulate(np.where(stays, 0, np.arange(tokens)))
    experts = np.empty((tokens, layers, top_k), np.int64)
    for layer in range(layers):
        scores = np.log(popularity[rng.permutation(EXPERTS)]) + rng.gumbel(size=(_POOL, EXPERTS))
        pool = np.argsort(-scores, axis=1)[:, :top_k]
        experts[:, layer] = pool[rng.integers(_POOL, size=tokens)][taken_from]
    return experts.tolist()


def _items(kind: str, number: int, turns: int, text: str, arrays: dict[str, Any]) -> list[dict[str, Any]]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed", "content": content}
    if kind not in ("items", "agent"):
        return [{**message, **arrays}]
    summary = [{"type": "summary_text", "text": text[:2000]}]
    reasoning = {"id": f"rs_{number}", "type": "reasoning", "summary": summary, "encrypted_content": "gAAAAA" * 40}
    called: tuple[str, Any] = ("execute_python", {"code": f"print({number})"})
    if kind == "agent" and number == turns - 1:
        called = ("return_result", {"result": number})
    call = {
        "id": f"fc_{number}",
        "type": "function_call",
        "call_id": f"call_{number}",
        "name": called[0],
        "arguments": json.dumps(called[1]),
        "status": "completed",
    }
    return [reasoning, message, {**call, **arrays}]


def _body(number: int, items: list[dict[str, Any]]) -> bytes:
    response = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1.0,
        "model": "gym-policy",
        "status": "completed",
        "output": items,
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
    }
    return json.dumps(response, separators=(",", ":"), ensure_ascii=False).encode()
