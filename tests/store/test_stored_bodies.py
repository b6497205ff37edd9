"""Stored bodies: evidence and history share one blob, and a prompt that extends another brings in only its new ids."""

import contextlib
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeep import AssistantText, Item, pack, unpack
from turnkeep.archive.bodies import LARGE, MOST_LINKS, Bodies, Known, cut_body, store_body
from turnkeep.errors import CorruptRecord, StoreError, TurnkeepError
from turnkeep.history.capture import capture, capture_again, capture_without_native
from turnkeep.history.turn import Turn
from turnkeep.report import compare
from turnkeep.rollout.evidence import Prepared, Reply
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.verify import verify_rollout
from turnkeep.rollout.view import RolloutView
from turnkeep.store.base import Row
from turnkeep.store.memory import MemoryStore
from turnkeep.store.sqlite import SqliteStore, SqliteWriter

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


def body(prompt: list[int], generation: list[int], between: str = ",", **members: Any) -> bytes:
    message = {
        "type": "message",
        "content": [{"type": "output_text", "text": "é", "annotations": []}],
        "prompt_token_ids": prompt,
        "generation_token_ids": generation,
        "generation_log_probs": [-token / 8 for token in range(len(generation))],
        **members,
    }
    response = {"id": "r", "output": [{"type": "reasoning", "summary": []}, message]}
    return json.dumps(response, ensure_ascii=False, separators=(between, ":")).encode()


def conversation(turns: int, seed: int = 0, top: int = 150_000) -> list[bytes]:
    """Bodies whose prompts each extend the one before and its generation."""
    rng = random.Random(seed)
    prompt, found = [rng.randrange(top) for _ in range(60)], []
    for _ in range(turns):
        generation = [rng.randrange(top) for _ in range(rng.randrange(20, 40))]
        found.append(body(prompt, generation, rng.choice([",", ", "])))
        prompt = [*prompt, *generation, *(rng.randrange(top) for _ in range(rng.randrange(30)))]
    return found


