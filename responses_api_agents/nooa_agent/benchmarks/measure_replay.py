"""Measure what it costs to keep every turn of a history exactly.

From a checkout: `uv run python -m responses_api_agents.nooa_agent.benchmarks.measure_replay`. Checks that restoration
and replay preserve every field; exit code 1 where one is not what it was. Tables on stdout, progress on stderr.
"""

import argparse
import json
import os
import platform
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .checks import NotPreserved
from .disk import measure_checkpoints
from .full import measure_full
from .operations import FORMS, Form, Tell, time_operations
from .peaks import measure_peaks
from .workload import WORKLOADS, Workload


def make_parser() -> argparse.ArgumentParser:
    """The command's arguments; the defaults are the seed's."""
    parser = argparse.ArgumentParser(prog="measure_replay", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--turns", type=_positive, nargs="+", default=[1, 8, 32], help="lengths of history")
    parser.add_argument("--prompt-tokens", type=_positive, default=2048)
    parser.add_argument("--generated-tokens", type=_positive, default=512)
    parser.add_argument("--layers", type=_positive, default=64)
    parser.add_argument("--top-k", type=_positive, default=8)
    parser.add_argument("--repeats", type=_positive, default=3)
    parser.add_argument("--form", choices=list(FORMS), default="packed", help="how the history is written down")
    parser.add_argument("--workload", choices=WORKLOADS, default="seed")
    parser.add_argument(
        "--full", action="store_true", help="also HTTP, commits, a NOOA agent, rollouts at once, memory"
    )
    parser.add_argument("--no-agent", action="store_true", help="leave NOOA out of --full: importing it takes seconds")
    parser.add_argument(
        "--folder", type=_folder, help="where files are written; on a real disk (default: the system's for such)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def _folder(text: str) -> str:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text!r}")
    return text


def measure(bodies: Sequence[bytes], form: Form, repeats: int, tell: Tell) -> dict[str, Any]:
    """Times, sizes and allocation of one history, every field checked. Raises NotPreserved."""
    timed = time_operations(bodies, form, repeats, tell)
    peaks = measure_peaks(bodies, form, tell)
    return {
        "turns": len(bodies),
        "body_bytes": sum(map(len, bodies)),
        "bytes": timed.size,
        "text_only": timed.text_only,
        "seconds": timed.medians(),
        "seconds_each": timed.seconds,
        "peaks": peaks.peaks,
        "retained": peaks.retained,
        "checked": timed.checked,
    }


def measure_all(given: argparse.Namespace, tell: Tell) -> dict[str, Any]:
    """Everything that the arguments ask for, as one JSON object."""
    workload = Workload(given.workload, given.prompt_tokens, given.generated_tokens, given.layers, given.top_k)
    runs = []
    for turns in given.turns:
        tell(f"{turns} turns: making the bodies")
        run = measure(workload.bodies(turns), FORMS[given.form], given.repeats, tell)
        runs.append({**run, "checkpoints": measure_checkpoints(workload, turns, given.form, given.folder, tell)})
    full = {}
    if given.full:
        most = max(given.turns)
        parts = measure_full(workload, most, given.form, given.repeats, given.folder, tell, agent=not given.no_agent)
        full = {"full": parts}
    return {
        "workload": given.workload,
        "form": given.form,
        "repeats": given.repeats,
        "sizes": {name: getattr(workload, name) for name in ("prompt_tokens", "generated_tokens", "layers", "top_k")},
        "machine": machine(),
        "preserved": True,
        "runs": runs,
        **full,
    }


def machine() -> dict[str, Any]:
    """What it was measured on."""
    names = ("turnkeep", "numpy", "orjson", "msgspec")
    return {
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **{name: version(name) for name in names},
    }


@contextmanager
def telling() -> Iterator[Tell]:
    """Progress on stderr: one line that changes on a terminal, a line a step elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: print(text, file=sys.stderr, flush=True)
        return

    def tell(text: str) -> None:
        """Drawn between measurements alone, so that drawing is in none."""
        print(f"\r\x1b[K{text} ...", end="", file=sys.stderr, flush=True)

    yield tell
    print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and give the exit code."""
    given = make_parser().parse_args(arguments)
    try:
        with telling() as tell:
            result = measure_all(given, tell)
    except NotPreserved as error:
        print(f"\nnot preserved: {error}", file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps(result))
    else:
        from rich.console import Console

        from .tables import show

        show(result, Console(width=None if sys.stdout.isatty() else 140, highlight=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
