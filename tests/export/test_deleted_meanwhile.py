"""Commands on rollouts of which another process deletes one: passed over where all are asked for."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from atif_samples import ASKED, SCOPE, answer, ids, kept, message
from typer.testing import CliRunner

from turnkeep.cli.main import app
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.references import named_blobs
from turnkeep.rollout.view import RolloutView
from turnkeep.store.sqlite import SqliteStore

NAMES = ("r-1", "r-2", "r-3")


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in a folder with a store of three rollouts."""
    monkeypatch.chdir(tmp_path)
    with SqliteStore("a.db") as store:
        for name in NAMES:  # each with arrays of its own
            first = ids([*range(500)], [ord(name[-1])] * 300)
            second = ids(first["prompt_token_ids"] + first["generation_token_ids"] + [7], [8] * 300)
            steps = [(ASKED, answer(message(f"I am {name}.", **first))), ([], answer(message("And more.", **second)))]
            kept(steps, name, store)


def delete(name: str) -> None:
    """Delete a rollout, if it is there, as another process would."""
    with SqliteStore("a.db") as other:
        if name in LISTED(other):
            other.delete([name], named_blobs)


LISTED = SqliteStore.rollouts


def when_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`r-2` goes as soon as it was listed."""

    def rollouts(store: SqliteStore) -> list[str]:
        found = LISTED(store)
        delete("r-2")
        return found

    monkeypatch.setattr(SqliteStore, "rollouts", rollouts)


def when_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """`r-2` goes as soon as its rows were read, before its arrays are."""
    begin = RolloutView.__init__

    def init(view: RolloutView, store: Any, rollout: str) -> None:
        begin(view, store, rollout)
        if rollout == "r-2":
            delete("r-2")

    monkeypatch.setattr(RolloutView, "__init__", init)


WHEN = pytest.mark.parametrize("when", [when_listed, when_opened])


def told_by(*words: str, code: int = 0) -> Any:
    """The JSON that a command prints."""
    done = CliRunner().invoke(app, [*words, "--store", "a.db", "--json"])
    assert done.exit_code == code, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


@WHEN
@pytest.mark.parametrize("command", ["ls", "verify", "check"])
def test_looking_at_all_passes_over_what_was_deleted(
    command: str, when: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No word of the deleted one, and the exit code is that of the others."""
    when(monkeypatch)
    told = told_by(command)
    rows = told if command == "ls" else told[0]["rollouts"]
    names = [row["rollout"] for row in rows]
    assert [name for name in names if name != "r-2"] == ["r-1", "r-3"]
    assert "no such rollout" not in json.dumps(told)
    assert "corrupt" not in json.dumps(told)


@WHEN
@pytest.mark.parametrize("form", ["gym", "atif", "parquet"])
def test_exporting_all_passes_over_what_was_deleted(
    form: str, when: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are exported whole, as if it had never been there."""
    told_by("export", form, "r-1", "r-3", "--out", "expected")
    when(monkeypatch)
    told_by("export", form, "--all", "--out", "out")
    names = [""] if form == "gym" else [path.name for path in Path("expected").iterdir()]
    assert [(Path("out") / name).read_bytes() for name in names] == [
        (Path("expected") / name).read_bytes() for name in names
    ]


@pytest.mark.parametrize("command", [("verify",), ("check",), ("export", "gym", "--out", "out")])
def test_one_that_was_named_must_be_there(command: tuple[str, ...]) -> None:
    """A named rollout that is gone is an error."""
    delete("r-2")
    done = CliRunner().invoke(app, [*command, "r-2", "--store", "a.db"])
    assert (done.exit_code, "no such rollout" in done.output) == (3, True)


@pytest.mark.parametrize("choice", [("--keep", "1"), ("--before", "2999-01-01")])
def test_pruning_passes_over_what_was_deleted(choice: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two who prune at once, the second deletes what is left."""
    when_listed(monkeypatch)
    (done,) = told_by("prune", *choice, "--yes")
    assert done["rollouts"] == (["r-1"] if choice[0] == "--keep" else ["r-1", "r-3"])


def test_the_newest_are_those_that_began_last_whatever_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that went back between two rollouts changes nothing in which of them `--keep` keeps."""
    monkeypatch.setattr("turnkeep.rollout.state.datetime", Mock(now=lambda _: datetime(2001, 1, 1, tzinfo=UTC)))
    with SqliteStore("a.db") as store, Rollout.open(store, "r-4", scope=SCOPE):
        pass
    (told,) = told_by("prune", "--keep", "1", "--dry-run")
    assert told["rollouts"] == ["r-1", "r-2", "r-3"]
