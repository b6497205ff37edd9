"""The conversation of a rollout, read from its requests, or from what an importer laid out."""

import asyncio
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from planting import SCOPE, message, sound, turn, turns_of
from talking import POLICY, USER, results, talk

from turnkeep import PolicyClient, Rollout, RolloutView, check_rollout, open_store
from turnkeep.export.atif import examine, export_atif
from turnkeep.export.gym_jsonl import export_gym
from turnkeep.rollout.conversation import conversation
from turnkeep.serve.script import make_script
from turnkeep.serve.server import running_policy

CALL = [{"text": "Let us see."}, {"call": "one", "extra": {"call_id": "a"}}, {"call": "two", "extra": {"call_id": "b"}}]


def told(path: Path) -> list[Any]:
    """The conversation, a turn as its number, an item as its kind and what it says."""
    with open_store(path) as store:
        return [
            each.turn if each.item is None else (each.kind, each.item.get("output", each.item.get("content")))
            for each in conversation(RolloutView(store, "r"))
        ]


def test_what_was_said_comes_in_order_and_once(tmp_path: Path) -> None:
    """Instructions, what the user said, turns and what tools gave stand in the order of the requests."""
    talked = talk(tmp_path, [CALL, [{"text": "So."}], [{"text": "End."}]], [results, results])
    head = [("input", "Be brief."), ("input", "Begin.")]
    assert told(talked.path) == [*head, 0, ("output", "one done"), ("output", "two done"), 1, ("input", "Go on."), 2]


def test_an_item_is_of_the_first_call_that_carried_it(tmp_path: Path) -> None:
    """Each item names the policy call whose request first has it, each turn the one that made it."""
    talked = talk(tmp_path, [CALL, [{"text": "So."}]], [results])
    with open_store(talked.path) as store:
        calls = [each.call for each in conversation(RolloutView(store, "r"))]
    assert calls == [0, 0, 0, 1, 1, 1]


def test_the_same_words_said_twice_are_there_twice(tmp_path: Path) -> None:
    """What one request repeats was said that often, and later requests that repeat it say no more."""
    talked = talk(tmp_path, [[{"text": "One."}]] * 4, [results, results, lambda turn: [turn, USER, USER]])
    go = ("input", "Go on.")
    begin = ("input", "Begin.")
    assert told(talked.path) == [("input", "Be brief."), begin, 0, go, 1, go, 2, begin, begin, 3]


def converse(path: Path, histories: list[list[Any]]) -> None:
    """A rollout of one policy call for each history, in which a number stands for the turn of that number."""

    async def run(rollout: Rollout, url: str) -> None:
        async with PolicyClient(url, rollout) as policy:
            for history in histories:
                entries: list[Any] = [rollout.turn(each) if isinstance(each, int) else each for each in history]
                await policy.call(entries)

    with (
        running_policy(policy=POLICY, script=make_script([[{"text": "Yes."}]])) as url,
        open_store(path) as store,
        Rollout.open(store, "r", scope=SCOPE) as rollout,
    ):
        asyncio.run(run(rollout, url))


def say(text: str) -> dict[str, str]:
    """A user's message."""
    return {"role": "user", "content": text}


def test_a_history_that_was_rewritten_shows_both_ways(tmp_path: Path) -> None:
    """What is new in a request that does not extend the one before it comes after what was there; nothing is lost."""
    a, b, c = say("a"), say("b"), say("c")
    converse(tmp_path / "a.db", [[a], [a, 0, b], [c, 0, b, 1]])
    assert told(tmp_path / "a.db") == [("input", "a"), 0, ("input", "b"), 1, ("input", "c"), 2]


def test_branches_come_one_after_the_other(tmp_path: Path) -> None:
    """Calls that go on from one point in two ways add what each has of its own."""
    a, b, c = say("a"), say("b"), say("c")
    converse(tmp_path / "a.db", [[a], [a, 0, b], [a, 0, c], [a, 0, b, 1, c]])
    said = [("input", "a"), 0, ("input", "b"), 1, ("input", "c"), 2, 3]
    assert told(tmp_path / "a.db") == said


