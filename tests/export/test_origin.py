"""Where a rollout came from: a JSON object kept with it, and turns that come in together."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from gym_samples import SCOPE, ids, message
from hypothesis import given

from turnkeep import ConfigurationError, CorruptRecord, Gap, Rollout, RolloutView, Turn, capture, open_store
from turnkeep.rollout.origin import read_origin, write_origin
from turnkeep.rollout.verify import verify_rollout
from turnkeep.testing import strategies
from turnkeep.wire.json import dumps, same

GOLDEN = Path(__file__).resolve().parent.parent / "golden"


def turn(number: int) -> Turn:
    """A turn whose prompt extends the one before."""
    return capture(dumps({"output": [message(str(number), **ids(300 + 40 * number, 40))]}), SCOPE)


def test_an_origin_is_kept_and_replaced(tmp_path: Path) -> None:
    """What was set is there in another process's view, until something else is set; a fresh copy each time (9.2)."""
    with open_store(tmp_path / "a.db") as store:
        with Rollout.open(store, "r") as rollout:
            assert rollout.origin is None
            rollout.set_origin({"first": 1})
            rollout.add_turn(turn(0))
            with open_store(tmp_path / "a.db") as other:
                assert RolloutView(other, "r").origin == {"first": 1}
            rollout.set_origin({"second": [1.0, None]})
            assert rollout.origin == {"second": [1.0, None]}
            copy = rollout.origin
            assert copy is not None
            copy["second"].append("changed")
            assert rollout.origin == {"second": [1.0, None]}
        assert RolloutView(store, "r").turn_count == 1


@given(strategies.json_objects(max_size=5))
def test_any_object_is_kept_exactly(origin: dict[str, Any]) -> None:
    """Key order, integers, floats and strings of an origin come back as they were (contract 1.6)."""
    assert same(read_origin(write_origin(origin)), origin)


@pytest.mark.parametrize("origin", [None, [1], "x", {"a": float("nan")}, {1: 2}, {"a": {"b": object()}}])
def test_what_is_no_json_object_is_refused(origin: Any) -> None:
    """It is a ConfigurationError that names the rollout, and nothing is changed."""
    with open_store("memory:") as store, Rollout.open(store, "r") as rollout:
        with pytest.raises(ConfigurationError) as caught:
            rollout.set_origin(origin)
        assert (caught.value.rollout, caught.value.field, rollout.origin) == ("r", "origin", None)


@pytest.mark.parametrize("version", ["sqlite-v1", "sqlite-v2"])
def test_older_stores_open_and_take_one(tmp_path: Path, version: str) -> None:
    """A store that was written before there were origins opens as before, and its rollouts take one (contract 9.4)."""
    path = shutil.copy(GOLDEN / version / "rollouts.db", tmp_path / "a.db")
    with open_store(path) as store:
        assert [RolloutView(store, name).origin for name in store.rollouts()] == [None, None]
        before = RolloutView(store, "calls").turns
        with Rollout.open(store, "calls") as rollout:
            rollout.set_origin({"a": 1})
        assert RolloutView(store, "calls").origin == {"a": 1}
        assert RolloutView(store, "calls").turns == before


@pytest.mark.parametrize("damage", ["UPDATE records SET document = x'7b7d'", "DELETE FROM records"])
def test_damage_is_found(tmp_path: Path, damage: str) -> None:
    """An origin that is gone or changed is a CorruptRecord, which verifying finds too (contract 9.3)."""
    path = tmp_path / "a.db"
    with open_store(path) as store:
        with Rollout.open(store, "r") as rollout:
            rollout.set_origin({"a": 1})
        with closing(sqlite3.connect(path)) as db:
            db.execute(f"{damage} WHERE kind = 5")
            db.commit()
        view = RolloutView(store, "r")
        with pytest.raises(CorruptRecord) as caught:
            _ = view.origin
        assert caught.value.rollout == "r"
        assert [finding.rule for finding in verify_rollout(view)] == ["corrupt"]


def test_turns_come_in_together(tmp_path: Path) -> None:
    """Turns, origin and gaps are one commit: readable at once, behind turns that were there, as add_turn keeps them."""
    whole, single = [turn(number) for number in range(5)], tmp_path / "single.db"
    with open_store(tmp_path / "a.db") as store, Rollout.open(store, "r", scope=SCOPE) as rollout:
        rollout.add_turn(whole[0])
        rollout.add_turns(iter(whole[1:4]), origin={"a": 1}, gaps=[Gap("x")])
        rollout.add_turn(whole[4])
        assert [rollout.number_of(each) for each in whole] == [0, 1, 2, 3, 4]
        assert list(rollout.turns) == whole
        view = RolloutView(store, "r")
        assert (list(view.turns), view.origin, view.gaps) == (whole, {"a": 1}, (Gap("x"),))
        kept = store.rows("r", "turns")
    with open_store(single) as store, Rollout.open(store, "r", scope=SCOPE) as rollout:
        for each in whole:
            rollout.add_turn(each)
        assert store.rows("r", "turns") == kept


def test_turns_that_cannot_all_come_in_leave_nothing(tmp_path: Path) -> None:
    """Where making one of the turns fails, none is kept, and the rollout goes on as if none had been given (9.2)."""

    def broken() -> Iterator[Turn]:
        yield turn(1)
        raise LookupError("in the middle")

    with open_store(tmp_path / "a.db") as store, Rollout.open(store, "r", scope=SCOPE) as rollout:
        rollout.add_turn(turn(0))
        with pytest.raises(LookupError):
            rollout.add_turns(broken(), origin={"a": 1})
        with pytest.raises(ConfigurationError):
            rollout.add_turns([turn(1)], origin={"a": float("inf")})
        rollout.add_turn(turn(2))
        view = RolloutView(store, "r")
        assert (list(view.turns), view.origin) == ([turn(0), turn(2)], None)
        assert list(verify_rollout(view)) == []
