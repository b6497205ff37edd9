import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from store_children import child, heard, tell

from turnkeep.errors import RolloutBusy
from turnkeep.store.base import Row
from turnkeep.store.sqlite import SqliteStore

HOLD = """
store = SqliteStore(path)
writer = store.write("r", b"0")
writer.commit(b"1", [Row("turns", 0, b"child")])
say("holds", os.getpid())
wait()
try:
    writer.commit(b"2", [Row("turns", 1, b"child")])
    say("committed")
except RolloutBusy as error:
    say(error)
wait()
"""

COUNT = """
store = SqliteStore(path)
writer = store.write("r", b"0")
say("ready")
number = 0
while True:
    number += 1
    state = str(number).encode()
    writer.commit(state, [Row("turns", number, state), Row("calls", 0, state)])
"""

WATCH = """
store = SqliteStore(path)
seen = rounds = 0
while rounds < int(sys.argv[2]) or seen < 30:
    rounds += 1
    with store.snapshot():
        told = int(store.state("r"))
        rows, calls = store.rows("r", "turns"), store.rows("r", "calls")
    assert [row.number for row in rows] == list(range(1, told + 1)), (told, len(rows))
    assert all(row.document == str(row.number).encode() for row in rows)
    assert [int(row.document) for row in calls] == ([told] if told else [])
    assert told >= seen
    seen = told
say("whole", seen)
"""


def test_readers_see_whole_commits_only(tmp_path: Path) -> None:
    """Several processes read while one writes as fast as it can: each sees whole commits, in order."""
    path = tmp_path / "a.db"
    with child(COUNT, path) as writer:
        assert heard(writer) == "ready"
        with ExitStack() as stack:
            readers = [stack.enter_context(child(WATCH, path, "60")) for _ in range(3)]
            said = [heard(reader).split() for reader in readers]
            assert all(words[0] == "whole" and int(words[1]) >= 30 for words in said), said


def test_two_processes_write_two_rollouts_at_once(tmp_path: Path) -> None:
    """Two processes write rollouts of their own in one file at once, and each finds all of its own."""
    path = tmp_path / "a.db"
    code = """
store = SqliteStore(path)
name = sys.argv[2]
writer = store.write(name, b"0")
say("ready")
wait()
for number in range(100):
    writer.commit(str(number).encode(), [Row("turns", number, name.encode())])
say("done")
"""
    with child(code, path, "one") as one, child(code, path, "two") as two:
        for process in (one, two):
            assert heard(process) == "ready"
        for process in (one, two):
            tell(process)
        assert [heard(process) for process in (one, two)] == ["done", "done"]
    with SqliteStore(path) as store:
        for name in ("one", "two"):
            assert store.rows(name, "turns") == [Row("turns", number, name.encode()) for number in range(100)]
            assert store.state(name) == b"99"


def test_a_second_writer_in_this_process_is_refused(tmp_path: Path) -> None:
    """Another store of the same process is refused a rollout that has a writer; the error names the process."""
    with SqliteStore(tmp_path / "a.db") as one, SqliteStore(tmp_path / "a.db") as two:
        writer = one.write("r", b"{}")
        with pytest.raises(RolloutBusy, match=f"process {os.getpid()} on "):
            two.write("r", b"{}")
        two.write("s", b"{}").commit(b"free")
        writer.commit(b"mine")
        writer.release()
        two.write("r", b"{}").commit(b"now free")


def test_a_second_writer_in_another_process_is_refused(tmp_path: Path) -> None:
    """A rollout that another process writes is refused, and the error names that process, until it gives it back."""
    path = tmp_path / "a.db"
    with child(HOLD, path) as holder, SqliteStore(path) as store:
        pid = heard(holder).split()[1]
        with pytest.raises(RolloutBusy, match=f"process {pid} on ") as caught:
            store.write("r", b"{}")
        assert caught.value.rollout == "r"
        tell(holder)
        assert heard(holder) == "committed"
    with SqliteStore(path) as store:
        store.write("r", b"{}").commit(b"free again")


def test_two_histories_never_mix_where_locks_fail(tmp_path: Path) -> None:
    """Where locks do not work, here with the side file gone, the one that took the rollout over wins (contract 9.2).

    The first writer is told so, and by whom, at its next commit, of which nothing is kept.
    """
    path = tmp_path / "a.db"
    with child(HOLD, path) as first, SqliteStore(path) as store:
        assert heard(first).startswith("holds")
        store.lock_path.unlink()
        writer = store.write("r", b"{}")
        writer.commit(b"second", [Row("turns", 1, b"second")])
        tell(first)
        told = heard(first)
        assert f"taken the rollout over: process {os.getpid()} on " in told
        writer.commit(b"second again", [Row("turns", 2, b"second")])
        assert [row.document for row in store.rows("r", "turns")] == [b"child", b"second", b"second"]
        assert store.state("r") == b"second again"


