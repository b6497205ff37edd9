"""What strict ATIF export refuses, that it says all of it, and that lenient export writes it down (contract 8.1)."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from atif_samples import ASKED, FIRST, SCOPE, SECOND, Step, answer, back, call, export, ids, kept, load, message, output
from hypothesis import given, settings
from hypothesis import strategies as st

from turnkeep import Rollout, RolloutView, TransportFailure, Turn, from_json, to_json
from turnkeep.check.finding import ERROR, PROFILES
from turnkeep.check.rules import RULES
from turnkeep.export.atif import Examined, examine
from turnkeep.store.base import Store
from turnkeep.store.memory import MemoryStore
from turnkeep.testing import strategies

LONE = "a\ud800"
USER = {"role": "user"}
DEEP = '{"a":' * 101 + "1" + "}" * 101
THEN: Step = ([output()], answer(message("Done.")))


def reasons(store: Store, name: str = "r") -> list[tuple[str, int | None, str | None]]:
    """What strict export refuses: rule, turn, field."""
    (examined,) = examine(store, [name])
    return [(reason.rule, reason.turn, reason.field) for reason in examined.reasons]


def only(*items: dict[str, Any], **members: Any) -> list[Step]:
    """One turn of these items, after a question."""
    return [(ASKED, answer(*items, **members))]


def test_the_page_names_the_rules_of_documents_alone() -> None:
    """docs/atif.md lists the rules that no trainer has; docs/rules.md lists all."""
    docs = Path(__file__).parent.parent.parent / "docs"
    rows = re.findall(r"^\| (`.*) \|", (docs / "atif.md").read_text(encoding="utf-8"), re.MULTILINE)
    listed = {rule for row in rows for rule in re.findall("`([a-z]+-[a-z-]+)`", row)}
    own = [rule for rule in RULES if not any(rule.severities.of(name) for name in PROFILES if name != "atif")]
    assert {rule.name for rule in own} == listed
    assert {rule.severities.of("atif") for rule in own} == {ERROR}


def test_what_is_whole_is_accepted() -> None:
    """A rollout with every call answered, contiguous prompts and routes for all tokens has nothing to refuse."""
    assert reasons(kept()) == []


REFUSED: dict[str, tuple[list[Step], list[tuple[str, int | None, str | None]]]] = {
    "cut": (
        only(message("A"), status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
        [("truncated", 0, "finish_reason")],
    ),
    "failed": (only(message("A"), status="failed"), [("failed-response", 0, "finish_reason")]),
    "unanswered": ([*only(call(**FIRST)), ([], answer(message("A", **SECOND)))], [("unanswered-call", 0, "call_id")]),
    "above zero": (
        only(message("A", **{**FIRST, "generation_log_probs": [0.5, -1.0]})),
        [("log-prob-positive", 0, "generation_log_probs")],
    ),
    "no object": ([*only(call(arguments="[]", **FIRST)), THEN], [("arguments-not-object", 0, "arguments")]),
    "no JSON": ([*only(call(arguments="{", **FIRST)), THEN], [("arguments-not-json", 0, "arguments")]),
    "too deep": ([*only(call(arguments=DEEP)), THEN], [("arguments-too-deep", 0, "arguments")]),
    "twice": (
        [*only(call()), THEN, ([], answer(call())), THEN],
        [("duplicate-call-id", 2, "call_id")],
    ),
    "surrogate": (only(message(LONE)), [("lone-surrogate", 0, "content")]),
    "surrogate written out": (
        [*only(call(arguments='{"a":"\\ud800"}')), THEN],
        [("lone-surrogate", 0, "arguments")],
    ),
    "surrogate asked": (
        [([{"role": "user", "content": LONE}], answer(message("A")))],
        [("lone-surrogate", None, None)],
    ),
    "rows of nobody": (
        only(message("A", **ids([1, 2, 3, 9], [4, 5], rows=3))),
        [("experts-short", 0, "routed_experts")],
    ),
    "envelope": (
        only(message("A", **{**FIRST, "routed_experts": "nrlre1:int8:1x2x1:A"})),
        [("experts-unreadable", 0, "routed_experts")],
    ),
    "ids twice": (only(message("A", **FIRST), message("B", **FIRST)), [("token-ids-twice", 0, "prompt_token_ids")]),
    "copied call": ([*only(call()), ([call(), output()], answer(message("A")))], [("call-id-twice", 0, "call_id")]),
    "public dictionary": (
        [(ASKED, answer(message("A"))), ([{"role": "assistant", "content": "B"}], answer(message("C")))],
        [("gap", None, None)],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_and_named(tmp_path: Path, name: str) -> None:
    """Each condition is refused with rule, turn and field; lenient export writes it down, and the history returns."""
    steps, expected = REFUSED[name]
    store = kept(steps)
    found = reasons(store)
    assert [each for each in found if each[0] != "prompt-contiguity"] == expected
    path = tmp_path / "out" / export(store, tmp_path / "out").file
    about = load(path)["extra"]["turnkeep"]
    assert [(each["rule"], each["turn"], each["field"]) for each in about["refused"]] == found
    view, _ = back(path)
    assert [turn.digest for turn in view.turns] == [turn.digest for turn in RolloutView(store, "r").turns]


def test_every_reason_is_listed() -> None:
    """All that is wrong with a rollout is said at once, in the order of its turns."""
    bad = answer(message(LONE, **{**FIRST, "generation_log_probs": [0.5, -1.0]}), status="failed")
    store = kept([(ASKED, bad), ([], answer(call("c_7", "{")))])
    with Rollout.open(store, "r") as rollout:
        rollout.add_gap("mine", detail="Why.")
        rollout.record_failure(TransportFailure("nothing came"))
    assert reasons(store) == [
        ("log-prob-positive", 0, "generation_log_probs"),
        ("failed-response", 0, "finish_reason"),
        ("lone-surrogate", 0, "content"),
        ("arguments-not-json", 1, "arguments"),
        ("gap", None, None),
        ("ungradable", None, None),
    ]


def _add(turn: Turn) -> Store:
    store = MemoryStore()
    with Rollout.open(store, "r", scope=SCOPE) as rollout:
        rollout.add_turns([turn])
    return store


def _stale(turn: Turn) -> Turn:
    form = to_json(turn)
    form["parts"][1]["text"] = "Edited."
    return from_json(form)


@pytest.mark.parametrize("change", [lambda turn: turn.edit(1, text="Edited."), _stale], ids=["edited", "stale"])
def test_token_ids_of_another_text_are_refused(change: Callable[[Turn], Turn]) -> None:
    """A turn that was edited while its ids stayed is refused: they are not of what stands in the message."""
    turn = change(RolloutView(kept(), "r").turn(0))
    assert ("edited-turn", 0, None) in reasons(_add(turn))


def test_gaps_stand_in_the_lenient_document(tmp_path: Path) -> None:
    """Lenient export writes the gaps with code, invocation and detail, and import brings them back."""
    store = kept()
    with Rollout.open(store, "r") as rollout:
        rollout.add_gap("mine", detail="Why.", invocation="i-1")
    path = tmp_path / "out" / export(store, tmp_path / "out").file
    assert load(path)["extra"]["turnkeep"]["gaps"] == [["mine", "i-1", "Why."]]
    assert back(path)[0].gaps == RolloutView(store, "r").gaps


def test_what_is_empty_or_damaged_no_export_writes() -> None:
    """A rollout without anything said is an obstacle even for lenient export."""
    store = MemoryStore()
    Rollout.open(store, "r").close()
    (examined,) = examine(store, ["r"])
    assert isinstance(examined, Examined)
    assert [reason.rule for reason in examined.obstacles] == ["no-step"]
    (examined,) = examine(kept(only(message("A"), status="failed")), ["r"])
    assert examined.reasons
    assert examined.obstacles == []


@settings(max_examples=40)
@given(st.lists(strategies.turns(), min_size=1, max_size=2))
def test_examining_always_ends_in_reasons(turns: Sequence[Turn]) -> None:
    """Whatever stands in a rollout, examining it ends in reasons with rollout, rule and words, and in no error."""
    store = MemoryStore()
    with Rollout.open(store, "r", scope=strategies.SCOPE) as rollout:
        rollout.add_turns(turns)
    (examined,) = examine(store, ["r"])
    assert all(reason.rollout == "r" and reason.rule and reason.message for reason in examined.reasons)
