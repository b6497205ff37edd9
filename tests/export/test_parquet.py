"""Parquet: every value of every turn, as pyarrow, DuckDB and Hugging Face `datasets` read it."""

import os
import pickle
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from atif_samples import ASKED, GOOD, SCOPE, answer, call, ids, kept, message, reasoning
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from typer.testing import CliRunner

from turnkeep import (
    ArchiveError,
    ConfigurationError,
    MalformedItem,
    Rollout,
    RolloutView,
    Turn,
    TurnkeepError,
    capture,
    open_store,
)
from turnkeep.cli.main import app
from turnkeep.export.parquet import FILE, VERSION, arrow_schema, export_parquet, read_row, read_shared
from turnkeep.store.base import Store
from turnkeep.store.memory import MemoryStore
from turnkeep.testing import strategies
from turnkeep.wire.item import Item
from turnkeep.wire.json import dumps, loads

ROOT = Path(__file__).parent.parent.parent


def many() -> Store:
    """A store of three rollouts: one that is whole, one with a gap, a reward and hard values, one without ids."""
    store = kept(GOOD, "r-1")
    hard = {
        "prompt_token_ids": [0, 2**32, 2**63 - 1],
        "generation_token_ids": [7, 8, 9],
        "generation_log_probs": [-0.0, -5e-324, -0.30000000000000004],
        "routed_experts": [[[300, -1]], [[0, 1]], [[2, 3]]],
    }
    turns = [
        reasoning("Hm.\n☃"),
        message("é ", "😀", **hard),
        call("c_9", '{ "a" : 1 }', **{**ids([1], [2]), "routed_experts": "nrlre1:int8:2x1x2:AQIDBA=="}),
        message("Nothing.", **ids([1], [])),
    ]
    with Rollout.open(store, "r-2", scope=SCOPE) as rollout:
        rollout.add_gap("mine", detail="Why.")
        usage = {"input_tokens": 3, "x": [1.0, None]}
        captured = [capture(answer(item, usage=usage), SCOPE) for item in turns]
        rollout.add_turns(captured, origin={"source": "t", "reward": 0.25})
    with Rollout.open(store, "r-3") as rollout:
        rollout.add_turns([capture(answer(message("A"), call(), call("c_2")))])
    return store


def export(store: Store, folder: Path) -> Path:
    """The file of all rollouts, none of which is left out."""
    assert [each.error for each in export_parquet(store, store.rollouts(), folder)] == [None] * len(store.rollouts())
    return folder / FILE


def expected(store: Store) -> list[dict[str, Any]]:
    """What each row says, taken from the turns themselves."""
    rows = []
    for view in (RolloutView(store, name) for name in store.rollouts()):
        rows += [_expected(view, number, turn) for number, turn in enumerate(view.turns)]
    return rows


def _expected(view: RolloutView, number: int, turn: Turn) -> dict[str, Any]:
    item = next((part.native for part in turn.parts if part.native and part.native.has_training), None)
    index = next((i for i, part in enumerate(turn.parts) if part.native and part.native.has_training), None)
    fields = {} if item is None else item.to_json()
    routes = fields.get("routed_experts")
    experts = None if item is None else item.arrays.get("routed_experts")
    if isinstance(routes, str):
        experts = np.array([[[1, 2]], [[3, 4]]], dtype=np.int8)
    return {
        "rollout": view.id,
        "turn": number,
        "call": view.call_of_turn(number),
        "scope": turn.scope,
        "finish_reason": turn.finish_reason,
        "text": turn.content,
        "reasoning": turn.reasoning,
        "tool_calls": [{"id": each.id, "name": each.name, "arguments": each.arguments} for each in turn.tool_calls],
        "model_name": "m",
        "response_id": "resp",
        "usage": None if turn.usage is None else dumps(turn.usage).decode(),
        "training_item": index,
        "prompt_token_ids": fields.get("prompt_token_ids"),
        "generation_token_ids": fields.get("generation_token_ids"),
        "generation_log_probs": fields.get("generation_log_probs"),
        "routed_experts": None if experts is None else experts.tobytes(),
        "routed_experts_dtype": None if experts is None else str(experts.dtype),
        "routed_experts_shape": None if experts is None else list(experts.shape),
        "digest": turn.digest,
        "gaps": [gap._asdict() for gap in view.gaps],
        "gradable": True,
        "reward": 0.25 if view.id == "r-2" else None,
    }


def by_pyarrow(path: Path) -> list[dict[str, Any]]:
    """The rows, read by pyarrow."""
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


