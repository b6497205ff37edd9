import errno
import fcntl
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from turnkeep.errors import ConfigurationError, CorruptRecord, StoreError, UnsupportedVersion
from turnkeep.store.base import Row, blob_digest
from turnkeep.store.migrations import APPLICATION_ID, VERSION
from turnkeep.store.open import open_store
from turnkeep.store.sqlite import SqliteStore
from turnkeep.store.wal import LARGE


def fill(path: Path) -> None:
    with SqliteStore(path) as store:
        store.write("r", b"{}").commit(b"state", [Row("turns", 0, b"turn")], {blob_digest(b"b"): b"b"})


@pytest.mark.parametrize("form", ["{path}", "sqlite:///{path}"])
def test_path_and_url_open_the_same_file(tmp_path: Path, form: str) -> None:
    """A bare path and a URL both open the file, whichever made it, and names with spaces and signs are no matter."""
    path = tmp_path / "a b %20 ü?#.db"
    fill(path)
    with open_store(form.format(path=path), create=False) as store:
        assert store.state("r") == b"state"
    assert [file.name for file in tmp_path.iterdir() if "-" not in file.name] == [path.name]


def test_relative_names_are_fixed_when_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path or URL is below the working folder of the moment, and stays there when that changes."""
    monkeypatch.chdir(tmp_path)
    with open_store("sqlite:///here.db") as store:
        (tmp_path / "else").mkdir()
        monkeypatch.chdir(tmp_path / "else")
        store.write("r", b"s").commit(b"s")
    with open_store(tmp_path / "here.db", create=False) as store:
        assert store.rollouts() == ["r"]
    assert list((tmp_path / "else").iterdir()) == []


@pytest.mark.parametrize("url", ["postgres://x/y", "sqlite://", "sqlite:///", "sqlite://file.db", "http://a/b.db"])
def test_other_urls_are_refused(url: str) -> None:
    """A URL that is no store's is a ConfigurationError that says what to use."""
    with pytest.raises(ConfigurationError, match="use sqlite:///"):
        open_store(url)


def test_memory_url_is_a_store_of_its_own() -> None:
    """`memory:` is an empty store each time."""
    with open_store("memory:") as one, open_store("memory:") as two:
        one.write("r", b"{}")
        assert (one.rollouts(), two.rollouts()) == (["r"], [])


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    """A file of another kind is refused by name and left as it was."""
    path = tmp_path / "notes.db"
    path.write_bytes(b"dear diary, " * 500)
    with pytest.raises(CorruptRecord, match=r"notes\.db is damaged or no SQLite database"):
        open_store(path)
    assert path.read_bytes() == b"dear diary, " * 500


