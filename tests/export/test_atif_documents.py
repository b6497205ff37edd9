"""ATIF documents: where everything stands, that the published models accept it, and that nothing stands there twice."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import atif
import pytest
from atif_samples import (
    ASKED,
    FIRST,
    GOOD,
    SECOND,
    TOOLS,
    answer,
    call,
    export,
    harbor_errors,
    kept,
    load,
    message,
    output,
    reasoning,
)

from turnkeep import ConfigurationError, RolloutView
from turnkeep.export.atif import examine, export_atif
from turnkeep.wire.json import loads


@pytest.fixture
def document(tmp_path: Path) -> Any:
    """The document of `GOOD`."""
    return load(tmp_path / "out" / export(kept(), tmp_path / "out").file)


def test_the_published_models_accept_it(tmp_path: Path) -> None:
    """The atif package and Harbor's validator accept what is exported (contract 8.2)."""
    path = tmp_path / "out" / export(kept(), tmp_path / "out").file
    atif.Trajectory.model_validate_json(path.read_bytes())
    assert harbor_errors()(path) == []


def test_harbors_validator_sees_faults(tmp_path: Path) -> None:
    """The check against Harbor can fail."""
    path = tmp_path / "bad.json"
    path.write_text('{"schema_version": "ATIF-v1.8", "agent": {"name": "a", "version": "1"}, "steps": []}')
    assert harbor_errors()(path) != []


def test_what_was_said_stands_in_atifs_fields(document: Any) -> None:
    """Steps are the conversation: who spoke, text, reasoning, calls, and outputs at their calls."""
    steps = document["steps"]
    assert [(step["step_id"], step["source"], step["message"]) for step in steps] == [
        (1, "system", "Be exact."),
        (2, "user", "How cold is it?"),
        (3, "agent", "Let me look."),
        (4, "agent", "It is cold."),
    ]
    assert steps[2]["reasoning_content"] == "Hm."
    (made,) = steps[2]["tool_calls"]
    assert (made["tool_call_id"], made["function_name"], made["arguments"]) == ("c_1", "weather", {"city": "Oslo"})
    assert steps[2]["observation"] == {"results": [{"source_call_id": "c_1", "content": "-3"}]}
    assert [step.get("llm_call_count") for step in steps] == [None, None, 1, 1]
    assert document["agent"] == {"name": "turnkeep", "version": "0.1.0", "model_name": "m", "tool_definitions": TOOLS}


def test_training_arrays_stand_in_atifs_places(document: Any) -> None:
    """Token ids and log probs are in the metrics, routed experts in their extra, counts and sums with them (8.2)."""
    metrics = [step["metrics"] for step in document["steps"][2:]]
    for found, fields in zip(metrics, (FIRST, SECOND), strict=True):
        assert found["prompt_token_ids"] == fields["prompt_token_ids"]
        assert found["completion_token_ids"] == fields["generation_token_ids"]
        assert found["logprobs"] == fields["generation_log_probs"]
        assert found["extra"] == {"routed_experts": fields["routed_experts"]}
    assert [found["prompt_tokens"] for found in metrics] == [3, 6]
    assert metrics[0]["cached_tokens"] == 1
    assert document["final_metrics"] == {"total_prompt_tokens": 9, "total_completion_tokens": 4, "total_steps": 4}


@pytest.mark.parametrize(
    ("rows", "told"), [(7, None), (6, {"tokens": [0, 6]}), (2, {"tokens": [5, 7]})], ids=["all", "one short", "new"]
)
def test_routes_say_which_tokens_they_are_of(tmp_path: Path, rows: int, told: Any) -> None:
    """Routes for prompt and completion say nothing; others say to which tokens they belong."""
    fields = {**FIRST, "prompt_token_ids": [1, 2, 3, 4, 5], "routed_experts": [[[1, 2]]] * rows}
    path = tmp_path / "out" / export(kept([(ASKED, answer(message("A", **fields)))]), tmp_path / "out").file
    assert load(path)["steps"][2]["metrics"]["extra"].get("turnkeep") == told


