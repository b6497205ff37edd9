"""Rows of our own rollouts, of the agent server and of `export gym`: what they say besides comes in with them."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from atif_samples import GOOD, Step, answer, kept
from atif_samples import output as asked_result
from gym_samples import SCOPE, call, ids, import_rows, message, output, row
from hypothesis import event, given, settings
from hypothesis import strategies as st

from turnkeep import ArchiveError, Gap, Rollout, RolloutView, TransportFailure, check_rollout
from turnkeep.export.atif import examine
from turnkeep.export.gym_jsonl import export_gym
from turnkeep.export.gym_rows import part_row
from turnkeep.history.gaps import PUBLIC_ASSISTANT, UNGRADABLE, gap
from turnkeep.rollout.conversation import conversation
from turnkeep.store.base import Store
from turnkeep.store.memory import MemoryStore
from turnkeep.testing import strategies
from turnkeep.wire.json import dumps, loads

GAP = Gap("non_trainable_terminal_output", None, "The agent returned a value of its own.")
NOT_OF_THE_SPLIT = {"experts-sentinel"}
"""What `check` says of the ids of the samples, whatever the row is."""
TOLD = {"rollout": "3-0", "gaps": [GAP._asdict()], "failure": None, "policy_calls": 2}


def runtime_call(number: int) -> list[dict[str, Any]]:
    """A call of the resources server's tool that the agent's code made, and its output."""
    name = f"resource_{number}"
    made = {"type": "function_call", "id": name, "call_id": name, "name": "get", "arguments": "{}"}
    return [made, {"type": "function_call_output", "call_id": name, "output": "1"}]


FALLBACK = message("42", id="nooa_fallback")
SERVED = row(
    *(call(**ids()), *runtime_call(0), *runtime_call(1), output()),
    *(message("It is 42.", **ids(15)), *runtime_call(2), FALLBACK),
    turnkeep=TOLD,
)
"""A row as the agent server writes it."""


def test_what_no_policy_said_is_no_turn_in_a_row_of_the_agent_server(tmp_path: Path) -> None:
    """Calls of the agent's code and the value that it returned stand between the turns; gaps come with it (5.2)."""
    with MemoryStore() as store:
        (result,) = import_rows(store, tmp_path / "f.jsonl", dumps(SERVED), scope=SCOPE)
        assert (result.error, result.turns, result.with_gap) == (None, 2, True)
        view = RolloutView(store, "f/1")
        items = SERVED["response"]["output"]
        said = [each.turn if each.item is None else each.item for each in conversation(view)]
        assert said[1:] == [0, *items[1:6], 1, *items[7:]]
        assert view.gaps == (GAP,)
        assert {found.rule for found in check_rollout(view)} == {"gap"} | NOT_OF_THE_SPLIT
        assert _exported(store) == (dumps(SERVED), ())


def _exported(store: Store, name: str = "f/1") -> tuple[bytes, tuple[Any, ...]]:
    out = BytesIO()
    (written,) = export_gym(store, [name], out)
    assert written.error is None
    return out.getvalue().removesuffix(b"\n"), written.remarks


def test_a_row_of_another_harness_is_read_by_its_items_alone() -> None:
    """Without our member the same items are what they are in any row, whatever their ids are."""
    theirs = {name: value for name, value in SERVED.items() if name != "turnkeep"}
    assert len(part_row(dumps(theirs), None).turns) == 6
    assert len(part_row(dumps({**theirs, "turnkeep": "a word"}), None).turns) == 6
    assert part_row(dumps({**theirs, "turnkeep": {"mine": 1}}), None).gaps == ()


def test_an_item_with_token_ids_is_the_policys_in_any_row() -> None:
    """Token ids are never lost to an id that looks like the agent server's."""
    value = row(call(**ids(), id="resource_0", call_id="resource_0"), message(id="nooa_fallback", **ids(12)))
    assert len(part_row(dumps({**value, "turnkeep": TOLD}), None).turns) == 2


@pytest.mark.parametrize(("ours", "reason"), [(True, "stop"), (False, "error")])
def test_the_status_of_a_run_is_not_that_of_its_last_policy_call(ours: bool, reason: str) -> None:
    """A run that was cut short says so in its response; the policy's last turn ended as its items say (1.8)."""
    value = row(message(**ids()), turnkeep=TOLD)
    value["response"] |= {"id": "turnkeep-3-0" if ours else "resp_1", "status": "failed"}
    assert [turn.finish_reason for turn in part_row(dumps(value), None).turns] == [reason]


def test_a_run_that_failed_comes_in_as_ungradable(tmp_path: Path) -> None:
    """A failure in the member makes a gap of it, which `check` calls an error (7.3, 8.1)."""
    failed = row(message(**ids()), turnkeep={**TOLD, "failure": {"type": "EpisodeTimeout", "status": 504}})
    with MemoryStore() as store:
        import_rows(store, tmp_path / "f.jsonl", dumps(failed))
        view = RolloutView(store, "f/1")
        assert [gap.code for gap in view.gaps] == [GAP.code, UNGRADABLE]
        assert [each.rule for each in check_rollout(view) if each.severity == "error"] == ["ungradable"]
        assert _exported(store) == (dumps(failed), ())


def _with_gaps(rollout: Rollout) -> None:
    rollout.add_gap("mine", invocation="i-1", detail="Why.")
    rollout.add_gap("other")


def _failed(rollout: Rollout) -> None:
    rollout.record_failure(TransportFailure("nothing came", call=1))


def _both(rollout: Rollout) -> None:
    _with_gaps(rollout)
    _failed(rollout)


