"""The cache of wire texts: it changes no byte, and stays within its bound."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeep import ConfigurationError, Scope, Turn, WireCache, capture, project

SCOPE = Scope("policy_model")


def turn(number: int) -> Turn:
    """A turn of about a kilobyte."""
    item: dict[str, Any] = {"type": "message", "content": [{"type": "output_text", "text": str(number) * 900}]}
    item |= {"prompt_token_ids": [number], "generation_token_ids": [1], "generation_log_probs": [-1.0]}
    return capture(json.dumps({"output": [item]}).encode(), SCOPE)


TURNS = [turn(number) for number in range(5)]


@given(st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=5), st.integers(0, 4000))
def test_a_cached_replay_is_the_same_bytes_within_the_bound(histories: list[list[int]], bound: int) -> None:
    """Whatever was replayed before, a body with the cache is the body without, and the bound holds (contract 4.6)."""
    cache = WireCache(bound)
    for history in histories:
        request = project([TURNS[number] for number in history], SCOPE)
        for form in (request, request.withheld()):
            assert form.body(cache=cache) == form.body() == b"".join(form.chunks())
        assert cache.bytes <= bound


def test_what_was_cached_is_not_made_again() -> None:
    """The second replay of a turn is a copy: the very bytes of the first."""
    cache = WireCache()
    request = project(TURNS, SCOPE)
    first = [chunk for chunk in request.chunks(cache=cache) if len(chunk) > 100]
    second = [chunk for chunk in request.chunks(cache=cache) if len(chunk) > 100]
    assert len(first) == 5
    assert all(one is other for one, other in zip(first, second, strict=True))


def test_a_bound_below_nothing_is_refused() -> None:
    """A bound is a number of bytes."""
    with pytest.raises(ConfigurationError, match="max_bytes"):
        WireCache(-1)
