"""Training samples: each token once, with what was recorded for it, against a plain reference and the policy itself."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from atif_samples import ASKED, GOOD, answer, ids, kept, message
from hypothesis import given, settings
from hypothesis import strategies as st

from turnkeep import (
    MalformedItem,
    PolicyClient,
    Rollout,
    RolloutView,
    Scope,
    TrainingSample,
    Turn,
    capture,
    open_store,
    to_training_samples,
)
from turnkeep.serve.model import Policy
from turnkeep.serve.script import make_script
from turnkeep.serve.server import running_policy
from turnkeep.store.memory import MemoryStore

SEED = 11


def of(*items: dict[str, Any]) -> RolloutView:
    """A rollout with a turn for each item."""
    store = MemoryStore()
    with Rollout.open(store, "r") as rollout:
        rollout.add_turns([capture(answer(item)) for item in items])
    return RolloutView(store, "r")


def test_turns_that_go_on_are_one_sample() -> None:
    """Two turns make one sequence: ids, mask, log probs and routes per token, in the dtypes that are promised."""
    (sample,) = to_training_samples(RolloutView(kept(GOOD), "r"))
    assert sample.rollout == "r"
    assert sample.turns == (0, 1)
    assert sample.generations == ((0, 2, 3, 5), (1, 0, 6, 8))
    assert sample.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert sample.loss_mask.tolist() == [False, False, False, True, True, False, True, True]
    assert sample.log_probs.tolist() == [0.0, 0.0, 0.0, -0.1, -0.2, 0.0, -0.1, -0.2]
    routes = sample.routed_experts
    assert routes is not None
    assert routes.tolist() == [[[token % 7, 7], [9, 8]] for token in sample.token_ids.tolist()]
    dtypes = (sample.token_ids.dtype, sample.loss_mask.dtype, sample.log_probs.dtype, routes.dtype)
    assert list(map(str, dtypes)) == ["int64", "bool", "float64", "int32"]


def test_where_a_prompt_does_not_go_on_a_sample_begins() -> None:
    """A prompt that does not begin with what came before begins a sample; a turn is in one sample alone."""
    turns = [ids([1, 2], [3]), ids([1, 2, 3, 4], [5]), ids([1, 2, 9], [8]), ids([1, 2, 9, 8], [7])]
    samples = to_training_samples(of(*(message("A", **fields) for fields in turns)))
    assert [sample.turns for sample in samples] == [(0, 1), (2, 3)]
    assert [sample.token_ids.tolist() for sample in samples] == [[1, 2, 3, 4, 5], [1, 2, 9, 8, 7]]
    assert [int(sample.loss_mask.sum()) for sample in samples] == [2, 2]


def test_routes_are_placed_by_what_they_are_of() -> None:
    """Rows for the generation alone, for all but the last token, and none: what is not known is -1, zero is kept."""
    first = {**ids([1, 2], [3, 4]), "routed_experts": [[[0]], [[0]]]}
    second = {**ids([1, 2, 3, 4, 5], [6]), "routed_experts": [[[10]], [[11]], [[12]], [[13]], [[14]]]}
    third = {name: value for name, value in ids([1, 2, 3, 4, 5, 6], [7]).items() if name != "routed_experts"}
    (sample,) = to_training_samples(of(*(message("A", **fields) for fields in (first, second, third))))
    assert sample.routed_experts is not None
    assert sample.routed_experts.ravel().tolist() == [10, 11, 0, 13, 14, -1, -1]
    (sample,) = to_training_samples(of(message("A", **third)))
    assert sample.routed_experts is None


def test_nothing_to_train_on_is_no_sample() -> None:
    """Turns without ids, and those that generated nothing, are passed over."""
    assert to_training_samples(of()) == []
    assert to_training_samples(of(message("A"), message("B", **ids([1, 2], [])))) == []


ENVELOPE = {"routed_experts": "nrlre1:int8:4x1x2:AQIDBAUGBwg="}


def test_envelopes_are_read() -> None:
    """Routes in a string envelope are placed as lists are."""
    (sample,) = to_training_samples(of(message("A", **{**ids([1, 2], [3, 4]), **ENVELOPE})))
    assert sample.routed_experts is not None
    assert sample.routed_experts.tolist() == [[[1, 2]], [[3, 4]], [[5, 6]], [[7, 8]]]


FAULTS: dict[str, tuple[dict[str, Any], str, int | None]] = {
    "rows of nobody": ({"routed_experts": [[[1]]] * 7}, "routed_experts", None),
    "another envelope": ({"routed_experts": "zip:1"}, "routed_experts", None),
    "an expert too large": ({"routed_experts": [[[1 << 31]]] * 4}, "routed_experts", None),
    "an id too large": ({"prompt_token_ids": [1, 1 << 63]}, "prompt_token_ids", None),
    "an id beyond 64 bits": ({"generation_token_ids": [1 << 64, 1]}, "generation_token_ids", None),
    "a number that is no float64": ({"generation_log_probs": [-1, -(2**53) - 1]}, "generation_log_probs", 1),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_does_not_fit_is_an_error_that_says_where(name: str) -> None:
    """Nothing is rounded, cut or filled: the error names rollout, turn, item, field and index."""
    changed, field, index = FAULTS[name]
    view = of(message("A", **ids([1], [2])), message("B", **{**ids([1, 2], [3, 4]), **changed}))
    with pytest.raises(MalformedItem) as caught:
        to_training_samples(view)
    error = caught.value
    assert (error.rollout, error.turn, error.item, error.field, error.index) == ("r", 1, 0, field, index)


def test_routes_of_another_shape_are_an_error() -> None:
    """Turns whose routes have other layers or another top_k cannot be one array."""
    items = [message("A", **ids([1], [2])), message("B", **{**ids([1, 2], [3]), "routed_experts": [[[1]]] * 3})]
    with pytest.raises(MalformedItem, match="layers x top_k is 1x1, and 2x2"):
        to_training_samples(of(*items))


@st.composite
def talks(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Training fields of turns, most of which go on from the one before, with routes of every coverage."""
    turns: list[dict[str, Any]] = []
    seen: list[int] = []
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.integers(0, 4)) == 0 and seen:
            seen = seen[: draw(st.integers(0, len(seen) - 1))] + draw(st.just([]) | st.just([999]))
        prompt = seen + draw(st.lists(st.integers(0, 50), min_size=0 if len(seen) > 1 else 2, max_size=3))
        generation = draw(st.lists(st.integers(0, 70_000), max_size=3))
        scores = draw(st.lists(st.floats(-9, 0), min_size=len(generation), max_size=len(generation)))
        fields: dict[str, Any] = {"prompt_token_ids": prompt, "generation_token_ids": generation}
        fields["generation_log_probs"] = scores
        whole = len(prompt) + len(generation)
        rows = draw(st.sampled_from((None, whole, whole - 1, len(generation))))
        if rows is not None:
            fields["routed_experts"] = [[[draw(st.integers(-1, 300))] * 2] for _ in range(rows)]
        turns.append(fields)
        seen = prompt + generation if generation else seen
    return turns