def by_duckdb(path: Path) -> list[dict[str, Any]]:
    """The rows, read by DuckDB."""
    with duckdb.connect() as connection:
        found = connection.execute("SELECT * FROM read_parquet(?)", [str(path)])
        assert found.description is not None
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def by_datasets(path: Path) -> list[dict[str, Any]]:
    """The rows, read by Hugging Face datasets, its cache beside the file."""
    code = (
        "import sys, pickle, datasets\n"
        "found = datasets.load_dataset('parquet', data_files=sys.argv[1], split='train', cache_dir=sys.argv[2])\n"
        "sys.stdout.buffer.write(pickle.dumps(list(found)))"
    )
    command = [sys.executable, "-c", code, str(path), str(path.parent / "cache")]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(path.parent / "home")}
    done = subprocess.run(command, capture_output=True, check=True, env=offline)
    rows: list[dict[str, Any]] = pickle.loads(done.stdout)
    return rows


def spelled(rows: list[dict[str, Any]]) -> list[str]:
    """Rows as text that tells every value, and -0.0 from 0.0."""
    return [repr(row) for row in rows]


@pytest.mark.parametrize("read", [by_pyarrow, by_duckdb, by_datasets])
def test_every_value_is_read_as_it_was(tmp_path: Path, read: Callable[[Path], list[dict[str, Any]]]) -> None:
    """All columns of all rows are equal, floats by their bits, for each of the three readers."""
    store = many()
    assert spelled(read(export(store, tmp_path / "out"))) == spelled(expected(store))


def test_the_schema_is_as_documented(tmp_path: Path) -> None:
    """The file has the schema of the code, its version in the metadata, and docs/parquet.md lists every column."""
    found = parquet.read_schema(export(many(), tmp_path / "out"))
    assert [(field.name, field.type) for field in found] == [(field.name, field.type) for field in arrow_schema()]
    assert [field.nullable for field in found] == [field.nullable for field in arrow_schema()]
    assert found.metadata == {b"format": b"turnkeep-turns", b"version": str(VERSION).encode()}
    page = (ROOT / "docs" / "parquet.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", page, re.MULTILINE)
    assert listed == [(field.name, re.sub("(element|item|child 0): ", "", str(field.type))) for field in found]