class Kept:
    """Stored bodies in memory, and which blobs were read."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.known: list[Known] = []
        self.asked: list[str] = []

    def keep(self, received: bytes) -> str:
        """Store a body; gives its digest."""
        stored = store_body(cut_body(received), self.known[-4:])
        self.blobs |= stored.blobs
        self.known += stored.known
        return stored.refs[0]

    def blob(self, digest: str, *, checked: bool = True) -> bytes | None:
        """The bytes of a digest."""
        self.asked.append(digest)
        return self.blobs.get(digest)


@given(st.binary(max_size=300) | st.text(max_size=80).map(lambda text: json.dumps({"output": text}).encode()))
def test_any_bytes_come_back(received: bytes) -> None:
    """What a server sent, JSON or not, comes back byte for byte (contract 7.6, 7.11)."""
    kept = Kept()
    assert Bodies(kept.blob).text(kept.keep(received)) == received


_IDS = st.lists(st.integers(0, 300) | st.integers(0, 2**64), min_size=0, max_size=60)


@given(_IDS, _IDS, _IDS, st.sampled_from([",", ", ", " , "]))
def test_any_arrays_come_back(prompt: list[int], generation: list[int], more: list[int], between: str) -> None:
    """Arrays of any width and spelling, the prompt extending another or not, come back byte for byte (7.11, 9.1)."""
    kept = Kept()
    for received in (body(prompt, generation, between), body([*prompt, *generation, *more], more, between)):
        digest = kept.keep(received)
        assert Bodies(kept.blob).text(digest) == received
        cut = Bodies(kept.blob).read(digest)
        again = capture_again(cut.received, cut.arrays, None)
        assert (again, again.digest, again.body) == (capture(received), capture(received).digest, received)


@pytest.mark.parametrize("top", [200, 150_000, 2**24 + 100, 2**40])
def test_a_prompt_brings_in_only_its_new_ids(top: int) -> None:
    """A growing prompt is stored as what is new, read from a bounded number of blobs, exact in any order."""
    kept = Kept()
    bodies = conversation(90, top=top)
    digests = [kept.keep(received) for received in bodies]
    ids = [capture(received).parts[1].native for received in bodies]
    assert all(native is not None for native in ids)
    whole = sum(native.arrays["prompt_token_ids"].nbytes for native in ids if native is not None)
    assert sum(map(len, kept.blobs.values())) < whole
    reader = Bodies(kept.blob)
    for digest, received in random.Random(1).sample([*zip(digests, bodies, strict=True)], 90):
        kept.asked.clear()
        assert Bodies(kept.blob).text(digest) == received
        assert len(set(kept.asked)) <= MOST_LINKS
        assert reader.text(digest) == received
        assert [known.links for known in reader.known(digest)] == [
            known.links for known in kept.known if known.links[-1].blob == digest
        ]


def begin(rollout: Rollout) -> int:
    record, blobs = Prepared((), b"").record(rollout.number_of)
    return rollout.begin_call(record, blobs)


def answer(rollout: Rollout, received: bytes) -> Turn:
    call = begin(rollout)
    scanned = rollout.answer_call(call, Reply(None, 200, received))
    return rollout.add_turn(capture(received, rollout.scope, scanned), call=call)


def blob_bytes(path: Path) -> int:
    with SqliteStore(path) as store:
        size: int = store._db.execute("SELECT coalesce(sum(length(data)), 0) FROM blobs").fetchone()[0]
        return size


def test_evidence_and_history_share_the_arrays(tmp_path: Path) -> None:
    """Making the turn of a kept response adds no blob; both read back exactly (contract 7.11, 9.1)."""
    received = body([*range(3000)], [7] * 40, routed_experts=[[[1, 2]] * 900] * 40)
    assert LARGE < 40 * 900 * 2
    with SqliteStore(tmp_path / "a.db") as store, Rollout.open(store, "r") as rollout:
        call = begin(rollout)
        scanned = rollout.answer_call(call, Reply(None, 200, received))
        before = blob_bytes(tmp_path / "a.db")
        turn = rollout.add_turn(capture(received, None, scanned), call=call)
        assert blob_bytes(tmp_path / "a.db") == before < len(received) / 2
        rollout.add_turn(capture(received), call=None)  # read anew: the same blob all the same
        assert blob_bytes(tmp_path / "a.db") == before
    with SqliteStore(tmp_path / "a.db") as store:
        view = RolloutView(store, "r")
        assert (view.response(0), view.turn(0), view.turn(0).body, view.turn(1)) == (received, turn, received, turn)


def test_a_rollout_opened_again_extends_its_prompts(tmp_path: Path) -> None:
    """Each process that goes on with a rollout stores a growing prompt as what is new (contract 9.2)."""
    bodies = conversation(12)
    for name, step in (("once", 12), ("often", 1)):
        for start in range(0, 12, step):
            with SqliteStore(tmp_path / f"{name}.db") as store, Rollout.open(store, "r") as rollout:
                for received in bodies[start : start + step]:
                    answer(rollout, received)
    assert blob_bytes(tmp_path / "once.db") == blob_bytes(tmp_path / "often.db")
    with SqliteStore(tmp_path / "often.db") as store:
        view = RolloutView(store, "r")
        assert [view.response(number) for number in range(12)] == bodies


def test_what_was_not_committed_is_not_built_on() -> None:
    """A prompt whose commit failed is nothing that a later one extends (contract 9.2)."""
    bodies = conversation(3)
    store = MemoryStore()
    with Rollout.open(store, "r") as rollout:
        answer(rollout, bodies[0])
        call = begin(rollout)
        writer, rollout._writer = rollout._writer, _Full()
        with pytest.raises(StoreError, match="full"):
            rollout.answer_call(call, Reply(None, 200, bodies[1]))
        with pytest.raises(StoreError, match="full"):
            rollout.add_turn(capture(bodies[1]))
        rollout._writer = writer
        answer(rollout, bodies[2])
    assert RolloutView(store, "r").response(2) == bodies[2]


class _Full:
    """A writer whose disk is full."""

    rollout = "r"

    def commit(self, state: bytes, rows: Any = (), blobs: Any = None) -> None:
        raise StoreError("the disk is full")

    def release(self) -> None: ...


def test_damage_is_named_wherever_an_array_stands() -> None:
    """An array hit in its own blob, in the body's, or in a body that a prompt extends is named (contract 9.3)."""
    rng = random.Random(3)
    prompt = [rng.randrange(2**17) for _ in range(500)]
    first = body(prompt, [5] * 30, routed_experts=[[[1, 300]] * 600] * 30)
    second = body([*prompt, *[5] * 30, *range(900, 960)], [6] * 30)
    kept = Kept()
    for received in (first, second):
        kept.keep(received)
    one, apart, two = kept.blobs
    literal = kept.blobs[two].index(bytes([910 & 255, 910 >> 8, 0]))
    for digest, position, field in (
        (apart, 9, "routed_experts"),
        (one, kept.blobs[one].index(b"\5\5\5\5"), "generation_token_ids"),
        (two, literal, "prompt_token_ids"),
    ):
        with pytest.raises(CorruptRecord) as caught:
            Bodies(damaged(kept, digest, position)).read(two if digest == two else one)
        assert (caught.value.item, caught.value.field) == (1, field)
    for lost in (one, two):
        with pytest.raises(CorruptRecord, match="missing") as caught:
            Bodies(lambda digest, lost=lost, **_: None if digest == lost else kept.blobs[digest]).read(two)
        assert caught.value.field == ("prompt_token_ids" if lost == one else None)