@pytest.mark.parametrize("version", [0, 1, 7])
def test_a_foreign_database_is_refused_untouched(tmp_path: Path, version: int) -> None:
    """An SQLite database of another program is refused, whatever its version, and not one byte of it changes."""
    path = tmp_path / "bookmarks.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE rollouts (id TEXT)")
        db.execute(f"PRAGMA user_version = {version}")
        db.commit()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"bookmarks\.db is an SQLite database, but no turnkeep store"):
        open_store(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["bookmarks.db"]


def test_a_newer_store_is_refused_by_number(tmp_path: Path) -> None:
    """A store of a version that this turnkeep does not know is refused by its number (contract 9.4)."""
    path = tmp_path / "new.db"
    fill(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(UnsupportedVersion, match=f"store version {VERSION + 1}; this turnkeep knows up to {VERSION}"):
        open_store(path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """A file in a folder that is not there is a ConfigurationError, and no folder is made."""
    with pytest.raises(ConfigurationError, match=r"the folder of .*absent/a\.db does not exist"):
        open_store(tmp_path / "absent" / "a.db")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    """A folder in place of a file is a StoreError that names it."""
    with pytest.raises(StoreError, match="unable to open"):
        open_store(tmp_path)


def test_create_false_makes_nothing(tmp_path: Path) -> None:
    """`create=False` refuses where there is no file, makes none, and opens one that is there."""
    with pytest.raises(StoreError, match=r"there is no store at .*a\.db"):
        open_store(tmp_path / "a.db", create=False)
    assert list(tmp_path.iterdir()) == []
    fill(tmp_path / "a.db")
    with open_store(tmp_path / "a.db", create=False) as store:
        assert store.rollouts() == ["r"]


def test_durable_settings_are_in_force(tmp_path: Path) -> None:
    """The file is in WAL mode with pages of 16 KiB and our mark; connections write with synchronous FULL (9.2)."""
    path = tmp_path / "a.db"
    fill(path)
    with SqliteStore(path) as store:
        asked = {name: store._pragma(name) for name in ("journal_mode", "synchronous", "page_size", "user_version")}
        assert asked == {"journal_mode": "wal", "synchronous": 2, "page_size": 16384, "user_version": VERSION}
        assert store._pragma("application_id") == APPLICATION_ID
        assert store.check_file() == []
    assert path.read_bytes()[68:72] == b"tkp1"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    """A store in a folder where nothing can be written is a StoreError, not an OSError."""
    fill(tmp_path / "a.db")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreError), SqliteStore(tmp_path / "a.db") as store:
            store.write("r", b"{}")
    finally:
        tmp_path.chmod(0o700)


def test_a_side_file_that_cannot_be_opened_is_a_store_error(tmp_path: Path) -> None:
    """Where the locks' side file cannot be opened, taking a rollout is a StoreError, and nothing begins."""
    with SqliteStore(tmp_path / "a.db") as store:
        store.lock_path.mkdir()
        with pytest.raises(StoreError, match=r"a\.db-writers"):
            store.write("r", b"{}")
        assert store.rollouts() == []
        store.lock_path.rmdir()
        store.write("r", b"{}").commit(b"s")


def test_an_empty_file_is_no_store_to_read(tmp_path: Path) -> None:
    """A file of no bytes is refused where a store is to be read, and stays as it is; a writer begins one in it."""
    path = tmp_path / "a.db"
    path.touch()
    with pytest.raises(StoreError, match="is empty"):
        SqliteStore(path, create=False)
    assert path.read_bytes() == b""
    fill(path)
    with SqliteStore(path, create=False) as store:
        assert store.rollouts()


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    """Using a closed store is a StoreError that says so, and no talk of damage; closing twice is no error."""
    store = SqliteStore(tmp_path / "a.db")
    writer = store.write("r", b"{}")
    store.close()
    store.close()
    for use in (store.rollouts, lambda: store.state("r"), lambda: writer.commit(b"x"), lambda: store.write("s", b"")):
        with pytest.raises(StoreError, match="closed") as caught:
            use()
        assert not isinstance(caught.value, CorruptRecord)


def test_symlinks_share_locks(tmp_path: Path) -> None:
    """A store opened through a symlinked file or folder is the same store, with the same locks."""
    (tmp_path / "real").mkdir()
    fill(tmp_path / "real" / "a.db")
    (tmp_path / "folder").symlink_to(tmp_path / "real")
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "a.db")
    opened = [SqliteStore(tmp_path / name) for name in ("real/a.db", "folder/a.db", "link.db")]
    try:
        assert len({store.lock_path for store in opened}) == 1
        writer = opened[0].write("r", b"{}")
        for store in opened[1:]:
            with pytest.raises(StoreError, match="another writer"):
                store.write("r", b"{}")
        writer.release()
        opened[2].write("r", b"{}").commit(b"through the link")
        assert opened[0].state("r") == b"through the link"
    finally:
        for store in opened:
            store.close()


def test_a_store_that_cannot_be_written_says_what_it_needs(tmp_path: Path) -> None:
    """Where SQLite refuses to write, the error says that the folder has to be writable, and names the file."""
    with SqliteStore(tmp_path / "a.db") as store:
        store._db.execute("PRAGMA query_only = 1").fetchall()
        with pytest.raises(StoreError, match=r"a\.db: .*a folder that can be written"):
            store.write("r", b"{}")


def test_a_file_that_cannot_be_locked_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where locking fails the error says so, and not that another writer has the rollout."""

    def no_locks(*args: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with SqliteStore(tmp_path / "a.db") as store:
        with monkeypatch.context() as patched:
            patched.setattr(fcntl, "lockf", no_locks)
            with pytest.raises(StoreError, match="No locks available"):
                store.write("r", b"{}")
        store.write("r", b"{}").release()


def move(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def replace(path: Path) -> None:
    fill(path.with_name("other.db"))
    path.with_name("other.db").rename(path)


@pytest.mark.parametrize("befall", [move, Path.unlink, replace])
def test_nothing_is_kept_in_a_file_that_is_gone(tmp_path: Path, befall: Callable[[Path], None]) -> None:
    """Once its file was moved, deleted or replaced a store acknowledges no commit, and touches no other file (9.2)."""
    path = tmp_path / "a.db"
    with SqliteStore(path) as store:
        writer = store.write("r", b"0")
        writer.commit(b"1", [Row("turns", 0, b"kept")])
        befall(path)
        for write in (
            lambda: writer.commit(b"2"),
            lambda: store.write("s", b"0"),
            lambda: store.delete(["r"], lambda row: []),
        ):
            with pytest.raises(StoreError, match="replaced by" if befall is replace else "moved or deleted"):
                write()
        store._log.committed(LARGE)
        store._log.wait()
        assert store.state("r") == b"1"
        assert path.exists() == (befall is replace)
    if befall is move:
        with SqliteStore(tmp_path / "moved.db") as store:
            assert store.rows("r", "turns") == [Row("turns", 0, b"kept")]


def test_a_file_that_is_gone_is_told_after_a_fork(tmp_path: Path) -> None:
    """A store whose file was deleted makes no new one when it connects again."""
    path = tmp_path / "a.db"
    with SqliteStore(path) as store:
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        path.unlink()
        with pytest.raises(StoreError, match="moved or deleted"):
            store.rollouts()
        assert not path.exists()


def test_what_an_error_left_open_is_rolled_back(tmp_path: Path) -> None:
    """A transaction that a signal's error left open, wherever it came, hinders no later commit and is not in it."""
    with SqliteStore(tmp_path / "a.db") as store:
        writer = store.write("r", b"0")
        for _ in range(2):
            store._db.execute("BEGIN IMMEDIATE")
            store._db.execute("DELETE FROM records")
            writer.commit(b"1")
            with store.snapshot():
                assert store.state("r") == b"1"
        with store.snapshot(), pytest.raises(StoreError, match="snapshot"):
            writer.commit(b"2")
        assert store.state("r") == b"1"


def test_a_loop_of_links_is_told(tmp_path: Path) -> None:
    """A path that leads in a circle is a StoreError."""
    (tmp_path / "a.db").symlink_to(tmp_path / "b.db")
    (tmp_path / "b.db").symlink_to(tmp_path / "a.db")
    with pytest.raises(StoreError, match=r"a\.db"):
        SqliteStore(tmp_path / "a.db")