def _examples() -> list[str]:
    page = (ROOT / "docs" / "parquet.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/parquet.md shows can be run as it stands."""
    export(many(), tmp_path / "dataset")
    monkeypatch.chdir(tmp_path)
    with open_store("rollouts.db") as store:
        kept(GOOD, store=store)
    assert len(_examples()) == 3
    for code in _examples():
        exec(code, {})


@settings(max_examples=40)
@given(st.lists(strategies.turns(), min_size=1, max_size=3))
def test_rows_are_whole_or_refused(turns: list[Turn]) -> None:
    """Whatever turns there are, a row that can be made goes through Arrow unchanged; any other says where and why."""
    store = MemoryStore()
    with Rollout.open(store, "r", scope=strategies.SCOPE) as rollout:
        rollout.add_turns(turns)
    view = RolloutView(store, "r")
    for number in range(len(turns)):
        row, error = _row_or_error(view, number)
        if error is not None:
            assert (error.rollout, error.turn, bool(error.field)) == ("r", number, True)
            continue
        (found,) = pa.Table.from_pylist([row], arrow_schema()).to_pylist()
        assert found["text"] == turns[number].content
        for name in ("prompt_token_ids", "generation_token_ids", "generation_log_probs"):
            kept = None if row.get(name) is None else row[name].tolist()
            assert repr(found[name]) == repr(kept)


def _row_or_error(view: RolloutView, number: int) -> tuple[dict[str, Any], TurnkeepError | None]:
    try:
        return read_row(view, number, read_shared(view)), None
    except (ArchiveError, MalformedItem) as error:
        return {}, error


def test_what_no_column_holds_leaves_a_rollout_out(tmp_path: Path) -> None:
    """The rollout is left out whole, with rollout, turn and field; the others are there."""
    store = kept(GOOD, "good")
    kept([*GOOD[:1], ([], answer(message("a\ud800")))], "lone", store)
    kept([(ASKED, answer(message("A", **{**ids([1], [2]), "prompt_token_ids": [1 << 63]})))], "large", store)
    kept([(ASKED, answer(message("A", **ids([1], [2])), message("B", **ids([1], [2]))))], "twice", store)
    written = list(export_parquet(store, store.rollouts(), tmp_path / "out"))
    found = [(each.error.turn, each.error.field) if each.error else None for each in written]
    assert found == [None, (1, "text"), (0, "prompt_token_ids"), (0, "generation_token_ids")]
    assert {row["rollout"] for row in by_pyarrow(tmp_path / "out" / FILE)} == {"good"}
    with pytest.raises(ConfigurationError, match="is there already"):
        list(export_parquet(store, ["good"], tmp_path / "out"))


@pytest.mark.parametrize("reward", [2**53 + 1, 10**400])
def test_a_reward_that_is_no_float64_leaves_a_rollout_out(tmp_path: Path, reward: int) -> None:
    """A reward is never rounded: where no float64 is that integer, the rollout is left out and named."""
    store = kept(GOOD, "good")
    for name, each in (("exact", 2**53), ("large", reward)):
        with Rollout.open(store, name, scope=SCOPE) as rollout:
            rollout.add_turns([capture(answer(message("A")))], origin={"reward": each})
    written = list(export_parquet(store, store.rollouts(), tmp_path / "out"))
    assert [each.error.field if each.error else None for each in written] == [None, None, "reward"]
    assert [row["reward"] for row in by_pyarrow(tmp_path / "out" / FILE)] == [None, None, 2.0**53]


@pytest.mark.parametrize("kind", [1, 4])
def test_a_rollout_that_cannot_be_opened_is_left_out(tmp_path: Path, kind: int) -> None:
    """Damage to one rollout is named, and the others are written, by the command too (contract 9.3)."""
    with open_store(tmp_path / "a.db") as store:
        kept(GOOD, "bad", store)
        kept(GOOD, "good", store)
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("UPDATE records SET document = '{}' WHERE kind = ? AND rollout = 1", [kind])
    connection.close()
    words = ["export", "parquet", "--all", "--store", str(tmp_path / "a.db"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert done.stdout.startswith("left out bad: ")
    assert {row["rollout"] for row in by_pyarrow(tmp_path / "out" / FILE)} == {"good"}


def test_groups_of_rows_are_bounded_by_what_tools_were_given(tmp_path: Path) -> None:
    """Rows whose bulk is in the arguments of tool calls are written in groups of a bounded size, as others are."""
    store = MemoryStore()
    with Rollout.open(store, "r") as rollout:
        turns = [capture(answer(call(f"c_{number}", f'"{"x" * (1 << 20)}"'))) for number in range(12)]
        rollout.add_turns(turns)
    assert parquet.read_metadata(export(store, tmp_path / "out")).num_row_groups == 3


def test_memory_stays_flat(tmp_path: Path) -> None:
    """200 turns with a quarter of a million routes each are written within 300 MB."""
    rng = np.random.default_rng(1)
    scores = [-0.1] * 512
    with open_store(tmp_path / "r.db") as store, Rollout.open(store, "r", scope=SCOPE) as rollout:
        for number in range(200):
            experts = rng.integers(0, 256, (512, 64, 8)).astype(np.uint8)
            fields = {"prompt_token_ids": [number] * 8, "generation_token_ids": [7] * 512}
            item = Item(message("A", **fields, generation_log_probs=scores, routed_experts=experts))
            rollout.add_turn(capture(b'{"output":[' + item.to_bytes() + b"]}", SCOPE))
    command = [
        sys.executable,
        str(Path(__file__).parent / "parquet_child.py"),
        str(tmp_path / "r.db"),
        str(tmp_path / "o"),
    ]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert parquet.read_metadata(tmp_path / "o" / FILE).num_rows == 200
    assert int(done.stdout) < 300_000


def test_the_command_tells_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says file, rollouts, rows and what was left out, as text and as JSON, with exit code 0 or 1."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    with open_store("a.db") as store:
        kept(GOOD, "good", store)
        kept([(ASKED, answer(message("a\ud800")))], "bad", store)

    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["export", "parquet", "--store", "a.db", *words])
        return done.exit_code, done.stdout

    code, told = run("good", "--out", "one")
    assert (code, told.split(",")[0]) == (0, "one/turns.parquet: 1 rollouts")
    code, told = run("--all", "--out", "two")
    assert code == 1
    assert told.startswith("left out bad: no column can hold half of a surrogate pair")
    code, told = run("--all", "--out", "three", "--json")
    answered = loads(told)
    assert (code, answered["rollouts"], answered["turns"], answered["left_out"][0]["rollout"]) == (1, 1, 2, "bad")
    assert answered["bytes"] == (tmp_path / "three" / FILE).stat().st_size