def test_instructions_that_change_are_told_again(tmp_path: Path) -> None:
    """A request with other instructions brings them where it comes."""
    system = {"role": "system", "content": "Be kind."}
    converse(tmp_path / "a.db", [[say("a")], [system, say("a"), 0], [system, say("a"), 0, 1]])
    assert told(tmp_path / "a.db") == [("input", "a"), 0, ("input", "Be kind."), 1, 2]


def test_turns_that_nothing_places_come_last(tmp_path: Path) -> None:
    """Without policy calls a conversation is its turns; with them, a turn that no request has comes at the end."""
    with open_store(tmp_path / "a.db") as store, Rollout.open(store, "r", scope=SCOPE) as rollout:
        for each in turns_of(sound(2)):
            rollout.add_turn(each)
    assert told(tmp_path / "a.db") == [0, 1]
    converse(tmp_path / "a.db", [[say("a"), 1]])
    assert told(tmp_path / "a.db") == [("input", "a"), 1, 2, 0]


ITEMS = [{"role": "user", "content": "Begin."}, {"type": "function_call_output", "call_id": "x", "output": "1"}]


@pytest.mark.parametrize(
    ("given", "before"),
    [
        ("Begin.", [("input", "Begin.")]),
        (ITEMS, [("input", "Begin."), ("output", "1")]),
        (None, []),
    ],
)
def test_an_imported_rollout_is_told_by_its_origin(tmp_path: Path, given: Any, before: list[Any]) -> None:
    """Without requests, what a row had before and between its turns comes from the layout that the importer kept."""
    output = [{"turn": 0}, {"item": {"type": "function_call_output", "call_id": "a", "output": "3"}}, {"turn": 1}]
    row = {"responses_create_params": {"input": given, "instructions": "Be brief."}, "response": {"output": None}}
    with open_store(tmp_path / "a.db") as store, Rollout.open(store, "r", scope=SCOPE) as rollout:
        for each in (turn(message("One.")), turn(message("Two."))):
            rollout.add_turn(each)
        rollout.set_origin({"source": "gym", "row": row, "output": output})
    assert told(tmp_path / "a.db") == [("input", "Be brief."), *before, 0, ("output", "3"), 1]


@pytest.mark.parametrize(
    "origin",
    [
        {"output": ["x"]},
        {"output": [None]},
        {"output": [{}]},
        {"output": [{"turn": 9}]},
        {"output": [{"turn": True}]},
        {"source": "gym", "output": []},
        {"source": "gym", "output": [{"turn": 0}], "turns": 1, "row": {}},
        {"source": "gym", "output": "x", "turns": 1},
        {"output": [{"turn": 0, "items": [], "fault": "x"}]},
        {"output": [{"turn": 0}], "row": {"responses_create_params": {"input": 5}}},
        {"output": [{"turn": 0}], "row": {"responses_create_params": {"input": True, "instructions": [1]}}},
        {"row": ["a"]},
    ],
)
def test_an_origin_may_hold_anything(tmp_path: Path, origin: dict[str, Any]) -> None:
    """An origin that is no importer's layout lays nothing out: turns are told, checked, and exported or refused."""
    with open_store(tmp_path / "a.db") as store, Rollout.open(store, "r", scope=SCOPE) as rollout:
        rollout.add_turn(turn(message("One.", **sound(1)[0])))
        rollout.set_origin(origin)
        view = RolloutView(store, "r")
        assert [said.turn for said in conversation(view) if said.kind == "turn"] == [0]
        assert "unreadable" not in [found.rule for found in check_rollout(view)]
        (written,) = export_gym(store, ["r"], BytesIO())
        assert written.error is None or written.error.rollout == "r"
        (document,) = export_atif(store, examine(store, ["r"]), tmp_path / "out")
        assert document.turns == 1
