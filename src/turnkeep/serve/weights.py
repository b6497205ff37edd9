"""The shape and the weights of the embedded policy network: seeded, random, read-only."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnkeep.serve.tokens import EOS, VOCABULARY_SIZE

BLOCK = 64
"""Positions per block, and the width of the attention window: position t sees t - 63 to t."""
LAYERS = 4
EXPERTS = 8
TOP_K = 2
WIDTH = 32
HEADS = 2
EXPERT_WIDTH = 32

type Floats = NDArray[np.float64]


class Layer(NamedTuple):
    """The weights of one layer; all float64."""

    attend: Floats  # [WIDTH, 3 * WIDTH]: query, key, value
    mix: Floats  # [WIDTH, WIDTH]
    route: Floats  # [WIDTH, EXPERTS]
    expand: Floats  # [WIDTH, EXPERTS * EXPERT_WIDTH]
    reduce: Floats  # [EXPERTS * EXPERT_WIDTH, WIDTH]


class Weights(NamedTuple):
    """The weights of one policy; all float64."""

    embed: Floats  # [VOCABULARY_SIZE, WIDTH]
    start: Floats  # [WIDTH]: the state before the first token
    layers: tuple[Layer, ...]
    unembed: Floats  # [WIDTH, VOCABULARY_SIZE]
    bias: Floats  # [VOCABULARY_SIZE]: the end token is likelier than others, so that a sampled text ends


@lru_cache(maxsize=16)
def make_weights(seed: int) -> Weights:
    """Draw the weights of a seed: read-only float64 arrays, scaled so that states keep about unit size."""
    rng = np.random.Generator(np.random.PCG64(seed))

    def draw(*shape: int, scale: float = 1.0) -> Floats:
        array: Floats = rng.standard_normal(shape) * (scale / np.sqrt(shape[0]))
        array.flags.writeable = False
        return array

    embed = rng.standard_normal((VOCABULARY_SIZE, WIDTH))
    embed.flags.writeable = False
    bias = np.zeros(VOCABULARY_SIZE)
    bias[EOS] = 3.0
    bias.flags.writeable = False
    layers = tuple(
        Layer(
            draw(WIDTH, 3 * WIDTH),
            draw(WIDTH, WIDTH),
            draw(WIDTH, EXPERTS, scale=2.0),
            draw(WIDTH, EXPERTS * EXPERT_WIDTH, scale=1.5),
            draw(EXPERTS * EXPERT_WIDTH, WIDTH, scale=3.0),
        )
        for _ in range(LAYERS)
    )
    return Weights(embed, draw(WIDTH, scale=WIDTH**0.5), layers, draw(WIDTH, VOCABULARY_SIZE, scale=1.5), bias)
