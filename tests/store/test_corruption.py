import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from rollout_samples import SCOPE, fill_rollout, readings

from turnkeep.cli.output import EXIT_FOUND
from turnkeep.cli.verify import verify_store
from turnkeep.errors import CorruptRecord, TurnkeepError
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.verify import verify_rollout
from turnkeep.rollout.view import RolloutView
from turnkeep.store.base import KINDS
from turnkeep.store.migrations import CODES
from turnkeep.store.sqlite import SqliteStore

TURNS, CALLS = 4, 6
ROLLOUTS = ("r-1", "r-2")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two rollouts, closed, all in one file."""
    path = tmp_path_factory.mktemp("whole") / "a.db"
    with SqliteStore(path) as store:
        for name in ROLLOUTS:
            with Rollout.open(store, name, scope=SCOPE) as rollout:
                fill_rollout(rollout, TURNS)
    assert [file.name for file in path.parent.iterdir() if file.name.endswith("-wal")] == []
    return path


@pytest.fixture(scope="module")
def original(whole: Path) -> dict[tuple[str, str], Any]:
    """All that is read of the whole store."""
    with SqliteStore(whole) as store:
        assert all(list(verify_rollout(RolloutView(store, name))) == [] for name in ROLLOUTS)
        return {(name, what): read() for name in ROLLOUTS for what, read in readings(store, name, TURNS, CALLS)}


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copy(whole, tmp_path / "a.db"))


def read_all(path: Path, original: dict[tuple[str, str], Any]) -> int:
    """Read everything: each is equal to the original or a turnkeep error. Gives the number of errors."""
    errors = 0
    try:
        store = SqliteStore(path)
    except TurnkeepError:
        return len(original)
    with store:
        for name in ROLLOUTS:
            for what, read in readings(store, name, TURNS, CALLS):
                try:
                    found = read()
                except TurnkeepError:
                    errors += 1
                else:
                    assert found == original[name, what], (name, what)
    return errors


def flips(size: int, count: int, seed: int) -> Iterator[tuple[int, int]]:
    rng = random.Random(seed)
    for _ in range(count):
        yield rng.randrange(size), 1 << rng.randrange(8)


@pytest.mark.parametrize("seed", range(4))
def test_any_flipped_bit_of_the_file_is_found_or_does_no_harm(
    copy: Path, original: dict[tuple[str, str], Any], seed: int
) -> None:
    """A bit flipped anywhere in the file: all that is read is what was written, or a turnkeep error (contract 9.3)."""
    data = copy.read_bytes()
    harmed = 0
    for position, bit in flips(len(data), 40, seed):
        damage(copy, data, position, bit)
        harmed += read_all(copy, original) > 0
    assert harmed > 0


def test_any_flipped_bit_of_the_structure_is_found_or_does_no_harm(
    copy: Path, original: dict[tuple[str, str], Any]
) -> None:
    """So it is where SQLite keeps its own: in the file's header, page headers and cell pointers (9.3)."""
    data = copy.read_bytes()
    page = 16384
    places = [*range(100), *(start + offset for start in range(0, len(data), page) for offset in range(24))]
    rng = random.Random(5)
    for position in rng.sample(places, 90):
        damage(copy, data, position, 1 << rng.randrange(8))
        read_all(copy, original)


