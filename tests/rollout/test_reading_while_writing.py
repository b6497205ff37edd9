import subprocess
import sys
from pathlib import Path

from turnkeep.rollout.record import Rollout
from turnkeep.rollout.verify import verify_rollout
from turnkeep.rollout.view import RolloutView
from turnkeep.store.sqlite import SqliteStore

WRITER = """
import sys
from turnkeep.history.capture import capture
from turnkeep.history.projection import project
from turnkeep.rollout.evidence import Prepared, Reply
from turnkeep.rollout.record import Rollout
from turnkeep.store.sqlite import SqliteStore
from turnkeep.wire.json import dumps
with SqliteStore(sys.argv[1]) as store, Rollout.open(store, "r") as rollout:
    print("ready", flush=True)
    history = [{"role": "user", "content": "Go."}]
    for number in range(10_000):
        request = project(history, None)
        record, blobs = Prepared(request.entries, request.tail()).record(rollout.number_of)
        call = rollout.begin_call(record, blobs, request.gaps)
        content = [{"type": "output_text", "text": str(number)}]
        body = dumps({"output": [{"type": "message", "content": content}]})
        rollout.answer_call(call, Reply(None, 200, body))
        history = [*history[-20:], rollout.add_turn(capture(body), call=call), {"role": "user", "content": "?"}]
"""


def test_a_rollout_is_read_as_of_one_instant(tmp_path: Path) -> None:
    """A view opened while another process writes is whole: every reference in it leads somewhere (9.2)."""
    path = tmp_path / "a.db"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            counts: list[int] = []
            with SqliteStore(path) as store:
                while len(counts) < 60 or counts[-1] < 40:
                    assert writer.poll() is None
                    view = RolloutView(store, "r")
                    counts.append(view.turn_count)
                    assert view.used == len(view.calls)
                    assert 0 <= len(view.calls) - view.turn_count <= 1
                    assert [call.turn for call in view.calls if call.turn is not None] == list(range(view.turn_count))
                    last = range(len(view.calls))[-3:]
                    assert all(view.request(number) for number in last)
                    assert view.turn_count == 0 or view.call_of_turn(view.turn_count - 1) is not None
                    assert isinstance(view.history(), list)
                assert counts == sorted(counts)
        finally:
            writer.kill()
    with SqliteStore(path) as store, Rollout.open(store, "r") as rollout:
        assert list(verify_rollout(rollout)) == []
