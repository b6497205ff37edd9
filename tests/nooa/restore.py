"""A new process that restores clerks and lets each go on: `python restore.py CASES.json`, results to CASES.json.out.

A case has `url`, `store`, `rollout`, `embed`, and either `db` (NOOA's SQLite file) or `snapshot` (a JSON file). With
`brief` it makes one report, not two.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from agents import SCOPE, Clerk
from nooa.storage import SQLiteStorageManager

from turnkeep.nooa import TurnkeepLLM, restore_snapshot
from turnkeep.rollout.policy import PolicyClient
from turnkeep.rollout.record import Rollout
from turnkeep.store.open import open_store
from turnkeep.wire.json import dumps, loads


async def go_on(case: dict[str, Any]) -> dict[str, Any]:
    """Restore the case's clerk, report and count once more, and say what was sent."""
    store = open_store(case["store"])
    rollout = Rollout.open(store, case["rollout"], scope=SCOPE)
    before = rollout.used
    async with PolicyClient(case["url"], rollout) as policy:
        llm = TurnkeepLLM(policy, embed=case["embed"])
        storage = SQLiteStorageManager(case["db"]) if "db" in case else None
        clerk = llm.attach(Clerk(llm, storage=storage))
        if storage is not None:
            storage.restore_latest_snapshot(clerk)
        else:
            restore_snapshot(json.loads(Path(case["snapshot"]).read_text()), clerk)
        shelves = dict(clerk.shelves)
        attributes = sorted(clerk.__dict__)
        report = await clerk.report("north")
        first = loads(rollout.request(before))
        gaps = [gap.code for gap in rollout.gaps]
        again = report if case.get("brief") else await clerk.report("south")
        if storage is not None:
            storage.close()
    said = {
        "first": first,
        "second": loads(rollout.request(rollout.used - 1)),
        "gaps": gaps,
        "shelves": shelves,
        "attributes": attributes,
        "boxes": [report.boxes, again.boxes],
        "answer": loads(rollout.response(before) or b"null"),
    }
    rollout.close()
    store.close()
    return said


if __name__ == "__main__":
    cases = json.loads(Path(sys.argv[1]).read_text())
    results = {name: asyncio.run(go_on(case)) for name, case in cases.items()}
    Path(sys.argv[1] + ".out").write_bytes(dumps(results))
