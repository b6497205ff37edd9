"""A NOOA storage goes to references and back: exactly, all or nothing, checked before it replaces anything (9.1)."""

import json
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from agents import SCRIPT, Clerk
from harness import bench, output_items, place_of, play
from hypothesis import given, settings
from hypothesis import strategies as st
from migrate_files import DIGESTS, KEYS, change, events, golden, marked, rows
from nooa.storage import SQLiteStorageManager

from turnkeep.archive.json_form import dumps_turn
from turnkeep.archive.packed import pack
from turnkeep.errors import (
    ArchiveError,
    ConfigurationError,
    CorruptRecord,
    MissingTurn,
    PreparationFailure,
    RolloutBusy,
    StoreError,
    TurnkeepError,
    UnsupportedVersion,
)
from turnkeep.history.turn import Turn
from turnkeep.nooa import migrate as module
from turnkeep.nooa import save_snapshot
from turnkeep.nooa.archives import read_archive, write_archive
from turnkeep.nooa.migrate import migrate
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.view import RolloutView
from turnkeep.store.open import open_store
from turnkeep.testing.strategies import turns
from turnkeep.wire.json import loads, same

pytestmark = [pytest.mark.nooa, pytest.mark.slow, pytest.mark.filterwarnings("default")]

HERE = Path(__file__).parent
REQUESTS = {
    "archive": "archive.nooa",
    "to reference": "moved.nooa",
    "snapshot to reference": "moved.json",
    "reference": "reference.nooa",
    "to archive": "embedded.nooa",
    "there and back": "back.nooa",
}


@pytest.fixture(scope="module")
def restored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What one new process sent for each way: storages as they were written, and migrated ones."""
    folder = tmp_path_factory.mktemp("migrate")
    store = str(folder / "turns.db")
    told: dict[str, Any] = {"folder": folder}
    with ExitStack() as servers:
        for embed in ("archive", "reference"):
            b = servers.enter_context(bench(SCRIPT, store=store, rollout=embed, embed=embed))
            with SQLiteStorageManager(folder / f"{embed}.nooa") as storage:
                clerk = b.llm.attach(Clerk(b.llm, storage=storage))
                play(b, lambda clerk=clerk: clerk.count("all of them"))  # type: ignore[misc]
                storage.save_snapshot(clerk)
                (folder / f"{embed}.json").write_text(json.dumps(save_snapshot(clerk)))
            told[f"outputs of {embed}"] = [output_items(b.rollout, call) for call in range(b.rollout.used)]
            b.rollout.close()
        for name, source, *ways in (
            ("moved.nooa", "archive.nooa", "reference"),
            ("moved.json", "archive.json", "reference"),
            ("embedded.nooa", "reference.nooa", "archive"),
            ("back.nooa", "archive.nooa", "reference", "archive"),
        ):
            shutil.copy(folder / source, folder / name)
            for way in ways:
                migrate(folder / name, way, store, keep_backup=False)  # type: ignore[arg-type]
        cases = {}
        for number, (way, name) in enumerate(REQUESTS.items()):
            needs_store = way.endswith("reference")
            kind = {"snapshot" if name.endswith("json") else "db": str(folder / name)}
            case = {"url": b.url, "rollout": f"new-{number}", "embed": "archive", "brief": True, **kind}
            cases[way] = {**case, "store": store if needs_store else "memory:"}
        path = folder / "cases.json"
        path.write_text(json.dumps(cases))
        subprocess.run([sys.executable, str(HERE / "restore.py"), str(path)], check=True, timeout=120)
        yield {**told, **loads(Path(f"{path}.out").read_bytes())}


@pytest.mark.parametrize(
    ("way", "as_written"),
    [
        ("to reference", "archive"),
        ("snapshot to reference", "archive"),
        ("to archive", "reference"),
        ("there and back", "archive"),
    ],
)
def test_a_migrated_storage_restores_to_the_same_request(restored: dict[str, Any], way: str, as_written: str) -> None:
    """In a new process it sends what the storage as written sends, byte for byte but for the agent's id (9.1, 4.1)."""
    one, other = (dict(restored[name]["first"]) for name in (way, as_written))
    del one["prompt_cache_key"], other["prompt_cache_key"]
    assert same(one, other)
    for items in restored[f"outputs of {as_written}"]:
        assert place_of(items, one["input"]) is not None
    assert restored[way]["gaps"] == restored[as_written]["gaps"]
    assert restored[way]["boxes"] == [21, 21]