def record_places(data: bytes, path: Path) -> list[int]:
    """Where the record headers of rows and states stand: just before the bytes of a document."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        cells = db.execute("SELECT document FROM records").fetchall()
        cells += db.execute("SELECT id FROM rollouts").fetchall()
    places: list[int] = []
    for (cell,) in cells:
        found = data.find(cell.encode() if isinstance(cell, str) else cell[:30])
        assert found > 0
        places += range(found - 14, found)
    return places


def test_any_flipped_bit_before_a_document_is_found_or_does_no_harm(
    copy: Path, original: dict[tuple[str, str], Any]
) -> None:
    """So it is in what stands before a document, where bytes may turn into text or nothing (9.3)."""
    data = copy.read_bytes()
    rng = random.Random(6)
    harmed = 0
    for position in rng.sample(record_places(data, copy), 90):
        damage(copy, data, position, 1 << rng.randrange(3))
        harmed += read_all(copy, original) > 0
    assert harmed > 20


def damage(path: Path, data: bytes, position: int, bit: int) -> None:
    for side in path.parent.glob(path.name + "-*"):
        side.unlink()
    changed = bytearray(data)
    changed[position] ^= bit
    path.write_bytes(changed)


@pytest.mark.parametrize("seed", range(2))
def test_writing_to_a_damaged_store_raises_nothing_foreign(copy: Path, seed: int) -> None:
    """Opening a rollout of a damaged store for writing and going on works, or is a turnkeep error (contract 9.3)."""
    data = copy.read_bytes()
    for position, bit in flips(len(data), 30, seed):
        damage(copy, data, position, bit)
        with suppress(TurnkeepError), SqliteStore(copy) as store, Rollout.open(store, "r-2", rerun=True) as rollout:
            fill_rollout(rollout, 1)
            rollout.tools()


class Place(NamedTuple):
    """Where an array's bytes stand: its turn, item and field, the blob, and the position in that."""

    turn: int
    part: int
    field: str
    blob: str
    position: int


def arrays_of(path: Path, rollout: str) -> Iterator[Place]:
    with SqliteStore(path) as store:
        for turn, document in enumerate(RolloutView(store, rollout)._documents):
            digest = document["body"][0]
            blob = store.blob(digest)
            assert blob is not None
            for hole in msgspec.msgpack.decode(blob[6:])[1]:
                yield Place(turn, hole[0], hole[1], digest, blob.index(hole[-1]))


def test_a_damaged_array_is_named(copy: Path) -> None:
    """A bit flipped in an array is found by that array's own digest, and rollout, turn and field are named (9.3)."""
    arrays = list(arrays_of(copy, "r-1"))
    fields = {"prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts"}
    assert {array.field for array in arrays} == fields
    for turn, part, field, digest, position in arrays:
        with SqliteStore(copy) as store, changed_blob(copy, digest, position + 3):
            view = RolloutView(store, "r-1")
            with pytest.raises(CorruptRecord) as caught:
                view.turn(turn)
            error = caught.value
            assert (error.rollout, error.turn, error.item, error.field) == ("r-1", turn, part, field)
            assert field in str(error)
            places = [(finding.rule, finding.turn, finding.field) for finding in verify_rollout(view) if finding.field]
            assert ("corrupt", turn, field) in places
            assert all(view.turn(other).parts for other in range(TURNS) if other != turn)


def test_a_missing_body_is_named(copy: Path) -> None:
    """A turn whose stored body is gone is found and named, and so is the call that received it (contract 9.3)."""
    turn, _, _, digest, _ = list(arrays_of(copy, "r-1"))[5]
    with closing(sqlite3.connect(copy)) as db:
        db.execute("DELETE FROM blobs WHERE digest = ?", (bytes.fromhex(digest),))
        db.commit()
    with SqliteStore(copy) as store, pytest.raises(CorruptRecord) as caught:
        RolloutView(store, "r-1").turn(turn)
    assert (caught.value.rollout, caught.value.turn) == ("r-1", turn)
    with SqliteStore(copy) as store, pytest.raises(CorruptRecord) as caught:
        RolloutView(store, "r-1").response(turn)
    assert (caught.value.rollout, caught.value.call) == ("r-1", turn)