def damaged(kept: Kept, hit: str, position: int) -> Callable[..., bytes | None]:
    """The blobs, a byte of one changed, as a store reads them."""

    def blob(digest: str, *, checked: bool = True) -> bytes | None:
        if digest != hit:
            return kept.blobs[digest]
        if checked:
            raise CorruptRecord("not what was written")
        data = bytearray(kept.blobs[digest])
        data[position] ^= 0x20
        return bytes(data)

    return blob


def test_a_turn_kept_without_natives_comes_back_so(tmp_path: Path) -> None:
    """A turn whose natives were left out (7.9) is not read from its body, which would bring them back (9.1)."""
    received = body([1], [2])
    with SqliteStore(tmp_path / "a.db") as store, Rollout.open(store, "r") as rollout:
        turn = rollout.add_turn(capture_without_native(received))
    with SqliteStore(tmp_path / "a.db") as store:
        assert RolloutView(store, "r").turn(0) == turn
        assert all(part.native is None for part in RolloutView(store, "r").turn(0).parts)


@pytest.mark.parametrize(("extra", "old"), [({}, "stop"), ({"output": [CALL]}, "tool_calls")])
def test_a_turn_keeps_the_finish_reason_that_it_was_stored_with(
    tmp_path: Path, extra: dict[str, Any], old: str
) -> None:
    """A turn from when a response without a status was never incomplete comes back as it was, from store and pack."""
    response = {"id": "r", "output": [], "incomplete_details": {"reason": "max_output_tokens"}, **extra}
    turn = capture(json.dumps(response).encode())
    assert turn.finish_reason == "length"
    before = replace(turn, finish_reason=old)
    with SqliteStore(tmp_path / "a.db") as store, Rollout.open(store, "r") as rollout:
        rollout.add_turn(before)
        rollout.add_turn(turn)
    with SqliteStore(tmp_path / "a.db") as store:
        assert list(RolloutView(store, "r").turns) == [before, turn]
    assert unpack(pack([before, turn])) == [before, turn]


def test_what_an_earlier_version_read_is_exact(tmp_path: Path) -> None:
    """A turn from when a response without a status was never incomplete is what its response made then (9.3)."""
    received = json.dumps({"output": [CALL], "incomplete_details": {"reason": "max_output_tokens"}}).encode()
    with SqliteStore(tmp_path / "a.db") as store, Rollout.open(store, "r") as rollout:
        for reason, rules in (("tool_calls", []), ("length", []), ("error", ["history_differs"])):
            call = begin(rollout)
            rollout.answer_call(call, Reply(None, 200, received))
            rollout.add_turn(replace(capture(received), finish_reason=reason), call=call)
            assert [finding.rule for finding in verify_rollout(rollout)] == rules
            assert (compare.replay(rollout).difference is None) == (not rules)


@pytest.mark.parametrize(
    "changes",
    [
        {"finish_reason": "abc"},
        {"rest": b'{"usage":null,"model_name":"another","response_id":"r"}'},
        {"scope": "another"},
        {"parts": ()},
        {"parts": (AssistantText(text="edited", native=Item({"type": "message", "content": []})),)},
    ],
)
def test_a_turn_made_of_a_captured_one_is_kept_as_it_is(tmp_path: Path, changes: dict[str, Any]) -> None:
    """What `dataclasses.replace` changed is neither lost to the body nor refused when it is read (9.1)."""
    turn = replace(capture(body([1, 2], list(range(40)), routes=[[7] * 40]), scope="s"), **changes)
    with SqliteStore(tmp_path / "a.db") as store, Rollout.open(store, "r", scope="s") as rollout:
        rollout.add_turn(turn)
    with SqliteStore(tmp_path / "a.db") as store:
        assert RolloutView(store, "r").turn(0).digest == turn.digest
    again = unpack(pack([turn]))[0]
    assert (again, again.digest) == (turn, turn.digest)


