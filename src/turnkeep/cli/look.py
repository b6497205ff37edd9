"""`turnkeep ls`, `show` and `replay`: looking at what a store holds."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from turnkeep.cli.output import console, print_bytes, print_json, printable, shorten
from turnkeep.cli.several import is_gone
from turnkeep.errors import TurnkeepError
from turnkeep.history.projection import project
from turnkeep.rollout.conversation import whole_history
from turnkeep.rollout.view import RolloutView
from turnkeep.store.base import Store
from turnkeep.store.open import open_store
from turnkeep.wire.json import dumps

if TYPE_CHECKING:
    from turnkeep.history.turn import Part
    from turnkeep.report.measure import Seen

_BARS = "▁▂▃▄▅▆▇█"


def list_store(url: str, *, as_json: bool) -> None:
    """Print the rollouts of a store."""
    with open_store(url, create=False) as store:
        rows = [_summary_or_damage(store, name) for name in store.rollouts()]
        rows = [row for row in rows if "error" not in row or not is_gone(store, row["rollout"])]
    if as_json:
        for row in rows:
            print_json(row)
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, justify in (
        ("rollout", "left"),
        ("turns", "right"),
        ("calls", "right"),
        ("state", "left"),
        ("gaps", "left"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for row in rows:
        colour = "green" if row["state"] == "good" else "red"
        state = f"[{colour}]{escape(printable(row['state']))}[/]"
        gaps = ", ".join(gap["code"] for gap in row.get("gaps", [])) or "-"
        numbers = (str(row.get(name, "?")) for name in ("turns", "calls"))
        table.add_row(escape(printable(row["rollout"])), *numbers, state, escape(printable(gaps)))
    console().print(table if rows else "no rollouts yet")


def _summary_or_damage(store: Store, name: str) -> dict[str, Any]:
    try:
        return _summary(RolloutView(store, name))
    except TurnkeepError as error:
        return {"rollout": name, "state": f"damaged: {error.message}", "error": error.to_json()}


def _summary(view: RolloutView) -> dict[str, Any]:
    state = "good" if view.gradable else f"ungradable: {(view.failure or {}).get('type')}"
    if any(call.in_flight for call in view.calls):
        state = "a call in flight" if view.gradable else state
    return {
        "rollout": view.id,
        "begun": view.begun,
        "scope": view.scope,
        "turns": view.turn_count,
        "calls": len(view.calls),
        "used": view.used,
        "max_policy_calls": view.max_policy_calls,
        "gradable": view.gradable,
        "state": state,
        "gaps": [gap._asdict() for gap in view.gaps],
    }


def show_rollout(url: str, rollout: str, *, as_json: bool) -> None:
    """Print one rollout."""
    from turnkeep.check.doctor import check_rollout
    from turnkeep.check.finding import Severity
    from turnkeep.report.measure import recorded, see_turns, unsettled

    with open_store(url, create=False) as store:
        view = RolloutView(store, rollout)
        summary = _summary(view)
        turns = [_turn_summary(view, seen) for seen in see_turns(view)]
        calls = [
            {"call": call.number, "in_flight": call.in_flight, "failure": call.failure, "attempts": len(call.attempts)}
            for call in view.calls
            if call.turn is None or call.failure or call.attempts
        ]
        severities = [finding.severity for finding in check_rollout(view)]
        tools, failures = recorded(view.tools), recorded(lambda: view.failures)
        before = list(unsettled(view))
        rest = {"failure": view.failure, "difference": view.difference, "failures": failures}
    found = {severity.value: severities.count(severity) for severity in Severity}
    if as_json:
        lists = {"turn_list": turns, "unusual_calls": calls, "tools": tools, "findings": found}
        print_json({**summary, **rest, **lists})
    else:
        _print_rollout(summary, turns, calls, rest, before, found)


def _turn_summary(view: RolloutView, seen: "Seen") -> dict[str, Any]:
    """A turn in one object. Log probs are in nats; `log_probs` is a line of them as `sparkline` draws it."""
    from turnkeep.report.measure import kinds_of, why_portable

    if seen.turn is None:
        return {"turn": seen.number, "error": seen.error.to_json() if seen.error is not None else None}
    why = why_portable(seen.turn, view.scope)
    numbers = seen.numbers
    return {
        "turn": seen.number,
        "call": seen.call,
        "finish_reason": seen.turn.finish_reason,
        "native": why is None,
        "why_portable": why,
        "kinds": kinds_of(seen.turn),
        "parts": [_part_text(part) for part in seen.turn.parts],
        "prompt_tokens": numbers.prompt,
        "shared_tokens": numbers.shared,
        "generation_tokens": numbers.generated,
        "mean_log_prob": numbers.mean_log_prob,
        "least_log_prob": numbers.least_log_prob,
        "log_probs": None if numbers.log_probs is None else sparkline(numbers.log_probs.tolist()),
        "experts": numbers.experts,
    }


def _part_text(part: "Part") -> dict[str, str]:
    from turnkeep.report.measure import kind_of

    kind = kind_of(part)
    if part.kind == "tool_call":
        return {"kind": kind, "text": f"{part.name}({part.arguments})"}
    hosted = kind == "hosted" and part.native is not None
    return {"kind": kind, "text": str(part.native["type"]) if hosted and part.native is not None else part.text}


def sparkline(log_probs: Sequence[float], width: int = 20) -> str:
    """Log probs in nats as a line of at most `width` bars: the taller, the less likely the least likely token of a bar.

    The lowest bar begins at probability 1, the highest at 1 in 22,000 (10 nats), by the square root in between.
    """
    count = min(width, len(log_probs))
    ends = [len(log_probs) * bar // count for bar in range(count + 1)] if count else [0]
    least = (min(log_probs[start:end]) for start, end in pairwise(ends))
    return "".join(_BARS[int(math.sqrt(min(1.0, max(0.0, -each / 10))) * (len(_BARS) - 1))] for each in least)


def _print_rollout(
    summary: dict[str, Any],
    turns: list[dict[str, Any]],
    calls: list[dict[str, Any]],
    rest: dict[str, Any],
    before: list[str],
    found: dict[str, int],
) -> None:
    from rich.markup import escape

    out = console()
    state = escape(printable(summary["state"]))
    out.print(f"[bold]{escape(summary['rollout'])}[/]  {state}  begun {summary['begun'][:19]}")
    budget = "no bound" if summary["max_policy_calls"] is None else f"of {summary['max_policy_calls']}"
    out.print(f"scope {escape(printable(str(summary['scope'])))}")
    out.print(f"{summary['used']} policy calls charged ({budget})\n")
    out.print(f"[bold]turn   prompt     gen  mean lp  {'log probs':<20}{'experts':>13}  replay[/]")
    for turn in turns:
        _print_turn(turn)
    if any(turn.get("log_probs") for turn in turns):
        out.print("[dim]a bar shows the least likely of its tokens: ▁ from probability 1, █ 1 in 22,000 or less[/]")
    out.print()
    for call in calls:
        what = "in flight" if call["in_flight"] else (call["failure"] or {}).get("message") or "answered, no turn"
        what += f"; {call['attempts']} failed attempts" if call["attempts"] else ""
        out.print(f"[yellow]call {call['call']}[/]: {escape(shorten(printable(what), 160))}")
    for gap in summary["gaps"]:
        out.print(f"[yellow]gap[/] {escape(printable(gap['code']))}: {escape(printable(str(gap['detail'])))}")
    for each in before:
        out.print(f"[yellow]besides[/] {escape(shorten(printable(each), 160))}")
    for name in ("failure", "difference"):
        if rest[name]:
            out.print(f"[red]{name}[/]: {escape(printable(dumps(rest[name]).decode()))}")
    told = ", ".join(f"{count} {name}{'s' if count > 1 else ''}" for name, count in found.items() if count)
    out.print(
        f"[{'red' if found['error'] else 'yellow'}]findings[/]: {told} (turnkeep check)" if told else "no findings"
    )


def _print_turn(turn: dict[str, Any]) -> None:
    """A line of numbers, and a line for each part."""
    from rich.text import Text

    out = console()
    if "error" in turn:
        message = printable(turn["error"]["message"])
        out.print(Text.assemble(f"{turn['turn']:>4}  ", ("damaged", "red"), f"  {message}"))
        return
    prompt, generated, mean = (turn[name] for name in ("prompt_tokens", "generation_tokens", "mean_log_prob"))
    experts = turn["experts"]
    shape = "x".join(map(str, experts)) if isinstance(experts, list) else str(experts or "-")
    numbers = f"{turn['turn']:>4}{_dash(prompt):>9}{_dash(generated):>8}{'-' if mean is None else f'{mean:.3f}':>9}"
    replay = ("native", "green") if turn["native"] else ("portable", "yellow")
    out.print(Text.assemble(numbers, f"  {turn['log_probs'] or '':<20}{shape:>13}  ", replay))
    for part in turn["parts"]:
        text = shorten(printable(part["text"]), 400)
        out.print(Text.assemble((f"      {part['kind']:<10}", "dim"), text), no_wrap=True, overflow="ellipsis")
    if not turn["native"]:
        out.print(Text(f"      why: {printable(turn['why_portable'])}", style="yellow"))


def _dash(count: int | None) -> str:
    return "-" if count is None else f"{count}"


def replay_rollout(url: str, rollout: str, scope: str | None, call: int | None, *, as_json: bool) -> None:
    """Print the request input that a rollout's history makes for a caller of `scope`."""
    with open_store(url, create=False) as store:
        view = RolloutView(store, rollout)
        request = project(whole_history(view, call), scope)
    codes = [gap.code for gap in request.gaps]
    if as_json:
        print_json({"input": request.input, "instructions": request.instructions, "gaps": codes})
        return
    print_bytes(request.input_text())
    for code in codes:
        console(stderr=True).print(f"[yellow]gap[/] {code}")
