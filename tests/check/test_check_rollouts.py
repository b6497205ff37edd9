"""Rules about a rollout as a whole: what can be trained on, what is missing, how it ended."""

import asyncio
import hashlib
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planting import SCOPE, check_turns, message, places, sound, tool_call, turn, turns_of
from talking import POLICY, results, talk

from turnkeep import PolicyClient, Rollout, RolloutView, check_rollout, open_store
from turnkeep.export.gym_import import import_gym
from turnkeep.rollout.evidence import Reply
from turnkeep.serve.script import make_script
from turnkeep.serve.server import running_policy
from turnkeep.wire.json import dumps

TEXT = [{"text": "Done."}]


def test_a_rollout_without_ids_cannot_be_trained_on(tmp_path: Path) -> None:
    """Turns without token ids are one error for trainers, and none for a document."""
    turns = [turn(message()), turn(message())]
    found = check_turns(tmp_path, turns)
    assert [(each.rule, each.severity, each.turn) for each in found] == [("no-trainable-turn", "error", None)]
    with open_store(tmp_path / "rollouts.db") as store:
        assert check_rollout(RolloutView(store, "r"), "atif") == []


def test_a_rollout_without_turns_cannot_be_trained_on(tmp_path: Path) -> None:
    """A rollout that has only begun, or got no answer, says that it has no turn; with nothing said it has no step."""
    found = check_turns(tmp_path, [])
    assert [(each.rule, each.severity) for each in found] == [("no-step", "error")]
    talked = talk(tmp_path / "..", [TEXT], [], faults=["bad-json"])
    assert ("no-trainable-turn", "the rollout has no turn") in [(each.rule, each.message) for each in talked.check()]


@pytest.mark.parametrize(
    ("number", "rule"), [(0, "turn-without-ids"), (1, "ids-missing-after-ids"), (3, "ids-missing-after-ids")]
)
def test_a_turn_without_ids_is_named(tmp_path: Path, number: int, rule: str) -> None:
    """Before the first turn with ids a foreign turn does no harm; after it, a server splices the wrong prefix (7.8)."""
    turns = turns_of(sound())
    turns.insert(number, turn(message("Foreign.")))
    assert places(check_turns(tmp_path, turns)) == [(rule, number, None, None, None)]


def test_a_turn_of_no_parts_is_no_turn_without_ids(tmp_path: Path) -> None:
    """A turn that says nothing has nothing to replay, and no gap (contract 3.3)."""
    turns = turns_of(sound())
    turns.insert(1, turn())
    assert check_turns(tmp_path, turns) == []


def test_each_gap_is_named_by_its_code(tmp_path: Path) -> None:
    """Every gap is a finding: a warning, a note to trainers, and an error for a strict document (contract 8.1)."""
    check_turns(tmp_path, turns_of(sound()))
    with open_store(tmp_path / "rollouts.db") as store:
        with Rollout.open(store, "r") as rollout:
            rollout.add_gap("foreign_turn_projected_portable")
            rollout.add_gap("of_my_own", invocation="i-1")
        view = RolloutView(store, "r")
        found = check_rollout(view)
        assert [(each.rule, each.severity) for each in found] == [("gap", "warning")] * 2
        assert [each.message.split(":")[0] for each in found] == [
            "foreign_turn_projected_portable",
            "of_my_own (invocation i-1)",
        ]
        assert {each.severity for each in check_rollout(view, "atif")} == {"error"}
        assert {each.severity for each in check_rollout(view, "trl")} == {"note"}


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("inf-log-prob@1", ("gap", 1, 0, "generation_log_probs", 0)),
        ("missing-log-probs@1", ("gap", 1, 0, "generation_log_probs", None)),
    ],
)
def test_a_malformed_response_that_lives_on_is_named_once(tmp_path: Path, fault: str, place: Any) -> None:
    """The gap says which turn lost its training fields, and where the fault was (contract 7.9)."""
    talked = talk(tmp_path, [TEXT] * 3, [results], faults=[fault], on_malformed="gap")
    found = talked.check()
    assert places(found) == [place]
    assert found[0].call == 1
    assert found[0].message.startswith("malformed_training_metadata: ")


