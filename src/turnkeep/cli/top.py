"""`turnkeep top`: the rollouts of a store while they are collected."""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from turnkeep.cli.output import console, print_json, printable
from turnkeep.report.glance import Glance, Watch
from turnkeep.store.open import open_store

if TYPE_CHECKING:
    from rich.console import RenderableType

_WINDOW = 60.0
"""Seconds over which calls a minute are counted."""


class Sighting(NamedTuple):
    """How many calls a rollout had made at a moment, in seconds."""

    moment: float
    calls: int


@dataclass(slots=True)
class Pace:
    """How a rollout goes on: what was seen in the last minute, and when anything last changed."""

    seen: deque[Sighting] = field(default_factory=deque)
    last: tuple[Any, ...] | None = None
    changed: float | None = None

    def note(self, glance: Glance, moment: float) -> None:
        """Note how a rollout looks at a moment."""
        now = (glance.turns, glance.calls, glance.in_flight, glance.tokens)
        if self.last is not None and now != self.last:
            self.changed = moment
        self.last = now
        self.seen.append(Sighting(moment, glance.calls))
        while self.seen[0].moment < moment - _WINDOW:
            self.seen.popleft()

    @property
    def calls_a_minute(self) -> float | None:
        """Calls a minute over what was seen; None where that is no time."""
        first, last = self.seen[0], self.seen[-1]
        passed = last.moment - first.moment
        return (last.calls - first.calls) * 60 / passed if passed > 0 else None


def average_pace(glance: Glance, now: datetime) -> float | None:
    """Calls a minute of a live rollout since it began; None where it is not live, or has only just begun."""
    if not glance.live or not glance.begun:
        return None
    passed = (now - datetime.fromisoformat(glance.begun)).total_seconds()
    return glance.calls * 60 / passed if passed >= 1 else None


def watch_store(url: str, *, interval: float, once: bool, as_json: bool) -> None:
    """Show the rollouts of a store, again and again on a terminal, else one time."""
    out = console()
    with open_store(url, create=False) as store:
        watch = Watch(store)
        if as_json:
            print_json([_row(glance) for glance in watch.look()])
        elif once or not out.is_terminal:
            out.print(make_table(watch.look(), {}, time.monotonic()))
        else:
            _watch(watch, interval)


def _row(glance: Glance) -> dict[str, Any]:
    return {**glance._asdict(), "gaps": list(glance.gaps), "calls_a_minute": average_pace(glance, datetime.now(UTC))}


def _watch(watch: Watch, interval: float) -> None:
    from rich.live import Live

    paces: dict[str, Pace] = {}
    out = console()
    with Live(console=out, screen=True, auto_refresh=False) as live:
        try:
            while True:
                glances, moment = watch.look(), time.monotonic()
                for glance in glances:
                    paces.setdefault(glance.rollout, Pace()).note(glance, moment)
                live.update(make_table(glances, paces, moment, out.height - 5), refresh=True)
                time.sleep(interval)
        except KeyboardInterrupt:
            return


def make_table(
    glances: list[Glance], paces: dict[str, Pace], moment: float, most: int | None = None
) -> "RenderableType":
    """The rollouts as a table, live ones first and then the newest, at most `most`, and a line that sums up all."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown = sorted(glances, key=lambda glance: (glance.live, glance.begun), reverse=True)[:most]
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    table.add_column("rollout", no_wrap=True, overflow="ellipsis", ratio=1)
    for name in ("turns", "calls", "open", "tokens", "calls/min", "last"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("gaps", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    now = datetime.now(UTC)
    for glance in shown:
        table.add_row(*_cells(glance, paces.get(glance.rollout), moment, now))
    rest = f"; {len(glances) - len(shown)} not shown" if len(glances) > len(shown) else ""
    return Group(table, Text(), Text(_summary(glances) + rest, style="dim"))


def _cells(glance: Glance, pace: Pace | None, moment: float, now: datetime) -> Iterable[Any]:
    from rich.text import Text

    rate = average_pace(glance, now) if pace is None or pace.calls_a_minute is None else pace.calls_a_minute
    changed = None if pace is None or pace.changed is None else moment - pace.changed
    name = Text(printable(glance.rollout), style="bold" if glance.live else "")
    if glance.error is not None:
        return name, *["-"] * 7, Text("damaged", style="red")
    calls = str(glance.calls) if glance.max_policy_calls is None else f"{glance.calls}/{glance.max_policy_calls}"
    told = "-" if rate is None else f"{rate:.1f}"
    gaps = Text(str(len(glance.gaps)), style="yellow" if glance.gaps else "")
    numbers = (f"{glance.turns:,}", calls, f"{glance.in_flight}", f"{glance.tokens:,}", told, ago(changed))
    return name, *numbers, gaps, _state(glance)


def _state(glance: Glance) -> Any:
    from rich.text import Text

    word = "live" if glance.live else "gradable" if glance.graded else "ungradable"
    if glance.live and not glance.graded:
        word = "live, failed"
    return Text(word, style="red" if not glance.graded else "cyan" if glance.live else "green")


def ago(seconds: float | None) -> str:
    """`now`, `12 s`, `3 min`, or a dash where no change was seen."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return "now"
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _summary(glances: list[Glance]) -> str:
    live = sum(glance.live for glance in glances)
    turns, tokens = sum(glance.turns for glance in glances), sum(glance.tokens for glance in glances)
    return f"{len(glances):,} rollouts, {live:,} live, {turns:,} turns, {tokens:,} generated tokens"
