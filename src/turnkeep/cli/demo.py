"""`turnkeep demo`: the main job, end to end, on a real NOOA agent and a real policy server."""

import itertools
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from turnkeep.cli.demo_report import print_report
from turnkeep.cli.demo_script import make_demo_script
from turnkeep.cli.output import EXIT_FOUND, console, print_json
from turnkeep.errors import ConfigurationError, TurnkeepError
from turnkeep.history.projection import project
from turnkeep.rollout.verify import verify_rollout
from turnkeep.rollout.view import RolloutView
from turnkeep.store.open import open_store
from turnkeep.wire.json import dumps, loads, same, without_nulls
from turnkeep.wire.training import TRAINING_FIELDS

_DELAY = 0.12
"""Seconds that the policy takes to answer, beside the arithmetic: so that most moments have a call in flight."""
_TRIES = 3
"""How often a kill may come too late before the demo says so."""
_PATIENCE = 120.0
"""Seconds after which a child that says nothing is given up."""


class Replayed(NamedTuple):
    """How a replay compares with the evidence: items and arrays that are equal, and how many there are."""

    items: int
    of_items: int
    arrays: int
    of_arrays: int
    gaps: list[str]

    @property
    def exact(self) -> bool:
        """Whether everything is equal and nothing is missing."""
        return self.items == self.of_items > 0 and self.arrays == self.of_arrays > 0


def run_demo(folder: Path, *, turns: int, seed: int | None, as_json: bool) -> int:
    """Run the demo in `folder`, print what happened, and return the exit code."""
    _need_extras()
    seed = random.SystemRandom().randrange(10_000) if seed is None else seed
    folder.mkdir(parents=True, exist_ok=True)
    store_path = folder / "rollouts.db"
    moments = random.Random(seed)
    say = _teller()
    with _policy(folder, turns) as url:
        say(f"policy server on {url}; importing NOOA takes a while")
        for _ in range(_TRIES):
            name, files = _new_rollout(store_path, folder)
            killed = _kill_one(url, store_path, name, files, moments.random(), say)
            if not killed["finished_before_kill"]:
                break
            say("the agent was done before the kill came: once more")
        say("starting the agent again: what is recorded answers it")
        resumed = _resume(url, store_path, name, files)
        say("restoring the finished history from three places, and replaying each")
        results = _compare(url, store_path, name, files)
        report = {**killed, **resumed, **results, **_count_repeats(url, store_path, name, killed["answered_at_kill"])}
    report = _summary(report, store_path, name, seed)
    print_report(report, console(stderr=as_json))
    if as_json:
        print_json(report)
    good = (
        not report["finished_before_kill"]
        and report["replayed_exactly"]
        and report["resumed"]
        and not report["policy_calls_repeated"]
        and report["contiguous"]
    )
    return 0 if good else EXIT_FOUND


def _new_rollout(store_path: Path, folder: Path) -> tuple[str, Path]:
    """A name that the store has not yet, `demo-1` and so on, and a folder for the files of its run."""
    with open_store(store_path) as store:
        taken = set(store.rollouts())
    number = next(number for number in itertools.count(1) if f"demo-{number}" not in taken)
    files = folder / f"demo-{number}"
    files.mkdir(exist_ok=True)
    return files.name, files


