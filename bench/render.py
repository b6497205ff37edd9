"""Puts the tables of bench/results into bench/README.md, between its markers, beside the seed's numbers."""

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MIB = 1_048_576
OPERATIONS = ("capture", "snapshot", "restore", "replay")
STORE, REWRITE, FILES = "SQLite store, a turn a transaction", "whole history, each turn", "a file a turn"

SEED: Mapping[int, tuple[float, ...]] = {
    1: (0.99, 0.076, 0.060, 0.108, 0.048, 7.61, 8.13, 11.75, 8.13),
    8: (7.91, 0.663, 0.549, 0.915, 0.511, 32.45, 41.77, 65.60, 36.60),
    32: (31.62, 2.707, 2.843, 3.717, 1.949, 117.64, 165.32, 250.22, 134.23),
}
"""The seed's tables: turns, then MiB of history, seconds of the four operations, MiB at their peaks."""


def result(name: str) -> dict[str, Any]:
    """One of the results, with its runs by their numbers of turns."""
    found: dict[str, Any] = json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return {**found, "runs": {run["turns"]: run for run in found["runs"]}}


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table: numbers stand to the right, the first column and those of words to the left."""
    names = list(columns)
    words = [number == 0 or name in ("Form", "Checkpoint") for number, name in enumerate(names)]
    lines = [names, ["---" if left else "---:" for left in words], *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def mib(count: int | None) -> str:
    """Bytes as MiB."""
    return "not counted" if count is None else f"{count / MIB:,.2f}"


def seconds(value: float) -> str:
    """Seconds with as many digits as the seed's."""
    return f"{value:.3f}" if value >= 0.01 else f"{value:.4f}"


def milliseconds(value: float) -> str:
    """Seconds as milliseconds."""
    return f"{value * 1000:,.1f}"


def times(workload: str = "seed") -> str:
    """The seed's first table, and ours below each of its rows."""
    rows = []
    forms = {"packed": result(f"{workload}-packed"), "JSON": result(f"{workload}-json")}
    for turns, (size, *numbers) in SEED.items():
        if workload == "seed":
            rows.append([str(turns), "the seed's", f"{size:.2f}", *(f"{value:.3f}" for value in numbers[:4])])
        for form, told in forms.items():
            run = told["runs"][turns]
            rows.append([str(turns), form, mib(run["bytes"]), *(seconds(run["seconds"][name]) for name in OPERATIONS)])
    return table(("Turns", "Form", "History (MiB)", *(f"{name.capitalize()} (s)" for name in OPERATIONS)), rows)


def peaks(workload: str = "seed") -> str:
    """The seed's second table, and ours below each of its rows."""
    rows = []
    for turns, numbers in SEED.items():
        if workload == "seed":
            rows.append([str(turns), "the seed's", *(f"{value:.2f}" for value in numbers[5:]), ""])
        for form in ("packed", "json"):
            told = result(f"{workload}-{form}")["runs"][turns]["peaks"]
            sizes = [mib(told[name]) for name in (*OPERATIONS, "replay, streamed")]
            rows.append([str(turns), "JSON" if form == "json" else form, *sizes])
    return table(
        ("Turns", "Form", *(f"{name.capitalize()} (MiB)" for name in OPERATIONS), "Streamed replay (MiB)"), rows
    )


def beside() -> str:
    """What the seed tells in words: text only, what captured turns hold; and replay streamed and cached."""
    rows = [["32", "the seed's", "0.29", "113.59", "", "", ""]]
    for turns in SEED:
        for form in ("packed", "json"):
            run = result(f"seed-{form}")["runs"][turns]
            taken = (run["seconds"][name] for name in ("replay, streamed", "replay, cached", "to plain lists"))
            sizes = (mib(run["text_only"]), mib(run["retained"]))
            rows.append([str(turns), "JSON" if form == "json" else form, *sizes, *map(seconds, taken)])
    names = ("Text only (MiB)", "Kept by captured turns (MiB)", "Replay streamed (s)", "Replay cached (s)")
    return table(("Turns", "Form", *names, "To plain lists (s)"), rows)


def disk() -> str:
    """Bytes written by a checkpoint after each of 32 turns, in every workload."""
    rows = [["seed", "whole history as JSON, each turn", "521.80 (calculated)", "", "31.62", ""]]
    for workload in ("seed", "growing", "dense"):
        for way, form, shown in (
            (STORE, "packed", STORE),
            (FILES, "packed", "a packed file a turn"),
            (REWRITE, "packed", "whole history packed, each turn"),
            (REWRITE, "json", "whole history as JSON, each turn"),
        ):
            told = result(f"{workload}-{form}")["runs"][32]["checkpoints"][way]
            middle = milliseconds(statistics.median(told["seconds_of_each_turn"]))
            sizes = [mib(told[name]) for name in ("disk", "handed_to_write", "kept")]
            rows.append([f"{workload}, ours" if workload == "seed" else workload, shown, *sizes, middle])
    columns = ("Written (MiB)", "Handed to write calls (MiB)", "Kept (MiB)", "A turn, median (ms)")
    return table(("Workload", "Checkpoint", *columns), rows)


