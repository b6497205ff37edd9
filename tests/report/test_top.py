import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import made_rollouts
import pytest
from made_rollouts import SCOPE, begin, message, response, say, training
from rich.console import Console

from turnkeep.cli.top import Pace, average_pace, make_table
from turnkeep.errors import TransportFailure
from turnkeep.history.capture import capture
from turnkeep.history.turn import Turn
from turnkeep.report.glance import Glance, Watch
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.references import named_blobs
from turnkeep.rollout.view import RolloutView
from turnkeep.store.memory import MemoryStore
from turnkeep.store.open import open_store
from turnkeep.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from turnkeep.history.projection import Entry

HOLD = """
import sys
from turnkeep.rollout.record import Rollout
from turnkeep.store.open import open_store
with open_store(sys.argv[1]) as store, Rollout.open(store, sys.argv[2]):
    print("open", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held(path: Path, rollout: str) -> Iterator["subprocess.Popen[str]"]:
    """Another process that writes the rollout until its input ends."""
    command = [sys.executable, "-c", HOLD, str(path), rollout]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        if process.stdin is not None:
            process.stdin.close()


def test_a_rollout_is_live_while_a_process_writes_it(tmp_path: Path) -> None:
    """Another process's writer shows, and no longer when it was killed with SIGKILL; other rollouts do not."""
    path = tmp_path / "a.db"
    with SqliteStore(path) as store:
        Rollout.open(store, "still").close()
        with held(path, "held") as process:
            assert (store.is_written("held"), store.is_written("still")) == (True, False)
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert not store.is_written("held")


def test_looking_takes_nothing_from_a_writer_of_this_process(tmp_path: Path) -> None:
    """A look opens no lock of its own: a writer here keeps its rollout, and another process still sees it as taken."""
    path = tmp_path / "a.db"
    seen = "import sys; from turnkeep.store.open import open_store\n"
    seen += "with open_store(sys.argv[1]) as store: print(store.is_written('r'), store.is_written('other'))"
    with SqliteStore(path) as store, Rollout.open(store, "r"):
        Rollout.open(store, "other").close()
        assert (store.is_written("r"), store.is_written("other")) == (True, False)
        told = subprocess.run([sys.executable, "-c", seen, str(path)], capture_output=True, text=True, timeout=60)
    assert told.stdout == "True False\n"


@pytest.mark.parametrize("by_turn", [False, True])
def test_looking_again_and_again_tells_what_one_look_does(by_turn: bool) -> None:
    """Counters that read only what is new equal those of a fresh look, and the tokens of the turns themselves."""
    store = MemoryStore()
    watch = Watch(store)
    history: list[Entry] = [{"role": "user", "content": "Go."}]
    with Rollout.open(store, "r", scope=SCOPE, max_policy_calls=99) as rollout:
        for number, size in enumerate((0, 1, 7, 8, 300)):
            fields = training(range(size), range(size), [-0.5] * size)
            if by_turn:
                rollout.add_turn(make_turn(fields))
            else:
                say(rollout, history, response([message("x", **fields), message("y")], number))
            assert watch.look() == Watch(store).look()
        open_call = begin(rollout, history)
        assert watch.look()[0].in_flight == 1
        rollout.fail_call(open_call, TransportFailure("nothing came"))
        rollout.add_gap("some_gap")
        begin(rollout, history)
        (glance,) = watch.look()
    used = 2 if by_turn else 7
    assert glance[:3] == ("r", True, RolloutView(store, "r").begun)
    assert glance[3:8] == (5, used, 99, 1, 316)
    assert (glance.gaps, glance.graded, glance.failure) == (("some_gap",), False, "TransportFailure: nothing came")


def make_turn(fields: dict[str, object]) -> Turn:
    """A turn that was captured and edited, so that it is stored with its arrays apart."""
    turn = capture(response([message("x", **fields), message("y")]), SCOPE)
    return turn.edit(1, text="z")


def test_a_damaged_rollout_is_told_and_the_others_are_shown(tmp_path: Path) -> None:
    """Damage in one rollout hides no other."""
    path = tmp_path / "a.db"
    with SqliteStore(path) as store:
        for rollout in ("a", "b"):
            Rollout.open(store, rollout).close()
        store._db.execute("UPDATE records SET document = '{}' WHERE rollout = 1")
        first, second = Watch(store).look()
    assert (first.error is None, second.error) == (False, None)


