"""`turnkeep check`."""

from typing import TYPE_CHECKING, Any, NamedTuple

from turnkeep.check.doctor import check_stored, is_fit
from turnkeep.check.finding import ERROR, NOTE, PROFILES, WARNING, Finding, Severity
from turnkeep.cli.output import EXIT_FOUND, console, print_json, printable, watched
from turnkeep.cli.several import is_gone
from turnkeep.errors import UnknownRollout
from turnkeep.store.open import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

_COLOURS = {ERROR: "red", WARNING: "yellow", NOTE: "cyan"}
_ORDER = (ERROR, WARNING, NOTE)
_LISTED = 10
"""Rollouts that are named where several are not fit."""


class Group(NamedTuple):
    """Findings of one rule that say the same kind of thing: the first stands for all."""

    first: Finding
    findings: int
    rollouts: int


def check_store(
    url: str,
    names: "Sequence[str]",
    profile: str | None,
    *,
    vocabulary: int | None,
    experts: int | None,
    as_json: bool,
) -> int:
    """Check the named rollouts, or all, and print what was found. Returns the exit code."""
    with open_store(url, create=False) as store:
        chosen = list(dict.fromkeys(names)) or store.rollouts()
        found: dict[str, list[Finding]] = {}
        for name in watched(chosen, len(chosen), "checking", quiet=as_json):
            try:
                findings = check_stored(store, name, profile, vocabulary=vocabulary, experts=experts)
            except UnknownRollout:
                if names or not is_gone(store, name):
                    raise
                continue
            if names or is_fit(findings) or not is_gone(store, name):
                found[name] = findings
    fit = all(map(is_fit, found.values()))
    if as_json:
        rollouts = [
            {"rollout": name, "fit": is_fit(findings), "findings": [finding.to_json() for finding in findings]}
            for name, findings in found.items()
        ]
        print_json({"fit": fit, "profile": profile, "rollouts": rollouts})
    else:
        _print_groups(group(finding for findings in found.values() for finding in findings), len(found) > 1)
        _print_verdict(found, profile)
    return 0 if fit else EXIT_FOUND


def group(findings: "Iterable[Finding]") -> list[Group]:
    """Findings folded: those of one rule, and for gaps of one code, are a group; the gravest groups first."""
    folded: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        kind = finding.message.partition(":")[0] if finding.rule == "gap" else ""
        folded.setdefault((finding.rule, kind), []).append(finding)
    groups = [Group(each[0], len(each), len({finding.rollout for finding in each})) for each in folded.values()]
    return sorted(groups, key=lambda each: _ORDER.index(each.first.severity))


def _print_groups(groups: list[Group], several: bool) -> None:
    from rich.text import Text

    out = console()
    for each in groups:
        finding = each.first
        told = f"  {each.findings} times" if each.findings > 1 else ""
        told += f" in {each.rollouts} rollouts" if each.rollouts > 1 else ""
        colour = _COLOURS[finding.severity]
        out.print(Text.assemble((f"{finding.severity:<9}", colour), (finding.rule, "bold"), told))
        places = (("rollout", finding.rollout if several else None), *_places(finding))
        where = ", ".join(f"{name} {value}" for name, value in places if value is not None)
        _print_below(out, f"{'first at' if told else 'at'} {where}" if where else "")
        _print_below(out, finding.message)
        _print_below(out, finding.todo, "dim")
    if groups:
        out.print()


def _print_below(out: "Console", text: str, style: str = "") -> None:
    """Text below a heading, indented, wrapped at the terminal's width."""
    from rich.padding import Padding
    from rich.text import Text

    if text:
        out.print(Padding(Text(printable(text), style=style), (0, 0, 0, 9), expand=False))


def _places(finding: Finding) -> tuple[tuple[str, Any], ...]:
    call = finding.call if finding.turn is None else None
    return (
        ("turn", finding.turn),
        ("policy call", call),
        ("item", finding.item),
        ("field", finding.field),
        ("index", finding.index),
    )


def _print_verdict(found: dict[str, list[Finding]], profile: str | None) -> None:
    from rich.text import Text

    out = console()
    for_whom = {None: "trained on", "atif": "exported as strict ATIF"}.get(profile, f"trained on by {profile}")
    unfit = [name for name, findings in found.items() if not is_fit(findings)]
    counts = [(_count(found, severity), severity) for severity in _ORDER]
    told = ", ".join(f"{count} {severity}{'s' * (count > 1)}" for count, severity in counts if count)
    if not found:
        out.print("no rollouts yet")
        return
    several = f"{len(unfit)} of {len(found)} rollouts" if unfit else f"all {len(found)} rollouts"
    who = "the rollout" if len(found) == 1 else several
    can, colour = ("cannot be", "red") if unfit else ("can be", "green")
    out.print(Text(f"{printable(who)} {can} {for_whom}: {told or 'nothing found'}", style=colour))
    for name in unfit[:_LISTED] if len(found) > 1 else ():
        _print_below(out, name)
    if len(found) > 1 and len(unfit) > _LISTED:
        _print_below(out, f"and {len(unfit) - _LISTED} more")


def _count(found: dict[str, list[Finding]], severity: Severity) -> int:
    return sum(finding.severity is severity for findings in found.values() for finding in findings)


def list_rules(profile: str | None, *, as_json: bool) -> None:
    """Print the rules, those of one profile where it is given: name, what it holds, severity, source, what to do."""
    from turnkeep.check.rules import RULES

    rules = [(rule, severity) for rule in RULES if (severity := rule.severities.of(profile)) is not None]
    if as_json:
        for rule, _ in rules:
            severities = {name or "all": rule.severities.of(name) for name in (None, *PROFILES)}
            told = {"rule": rule.name, "says": rule.says, "todo": rule.todo, "source": rule.source}
            print_json({**told, "severities": severities})
        return
    from rich.text import Text

    out = console()
    for rule, severity in rules:
        out.print(Text.assemble((f"{severity:<9}", _COLOURS[severity]), (rule.name, "bold")))
        _print_below(out, rule.says)
        _print_below(out, f"{rule.source}.", "dim")
