"""A NOOA agent's history is exact after NOOA's own SQLite storage and snapshot, in a new process (contract 9.1)."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import SCRIPT, Clerk
from harness import ARRAYS, Bench, bench, output_items, place_of, play
from nooa.storage import SQLiteStorageManager, snapshot_to_json

from turnkeep.errors import ArchiveError
from turnkeep.nooa import NOT_EXECUTED_GAP, restore_snapshot, save_snapshot
from turnkeep.wire.json import dumps, loads, same, without_nulls

pytestmark = [pytest.mark.nooa, pytest.mark.slow, pytest.mark.filterwarnings("default")]


def lived(b: Bench, db: Path, snapshot: Path) -> dict[str, Any]:
    """Let a clerk count and report on a SQLite storage, save both ways, and say how the first report was asked for."""
    with SQLiteStorageManager(db) as storage:
        clerk = b.llm.attach(Clerk(b.llm, storage=storage))
        play(b, lambda: clerk.count("all of them"))
        storage.save_snapshot(clerk)
        snapshot.write_text(json.dumps(save_snapshot(clerk)))
    return {"outputs": [output_items(b.rollout, call) for call in range(b.rollout.used)], "used": b.rollout.used}


@pytest.fixture(scope="module")
def restored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What a new process sent: from SQLite and from a snapshot with archives, and from SQLite with references."""
    folder = tmp_path_factory.mktemp("restore")
    store = str(folder / "turns.db")
    with bench(SCRIPT, store=store, rollout="archive") as b:
        told = lived(b, folder / "archive.nooa", folder / "archive.json")
        b.rollout.close()
        with bench(SCRIPT, store=store, rollout="reference", embed="reference") as other:
            lived(other, folder / "reference.nooa", folder / "reference.json")
        base = {"url": b.url, "store": "memory:", "embed": "archive"}
        cases = {
            "sqlite": {**base, "rollout": "s", "db": str(folder / "archive.nooa")},
            "snapshot": {**base, "rollout": "j", "snapshot": str(folder / "archive.json")},
            "reference": {
                **base,
                "rollout": "reference",
                "store": store,
                "embed": "reference",
                "db": str(folder / "reference.nooa"),
            },
        }
        path = folder / "cases.json"
        path.write_text(json.dumps(cases))
        subprocess.run(
            [sys.executable, str(Path(__file__).with_name("restore.py")), str(path)], check=True, timeout=120
        )
        yield {**told, **loads(Path(f"{path}.out").read_bytes()), "folder": folder}


@pytest.mark.parametrize("way", ["sqlite", "snapshot", "reference"])
def test_a_new_process_sends_every_turn_as_received(restored: dict[str, Any], way: str) -> None:
    """Reasoning, blocks, calls, ids, log probs and experts of all four turns are what the server sent (9.1, 4.1)."""
    sent = restored[way]["first"]["input"]
    assert restored["used"] == 4
    if way == "reference":  # another rollout of the same script: the ids of NOOA's prefill differ, so the prompts do
        assert [set(ARRAYS) <= set(items[-1]) for items in restored["outputs"]] == [True] * 4
        assert sum(set(ARRAYS) <= set(item) for item in sent) == 4
    else:
        assert [place_of(items, sent) is not None for items in restored["outputs"]] == [True] * 4
    assert restored[way]["gaps"] == [NOT_EXECUTED_GAP]


def test_both_ways_give_the_same_request(restored: dict[str, Any]) -> None:
    """A snapshot and the SQLite file of the same run restore to requests that differ in nothing but the agent's id."""
    one, other = (restored[way]["first"] for way in ("sqlite", "snapshot"))
    del one["prompt_cache_key"], other["prompt_cache_key"]
    assert same(one, other)


@pytest.mark.parametrize("way", ["sqlite", "snapshot", "reference"])
def test_a_restored_agent_goes_on_exactly(restored: dict[str, Any], way: str) -> None:
    """The turn made after the restore is native in the next request, and the agent has its state (9.1)."""
    result = restored[way]
    new = loads(without_nulls(dumps(result["answer"]["output"])))
    assert place_of(new, result["second"]["input"]) is not None
    assert result["boxes"] == [21, 21]
    assert result["shelves"] == {"north": 21, "south": 21}


def test_the_events_leave_the_agent_that_they_travelled_on(restored: dict[str, Any]) -> None:
    """No attribute of a restored agent, and so no state that the model sees, holds the events."""
    assert not any("turnkeep" in name for name in restored["snapshot"]["attributes"])
    assert "turnkeep_events" not in json.dumps(restored["snapshot"]["first"])


def test_an_archive_in_an_event_is_one_opaque_text(restored: dict[str, Any]) -> None:
    """One event of each turn holds the turn whole, as a text; with references none does."""
    for name, archives in (("archive", 6), ("reference", 0)):  # four turns, and two since the restore
        with sqlite3.connect(restored["folder"] / f"{name}.nooa") as database:
            rows = [json.loads(row[0])["metadata"] for row in database.execute("SELECT data FROM events")]
        database.close()
        held = [metadata["turnkeep_archive"] for metadata in rows if "turnkeep_archive" in metadata]
        assert [type(text) for text in held] == [str] * archives
        assert len({metadata["turnkeep"]["turn"] for metadata in rows if "turnkeep" in metadata}) >= 4


def test_a_snapshot_without_events_is_refused() -> None:
    """NOOA's own snapshot has no events; restoring it here says so instead of losing the history silently."""
    with bench(SCRIPT) as b:
        clerk = b.llm.attach(Clerk(b.llm))
        with pytest.raises(ArchiveError, match="no events"):
            restore_snapshot(snapshot_to_json(clerk), clerk)


def test_a_snapshot_keeps_summaries_and_their_places() -> None:
    """Which events are shown and in which order, summaries too, comes back from a snapshot; tags go on from there."""
    with bench(SCRIPT) as b:
        clerk = b.llm.attach(Clerk(b.llm))
        play(b, lambda: clerk.count("it"))
        clerk.event_manager.collapse("1", "3", summary_text="It began.")
        saved = json.loads(json.dumps(save_snapshot(clerk)))
        again = b.llm.attach(Clerk(b.llm))
        restore_snapshot(saved, again)
        assert again.event_manager.keys() == clerk.event_manager.keys()
        assert [event.model_dump_json() for event in again.event_manager.filter()] == [
            event.model_dump_json() for event in clerk.event_manager.filter()
        ]
        assert "_turnkeep_events" not in clerk.__dict__
        play(b, lambda: again.report("north"))
        assert all(place_of(items, b.bodies()[-1]["input"]) is not None for items in b.outputs()[:4])