def test_a_prompt_that_does_not_go_on_is_marked(tmp_path: Path) -> None:
    """A step whose prompt does not begin with the prompt and completion before it says so; others do not."""
    again = ({"role": "user", "content": "Again."},)
    steps = [GOOD[0], GOOD[1], (again, answer(message("No.", **FIRST)))]
    found = load(tmp_path / "out" / export(kept(steps), tmp_path / "out").file)["steps"]
    marks = [step["extra"]["turnkeep"].get("new_prompt") for step in found if step["source"] == "agent"]
    assert marks == [None, None, True]


def long_texts(value: Any) -> Iterator[str]:
    """Every string of a document, keys aside."""
    if isinstance(value, dict):
        yield from (text for member in value.values() for text in long_texts(member))
    elif isinstance(value, list):
        yield from (text for element in value for text in long_texts(element))
    elif isinstance(value, str):
        yield value


def test_no_copy_of_the_rollout_hides_in_extra(tmp_path: Path) -> None:
    """No text of more than 40 characters stands in a document twice, however oddly arguments are spelled."""
    said = {name: f"{name}: " + " ".join(f"{name}{place}" for place in range(30)) for name in "abcdefghijk"}
    odd = '{ "q" :"%s",\n "r":\t["%s" , 1e0]}' % (said["d"], said["e"])  # noqa: UP031 # braces
    items = [reasoning(said["a"]), message(said["b"], said["c"]), call("c_1", odd), call("c_2", '{"x": "é"}', **FIRST)]
    blocks = [{"type": "input_text", "text": said["h"]}, {"type": "input_text", "text": said["i"]}]
    asked = [{"role": "system", "content": said["f"]}, {"role": "user", "content": said["g"]}]
    steps = [
        (asked, answer(*items)),
        ([output("c_2", said["j"]), output("c_1", blocks)], answer(message(said["k"]))),
    ]
    text = (tmp_path / "out" / export(kept(steps), tmp_path / "out").file).read_bytes().decode()
    assert all(text.count(each[5:]) == 1 for each in said.values())
    scopes = loads(text)
    counted = Counter(each for each in long_texts(scopes) if len(each) > 40)
    assert [each for each, count in counted.items() if count > 1] == []


def test_the_manifest_names_every_file(tmp_path: Path) -> None:
    """The manifest has each rollout with its file, size and SHA-256; names that files cannot have are made to fit."""
    store = kept(name="a/b")
    kept(name="a_b", store=store)
    kept(name="A_B", store=store)
    kept(name=".hidden", store=store)
    written = [*export_atif(store, list(examine(store, store.rollouts())), tmp_path / "out")]
    lines = [loads(line) for line in (tmp_path / "out" / "manifest.jsonl").read_bytes().splitlines()]
    assert [line["rollout"] for line in lines] == ["a/b", "a_b", "A_B", ".hidden"]
    assert len({line["file"].lower() for line in lines}) == 4
    assert {path.name for path in (tmp_path / "out").iterdir()} == {line["file"] for line in lines} | {"manifest.jsonl"}
    for line, each in zip(lines, written, strict=True):
        data = (tmp_path / "out" / line["file"]).read_bytes()
        assert line["sha256"] == each.sha256 == hashlib.sha256(data).hexdigest()
        assert line["bytes"] == len(data)
        assert load(tmp_path / "out" / line["file"])["trajectory_id"] == line["rollout"]


def test_the_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    """While it is written nothing stands under its name; broken off, nothing is left; one that is there stays."""
    store = kept()
    kept(name="s", store=store)
    found = list(examine(store, ["r", "s"]))
    writing = export_atif(store, found, tmp_path / "out")
    next(writing)
    assert not (tmp_path / "out").exists()
    writing.close()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigurationError, match="is there already"):
        list(export_atif(store, found, tmp_path / "out"))
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    assert RolloutView(store, "r").turn_count == 2
