"""Gym rollout files into a store and out again: what comes back is what went in, and nothing is written over."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from gym_samples import NO_IDS, ROWS, SCOPE, call, export, ids, import_rows, message, output, row
from hypothesis import given
from hypothesis import strategies as st

from turnkeep import Rollout, RolloutView, capture, open_store
from turnkeep.export.gym_import import import_gym
from turnkeep.rollout.verify import verify_rollout
from turnkeep.store.base import Store
from turnkeep.store.memory import MemoryStore
from turnkeep.testing import strategies
from turnkeep.wire.json import dumps, loads, same


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store in a file."""
    with open_store(tmp_path / "a.db") as store:
        yield store


def test_every_kind_of_row_comes_back(store: Store, tmp_path: Path) -> None:
    """Values, member order and item order of each row come back from the file, and the store verifies (1.6, 9.1)."""
    results = import_rows(store, tmp_path / "some.rows.jsonl", *ROWS.values(), scope=SCOPE)
    assert [result.error for result in results] == [None] * len(ROWS)
    assert store.rollouts() == [f"some.rows/{number}" for number in range(1, len(ROWS) + 1)]
    with open_store(tmp_path / "a.db") as again:
        rows, written = export(again)
        assert all(same(loads(found), value) for found, value in zip(rows, ROWS.values(), strict=True))
        assert [[*each.remarks] for each in written] == [[]] * len(ROWS)
        assert [*(finding for name in again.rollouts() for finding in verify_rollout(RolloutView(again, name)))] == []


def test_a_compact_row_comes_back_byte_for_byte(store: Store, tmp_path: Path) -> None:
    """A row that is spelled compactly, as JSON is written here, is the same bytes again."""
    texts = [dumps(value) for value in ROWS.values()]
    import_rows(store, tmp_path / "f.jsonl", *texts)
    assert export(store)[0] == texts


ROLES = st.sampled_from(("user", "system", "developer", "assistant"))
OTHERS = st.one_of(
    st.fixed_dictionaries({"type": st.just("function_call_output"), "output": strategies.json_values()}),
    st.fixed_dictionaries({"role": ROLES, "content": strategies.texts()}),
)
"""Items that no policy writes."""
RESPONSES = strategies.responses(max_items=5, items=strategies.output_items() | OTHERS)


@given(st.lists(st.tuples(RESPONSES, strategies.json_objects(("response",)), st.booleans()), max_size=3))
def test_any_row_comes_back(tmp_path_factory: pytest.TempPathFactory, parts: list[Any]) -> None:
    """Whatever items, members, order and numbers a row has, its export has the same values in the same order (1.6)."""
    values = [{"response": first, **rest} if ahead else {**rest, "response": first} for first, rest, ahead in parts]
    with MemoryStore() as store:
        results = import_rows(store, tmp_path_factory.mktemp("any") / "f.jsonl", *map(dumps, values))
        assert [result.error for result in results] == [None] * len(values)
        assert export(store)[0] == [dumps(value) for value in values]


def test_bad_rows_are_refused_by_line_and_the_others_are_in(store: Store, tmp_path: Path) -> None:
    """An import never stops at a bad row: each has its line, and the rows around it are there."""
    bad = [
        b"{",
        b"[]",
        b'{"response": null}',
        dumps(row("text")),
        b'{"a": NaN}',
        json.dumps(row(message(x=float("nan")))),
    ]
    values = [message(str(number)) for number in range(len(bad))]
    mixed = [each for value, line in zip(values, bad, strict=True) for each in (row(value), b"", line)]
    mixed = [each.encode() if isinstance(each, str) else each for each in mixed]
    results = import_rows(store, tmp_path / "f.jsonl", *mixed, b"  ")
    assert [result.line for result in results if result.error is not None] == [3, 6, 9, 12, 15, 18]
    assert store.rollouts() == [f"f/{line}" for line in (1, 4, 7, 10, 13, 16)]
    assert [loads(found)["response"]["output"] for found in export(store)[0]] == [[value] for value in values]


@pytest.mark.parametrize(
    "items",
    [
        [message(), output(), message(**{**ids(), "prompt_token_ids": [1, -1]})],
        [call(**ids()), output(), message(**{**ids(), "generation_log_probs": [0.0, float("nan"), -1.0]}), message()],
    ],
    ids=["a rule", "no JSON"],
)
def test_a_gap_row_gives_its_items_back(store: Store, tmp_path: Path, items: list[Any]) -> None:
    """A row kept with the gap malformed_training_metadata exports the items that it had, all of them (7.9, 7.11)."""
    value = row(*items)
    (result,) = import_rows(store, tmp_path / "f.jsonl", value, on_malformed="gap")
    assert result.with_gap
    assert [gap.code for gap in RolloutView(store, "f/1").gaps] == ["malformed_training_metadata"]
    (found,), (written,) = export(store)
    assert json.dumps(json.loads(found)) == json.dumps(value)
    assert written.remarks == ()