def plain(turns: list[dict[str, Any]]) -> list[tuple[list[Any], ...]]:
    """The samples, token by token, as slowly and plainly as they can be made."""
    samples: list[dict[str, Any]] = []
    for number, fields in enumerate(turns):
        prompt, generation = fields["prompt_token_ids"], fields["generation_token_ids"]
        if not generation:
            continue
        if not samples or prompt[: len(samples[-1]["ids"])] != samples[-1]["ids"]:
            samples.append({"turns": [], "ids": [], "mask": [], "scores": [], "routes": {}})
        sample = samples[-1]
        unrun = len(sample["ids"]) - 1
        new = len(prompt) - len(sample["ids"])
        sample["turns"].append(number)
        sample["ids"] = prompt + generation
        sample["mask"] += [False] * new + [True] * len(generation)
        sample["scores"] += [0.0] * new + fields["generation_log_probs"]
        rows = fields.get("routed_experts", [])
        is_new_alone = len(rows) == len(generation) and len(rows) < len(prompt) + len(generation) - 1
        start = len(prompt) if is_new_alone else 0
        for place, row in enumerate(rows, start):
            if row[0][0] != -1 and (place not in sample["routes"] or place == unrun):
                sample["routes"][place] = row
    return [
        (
            sample["turns"],
            sample["ids"],
            sample["mask"],
            sample["scores"],
            [sample["routes"].get(place, [[-1, -1]]) for place in range(len(sample["ids"]))],
        )
        for sample in samples
    ]


def listed(sample: TrainingSample) -> tuple[list[Any], ...]:
    """A sample in plain lists; routes that are None are all unknown."""
    routes = sample.routed_experts
    rows = [[[-1, -1]]] * len(sample.token_ids) if routes is None else routes.tolist()
    arrays = (sample.token_ids, sample.loss_mask, sample.log_probs)
    return [*sample.turns], *(array.tolist() for array in arrays), rows


@settings(max_examples=150)
@given(talks())
def test_samples_are_what_a_plain_reference_makes(turns: list[dict[str, Any]]) -> None:
    """For any turns, contiguous or not, with routes of any coverage, the arrays are those of the reference."""
    view = of(*(message("A", **fields) for fields in turns))
    assert [*map(listed, to_training_samples(view))] == plain(turns)


SCRIPT = make_script(
    [
        [{"reasoning": "Which city?"}, {"text": ["Oslo lies ", "by the sea."]}],
        [{"text": "It is cold there."}, {"call": "weather", "arguments": {"city": "Oslo"}}],
        [{"text": "Minus three degrees."}],
    ]
)


def _asked_after(turns: list[Turn]) -> list[Any]:
    history: list[Any] = [*ASKED]
    for turn in turns:
        call = next(iter(turn.tool_calls), None)
        answered = {"role": "tool", "tool_call_id": call.id, "content": "-3"} if call else None
        history += [turn, answered or {"role": "user", "content": "And more?"}]
    return history


def test_the_policy_computes_the_same_again(tmp_path: Path) -> None:
    """The policy, run once over a sample with its routes, gives every log prob of every turn again, bit for bit."""

    async def talk(url: str, rollout: Rollout) -> None:
        turns: list[Turn] = []
        async with PolicyClient(url, rollout) as policy:
            for _ in range(3):
                turns.append(await policy.call(_asked_after(turns)))

    with (
        running_policy(policy=Policy(SEED), script=SCRIPT) as url,
        open_store(tmp_path / "r.db") as store,
        Rollout.open(store, "r", scope=Scope("policy_model")) as rollout,
    ):
        asyncio.run(talk(url, rollout))
    with open_store(tmp_path / "r.db") as store:
        (sample,) = to_training_samples(RolloutView(store, "r"))
    assert sample.turns == (0, 1, 2)
    routes = sample.routed_experts
    assert routes is not None
    assert (routes != -1).all()
    first, mask = sample.generations[0].start, sample.loss_mask
    scored, _ = Policy(SEED).score(sample.token_ids.tolist(), first, experts=routes)
    assert scored[mask[first:]].tobytes() == sample.log_probs[mask].tobytes()
    wrong, _ = Policy(SEED).score(sample.token_ids.tolist(), first, experts=(routes + 1) % 8)
    assert (wrong[mask[first:]] != sample.log_probs[mask]).any()
