from pathlib import Path

from rollout_tools import SCOPE, USER, Bench, Said, responses, scripted

from turnkeep.history.projection import project
from turnkeep.rollout.evidence import Prepared, Reply
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.verify import verify_rollout
from turnkeep.rollout.view import RolloutView
from turnkeep.store.sqlite import SqliteStore


def test_a_kill_among_concurrent_calls_is_no_finding(tmp_path: Path) -> None:
    """A process killed between a response and its turn, other calls in flight, leaves nothing wrong (9.2, 10.3).

    A re-run makes the turn of the kept response, so nothing is lost and nothing is corrupt.
    """
    with SqliteStore(tmp_path / "a.db") as store:
        with Rollout.open(store, "r", scope=SCOPE) as rollout:
            for _ in range(2):
                request = project([USER], SCOPE)
                record, blobs = Prepared(request.entries, request.tail()).record(rollout.number_of)
                rollout.begin_call(record, blobs)
            rollout.answer_call(0, Reply(None, 200, responses()))
        assert list(verify_rollout(RolloutView(store, "r"))) == []


def test_a_scope_given_later_is_no_finding(tmp_path: Path) -> None:
    """Turns made before a rollout was given its scope are what their responses make (contract 2.2, 9.3)."""
    with scripted([Said(200, responses())]) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        bench.call(scope=None)
        bench.call(scope=SCOPE)
    with bench.view() as view:
        assert [turn.scope for turn in view.turns] == [None, SCOPE]
        assert list(verify_rollout(view)) == []
