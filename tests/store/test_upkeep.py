"""Pruning and compacting a store, moving its log, and migrating it: safe beside others and against a kill."""

import json
import os
import random
import shutil
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from rollout_samples import SCOPE, fill_rollout, readings
from store_children import child, heard, tell
from typer.testing import CliRunner

from turnkeep.cli.main import app
from turnkeep.errors import CorruptRecord, RolloutBusy, UnknownRollout
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.references import named_blobs
from turnkeep.rollout.verify import verify_rollout
from turnkeep.rollout.view import RolloutView
from turnkeep.store import wal
from turnkeep.store.base import Row, blob_digest
from turnkeep.store.migrations import VERSION
from turnkeep.store.sqlite import SqliteStore

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "sqlite-v1" / "rollouts.db"
NAMES = ("r-1", "r-2", "r-3")


def fill(path: Path, names: tuple[str, ...] = NAMES) -> None:
    with SqliteStore(path) as store:
        for name in names:
            with Rollout.open(store, name, scope=SCOPE) as rollout:
                fill_rollout(rollout, 2)


def everything(path: Path, name: str) -> list[object]:
    with SqliteStore(path) as store:
        return [read() for _, read in readings(store, name, 2, 4)]


def blobs(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        count: int = db.execute("SELECT count(*) FROM blobs").fetchone()[0]
        return count


def command(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code, done.output
    return done.output


def test_deleting_leaves_what_others_use(tmp_path: Path) -> None:
    """A deleted rollout is gone with its blobs; those that another names stay, and it reads as before (7.11)."""
    path = tmp_path / "a.db"
    fill(path, ("r-3",))
    alone, kept = blobs(path), everything(path, "r-3")
    fill(path, NAMES[:2])
    with SqliteStore(path) as store:
        deleted = store.delete(["r-1", "r-2", "r-1"], named_blobs)
        assert (deleted.rollouts, deleted.busy) == (("r-1", "r-2"), ())
        assert store.rollouts() == ["r-3"]
        assert store.check_file() == []
        assert list(verify_rollout(RolloutView(store, "r-3"))) == []
        with pytest.raises(UnknownRollout):
            RolloutView(store, "r-1")
        with pytest.raises(UnknownRollout):
            store.delete(["r-3", "r-1"], named_blobs)
    assert (blobs(path), everything(path, "r-3")) == (alone, kept)
    fill(path, ("r-1",))  # the id is free again
    assert everything(path, "r-3") == kept


def test_a_rollout_that_is_written_is_left(tmp_path: Path) -> None:
    """A rollout with a writer, here or in another process, is not deleted; the writer goes on and loses nothing."""
    path = tmp_path / "a.db"
    fill(path)
    code = """
from turnkeep.rollout.record import Rollout
sys.path.insert(0, sys.argv[2])
from rollout_samples import fill_rollout
with SqliteStore(path) as store, Rollout.open(store, "r-2") as rollout:
    say("writes")
    wait()
    fill_rollout(rollout, 2)
    say("done")
    wait()
"""
    with child(code, path, str(Path(__file__).parent)) as other, SqliteStore(path) as store:
        assert heard(other) == "writes"
        with Rollout.open(store, "r-1"):
            deleted = store.delete(NAMES, named_blobs)
        assert (deleted.rollouts, deleted.busy) == (("r-3",), ("r-1", "r-2"))
        tell(other)
        assert heard(other) == "done"
        assert all(list(verify_rollout(RolloutView(store, name))) == [] for name in NAMES[:2])
        assert store.delete(["r-1"], named_blobs).busy == ()


def test_what_is_written_while_names_are_looked_up_stays(tmp_path: Path) -> None:
    """Others may write while it is looked up what is named, and what they then name is not deleted; only the rows that
    changed meanwhile are looked at while others wait (contract 9.2)."""
    path = tmp_path / "a.db"
    blob = {blob_digest(b"shared"): b"shared"}
    name = next(iter(blob)).encode()
    with SqliteStore(path) as store, SqliteStore(path) as other:
        store.write("goes", b"{}").commit(b"{}", [Row("turns", 0, name)], blob)
        store.write("stays", b"{}").commit(b"{}", [Row("turns", 0, b""), Row("turns", 1, b"")])
        store.close()
        writers = [other.write(rollout, b"{}") for rollout in ("stays", "new")]

        asked = []

        def named(row: Row) -> list[str]:
            asked.append(row.document)
            while writers:
                writers.pop().commit(b"{}", [Row("turns", 1, name)], blob)
            return [row.document.decode()] if row.document else []

        with SqliteStore(path) as pruner:
            assert pruner.delete(["goes"], named)[:2] == (("goes",), 0)
            assert pruner.blob(name.decode()) == b"shared"
        assert asked == [b"", b"", name, name]


def test_deleting_is_all_or_nothing(tmp_path: Path) -> None:
    """Where a row that stays is damaged nobody knows what it names: nothing is deleted (contract 9.3)."""
    path = tmp_path / "a.db"
    fill(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE records SET document = x'7b7d' WHERE rollout = 3 AND number = 0 AND kind = 0")
        db.commit()
    before = blobs(path)
    with SqliteStore(path) as store:
        with pytest.raises(CorruptRecord, match="digest differs"):
            store.delete(["r-1"], named_blobs)
        assert store.rollouts() == list(NAMES)
        assert list(verify_rollout(RolloutView(store, "r-1"))) == []
        assert store.delete(["r-3"], named_blobs).rollouts == ("r-3",)
    assert blobs(path) <= before


PRUNER = """
from turnkeep.rollout.references import named_blobs
store = SqliteStore(path)
def named(row):
    if row.kind == "turns":
        say("reads")
    return named_blobs(row)
say("ready")
store.delete(["r-1"], named)
say("deleted")
store.compact()
say("compact")
wait()
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_while_pruning_or_compacting_loses_nothing(tmp_path: Path, seed: int) -> None:
    """Killed at any instant the store holds the rollout whole or not at all, and the others exactly (contract 9.2)."""
    path, rng = tmp_path / "a.db", random.Random(seed)
    fill(path, NAMES[1:])
    kept = everything(path, "r-2")
    for _ in range(5):
        with SqliteStore(path) as store:
            gone = "r-1" not in store.rollouts()
        if gone:
            fill(path, ("r-1",))
        with child(PRUNER, path) as pruner:
            assert heard(pruner) == "ready"
            time.sleep(rng.uniform(0, 0.05))
            os.kill(pruner.pid, signal.SIGKILL)
            pruner.wait()
        with SqliteStore(path) as store:
            assert store.check_file() == []
            for name in store.rollouts():
                assert list(verify_rollout(RolloutView(store, name))) == []
        assert everything(path, "r-2") == kept


def test_compacting_gives_room_back(tmp_path: Path) -> None:
    """What deleted rollouts took goes back to the disk; a reader in the middle of a snapshot goes on (9.2)."""
    path = tmp_path / "a.db"
    large = os.urandom(1 << 20)
    with SqliteStore(path) as store:
        writer = store.write("r", b"{}")
        writer.commit(b"{}", blobs={blob_digest(large): large})
        with pytest.raises(RolloutBusy, match="being written"):
            store.compact()
        writer.release()
        with SqliteStore(path) as reader, reader.snapshot():
            assert reader.rollouts() == ["r"]
            assert store.delete(["r"], named_blobs)[1:3] == (1, 1 << 20)
            store.compact()
            assert (reader.rollouts(), reader.blob(blob_digest(large))) == (["r"], large)
        before, after = store.compact()
        assert after < 200_000 <= before
        store.write("r", b"{}").commit(b"goes on")
        assert store.check_file() == []


def test_compacting_waits_for_no_other_process(tmp_path: Path) -> None:
    """A store that another process writes is not compacted, and the error says why."""
    code = 'writer = SqliteStore(path).write("r", b"0"); say("holds"); wait()'
    with child(code, tmp_path / "a.db") as other:
        assert heard(other) == "holds"
        assert "a rollout is being written" in command("compact", "--store", str(tmp_path / "a.db"), code=3)


def test_the_commands_say_what_they_did(tmp_path: Path) -> None:
    """`prune` and `compact` tell what was reclaimed, for people and as JSON, and delete nothing unasked."""
    path = str(tmp_path / "a.db")
    fill(Path(path))
    assert json.loads(command("prune", "--keep", "1", "--dry-run", "--json", "--store", path)) == {
        "rollouts": ["r-1", "r-2"],
        "dry_run": True,
    }
    assert "needs --yes" in command("prune", "--keep", "1", "--store", path, code=2)
    assert "either" in command("prune", "--store", path, code=2)
    assert "no date" in command("prune", "--before", "soon", "--store", path, code=2)
    assert json.loads(command("prune", "--before", "2001-01-01", "--yes", "--json", "--store", path))["rollouts"] == []
    done = json.loads(command("prune", "--keep", "1", "--yes", "--json", "--store", path))
    assert (done["rollouts"], done["busy"]) == (["r-1", "r-2"], [])
    assert "1 rollouts and" in command("prune", "--before", "2999-01-01T00:00", "--yes", "--store", path)
    told = json.loads(command("compact", "--json", "--store", path))
    assert told["before"] - told["after"] == told["reclaimed"] >= 0
    assert "reclaimed" in command("compact", "--store", path)


def test_the_log_is_moved_off_the_path_of_commits(tmp_path: Path) -> None:
    """The log stays bounded while a writer goes on, no commit is lost, and closing leaves one file."""
    path = tmp_path / "a.db"
    log = path.with_name("a.db-wal")
    sizes = []
    with SqliteStore(path) as store:
        writer = store.write("r", b"{}")
        for number in range(80):
            data = os.urandom(1 << 20)
            writer.commit(b"{}", [Row("turns", number, data[:100])], {blob_digest(data): data})
            sizes.append(log.stat().st_size)
        store._log.wait()
    assert max(sizes) < 2 * wal.LARGEST
    assert not log.exists()
    with SqliteStore(path) as store:
        assert len(store.rows("r", "turns")) == blobs(path) == 80


def test_an_older_store_that_is_written_is_not_migrated(tmp_path: Path) -> None:
    """A store of version 1 whose rollout has a writer is left as it is; when that is gone it opens (contract 9.4)."""
    path = Path(shutil.copy(GOLDEN, tmp_path / "a.db"))
    before = path.read_bytes()
    code = """
from pathlib import Path
from turnkeep.store import locks
assert locks.acquire(Path(path + "-writers"), 1)
say("holds")
wait()
"""
    with child(code, path) as old:
        assert heard(old) == "holds"
        with pytest.raises(RolloutBusy, match="written by an older turnkeep"):
            SqliteStore(path)
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("PRAGMA user_version").fetchone() == (1,)
            assert db.execute("SELECT count(*) FROM calls").fetchone() == (2,)
    with SqliteStore(path) as store:
        assert store.rollouts() == ["calls", "turns"]
    assert len(before) > 0


@pytest.mark.parametrize("seed", range(2))
def test_a_kill_while_migrating_leaves_the_one_or_the_other(tmp_path: Path, seed: int) -> None:
    """A process killed while it migrates leaves a store that the next one opens, with all that was there (9.2, 9.4)."""
    rng = random.Random(seed)
    source = tmp_path / "old.db"
    shutil.copy(GOLDEN, source)
    with closing(sqlite3.connect(source)) as db:
        rows = [(key, str(key), b"{}", bytes(32)) for key in range(10, 3000)]
        db.executemany("INSERT INTO rollouts VALUES (?, ?, 0, '', ?, ?)", rows)
        db.commit()
    versions = set()
    for number in range(6):
        path = Path(shutil.copy(source, tmp_path / f"{number}.db"))
        with child('say("ready")\nSqliteStore(path)\nsay("open")\nwait()', path) as process:
            assert heard(process) == "ready"
            time.sleep(rng.uniform(0, 0.06))
            process.kill()
            process.wait()
        with closing(sqlite3.connect(path)) as db:
            versions.add(db.execute("PRAGMA user_version").fetchone()[0])
        with SqliteStore(path) as store:
            assert len(store.rollouts()) == 2992
            assert [*verify_rollout(RolloutView(store, "calls"))] == []
    assert versions <= {1, VERSION}


def test_a_migrated_store_is_one_made_new(tmp_path: Path) -> None:
    """All steps together leave the tables that a new file gets."""
    shutil.copy(GOLDEN, tmp_path / "old.db")
    tables = []
    for name in ("old.db", "new.db"):
        SqliteStore(tmp_path / name).close()
        with closing(sqlite3.connect(tmp_path / name)) as db:
            found = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()
            tables.append([(*row[:3], " ".join((row[3] or "").replace('"', "").split())) for row in found])
    assert tables[0] == tables[1]


def test_a_migrated_store_is_pruned_too(tmp_path: Path) -> None:
    """Documents of older versions name their blobs as well: nothing that a kept rollout needs is deleted (9.4)."""
    path = Path(shutil.copy(GOLDEN, tmp_path / "a.db"))
    with SqliteStore(path) as store:
        views = [RolloutView(store, name) for name in ("calls", "turns")]
        turns, bodies = [view.turns for view in views], [views[0].response(0), views[0].request(1)]
        Rollout.open(store, "new").close()
        store.delete(["new"], named_blobs)
        assert [view.turns for view in views] == turns
        assert [views[0].response(0), views[0].request(1)] == bodies
        assert store.delete(["calls"], named_blobs).blobs > 0
        assert RolloutView(store, "turns").turns == turns[1]
        with pytest.raises(UnknownRollout):
            RolloutView(store, "calls")
