"""What the seed leaves out: HTTP, commits, a NOOA agent, rollouts at once, more items, resident memory."""

from dataclasses import replace
from typing import Any

from .agent import measure_agent
from .calls import measure_concurrent, measure_one_call
from .fresh import most_resident, resident, run_fresh
from .operations import FORMS, Tell, capture_all, replay, time_operations
from .workload import Workload

CONCURRENT = 8


def measure_full(
    workload: Workload, turns: int, form: str, repeats: int, folder: str | None, tell: Tell, *, agent: bool = True
) -> dict[str, Any]:
    """Each of the parts, by name; `agent=False` leaves NOOA out."""
    items = time_operations(replace(workload, kind="items").bodies(turns), FORMS[form], repeats, tell)
    tell(f"{turns} turns, {form}: resident memory")
    measured = {
        "turns": turns,
        "one_call": measure_one_call(workload, turns, repeats, folder, tell),
        "concurrent": measure_concurrent(workload, turns, CONCURRENT, folder, tell),
        "items": {"seconds": items.medians(), "bytes": items.size, "checked": items.checked},
        "resident": run_fresh(resident_memory, workload, turns, form),
    }
    if agent:
        measured["agent"] = measure_agent(replace(workload, kind="agent"), turns, folder, tell)
    return measured


def resident_memory(workload: Workload, turns: int, form: str) -> dict[str, Any]:
    """Resident bytes after each operation, all results kept, in a fresh process."""
    given = FORMS[form]
    replay(given.restore(given.snapshot(capture_all(workload.bodies(1)))))
    after = {"what is imported": resident()}
    bodies = workload.bodies(turns)
    after["the bodies"] = resident()
    turns_kept = capture_all(bodies)
    after["capture"] = resident()
    snapshot = given.snapshot(turns_kept)
    after["snapshot"] = resident()
    restored = given.restore(snapshot)
    after["restore"] = resident()
    sent = replay(restored)
    after["replay"] = resident()
    return {"after": after, "most": most_resident(), "kept": len(bodies) + len(turns_kept) + len(restored) + len(sent)}
