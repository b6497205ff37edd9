"""`turnkeep check --for atif` and strict export: one answer, and the one that the document itself gives."""

import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from atif_samples import ASKED, GOOD, Step, answer, call, export, ids, kept, load, message, output, reasoning
from hypothesis import event, given, settings
from hypothesis import strategies as st

from turnkeep import Rollout, RolloutView, Turn, capture, check_rollout, project
from turnkeep.check.doctor import is_fit
from turnkeep.export.atif import MANIFEST, examine
from turnkeep.history.projection import Entry
from turnkeep.rollout.evidence import Prepared, Reply
from turnkeep.store.base import Store
from turnkeep.store.memory import MemoryStore
from turnkeep.testing import strategies
from turnkeep.wire.json import dumps, loads


def own(holder: dict[str, Any]) -> dict[str, Any]:
    """What turnkeep adds to an object of a document."""
    found: dict[str, Any] = holder.get("extra", {}).get("turnkeep", {})
    return found


def is_whole(document: dict[str, Any]) -> bool:
    """Whether a document shows all that happened, by what stands in its fields: a reader that knows no rule."""
    steps = document["steps"]
    turns = [step for step in steps if "parts" in own(step)]
    results = [
        result.get("source_call_id") for step in steps for result in step.get("observation", {}).get("results", ())
    ]
    calls = [(step is turns[-1], each) for step in turns for each in step.get("tool_calls", ())]
    names = [each["tool_call_id"] for _, each in calls]
    return (
        not ({"gaps", "failure"} & own(document).keys())
        and "\ufffd" not in dumps(document).decode()
        and all(own(step)["finish_reason"] in ("stop", "tool_calls") for step in turns)
        and all(map(_has_sound_metrics, turns))
        and len(set(names)) == len(names)
        and len(set(results)) == len(results)
        and set(results) <= set(names)
        and all(each["tool_call_id"] in results or is_last for is_last, each in calls)
        and not any("text" in (own(each).get("spelling") or {}) for _, each in calls)
    )


def _has_sound_metrics(step: dict[str, Any]) -> bool:
    metrics = step.get("metrics", {})
    prompt, made = metrics.get("prompt_token_ids", []), metrics.get("completion_token_ids", [])
    scores, routes = metrics.get("logprobs", []), metrics.get("extra", {}).get("routed_experts", [])
    start, stop = own(metrics).get("tokens", [0, len(prompt) + len(made)])
    envelope = re.match("nrlre1:[^:]*:([0-9]+)x", routes) if isinstance(routes, str) else None
    rows = int(envelope[1]) if envelope else len(routes)
    stale = made and any("stale" in part or "text" in part for part in own(step)["parts"])
    others = [part for part in own(step)["parts"] if part.get("item", {}).get("generation_token_ids")]
    return (
        len(scores) == len(made)
        and all(score <= 0 for score in scores)
        and (not made or not routes or rows == stop - start)
        and not stale
        and not others
    )


def _with(index: int, **members: Any) -> Callable[[list[Step]], None]:
    """Set members of the item of turn `index` that carries its ids."""
    return lambda steps: steps[index][1]["output"][-1].update(members)


def _ends(index: int, **members: Any) -> Callable[[list[Step]], None]:
    """Set members of the response of turn `index`."""
    return lambda steps: steps[index][1].update(members)