def test_a_file_imported_twice_changes_nothing(store: Store, tmp_path: Path) -> None:
    """Rows that are there already are passed by; rows appended to the file come in."""
    path = tmp_path / "f.jsonl"
    import_rows(store, path, ROWS["ids"], ROWS["tools"], scope=SCOPE)
    before = export(store)[0]
    results = import_rows(store, path, ROWS["ids"], ROWS["tools"], ROWS["text"], scope=SCOPE)
    assert [result.already for result in results] == [True, True, False]
    assert [result.turns for result in results] == [2, 3, 1]
    assert export(store)[0][:2] == before
    assert len(store.rollouts()) == 3


def test_nothing_is_written_over(store: Store, tmp_path: Path) -> None:
    """Another row under an id that is there, another scope, or a rollout of other ways is refused by its name."""
    import_rows(store, tmp_path / "f.jsonl", *[ROWS["ids"]] * 2, scope=SCOPE)
    with Rollout.open(store, "f/3") as rollout:
        rollout.add_turn(capture({"output": [message()]}))
    with Rollout.open(store, "f/2") as rollout:
        rollout.add_turn(capture({"output": [message()]}))
    before = [[turn.digest for turn in RolloutView(store, name).turns] for name in store.rollouts()]
    results = import_rows(store, tmp_path / "f.jsonl", ROWS["text"], ROWS["ids"], ROWS["ids"], scope=SCOPE)
    reasons = ["another rollout of this id", "gone on since", "another rollout of this id"]
    for result, reason in zip(results, reasons, strict=True):
        assert result.error is not None
        assert (result.error.rollout, reason in result.error.message) == (result.rollout, True)
    (result, *_) = import_gym(tmp_path / "f.jsonl", store, name="f", scope="other")
    assert result.error is not None
    assert [[turn.digest for turn in RolloutView(store, name).turns] for name in store.rollouts()] == before


def test_an_import_that_was_begun_is_completed(store: Store, tmp_path: Path) -> None:
    """A rollout that was begun and never written, as a kill leaves it, is filled by importing again (9.2)."""
    with Rollout.open(store, "f/1", scope=SCOPE):
        pass
    _, (written,) = export(store)
    assert (written.error is not None, written.turns) == (True, 0)
    (result,) = import_rows(store, tmp_path / "f.jsonl", ROWS["ids"], scope=SCOPE)
    assert (result.error, result.already, result.turns) == (None, False, 2)
    assert same(loads(export(store)[0][0]), ROWS["ids"])


def test_a_rollout_that_is_being_written_is_left(store: Store, tmp_path: Path) -> None:
    """An import meets a rollout of that id with a writer: it is refused, and the row after it comes in."""
    with Rollout.open(store, "f/1"):
        results = import_rows(store, tmp_path / "f.jsonl", ROWS["text"], ROWS["ids"])
        assert [type(result.error).__name__ for result in results] == ["RolloutBusy", "NoneType"]


def test_growing_prompts_are_kept_as_their_new_ids(tmp_path: Path) -> None:
    """The prompts of one row share their beginnings on disk, as those of policy calls do."""
    sizes = []
    for name, grows in (("grows", True), ("others", False)):
        items = [message(**ids(2000 + 40 * turn, 40, first=100 if grows else 100 + turn)) for turn in range(20)]
        for item in items:
            del item["routed_experts"]
        with open_store(tmp_path / f"{name}.db") as store:
            import_rows(store, tmp_path / "f.jsonl", row(*items))
            assert same(loads(export(store)[0][0]), row(*items))
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as db:
            sizes += db.execute("SELECT sum(length(data)) FROM blobs").fetchone()
    assert sizes[0] * 3 < sizes[1]


def test_what_was_added_after_the_import_is_told(store: Store, tmp_path: Path) -> None:
    """A rollout that went on after its import exports the row as it was, and says which turns are not in it."""
    import_rows(store, tmp_path / "f.jsonl", ROWS["tools"])
    with Rollout.open(store, "f/1") as rollout:
        rollout.add_turn(capture({"output": [message(**NO_IDS)]}))
    (found,), (written,) = export(store)
    assert same(loads(found), ROWS["tools"])
    assert [(remark.rule, remark.turn) for remark in written.remarks] == [("turn_not_in_row", 3)]
