import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnkeep.serve.model import Policy
from turnkeep.serve.tokens import EOS, VOCABULARY_SIZE
from turnkeep.serve.weights import BLOCK, EXPERTS, LAYERS, TOP_K

POLICY = Policy(11)
LENGTH = 700


@st.composite
def sequences(draw: st.DrawFn) -> list[int]:
    """Token ids of up to 700 positions, more than one group of blocks."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    length = draw(st.integers(1, LENGTH) | st.sampled_from([1, BLOCK - 1, BLOCK, BLOCK + 1, 8 * BLOCK, 8 * BLOCK + 1]))
    return [int(number) for number in rng.integers(0, VOCABULARY_SIZE, length)]


@settings(max_examples=60, deadline=None)
@given(sequences(), st.data())
def test_a_prefix_scores_bit_equal_to_the_same_positions_of_the_whole(ids: list[int], data: st.DataObject) -> None:
    """Log probs and experts of a position follow from the ids up to it alone, bit for bit, wherever scoring starts."""
    cut = data.draw(st.integers(0, len(ids)))
    start = data.draw(st.integers(0, cut))
    whole, whole_experts = POLICY.score(ids, 0)
    part, part_experts = POLICY.score(ids[:cut], start)
    assert part.tobytes() == whole[start:cut].tobytes()
    assert part_experts.tobytes() == whole_experts[start:cut].tobytes()


@settings(max_examples=40, deadline=None)
@given(sequences(), st.data())
def test_replaying_the_recorded_experts_gives_bit_equal_log_probs(ids: list[int], data: st.DataObject) -> None:
    """Forcing the routing that was found, for all rows or the scored ones, changes no bit of the log probs."""
    start = data.draw(st.integers(0, len(ids)))
    log_probs, experts = POLICY.trace(ids, start)
    for rows in (experts, experts[start:], experts.astype(np.int64), experts[..., ::-1]):
        replayed, routed = POLICY.score(ids, start, experts=rows)
        assert replayed.tobytes() == log_probs.tobytes()
        assert routed.tolist() == rows[len(rows) - (len(ids) - start) :].tolist()


def test_other_experts_give_other_log_probs() -> None:
    """The experts matter: with each route moved on by one, the log probs after the first differ."""
    ids = list(range(150))
    log_probs, experts = POLICY.trace(ids, 0)
    other, _ = POLICY.score(ids, 0, experts=(experts + 1) % EXPERTS)
    assert other[0] == log_probs[0]
    assert np.abs(other[1:] - log_probs[1:]).min() > 0


def test_the_route_of_the_last_token_influences_nothing_yet() -> None:
    """Row t routes token t as an input, so the last row can be any and the log probs stay."""
    ids = list(range(150))
    log_probs, experts = POLICY.trace(ids, 0)
    moved = experts.copy()
    moved[-1] = (moved[-1] + 1) % EXPERTS
    assert POLICY.score(ids, 0, experts=moved)[0].tobytes() == log_probs.tobytes()
    moved[-2] = (moved[-2] + 1) % EXPERTS
    assert POLICY.score(ids, 0, experts=moved)[0][-1] != log_probs[-1]


def test_a_missing_route_is_left_to_the_router() -> None:
    """Rows of -1 give what free routing gives."""
    ids = list(range(100))
    log_probs, experts = POLICY.score(ids, 0)
    replayed, found = POLICY.score(ids, 0, experts=np.full((100, LAYERS, TOP_K), -1))
    assert replayed.tobytes() == log_probs.tobytes()
    assert found.tolist() == experts.tolist()


def test_the_log_probs_are_those_of_a_distribution() -> None:
    """Over the whole vocabulary the probabilities of one position sum to one."""
    log_probs = [POLICY.score([5, 6, 7, number], 3)[0][0] for number in range(VOCABULARY_SIZE)]
    assert np.exp(log_probs).sum() == pytest.approx(1.0, abs=1e-12)


def test_the_seed_makes_the_policy() -> None:
    """Equal seeds give equal numbers and another seed gives others."""
    ids = list(range(80))
    assert Policy(3).score(ids, 0)[0].tobytes() == Policy(3).score(ids, 0)[0].tobytes()
    assert np.abs(Policy(3).score(ids, 0)[0] - Policy(4).score(ids, 0)[0]).max() > 0.1


def test_only_the_last_64_tokens_are_seen_by_one_layer_but_more_by_all() -> None:
    """The window is finite: a token further back than all layers together reach changes nothing."""
    ids = [int(number) for number in np.random.default_rng(1).integers(0, 256, LAYERS * BLOCK + 2)]
    far, near = [(ids[0] + 1) % 256, *ids[1:]], [*ids[:-2], (ids[-2] + 1) % 256, ids[-1]]
    last = POLICY.score(ids, len(ids) - 1)[0]
    assert POLICY.score(far, len(ids) - 1)[0].tobytes() == last.tobytes()
    assert POLICY.score(near, len(ids) - 1)[0][0] != last[0]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2 * BLOCK + 3), st.integers(0, 1000))
def test_greedy_sampling_takes_the_likeliest_token_of_the_scored_distribution(length: int, seed: int) -> None:
    """Sampling walks the same path as scoring: no token that may be drawn is likelier than the one taken."""
    ids = [int(number) for number in np.random.default_rng(seed).integers(0, 256, length)]
    drawn = POLICY.sample(ids, np.random.default_rng(seed), 3, temperature=0.0)
    taken = POLICY.score([*ids, drawn[0]], length)[0][0]
    others = [*range(0, 256, 16), EOS]
    assert all(POLICY.score([*ids, other], length)[0][0] <= taken for other in others)


def test_sampling_is_seeded_and_ends_with_the_end_token_or_the_limit() -> None:
    """Equal seeds draw equal tokens; the end token comes last or not at all."""
    runs = [POLICY.sample([1, 2, 3], np.random.default_rng(seed), 30) for seed in range(20)]
    assert runs[0] == POLICY.sample([1, 2, 3], np.random.default_rng(0), 30)
    assert len({tuple(run) for run in runs}) > 10
    assert {run[-1] == EOS for run in runs} == {True, False}
    assert all(EOS not in run[:-1] and (run[-1] == EOS or len(run) == 30) for run in runs)
    assert POLICY.sample([1], np.random.default_rng(0), 0) == []


@pytest.mark.parametrize(
    ("ids", "start", "experts"),
    [
        ([VOCABULARY_SIZE], 0, None),
        ([-1], 0, None),
        ([1, 2], 3, None),
        ([1, 2], 0, np.zeros((3, LAYERS, TOP_K), int)),
        ([1, 2], 0, np.zeros((2, LAYERS, 1), int)),
        ([1, 2], 0, np.zeros((2, LAYERS, TOP_K), int)),
        ([1, 2], 0, np.full((2, LAYERS, TOP_K), EXPERTS)),
        ([1, 2], 0, np.zeros((2, LAYERS, TOP_K))),
    ],
)
def test_what_cannot_be_scored_is_refused(
    ids: list[int], start: int, experts: "np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None"
) -> None:
    """Unknown ids, a start outside, and experts of another shape, kind, range, or named twice raise ValueError."""
    with pytest.raises(ValueError):
        POLICY.score(ids, start, experts)
