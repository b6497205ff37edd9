"""The seed's benchmark runs as printed, says of every field that it was preserved, and notices one that was not."""

import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from turnkeep import Turn, dumps_turn, loads_turn, unpack

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from responses_api_agents.nooa_agent.benchmarks.checks import NotPreserved, check_replayed, first_difference
from responses_api_agents.nooa_agent.benchmarks.disk import FILES, REWRITE, STORE
from responses_api_agents.nooa_agent.benchmarks.measure_replay import make_parser, measure
from responses_api_agents.nooa_agent.benchmarks.operations import (
    FORMS,
    OPERATIONS,
    SEED_OPERATIONS,
    Form,
    capture_all,
    replay,
)
from responses_api_agents.nooa_agent.benchmarks.workload import EXPERTS, Workload

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--prompt-tokens", "20", "--generated-tokens", "6", "--layers", "3", "--top-k", "2", "--repeats", "1"]
TINY = Workload("seed", 20, 6, 3, 2)
TRAINING = {"prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts"}
MEMBERS = {"id", "type", "role", "status", "content"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command of the seed, in a checkout."""
    module = "responses_api_agents.nooa_agent.benchmarks.measure_replay"
    command = [sys.executable, "-m", module, *SMALL, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


def result(*arguments: str) -> dict[str, Any]:
    """The one JSON object on stdout."""
    done = run("--json", *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_seed_s_arguments_are_the_defaults() -> None:
    """The command as the seed prints it asks for what it asks for without arguments."""
    printed = "--turns 1 8 32 --prompt-tokens 2048 --generated-tokens 512 --layers 64 --top-k 8 --repeats 3"
    assert make_parser().parse_args(printed.split()) == make_parser().parse_args([])


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """One line says so, with exit code 2: nothing was measured, so nothing was found not to be preserved."""
    done = run("--folder", str(tmp_path / "none"))
    assert (done.returncode, "there is no folder" in done.stderr.splitlines()[-1]) == (2, True)


@pytest.mark.parametrize("form", ["packed", "json"])
@pytest.mark.parametrize("workload", ["seed", "growing", "dense"])
def test_every_field_is_reported_as_preserved(form: str, workload: str) -> None:
    """Times, peaks, sizes and bytes on disk are there for each length, and each field was compared in each turn."""
    told = result("--turns", "1", "3", "--form", form, "--workload", workload)
    assert (told["form"], told["workload"], told["preserved"]) == (form, workload, True)
    assert [run["turns"] for run in told["runs"]] == [1, 3]
    fields = MEMBERS | (TRAINING if workload != "growing" else TRAINING - {"routed_experts"})
    public = {"scope", "content", "usage", "model", "response id"} | (
        {"body, byte for byte"} if form == "packed" else set()
    )
    for each in told["runs"]:
        assert set(each["seconds"]) == set(OPERATIONS)
        assert set(SEED_OPERATIONS) <= set(each["peaks"])
        assert min(each["bytes"], each["text_only"], each["retained"], *each["peaks"].values()) > 0
        assert set(each["checked"]["replay"]) == fields
        assert set(each["checked"]["restore"]) == fields | public
        assert each["checked"]["replay"]["generation_log_probs"] == each["turns"]
        assert set(each["checkpoints"]) == {STORE, REWRITE, FILES}
        for way in each["checkpoints"].values():
            assert way["kept"] > 0
            assert len(way["seconds_of_each_turn"]) == each["turns"]


def test_what_is_written_is_counted_while_it_is_written() -> None:
    """Each turn adds to the bytes written, and rewriting the whole history writes more than a file a turn."""
    if not Path("/proc/self/io").exists():
        pytest.skip("the kernel keeps no count of bytes written")
    ways = result("--turns", "4", "--form", "json")["runs"][0]["checkpoints"]
    assert ways[REWRITE]["handed_to_write"] > 2 * ways[FILES]["handed_to_write"] >= 2 * ways[FILES]["kept"]
    for way in ways.values():
        assert way["disk_after_each_turn"] == sorted(way["disk_after_each_turn"])
        assert way["handed_to_write"] >= way["kept"] > 0


def test_tables_are_what_it_prints_and_progress_is_on_stderr() -> None:
    """Without `--json` there are the seed's two tables and those beside them; what is being done is told meanwhile."""
    done = run("--turns", "2")
    assert done.returncode == 0, done.stderr
    for words in ("Capture (s)", "Replay (s)", "Restore peak (MiB)", "a turn a transaction", "Every field preserved"):
        assert words in done.stdout
    assert "2 turns, packed: times, 1 of 1" in done.stderr


def test_full_measures_what_the_seed_leaves_out() -> None:
    """Stages of a policy call, rollouts at once, more items and resident memory are all there."""
    full = result("--turns", "3", "--full", "--no-agent")["full"]
    assert set(full["one_call"]["seconds_by_turn"]) == {"1", "2", "3"}
    for call in full["one_call"]["seconds_by_turn"].values():
        assert len(call) == 8
        assert min(call.values()) >= 0
    assert full["one_call"]["commit"]["count"] == 9
    assert full["one_call"]["checked"]["generation_token_ids"] == 2
    assert [told["calls"] for told in full["concurrent"].values()] == [3, 24]
    assert full["items"]["checked"]["replay"]["encrypted_content"] == 3
    assert "agent" not in full


@pytest.mark.nooa
@pytest.mark.slow
def test_full_restores_a_nooa_agent_exactly() -> None:
    """An agent restored from NOOA's SQLite storage, or its snapshot, sends every field of every turn."""
    told = result("--turns", "2", "--full")["full"]["agent"]
    for embed in ("archive", "reference"):
        assert told[embed]["calls"] == 2
        for checked in told[embed]["checked"].values():
            assert checked["routed_experts"] == 2
            assert checked["arguments"] == 2


def _nudged(data: bytes) -> list[Turn]:
    """Restore, and lose the last bit of one log prob of the last turn."""
    *turns, last = unpack(data)
    value = json.loads(dumps_turn(last))
    value["parts"][0]["native"]["generation_log_probs"][2] *= 1 + 2**-52
    return [*turns, loads_turn(json.dumps(value))]


def _reordered(data: bytes) -> list[Turn]:
    """Restore, and put the members of an item into another order."""
    first, *turns = unpack(data)
    value = json.loads(dumps_turn(first))
    value["parts"][0]["native"] = dict(reversed(value["parts"][0]["native"].items()))
    return [loads_turn(json.dumps(value)), *turns]


@pytest.mark.parametrize(
    ("restore", "turn", "field"),
    [
        (_nudged, 1, "generation_log_probs"),
        (_reordered, 0, "names of members"),
        (lambda data: unpack(data)[:1], 0, "turns"),
        (lambda data: unpack(data)[::-1], 0, "id"),
        (lambda data: [loads_turn(dumps_turn(turn)) for turn in unpack(data)], 0, "body, byte for byte"),
    ],
    ids=["a log prob's last bit", "order of members", "a turn lost", "turns swapped", "the body lost"],
)
def test_a_broken_restore_is_caught(restore: Any, turn: int, field: str) -> None:
    """A restore that alters anything raises, naming the turn and the field."""
    broken = Form("packed", FORMS["packed"].snapshot, restore, keeps_body=True)
    with pytest.raises(NotPreserved) as caught:
        measure(TINY.bodies(2), broken, 1, lambda text: None)
    assert (caught.value.where, caught.value.turn, caught.value.field) == ("restore", turn, field)


def test_a_replay_that_leaves_something_out_is_caught() -> None:
    """A request that lacks a field, or has an item more, is not what was received."""
    bodies = TINY.bodies(2)
    turns = capture_all(bodies)
    assert check_replayed(bodies, replay(turns))["routed_experts"] == 2
    with pytest.raises(NotPreserved, match="number of items"):
        check_replayed(bodies[:1], replay(turns))
    with pytest.raises(NotPreserved, match="turn 0, item 0, names of members"):
        check_replayed(bodies, replay([turns[0].edit(0, text="another"), turns[1]]))


@pytest.mark.parametrize(
    ("expected", "found", "says"),
    [
        ([1, [2, 3]], [1, [2, 4]], "[1][1] was 3 and is 4"),
        ({"a": 0.0}, {"a": -0.0}, "['a'] was 0.0 and is -0.0"),
        ([1], [1.0], "[0] was 1 and is 1.0"),
        ([1], [1, 2], "the value was [1] and is [1, 2]"),
    ],
)
def test_a_difference_is_named_by_its_path(expected: Any, found: Any, says: str) -> None:
    """Types, signs of zero and lengths count, and the place is given."""
    assert first_difference(expected, found) == says


def _items(body: bytes) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(body)["output"]
    return items


def _lengths(bodies: Sequence[bytes], name: str) -> list[int]:
    return [len(_items(body)[0][name]) for body in bodies]


def test_the_workloads_are_what_they_say() -> None:
    """Equal seeds give equal bodies; prompts grow by generation and tool output; dense experts cover the prompt too."""
    assert TINY.bodies(2) == TINY.bodies(2)
    assert _lengths(TINY.bodies(2), "routed_experts") == [6, 6]
    growing = Workload("growing", 20, 6, 3, 2).bodies(3)
    assert _lengths(growing, "prompt_token_ids") == [20, 32, 44]
    first, second = (_items(body)[0] for body in growing[:2])
    assert second["prompt_token_ids"][:26] == first["prompt_token_ids"] + first["generation_token_ids"]
    dense = _items(Workload("dense", 20, 6, 3, 2).bodies(1)[0])[0]["routed_experts"]
    assert (len(dense), len(dense[0]), len(dense[0][0])) == (26, 3, 2)
    assert all(len(set(layer)) == 2 and max(layer) < EXPERTS for token in dense for layer in token)
    assert any(token == before for before, token in pairwise(dense))