def test_opening_reads_no_array(tmp_path: Path) -> None:
    """A rollout opens with all its blobs gone: arrays are read with the turn that has them."""
    with SqliteStore(tmp_path / "a.db") as store, Rollout.open(store, "r") as rollout:
        for received in conversation(5):
            answer(rollout, received)
        store._db.execute("DELETE FROM blobs")
    with SqliteStore(tmp_path / "a.db") as store:
        view = RolloutView(store, "r")
        assert (view.turn_count, view.used, len(view.calls)) == (5, 5, 5)
        with pytest.raises(TurnkeepError):
            view.turn(0)


def test_a_calls_row_does_not_grow_with_the_history(tmp_path: Path) -> None:
    """What a request shares with an earlier one is not written again; each request is rebuilt whole (7.11)."""
    sizes = []
    with (
        SqliteStore(tmp_path / "a.db") as store,
        Rollout.open(store, "r", scope='nemo-gym/responses/v1:["m", "a"]') as r,
    ):
        from turnkeep.history.projection import Entry, project

        history: list[Entry] = [{"role": "user", "content": "Go."}]
        wanted = []
        for received in conversation(40):
            request = project(history, r.scope)
            record, blobs = Prepared(request.entries, request.tail()).record(r.number_of)
            call = r.begin_call(record, blobs)
            wanted.append(request.body())
            r.answer_call(call, Reply(None, 200, received))
            history += [r.add_turn(capture(received, r.scope), call=call), {"role": "user", "content": "More."}]
            row = store.row("r", "calls", call)
            sizes.append(len(row or b""))
        assert max(sizes) < min(sizes) + 200
        assert isinstance(store.rows("r", "calls")[0], Row)
    with SqliteStore(tmp_path / "a.db") as store:
        view = RolloutView(store, "r")
        assert [view.request(number) for number in range(40)] == wanted


@pytest.mark.parametrize("at", range(1, 7))
def test_an_error_after_a_commit_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Where a signal's error comes when a commit is durable and its method has not returned, the rollout goes on with
    what the store has: no number is given twice, and turns are what their responses made (contract 9.2)."""
    commit, commits = SqliteWriter.commit, 0

    def interrupted(writer: SqliteWriter, *args: Any) -> None:
        nonlocal commits
        commit(writer, *args)
        commits += 1
        if commits == at:
            raise KeyboardInterrupt

    bodies = conversation(4)
    with SqliteStore(tmp_path / "a.db") as store, Rollout.open(store, "r") as rollout:
        monkeypatch.setattr(SqliteWriter, "commit", interrupted)
        kept = []
        for received in bodies:
            with contextlib.suppress(KeyboardInterrupt):
                kept.append(answer(rollout, received))
        assert [rollout.number_of(turn) for turn in kept] == [rollout.turns.index(turn) for turn in kept]
    with SqliteStore(tmp_path / "a.db") as store:
        view = RolloutView(store, "r")
        assert list(verify_rollout(view)) == []
        assert {turn.digest for turn in kept} <= {turn.digest for turn in view.turns}
        made = [call.turn for call in view.calls if call.turn is not None]
        assert made == list(range(view.turn_count))


def test_a_body_in_the_place_of_one_that_it_extends_is_damage() -> None:
    """Where a damaged file gives a later body for an earlier one, that is found, and no endless search (9.3)."""
    blobs: dict[str, bytes] = {}
    known: list[Known] = []
    digests = []
    for received in conversation(3):
        stored = store_body(cut_body(received), known)
        blobs |= stored.blobs
        known += stored.known
        digests.append(stored.refs[0])

    def blob(digest: str, *, checked: bool = True) -> bytes | None:
        if digest == digests[0] and checked:
            raise CorruptRecord("not what was written")
        return blobs[digests[1] if digest == digests[0] else digest]

    for digest in digests:
        with pytest.raises(CorruptRecord):
            Bodies(blob).text(digest)
