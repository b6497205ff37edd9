"""NOOA's newer runtime, on classes of the documented shape (contract 1.7, 3.2, 4.1, 9.1)."""

import asyncio
import json
from copy import deepcopy
from typing import Any

import generation_d as newer
import pytest
from agents import MADE_UP, python
from harness import ARRAYS, bench, kinds, place_of
from nooa.unifiedllm import unifiedllm

from turnkeep.archive.json_form import from_json
from turnkeep.history.projection import project
from turnkeep.history.turn import Turn
from turnkeep.nooa.messages import to_history
from turnkeep.nooa.parts import has_ordered_parts, is_native_turn, native_response, turn_from_native
from turnkeep.wire.json import same

pytestmark = pytest.mark.nooa

SCOPE = 'nemo-gym/responses/v1:["policy_model", "gym-policy"]'
ITEMS: list[dict[str, Any]] = [
    {"id": "rs", "type": "reasoning", "summary": [{"type": "summary_text", "text": "why"}], "encrypted_content": "e"},
    {
        "id": "msg",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []} for text in ("one", "two")],
    },
    {"id": "ws", "type": "web_search_call", "status": "completed", "action": {"query": "x"}},
    {
        "id": "fc",
        "type": "function_call",
        "call_id": "c1",
        "name": "f",
        "arguments": '{"a":  1}',
        "prompt_token_ids": [1, 2],
        "generation_token_ids": [3],
        "generation_log_probs": [-0.0],
        "routed_experts": [[[0, 1]], [[1, 0]], [[2, 3]]],
    },
]


def turn() -> Turn:
    """A turn of every kind of part."""
    from turnkeep.history.capture import capture

    return capture({"id": "r", "object": "response", "model": "m", "output": ITEMS}, SCOPE)


def response() -> Any:
    """The same as the newer runtime holds it."""
    return native_response(turn(), newer.LLMResponse, newer)


def sent(history: list[Any]) -> Any:
    """What a history projects to."""
    entries, _ = to_history(history, lambda carried: turn())
    return project(entries, SCOPE)


def test_the_newer_runtime_is_found_by_its_parts() -> None:
    """`parts` among the model's fields tells it; nooa 0.0.10's dataclass has none."""
    assert has_ordered_parts(newer.LLMResponse)
    assert not has_ordered_parts(unifiedllm.LLMResponse)
    assert is_native_turn(response())
    assert not is_native_turn({"role": "assistant", "content": "x"})


def test_a_turn_becomes_parts_and_comes_back_equal() -> None:
    """Kinds, texts, arguments, complete items and the scope survive freezing and thawing (1.2, 1.6)."""
    made = response()
    assert [part.kind for part in made.parts] == kinds(turn()) == ["reasoning", "text", "text", "tool_call"]
    assert made.content == "onetwo"
    assert isinstance(made.parts[3].native["prompt_token_ids"], tuple)
    back = turn_from_native(made)
    assert back.parts == turn().parts
    assert back.scope == SCOPE


def test_a_response_among_the_messages_replays_natively() -> None:
    """An unchanged response projects to the items received, also after its JSON archive and a deep copy (4.1, 9.1)."""
    archived = newer.LLMResponse.model_validate(json.loads(json.dumps(response().model_dump(mode="json"))))
    for held in (response(), deepcopy(response()), archived, response().model_copy(update={"metadata": {"a": 1}})):
        output = {"role": "tool", "tool_call_id": "c1", "content": "1"}
        request = sent([{"role": "user", "content": "?"}, held, newer.CacheBoundary(), output])
        assert same(request.input[1:-1], ITEMS)
        assert request.gaps == ()


def test_nooas_own_edit_strips_the_natives() -> None:
    """A response with other parts is portable, with a gap; the original is untouched (1.7)."""
    made = response()
    with pytest.raises(ValueError, match="frozen"):
        made.parts = ()
    new = made.model_copy(update={"parts": (*made.parts[:1], newer.AssistantText(text="three"), *made.parts[3:])})
    request = sent([new])
    assert {"role": "assistant", "content": "three"} in request.input
    assert not any(set(ARRAYS) & set(item) for item in request.input)
    assert [gap.code for gap in request.gaps] == ["foreign_turn_projected_portable"]
    assert sent([made]).gaps == ()


@pytest.mark.parametrize("edit", ["text", "arguments", "scope"])
def test_a_validated_archive_with_stale_natives_is_portable(edit: str) -> None:
    """`model_validate` keeps natives beside edited public fields; each part is checked anew (3.2)."""
    archive = response().model_dump(mode="json")
    if edit == "text":
        archive["parts"][1]["text"] = "other"
    elif edit == "arguments":
        archive["parts"][3]["arguments"] = '{"a": 1}'
    else:
        archive["replay_scope"] = "openai:responses:sha256:00"
    held = newer.LLMResponse.model_validate(archive)
    assert held.parts[3].native is not None
    request = sent([held])
    assert not any(set(ARRAYS) & set(item) for item in request.input)
    assert [gap.code for gap in request.gaps] == ["foreign_turn_projected_portable"]


def test_a_flat_response_is_portable() -> None:
    """A response built from flat fields has no natives and no scope: its text, and a gap (2.2)."""
    request = sent([newer.LLMResponse.model_validate({"content": "hello"})])
    assert request.input == [{"role": "assistant", "content": "hello"}]
    assert [gap.code for gap in request.gaps] == ["foreign_turn_projected_portable"]


def test_the_archive_of_the_newer_runtime_opens_here() -> None:
    """Its JSON dump is this project's JSON form (9.4)."""
    assert from_json(response().model_dump(mode="json")).parts == turn().parts


def test_the_client_answers_a_newer_runtime_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With such a runtime the client returns its response, and takes it back from the messages (4.1)."""
    import sys

    monkeypatch.setattr(unifiedllm, "LLMResponse", newer.LLMResponse)
    monkeypatch.setitem(sys.modules, "nooa.llm_types", newer)
    with bench({"made_up": MADE_UP, "steps": [[{"text": ["a", "b"]}, python("1")], [{"text": "done"}]]}) as b:
        llm = b.llm

        async def story() -> Any:
            first = await llm.acall([{"role": "user", "content": "go"}], prompt_cache_key="k")
            output = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "1"}
            second = await llm.acall([{"role": "user", "content": "go"}, first, output, newer.CacheBoundary()])
            await llm.aclose()
            return first, second

        first, second = asyncio.run(story())
        assert (first.content, first.finish_reason, second.content) == ("ab", "tool_calls", "done")
        assert first.replay_scope == SCOPE
        assert place_of(b.outputs()[0], b.bodies()[1]["input"]) == 1
        assert b.codes() == []