def test_an_ungradable_rollout_is_an_error(tmp_path: Path) -> None:
    """A rollout whose last policy call failed is refused for everybody, with what failed and where (contract 7.3)."""
    talked = talk(tmp_path, [TEXT] * 3, [results], faults=["inf-log-prob@1"])
    found = talked.check()
    assert places(found) == [("ungradable", None, 0, "generation_log_probs", 0)]
    assert (found[0].severity, found[0].call) == ("error", 1)
    assert {each.severity for each in talked.check("atif")} == {"error"}


def test_a_call_in_flight_is_found(tmp_path: Path) -> None:
    """A policy call that neither made a turn nor failed is named (contract 10.3)."""
    talked = talk(tmp_path, [TEXT], [])
    with open_store(talked.path) as store, Rollout.open(store, "r") as rollout:
        call = rollout.calls[0]
        rollout.begin_call(call.request, {})
    found = talked.check()
    assert [(each.rule, each.call, each.message) for each in found] == [
        ("unfinished-call", 1, "policy call 1 was sent, and nothing came back")
    ]


def test_an_answer_that_made_no_turn_is_found(tmp_path: Path) -> None:
    """A process that died between keeping the response and making the turn leaves a call that says so."""
    talked = talk(tmp_path, [TEXT], [])
    with open_store(talked.path) as store, Rollout.open(store, "r") as rollout:
        number = rollout.begin_call(rollout.calls[0].request, {})
        rollout.answer_call(number, Reply(None, 200, rollout.response(0)))
    assert [each.message for each in talked.check()] == ["policy call 1 was answered, and no turn was made of it"]


def test_a_tool_that_left_no_output_is_found(tmp_path: Path) -> None:
    """A tool marked `once` that began and did not end is named, with its place among the tools (contract 10.5)."""
    talked = talk(tmp_path, [TEXT], [])
    with open_store(talked.path) as store, Rollout.open(store, "r") as rollout:
        rollout.add_tool({"name": "paid", "arguments": {}, "state": "done", "output": 1})
        rollout.add_tool({"name": "pay", "arguments": {}, "state": "began", "output": None})
    found = talked.check()
    assert places(found) == [("unfinished-tool", None, None, "tools", 1)]
    assert found[0].message == "tool pay began and left no output"


def test_a_rerun_that_went_another_way_is_found(tmp_path: Path) -> None:
    """The difference that a re-run recorded is named, with the policy call (contract 10.4)."""
    talked = talk(tmp_path, [TEXT, TEXT], [])

    async def run(rollout: Rollout, url: str) -> None:
        async with PolicyClient(url, rollout) as policy:
            await policy.call([{"role": "user", "content": "Something else."}])

    with (
        running_policy(policy=POLICY, script=make_script([TEXT])) as url,
        open_store(talked.path) as store,
        Rollout.open(store, "r", rerun=True) as rollout,
    ):
        asyncio.run(run(rollout, url))
    found = [each for each in talked.check() if each.rule != "prompt-contiguity"]
    assert [(each.rule, each.call) for each in found] == [("rerun-difference", 0)]
    assert len(talked.check()) == 2


def damage(path: Path, digest: str) -> None:
    """Turn the bytes that are kept under a digest into zeros."""
    with sqlite3.connect(path) as database:
        hit = "UPDATE blobs SET data = zeroblob(length(data)) WHERE digest = ?"
        assert database.execute(hit, [bytes.fromhex(digest)]).rowcount == 1
    database.close()


