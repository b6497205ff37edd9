"""Faults planted in rows of a Gym rollout file: each is found by its name where it is, and nothing else is said."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planting import EXPERTS, LAYERS, SCOPE, TOP_K, envelope, experts, message, places, sound, tool_call

from turnkeep import MalformedItem, RolloutView, check_rollout
from turnkeep.check.finding import PROFILES
from turnkeep.export.gym_import import import_gym
from turnkeep.store.memory import MemoryStore

PROMPT, GENERATION, LOG_PROBS = "prompt_token_ids", "generation_token_ids", "generation_log_probs"
ROUTES = "routed_experts"
VOCABULARY = 200
TURNKEEP = Path(sys.executable).parent / "turnkeep"

type Row = dict[str, Any]
type Plant = Callable[[list[Row]], object]
"""Plants a fault in the items of a row: those of `ITEMS`."""
type Place = tuple[str, int | None, int | None, str | None, int | None]

ITEMS = ("thought", "look", "a", "b", "result a", "result b", "call c", "result c", "said", "user", "last")
"""The items of a row, by number: four turns, whose ids stand on items 3, 6, 8 and 10."""
B, A_RESULT, B_RESULT, C, C_RESULT, SAID, LAST = 3, 4, 5, 6, 7, 8, 10


def output(call_id: str) -> Row:
    """What a tool gave."""
    return {"type": "function_call_output", "call_id": call_id, "output": "3"}


def sound_row() -> Row:
    """A row of four turns, in which nothing is wrong: two calls, one, none and none, ids on the last item of each."""
    first, second, third, fourth = sound(4)
    items = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
        message("Look."),
        tool_call("a"),
        tool_call("b", '{"n": 1}', **first),
        output("a"),
        output("b"),
        tool_call("c", **second),
        output("c"),
        message("So.", **third),
        {"role": "user", "content": "And more?"},
        message("Done.", **fourth),
    ]
    response = {"id": "resp", "object": "response", "model": "m", "status": "completed", "output": items}
    return {"responses_create_params": {"input": "Begin."}, "response": response, "reward": 1.0}


def put(item: int, field: str, value: Any) -> Plant:
    """Set a member of an item."""
    return lambda items: items[item].__setitem__(field, value)


def change(item: int, field: str, index: int, value: Any) -> Plant:
    """Set an element of an array."""
    return lambda items: items[item][field].__setitem__(index, value)


def cut(item: int, field: str, keep: slice) -> Plant:
    """Keep a part of an array."""
    return lambda items: items[item].__setitem__(field, items[item][field][keep])


def grow(item: int, rows: list[Any]) -> Plant:
    """Put rows of routes at the end."""
    return lambda items: items[item][ROUTES].extend(rows)


def route(item: int, row: int, value: Any) -> Plant:
    """Set a row of routes, or the rows from there on."""
    return lambda items: items[item][ROUTES].__setitem__(row, value)


def pad(item: int, rows: int, value: Any) -> Plant:
    """Put one row in place of the last ones."""
    return lambda items: items[item][ROUTES].__setitem__(slice(-rows, None), [value] * rows)


def packed(item: int, dtype: str = "int8") -> Plant:
    """Routes as an envelope."""
    return lambda items: items[item].__setitem__(ROUTES, envelope(items[item][ROUTES], dtype))


def torn(item: int) -> Plant:
    """An envelope whose last bytes are missing."""
    return lambda items: items[item].__setitem__(ROUTES, envelope(items[item][ROUTES])[:-4])


def remove(*numbers: int) -> Plant:
    """Leave items out."""
    return lambda items: items.__setitem__(slice(None), [e for n, e in enumerate(items) if n not in numbers])


def swap(one: int, other: int) -> Plant:
    """Exchange two items."""
    return lambda items: items.__setitem__(slice(one, other + 1), [items[other], *items[one + 1 : other], items[one]])


def without_ids(item: int) -> Plant:
    """Leave an item's training fields out."""
    return lambda items: [items[item].pop(field) for field in (PROMPT, GENERATION, LOG_PROBS, ROUTES)]


def emptied(item: int, *fields: str) -> Plant:
    """Make arrays empty."""
    return lambda items: items[item].update({field: [] for field in fields})


def both(*plants: Plant) -> Plant:
    """Several changes that make one fault."""
    return lambda items: [plant(items) for plant in plants]


ZEROS, MISSING = ([[value] * TOP_K] * LAYERS for value in (0, -1))
REPEATED = experts(1, first=5)[0]