CUT = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
FAULTS: dict[str, Callable[[list[Step]], None]] = {
    "positive": _with(0, generation_log_probs=[-0.5, 0.5]),
    "rows of nobody": _with(1, routed_experts=[[[1, 2], [3, 4]]] * 4),
    "rows too many": _with(1, routed_experts=[[[1, 2], [3, 4]]] * 40),
    "generation only": _with(1, routed_experts=[[[1, 2], [3, 4]]] * 2),
    "one short": lambda steps: steps[0][1]["output"][-1]["routed_experts"].pop(),
    "packed": _with(0, routed_experts="nrlre1:int8:5x1x1:AQIDBAU="),
    "no rows": _with(1, routed_experts=[]),
    "unread": _with(1, routed_experts="nrlre1:int8:5x1x1:AQIDBA=="),
    "no generation": _with(0, generation_token_ids=[], generation_log_probs=[], routed_experts=None),
    "arguments": _with(0, arguments="[1]"),
    "half": _with(0, arguments='{"a": "\\ud800"}'),
    "half a name": _with(0, name="\udfff"),
    "cut": _ends(1, **CUT),
    "failed": _ends(0, status="failed"),
    "unanswered": lambda steps: steps[1][0].remove(output()),  # type: ignore[attr-defined]
    "answered twice": lambda steps: steps[1][0].append(output()),  # type: ignore[attr-defined]
    "nobody's": lambda steps: steps[1][0].append(output("z")),  # type: ignore[attr-defined]
    "same id": lambda steps: steps[1][1]["output"].insert(0, call()),
    "ids twice": lambda steps: steps[1][1]["output"].insert(0, message("B.", **ids([1], [2]))),
    "public": lambda steps: steps[1][0].append({"role": "assistant", "content": "B."}),  # type: ignore[attr-defined]
    "asked in halves": lambda steps: steps[1][0].append({"role": "user", "content": "\ud800"}),  # type: ignore[attr-defined]
    "ends with a call": lambda steps: steps.append(([{"role": "user", "content": "Go."}], answer(call("c_9")))),
    "another prompt": _with(1, prompt_token_ids=[9, 9, 9], routed_experts=None),
    "a foreign turn": lambda steps: steps.insert(0, (ASKED, answer(reasoning("Er."), message("Me.")))),
}
"""What is planted in `GOOD`."""


def answers(store: Store) -> list[bool]:
    """Whether the doctor has no error, strict export no reason, and the manifest says so; and the document itself."""
    view = RolloutView(store, "r")
    (examined,) = examine(store, ["r"])
    with TemporaryDirectory() as folder:
        target = Path(folder, "out")
        document = load(target / export(store, target).file)
        (line,) = (target / MANIFEST).read_bytes().splitlines()
    return [is_fit(check_rollout(view, "atif")), not examined.reasons, loads(line)["strict"], is_whole(document)]


@settings(max_examples=120)
@given(st.lists(st.sampled_from(sorted(FAULTS)), max_size=2, unique=True))
def test_the_doctor_and_the_export_agree(planted: list[str]) -> None:
    """A rollout has no error for atif just where strict export takes it and its document shows all (contract 8.1)."""
    steps: list[Step] = loads(dumps([[list(entries), response] for entries, response in GOOD]))
    for name in sorted(planted, key=[*FAULTS].index):  # the one that moves the others is the last
        FAULTS[name](steps)
    told = answers(kept(steps))
    event(f"fit: {told[0]}")
    assert len(set(told)) == 1, planted


PLAIN = st.lists(strategies.other_messages().filter(lambda entry: entry["role"] != "tool"), max_size=2)
"""What mostly stands between turns: nobody's calls and nobody's results."""


@settings(max_examples=100)
@given(st.lists(st.tuples(PLAIN | PLAIN | strategies.histories(max_size=2), strategies.responses(2)), max_size=2))
def test_what_the_doctor_calls_fit_is_written_whole(steps: list[tuple[list[Entry], Any]]) -> None:
    """Whatever stands in a history, the doctor and the export say the same, and what they take is a whole document."""
    store = MemoryStore()
    history: list[Entry] = []
    with Rollout.open(store, "r", scope=strategies.SCOPE) as rollout:
        for entries, response in steps:
            history += entries
            rollout.add_turns([entry for entry in entries if isinstance(entry, Turn)])
            request = project(history, rollout.scope)
            written, blobs = Prepared(request.entries, request.tail()).record(rollout.number_of)
            number = rollout.begin_call(written, blobs, request.gaps)
            body = dumps(response)
            rollout.answer_call(number, Reply(None, 200, body))
            history.append(rollout.add_turn(capture(body, rollout.scope), call=number))
    if not steps:
        assert [finding.rule for finding in check_rollout(RolloutView(store, "r"), "atif")] == ["no-step"]
        return
    fit, taken, strict, whole = answers(store)
    event(f"fit: {fit}")
    assert fit == taken == strict
    assert whole or not fit
