"""Golden files: what an older version wrote opens for ever, and a newer one is refused by number (contract 9.4)."""

import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from content import GAPS, REQUEST, SCOPE, responses, stored_bodies, turns
from make import CALL, CALL_2, FIRST_CALL, MAKERS, ORIGIN, STATE, packed_turns

from turnkeep import (
    CorruptRecord,
    Rollout,
    RolloutView,
    UnsupportedVersion,
    capture,
    dumps_turn,
    from_json,
    loads_turn,
    open_store,
    project,
    to_json,
    unpack,
)
from turnkeep.archive.arrays import attach, detach, read_turn, read_turn_document
from turnkeep.archive.bodies import Bodies
from turnkeep.rollout.evidence import read_call
from turnkeep.rollout.origin import read_origin, write_origin
from turnkeep.rollout.state import read_state
from turnkeep.rollout.verify import verify_rollout
from turnkeep.wire.json import same

HERE = Path(__file__).parent
TURNS = list(turns().values())
NUMBERS = range(len(TURNS))


@pytest.mark.parametrize("name", MAKERS)
def test_every_current_format_has_its_golden_files(name: str) -> None:
    """A format version without golden files is not released: `make.py` makes them (contract 9.4)."""
    assert any((HERE / name).iterdir())


@pytest.mark.parametrize("number", NUMBERS)
def test_json_form_v1_opens(number: int) -> None:
    """Each turn of the JSON form's first version is the turn that was written (contract 9.4)."""
    line = (HERE / "json-form-v1" / "turns.jsonl").read_text("utf-8").splitlines()[number]
    turn = loads_turn(line)
    assert turn == TURNS[number]
    assert turn.digest == TURNS[number].digest
    assert dumps_turn(turn) == line == dumps_turn(TURNS[number])
    assert from_json(json.loads(line)) == turn


def test_packed_v1_opens() -> None:
    """The packed form of version 1 opens: equal turns, and the received bodies byte for byte (contract 9.4)."""
    data = (HERE / "packed-v1" / "turns.tkpk").read_bytes()
    found, wanted = unpack(data), packed_turns()
    assert found == wanted
    assert [turn.digest for turn in found] == [turn.digest for turn in wanted]
    assert [turn.body for turn in found] == [turn.body for turn in wanted]
    assert any(turn.received and turn.received.holes for turn in found)


@pytest.mark.parametrize("number", NUMBERS)
def test_turn_document_v1_opens(number: int) -> None:
    """Each turn's document of version 1 opens with its arrays, and its digest is today's (contract 9.4)."""
    folder = HERE / "turn-document-v1"
    members = read_turn_document((folder / f"turn-{number}.json").read_bytes())
    assert members["call"] == (number or None)
    assert members["digest"] == TURNS[number].digest
    turn = attach(members, lambda digest: (folder / digest).read_bytes())
    assert turn == TURNS[number]
    assert detach(turn, number or None).document == (folder / f"turn-{number}.json").read_bytes()


def test_a_turn_document_whose_array_changed_is_named() -> None:
    """A document whose array is missing or another is CorruptRecord with part and field (contract 9.3)."""
    folder = HERE / "turn-document-v1"
    members = read_turn_document((folder / "turn-0.json").read_bytes())
    with pytest.raises(CorruptRecord) as caught:
        attach(members, lambda _: None)
    assert (caught.value.item, caught.value.field) == (2, "prompt_token_ids")
    with pytest.raises(CorruptRecord, match="digest"):
        attach(members, lambda digest: bytes(len((folder / digest).read_bytes())))


def test_call_document_v1_opens() -> None:
    """The policy call of version 1 is the call that was written (contract 9.4)."""
    assert read_call((HERE / "call-document-v1" / "call.json").read_bytes()) == CALL


def test_call_document_v2_opens() -> None:
    """The policy call of version 2, which begins as another does, is the call that was written (contract 9.4)."""
    found = read_call((HERE / "call-document-v2" / "call.json").read_bytes(), [FIRST_CALL])
    assert (found, found.base) == (CALL_2, CALL_2.base)


@pytest.mark.parametrize("number", range(2))
def test_turn_document_v2_opens(number: int) -> None:
    """A turn whose body is stored is that turn, and its body comes back byte for byte (contract 9.4, 7.11)."""
    folder = HERE / "turn-document-v2"

    def blob(digest: str, *, checked: bool = True) -> bytes:
        return (folder / digest).read_bytes()

    members = read_turn_document((folder / f"turn-{number}.json").read_bytes())
    body = stored_bodies()[number]
    turn = read_turn(members, Bodies(blob), blob)
    assert (turn, turn.digest, turn.body) == (capture(body, SCOPE), members["digest"], body)
    assert Bodies(blob).text(members["body"][0]) == body


def test_state_document_v1_opens() -> None:
    """The rollout's state of version 1 is the state that was written (contract 9.4)."""
    state = read_state((HERE / "state-document-v1" / "state.json").read_bytes())
    assert state == STATE
    assert state.gaps == GAPS


def test_state_document_v2_opens() -> None:
    """The rollout's state of version 2, which counts its origin, is the state that was written (contract 9.4)."""
    assert read_state((HERE / "state-document-v2" / "state.json").read_bytes()) == replace(STATE, origins=1)


