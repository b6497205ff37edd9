import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import made_rollouts
import pytest
from hypothesis import given
from made_rollouts import SCOPE, begin, message, response, say, training

from turnkeep.errors import ConfigurationError
from turnkeep.history.capture import capture
from turnkeep.report.compare import compare_rollouts, compare_turns, replay
from turnkeep.rollout.evidence import Reply
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.view import RolloutView
from turnkeep.store.base import Store
from turnkeep.store.memory import MemoryStore
from turnkeep.store.open import open_store
from turnkeep.testing.strategies import turns

if TYPE_CHECKING:
    from turnkeep.history.projection import Entry

EXPERTS = [[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[1, 1], [2, 2]]]
FIELDS: dict[str, Any] = {**training([1, 2], [3, 4, 5], [-0.5, -1.5, -0.0]), "routed_experts": EXPERTS}


def told(store: Store, rollout: str, outputs: tuple[str, ...] = ("one", "two"), **changed: Any) -> RolloutView:
    """A rollout of a turn for each output, and one more; the last turn's item has `changed` members."""
    history: list[Entry] = [{"role": "user", "content": "Go."}]
    with Rollout.open(store, rollout, scope=SCOPE) as opened:
        for number, output in enumerate((*outputs, None)):
            members = FIELDS | (changed if output is None else {})
            say(opened, history, response([message("Same.", **members)], number))
            history.append({"role": "user", "content": str(output)})
    return RolloutView(store, rollout)


def test_equal_rollouts_have_no_difference() -> None:
    """Two rollouts that said the same are equal, turn by turn and message by message."""
    store = MemoryStore()
    assert compare_rollouts(told(store, "a"), told(store, "b")) == (3, 3, None)


@pytest.mark.parametrize(
    ("changed", "path", "index", "one", "other"),
    [
        ({"generation_log_probs": [-0.5, -1.5, 0.0]}, "generation_log_probs[2]", 2, -0.0, 0.0),
        (
            {"generation_log_probs": [-0.5, math.nextafter(-1.5, 0), -0.0]},
            "generation_log_probs[1]",
            1,
            -1.5,
            math.nextafter(-1.5, 0),
        ),
        ({"generation_token_ids": [3, 4, 70_000]}, "generation_token_ids[2]", 2, 5, 70_000),
        ({"routed_experts": [*EXPERTS[:2], [[1, 1], [2, 3]]]}, "routed_experts[2][1][1]", 2, 2, 3),
        ({"status": "completed"}, "status", None, None, "completed"),
        ({"id": "msg_7"}, "id", 4, "msg_1", "msg_7"),
    ],
)
def test_the_first_difference_is_named_to_the_index(
    changed: dict[str, Any], path: str, index: int | None, one: Any, other: Any
) -> None:
    """Turn, item, path, index and both values, exact: the sign of a zero and the last bit of a float count."""
    store = MemoryStore()
    found = compare_rollouts(told(store, "a"), told(store, "b", **changed)).difference
    assert found is not None
    assert (found.turn, found.item, found.path, found.index) == (2, 0, path, index)
    members = found.to_json()
    assert json.dumps([members.get("one"), members.get("other")]) == json.dumps([one, other])
    assert ("one" in members) == (one is not None)


def test_what_a_tool_gave_is_compared_before_the_turn_that_followed_it() -> None:
    """A message that differs is the first difference, with the number of equal turns before it."""
    store = MemoryStore()
    compared = compare_rollouts(told(store, "a"), told(store, "b", outputs=("one", "twO")))
    assert compared.difference is not None
    assert (compared.turns, compared.difference.turn, compared.difference.path) == (2, 2, "content")
    assert (compared.difference.index, compared.difference.one, compared.difference.other) == (2, "two", "twO")


def test_a_rollout_that_goes_on_differs_where_the_other_ends() -> None:
    """A rollout that is the beginning of another differs from it at its end, either way round."""
    store = MemoryStore()
    short, whole = told(store, "a", outputs=("one",)), told(store, "b", outputs=("one", "two"))
    for pair in ((short, whole), (whole, short)):
        compared = compare_rollouts(*pair)
        assert compared.difference is not None
        assert (compared.turns, compared.difference.what) == (2, "one rollout ends where the other goes on")


