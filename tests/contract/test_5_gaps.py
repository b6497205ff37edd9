"""Contract section 5: gaps."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from samples import SCOPE, TRAINING, body, call, message, reasoning

from turnkeep import Gap, Rollout, RolloutView, RuntimeEntry, Turn, capture, open_store, outcome, project
from turnkeep.history.gaps import DETAILS
from turnkeep.history.projection import Entry
from turnkeep.testing import strategies

FOREIGN = "foreign_turn_projected_portable"
PUBLIC = "public_assistant_metadata_unavailable"
AFTER = "portable_turn_after_native"

NATIVE = capture(body(message("native", **TRAINING)), SCOPE)
BARE = capture(body(message("no ids")), SCOPE)
OTHER = capture(body(message("foreign", **TRAINING)), None)
ASSISTANT: dict[str, Any] = {"role": "assistant", "content": "public"}
USER: dict[str, Any] = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("history", "codes"),
    [
        ([], []),
        ([USER, NATIVE, USER], []),
        ([BARE], []),
        ([OTHER], [FOREIGN]),
        ([NATIVE.edit(0, text="x")], [FOREIGN]),
        ([ASSISTANT], [PUBLIC]),
        ([{"role": "assistant", "content": ""}], [PUBLIC]),
        ([ASSISTANT, OTHER], [FOREIGN, PUBLIC]),
        ([NATIVE, OTHER], [FOREIGN, AFTER]),
        ([NATIVE, ASSISTANT], [PUBLIC, AFTER]),
        ([NATIVE, OTHER, NATIVE], [FOREIGN]),
        ([RuntimeEntry(ASSISTANT)], []),
        ([NATIVE, RuntimeEntry(ASSISTANT)], [AFTER]),
        ([call()], []),
        ([message("x", **TRAINING)], []),
    ],
)
def test_which_history_has_which_gaps(history: list[Entry], codes: list[str]) -> None:
    """A turn that fails 2.2 or 3.1 is foreign, a public assistant dictionary public, and nothing else (5.1)."""
    assert [gap.code for gap in project(history, SCOPE).gaps] == codes


@given(strategies.histories())
def test_gaps_are_exactly_the_conditions_met(history: list[Entry]) -> None:
    """A gap of a code is there if and only if an entry meets its condition (contract 5.1)."""
    codes = [gap.code for gap in project(history, SCOPE).gaps]
    alone = [gap.code for entry in history for gap in project([entry], SCOPE).gaps]
    assert {FOREIGN, PUBLIC} & set(codes) == set(alone)
    assert len(codes) == len(set(codes))
    public = [entry for entry in history if isinstance(entry, dict) and entry.get("role") == "assistant"]
    assert (PUBLIC in codes) == any("type" not in entry for entry in public)


@given(strategies.histories())
def test_the_detail_of_a_code_is_constant(history: list[Entry]) -> None:
    """A gap is code, invocation and detail; the detail is the constant text of its code (contract 5.1)."""
    for gap in project(history, SCOPE).gaps:
        assert gap == Gap(gap.code, None, DETAILS[gap.code])


def test_no_detail_claims_that_metadata_existed() -> None:
    """The details of the first two codes say what was done, not that anything was lost (contract 5.1)."""
    for code in (FOREIGN, PUBLIC):
        assert not {"lost", "dropped", "discarded", "removed"} & set(DETAILS[code].lower().split())


def test_identical_conditions_are_one_gap() -> None:
    """Many entries of one condition are one gap of a request (contract 5.2)."""
    history: list[Entry] = [OTHER, ASSISTANT, OTHER, ASSISTANT, OTHER]
    assert [gap.code for gap in project(history, SCOPE).gaps] == [FOREIGN, PUBLIC]


def test_gaps_are_a_set_per_rollout_and_come_back(tmp_path: Path) -> None:
    """A rollout collects each condition once, in the order met, and a reader finds them again (contract 5.2)."""
    expected = (Gap(FOREIGN, None, DETAILS[FOREIGN]), Gap(FOREIGN, "inv-1", DETAILS[FOREIGN]), Gap("own", None, "why"))
    with open_store(tmp_path / "gaps.db") as store:
        with Rollout.open(store, "r", scope=SCOPE) as rollout:
            rollout.add_gaps(project([OTHER, OTHER], SCOPE).gaps)
            rollout.add_gaps(project([OTHER], SCOPE).gaps)
            rollout.add_gap(FOREIGN, invocation="inv-1")
            rollout.add_gap(FOREIGN, invocation="inv-1")
            rollout.add_gap("own", detail="why")
            rollout.add_gap("own", detail="why")
            assert rollout.gaps == expected
        with Rollout.open(store, "r") as rollout:
            rollout.add_gap(FOREIGN)
            assert rollout.gaps == expected
    with open_store(tmp_path / "gaps.db", create=False) as store:
        assert RolloutView(store, "r").gaps == expected


def test_no_gap_makes_a_rollout_fail() -> None:
    """A rollout with every gap there is goes on collecting and is graded (contract 5.3)."""
    with open_store("memory:") as store, Rollout.open(store, "r", scope=SCOPE) as rollout:
        for code in DETAILS:
            rollout.add_gap(code)
        assert rollout.add_turn(NATIVE) == NATIVE
        assert rollout.gradable
        assert outcome(rollout) == (True, None, None)


@given(strategies.assistant_messages())
def test_the_runtimes_own_entries_are_no_gap(entry: dict[str, Any]) -> None:
    """An entry known to be the runtime's projects as any public one and is no gap (contract 5.4)."""
    marked, unmarked = project([RuntimeEntry(entry)], SCOPE), project([entry], SCOPE)
    assert marked.input_text() == unmarked.input_text()
    assert marked.gaps == ()
    assert [gap.code for gap in unmarked.gaps] == [PUBLIC]


def test_the_runtimes_entry_after_a_native_turn_is_still_a_splice() -> None:
    """The runtime's entry has no ids, so behind a native turn it is the gap of 7.8 all the same (contract 5.4)."""
    prefill = {"role": "assistant", "tool_calls": [{"id": "prefill_1", "function": {"name": "f", "arguments": "{}"}}]}
    history: list[Entry] = [NATIVE, USER, RuntimeEntry(prefill)]
    assert [gap.code for gap in project(history, SCOPE).gaps] == [AFTER]
    assert project([RuntimeEntry(prefill), NATIVE], SCOPE).gaps == ()


def test_an_opaque_turn_of_another_scope_is_a_gap_though_nothing_goes_out() -> None:
    """A foreign turn is a gap even where its public parts come to nothing (contract 5.1)."""
    turn: Turn = capture(body({"type": "mcp_call"}, reasoning()), None)
    projected = project([turn], SCOPE)
    assert (projected.input, [gap.code for gap in projected.gaps]) == ([], [FOREIGN])