def one_call() -> str:
    """Where the milliseconds of one policy call go."""
    told = result("seed-packed")["full"]["one_call"]["seconds_by_turn"]
    rows = [[stage, *(milliseconds(call[stage]) for call in told.values())] for stage in next(iter(told.values()))]
    rows.append(["**sum**", *(milliseconds(sum(call.values())) for call in told.values())])
    return table(("Stage (ms)", *(f"Turn {turn}" for turn in told)), rows)


def commits() -> str:
    """The commits of the policy calls, in a sentence."""
    told = result("seed-packed")["full"]["one_call"]
    commit = told["commit"]
    return (
        f"The request of turn 32 has {mib(told['request_bytes'])} MiB. Of {commit['count']} commits the median took "
        f"{milliseconds(commit['median'])} ms and the longest {milliseconds(commit['most'])} ms. A rollout, evidence "
        f"included, wrote {mib(told['disk'])} MiB to the disk."
    )


def together() -> str:
    """Rollouts at once."""
    rows = [
        [
            count,
            f"{told['seconds']:.2f}",
            f"{told['calls'] / told['seconds']:.1f}",
            milliseconds(told["call_median"]),
            milliseconds(told["call_95"]),
            mib(told["disk"]),
            f"{told['most_resident'] / MIB:,.0f}",
        ]
        for count, told in result("seed-packed")["full"]["concurrent"].items()
    ]
    columns = ("Whole (s)", "Calls a second", "A call, median (ms)", "95 % of calls (ms)", "Written (MiB)")
    return table(("Rollouts at once", *columns, "Most resident (MiB)"), rows)


def agent() -> str:
    """A NOOA agent's checkpoint."""
    told = result("seed-packed")["full"]["agent"]
    rows = [[f"{name} (s)", *(seconds(each["seconds"][name]) for each in told.values())] for name in _steps(told)]
    for name, shown in (
        ("nooa_database", "NOOA's database"),
        ("json_snapshot", "JSON snapshot"),
        ("turnkeep_store", "turnkeep's store, evidence included"),
        ("disk", "written to the disk by the run and both snapshots"),
        ("most_resident", "most resident, NOOA included, before any restore"),
    ):
        rows.append([f"{shown} (MiB)", *(mib(each[name]) for each in told.values())])
    return table(("", *(f"`embed={name!r}`" for name in told)), rows)


def _steps(told: Mapping[str, Any]) -> Iterator[str]:
    yield from next(iter(told.values()))["seconds"]


def resident() -> str:
    """Resident memory after each step, all results kept, and the workload with more items."""
    told = result("seed-packed")["full"]
    after = told["resident"]["after"]
    shown = table(("Resident after (MiB)", *after), [["", *(f"{value / MIB:,.0f}" for value in after.values())]])
    items = told["items"]
    more = table(
        ("Reasoning and tool items", "History (MiB)", *(f"{name} (s)" for name in OPERATIONS)),
        [["32 turns, packed", mib(items["bytes"]), *(seconds(items["seconds"][name]) for name in OPERATIONS)]],
    )
    return f"{shown}\n\n{more}"


def machine() -> str:
    """What it was measured on, in a sentence."""
    told = result("seed-packed")["machine"]
    return (
        f"{told['system']}, {told['processors']} processors, Python {told['python']}, NumPy {told['numpy']}, orjson "
        f"{told['orjson']}, SQLite {told['sqlite']}; medians of {result('seed-packed')['repeats']}."
    )


TABLES = {
    "machine": machine,
    "times": times,
    "peaks": peaks,
    "beside": beside,
    "disk": disk,
    "growing": lambda: times("growing"),
    "dense": lambda: times("dense"),
    "one call": one_call,
    "commits": commits,
    "together": together,
    "agent": agent,
    "resident": resident,
}


def render(text: str) -> str:
    """The text with each table between its markers made anew."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
        head, found, rest = text.partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise SystemExit(f"README.md lacks the markers of {name}")
        text = f"{head}{begin}{make()}{end}{tail}"
    return text


if __name__ == "__main__":
    readme = HERE / "README.md"
    readme.write_text(render(readme.read_text(encoding="utf-8")), encoding="utf-8")
