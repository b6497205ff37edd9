import base64
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from made_rollouts import SCOPE, message, response, training

from turnkeep.check.facts import Routes, Sample
from turnkeep.history.capture import capture
from turnkeep.report.arrays import carry
from turnkeep.report.content import gather
from turnkeep.report.experts import MOST_EXPERTS, Tally
from turnkeep.report.measure import see_turns, why_portable
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.view import RolloutView
from turnkeep.store.memory import MemoryStore

IDS = st.lists(st.integers(0, 5), min_size=1, max_size=12)


@given(IDS, IDS, IDS)
def test_the_shared_prefix_is_counted_token_by_token(
    prompt: list[int], generation: list[int], after: list[int]
) -> None:
    """What a prompt shares is its longest common prefix with the prompt and the generation before it."""
    store = MemoryStore()
    with Rollout.open(store, "r", scope=SCOPE) as rollout:
        for ids in (prompt, after):
            fields = training(ids, generation, [-0.5] * len(generation))
            rollout.add_turn(capture(response([message("x", **fields)]), SCOPE))
    first, second = (seen.numbers for seen in see_turns(RolloutView(store, "r")))
    whole = prompt + generation
    common = next(
        (i for i, (a, b) in enumerate(zip(whole, after, strict=False)) if a != b), min(len(whole), len(after))
    )
    assert (first.shared, second.shared) == (None, common)
    assert (second.prompt, second.generated, second.mean_log_prob) == (len(after), len(generation), -0.5)


def sample(turn: int, prompt: int, generation: int, routes: Any) -> Sample:
    """A sample of so many tokens with these routes."""
    ids = np.zeros(prompt, dtype=np.uint8), np.zeros(generation, dtype=np.uint8)
    return Sample(turn, 0, *ids, np.zeros(generation), Routes(routes, "lists"))


ROUTES = st.integers(0, 4).flatmap(
    lambda extra: arrays.arrays(np.int16, (6 + extra, 3, 2), elements=st.integers(-1, 6)).map(
        lambda array: (extra, array)
    )
)


@given(ROUTES, st.integers(0, 6))
def test_each_route_is_counted_once(made: tuple[int, Any], shared: int) -> None:
    """The load of an expert is how often the positions that are new took it; routes that are -1 are missing."""
    extra, routes = made
    tally = Tally()
    tally.add((sample(0, 4, 2 + extra, routes),), (None,))
    tally.add((sample(1, 4, 2 + extra, routes),), (shared,))
    experts = tally.result()
    assert experts is not None
    rows = [*routes.tolist(), *routes[shared:].tolist()]
    counted = Counter((layer, expert) for row in rows for layer, took in enumerate(row) for expert in took)
    width = experts.load.shape[1]
    assert experts.load.tolist() == [[counted[layer, expert] for expert in range(width)] for layer in range(3)]
    assert experts.missing == sum(count for (_, expert), count in counted.items() if expert == -1)
    assert experts.used[0].tolist() == [
        len({e for row in routes.tolist() for e in row[layer]} - {-1}) for layer in range(3)
    ]


def test_evenly_used_experts_count_whole_and_routes_of_the_generation_alone_are_all_new() -> None:
    """Four experts used evenly are four effective ones, one is one; rows for the generation alone are not cut."""
    tally = Tally()
    tally.add((), ())
    tally.add((sample(1, 9, 4, np.array([[[0], [5]], [[1], [5]], [[2], [5]], [[3], [5]]])),), (9,))
    experts = tally.result()
    assert experts is not None
    assert np.isnan(experts.effective[0]).all()
    assert experts.effective[1].tolist() == [4.0, 1.0]
    assert (experts.least_effective, experts.most_effective) == (1.0, 4.0)


def test_routes_too_wide_to_draw_are_named() -> None:
    """An expert id beyond what a picture can show makes no array of its size; the turn is named."""
    tally = Tally()
    tally.add((sample(0, 1, 1, np.full((2, 1, 1), 1 << 40)),), (None,))
    alone = tally.result()
    assert alone is not None
    assert (alone.load.size, "turn 0" in str(alone.remark)) == (0, True)
    tally.add((sample(1, 1, 1, np.full((2, 1, 1), MOST_EXPERTS - 1)),), (None,))
    experts = tally.result()
    assert experts is not None
    assert experts.load.shape == (1, MOST_EXPERTS)
    assert "turn 0" in str(experts.remark)


def test_each_route_is_counted_once_where_a_turn_has_several_items() -> None:
    """Each item's routes cover the whole conversation so far: six positions in three items are six routes."""

    def item(prompt: list[int], new: int) -> dict[str, Any]:
        return message("x", **training(prompt, [new], [-1.0]), routed_experts=[[[1]]] * (len(prompt) + 1))

    store = MemoryStore()
    with Rollout.open(store, "r", scope=SCOPE) as rollout:
        for items in ([item([1], 2)], [item([1, 2, 3], 4), item([1, 2, 3, 4, 5], 6)]):
            rollout.add_turn(capture(response(items), SCOPE))
    content = gather(RolloutView(store, "r"))
    assert content.experts is not None
    assert content.experts.load.tolist() == [[0, 6]]


@pytest.mark.parametrize("log_probs", [[-1.0, -(10**400)], [-1e308, -1e308, -1e308]])
def test_log_probs_beyond_all_floats_have_no_mean(log_probs: list[float]) -> None:
    """A mean that no float reaches is not known, and neither is a lowest one: no infinity goes into JSON."""
    store = MemoryStore()
    fields = training([1], range(len(log_probs)), log_probs)
    with Rollout.open(store, "r", scope=SCOPE) as rollout:
        rollout.add_turn(capture(response([message("x", **fields)]), SCOPE))
    content = gather(RolloutView(store, "r"))
    numbers = content.cards[0].numbers
    assert (numbers.mean_log_prob, content.mean_log_prob) == (None, None)
    assert numbers.least_log_prob == (min(log_probs) if isinstance(log_probs[1], float) else None)


@given(st.lists(st.floats(width=64)) | st.lists(st.integers(0, 1 << 80)) | st.lists(st.integers(0, 300)))
def test_arrays_travel_to_the_page_exactly(values: list[Any]) -> None:
    """Floats travel by their bits and integers by value, those beyond 64 bits as digits."""
    is_float = bool(values) and isinstance(values[0], float)
    dtype = np.float64 if is_float else np.uint64 if max(values, default=0) < 1 << 64 else object
    array = np.array(values, dtype=dtype)
    carried = carry(array)
    if carried.type == "json":
        assert [int(text) for text in json.loads(carried.data)] == values
        return
    back = np.frombuffer(base64.b64decode(carried.data), dtype=np.dtype(carried.type).newbyteorder("<"))
    assert back.astype(array.dtype).tobytes() == array.tobytes()


def test_a_turn_says_why_it_is_portable() -> None:
    """Another scope, none, another runtime's and an edit each have words of their own (contract 2.2, 2.3, 3.1)."""
    turn = capture(response([message("x")]), SCOPE)
    assert why_portable(turn, SCOPE) is None
    assert "is not" in str(why_portable(turn, 'nemo-gym/responses/v1:["other", "gym-policy"]'))
    assert why_portable(capture(response([message("x")]), None), SCOPE) == "it has no scope"
    assert "another runtime's" in str(why_portable(capture(response([message("x")]), "openai"), "openai"))
    assert "native" in str(why_portable(turn.edit(0, text="y"), SCOPE))
