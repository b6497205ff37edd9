"""`turnkeep ls`, `show` and `replay`: looking at what a store holds."""

from typing import Any

from turnkeep.cli.output import console, print_bytes, print_json, printable, shorten
from turnkeep.errors import TurnkeepError, UnknownRollout
from turnkeep.history.agreement import disagreement
from turnkeep.history.projection import project
from turnkeep.history.turn import Turn
from turnkeep.rollout.view import RolloutView
from turnkeep.store.open import open_store
from turnkeep.wire.json import dumps


def list_store(url: str, *, as_json: bool) -> None:
    """Print the rollouts of a store."""
    with open_store(url, create=False) as store:
        rows = [_summary(store, name) for name in store.rollouts()]
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
        state = f"[{colour}]{escape(row['state'])}[/]"
        gaps = ", ".join(gap["code"] for gap in row.get("gaps", [])) or "-"
        table.add_row(
            escape(row["rollout"]), str(row.get("turns", "?")), str(row.get("calls", "?")), state, escape(gaps)
        )
    console().print(table if rows else "no rollouts yet")


def _summary(store: Any, name: str) -> dict[str, Any]:
    try:
        view = RolloutView(store, name)
    except TurnkeepError as error:
        return {"rollout": name, "state": f"damaged: {error.message}", "error": error.to_json()}
    state = "good" if view.gradable else f"ungradable: {(view.failure or {}).get('type')}"
    if any(call.in_flight for call in view.calls):
        state = "a call in flight" if view.gradable else state
    return {
        "rollout": name,
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
    with open_store(url, create=False) as store:
        view = RolloutView(store, rollout)
        summary = _summary(store, rollout)
        turns = [_turn_summary(view, number) for number in range(view.turn_count)]
        calls = [
            {"call": call.number, "in_flight": call.in_flight, "failure": call.failure, "attempts": len(call.attempts)}
            for call in view.calls
            if call.turn is None or call.failure or call.attempts
        ]
        tools = view.tools()
        rest = {"failure": view.failure, "difference": view.difference, "failures": view.failures}
    if as_json:
        print_json({**summary, **rest, "turn_list": turns, "unusual_calls": calls, "tools": tools})
    else:
        _print_rollout(summary, turns, calls, rest)


def _turn_summary(view: RolloutView, number: int) -> dict[str, Any]:
    try:
        turn = view.turn(number)
    except TurnkeepError as error:
        return {"turn": number, "error": error.to_json()}
    why = disagreement(turn)
    return {
        "turn": number,
        "call": view.call_of_turn(number),
        "finish_reason": turn.finish_reason,
        "native": why is None,
        "why_portable": why,
        "parts": [_part_text(part) for part in turn.parts],
        **_tokens(turn),
    }


def _part_text(part: Any) -> dict[str, str]:
    if part.kind == "tool_call":
        return {"kind": "call", "text": f"{part.name}({part.arguments})"}
    if part.kind == "text" and not part.text and part.native is not None and part.native.get("type") != "message":
        return {"kind": "hosted", "text": str(part.native["type"])}
    return {"kind": part.kind, "text": part.text}


def _tokens(turn: Turn) -> dict[str, Any]:
    """How many tokens the turn has, its mean log prob in nats, and the shape of its routed experts."""
    for part in reversed(turn.parts):
        if part.native is None or not part.native.has_training:
            continue
        arrays = part.native.arrays
        log_probs = arrays["generation_log_probs"].tolist() if "generation_log_probs" in arrays else []
        routes = part.native.get("routed_experts") if "routed_experts" not in arrays else None
        shape = list(arrays["routed_experts"].shape) if "routed_experts" in arrays else None
        return {
            "prompt_tokens": _length(part.native, "prompt_token_ids"),
            "generation_tokens": _length(part.native, "generation_token_ids"),
            "mean_log_prob": sum(log_probs) / len(log_probs) if log_probs else None,
            "experts": shape if routes is None else ("envelope" if isinstance(routes, str) else "plain"),
        }
    return {"prompt_tokens": None, "generation_tokens": None, "mean_log_prob": None, "experts": None}


def _length(native: Any, name: str) -> int:
    return len(native.arrays[name]) if name in native.arrays else len(native.get(name) or [])


def _print_rollout(
    summary: dict[str, Any], turns: list[dict[str, Any]], calls: list[dict[str, Any]], rest: dict[str, Any]
) -> None:
    from rich.markup import escape
    from rich.table import Table

    out = console()
    out.print(f"[bold]{escape(summary['rollout'])}[/]  {escape(summary['state'])}  begun {summary['begun'][:19]}")
    budget = "no bound" if summary["max_policy_calls"] is None else f"of {summary['max_policy_calls']}"
    out.print(f"scope {escape(str(summary['scope']))}, {summary['used']} policy calls charged ({budget})\n")
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for name in ("turn", "prompt", "gen", "mean lp", "experts", "replay"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what it said", no_wrap=True, overflow="ellipsis", ratio=1)
    for turn in turns:
        if "error" in turn:
            table.add_row(str(turn["turn"]), "", "", "", "", "[red]damaged[/]", escape(turn["error"]["message"]))
            continue
        said = "\n".join(f"{part['kind']}: {shorten(printable(part['text']), 200)}" for part in turn["parts"])
        mean = turn["mean_log_prob"]
        table.add_row(
            str(turn["turn"]),
            str(turn["prompt_tokens"] if turn["prompt_tokens"] is not None else "-"),
            str(turn["generation_tokens"] if turn["generation_tokens"] is not None else "-"),
            "-" if mean is None else f"{mean:.3f}",
            "x".join(map(str, turn["experts"])) if isinstance(turn["experts"], list) else str(turn["experts"] or "-"),
            "[green]native[/]" if turn["native"] else "[yellow]portable[/]",
            escape(said),
        )
    out.print(table)
    for call in calls:
        what = "in flight" if call["in_flight"] else (call["failure"] or {}).get("message") or "answered, no turn"
        what += f"; {call['attempts']} failed attempts" if call["attempts"] else ""
        out.print(f"[yellow]call {call['call']}[/]: {escape(shorten(printable(what), 160))}")
    for gap in summary["gaps"]:
        out.print(f"[yellow]gap[/] {escape(gap['code'])}: {escape(str(gap['detail']))}")
    for name in ("failure", "difference"):
        if rest[name]:
            out.print(f"[red]{name}[/]: {escape(printable(dumps(rest[name]).decode()))}")


def replay_rollout(url: str, rollout: str, scope: str | None, call: int | None, *, as_json: bool) -> None:
    """Print the request input that a rollout's history makes for a caller of `scope`."""
    with open_store(url, create=False) as store:
        view = RolloutView(store, rollout)
        if call is not None and call >= len(view.calls):
            raise UnknownRollout(f"the rollout has {len(view.calls)} policy calls", rollout=rollout, call=call)
        request = project(view.history(call), scope)
    codes = [gap.code for gap in request.gaps]
    if as_json:
        print_json({"input": request.input, "instructions": request.instructions, "gaps": codes})
        return
    print_bytes(request.input_text())
    for code in codes:
        console(stderr=True).print(f"[yellow]gap[/] {code}")
