"""Write the golden files of the current format versions: `python tests/golden/make.py`.

Run it once when a format version is new, and commit what it wrote. It refuses to touch a file that is there: a golden
file stays as that version wrote it, and opens for ever (contract 9.4).
"""

import json
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from content import GAPS, SCOPE, responses, stored_bodies, turns

import turnkeep
from turnkeep.archive import arrays, bodies, packed
from turnkeep.rollout import evidence, origin, state
from turnkeep.rollout.evidence import Attempt, CallRecord, Prepared, RequestRecord
from turnkeep.rollout.state import State
from turnkeep.store.migrations import VERSION as STORE_VERSION

if TYPE_CHECKING:
    from turnkeep.history.projection import Entry

HERE = Path(__file__).parent
JSON_FORM_VERSION = 1

CALL = CallRecord(
    number=3,
    request=RequestRecord((("native", 0), ("plain", "ab" * 32), ("withheld", 2)), "cd" * 32, "ef" * 32, 1234),
    attempts=(Attempt("503 from the server", 503, "12" * 32), Attempt("ConnectError")),
    response="34" * 32,
    turn=1,
    failure={"type": "MalformedItem", "message": "é", "item": 0, "field": "prompt_token_ids", "index": 1},
)
FIRST_CALL = CallRecord(0, RequestRecord((("plain", "ab" * 32), ("native", 0)), "cd" * 32, "ef" * 32, 12))
CALL_2 = replace(
    CALL,
    request=replace(CALL.request, entries=(*FIRST_CALL.request.entries, ("withheld", 2))),
    body=("56" * 32, "78" * 32),
    texts={"cd" * 32: ',"model":"é"'},
    base=(0, 2),
)
STATE = State(
    scope=str(SCOPE),
    max_policy_calls=40,
    used=3,
    calls=4,
    turns=2,
    tools=1,
    failures=1,
    gaps=GAPS,
    cookies=(("session", "abc=="), ("b", "")),
    failure={"type": "PreparationFailure", "message": "m", "entry": 2},
    difference={"call": 1, "path": "input[0]", "recorded": 1.0, "now": None},
    begun="2026-01-02T03:04:05.678+00:00",
)
ORIGIN = {"source": "é \ud800", "row": {"reward": -0.0, "b": None, "a": [1, 1.0, 2**64, 1e-07]}, "turns": 2}


def make_json_forms(folder: Path) -> None:
    """Each turn's JSON form, a line each."""
    lines = {name: turnkeep.dumps_turn(turn) for name, turn in turns().items()}
    (folder / "turns.jsonl").write_text("".join(f"{line}\n" for line in lines.values()), "utf-8")


def make_turn_documents(folder: Path) -> None:
    """Each turn's document and its arrays' bytes, by digest."""
    for number, turn in enumerate(turns().values()):
        document, blobs = arrays.detach(turn, call=number if number else None)
        (folder / f"turn-{number}.json").write_bytes(document)
        for digest, data in blobs.items():
            (folder / digest).write_bytes(data)


def make_body_documents(folder: Path) -> None:
    """The documents of turns whose bodies are stored, and their blobs, by digest; the second extends the first."""
    known: tuple[bodies.Known, ...] = ()
    for number, body in enumerate(stored_bodies()):
        stored = bodies.store_body(bodies.cut_body(body), known)
        known = stored.known
        document = arrays.write_body_document(turnkeep.capture(body, SCOPE), number or None, stored.refs)
        (folder / f"turn-{number}.json").write_bytes(document)
        for digest, data in stored.blobs.items():
            (folder / digest).write_bytes(data)


def make_call_document(folder: Path) -> None:
    """A policy call with everything in, which begins as another does."""
    (folder / "call.json").write_bytes(evidence.write_call(CALL_2))


def make_state_document(folder: Path) -> None:
    """A rollout's state with everything in."""
    (folder / "state.json").write_bytes(state.write_state(replace(STATE, origins=1)))


def make_origin_document(folder: Path) -> None:
    """Where a rollout came from."""
    (folder / "origin.json").write_bytes(origin.write_origin(ORIGIN))


def make_store(folder: Path) -> None:
    """A SQLite store with a rollout of two calls, one that failed in between, and one of bare turns."""
    path = folder / "rollouts.db"
    with turnkeep.open_store(path) as store:
        with turnkeep.Rollout.open(store, "calls", scope=SCOPE, max_policy_calls=9) as rollout:
            history: list[Entry] = [{"role": "user", "content": "hi \ud800"}]
            for name in ("everything", "experts"):
                request = turnkeep.project(history, rollout.scope)
                prepared = Prepared(request.entries, request.tail({"model": "m"}))
                record, blobs = prepared.record(rollout.number_of)
                call = rollout.begin_call(record, blobs, request.gaps)
                rollout.add_attempt(call, evidence.Reply("busy", 503, b"wait"))
                body = json.dumps(responses()[name]).encode()
                rollout.answer_call(call, evidence.Reply(None, 200, body, {"session": "abc"}))
                history.append(rollout.add_turn(turnkeep.capture(body, SCOPE), call=call))
            rollout.add_gaps(GAPS)
            rollout.record_failure(turnkeep.PreparationFailure("m", entry=2))
        with turnkeep.Rollout.open(store, "turns") as rollout:
            for turn in turns().values():
                rollout.add_turn(turn)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE rollouts SET writer = ''")  # the name of the machine is nobody's business
    database.execute("PRAGMA journal_mode = DELETE")  # one file to commit, no log beside it
    database.execute("VACUUM")
    database.close()
    (folder / "rollouts.db-writers").unlink(missing_ok=True)


def packed_turns() -> list[turnkeep.Turn]:
    """Every turn, then every response captured from bytes, in both common spellings, one of them with large arrays."""
    large = {
        "id": "r",
        "output": [
            {
                "type": "message",
                "content": [],
                "prompt_token_ids": list(range(99_990, 100_040)),
                "generation_token_ids": list(range(40)),
                "generation_log_probs": [-0.5 - number / 7 for number in range(40)],
                "routed_experts": [[[number, 255 - number, 300]] * 2 for number in range(40)],
            }
        ],
    }
    values = [*responses().values(), large]
    bodies = [json.dumps(value, separators=between).encode() for between in (None, (",", ":")) for value in values]
    return [*turns().values(), *(turnkeep.capture(body, SCOPE) for body in bodies)]


def make_packed(folder: Path) -> None:
    """The packed form of those turns."""
    (folder / "turns.tkpk").write_bytes(turnkeep.pack(packed_turns()))


MAKERS = {
    f"packed-v{packed.VERSION}": make_packed,
    f"json-form-v{JSON_FORM_VERSION}": make_json_forms,
    f"turn-document-v{arrays.VERSION}": make_turn_documents,
    f"turn-document-v{arrays.BODY_VERSION}": make_body_documents,
    f"call-document-v{evidence.VERSION}": make_call_document,
    f"state-document-v{state.VERSION}": make_state_document,
    f"origin-document-v{origin.VERSION}": make_origin_document,
    f"sqlite-v{STORE_VERSION}": make_store,
}


def main() -> int:
    """Make what is not there yet."""
    for name, make in MAKERS.items():
        folder = HERE / name
        if folder.exists():
            print(f"{name} is there and stays as it is", file=sys.stderr)
            continue
        folder.mkdir()
        make(folder)
        print(f"made {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
