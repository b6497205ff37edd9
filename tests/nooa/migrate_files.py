"""Storages to migrate: the golden ones, whose archives are JSON text, and what stands in them. Needs no NOOA."""

import json
import lzma
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "nooa-text-v1"
DIGESTS = [
    "51c224e6be1f844223e946cb7bde04630a20c5b4abc04617ca572c4564e606ca",  # two calls
    "f338e8d2598994fa6f70ba279a37cd1987292777ccab28d0bb0e789c109c8fd5",  # text alone under CodeAct
    "9f06ad72603065d9b35b2e04bd58e4b644abd1beb14724287f5272d899d5dc59",  # the result
    "c5d6538275977621c8a6093968aea2674f541d92e82a650a805c12a77897a4bf",  # Predict's text
]
"""The golden turns, all of rollout `old`, in order."""
KEYS = ["8cfc3add545b410b828ca4e06aaa20d5", "2667ab727efa4563b977586e857a8643"]
"""The keys of the first and of the third."""


def golden(folder: Path, name: str = "nooa.db") -> Path:
    """A copy of a golden file: `nooa.db` or `snapshot.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(lzma.decompress((GOLDEN / f"{name}.xz").read_bytes()))
    return path


def rows(path: Path) -> dict[str, list[Any]]:
    """Everything in a storage, table by table; an event's data parsed."""
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {name: database.execute(f"SELECT * FROM {name}").fetchall() for name in tables}
    found["events"] = sorted((*row[:4], json.loads(row[4]), row[5]) for row in found["events"])
    return found


def events(path: Path) -> list[dict[str, Any]]:
    """The members of each event of a storage or a snapshot, in order."""
    if path.read_bytes()[:6] == b"SQLite":
        return [row[4] for row in sorted(rows(path)["events"], key=lambda row: row[5])]
    held: list[dict[str, Any]] = json.loads(json.loads(path.read_text())["attributes"]["_turnkeep_events"])["events"]
    return held


def marked(path: Path) -> list[tuple[str, str, bool]]:
    """Kind, digest and whether the archive is there, of each event whose mark names a turn."""
    found = [each["metadata"] for each in events(path) if "turn" in each["metadata"].get("turnkeep", {})]
    return [(each["turnkeep"]["kind"], each["turnkeep"]["turn"], "turnkeep_archive" in each) for each in found]


def change(path: Path, tag: str, **metadata: Any) -> None:
    """Set members of an event's metadata."""
    with closing(sqlite3.connect(path)) as database, database:
        (data,) = database.execute("SELECT data FROM events WHERE tag = ?", (tag,)).fetchone()
        value = json.loads(data)
        value["metadata"].update(metadata)
        database.execute("UPDATE events SET data = ? WHERE tag = ?", (json.dumps(value), tag))