def test_damaged_evidence_is_named(copy: Path) -> None:
    """A bit flipped in a response, a piece of a request or a failed attempt is found with rollout and call (9.3)."""
    with SqliteStore(copy) as store:
        view = RolloutView(store, "r-1")
        request = view.calls[2].request.entries[0][1]
        digests = [(0, view.calls[0].body[0]), (2, request), (1, view.calls[1].attempts[0].body)]
        for call, digest in digests:
            assert isinstance(digest, str)
            with changed_blob(copy, digest, 11):
                damaged = RolloutView(store, "r-1")
                with pytest.raises(CorruptRecord) as caught:
                    [read(call) for read in (damaged.response, damaged.request, damaged.attempt_bodies)]
                assert (caught.value.rollout, caught.value.call) == ("r-1", call)
                assert ("corrupt", call) in [(finding.rule, finding.call) for finding in verify_rollout(damaged)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_row_is_found(copy: Path, kind: str) -> None:
    """A row that is gone, the last of its kind included, is found: nothing is shorter in silence (contract 9.3)."""
    with closing(sqlite3.connect(copy)) as db:
        newest = f"SELECT max(number) FROM records WHERE rollout = 1 AND kind = {CODES[kind]}"
        db.execute(f"DELETE FROM records WHERE rollout = 1 AND kind = {CODES[kind]} AND number = ({newest})")
        db.commit()
    with SqliteStore(copy) as store:
        with pytest.raises(CorruptRecord) as caught:
            [(view.tools(), view.failures, view.origin) for view in [RolloutView(store, "r-1")]]
        assert caught.value.rollout == "r-1"
        assert RolloutView(store, "r-2").turn_count == TURNS
    assert verify_store(str(copy), "r-1", as_json=False) == EXIT_FOUND


def test_rows_in_each_others_place_are_found(copy: Path) -> None:
    """A turn that stands under another's number is found, though all its bytes are right (9.3)."""
    swaps = (
        "UPDATE records SET number = CASE number WHEN 0 THEN 1 ELSE 0 END + 100 "
        "WHERE rollout = 1 AND kind = 1 AND number < 2",
        "UPDATE records SET number = number - 100 WHERE rollout = 1 AND kind = 1 AND number BETWEEN 100 AND 101",
    )
    with closing(sqlite3.connect(copy)) as db:
        for swap in swaps:
            db.execute(swap)
        db.commit()
    with SqliteStore(copy) as store, pytest.raises(CorruptRecord) as caught:
        RolloutView(store, "r-1")
    assert (caught.value.rollout, caught.value.turn) == ("r-1", 0)


def test_a_damaged_log_shows_an_earlier_commit_whole(tmp_path: Path) -> None:
    """A bit flipped in SQLite's log takes the store back to an earlier commit, never to half of one (9.2)."""
    path, copy = tmp_path / "a.db", tmp_path / "copy.db"
    with SqliteStore(path) as store, Rollout.open(store, "r-1", scope=SCOPE) as rollout:
        fill_rollout(rollout, 3)
        turns = [turn.digest for turn in rollout.turns]
        data, log = path.read_bytes(), path.with_name("a.db-wal").read_bytes()
        counts = set()
        for position, bit in flips(len(log), 60, 8):
            copy.write_bytes(data)
            damage(copy.with_name("copy.db-wal"), log, position, bit)
            with SqliteStore(copy) as damaged:
                if "r-1" not in damaged.rollouts():
                    continue
                view = RolloutView(damaged, "r-1")
                assert [turn.digest for turn in view.turns] == turns[: view.turn_count]
                assert list(verify_rollout(view)) == []
                counts.add(view.turn_count)
            for side in tmp_path.glob("copy.db-*"):
                side.unlink()
        assert len(counts) > 1


class changed_blob:  # noqa: N801 - reads as a word
    """While it lasts, one byte of a blob is another."""

    def __init__(self, path: Path, digest: str, position: int) -> None:
        self._path, self._digest, self._position = path, bytes.fromhex(digest), position

    def _flip(self) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as db:
            (data,) = db.execute("SELECT data FROM blobs WHERE digest = ?", (self._digest,)).fetchone()
            changed = bytearray(data)
            changed[self._position % len(data)] ^= 0x10
            db.execute("UPDATE blobs SET data = ? WHERE digest = ?", (changed, self._digest))

    def __enter__(self) -> None:
        self._flip()

    def __exit__(self, *_: object) -> None:
        self._flip()


def test_a_damaged_id_is_damage(whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A rollout whose id was hit is told by `verify` as damage, not as one that is not there (contract 9.3)."""
    path = tmp_path / "a.db"
    shutil.copy(whole, path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE rollouts SET id = CAST(X'72FF' AS TEXT) WHERE id = 'r-2'")
    assert verify_store(str(path), None, as_json=False) == EXIT_FOUND
    assert "corrupt r\\udcff" in capfd.readouterr().out