def test_a_damaged_log_of_tools_is_named(tmp_path: Path) -> None:
    """Damage in the log of tools is a finding, too, and the rest of the rollout is looked at (contract 9.3)."""
    talked = talk(tmp_path, [TEXT], [])
    with open_store(talked.path) as store, Rollout.open(store, "r") as rollout:
        rollout.add_tool({"name": "paid", "arguments": {}, "state": "done", "output": 1})
        rollout.add_gap("mine")
    with sqlite3.connect(talked.path) as connection:
        connection.execute("UPDATE records SET document = '{}' WHERE kind = 2")
    connection.close()
    assert [(each.rule, each.index) for each in talked.check()] == [("unreadable", 0), ("gap", None)]


def test_a_damaged_turn_is_named_and_the_others_are_looked_at(tmp_path: Path) -> None:
    """Damage is a finding with turn and field; faults in other turns are found all the same (contract 9.3)."""
    made = sound(3)
    made[2]["generation_log_probs"][1] = 1.5
    made[2]["prompt_token_ids"][0] = 999
    turns = turns_of(made)
    both = ["log-prob-positive", "prompt-contiguity"]
    assert [each.rule for each in check_turns(tmp_path, turns)] == both
    routes = np.array(made[1]["routed_experts"], dtype=np.uint8)
    damage(tmp_path / "rollouts.db", hashlib.sha256(routes.tobytes()).hexdigest())
    with open_store(tmp_path / "rollouts.db") as store:
        found = check_rollout(RolloutView(store, "r"), "nemo-rl")
    assert places(found) == [
        ("log-prob-positive", 2, 0, "generation_log_probs", 1),
        ("unreadable", 1, 0, "routed_experts", None),
    ]
    assert found[1].severity == "error"


def test_calls_of_a_damaged_turn_make_no_results_without_calls(tmp_path: Path) -> None:
    """What a turn that cannot be read had called is not known, so nothing is said of results."""
    calls = [{"call": "one", "extra": {"call_id": "a"}}]
    talked = talk(tmp_path, [calls, TEXT], [results])
    with open_store(talked.path) as store:
        body = RolloutView(store, "r").calls[0].body[0]
    damage(talked.path, body)
    assert [(each.rule, each.turn) for each in talked.check()] == [("unreadable", 0)]


def test_a_damaged_request_is_named(tmp_path: Path) -> None:
    """A piece of a request that is not what was written is a finding with its policy call (contract 9.3)."""
    talked = talk(tmp_path, [TEXT, TEXT], [lambda turn: [turn, {"role": "user", "content": "Go on. " * 999}]])
    with open_store(talked.path) as store:
        piece = RolloutView(store, "r").calls[1].request.entries[-1][1]
    assert isinstance(piece, str)
    damage(talked.path, piece)
    assert [(each.rule, each.turn, each.call) for each in talked.check()] == [("unreadable", None, 1)]


def test_an_imported_row_is_checked_with_its_tool_outputs(tmp_path: Path) -> None:
    """A Gym row shows what tools gave, which call got nothing, and which turn lost its training fields (7.9)."""
    made = sound(3)
    made[2]["generation_log_probs"] = [-0.5]
    output = [
        message("Look."),
        tool_call("a"),
        tool_call("b", **made[0]),
        {"type": "function_call_output", "call_id": "b", "output": "3"},
        message("So.", **made[1]),
        message("Lost.", **made[2]),
    ]
    row = {"responses_create_params": {"input": "Begin."}, "response": {"output": output}}
    (tmp_path / "rows.jsonl").write_bytes(dumps(row))
    with open_store(tmp_path / "rollouts.db") as store:
        (done,) = import_gym(tmp_path / "rows.jsonl", store, scope=str(SCOPE), on_malformed="gap")
        found = check_rollout(RolloutView(store, done.rollout))
    assert places(found) == [
        ("row-malformed", 2, 0, "generation_log_probs", None),
        ("unanswered-call", 0, 1, "call_id", None),
    ]
