from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnkeep.serve import tokens
from turnkeep.serve.chat import InvalidRequest, make_prompt, read_messages, splice_prefix
from turnkeep.serve.model import Policy
from turnkeep.serve.parts import Part, cut_parts, join_ids, write_parts
from turnkeep.serve.respond import Options, answer_request
from turnkeep.serve.script import make_script

SCRIPT = make_script(
    [
        [{"reasoning": "Think about the list first."}, {"call": "run", "arguments": '{ "code": "print(1)" }'}],
        [{"text": ["The answer ", "is that."]}],
        [{"text": "And the next."}],
    ]
)
TRAINING = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts")


def ask(history: list[dict[str, Any]]) -> dict[str, Any]:
    """Answer a history in process."""
    return answer_request(Policy(5), SCRIPT, Options(), {"instructions": "Be brief.", "input": history}).response


def write(history: list[dict[str, Any]]) -> str:
    """Give the text of the prompt of a history."""
    return tokens.decode(make_prompt(read_messages({"input": history})).ids).decode()


def tool(response: dict[str, Any], output: Any) -> dict[str, Any]:
    """Give the output item that answers a response's call."""
    return {"type": "function_call_output", "call_id": response["output"][-1]["call_id"], "output": output}


def test_a_request_is_written_header_text_end_and_ends_in_the_assistants_header() -> None:
    """The template is readable: instructions, tools, messages, calls, results, each with its end token."""
    body = {
        "instructions": "Rules.",
        "tools": [{"type": "function", "name": "f"}],
        "input": [
            {"role": "developer", "content": "More rules."},
            {"role": "user", "content": [{"type": "input_text", "text": "Look "}, {"type": "input_image"}]},
            {
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}],
            },
            {"type": "web_search_call", "id": "ws_1", "status": "completed"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "out"}]},
        ],
    }
    assert tokens.decode(make_prompt(read_messages(body)).ids).decode() == (
        "<bos><|system|>Rules.<eos>"
        '<|tools|>[{"type": "function", "name": "f"}]<eos>'
        "<|system|>More rules.<eos><|user|>Look <eos>"
        "<|assistant|><|think|>a\nb<|/think|>Yes.No.<|call|>f<|arguments|>{}<eos>"
        "<|tool|>out<eos><|assistant|>"
    )
    assert tokens.decode(make_prompt(read_messages({"input": "Hi"})).ids) == b"<bos><|user|>Hi<eos><|assistant|>"


def test_a_native_history_continues_exactly_contiguously() -> None:
    """Each prompt begins with all tokens seen so far, so a trainer accepts the rollout (GYM.md section 5)."""
    history: list[dict[str, Any]] = [{"role": "user", "content": "Which function?"}]
    seen: list[int] = []
    for follow in ("tool", "user", "user"):
        response = ask(history)
        last = response["output"][-1]
        assert last["prompt_token_ids"][: len(seen)] == seen
        seen = last["prompt_token_ids"] + last["generation_token_ids"]
        history += response["output"]
        history += [tool(response, "1\n")] if follow == "tool" else [{"role": "user", "content": "Go on."}]
    assert tokens.decode(seen).decode().count("<|assistant|>") == 3


def test_without_its_ids_the_same_history_gives_other_prompt_ids_of_the_same_text() -> None:
    """What the policy emits is not what the template writes: a history read back as text loses the sampled ids."""
    first = ask([{"role": "user", "content": "Which function?"}])
    native = [{"role": "user", "content": "Which function?"}, *first["output"], tool(first, "1\n")]
    portable = [{name: item[name] for name in item if name not in TRAINING} for item in native]
    kept = make_prompt(read_messages({"input": native}))
    lost = make_prompt(read_messages({"input": portable}))
    assert kept.native == len(first["output"][-1]["prompt_token_ids"] + first["output"][-1]["generation_token_ids"])
    assert lost.native == 0
    assert kept.ids != lost.ids
    assert tokens.decode(kept.ids) == tokens.decode(ask(portable)["output"][-1]["prompt_token_ids"])


