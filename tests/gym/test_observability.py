"""Gym's observations of a rollout, where this Gym has them: valid by its own models, joined by its own code."""

from pathlib import Path
from typing import Any

import pytest
from rows import COUNTER, COUNTING, WEATHER, codes, counter_row, read, weather_row
from servers import MODEL, running_gym

from turnkeep.gym import observe
from turnkeep.history.gaps import FOREIGN_TURN, PUBLIC_ASSISTANT, gap
from turnkeep.history.scope import Scope
from turnkeep.rollout.record import Rollout
from turnkeep.store.open import open_store
from turnkeep.wire.json import dumps
from turnkeep.wire.training import TRAINING_FIELDS

BOTH = [FOREIGN_TURN, PUBLIC_ASSISTANT]
needs_observations = pytest.mark.skipif(not observe.is_there(), reason="this Gym has no rollout_observability")


@pytest.mark.skipif(observe.is_there(), reason="this Gym has rollout_observability")
def test_without_observations_the_row_has_none(tmp_path: Path) -> None:
    """A Gym without the module gets no members that it does not know."""
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db")}) as gym:
        row = read(gym.run(weather_row()))
    assert not {"ng_agent_observations", "ng_trajectory"} & set(row)


@needs_observations
def test_observations_are_valid_and_tell_the_run(tmp_path: Path) -> None:
    """One invocation with its model calls and conversation, a turn a call, a record a tool, no training fields."""
    from nemo_gym.rollout_observability import AgentObservationBundle, TrajectoryRecord

    with running_gym(COUNTING, agent={"store": str(tmp_path / "t.db")}, resources=COUNTER) as gym:
        row = read(gym.run(counter_row()))
    assert row["turnkeep"]["rollout"] == "0-0"
    bundle = AgentObservationBundle.model_validate(row["ng_agent_observations"])
    trajectory = TrajectoryRecord.model_validate(row["ng_trajectory"])
    assert (bundle.source, trajectory.task_id, trajectory.rollout_id) == ("nooa", "0", "0-0")
    invocation = trajectory.invocations[0]
    assert (len(trajectory.invocations), invocation.status, len(invocation.model_calls)) == (1, "completed", 4)
    assert {reference.model_ref.name for reference in invocation.model_calls if reference.model_ref} == {MODEL}
    assert [(turn.turn_no, turn.model_calls) for turn in trajectory.turns] == [
        (number + 1, [reference]) for number, reference in enumerate(invocation.model_calls)
    ]
    of_the_server = [call for call in trajectory.tool_calls if call.tool_call_id.startswith("resource_")]
    assert [(call.tool_name, call.status, call.output) for call in of_the_server] == [
        ("increment_counter", "completed", '{"success":true}'),
        ("increment_counter", "completed", '{"success":true}'),
        ("get_counter_value", "completed", '{"count":6}'),
    ]
    assert {gap.code for gap in bundle.gaps} == {gap.code for gap in trajectory.gaps} == set(codes(row))
    said = [*row["ng_trajectory"]["turns"], *row["ng_trajectory"]["invocations"][0]["conversation"]]
    assert not [member for each in said for member in each if member in TRAINING_FIELDS]


@needs_observations
def test_a_later_try_is_known_to_gym_by_its_number(tmp_path: Path) -> None:
    """Gym keeps what it captures of a later try under an id of its own; the rollout in the store has none of it."""
    from nemo_gym.rollout_collection import _attach_trajectory_record

    asked = counter_row(_ng_attempt_index=2)
    with running_gym(COUNTING, agent={"store": str(tmp_path / "t.db")}, resources=COUNTER) as gym:
        row = read(gym.run(asked))
    assert row["turnkeep"]["rollout"] == "0-0"
    assert row["ng_trajectory"]["rollout_id"] == "0-0-a2"
    _attach_trajectory_record(asked, row)
    assert "producer_trajectory_identity_mismatch" not in [gap["code"] for gap in row["ng_trajectory"]["gaps"]]


@needs_observations
def test_a_rollout_with_both_replay_gaps_is_accepted(tmp_path: Path) -> None:
    """Gym's collector joins what it captured by our references, and its health checks find nothing: gaps fail no row
    (5.3)."""
    from nemo_gym.base_responses_api_model import merge_model_call_capture_into_record
    from nemo_gym.rollout_collection import _attach_trajectory_record
    from nemo_gym.rollout_health import run_health_checks

    with open_store(tmp_path / "t.db") as store, Rollout.open(store, "3-0", scope=Scope(MODEL)) as rollout:
        rollout.add_gaps(map(gap, BOTH))
    extra: dict[str, Any] = {"observability_enabled": True, "model_call_capture_dir": str(tmp_path / "calls")}
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db")}, model="typed", extra=extra) as gym:
        row = read(gym.run(weather_row()))
    told = codes(row)
    assert told == [*BOTH, "non_trainable_terminal_output"]
    merge_model_call_capture_into_record(row, [tmp_path / "calls"], include_payloads=True)
    _attach_trajectory_record(weather_row(), row)
    assert row["ng_model_call_capture"]["metrics"]["num_calls"] == 2
    assert [gap["code"] for gap in row["ng_trajectory"]["gaps"]] == told
    assert len(row["ng_trajectory"]["model_calls"]) == 2
    (tmp_path / "rows.jsonl").write_bytes(dumps(row))
    digest = run_health_checks(tmp_path / "rows.jsonl", workers=1).rollouts[0]
    assert [finding.check for finding in digest.findings] == []
