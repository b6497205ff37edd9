"""What was measured, as tables."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from .calls import STAGES
from .disk import FILES, REWRITE, STORE
from .operations import SEED_OPERATIONS

MIB = 1_048_576
NOT_COUNTED = "not counted"


def mib(count: int | None, digits: int = 2) -> str:
    """Bytes as MiB; what the system does not count says so."""
    return NOT_COUNTED if count is None else f"{count / MIB:,.{digits}f}"


def seconds(value: float) -> str:
    """Seconds, to the tenth of a millisecond."""
    return f"{value:.4f}"


def milliseconds(value: float) -> str:
    """Seconds as milliseconds."""
    return f"{value * 1000:,.2f}"


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print every table of a result."""
    runs = result["runs"]
    for table in (_times(result, runs), _peaks(runs), _beside(runs), _disk(runs)):
        console.print(table)
    console.print(checked_line(runs))
    if "full" in result:
        _show_full(result["full"], console)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number == 0 else "right")
    return table


def _times(result: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> Table:
    title = f"{result['workload']} workload, {result['form']} form: medians of {result['repeats']}"
    table = _table(title, "Turns", "History (MiB)", *(f"{name.capitalize()} (s)" for name in SEED_OPERATIONS))
    for run in runs:
        table.add_row(
            str(run["turns"]), mib(run["bytes"]), *(seconds(run["seconds"][name]) for name in SEED_OPERATIONS)
        )
    return table


def _peaks(runs: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("Allocation", "Turns", *(f"{name.capitalize()} peak (MiB)" for name in SEED_OPERATIONS))
    for run in runs:
        table.add_row(str(run["turns"]), *(mib(run["peaks"][name]) for name in SEED_OPERATIONS))
    return table


def _beside(runs: Sequence[Mapping[str, Any]]) -> Table:
    names = (
        "Replay, streamed (s)",
        "Its peak (MiB)",
        "Replay, cached (s)",
        "To plain lists (s)",
        "Kept by turns (MiB)",
        "Text only (MiB)",
        "Bodies (MiB)",
    )
    table = _table("Beside them", "Turns", *names)
    for run in runs:
        streamed, cached, plain = (
            seconds(run["seconds"][name]) for name in ("replay, streamed", "replay, cached", "to plain lists")
        )
        times = (streamed, mib(run["peaks"]["replay, streamed"]), cached, plain)
        sizes = (mib(run[name]) for name in ("retained", "text_only", "body_bytes"))
        table.add_row(str(run["turns"]), *times, *sizes)
    return table


def _disk(runs: Sequence[Mapping[str, Any]]) -> Table:
    columns = ("Turns", "Way", "Written (MiB)", "By write calls (MiB)", "Kept (MiB)", "Median turn (ms)")
    table = _table("On disk: a checkpoint after each turn", *columns)
    for run in runs:
        for way in (STORE, REWRITE, FILES):
            told = run["checkpoints"][way]
            middle = statistics.median(told["seconds_of_each_turn"])
            sizes = (mib(told[name]) for name in ("disk", "handed_to_write", "kept"))
            table.add_row(str(run["turns"]), way, *sizes, milliseconds(middle))
    return table


def checked_line(runs: Sequence[Mapping[str, Any]]) -> str:
    """What was compared and found preserved."""
    last = runs[-1]["checked"]
    parts = [f"{where}: {', '.join(fields)}" for where, fields in last.items()]
    return f"Every field preserved, in all {len(runs)} sizes.\n  " + "\n  ".join(parts)


def _show_full(full: Mapping[str, Any], console: Console) -> None:
    one = full["one_call"]
    table = _table("One policy call (ms)", "Stage", *(f"turn {turn}" for turn in one["seconds_by_turn"]))
    for stage in STAGES:
        table.add_row(stage, *(milliseconds(call[stage]) for call in one["seconds_by_turn"].values()))
    table.add_row("sum", *(milliseconds(sum(call.values())) for call in one["seconds_by_turn"].values()))
    console.print(table)
    commit = one["commit"]
    console.print(
        f"The last request has {mib(one['request_bytes'])} MiB. SQLite commits: {commit['count']}, median "
        f"{milliseconds(commit['median'])} ms, longest {milliseconds(commit['most'])} ms; the rollout wrote "
        f"{mib(one['disk'])} MiB to the disk, evidence included."
    )
    table = _table(
        f"Rollouts at once, {full['turns']} turns each", "Rollouts", "Whole (s)", "Calls a second", "Call, median (ms)",
        "Call, 95 % (ms)", "Written (MiB)", "Most resident (MiB)",
    )  # fmt: skip
    for count, told in full["concurrent"].items():
        rate = f"{told['calls'] / told['seconds']:.1f}"
        table.add_row(
            count, f"{told['seconds']:.2f}", rate, milliseconds(told["call_median"]),
            milliseconds(told["call_95"]), mib(told["disk"]), mib(told["most_resident"], 0),
        )  # fmt: skip
    console.print(table)
    table = _table("With a reasoning item and a tool call in each turn", "History (MiB)", *full["items"]["seconds"])
    table.add_row(mib(full["items"]["bytes"]), *map(seconds, full["items"]["seconds"].values()))
    console.print(table)
    table = _table("Resident memory after each step (MiB)", *full["resident"]["after"], "at most")
    table.add_row(*(mib(value, 0) for value in full["resident"]["after"].values()), mib(full["resident"]["most"], 0))
    console.print(table)
    if "agent" in full:
        console.print(_agent(full["agent"]))


def _agent(agent: Mapping[str, Any]) -> Table:
    table = _table("A NOOA agent", "", *(f"embed={embed!r}" for embed in agent))
    told = list(agent.values())
    table.add_row("policy calls", *(str(each["calls"]) for each in told))
    for name in told[0]["seconds"]:
        table.add_row(f"{name} (s)", *(seconds(each["seconds"][name]) for each in told))
    for name in ("nooa_database", "turnkeep_store", "json_snapshot", "disk", "most_resident"):
        shown = {"disk": "written to the disk"}.get(name, name.replace("_", " "))
        table.add_row(f"{shown} (MiB)", *(mib(each[name]) for each in told))
    return table