def test_origin_document_v1_opens() -> None:
    """The origin of version 1 is, to the bit, the one that was written (contract 9.4, 1.6)."""
    document = (HERE / "origin-document-v1" / "origin.json").read_bytes()
    assert same(read_origin(document), ORIGIN)
    assert write_origin(ORIGIN) == document


@pytest.fixture
def store_v1(tmp_path: Path) -> Path:
    """A copy of the golden store of version 1: opening it leaves files beside it, and migrates it."""
    return Path(shutil.copy(HERE / "sqlite-v1" / "rollouts.db", tmp_path / "rollouts.db"))


@pytest.fixture(params=["sqlite-v1", "sqlite-v2"])
def golden_store(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of the golden store of each version."""
    return Path(shutil.copy(HERE / request.param / "rollouts.db", tmp_path / "rollouts.db"))


def test_sqlite_opens(golden_store: Path) -> None:
    """All turns, evidence, gaps and failures of the golden store are what was written, and it verifies (9.4, 9.3)."""
    with open_store(golden_store, create=False) as store:
        assert store.rollouts() == ["calls", "turns"]
        bare, rollout = RolloutView(store, "turns"), RolloutView(store, "calls")
        assert list(bare.turns) == TURNS
        assert rollout.turns == tuple(TURNS[:2])
        assert [rollout.response(0), rollout.response(1)] == [
            json.dumps(responses()[name]).encode() for name in ("everything", "experts")
        ]
        assert rollout.request(0) == REQUEST.replace(b',"instructions":"Be brief."', b"")
        assert json.loads(rollout.request(1))["input"] == project([*rollout.history(0)], SCOPE).input
        assert rollout.attempt_bodies(1) == [b"wait"]
        assert rollout.gaps == GAPS
        assert (rollout.scope, rollout.max_policy_calls, rollout.used) == (str(SCOPE), 9, 2)
        assert rollout.cookies == {"session": "abc"}
        assert [failure["type"] for failure in rollout.failures] == ["PreparationFailure"]
        assert not rollout.gradable
        assert [*verify_rollout(rollout)] == []
        # a stale turn, an edited one and one without natives are no damage
        assert {(finding.rule, finding.turn) for finding in verify_rollout(bare)} <= {
            ("disagreement", n) for n in (3, 4, 5)
        }


def test_sqlite_can_be_written_on(golden_store: Path) -> None:
    """A rollout of the golden store goes on: the old turns stay, a new one is added (contract 9.4)."""
    new = capture(responses()["nothing"], SCOPE)
    with open_store(golden_store) as store, Rollout.open(store, "calls") as rollout:
        rollout.add_turn(new)
    with open_store(golden_store) as store:
        assert RolloutView(store, "calls").turns == (*TURNS[:2], new)


def test_a_newer_store_is_refused_by_number_and_left_alone(store_v1: Path) -> None:
    """A store of a newer version is refused by its number, and not a byte of it changes (contract 9.4)."""
    with sqlite3.connect(store_v1) as database:
        database.execute("PRAGMA user_version = 77")
    database.close()
    before = store_v1.read_bytes()
    for create in (True, False):
        with pytest.raises(UnsupportedVersion, match="77"):
            open_store(store_v1, create=create)
    with sqlite3.connect(store_v1) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        assert database.execute("SELECT count(*) FROM turns").fetchone() == (len(TURNS) + 2,)
        assert database.execute("PRAGMA user_version").fetchone() == (77,)
    database.close()
    assert len(store_v1.read_bytes()) == len(before)


@pytest.mark.parametrize("kind", ["turn", "call", "state", "origin"])
def test_a_newer_document_is_refused_by_number(kind: str) -> None:
    """A golden document with a newer version is refused by its number (contract 9.4)."""
    name = "turn-0" if kind == "turn" else kind
    read: Any = {"turn": read_turn_document, "call": read_call, "state": read_state, "origin": read_origin}[kind]
    members = json.loads((HERE / f"{kind}-document-v1" / f"{name}.json").read_bytes())
    assert read(json.dumps(members).encode()) is not None
    with pytest.raises(UnsupportedVersion, match="3"):
        read(json.dumps({**members, "version": 3}).encode())


def test_making_leaves_golden_files_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """`make.py` refuses to write over what is there (contract 9.4)."""
    import make

    files = sorted(path for path in HERE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    before = [path.read_bytes() for path in files]
    assert make.main() == 0
    assert capsys.readouterr().err.count("stays as it is") == len(MAKERS)
    assert [path.read_bytes() for path in files] == before


def test_the_turns_written_out_are_hard_ones() -> None:
    """The golden content has what is easily lost: every dtype, a lone surrogate, a stale and a portable turn (9.4)."""
    dtypes = {
        array.dtype.name
        for turn in TURNS
        for part in turn.parts
        if part.native
        for array in part.native.arrays.values()
    }
    assert {"uint8", "uint32", "uint64", "int8", "int16", "float64"} <= dtypes
    assert TURNS[0].content == "half 😀 lone \ud800 no"
    assert [len(project([turn], SCOPE).gaps) for turn in TURNS] == [0, 0, 0, 1, 1, 1]
    assert to_json(TURNS[5])["note"] == {"b": [1.0], "a": None}