def test_references_resolve_from_another_rollout_of_the_store(restored: dict[str, Any]) -> None:
    """The restored agents went on in rollouts of their own; the turns came from the rollout that made them (9.1)."""
    with open_store(restored["folder"] / "turns.db") as store:
        assert {"archive", "reference", "new-1", "new-2", "new-3"} <= set(store.rollouts())
        assert RolloutView(store, "new-1").turn_count == 1


def test_a_storage_that_keeps_some_turns_each_way_goes_both_ways(restored: dict[str, Any], tmp_path: Path) -> None:
    """After the restore the storage holds four references and an archive; either way all five are kept alike (9.1)."""
    store = str(restored["folder"] / "turns.db")
    for to, held in (("reference", 0), ("archive", 5)):
        path = Path(shutil.copy(restored["folder"] / "moved.nooa", tmp_path / f"{to}.nooa"))
        done = migrate(path, to, store)  # type: ignore[arg-type]
        assert (done.turns, done.converted) == (5, 1 if to == "reference" else 4)
        assert sum(archived for _, _, archived in marked(path)) == held


def test_a_storage_there_and_back_is_the_storage_that_was(restored: dict[str, Any], tmp_path: Path) -> None:
    """To references and to archives again changes nothing in any table, nor which event holds an archive (9.1)."""
    path = Path(shutil.copy(golden(tmp_path), tmp_path / "twice.db"))
    store = str(tmp_path / "new.db")
    for to in ("reference", "archive", "reference", "archive"):
        migrate(path, to, store, keep_backup=False)
    twice, once = rows(path), rows(golden(tmp_path))
    assert marked(path) == marked(tmp_path / "nooa.db")
    for table in once.keys() - {"events"}:
        assert twice[table] == once[table]
    kept = _turns(store, "old")
    for file in (path, tmp_path / "nooa.db"):
        assert (
            tuple(read_archive(each["metadata"]["turnkeep_archive"]) for each in events(file) if _archived(each))
            == kept
        )


def _archived(members: dict[str, Any]) -> bool:
    return "turnkeep_archive" in members["metadata"]


def _turns(store: str, rollout: str) -> tuple[Turn, ...]:
    with open_store(store) as opened:
        return RolloutView(opened, rollout).turns


@pytest.mark.parametrize("name", ["nooa.db", "snapshot.json"])
def test_archives_of_the_first_kind_open(tmp_path: Path, name: str) -> None:
    """JSON text archives, as the first adapter wrote them, are read for ever and move into a new store (9.4)."""
    path, store = golden(tmp_path, name), str(tmp_path / "new.db")
    texts = [each["metadata"]["turnkeep_archive"] for each in events(path) if _archived(each)]
    assert [text[:9] for text in texts] == ['{"parts":'] * 4
    assert [read_archive(text).digest for text in texts] == DIGESTS
    assert [dumps_turn(read_archive(text)) for text in texts] == texts
    done = migrate(path, "reference", store)
    assert (done.turns, done.converted, done.added) == (4, 4, 4)
    assert [turn.digest for turn in _turns(store, "old")] == DIGESTS
    assert marked(path) == [
        ("call", DIGESTS[0], False),
        ("call", DIGESTS[0], False),
        *((kind, digest, False) for kind, digest in zip(("silent", "call", "text"), DIGESTS[1:], strict=True)),
    ]
    assert done.bytes_after is not None
    assert done.bytes_after < done.bytes_before / 10


@given(turns())
def test_an_archive_gives_the_turn_back(turn: Turn) -> None:
    """Any turn is equal to what its archive gives, and equal turns are equal texts of ASCII (1.6, 9.1)."""
    text = write_archive(turn)
    assert text.isascii()
    assert read_archive(text) == turn == read_archive(dumps_turn(turn))
    assert write_archive(read_archive(text)) == text


@pytest.mark.parametrize("text", ["", "dGtwa", "eyJ9", "{}", "ä", write_archive(Turn((), None, "stop"))[:-4]])
def test_what_is_no_archive_is_refused(text: str) -> None:
    """Text that is no archive, or broken off, is an error and never half a turn (9.3)."""
    with pytest.raises((ArchiveError, CorruptRecord)):
        read_archive(text)