def _need_extras() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("nooa", "starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"the demo needs {', '.join(missing)}: pip install 'turnkeep[demo]'")


def _teller() -> Callable[[str], None]:
    """Prints each step with the time it began, on standard error."""
    out, begun = console(stderr=True), time.monotonic()
    return lambda text: out.print(f"[dim]{time.monotonic() - begun:5.1f} s[/]  {text}", soft_wrap=True)


@contextmanager
def _child(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """A child process with its errors in a file; killed at the end if it still runs."""
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as child,
    ):
        try:
            yield child
        finally:
            child.kill()


def _line(child: subprocess.Popen[str], log: Path) -> str:
    """The next line a child prints. Raises TurnkeepError with the end of its errors where there is none."""
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        child.wait(_PATIENCE)
        raise TurnkeepError(f"a child process of the demo ended early: {log.read_text()[-800:].strip()}")
    return line.strip()


@contextmanager
def _policy(files: Path, turns: int) -> Iterator[str]:
    """The embedded policy as a process of its own; gives its URL."""
    script, log = files / "script.json", files / "policy.log"
    script.write_text(json.dumps(make_demo_script(turns), indent=1))
    command = ["turnkeep.serve", "--script", str(script), "--seed", "7", "--delay", str(_DELAY)]
    with _child(command, log) as child:
        yield _line(child, log).rpartition(" ")[2]


@contextmanager
def _agent(
    url: str, store: Path, rollout: str, files: Path, run: int, *options: str
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """The agent's process. NOOA's own storage is a fresh one for each run."""
    log = files / f"agent-{run}.log"
    database, snapshot = files / f"nooa-{run}.db", files / "snapshot.json"
    command = ["turnkeep.nooa.demo", "--url", url, "--store", str(store), "--rollout", rollout, *options]
    with _child([*command, "--database", str(database), "--snapshot", str(snapshot)], log) as child:
        yield child, log


def _begin(child: subprocess.Popen[str], log: Path) -> None:
    """Let a child that is ready begin; it has begun when this returns."""
    assert child.stdin is not None
    child.stdin.write("begin\n")
    child.stdin.flush()
    _line(child, log)


def _kill_one(
    url: str, store: Path, name: str, files: Path, where: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """Start the agent and kill it when the part `where` (0 to 1) of a rollout's time, known from practice, is over."""
    with _agent(url, store, name, files, 1, "--practise") as (child, log):
        length = float(_line(child, log).split()[1])
        moment = where * length
        say(f"a practice rollout took {length:.2f} s; the real one is to be killed after {moment:.2f} s")
        _begin(child, log)
        time.sleep(moment)
        child.send_signal(signal.SIGKILL)
        finished = child.wait() == 0
    with open_store(store) as opened:
        view = RolloutView(opened, name) if name in opened.rollouts() else None
        calls = view.calls if view else ()
        turns, flight = view.turn_count if view else 0, sum(call.in_flight for call in calls)
        say(f"killed with SIGKILL at turn {turns}, {'with a call in flight' if flight else 'between two calls'}")
        return {
            "killed_after_seconds": round(moment, 3),
            "killed_at_turn": turns,
            "finished_before_kill": finished,
            "in_flight_at_kill": flight,
            "answered_at_kill": [call.number for call in calls if call.response is not None],
        }


def _resume(url: str, store: Path, name: str, files: Path) -> dict[str, Any]:
    """Run the agent again from its beginning, to its end."""
    with _agent(url, store, name, files, 2) as (child, log):
        _line(child, log)
        _begin(child, log)
        ended = json.loads(_line(child, log))
        child.wait(_PATIENCE)
    return {"result": ended["result"], "difference": ended["difference"], "resumed": ended["difference"] is None}


def _compare(url: str, store: Path, name: str, files: Path) -> dict[str, Any]:
    """Restore the history from NOOA's SQLite, NOOA's snapshot and our store, and hold each against the evidence."""
    import asyncio

    from turnkeep.nooa.demo import ask_restored, open_demo_rollout

    database, snapshot = files / "nooa-2.db", json.loads((files / "snapshot.json").read_text())
    sources: dict[str, dict[str, Any]] = {
        "nooa-sqlite": {"database": database},
        "nooa-snapshot": {"snapshot": snapshot},
    }
    with open_store(store) as opened:
        view = RolloutView(opened, name)
        evidence = [_output(view, call.number) for call in view.calls]
        replays = {}
        for source, restored in sources.items():
            with open_demo_rollout(opened, f"{name}/{source}") as rollout:
                asyncio.run(ask_restored(url, rollout, **restored))
                sent = loads(rollout.request(0))["input"]
                replays[source] = compare_items(evidence, sent, [gap.code for gap in rollout.gaps])
        request = project(view.history(), view.scope)
        replays["turnkeep-store"] = compare_items(evidence, request.input, [gap.code for gap in request.gaps])
        return {
            "turns": view.turn_count,
            "replays": {source: replayed._asdict() for source, replayed in replays.items()},
            "stores": {source: replayed.exact for source, replayed in replays.items()},
            "gaps": [gap.code for gap in view.gaps],
            "contiguous": _contiguous(view),
            "findings": [asdict(finding) for finding in verify_rollout(view)],
            "broken": _break_a_turn(view),
            "rows": _rows(view),
        }


def _output(view: RolloutView, call: int) -> list[dict[str, Any]]:
    """The output items of a response as received, less their null members, which are not sent back (contract 4.1)."""
    items: list[dict[str, Any]] = loads(without_nulls(dumps(loads(view.response(call) or b"{}").get("output", []))))
    return items


def compare_items(evidence: list[list[dict[str, Any]]], sent: list[Any], gaps: list[str]) -> Replayed:
    """Look for each response's items, side by side and in order, in what was sent; count what is equal."""
    items = arrays = at = 0
    for expected in evidence:
        places = range(at, len(sent) - len(expected) + 1)
        found = next((place for place in places if same(sent[place : place + len(expected)], expected)), None)
        if found is not None:
            items += len(expected)
            arrays += sum(_arrays(item) for item in sent[found : found + len(expected)])
            at = found + len(expected)
    total = sum(map(len, evidence))
    return Replayed(items, total, arrays, sum(_arrays(item) for turn in evidence for item in turn), gaps)


def _arrays(item: dict[str, Any]) -> int:
    return sum(name in item for name in TRAINING_FIELDS)


def _contiguous(view: RolloutView) -> bool:
    """Whether each prompt begins with the last one and what was generated after it, across the kill."""
    seen: list[int] = []
    for turn in view.turns:
        carrier = next(part.native for part in reversed(turn.parts) if part.native and part.native.has_training)
        prompt = carrier["prompt_token_ids"]
        if prompt[: len(seen)] != seen:
            return False
        seen = prompt + carrier["generation_token_ids"]
    return True


def _break_a_turn(view: RolloutView) -> dict[str, Any]:
    """What an edited turn projects to: its public parts, and a gap."""
    number = view.turn_count // 2
    turn = view.turn(number)
    edited = turn.edit(0, text="Something that the policy never said.")
    request = project([edited], view.scope)
    return {
        "turn": number,
        "native_items": len(project([turn], view.scope).input),
        "portable_items": request.input,
        "gaps": [gap.code for gap in request.gaps],
    }


def _rows(view: RolloutView) -> list[dict[str, Any]]:
    """A row a turn for the table."""
    rows = []
    for number, turn in enumerate(view.turns):
        carrier = next((part.native for part in reversed(turn.parts) if part.native and part.native.has_training), None)
        arrays = carrier.arrays if carrier is not None else {}
        log_probs = arrays["generation_log_probs"].tolist() if "generation_log_probs" in arrays else []
        rows.append(
            {
                "turn": number,
                "parts": [part.kind for part in turn.parts],
                "prompt_tokens": len(arrays.get("prompt_token_ids", ())),
                "generation_tokens": len(log_probs),
                "mean_log_prob": sum(log_probs) / len(log_probs) if log_probs else None,
                "experts": list(arrays["routed_experts"].shape) if "routed_experts" in arrays else None,
            }
        )
    return rows


def _count_repeats(url: str, store: Path, name: str, answered: list[int]) -> dict[str, Any]:
    """How often a call was sent again that had its answer before the kill, told by what the server received."""
    import httpx

    log = httpx.get(f"{url}/stats").json()["log"]
    arrived = Counter(entry["sha256"] for entry in log)
    with open_store(store) as opened:
        calls = RolloutView(opened, name).calls
    sent = [arrived[call.request.sha256] for call in calls]
    repeated = sum(sent[number] - 1 for number in answered)
    return {"policy_calls": len(calls), "policy_calls_repeated": repeated, "requests_received": sum(sent)}


def _summary(report: dict[str, Any], store: Path, name: str, seed: int) -> dict[str, Any]:
    """The report with the few values that a script looks for in front."""
    head = ("turns", "killed_at_turn", "resumed", "policy_calls_repeated")
    exact = all(report["stores"].values()) and not report["findings"]
    return {
        **{key: report.pop(key) for key in head},
        "replayed_exactly": exact,
        "stores": report.pop("stores"),
        "gaps": report.pop("gaps"),
        "store_path": str(store),
        "rollout": name,
        "seed": seed,
        **{key: value for key, value in report.items() if key != "answered_at_kill"},
    }