def test_a_rollout_that_was_deleted_and_began_anew_is_counted_anew() -> None:
    """Nothing of the rollout that had the id before is left in the counters."""
    store = MemoryStore()
    watch = Watch(store)
    for size in (5, 2):
        with Rollout.open(store, "r", scope=SCOPE) as rollout:
            rollout.add_turn(make_turn(training(range(size), range(size), [-0.5] * size)))
            begin(rollout, [{"role": "user", "content": "Go."}] * size)
        assert watch.look() == Watch(store).look()
        assert watch.look()[0].tokens == size
        store.delete(["r"], named_blobs)


class Pruned(MemoryStore):
    """A store of which a rollout is deleted each time just after it was listed."""

    def rollouts(self) -> list[str]:
        """The ids; the first is gone when they are used."""
        found = super().rollouts()
        self.delete(found[:1], named_blobs)
        return found


def test_a_rollout_that_is_deleted_while_it_is_looked_at_is_no_damage() -> None:
    """One that goes between being listed and being read is left out, and the others are shown."""
    store = Pruned()
    for rollout in "abc":
        Rollout.open(store, rollout).close()
    assert [(glance.rollout, glance.error) for glance in Watch(store).look()] == [("b", None), ("c", None)]


def test_the_pace_is_that_of_the_last_minute() -> None:
    """Calls a minute come from what was seen within 60 seconds; a change is remembered by its moment."""
    pace = Pace()
    for moment, calls in ((0.0, 0), (30.0, 40), (60.0, 41), (120.0, 51)):
        pace.note(Glance("r", True, calls=calls), moment)
    assert pace.calls_a_minute == 10.0
    pace.note(Glance("r", True, calls=51), 125.0)
    assert pace.changed == 120.0


def test_the_average_pace_is_that_of_live_rollouts() -> None:
    """Without watching, calls a minute are counted since the rollout began, where it is being written."""
    now = datetime(2026, 1, 1, 0, 2, tzinfo=UTC)
    glance = Glance("r", True, "2026-01-01T00:00:00.000+00:00", calls=30)
    assert average_pace(glance, now) == 15.0
    assert average_pace(glance._replace(live=False), now) is None


def test_the_table_fits_80_columns_and_puts_live_rollouts_first() -> None:
    """Long ids are cut and no number is; what does not fit on the screen is counted."""
    begun = "2026-01-01T00:00:00.000+00:00"
    many = [
        Glance(f"rollouts-of-a-long-name.jsonl/{n}", n == 3, begun, 120, 2000, 2500, 3, 12_345_678) for n in range(9)
    ]
    shown = StringIO()
    Console(width=80, file=shown).print(make_table(many, {}, 0.0, most=4))
    lines = [line.rstrip() for line in shown.getvalue().splitlines()]
    assert lines[1].endswith("live")
    assert all("2000/2500" in line and "12,345,678" in line for line in lines[1:5])
    assert lines[-1] == "9 rollouts, 1 live, 1,080 turns, 111,111,102 generated tokens; 5 not shown"


def run(*arguments: str) -> list[str]:
    """The command line of `turnkeep top`."""
    return [sys.executable, "-m", "turnkeep.cli.main", "top", *arguments]


def test_the_command_prints_once_where_nobody_watches(tmp_path: Path) -> None:
    """Into a pipe goes one table, and with --json one list of objects."""
    path = tmp_path / "a.db"
    with open_store(path) as store:
        made_rollouts.hostile(store)
    table = subprocess.run(run("--store", str(path)), capture_output=True, text=True, timeout=60)
    assert (table.returncode, "ungradable" in table.stdout) == (0, True)
    (row,) = json.loads(subprocess.run(run("--store", str(path), "--json"), capture_output=True, timeout=60).stdout)
    assert (row["rollout"], row["in_flight"], row["live"], row["graded"]) == ("hostile <b>", 1, False, False)


def test_on_a_terminal_it_goes_on_until_it_is_interrupted(tmp_path: Path) -> None:
    """A rollout that begins while it is watched appears; Ctrl-C leaves with exit code 0."""
    path = tmp_path / "a.db"
    with open_store(path) as store:
        Rollout.open(store, "first").close()
        ours, theirs = pty.openpty()
        command = run("--store", str(path), "--interval", "0.1")
        with subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=heed_interrupts
        ) as process:
            os.close(theirs)
            read_until(ours, b"first")
            with Rollout.open(store, "second"):
                read_until(ours, b"second")
            process.send_signal(signal.SIGINT)
            drain(ours)
            assert process.wait(60) == 0
        os.close(ours)


def heed_interrupts() -> None:
    """Let SIGINT interrupt: what was started in the background, as tests may be, hands on that it is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def read_until(terminal: int, words: bytes) -> None:
    """Read what a terminal shows until it shows `words`."""
    shown = b""
    while words not in shown:
        shown += os.read(terminal, 4096)


def drain(terminal: int) -> None:
    """Read until the other side has closed the terminal."""
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:
        return