def test_an_archive_holds_one_turn() -> None:
    """Packed turns of another number, and what is no text, are refused (9.3)."""
    import base64

    with pytest.raises(ArchiveError, match="one turn, not 0"):
        read_archive(base64.b64encode(pack([])).decode())
    with pytest.raises(ArchiveError, match="not list"):
        read_archive([])  # type: ignore[arg-type]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=3), turns()), max_size=4))
@settings(max_examples=15)
def test_whatever_stands_in_an_event_stays(
    tmp_path_factory: pytest.TempPathFactory, held: list[tuple[dict[str, Any], Turn]]
) -> None:
    """Members of unknown events, of any JSON value, and the turns beside them survive both ways (9.1, 1.6)."""
    folder = tmp_path_factory.mktemp("any")
    path = golden(folder)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM events")
        for n, (members, turn) in enumerate(held):
            mark = {"key": f"k{n}", "kind": "text", "seen": "", "turn": turn.digest, "rollout": "r"}
            metadata = {**members, "turnkeep": mark, "turnkeep_archive": write_archive(turn)}
            value = {**members, "event_type": "Unheard", "metadata": metadata}
            value = {name: member for name, member in value.items() if name not in ("parts", "replay_scope")}
            row = (str(n), f"id-{n}", "Unheard", "active", json.dumps(value), n)
            database.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", row)
    before = json.dumps(events(path))
    store = str(folder / "store.db")
    assert migrate(path, "reference", store, keep_backup=False).converted == len(held)
    assert not any(map(_archived, events(path)))
    migrate(path, "archive", store, keep_backup=False)
    assert json.dumps(events(path)) == before


def test_a_rollout_may_be_named(tmp_path: Path) -> None:
    """--rollout says where turns go, the marks then name it, and nothing goes where the events said (9.1)."""
    path, store = golden(tmp_path), str(tmp_path / "new.db")
    migrate(path, "reference", store, rollout="mine")
    assert [turn.digest for turn in _turns(store, "mine")] == DIGESTS
    assert {each["metadata"]["turnkeep"].get("rollout") for each in events(path) if "turnkeep" in each["metadata"]} == {
        "mine",
        None,  # the stand-in, whose turn is another event's
    }
    with open_store(store) as opened:
        assert opened.rollouts() == ["mine"]


def test_what_is_there_already_is_not_added_again(tmp_path: Path) -> None:
    """A second storage of the same rollout adds nothing; a storage that is as asked for is left alone (9.1)."""
    store = str(tmp_path / "new.db")
    assert migrate(golden(tmp_path / "a"), "reference", store).added == 4
    assert migrate(golden(tmp_path / "b"), "reference", store).added == 0
    path = tmp_path / "b" / "nooa.db"
    before = path.stat()
    again = migrate(path, "reference", store, keep_backup=False)
    assert (again.converted, again.backup, again.bytes_after) == (0, None, None)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert len(_turns(store, "old")) == 4


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    """With dry_run everything is checked and told, no store is made, and no byte is written (9.1)."""
    path = golden(tmp_path)
    before = path.read_bytes()
    done = migrate(path, "reference", str(tmp_path / "new.db"), dry_run=True)
    assert (done.converted, done.added, done.bytes_after, done.backup) == (4, 4, None, None)
    assert path.read_bytes() == before
    assert {each.name for each in tmp_path.iterdir()} == {"nooa.db", "nooa.lock"}


def test_the_backup_is_the_old_file(tmp_path: Path) -> None:
    """NAME.bak is the file as it was; one from before is never written over, one half made by a kill is (9.2)."""
    path, store = golden(tmp_path), str(tmp_path / "new.db")
    backup = tmp_path / "nooa.db.bak"
    backup.hardlink_to(path)  # as a process leaves it that was killed between its last two steps
    old = path.read_bytes()
    path.chmod(0o640)
    assert migrate(path, "reference", store).backup == str(backup)
    assert backup.read_bytes() == old
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(ConfigurationError, match="from before"):
        migrate(path, "archive", store)
    assert backup.read_bytes() == old
    migrate(path, "archive", store, keep_backup=False)