def test_members_that_are_ignored_do_not_count() -> None:
    """Names left out are left out at every depth, and a call's id goes by its name on the wire."""
    store = MemoryStore()
    views: list[RolloutView] = []
    for number in (0, 1):
        call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"c_{number}", "name": "f", "arguments": "{}"}
        with Rollout.open(store, str(number), scope=SCOPE) as rollout:
            say(rollout, [], response([call], number))
        views.append(RolloutView(store, str(number)))
    for ignore, equal in (((), False), (("id", "call_id"), False), (("id", "call_id", "response_id"), True)):
        assert (compare_rollouts(views[0], views[1], frozenset(ignore)).difference is None) is equal


@given(turns(), turns())
def test_turns_are_equal_exactly_where_their_digests_are(one: Any, other: Any) -> None:
    """Comparing finds a difference in any two turns whose digests differ, and none in a turn and itself."""
    assert compare_turns(one, one) is None
    assert (compare_turns(one, other) is None) == (one.digest == other.digest)


def test_a_rollout_is_what_its_evidence_makes() -> None:
    """Every turn captured again and every request projected again is the recorded one (contract 7.11)."""
    store = MemoryStore()
    view = told(store, "a")
    assert replay(view) == (3, 3, None)
    made_rollouts.hostile(store)
    many = len(made_rollouts.HOSTILE)
    assert replay(RolloutView(store, "hostile <b>")) == (many, many + 2, None)


def test_a_turn_that_is_not_what_came_back_is_found() -> None:
    """A turn that was kept in the place of the one its response makes differs, in the words that were changed."""
    store = MemoryStore()
    with Rollout.open(store, "a", scope=SCOPE) as rollout:
        call = begin(rollout, [{"role": "user", "content": "Go."}])
        body = response([message("I said so.")])
        rollout.answer_call(call, Reply(None, 200, body))
        rollout.add_turn(capture(body, SCOPE).edit(0, text="I said no."), call=call)
    found = replay(RolloutView(store, "a")).difference
    assert found is not None
    assert (found.call, found.turn, found.item, found.field, found.index) == (0, 0, 0, "text", 7)


def test_a_request_that_is_not_what_its_history_makes_is_found() -> None:
    """A rollout whose turns would be replayed in another form today differs in the first request that has one."""
    store = MemoryStore()
    view = told(store, "a")
    view._state = replace(view._state, scope="other")
    found = replay(view).difference
    assert found is not None
    assert (found.call, found.turn, found.field, found.index) == (1, None, "input", 1)


def test_a_rollout_without_calls_cannot_be_replayed() -> None:
    """An imported rollout has no evidence: saying that it is equal would be a lie."""
    store = MemoryStore()
    with Rollout.open(store, "a", scope=SCOPE) as rollout:
        rollout.add_turn(capture(response([message("x")]), SCOPE))
    with pytest.raises(ConfigurationError, match="no policy calls"):
        replay(RolloutView(store, "a"))


def test_a_replay_tells_how_far_it_is() -> None:
    """`advance` is called once for each policy call that was gone through, also for one that made no turn."""
    store = MemoryStore()
    view = told(store, "a")
    with Rollout.open(store, "a", scope=SCOPE) as rollout:
        begin(rollout, [{"role": "user", "content": "Go."}])
    steps: list[None] = []
    assert replay(RolloutView(store, "a"), lambda: steps.append(None)).difference is None
    assert len(steps) == len(view.calls) + 1


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `turnkeep diff`."""
    command = [sys.executable, "-m", "turnkeep.cli.main", "diff", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_command_says_where_and_what(tmp_path: Path) -> None:
    """Exit codes 0, 1 and 2; a text is cut to what stands around the difference, and --json has it whole."""
    one, other = str(tmp_path / "a.db"), str(tmp_path / "b.db")
    with open_store(one) as store:
        told(store, "a")
    with open_store(other) as store:
        told(store, "a", outputs=("one", "two" * 500 + "!"))
    differ = run("a", "a", "--store", one, "--store-b", other)
    assert differ.returncode == 1
    assert "they differ at turn 2, path content, index 3" in differ.stdout
    assert max(map(len, differ.stdout.splitlines())) < 200
    told_json = json.loads(run("a", "a", "--store", one, "--store-b", other, "--json").stdout)
    assert (told_json["equal"], told_json["difference"]["other"]) == (False, "two" * 500 + "!")
    assert run("a", "--replay", "--store", one).returncode == 0
    assert run("a", "--store", one).returncode == 2
