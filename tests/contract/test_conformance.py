"""The conformance cases, where they are at hand, and the protocol of `turnkeep apply` itself."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from samples import SCOPE, TRAINING, body, call, exactly, message, response

from turnkeep import capture, to_json
from turnkeep.cli.apply import apply_lines

_BESIDE = Path(__file__).parents[3] / "shared" / "conformance"
_FOLDER = Path(os.environ.get("TURNKEEP_CONFORMANCE") or _BESIDE)
TURN = to_json(capture(body(message("old", **TRAINING), call()), SCOPE))


def ask(*requests: Any) -> list[Any]:
    """The answers to requests given as values, or as lines."""
    lines = [request if isinstance(request, bytes) else json.dumps(request).encode() for request in requests]
    return [json.loads(answer) for answer in apply_lines(lines)]


@pytest.mark.skipif(
    not (_FOLDER / "run").exists(), reason="TURNKEEP_CONFORMANCE names no folder with conformance cases"
)
def test_conformance_cases_hold() -> None:
    """Every conformance case holds (contract 9.1)."""
    done = subprocess.run(
        [sys.executable, str(_FOLDER / "run"), sys.executable, "-m", "turnkeep.cli.main", "apply"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    cases = [json.loads(line) for line in (_FOLDER / "cases.jsonl").read_text().split("\n") if line.strip()]
    assert f"{len(cases)} passed, 0 failed" in done.stdout, done.stdout + done.stderr


_BAD = [
    b"x",
    b"\xff\xfe",
    b"[",
    b"[" * 100_000,
    b"[]",
    b"5",
    b"null",
    b"{}",
    b'{"op":"capture","op":"capture"}',
    {"op": None},
    {"op": []},
    {"op": {}},
    {"op": "nope"},
    {"op": "capture"},
    {"op": "capture", "body": 5},
    {"op": "capture", "response": response(), "scope": 5},
    {"op": "project", "history": {}},
    {"op": "project", "history": [{"turn": 5}]},
    {"op": "project", "history": [{"role": 5}]},
    {"op": "roundtrip", "turn": {"parts": []}, "through": 5},
    {"op": "roundtrip", "turn": {"parts": []}, "through": [[]]},
    {"op": "roundtrip", "turn": {"parts": []}, "through": ["json", "nope"]},
    {"op": "roundtrip", "turn": None, "through": []},
    {"op": "parse", "response": None, "schema": {}},
    {"op": "parse", "response": 5, "schema": {}},
    {"op": "parse", "response": '{"output":[]}', "schema": {}},
    {"op": "parse", "response": response(message("1")), "schema": 5},
    {"op": "parse", "response": response(message("1")), "schema": {"$ref": "#/nowhere"}},
    {"op": "scope"},
    {"op": "scope", "server": 5},
    {"op": "edit", "turn": TURN, "part": "0", "set": {}},
    {"op": "edit", "turn": TURN, "part": True, "set": {}},
    {"op": "edit", "turn": TURN, "part": 0, "set": {"part": "x"}},
    {"op": "edit", "turn": TURN, "part": 0, "set": {"self": "x"}},
    {"op": "edit", "turn": TURN, "part": 0, "set": {"text": 5}},
    {
        "op": "import_nooa",
        "turn": {"parts": [{"kind": "text", "text": "", "native": {"type": []}}]},
        "scope": SCOPE,
        "revision": "19caab1",
    },
    {"op": "import_nooa", "turn": {"parts": []}, "scope": None, "revision": "19caab1"},
    {"op": "import_nooa", "turn": {"parts": []}, "scope": SCOPE, "revision": []},
]


@pytest.mark.parametrize("number", range(len(_BAD)))
def test_a_bad_line_is_answered_and_the_next_one_too(number: int) -> None:
    """Whatever a line holds, its answer is an error with a type and a message, and the next line is answered."""
    bad, good = ask(_BAD[number], {"op": "scope", "server": "s"})
    assert set(bad) == {"error"}
    assert set(bad["error"]) <= {"type", "message", "at"}
    assert bad["error"]["type"][0].isupper()
    assert bad["error"]["message"]
    assert good == {"scope": 'nemo-gym/responses/v1:["s", "gym-policy"]'}


def test_answers_come_one_a_line_in_order() -> None:
    """Each answer is one line of UTF-8 JSON, in the order of the requests; empty lines ask nothing."""
    lines = [b'{"op":"scope","server":"a\\nb"}\n', b"\n", b"x\n", b'{"op":"scope","server":"c"}']
    answers = list(apply_lines(lines))
    assert [b"\n" in answer for answer in answers] == [False] * 3
    assert [next(iter(json.loads(answer))) for answer in answers] == ["scope", "error", "scope"]


@pytest.mark.parametrize(
    ("inside", "kind", "at"),
    [
        (b'{"output":[{"type":"x","a":[1,NaN]}]}', "MalformedItem", {"item": 0, "field": "a", "index": 1}),
        (b'{"output":[{"type":"x","a":1,"a":1}]}', "MalformedItem", {"item": 0, "field": "a", "index": None}),
        (b'{"output":[5]}', "MalformedItem", {"item": 0, "field": None, "index": None}),
        (b'{"output":[],"usage":-Infinity}', "TransportFailure", None),
        (b"NaN", "TransportFailure", None),
    ],
)
def test_what_is_wrong_inside_a_response_has_its_place(inside: bytes, kind: str, at: Any) -> None:
    """A fault inside `response` is answered as capture would answer the body, with the place in it (1.5)."""
    lines = [b'{"op":"capture","response":' + inside + b"}", {"op": "capture", "body": inside.decode()}]
    for answer in ask(*lines):
        assert answer["error"]["type"] == kind
        assert answer["error"].get("at") == at


def test_what_is_wrong_inside_a_history_has_its_entry() -> None:
    """A fault inside `history` is a PreparationFailure whose place is the index of the entry (7.2)."""
    line = b'{"op":"project","history":[{"role":"user","content":"x"},{"role":"user","content":[NaN]}],"scope":null}'
    entries = [{"role": "user", "content": "x"}, {"role": "tool", "content": "x"}]
    for answer in ask(line, {"op": "project", "history": entries, "scope": None}):
        assert (answer["error"]["type"], answer["error"]["at"]) == ("PreparationFailure", 1)


def test_each_operation_answers_as_the_library_does() -> None:
    """Each operation answers with the members that are documented for it, exactly."""
    item = message("old", **TRAINING)
    captured, projected, roundtrip, parsed, edited, imported = ask(
        {"op": "capture", "response": response(item, call()), "scope": SCOPE},
        {"op": "project", "history": [{"role": "system", "content": "s"}, {"turn": TURN}], "scope": SCOPE},
        {"op": "roundtrip", "turn": TURN, "through": ["json", "sqlite", "json"]},
        {"op": "parse", "response": response(message("[1.0]")), "schema": {"type": "array"}},
        {"op": "edit", "turn": TURN, "part": 1, "set": {"name": "g"}},
        {"op": "import_nooa", "turn": TURN, "scope": "mine", "revision": "0514723"},
    )
    assert exactly(captured, {"turn": TURN, "content": "old", "finish_reason": "tool_calls"})
    assert exactly(projected, {"input": [item, call()], "instructions": "s", "gaps": []})
    assert exactly(roundtrip, {"turn": TURN})
    assert exactly(parsed, {"value": [1.0]})
    assert edited["turn"]["parts"][1]["name"] == "g"
    assert edited["turn"]["parts"][1]["native"] is None
    assert exactly(imported["turn"], {**TURN, "replay_scope": "mine"})