def test_a_file_may_be_named_in_any_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path, one through a linked folder and a link to the file itself mean the file; links stay (9.2)."""
    path = golden(tmp_path / "real")
    (tmp_path / "folder").symlink_to(tmp_path / "real")
    (tmp_path / "link.db").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    for name, to in (("real/nooa.db", "reference"), ("folder/nooa.db", "archive"), ("link.db", "reference")):
        assert migrate(Path(name), to, "s.db", keep_backup=False).converted == 4  # type: ignore[arg-type]
    assert (tmp_path / "link.db").is_symlink()
    with SQLiteStorageManager("link.db"), pytest.raises(StoreError, match=r"NOOA has link\.db open"):
        migrate(Path("link.db"), "archive", "s.db")


def test_what_a_killed_nooa_left_in_the_log_is_migrated(tmp_path: Path) -> None:
    """Events that stand only in SQLite's write-ahead log, their process killed, are in the result (9.2)."""
    path = golden(tmp_path)
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sqlite3, sys, time; d = sqlite3.connect(sys.argv[1]); d.execute('PRAGMA journal_mode=WAL');"
            "d.execute(\"UPDATE events SET status = 'late' WHERE tag = '16'\"); d.commit();"
            "print('done', flush=True); time.sleep(60)",
            str(path),
        ],
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"done\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert path.with_name("nooa.db-wal").stat().st_size
    migrate(path, "reference", str(tmp_path / "new.db"))
    assert next(row for row in rows(path)["events"] if row[0] == "16")[3] == "late"
    assert not path.with_name("nooa.db-wal").exists()