FOUND: dict[str, tuple[Plant, list[Place]]] = {
    "nothing": (lambda _: None, []),
    "another id in the prompt": (change(C, PROMPT, 5, 9), [("prompt-contiguity", 1, 0, PROMPT, 5)]),
    "another id in the generation": (change(C, GENERATION, 0, 9), [("prompt-contiguity", 2, 0, PROMPT, 9)]),
    "a prompt that ends too soon": (
        both(cut(SAID, PROMPT, slice(3)), cut(SAID, ROUTES, slice(6))),
        [("prompt-contiguity", 2, 0, PROMPT, 3)],
    ),
    "above 0": (change(SAID, LOG_PROBS, 1, 0.25), [("log-prob-positive", 2, 0, LOG_PROBS, 1)]),
    "beyond float64": (change(SAID, LOG_PROBS, 1, -(10**400)), [("log-prob-finite", 2, 0, LOG_PROBS, 1)]),
    "beyond the vocabulary": (change(LAST, GENERATION, 2, VOCABULARY), [("token-range", 3, 0, GENERATION, 2)]),
    "prompt beyond the vocabulary": (change(LAST, PROMPT, 18, 10**6), [("token-range", 3, 0, PROMPT, 18)]),
    "routes of the generation": (cut(C, ROUTES, slice(3)), [("experts-generation-only", 1, 0, ROUTES, None)]),
    "routes one short": (cut(C, ROUTES, slice(-1)), [("experts-one-short", 1, 0, ROUTES, None)]),
    "routes two short": (cut(C, ROUTES, slice(-2)), [("experts-short", 1, 0, ROUTES, None)]),
    "routes one too many": (grow(C, experts(1, first=4)), [("experts-extra", 1, 0, ROUTES, None)]),
    "no routes": (emptied(C, ROUTES), [("experts-empty", 1, 0, ROUTES, None)]),
    "routes left out": (put(C, ROUTES, None), [("experts-missing", 1, 0, ROUTES, None)]),
    "an expert twice": (route(SAID, 7, [[1, 2], [3, 4], [6, 6], [1, 2]]), [("experts-duplicate", 2, 0, ROUTES, 7)]),
    "a row of zeros": (route(SAID, 7, ZEROS), [("experts-zero-rows", 2, 0, ROUTES, 7)]),
    "zeros at the end": (pad(SAID, 4, ZEROS), [("experts-zero-rows", 2, 0, ROUTES, 13)]),
    "a row repeated": (pad(SAID, 4, REPEATED), [("experts-repeated-rows", 2, 0, ROUTES, 13)]),
    "missing routes": (pad(SAID, 4, MISSING), [("experts-sentinel", 2, 0, ROUTES, 13)]),
    "beyond the experts": (route(SAID, 7, [[1, EXPERTS]] * LAYERS), [("expert-range", 2, 0, ROUTES, 7)]),
    "another top_k": (
        lambda items: items[C].update({ROUTES: experts(12, top_k=3)}),
        [("experts-shape-changed", 1, 0, ROUTES, None)],
    ),
    "other layers": (
        lambda items: items[C].update({ROUTES: experts(12, layers=3)}),
        [("experts-shape-changed", 1, 0, ROUTES, None)],
    ),
    "an envelope among lists": (packed(C), [("experts-form-changed", 1, 0, ROUTES, None)]),
    "another dtype": (
        both(packed(B), packed(C, "int16"), packed(SAID), packed(LAST)),
        [("experts-form-changed", 1, 0, ROUTES, None)],
    ),
    "an envelope too short": (torn(C), [("experts-unreadable", 1, 0, ROUTES, None)]),
    "empty fields": (emptied(C, PROMPT, GENERATION, LOG_PROBS, ROUTES), [("training-empty", 1, 0, GENERATION, None)]),
    "no token": (emptied(C, GENERATION, LOG_PROBS), [("generation-empty", 1, 0, GENERATION, None)]),
    "an id that two calls have": (
        both(put(C, "call_id", "a"), put(C_RESULT, "call_id", "a")),
        [("duplicate-call-id", 1, 0, "call_id", None)],
    ),
    "a call copied within its turn": (
        lambda items: items.insert(2, dict(items[2])),
        [("duplicate-call-id", 0, 3, "call_id", None)],
    ),
    "no result": (remove(A_RESULT), [("unanswered-call", 0, 2, "call_id", None)]),
    "no result at the end": (remove(C_RESULT, SAID, 9, LAST), [("unanswered-last-call", 1, 0, "call_id", None)]),
    "a result of nobody": (
        put(C_RESULT, "call_id", "z"),
        [
            ("result-without-call", 1, None, "call_id", None),
            ("unanswered-call", 1, 0, "call_id", None),
        ],
    ),
    "two results": (
        lambda items: items.insert(C, output("a")),
        [("result-twice", 0, None, "call_id", None)],
    ),
    "results in another order": (swap(A_RESULT, B_RESULT), [("results-out-of-order", 0, None, "call_id", None)]),
    "no ids at the end": (without_ids(LAST), [("ids-missing-after-ids", 3, None, None, None)]),
    "no ids in between": (without_ids(C), [("ids-missing-after-ids", 1, None, None, None)]),
    "no ids at first": (without_ids(B), [("turn-without-ids", 0, None, None, None)]),
    "arguments that are no JSON": (put(B, "arguments", '{"n": '), [("arguments-not-json", 0, 3, "arguments", None)]),
    "arguments that are a list": (put(B, "arguments", "[1]"), [("arguments-not-object", 0, 3, "arguments", None)]),
    "an item cut off": (put(SAID, "status", "incomplete"), [("truncated", 2, 0, "status", None)]),
}
"""What is planted, and what is found: rule, turn, item in the turn, field, index."""


