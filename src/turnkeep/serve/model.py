"""The embedded policy network: a seeded mixture-of-experts transformer in float64 NumPy.

Real arithmetic on random weights: each layer is windowed attention (64 positions) and a routed mixture (8 experts,
the best 2 per token), so a recorded rollout can be scored again from its token ids and routed experts.

**One scoring path.** Every product is taken on whole blocks of 64 positions, aligned to absolute positions and padded,
so each matrix product has one shape whatever the length of the text. What stands at position t therefore depends, to
the last bit, on the seed and `ids[:t + 1]` alone: not on the batch, the chunk, or what follows. This holds on one
machine with one NumPy build; another CPU may round differently in the last place.

**Rows of experts.** Row t of a routing array names the experts through which token t passed *as an input*. The log prob
of token t depends on the rows 0 to t - 1; the row of the last token has influenced nothing yet (servers record it too,
since the next call feeds that token).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnkeep.serve.tokens import EOS, PAD, SPECIAL, VOCABULARY_SIZE
from turnkeep.serve.weights import (
    BLOCK,
    EXPERT_WIDTH,
    EXPERTS,
    HEADS,
    LAYERS,
    TOP_K,
    WIDTH,
    Floats,
    Layer,
    Weights,
    make_weights,
)

_GROUP = 8  # blocks that go through the layers together; bounds memory, changes no number

type Experts = NDArray[np.uint8]
type Integers = NDArray[np.integer[Any]]


class Carry(NamedTuple):
    """Keys and values of the block before the next one, per layer, each [1, HEADS, BLOCK, WIDTH // HEADS]."""

    position: int
    keys: tuple[Floats, ...]
    values: tuple[Floats, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy whose weights follow from its seed; equal seeds are equal policies, in any process."""

    seed: int = 0

    def score(self, ids: Sequence[int], start: int, experts: Integers | None = None) -> tuple[Floats, Experts]:
        """Give the log probs and the routed experts of `ids[start:]`.

        `log_probs[i]` (float64, shape `[n - start]`, nats) is the log prob of `ids[start + i]` given what is
        before it; `experts[i]` (uint8, shape `[n - start, LAYERS, TOP_K]`, best first) routed `ids[start + i]` as
        an input. With `experts` the routing is forced instead of found (router replay): `[n, LAYERS, TOP_K]` for
        all of `ids`, or `[n - start, LAYERS, TOP_K]` for the scored part. A route with a -1 is left to the router.
        Raises ValueError for ids outside the vocabulary, and for experts of another shape, unknown or named twice.
        """
        log_probs, routes = self.trace(ids, start, experts)
        return log_probs, routes[start:]

    def trace(self, ids: Sequence[int], start: int, experts: Integers | None = None) -> tuple[Floats, Experts]:
        """Give the same log probs as `score`, and the routed experts of all `ids`: `[n, LAYERS, TOP_K]`."""
        tokens = _checked_ids(ids, start)
        forced = None if experts is None else _checked_experts(experts, len(tokens), start)
        weights = make_weights(self.seed)
        runs = list(_run(weights, tokens, forced))
        states = np.concatenate([weights.start[None], *(run[0] for run in runs)])[: len(tokens) + 1]
        routes = np.concatenate([np.zeros((0, LAYERS, TOP_K), np.uint8), *(run[1] for run in runs)])
        return _log_probs(weights, states, tokens, start), routes[: len(tokens)]

    def sample(
        self, ids: Sequence[int], rng: np.random.Generator, max_tokens: int, temperature: float = 1.0
    ) -> list[int]:
        """Draw up to `max_tokens` tokens after `ids`, or fewer, up to and with the end token.

        Temperature 0 takes the likeliest token.
        Only bytes, pieces and the end token are drawn, never a header, so that what comes out reads as text.
        """
        weights = make_weights(self.seed)
        tokens = _checked_ids(ids, 0)
        whole = len(tokens) - len(tokens) % BLOCK
        state, carry = weights.start, _empty_carry()
        for run in _run(weights, tokens[:whole], None):
            state, carry = run[0][-1], run[2]
        tail: list[int] = tokens[whole:].tolist()
        drawn: list[int] = []
        while len(drawn) < max_tokens and EOS not in drawn[-1:]:
            if tail:
                block = np.array(tail + [PAD] * (BLOCK - len(tail)), dtype=np.int64)
                states, _, after = _forward(weights, block, None, carry)
                state = states[len(tail) - 1]
            if len(tail) == BLOCK:
                tail, carry = [], after
            drawn.append(_draw(_block_log_probs(weights, state[None])[0], rng, temperature))
            tail.append(drawn[-1])
        return drawn


def _draw(log_probs: Floats, rng: np.random.Generator, temperature: float) -> int:
    """Draw one token that may stand in a text, or the end token."""
    allowed = log_probs.copy()
    allowed[[number for number in range(256, 256 + len(SPECIAL)) if number != EOS]] = -np.inf
    if temperature <= 0:
        return int(np.argmax(allowed))
    share = np.cumsum(np.exp((allowed - allowed.max()) / temperature))
    return int(np.searchsorted(share, rng.random() * share[-1], side="right"))


def _checked_ids(ids: Sequence[int], start: int) -> NDArray[np.int64]:
    tokens = np.asarray(ids, dtype=np.int64).reshape(-1)
    if tokens.size and (tokens.min() < 0 or tokens.max() >= VOCABULARY_SIZE):
        raise ValueError(f"token ids must be 0 to {VOCABULARY_SIZE - 1}")
    if not 0 <= start <= len(tokens):
        raise ValueError(f"start {start} is outside the {len(tokens)} ids")
    return tokens


def _checked_experts(experts: Integers, length: int, start: int) -> NDArray[np.int64]:
    """Bring forced routes to one row per id, -1 where nothing is forced."""
    given = np.asarray(experts)
    if given.shape[1:] != (LAYERS, TOP_K) or given.shape[0] not in (length, length - start):
        wanted = f"[{length} or {length - start}, {LAYERS}, {TOP_K}]"
        raise ValueError(f"experts must have the shape {wanted}, not {list(given.shape)}")
    if not np.issubdtype(given.dtype, np.integer):
        raise ValueError(f"experts must be integers, not {given.dtype}")
    forced = np.full((length, LAYERS, TOP_K), -1, dtype=np.int64)
    forced[length - given.shape[0] :] = given
    if forced.size and (forced.min() < -1 or forced.max() >= EXPERTS):
        raise ValueError(f"experts must be 0 to {EXPERTS - 1}, or -1")
    if bool(np.any((forced[..., 0] == forced[..., 1]) & (forced[..., 0] >= 0))):
        raise ValueError("one route names the same expert twice")
    return forced


def _run(
    weights: Weights, tokens: NDArray[np.int64], forced: NDArray[np.int64] | None
) -> Iterator[tuple[Floats, Experts, Carry]]:
    """Send tokens through the layers, some blocks at a time, from the first position on.

    Yields states `[m, WIDTH]`, routes `[m, LAYERS, TOP_K]` and the carry; the last block's padding comes out too.
    """
    at = _empty_carry()
    blocks = -(-len(tokens) // BLOCK)
    padded = np.zeros(blocks * BLOCK, dtype=np.int64)
    padded[: len(tokens)] = tokens
    for first in range(0, blocks, _GROUP):
        here = slice(first * BLOCK, min(first + _GROUP, blocks) * BLOCK)
        routes = None
        if forced is not None:
            routes = np.full((here.stop - here.start, LAYERS, TOP_K), -1, dtype=np.int64)
            given = forced[here]
            routes[: len(given)] = given
        states, found, at = _forward(weights, padded[here], routes, at)
        yield states, found, at


def _empty_carry() -> Carry:
    nothing = tuple(np.zeros((1, HEADS, BLOCK, WIDTH // HEADS)) for _ in range(LAYERS))
    return Carry(0, nothing, nothing)


def _forward(
    weights: Weights, tokens: NDArray[np.int64], forced: NDArray[np.int64] | None, carry: Carry
) -> tuple[Floats, Experts, Carry]:
    """Send whole blocks through all layers; `len(tokens)` is a multiple of BLOCK."""
    blocks = len(tokens) // BLOCK
    x = weights.embed[tokens].reshape(blocks, BLOCK, WIDTH)
    routes = np.empty((blocks, BLOCK, LAYERS, TOP_K), dtype=np.uint8)
    keys, values = [], []
    for index, layer in enumerate(weights.layers):
        attended, key, value = _attend(layer, _normalise(x), carry, index)
        x = x + attended
        wanted = None if forced is None else forced.reshape(blocks, BLOCK, LAYERS, TOP_K)[:, :, index]
        mixed, routes[:, :, index] = _mixture(layer, _normalise(x), wanted)
        x = x + mixed
        keys.append(key)
        values.append(value)
    after = Carry(carry.position + len(tokens), tuple(keys), tuple(values))
    return _normalise(x).reshape(-1, WIDTH), routes.reshape(-1, LAYERS, TOP_K), after


def _normalise(x: Floats) -> Floats:
    size: Floats = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    return x / size


def _attend(layer: Layer, x: Floats, carry: Carry, index: int) -> tuple[Floats, Floats, Floats]:
    """Let each position attend to the 64 up to itself; also give the last block's keys and values."""
    blocks = len(x)
    split = (x @ layer.attend).reshape(blocks, BLOCK, 3, HEADS, WIDTH // HEADS)
    query, key, value = (np.ascontiguousarray(split[:, :, part].transpose(0, 2, 1, 3)) for part in range(3))
    two_keys = _with_previous(carry.keys[index], key)
    two_values = _with_previous(carry.values[index], value)
    scores = query @ np.ascontiguousarray(two_keys.transpose(0, 1, 3, 2)) + _window_bias()
    if carry.position == 0:
        scores[0, :, :, :BLOCK] = -np.inf
    weight = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weight /= weight.sum(axis=-1, keepdims=True)
    seen = np.ascontiguousarray((weight @ two_values).transpose(0, 2, 1, 3)).reshape(blocks, BLOCK, WIDTH)
    return seen @ layer.mix, key[-1:], value[-1:]


def _with_previous(before: Floats, blocks: Floats) -> Floats:
    """Put each block behind the one before it: `[n, HEADS, 2 * BLOCK, WIDTH // HEADS]`."""
    return np.concatenate([np.concatenate([before, blocks[:-1]]), blocks], axis=2)


@lru_cache(maxsize=1)
def _window_bias() -> Floats:
    """Distance penalty per head `[HEADS, BLOCK, 2 * BLOCK]`, minus infinity outside the window."""
    distance = np.arange(BLOCK)[:, None] + BLOCK - np.arange(2 * BLOCK)[None, :]
    slopes = 2.0 ** -np.arange(1, HEADS + 1)
    bias: Floats = np.where((distance >= 0) & (distance < BLOCK), -distance * slopes[:, None, None], -np.inf)
    return bias


def _mixture(layer: Layer, x: Floats, forced: NDArray[np.int64] | None) -> tuple[Floats, Experts]:
    """Mix two experts per position, weighted by the router's softmax over those two."""
    logits = x @ layer.route
    chosen = np.argsort(-logits, axis=-1, kind="stable")[..., :TOP_K]
    if forced is not None:
        chosen = np.where(np.any(forced < 0, axis=-1, keepdims=True), chosen, forced)
    picked = np.take_along_axis(logits, chosen, axis=-1)
    gate = np.exp(picked - picked.max(axis=-1, keepdims=True))
    gate /= gate.sum(axis=-1, keepdims=True)
    gates = np.zeros_like(logits)
    np.put_along_axis(gates, chosen, gate, axis=-1)
    inner = np.maximum(x @ layer.expand, 0.0).reshape(*x.shape[:2], EXPERTS, EXPERT_WIDTH)
    inner *= gates[..., None]
    return inner.reshape(*x.shape[:2], -1) @ layer.reduce, chosen.astype(np.uint8)


def _log_probs(weights: Weights, states: Floats, tokens: NDArray[np.int64], start: int) -> Floats:
    """Log probs of `tokens[start:]`; `states[t]` is the state before token t."""
    result = np.empty(len(tokens) - start)
    for first in range(start - start % BLOCK, len(tokens), BLOCK):
        stop = min(first + BLOCK, len(tokens))
        table = _block_log_probs(weights, states[first:stop])
        low = max(first, start)
        result[low - start : stop - start] = table[np.arange(low - first, stop - first), tokens[low:stop]]
    return result


def _block_log_probs(weights: Weights, states: Floats) -> Floats:
    """Log probs of every token after each of up to 64 states; computed on a whole block."""
    block = np.zeros((BLOCK, WIDTH))
    block[: len(states)] = states
    logits = block @ weights.unembed + weights.bias
    logits -= logits.max(axis=-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return logits
