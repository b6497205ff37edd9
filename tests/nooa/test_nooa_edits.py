"""What users do to NOOA's events afterwards: edits, summaries, removals (contract 1.7, 3, 5)."""

from pathlib import Path
from typing import Any

import pytest
from agents import SCRIPT, Clerk, python, result
from harness import ARRAYS, Bench, bench, place_of, play, texts_of
from nooa.storage import SQLiteStorageManager

from turnkeep.errors import MissingTurn
from turnkeep.nooa import NOT_EXECUTED_GAP, TurnkeepLLM
from turnkeep.rollout.policy import PolicyClient
from turnkeep.rollout.record import Rollout
from turnkeep.store.open import open_store

pytestmark = [pytest.mark.nooa, pytest.mark.filterwarnings("default")]

REPORT = [{"reasoning": "r"}, {"text": ['{"shelf": "north"', ', "boxes": 1}']}]
STEPS = [[{"reasoning": "a thought"}, python("print(1)")], [result("5")], REPORT]


def told(b: Bench) -> Clerk:
    """A clerk that has counted and reported, on a SQLite or an in-memory store."""
    clerk = b.llm.attach(Clerk(b.llm))
    play(b, lambda: both(clerk))
    return clerk


async def both(clerk: Clerk) -> None:
    """Count, then report."""
    await clerk.count("it")
    await clerk.report("north")


def events(clerk: Clerk) -> list[Any]:
    """The events that hold turns."""
    return [event for event in clerk.event_manager.values() if "turnkeep" in event.metadata]


def natives(b: Bench) -> list[bool]:
    """Of each earlier response, whether it stands whole in the last request."""
    sent = b.bodies()[-1]["input"]
    return [place_of(items, sent) is not None for items in b.outputs()[:-1]]


@pytest.mark.parametrize("stored", [True, False], ids=["sqlite", "memory"])
def test_an_edited_call_is_replayed_portably(stored: bool, tmp_path: Path) -> None:
    """A changed argument makes its turn, and no other, portable, with the reasoning as text and a gap (1.7, 3.1)."""
    with bench(STEPS) as b:
        storage = SQLiteStorageManager(tmp_path / "clerk.db") if stored else None
        clerk = b.llm.attach(Clerk(b.llm, storage=storage))
        play(b, lambda: both(clerk))
        clerk.event_manager.update(events(clerk)[0].tag, arguments={"code": "print(2)"})
        play(b, lambda: clerk.report("north"))
        assert natives(b) == [False, True, True]
        sent = b.bodies()[-1]["input"]
        call = next(item for item in sent if item.get("call_id") == b.rollout.turns[0].tool_calls[0].id)
        assert call["arguments"] == '{"code": "print(2)"}'
        assert not set(ARRAYS) & set(call)
        assert {"role": "assistant", "content": "a thought"} in sent
        assert b.codes() == ["foreign_turn_projected_portable"]
        if storage is not None:
            storage.close()


def test_an_edited_text_is_replayed_as_edited() -> None:
    """The new text stands in one place, whatever blocks the old one had (1.7)."""
    with bench(STEPS, prefix_guard="send") as b:
        clerk = told(b)
        clerk.event_manager.update(events(clerk)[-1].tag, content='{"shelf": "x", "boxes": 0}')
        play(b, lambda: clerk.report("north"))
        assert natives(b) == [True, True, False]
        sent = b.bodies()[-1]["input"]
        assert {"role": "assistant", "content": '{"shelf": "x", "boxes": 0}'} in sent
        assert b.codes() == ["foreign_turn_projected_portable", "portable_turn_after_native"]


def test_an_edit_taken_back_is_no_edit() -> None:
    """A field set to the value that it had leaves the turn native (1.7)."""
    with bench(STEPS) as b:
        clerk = told(b)
        event = events(clerk)[0]
        before = event.arguments
        clerk.event_manager.update(event.tag, arguments={"code": "other"})
        clerk.event_manager.update(event.tag, arguments=dict(before))
        play(b, lambda: clerk.report("north"))
        assert natives(b) == [True] * 3
        assert b.codes() == []


def test_an_edit_of_a_coerced_result_is_an_edit() -> None:
    """NOOA wrote "5" anew as 5, which is no edit; a person's 6 after that is one (3.1)."""
    with bench(STEPS) as b:
        clerk = told(b)
        event = events(clerk)[1]
        assert event.arguments == {"result": 5}
        clerk.event_manager.update(event.tag, arguments={"result": 6})
        play(b, lambda: clerk.report("north"))
        assert natives(b) == [True, False, True]