def write(path: Path, plant: Plant, **response: Any) -> Path:
    """A rollout file of one row with a fault."""
    row = sound_row()
    plant(row["response"]["output"])
    row["response"].update(response)
    path.write_text(json.dumps(row), encoding="utf-8")
    return path


def check_row(path: Path, profile: str | None = None, **options: Any) -> Any:
    """What the doctor finds in the row of a file, vocabulary and experts being stated."""
    with MemoryStore() as store:
        (done,) = import_gym(path, store, scope=str(SCOPE), **options)
        assert done.error is None
        return check_rollout(RolloutView(store, done.rollout), profile, vocabulary=VOCABULARY, experts=EXPERTS)


@pytest.mark.parametrize("name", FOUND)
def test_a_fault_in_a_row_is_found(tmp_path: Path, name: str) -> None:
    """A row with one fault has one finding, which names the rule, the turn, the item, the field and the index."""
    plant, expected = FOUND[name]
    assert sorted(places(check_row(write(tmp_path / "rows.jsonl", plant))), key=str) == sorted(expected, key=str)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_sound_row_pleases_every_reader(tmp_path: Path, profile: str) -> None:
    """Where nothing is planted, nothing is found."""
    assert check_row(write(tmp_path / "rows.jsonl", lambda _: None), profile) == []


def test_a_response_cut_at_the_limit_is_found(tmp_path: Path) -> None:
    """The status of the row's response is that of its last turn (contract 1.8)."""
    cut_off = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    found = check_row(write(tmp_path / "rows.jsonl", lambda _: None, **cut_off))
    assert places(found) == [("truncated", 3, None, "finish_reason", None)]


REFUSED: dict[str, tuple[Plant, str, int | None, str]] = {
    "lengths": (cut(SAID, LOG_PROBS, slice(2)), LOG_PROBS, None, "3 generation ids but 2 log probs"),
    "NaN": (change(SAID, LOG_PROBS, 1, float("nan")), LOG_PROBS, 1, "NaN"),
    "infinity": (change(SAID, LOG_PROBS, 2, float("-inf")), LOG_PROBS, 2, "-Infinity"),
    "negative": (change(SAID, PROMPT, 3, -7), PROMPT, 3, "-7"),
    "text": (change(SAID, GENERATION, 0, "5"), GENERATION, 0, "5"),
    "left out": (put(SAID, LOG_PROBS, None), LOG_PROBS, None, LOG_PROBS),
    "ragged": (route(SAID, 7, [[1, 2]]), ROUTES, 7, ROUTES),
    "below -1": (route(SAID, 7, [[1, -2]] * LAYERS), ROUTES, 7, "-2"),
}
"""What capture refuses: the plant, the field and index of the error, a word of it."""


@pytest.mark.parametrize("name", REFUSED)
def test_what_capture_refuses_is_refused_with_its_place(tmp_path: Path, name: str) -> None:
    """Malformed training fields in a row are an error with item, field and index (contract 1.5)."""
    plant, field, index, word = REFUSED[name]
    with MemoryStore() as store:
        (done,) = import_gym(write(tmp_path / "rows.jsonl", plant), store)
    error = done.error
    assert isinstance(error, MalformedItem)
    assert (done.line, error.item, error.field, error.index) == (1, SAID, field, index)
    assert word in str(error)


@pytest.mark.parametrize("profile", [None, *PROFILES])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_kept_in_spite_of_it_is_an_error(tmp_path: Path, name: str, profile: str | None) -> None:
    """A row kept with its fault has one finding, an error for everybody, at the place of the fault (contract 7.9)."""
    plant, field, index, word = REFUSED[name]
    path = write(tmp_path / "rows.jsonl", plant)
    found = check_row(path, profile, on_malformed="gap")
    assert places(found) == [("row-malformed", 2, 0, field, index)]
    assert found[0].severity == "error"
    assert word in found[0].message


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """turnkeep, in a terminal of 80 columns."""
    env = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    command = [str(TURNKEEP), *arguments, "--store", "rollouts.db"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60)


def test_a_row_is_imported_and_checked_as_a_user_does_it(tmp_path: Path) -> None:
    """The refusal names line, item, field and index; kept as a gap, the check names rollout, turn, item and index."""
    write(tmp_path / "rows.jsonl", REFUSED["NaN"][0])
    refused = run(tmp_path, "import", "gym", "rows.jsonl")
    assert refused.returncode == 1
    assert "refused rows.jsonl line 1: " in refused.stdout
    assert f"item {SAID}, field {LOG_PROBS!r}, index 1" in refused.stdout
    kept = run(tmp_path, "import", "gym", "rows.jsonl", "--on-malformed", "gap")
    assert kept.returncode == 0
    checked = run(tmp_path, "check", "rows/1")
    assert checked.returncode == 1
    assert f"at turn 2, item 0, field {LOG_PROBS}, index 1" in checked.stdout
    assert "NaN" in checked.stdout
