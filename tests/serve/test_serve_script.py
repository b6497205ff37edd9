import json
from pathlib import Path
from typing import Any

import pytest

from turnkeep.errors import ConfigurationError
from turnkeep.serve.chat import read_messages
from turnkeep.serve.faults import Fault, parse_fault
from turnkeep.serve.script import Script, choose_step, load_script, make_script

CALL = {"type": "function_call", "name": "f", "arguments": "{}"}


def says(script: Script, history: list[dict[str, Any]]) -> str:
    """Give the first field that a script answers a history with."""
    return choose_step(script, read_messages({"input": history})).parts[0].fields[0]


def user(text: str = "Go on.") -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_the_step_follows_from_the_number_of_policy_turns_in_the_request() -> None:
    """No state of the server is needed: the same history always gets the same step, and after the end the last."""
    script = make_script([[{"text": "zero"}], [{"text": "one"}]])
    assert says(script, [user()]) == "zero"
    assert says(script, [user(), {"role": "assistant", "content": "x"}, user()]) == "one"
    assert says(script, [user(), {"role": "assistant", "content": "x"}, user()] * 5) == "one"


def test_calls_that_the_runtime_made_up_are_no_policy_turns() -> None:
    """A prefilled call is passed over, unless the policy said something in the same message."""
    script = make_script([[{"text": "zero"}], [{"text": "one"}]])
    prefill = [{**CALL, "call_id": "prefill_1"}, {"type": "function_call_output", "call_id": "prefill_1", "output": ""}]
    assert says(script, [user(), *prefill]) == "zero"
    assert says(script, [user(), {"role": "assistant", "content": "x"}, *prefill]) == "one"
    assert (
        says(make_script({"steps": [[{"text": "zero"}], [{"text": "one"}]], "made_up": []}), [user(), *prefill])
        == "one"
    )


def test_a_rule_that_fits_the_last_text_wins() -> None:
    """Match is a regular expression and contains is plain words, both on the last user or tool text."""
    script = make_script(
        [
            [{"text": "zero"}],
            [{"match": r"error: \w+"}, {"text": "repair"}],
            [{"contains": "a.b"}, {"text": "dotted"}],
            [{"text": "one"}],
        ]
    )
    output = {"type": "function_call_output", "call_id": "c", "output": "error: oops"}
    assert says(script, [user(), {**CALL, "call_id": "c"}, output]) == "repair"
    assert says(script, [user("a.b")]) == "dotted"
    assert says(script, [user("axb")]) == "zero"
    assert says(script, [user("a.b"), {"role": "assistant", "content": "x"}, user()]) == "one"


def test_after_the_script_comes_the_step_named_after() -> None:
    """A script may say what comes after its last step; one without plain steps says that it is the end."""
    assert (
        says(
            make_script({"steps": [[{"text": "zero"}]], "after": [{"text": "over"}]}),
            [user(), {"role": "assistant", "content": "x"}, user()],
        )
        == "over"
    )
    assert says(make_script([]), [user()]) == "The end."


def test_arguments_given_as_a_string_are_kept_byte_for_byte() -> None:
    """An argument string is not parsed; an object is written as JSON."""
    script = make_script(
        [[{"call": "f", "arguments": '{"a" :  1.0e0}'}, {"call": "g", "arguments": {"ä": [1]}}, {"call": "h"}]]
    )
    assert [part.fields for part in script.steps[0].parts] == [
        ("f", '{"a" :  1.0e0}'),
        ("g", '{"ä": [1]}'),
        ("h", "{}"),
    ]


def test_json_and_jsonl_files_say_the_same(tmp_path: Path) -> None:
    """A script is one JSON value or one step per line."""
    steps = [[{"reasoning": ["a", "b"]}, {"text": "c"}], [{"refusal": "d"}], [{"item": {"type": "web_search_call"}}]]
    whole, lines = tmp_path / "s.json", tmp_path / "s.jsonl"
    whole.write_text(json.dumps({"steps": steps}))
    lines.write_text("".join(json.dumps(step) + "\n" for step in steps))
    assert load_script(whole) == load_script(lines) == make_script(steps)


@pytest.mark.parametrize(
    "value",
    [
        5,
        {"step": []},
        {"steps": [], "made_up": "prefill_"},
        [{"text": "a step is a list"}],
        [[]],
        [[{"match": "only a rule"}]],
        [[{"text": "x", "argument": 1}]],
        [[{"words": "x"}]],
        [[{"text": 5}]],
        [[{"call": 5}]],
        [[{"item": "x"}]],
        [[{"text": "x", "extra": 5}]],
        [[{"match": "("}, {"text": "x"}]],
        [[{"contains": 5}, {"text": "x"}]],
    ],
)
def test_a_script_that_cannot_be_read_is_refused(value: Any) -> None:
    """A mistake in a script is named before anything is served."""
    with pytest.raises(ConfigurationError):
        make_script(value)


def test_the_error_names_the_file(tmp_path: Path) -> None:
    """A missing file, a file of no JSON and a wrong step are errors that name the file."""
    (tmp_path / "no.json").write_text("{")
    (tmp_path / "wrong.json").write_text('[[{"text": "x"}], [{"txt": "x"}]]')
    for name, words in (("missing.json", "No such file"), ("no.json", "Expecting"), ("wrong.json", "step 1")):
        with pytest.raises(ConfigurationError, match=rf"{name}.*{words}"):
            load_script(tmp_path / name)


def test_faults_are_read_as_they_are_written() -> None:
    """Name, places and argument are parsed; without places every request is hit."""
    assert parse_fault("500@0,2") == Fault("500", frozenset({0, 2}))
    assert parse_fault("slow@*:0.5") == Fault("slow", None, 0.5)
    assert parse_fault("truncated").hits(17)
    assert [parse_fault("503@1").hits(number) for number in range(3)] == [False, True, False]


@pytest.mark.parametrize(
    "text", ["", "501", "500@", "500@x", "500@-1", "500:3", "slow", "slow:x", "slow:-1", "slow:inf"]
)
def test_an_unknown_fault_is_refused(text: str) -> None:
    """A fault that does not exist, or has a wrong place or argument, is a clear error."""
    with pytest.raises(ConfigurationError, match="fault"):
        parse_fault(text)
