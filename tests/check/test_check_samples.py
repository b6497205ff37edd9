"""Rules about token ids and log probs: each fault is found where it was planted, and nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planting import (
    SCOPE,
    Fields,
    check_in_memory,
    check_turns,
    fields,
    message,
    places,
    rebuilt,
    sound,
    turn,
    turns_of,
)

from turnkeep import AssistantText, Item, Turn, check_rollout
from turnkeep.check.finding import PROFILES

PROMPT, GENERATION, LOG_PROBS = "prompt_token_ids", "generation_token_ids", "generation_log_probs"


@pytest.mark.parametrize("profile", [None, *PROFILES])
def test_a_sound_rollout_has_no_finding(tmp_path: Path, profile: str | None) -> None:
    """Turns that extend each other, with routes for all tokens, please every reader."""
    assert check_turns(tmp_path, turns_of(sound()), profile, vocabulary=200, experts=8) == []


def test_a_field_that_is_missing_is_named(tmp_path: Path) -> None:
    """An archive whose item lacks one of the three fields is found, with the field (contract 1.5)."""
    turns = turns_of(sound())
    turns[2] = rebuilt(turns[2], prompt_token_ids=None)
    found = check_turns(tmp_path, turns)
    assert places(found) == [("training-malformed", 2, 0, PROMPT, None)]


def test_an_id_that_is_none_is_named_with_its_index(tmp_path: Path) -> None:
    """An archive with a negative id is found, with the index (contract 1.5)."""
    made = sound()
    turns = turns_of(made)
    turns[1] = rebuilt(turns[1], generation_token_ids=[110, -5, 112])
    found = check_turns(tmp_path, turns)
    assert places(found) == [("training-malformed", 1, 0, GENERATION, 1)]
    assert "-5 is not a non-negative integer" in found[0].message


def test_log_probs_that_are_too_few_are_counted(tmp_path: Path) -> None:
    """As many log probs as generated ids, else one finding says both numbers (contract 1.5)."""
    turns = turns_of(sound())
    turns[1] = rebuilt(turns[1], generation_log_probs=[-0.5, -0.5])
    found = check_turns(tmp_path, turns)
    assert places(found) == [("log-prob-count", 1, 0, LOG_PROBS, None)]
    assert found[0].message == "3 generation ids but 2 log probs"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_log_prob_that_is_not_finite_is_found(tmp_path: Path, value: float) -> None:
    """A turn built from arrays, past capture, may hold what no JSON can (contract 1.5)."""
    made = sound(1)[0]
    log_probs = np.array([-0.5, value, value])
    skeleton = message("Turn 0.", **made)
    native = Item({**skeleton, LOG_PROBS: None}, {LOG_PROBS: log_probs})
    built = Turn((AssistantText("Turn 0.", native),), str(SCOPE), "stop")
    found = check_turns(tmp_path, [built])
    assert places(found) == [("log-prob-finite", 0, 0, LOG_PROBS, 1)]
    assert found[0].message == f"2 log probs are not finite, first {value}"


def test_an_integer_that_no_float_reaches_is_not_finite() -> None:
    """A trainer's float overflows there, although the integer itself is kept exactly."""
    made = sound(1)
    made[0][LOG_PROBS] = [-0.5, -(10**400), -1]
    assert places(check_in_memory(made)) == [("log-prob-finite", 0, 0, LOG_PROBS, 1)]


@pytest.mark.parametrize("value", [0.5, 3, 5e-324])
def test_a_probability_above_one_is_found(tmp_path: Path, value: float) -> None:
    """A log prob above 0 is named; 0 and -0.0 are none."""
    made = sound()
    made[0][LOG_PROBS] = [0.0, -0.0, value]
    found = check_turns(tmp_path, turns_of(made))
    assert places(found) == [("log-prob-positive", 0, 0, LOG_PROBS, 2)]
    assert found[0].severity == "warning"


@pytest.mark.parametrize(("number", "field", "index", "value"), [(0, PROMPT, 3, 200), (2, GENERATION, 0, 2**70)])
def test_an_id_beyond_the_vocabulary_is_found(number: int, field: str, index: int, value: int) -> None:
    """An id that is the size of the vocabulary, or any above, is an error for everybody; the last below is none."""
    made = sound(number + 1)
    made[number][field][index] = value
    assert places(check_in_memory(made[number:], vocabulary=200)) == [("token-range", 0, 0, field, index)]
    made[number][field][index] = 199
    assert check_in_memory(made[number:], vocabulary=200) == []
    assert check_in_memory(made[number:]) == []