def test_a_foreign_turn_after_a_native_one_vanishes_with_all_that_stands_between() -> None:
    """The hazard that a client has to guard against: native, user, foreign, user loses the middle (contract 7.8)."""
    native = ask([{"role": "user", "content": "One"}])
    history = [
        {"role": "user", "content": "One"},
        *native["output"],
        tool(native, "KEPT?"),
        {"role": "assistant", "content": "FOREIGN"},
        {"role": "user", "content": "Three"},
    ]
    text = write(history)
    assert "KEPT?" not in text
    assert "FOREIGN" not in text
    assert text.endswith("<eos><|user|>Three<eos><|assistant|>")
    withheld = [{name: item[name] for name in item if name not in TRAINING} for item in history]
    assert "<|tool|>KEPT?<eos><|assistant|>FOREIGN<eos>" in write(withheld)


def test_a_foreign_turn_before_a_native_one_is_exact() -> None:
    """The other way round nothing is lost: the last turn's ids hold the whole history."""
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "FOREIGN"},
        {"role": "user", "content": "Two"},
    ]
    response = ask(history)
    text = write([*history, *response["output"], {"role": "user", "content": "Three"}])
    assert "<|assistant|>FOREIGN<eos><|user|>Two<eos>" in text
    assert text.endswith("<eos><|user|>Three<eos><|assistant|>")


def test_the_splice_keeps_the_documented_example() -> None:
    """GYM.md section 4: native, user, foreign, user becomes the native ids and what follows the foreign end token."""
    end = tokens.EOS
    written = [1, 10, end, 11, end, 30, end, 12, end, 99]
    assert splice_prefix([10, 20, 21, end], written[:7], written).ids == [10, 20, 21, end, 12, end, 99]
    assert splice_prefix([10, 20, 21], written[:3], written).ids == [10, 20, 21, *written[2:]]


def test_a_message_carries_the_ids_of_its_last_item_that_has_them() -> None:
    """Two turns with nothing between merge, and the second turn's ids stand for both."""
    one = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-1.0]}
    two = {"prompt_token_ids": [1, 2, 3], "generation_token_ids": [4], "generation_log_probs": [-1.0]}
    messages = read_messages(
        {
            "input": [
                {"type": "message", "role": "assistant", "content": "a", **one},
                {"type": "reasoning", "summary": []},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", **two},
                {"type": "item_of_next_year"},
            ]
        }
    )
    assert [message.native for message in messages] == [(1, 2, 3, 4)]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": 5},
        {"input": ["text"]},
        {"input": [{"role": "narrator", "content": "x"}]},
        {"input": [{"role": "user", "content": 5}]},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]},
        {"input": [{"type": 5}]},
        {"input": [{"type": "reasoning", "summary": "text"}]},
        {"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]},
        {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}]},
        {"input": [{"type": "function_call_output", "output": "x"}]},
        {"input": [{"role": "assistant", "content": "x", "prompt_token_ids": [1]}]},
        {"input": [{"role": "assistant", "content": "x", "routed_experts": "nrlre1:int8:0x4x2:"}]},
        {
            "input": [
                {
                    "role": "assistant",
                    "content": "x",
                    "prompt_token_ids": [tokens.VOCABULARY_SIZE],
                    "generation_token_ids": [],
                    "generation_log_probs": [],
                }
            ]
        },
    ],
)
def test_a_malformed_request_is_refused(body: dict[str, Any]) -> None:
    """A request that no server could read raises InvalidRequest instead of guessing."""
    with pytest.raises(InvalidRequest):
        read_messages(body)


@example([""], 5)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=4), st.integers(1, 100))
def test_a_cut_message_spells_a_prefix_of_what_it_was(blocks: list[str], limit: int) -> None:
    """Cutting at any token leaves text that the whole text begins with, and no half character."""
    parts = [Part("summary", tuple(blocks)), Part("text", tuple(blocks)), Part("call", ("f", blocks[0]))]
    fragments = write_parts(parts, tokens.encode)
    kept = cut_parts(parts, fragments, limit)
    assert [part.kind for part in kept] == [part.kind for part in parts[: len(kept)]]
    for part, whole in zip(kept, parts, strict=False):
        assert "".join(whole.fields).startswith("".join(part.fields))
    if limit >= len(join_ids(fragments)):
        assert kept == parts
