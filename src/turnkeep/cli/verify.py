"""`turnkeep verify`."""

from dataclasses import asdict
from typing import Any

from turnkeep.cli.output import EXIT_FOUND, console, print_json, printable, watched
from turnkeep.cli.several import is_gone
from turnkeep.errors import TurnkeepError, UnknownRollout
from turnkeep.rollout.verify import Finding, corrupt, verify_rollout
from turnkeep.rollout.view import RolloutView
from turnkeep.store.base import Store
from turnkeep.store.open import open_store


def verify_store(url: str, rollout: str | None, *, as_json: bool) -> int:
    """Verify one rollout, or all, and print what was found. Returns the exit code."""
    with open_store(url, create=False) as store:
        damage: list[str] = getattr(store, "check_file", list)()
        names = [rollout] if rollout is not None else store.rollouts()
        verified = ((name, _verify(store, name)) for name in watched(names, len(names), "verifying", quiet=as_json))
        results = {name: found for name, found in verified if found is not None}
        if rollout is not None and not results:
            raise UnknownRollout(f"{url} holds no such rollout", rollout=rollout)
    sound = not damage and not any(findings for _, findings in results.values())
    if as_json:
        rollouts = [
            {"rollout": name, **counts, "findings": [asdict(finding) for finding in findings]}
            for name, (counts, findings) in results.items()
        ]
        print_json({"sound": sound, "file": damage, "rollouts": rollouts})
    else:
        _print_table(results, damage)
    return 0 if sound else EXIT_FOUND


def _verify(store: Store, name: str) -> tuple[dict[str, int], list[Finding]] | None:
    """What there is and what is wrong with it; None where there is no such rollout (any more)."""
    counts, findings = {"turns": 0, "calls": 0, "turns_without_evidence": 0}, list[Finding]()
    try:
        view = RolloutView(store, name)
        without = sum(view.call_of_turn(number) is None for number in range(view.turn_count))
        counts = {"turns": view.turn_count, "calls": len(view.calls), "turns_without_evidence": without}
        findings += verify_rollout(view)
    except TurnkeepError as error:
        findings.append(corrupt(error))
    return None if findings and is_gone(store, name) else (counts, findings)


def _print_table(results: dict[str, tuple[dict[str, int], list[Finding]]], damage: list[str]) -> None:
    from rich.markup import escape
    from rich.table import Table

    out = console()
    table = Table("rollout", "turns", "calls", "verdict", box=None, pad_edge=False, header_style="bold")
    for name, (counts, findings) in results.items():
        verdict = f"[red]{len(findings)} found[/]" if findings else _sound(counts)
        table.add_row(escape(printable(name)), str(counts["turns"]), str(counts["calls"]), verdict)
    out.print(table)
    for name, (_, findings) in results.items():
        for finding in findings:
            where = ", ".join(f"{key} {value}" for key, value in _places(finding).items())
            out.print(f"[red]{finding.rule}[/] {escape(printable(name))} {where}: {escape(printable(finding.message))}")
    for line in damage:
        out.print(f"[red]damaged file[/]: {escape(line)}")


def _sound(counts: dict[str, int]) -> str:
    """The verdict on a rollout in which nothing was found: how much of it there was evidence to hold it against."""
    without = counts["turns_without_evidence"]
    if not counts["calls"]:
        return "[green]whole, no evidence[/]"
    return f"[green]whole, no evidence of {without} turns[/]" if without else "[green]exact[/]"


def _places(finding: Finding) -> dict[str, Any]:
    told = asdict(finding)
    return {name: told[name] for name in ("turn", "call", "item", "field", "index") if told[name] is not None}