def test_a_killed_writers_rollout_is_free_at_once(tmp_path: Path) -> None:
    """After a writer was killed by SIGKILL its rollout can be taken at once, with what it had committed."""
    path = tmp_path / "a.db"
    with child(HOLD, path) as holder:
        assert heard(holder).startswith("holds")
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        with SqliteStore(path) as store:
            writer = store.write("r", b"{}")
            assert (store.state("r"), store.rows("r", "turns")) == (b"1", [Row("turns", 0, b"child")])
            writer.commit(b"going on")


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A child that a killed writer had forked lives on, and the rollout is free all the same."""
    code = """
store = SqliteStore(path)
writer = store.write("r", b"0")
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
writer.commit(b"after the fork", [Row("turns", 0, b"parent")])
say(child)
wait()
"""
    path = tmp_path / "a.db"
    with child(code, path) as parent:
        orphan = int(heard(parent))
        try:
            with SqliteStore(path) as store, pytest.raises(RolloutBusy):
                store.write("r", b"{}")
            os.kill(parent.pid, signal.SIGKILL)
            parent.wait()
            with SqliteStore(path) as store:
                store.write("r", b"{}").commit(b"taken")
                assert store.rows("r", "turns") == [Row("turns", 0, b"parent")]
        finally:
            os.kill(orphan, signal.SIGKILL)


def test_use_after_a_fork_is_a_clear_error(tmp_path: Path) -> None:
    """A forked child that uses its parent's store is told to open it again, and doing so works."""
    code = """
store = SqliteStore(path)
writer = store.write("r", b"0")
if os.fork() == 0:
    for use in (store.rollouts, lambda: store.state("r"), lambda: writer.commit(b"x"), lambda: store.write("r", b"")):
        try:
            use()
            say("no error")
        except StoreError as error:
            say("open it again in this one" in str(error))
    writer.release()
    store.close()
    with SqliteStore(path) as own:
        own.write("child", b"0").commit(b"child")
        try:
            own.write("r", b"0")
        except RolloutBusy:
            say("busy")
    os._exit(0)
os.wait()
writer.commit(b"parent")
say(store.state("r"), store.state("child"))
"""
    with child(code, tmp_path / "a.db") as parent:
        assert [heard(parent) for _ in range(6)] == [*["True"] * 4, "busy", "b'parent' b'child'"]


def test_a_forked_child_loses_no_commit(tmp_path: Path) -> None:
    """What a forked child commits through a store of its own stays, though its parent dies and others come and go.

    SQLite's locks are counted per process: a child that inherits open connections believes it holds locks that it does
    not, and the next process to close the file would delete the log that the child writes to (contract 9.2).
    """
    code = """
store = SqliteStore(path)
store.write("parent", b"0").commit(b"1")
if os.fork() == 0:
    writer = SqliteStore(path).write("r", b"0")
    writer.commit(b"1", [Row("turns", 0, b"before")])
    say(os.getpid())
    wait()
    writer.commit(b"2", [Row("turns", 1, b"after")])
    say("committed")
    time.sleep(60)
time.sleep(60)
"""
    path = tmp_path / "a.db"
    with child(code, path) as parent:
        orphan = int(heard(parent))
        try:
            os.kill(parent.pid, signal.SIGKILL)
            parent.wait()
            with SqliteStore(path) as passer:
                passer.write("passer", b"0").commit(b"1")
            tell(parent)
            assert heard(parent) == "committed"
        finally:
            os.kill(orphan, signal.SIGKILL)
    with SqliteStore(path) as store:
        assert [row.document for row in store.rows("r", "turns")] == [b"before", b"after"]


def test_a_fork_in_use_goes_on_in_the_parent(tmp_path: Path) -> None:
    """A parent that forks while its threads write loses nothing and need not notice."""
    code = """
import threading, warnings
warnings.simplefilter("ignore")
store = SqliteStore(path)
def work(name):
    writer = store.write(name, b"0")
    for number in range(60):
        writer.commit(b"s", [Row("turns", number, name.encode())])
threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "two")]
for thread in threads: thread.start()
while any(thread.is_alive() for thread in threads):
    if os.fork() == 0:
        os._exit(0)
    os.wait()
say([len(store.rows(name, "turns")) for name in ("one", "two")])
"""
    with child(code, tmp_path / "a.db") as parent:
        assert heard(parent) == "[60, 60]"


def test_processes_may_begin_a_store_at_once(tmp_path: Path) -> None:
    """Processes that open a new file at the same instant all succeed, and the store has what each wrote."""
    code = """
say("ready")
wait()
try:
    with SqliteStore(path) as store:
        store.write(sys.argv[2], b"0").commit(b"1")
    say("fine")
except StoreError as error:
    say(error)
"""
    for attempt in range(3):
        path = tmp_path / f"{attempt}.db"
        with ExitStack() as stack:
            children = [stack.enter_context(child(code, path, str(number))) for number in range(5)]
            assert [heard(process) for process in children] == ["ready"] * 5
            for process in children:
                tell(process)
            assert [heard(process) for process in children] == ["fine"] * 5
        with SqliteStore(path) as store:
            assert sorted(store.rollouts()) == list("01234")