def test_an_edited_text_only_reply_and_its_call() -> None:
    """Changing the text that NOOA hid makes it portable; changing the call that it shows brings that back as it is."""
    for what in ("TextOnlyReply", "ToolCallEvent"):
        with bench([[{"text": "Five."}], [result(1)], REPORT]) as b:
            clerk = told(b)
            event = next(e for e in events(clerk) if e.event_type == what)
            change = {"content": "Six."} if what == "TextOnlyReply" else {"arguments": {"result": "Six."}}
            clerk.event_manager.update(event.tag, **change)
            play(b, lambda clerk=clerk: clerk.report("north"))  # type: ignore[misc]
            sent = texts_of(b.bodies()[-1]["input"])
            assert "Six." in sent
            assert natives(b) == [what != "TextOnlyReply", True, True]
            assert len(b.codes()) == 1


def test_a_summarized_turn_is_gone_and_the_others_stay_exact() -> None:
    """After collapse the summary stands in the turn's place; it is known as NOOA's own, and no gap (5.4)."""
    with bench(STEPS) as b:
        clerk = told(b)
        tags = [event.tag for event in clerk.event_manager.values()]
        clerk.event_manager.collapse(tags[0], events(clerk)[0].tag, summary_text="It began.")
        play(b, lambda: clerk.report("north"))
        assert natives(b) == [False, True, True]
        assert "It began." in texts_of(b.bodies()[-1]["input"])
        assert b.codes() == []


def test_a_turn_of_which_a_part_was_summarized_is_portable() -> None:
    """Where NOOA shows one of a turn's two calls, the turn is not what it was: the call is public data (5.1)."""
    with bench(SCRIPT) as b:
        clerk = told(b)
        first = events(clerk)[0].tag
        clerk.event_manager.collapse("1", first, summary_text="It looked north.")
        play(b, lambda: clerk.report("north"))
        assert natives(b) == [False, True, True, True, True]
        assert b.codes() == [NOT_EXECUTED_GAP, "public_assistant_metadata_unavailable"]


def test_a_call_that_a_user_removed_does_not_come_back() -> None:
    """A removed second call is not answered as not executed: its turn is portable and without it (1.7)."""
    with bench([[python("print(1)"), python("print('second')")], [result(5)], REPORT]) as b:
        clerk = told(b)
        clerk.event_manager.remove(events(clerk)[1].tag)
        play(b, lambda: clerk.report("north"))
        sent = b.bodies()[-1]["input"]
        assert natives(b) == [False, True, True]
        assert not any("print('second')" in str(item.get("arguments")) for item in sent)
        assert b.codes() == ["public_assistant_metadata_unavailable"]


def test_another_scope_makes_the_history_portable() -> None:
    """A client of another scope gets the public parts of the same archives, and a gap (2.2, 5.1)."""
    with bench(STEPS) as b:
        clerk = told(b)
        rollout = Rollout.open(open_store("memory:"), "r-2", scope='nemo-gym/responses/v1:["other", "gym-policy"]')
        other = Bench(b.url, rollout, TurnkeepLLM(PolicyClient(b.url, rollout)))
        clerk.set_llm(other.llm)
        for event in events(clerk):
            assert "turnkeep_archive" in event.metadata
        other.llm.attach(clerk)
        play(other, lambda: clerk.report("north"))
        sent = other.bodies()[0]["input"]
        assert not any(set(ARRAYS) & set(item) for item in sent)
        assert other.codes() == ["foreign_turn_projected_portable"]


def test_a_reference_whose_turn_is_missing_is_an_error_that_names_it() -> None:
    """With embed="reference" and another store: MissingTurn, recorded, and never a silent portable turn."""
    with bench(STEPS, embed="reference") as b:
        clerk = told(b)
        assert not any("turnkeep_archive" in event.metadata for event in events(clerk))
        rollout = Rollout.open(open_store("memory:"), "r-2", scope=b.rollout.scope)
        other = Bench(b.url, rollout, TurnkeepLLM(PolicyClient(b.url, rollout), embed="reference"))
        clerk.set_llm(other.llm)
        other.llm.attach(clerk)
        with pytest.raises(MissingTurn, match=b.rollout.turns[0].digest[:12]):
            play(other, lambda: clerk.report("north"))
        assert rollout.used == 0
        assert not rollout.gradable
        assert rollout.failure is not None
        assert b.rollout.turns[0].digest[:12] in rollout.failure["message"]