@pytest.mark.parametrize("spoil", [_with_gaps, _failed, _both])
def test_gaps_and_a_failure_go_out_with_a_row_and_come_back(tmp_path: Path, spoil: Callable[[Rollout], None]) -> None:
    """What makes strict ATIF refuse a rollout makes it refuse the import of its row, too (5.2, 7.3, 8.1)."""
    with kept() as store, MemoryStore() as again:
        with Rollout.open(store, "r") as rollout:
            spoil(rollout)
            gaps, failure = rollout.gaps, rollout.failure
        text, remarks = _exported(store, "r")
        assert remarks == ()
        assert loads(text)["turnkeep"] == {
            "rollout": "r",
            "gaps": [gap._asdict() for gap in gaps],
            "failure": failure,
        }
        import_rows(again, tmp_path / "f.jsonl", text)
        view = RolloutView(again, "f/1")
        assert view.gaps == (*gaps, *([] if failure is None else [gap(UNGRADABLE)]))
        (examined,) = examine(again, ["f/1"])
        assert {"gap"} <= {reason.rule for reason in examined.reasons}
        assert ("ungradable" in {found.rule for found in check_rollout(view)}) == (failure is not None)
        assert _exported(again) == (text, ())


def test_a_good_rollout_has_no_member_of_ours() -> None:
    """The row of a rollout without gaps or a failure is what it was, and what its origin's row has stays in it."""
    with kept() as store:
        assert "turnkeep" not in loads(_exported(store, "r")[0])
        with Rollout.open(store, "r") as rollout:
            rollout.set_origin({"row": {"turnkeep": {"mine": 1}}})
        assert loads(_exported(store, "r")[0])["turnkeep"] == {"mine": 1}


def test_what_a_rollout_met_after_its_import_is_told(tmp_path: Path) -> None:
    """The row of an imported rollout is as it was; a gap or a failure that it does not have is a remark (5.2)."""
    with MemoryStore() as store:
        import_rows(store, tmp_path / "f.jsonl", dumps(SERVED))
        with Rollout.open(store, "f/1") as rollout:
            rollout.add_gap("mine")
            rollout.record_failure(TransportFailure("nothing came"))
        text, remarks = _exported(store)
        assert text == dumps(SERVED)
        assert [(remark.rule, remark.turn, remark.message.split(", which")[0]) for remark in remarks] == [
            ("gap_not_in_row", None, "mine"),
            ("gap_not_in_row", None, "TransportFailure: nothing came"),
        ]


PREFILL = {"role": "assistant", "content": "It is"}


def test_a_public_assistant_message_comes_back_between_the_turns(tmp_path: Path) -> None:
    """What an assistant said without being the policy stands in a row without a type, and is no turn (4.4)."""
    steps: list[Step] = [*GOOD, ([{"role": "user", "content": "And now?"}, PREFILL], answer(message(" colder.")))]
    with kept(steps) as store, MemoryStore() as again:
        text, remarks = _exported(store, "r")
        assert remarks == ()
        (result,) = import_rows(again, tmp_path / "f.jsonl", text, scope=SCOPE)
        assert (result.error, result.turns) == (None, 3)
        views = [RolloutView(store, "r"), RolloutView(again, "f/1")]
        assert [_said(view) for view in views] == [[0, "function_call_output", 1, "user", "assistant", 2]] * 2
        assert views[0].gaps == views[1].gaps
        assert PUBLIC_ASSISTANT in [gap.code for gap in views[1].gaps]
        assert _exported(again) == (text, ())


def _said(view: RolloutView) -> list[Any]:
    """The conversation from its first turn on: numbers of turns, roles or types of items."""
    said = [
        each.turn if each.item is None else each.item.get("role", each.item.get("type")) for each in conversation(view)
    ]
    return said[said.index(0) :]


def test_an_item_that_readers_take_for_the_policys_is_told() -> None:
    """A call that a history has of its own looks in a row like the policy's: the export says after which turn (8.1)."""
    own = {"role": "assistant", "tool_calls": [{"id": "c_2", "function": {"name": "weather", "arguments": "{}"}}]}
    with kept([*GOOD, ([own, asked_result("c_2")], answer(message("Colder.")))]) as store:
        _, remarks = _exported(store, "r")
        assert [(remark.rule, remark.turn) for remark in remarks] == [("looks_like_a_turn", 1)]


@settings(max_examples=100)
@given(st.lists(st.tuples(strategies.histories(max_size=2), strategies.responses(2)), min_size=1, max_size=3))
def test_any_row_that_says_all_comes_back(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    """A row without a remark is imported, with the gaps and every item of every turn, and is the same again (9.1)."""
    with kept(steps) as store, MemoryStore() as again:
        text, remarks = _exported(store, "r")
        event(f"remarks: {bool(remarks)}")
        (result,) = import_rows(again, tmp_path_factory.mktemp("any") / "f.jsonl", text)
        if remarks:
            return
        assert result.error is None
        views = [RolloutView(store, "r"), RolloutView(again, "f/1")]
        assert views[0].gaps == views[1].gaps
        first, second = ([part.native for turn in view.turns for part in turn.parts] for view in views)
        assert first == second
        assert _exported(again) == (text, ())


@pytest.mark.parametrize(
    ("gaps", "index"),
    [
        ({}, None),
        ([GAP._asdict(), {"code": "x"}], 1),
        ([GAP._asdict() | {"code": None}], 0),
        ([GAP._asdict() | {"detail": 1}], 0),
        (["x"], 0),
    ],
)
def test_a_member_whose_gaps_are_none_is_refused(gaps: Any, index: int | None) -> None:
    """Gaps that cannot be read refuse the row, with the place: a row is never taken for better than it says (5.2)."""
    with pytest.raises(ArchiveError) as caught:
        part_row(dumps(row(message(), turnkeep={**TOLD, "gaps": gaps})), None)
    assert (caught.value.field, caught.value.index) == ("turnkeep", index)