@given(st.data())
def test_the_first_token_that_differs_is_named(data: st.DataObject) -> None:
    """Wherever a prompt leaves what came before it, the finding has that index and both ids (contract 7.8)."""
    made = sound(data.draw(st.integers(2, 4)), data.draw(st.integers(1, 4)))
    number = data.draw(st.integers(1, len(made) - 1))
    before = len(made[number - 1][PROMPT]) + len(made[number - 1][GENERATION])
    index = data.draw(st.integers(0, before - 1))
    old = made[number][PROMPT][index]
    for later in made[number:]:  # the later prompts extend the one that differs
        later[PROMPT][index] = 9000
    found = check_in_memory(made)
    assert places(found) == [("prompt-contiguity", number, 0, PROMPT, index)]
    assert f"token {index} stands id 9000" in found[0].message
    assert f"turn {number - 1} has id {old} there" in found[0].message


@given(st.integers(0, 8))
def test_a_prompt_that_ends_too_soon_is_found(length: int) -> None:
    """A prompt shorter than what came before it differs where it ends."""
    made = sound(2, 5)
    made[1] = fields(made[1][PROMPT][:length], made[1][GENERATION])
    found = check_in_memory(made)
    assert places(found) == [("prompt-contiguity", 1, 0, PROMPT, length)]
    assert f"token {length} stands nothing more" in found[0].message


def test_a_prompt_that_adds_nothing_is_contiguous() -> None:
    """A prompt may be just what came before it."""
    made = sound(2)
    made[1] = fields([*made[0][PROMPT], *made[0][GENERATION]], [7])
    assert check_in_memory(made) == []


def test_ids_of_every_width_compare_by_value() -> None:
    """Ids that need 8, 16, 32, 64 or more bits are the same ids in a longer prompt."""
    ids = [1, 300, 70_000, 2**40, 2**70]
    made = [fields(ids[:1], [ids[1]]), fields(ids[:3], [ids[3]]), fields(ids, [5])]
    assert check_in_memory(made) == []
    made[2][PROMPT][3] += 1
    assert places(check_in_memory(made)) == [("prompt-contiguity", 2, 0, PROMPT, 3)]


def test_ids_on_two_items_of_a_turn_are_two_samples(tmp_path: Path) -> None:
    """A trainer goes by items: the same ids on two items of one turn are not contiguous."""
    made = sound(1)[0]
    found = check_turns(tmp_path, [turn(message("One.", **made), message("Two.", **made))])
    assert places(found) == [("prompt-contiguity", 0, 1, PROMPT, 4), ("token-ids-twice", 0, 0, PROMPT, None)]


@pytest.mark.parametrize("profile", [None, *PROFILES])
@pytest.mark.parametrize("change", ["another", "one more", "one less", "cut", "none"])
def test_one_prompt_that_is_otherwise_is_found_once(change: str, profile: str | None) -> None:
    """Where the next prompt goes on from the turns before the one that differs, that one alone is named."""
    made = sound(4)
    ids, index = list(made[1][PROMPT]), 5
    changed = {
        "another": [*ids[:5], 9000, *ids[6:]],
        "one more": [*ids[:5], 9000, *ids[5:]],
        "one less": [*ids[:5], *ids[6:]],
        "cut": ids[:5],
        "none": [],
    }[change]
    made[1] = fields(changed, made[1][GENERATION])
    index = min(index, len(changed))
    found = check_in_memory(made, profile)
    assert places(found) == [("prompt-contiguity", 1, 0, PROMPT, index)]
    assert found[0].severity == ("warning" if profile == "atif" else "error")


def test_what_goes_on_from_neither_is_found_again() -> None:
    """A prompt that goes on neither from the turn that differs nor from the one before that is another fault."""
    made = sound(4)
    made[1][PROMPT][5], made[2][PROMPT][2] = 9000, 9001
    assert [each[1:] for each in places(check_in_memory(made))] == [(1, 0, PROMPT, 5), (2, 0, PROMPT, 2)]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("training-empty", {PROMPT: [], GENERATION: [], LOG_PROBS: [], "routed_experts": []}),
        ("generation-empty", {PROMPT: [9, 9], GENERATION: [], LOG_PROBS: []}),
    ],
)
def test_an_item_without_tokens_is_found_and_passed_over(tmp_path: Path, name: str, change: Fields) -> None:
    """Empty arrays are legal, and what comes before and after them is compared across (contract 1.5)."""
    made = sound()
    made.insert(1, {**made[1], **change})
    assert places(check_turns(tmp_path, turns_of(made))) == [(name, 1, 0, GENERATION, None)]


def test_a_prompt_without_tokens_is_found() -> None:
    """What was generated came after a prompt, and that has ids."""
    assert places(check_in_memory([fields([], [1, 2])])) == [("prompt-empty", 0, 0, PROMPT, None)]


@pytest.mark.parametrize("limits", [{"vocabulary": 0}, {"experts": -1}, {"profile": "ppo"}])
def test_what_cannot_be_checked_for_is_refused(limits: dict[str, Any]) -> None:
    """An unknown profile and a number below 1 are errors that name themselves."""
    with pytest.raises(ValueError, match=r"no profile 'ppo'|must be 1 or more"):
        check_rollout(None, **limits)  # type: ignore[arg-type]