def test_killed_at_any_moment_the_original_or_the_converted_file_is_there(tmp_path: Path) -> None:
    """After SIGKILL the file is whole, one or the other, the next migration ends it, and nothing is left over (9.2)."""
    done = subprocess.run(
        [sys.executable, str(HERE / "migrate_killed.py"), str(tmp_path / "k"), "20260101"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for found in json.loads(done.stdout).values():
        assert found.keys() == {"original", "converted", "instants"}, found


def _open_in_nooa(path: Path) -> ExitStack:
    stack = ExitStack()
    stack.enter_context(SQLiteStorageManager(path))
    return stack


def _open_by_another_name(path: Path) -> ExitStack:
    """NOOA has the file open through a link elsewhere, with a lock of another name: SQLite's own lock shows it."""
    other = path.parent / "elsewhere" / "other.db"
    other.parent.mkdir()
    other.symlink_to(path)
    code = "import sqlite3, sys; d = sqlite3.connect(sys.argv[1]); d.execute('SELECT * FROM events').fetchone();"
    code += "print(1, flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code, str(other)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdout.readline()
    stack = ExitStack()
    stack.callback(child.wait)
    stack.callback(child.stdout.close)
    stack.callback(child.stdin.close)
    return stack


def _busy_rollout(path: Path) -> ExitStack:
    stack = ExitStack()
    store = stack.enter_context(open_store(path.parent / "new.db"))
    stack.enter_context(Rollout.open(store, "old"))
    return stack


def _failed_rollout(path: Path) -> None:
    with open_store(path.parent / "new.db") as store, Rollout.open(store, "old") as rollout:
        rollout.record_failure(PreparationFailure("m"))


def _statement(sql: str) -> Callable[[Path], None]:
    def run(path: Path) -> None:
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(sql)

    return run


def _wrong_archive(path: Path) -> None:
    other = next(each["metadata"]["turnkeep_archive"] for each in events(path) if _archived(each))
    change(path, "16", turnkeep_archive=other)


def _broken_archive(path: Path) -> None:
    change(path, "16", turnkeep_archive="dGtwa")


REFUSED: dict[str, tuple[Callable[[Path], Any], type[TurnkeepError], str]] = {
    "open in NOOA": (_open_in_nooa, StoreError, r"NOOA has .*nooa.db open in process \d+"),
    "open under another name": (_open_by_another_name, StoreError, "open elsewhere"),
    "its rollout is being written": (_busy_rollout, RolloutBusy, "another writer"),
    "its rollout failed": (_failed_rollout, StoreError, "last attempt failed"),
    "an archive of another turn": (_wrong_archive, CorruptRecord, "event 16: its archive is not the turn c5d65382"),
    "a broken archive": (_broken_archive, ArchiveError, "event 16"),
    "an archive without a mark": (
        lambda path: change(path, "1", turnkeep_archive="{}"),
        CorruptRecord,
        "event 1 has an archive and no mark",
    ),
    "an archive on a stand-in": (
        lambda path: change(path, "11", turnkeep_archive="{}"),
        CorruptRecord,
        "event 11 has an archive, and its mark names no turn",
    ),
    "two turns under one key": (
        _statement(f"UPDATE events SET data = replace(data, '{KEYS[1]}', '{KEYS[0]}')"),
        CorruptRecord,
        "another turn than",
    ),
    "a newer schema": (_statement("UPDATE schema_version SET version = 2"), UnsupportedVersion, "schema version 2"),
    "another column": (_statement("ALTER TABLE events ADD COLUMN blob"), UnsupportedVersion, "insertion_order, blob"),
    "another database": (_statement("DROP TABLE active_tags"), ConfigurationError, "no storage of NOOA"),
    "an event that is no JSON": (
        _statement("UPDATE events SET data = '{' WHERE tag = '3'"),
        CorruptRecord,
        "event 3 is no JSON",
    ),
    "the newer runtime's events": (
        _statement("""UPDATE events SET data = '{"parts": [], "replay_scope": null}' WHERE tag = '3'"""),
        StoreError,
        "event 3 is a turn itself",
    ),
    "no SQLite and no JSON": (lambda path: path.write_bytes(b"hello"), ConfigurationError, "neither"),
    "JSON of another kind": (lambda path: path.write_text("[]"), ConfigurationError, "no snapshot"),
    "NOOA's own snapshot": (lambda path: path.write_text('{"attributes": {}}'), ArchiveError, "no events"),
    "a damaged snapshot": (
        lambda path: path.write_text('{"attributes": {"_turnkeep_events": "[]"}}'),
        CorruptRecord,
        "no JSON object",
    ),
    "not there": (lambda path: path.unlink(), StoreError, "there is no file"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_migrated_is_refused_and_left_as_it_is(tmp_path: Path, why: str) -> None:
    """One clear sentence, and neither the file nor its folder is changed (9.1, 9.3)."""
    path = golden(tmp_path)
    spoil, error, sentence = REFUSED[why]
    with ExitStack() as stack:
        spoiled = spoil(path)
        if isinstance(spoiled, ExitStack):
            stack.enter_context(spoiled)
        before = path.read_bytes() if path.exists() else None
        with pytest.raises(error, match=sentence):
            migrate(path, "reference", str(tmp_path / "new.db"))
        assert before == (path.read_bytes() if path.exists() else None)
    assert not {each.name for each in tmp_path.iterdir()} & {"nooa.db.migrating", "nooa.db.bak", "nooa.db-wal"}


def test_nooa_waits_while_a_storage_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NOOA cannot open a storage that is being migrated: its own lock is held, and names this process (9.2)."""
    from nooa.storage.sqlite import SessionAlreadyActiveError

    path = golden(tmp_path)
    seen: list[str] = []

    def try_nooa(*arguments: Any) -> None:
        with pytest.raises(SessionAlreadyActiveError) as caught:
            SQLiteStorageManager(path)
        seen.append(str(caught.value))

    monkeypatch.setattr(module, "_compare", try_nooa)
    migrate(path, "reference", str(tmp_path / "new.db"))
    assert "already active in another process" in seen[0]
    SQLiteStorageManager(path).close()


@pytest.mark.parametrize("gone", ["turn", "rollout", "store"])
def test_a_missing_turn_is_named_and_nothing_is_changed(tmp_path: Path, gone: str) -> None:
    """A reference that resolves nowhere is MissingTurn with rollout and digest, before anything is written (9.3)."""
    path, store = golden(tmp_path), tmp_path / "new.db"
    migrate(path, "reference", str(store), keep_backup=False)
    before, other = path.read_bytes(), tmp_path / "other.db"
    if gone != "store":
        with open_store(store) as whole, open_store(other) as part:
            if gone == "turn":
                with Rollout.open(part, "old") as rollout:
                    for number in (0, 1, 3):
                        rollout.add_turn(RolloutView(whole, "old").turn(number))
    for to in ("archive", "reference"):
        with pytest.raises(StoreError) as caught:
            migrate(path, to, str(other))
        if gone != "store" or to == "reference":
            assert isinstance(caught.value, MissingTurn)
            assert DIGESTS[2 if gone == "turn" else 0] in str(caught.value)
            assert caught.value.rollout == "old"
    assert path.read_bytes() == before


def test_a_damaged_store_embeds_nothing(tmp_path: Path) -> None:
    """A turn that is not what was written is CorruptRecord, and the storage stays as it is (9.3)."""
    path, store = golden(tmp_path), tmp_path / "new.db"
    migrate(path, "reference", str(store), keep_backup=False)
    with closing(sqlite3.connect(store)) as database, database:
        database.execute("UPDATE blobs SET data = zeroblob(length(data))")
    before = path.read_bytes()
    with pytest.raises(CorruptRecord, match="old"):
        migrate(path, "archive", str(store))
    assert path.read_bytes() == before


def test_a_copy_that_differs_never_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read back is compared: another turn in the copy, or one lost, and the old file stays (9.3)."""
    path, store = golden(tmp_path), str(tmp_path / "new.db")
    migrate(path, "reference", store, keep_backup=False)
    before = path.read_bytes()
    monkeypatch.setattr(module, "write_archive", lambda turn: write_archive(Turn((), None, "stop")))
    with pytest.raises(CorruptRecord, match="migrating: event 5: its archive is not the turn"):
        migrate(path, "archive", store)
    monkeypatch.setattr(module, "_holders", lambda group, turn: frozenset())
    with pytest.raises(CorruptRecord, match="not kept as it should be"):
        migrate(path, "archive", store)
    assert path.read_bytes() == before
    assert not path.with_name("nooa.db.migrating").exists()


def test_what_cannot_work_is_said_first() -> None:
    """Another direction, and a store that ends with the process, are usage errors."""
    with pytest.raises(ConfigurationError, match="to 'both'"):
        migrate(Path("x"), "both", "s.db")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="in memory"):
        migrate(Path("x"), "reference", "memory:")


def test_the_command_migrates_without_importing_nooa(tmp_path: Path) -> None:
    """`turnkeep migrate nooa` tells what it did, as JSON too; its exit codes are 0, 2 and 3; NOOA is not imported."""
    path = golden(tmp_path)
    report = "\nimport sys; print([name for name in ('nooa', 'litellm') if name in sys.modules], file=sys.stderr)"
    code = f"from turnkeep.cli.main import main\ntry: main()\nfinally:{report.replace(chr(10), chr(10) + ' ')}"

    def run(*arguments: str) -> tuple[int, str, str]:
        command = [sys.executable, "-c", code, "migrate", "nooa", str(path), "--store", str(tmp_path / "s.db")]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, timeout=60)
        assert done.stderr.endswith("[]\n"), done.stderr
        return done.returncode, done.stdout, done.stderr

    exit_code, said, _ = run("--to", "reference", "--dry-run")
    assert exit_code == 0
    assert "would move 4 of 4 turns to" in " ".join(said.split())
    exit_code, said, _ = run("--to", "reference", "--json")
    told = json.loads(said)
    assert (exit_code, told["converted"], told["added"], told["backup"]) == (0, 4, 4, f"{path}.bak")
    exit_code, _, told_wrong = run("--to", "archive")
    assert (exit_code, "--no-backup" in told_wrong) == (2, True)
    exit_code, said, _ = run("--to", "archive", "--no-backup")
    assert exit_code == 0
    assert "moved 4 of 4 turns into the events" in " ".join(said.split())
    assert "nothing to do" in " ".join(run("--to", "archive", "--no-backup")[1].split())
    path.unlink()
    exit_code, _, told_wrong = run("--to", "archive", "--json", "--no-backup")
    assert exit_code == 2
    assert json.loads(told_wrong.splitlines()[0])["error"]["type"] == "ConfigurationError"


def test_the_commands_of_the_page_work_one_after_the_other(tmp_path: Path) -> None:
    """What docs/references.md prints takes a storage there and back."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "references.md").read_text(encoding="utf-8")
    commands = [line for line in page.splitlines() if line.startswith("turnkeep migrate nooa nooa.db")]
    kept = rows(golden(tmp_path))
    for line in commands:
        words = shlex.split(line, comments=True)[1:]
        command = [sys.executable, "-m", "turnkeep.cli.main", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
    assert len(commands) == 2
    assert rows(tmp_path / "nooa.db.bak") == kept
