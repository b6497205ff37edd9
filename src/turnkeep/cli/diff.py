"""`turnkeep diff`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from turnkeep.cli.output import EXIT_FOUND, console, print_json, printable, progress
from turnkeep.errors import ConfigurationError
from turnkeep.rollout.view import RolloutView
from turnkeep.store.open import open_store
from turnkeep.wire.json import dumps

if TYPE_CHECKING:
    from turnkeep.report.compare import Compared, Difference

_AROUND = 24
"""Code points of a text that are shown on either side of where it differs."""
_LONGEST = 200


def diff_rollouts(
    rollout: str,
    other: str | None,
    url: str,
    other_url: str | None,
    *,
    replay: bool,
    ignore: Sequence[str],
    as_json: bool,
) -> int:
    """Print where two rollouts, or a rollout and its evidence, first differ. Returns the exit code."""
    if replay == (other is not None):
        raise ConfigurationError("say either a second rollout, or --replay", field="ROLLOUT")
    if replay and (other_url is not None or ignore):
        raise ConfigurationError("--replay compares a rollout with its own evidence, and all of it", field="replay")
    from turnkeep.report import compare

    with open_store(url, create=False) as store:
        view = RolloutView(store, rollout)
        if other is None:
            with progress(len(view.calls), "replaying", quiet=as_json) as advance:
                found = compare.replay(view, lambda: advance(1))
        else:
            with open_store(url if other_url is None else other_url, create=False) as other_store:
                found = compare.compare_rollouts(view, RolloutView(other_store, other), frozenset(ignore))
    names = ("kept", "replayed") if other is None else _names(rollout, other, url, other_url)
    between = "requests" if replay else "messages"
    if as_json:
        difference = None if found.difference is None else found.difference.to_json()
        print_json({"equal": difference is None, "turns": found.turns, between: found.others, "difference": difference})
    else:
        _print(found, names, between)
    return 0 if found.difference is None else EXIT_FOUND


def _names(one: str, other: str, url: str, other_url: str | None) -> tuple[str, str]:
    if one != other or other_url is None:
        return one, other
    return f"{one} in {url}", f"{other} in {other_url}"


def _print(found: "Compared", names: tuple[str, str], between: str) -> None:
    from rich.text import Text

    out = console()
    equal = f"{found.turns:,} turns and {found.others:,} {between}"
    difference = found.difference
    if difference is None:
        out.print(Text(f"equal: {equal}", style="green"))
        return
    out.print(Text(f"they differ at {_place(difference)}", style="red"), soft_wrap=True)
    out.print(Text(printable(difference.what), style="dim"), soft_wrap=True)
    width = max(map(len, names))
    for name, value in zip(names, _shown(difference), strict=True):
        out.print(Text.assemble((f"  {printable(name):<{width}}  ", "bold"), printable(value)), soft_wrap=True)
    out.print(Text(f"equal before it: {equal}"), soft_wrap=True)


def _place(difference: "Difference") -> str:
    names = [*(["call"] if difference.turn is None else []), "turn", "item", "path", "index"]
    told = [f"{name} {getattr(difference, name)}" for name in names if getattr(difference, name) is not None]
    return printable(", ".join(told)) or "the beginning"


def _shown(difference: "Difference") -> tuple[str, str]:
    """Both values, short: of two long texts what stands around the first difference."""
    one, other = difference.one, difference.other
    if isinstance(one, str) and isinstance(other, str) and difference.index is not None:
        start = max(0, difference.index - _AROUND)
        end = difference.index + _AROUND
        return _cut(one, start, end), _cut(other, start, end)
    return _value(one), _value(other)


def _cut(text: str, start: int, end: int) -> str:
    shown = dumps(text[start:end]).decode()
    return ("…" if start else "") + shown + ("…" if end < len(text) else "")


def _value(value: Any) -> str:
    from turnkeep.report.compare import NOTHING

    text = "nothing" if value is NOTHING else dumps(value).decode()
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
