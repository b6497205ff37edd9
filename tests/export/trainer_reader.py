"""How trainers read a Gym rollout row, written from their public code: NeMo RL's and TRL's Gym integrations.

Each rule that a row breaks is a RuleBroken with the rule's name. Input-side token ids are not looked at by either.
"""

import base64
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np


class RuleBroken(ValueError):
    """A row that a trainer would not train on."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule


class Message(NamedTuple):
    """One message of NeMo RL's log: token ids, and for the assistant log probs; routes of its tokens, where asked."""

    role: str
    token_ids: list[int]
    log_probs: list[float] | None = None
    routes: Any = None


class Sample(NamedTuple):
    """One of TRL's samples: the first prompt, what follows, its log probs, and 1 for what the policy generated."""

    prompt_ids: list[int]
    completion_ids: list[int]
    log_probs: list[float]
    mask: list[int]


class _Generated(NamedTuple):
    """A trainable item: the tokens that its prompt adds to what was seen, its own, and how many were seen."""

    new: list[int]
    tokens: list[int]
    log_probs: list[float]
    seen: int
    item: Mapping[str, Any]


def _trainable(row: Mapping[str, Any]) -> Iterator[_Generated]:
    """The items with generation ids, which follow one another without a break."""
    seen: list[int] = []
    for number, item in enumerate(row["response"]["output"]):
        if not item.get("generation_token_ids"):
            continue
        prompt, tokens = item["prompt_token_ids"], item["generation_token_ids"]
        log_probs = item["generation_log_probs"]
        if len(tokens) != len(log_probs):
            raise RuleBroken("lengths", f"item {number} has {len(tokens)} ids and {len(log_probs)} log probs")
        if any(math.isnan(each) for each in log_probs):
            raise RuleBroken("nan", f"item {number} has a log prob that is no number")
        if prompt[: len(seen)] != seen:
            raise RuleBroken("contiguous", f"the prompt of item {number} does not begin with what was seen")
        yield _Generated(prompt[len(seen) :], tokens, log_probs, len(seen), item)
        seen = [*prompt, *tokens]
    if not seen:
        raise RuleBroken("nothing_trainable", "no item has generation ids")


def read_nemo_rl(row: Mapping[str, Any], *, router_replay: bool = False) -> list[Message]:
    """The message log that NeMo RL makes of a row (`_postprocess_nemo_gym_to_nemo_rl_result`)."""
    messages: list[Message] = []
    for found in _trainable(row):
        routes = _routes(found) if router_replay else None
        start = found.seen + len(found.new)
        before = None if routes is None else routes[found.seen : start]
        messages.append(Message("user", found.new, routes=before))
        if routes is not None and len(messages) > 1:
            messages[-2].routes[-1] = routes[found.seen - 1]  # the last row of a generation is padding
        own = None if routes is None else routes[start : start + len(found.tokens)]
        messages.append(Message("assistant", found.tokens, found.log_probs, own))
    parts = row.get("reward_components")
    if parts is not None and not math.isclose(sum(parts.values()), row["reward"]):
        raise RuleBroken("reward_components", "the components do not add up to the reward")
    return messages


def _routes(found: _Generated) -> Any:
    """The routes of all tokens of a call, `[tokens, layers, top_k]`."""
    given = found.item.get("routed_experts")
    if given is None:
        raise RuleBroken("routes_missing", "router replay is on, and there are no routes")
    routes = _decode(given) if isinstance(given, str) else np.array(given)
    if routes.ndim != 3:
        raise RuleBroken("routes_rank", f"routes of shape {list(routes.shape)}")
    rows = found.seen + len(found.new) + len(found.tokens)
    if len(routes) < rows:
        raise RuleBroken("routes_rows", f"{len(routes)} rows of routes for {rows} tokens")
    return routes.copy()


def _decode(envelope: str) -> Any:
    """The routes of NeMo RL's envelope, `nrlre1:<dtype>:<S>x<L>x<K>:<base64>`."""
    name, dtype, shape, data = envelope.split(":")
    assert name == "nrlre1"
    return np.frombuffer(base64.b64decode(data, validate=True), dtype).reshape([int(size) for size in shape.split("x")])


def read_trl(row: Mapping[str, Any]) -> Sample:
    """The sample that TRL's Gym example makes of a row."""
    first, *rest = _trainable(row)
    completion, log_probs, mask = [*first.tokens], [*first.log_probs], [1] * len(first.tokens)
    for found in rest:
        completion += [*found.new, *found.tokens]
        log_probs += [0.0] * len(found.new) + found.log_probs
        mask += [0] * len(found.new) + [1] * len(found.tokens)
    return Sample(first.new, completion, log_probs, mask)
