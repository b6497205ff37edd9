"""The table that `turnkeep demo` ends with."""

import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_PLACES = {
    "nooa-sqlite": "NOOA's SQLite storage",
    "nooa-snapshot": "NOOA's JSON snapshot",
    "turnkeep-store": "turnkeep's own store",
}


def print_report(report: dict[str, Any], out: "Console") -> None:
    """Print what happened: the turns, the kill, the three replays, the broken turn, and where to look next."""
    from rich.table import Table

    out.print()
    turns = Table(title="The rollout", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("turn", "prompt", "generated", "log prob", "experts"):
        turns.add_column(name, justify="right", header_style="dim", no_wrap=True)
    turns.add_column("parts", header_style="dim")
    turns.add_column("")
    for row in report["rows"]:
        mean = row["mean_log_prob"]
        turns.add_row(
            str(row["turn"]),
            str(row["prompt_tokens"]),
            str(row["generation_tokens"]),
            "-" if mean is None else f"{mean:.3f}",
            "×".join(map(str, row["experts"] or ["-"])),
            _count(row["parts"]),
            "[red]◀ kill[/]" if row["turn"] == report["killed_at_turn"] else "",
        )
    out.print(turns)
    out.print()
    _print_kill(report, out)
    _print_replays(report, out)
    broken = report["broken"]
    said = [item.get("content") or f"{item.get('name')}(…)" for item in broken["portable_items"]]
    out.print(f"[bold]Edited on purpose[/], turn {broken['turn']} replays by its public parts alone, and says so:")
    out.print(f"  {len(said)} plain items, no token ids, gap [yellow]{broken['gaps'][0]}[/]\n")
    store, name = report["store_path"], report["rollout"]
    out.print("[bold]Look further[/]")
    for command in (f"show {name}", f"verify {name}", "ls"):
        out.print(f"  {_own_name()} {command} --store {store}", soft_wrap=True)


def _own_name() -> str:
    """How a person calls this command from here: by name where it is on PATH, else by where it lies."""
    return "turnkeep" if shutil.which("turnkeep") else os.path.relpath(sys.argv[0])


def _count(kinds: list[str]) -> str:
    """`reasoning text 2 calls`."""
    calls = kinds.count("tool_call")
    words = [kind for kind in kinds if kind != "tool_call"]
    return " ".join([*words, *([f"{calls} calls"] if calls > 1 else ["call"] if calls else [])])


def _print_kill(report: dict[str, Any], out: "Console") -> None:
    flight = "one call in flight" if report["in_flight_at_kill"] else "no call in flight"
    repeated = report["policy_calls_repeated"]
    ok = "green" if report["resumed"] and not repeated else "red"
    out.print(
        f"[bold]Killed[/] with SIGKILL after {report['killed_after_seconds']:.2f} s (seed {report['seed']}): "
        f"{report['killed_at_turn']} turns kept, {flight}."
    )
    out.print(
        f"[bold]Resumed[/] by re-run: [{ok}]{repeated} recorded calls repeated[/], "
        f"{report['policy_calls']} calls in all, result {report['result']}."
    )
    contiguous = "[green]yes[/]" if report["contiguous"] else "[red]no[/]"
    out.print(f"[bold]Each prompt extends[/] the one before and its generation, across the kill: {contiguous}.\n")


def _print_replays(report: dict[str, Any], out: "Console") -> None:
    from rich.table import Table

    table = Table(title="Replayed from", title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("")
    for name in ("items equal", "arrays equal", "gaps"):
        table.add_column(name, justify="right", header_style="dim")
    table.add_column("")
    for source, replayed in report["replays"].items():
        table.add_row(
            _PLACES[source],
            f"{replayed['items']} of {replayed['of_items']}",
            f"{replayed['arrays']} of {replayed['of_arrays']}",
            ", ".join(replayed["gaps"]) or "none",
            "[green]exact[/]" if report["stores"][source] else "[red]differs[/]",
        )
    out.print(table)
    found = len(report["findings"])
    verdict = f"[red]{found} findings[/]" if found else "[green]every digest holds, every turn is its evidence[/]"
    out.print(f"Verified: {verdict}.\n")
