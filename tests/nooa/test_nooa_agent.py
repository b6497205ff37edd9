"""A NOOA agent on a real model server: its history is exact while it runs (contract 1, 4, 5, 6, 7)."""

# mypy: disable-error-code="empty-body"

import asyncio
import json
from typing import Any

import pytest
from agents import MADE_UP, SCRIPT, Clerk, Report, python, result
from harness import ARRAYS, bench, output_items, place_of, play, texts_of, without_arrays
from nooa.config.strategy_config import CodeActConfig, PredictConfig
from nooa.context_blocks.formatter import AnthropicProviderFormatter, MarkdownBlockFormatter
from nooa.context_blocks.render_config import RenderConfig
from nooa.errors import GenerationError
from nooa.strategies.codeact_lite import CodeActLiteStrategy

from nooa import Agent, CodeActStrategy, PredictStrategy, strategy
from turnkeep.errors import ConfigurationError, InvalidPolicyOutput
from turnkeep.nooa import NOT_EXECUTED, NOT_EXECUTED_GAP, TurnkeepLLM

MARK_TEXT = '"turnkeep":'

pytestmark = [pytest.mark.nooa, pytest.mark.filterwarnings("default")]


def test_every_request_holds_every_earlier_response_as_received() -> None:
    """CodeAct turns of reasoning, text blocks and two calls, and a Predict turn, replay to the last bit (4.1)."""
    with bench(SCRIPT) as b:
        clerk = b.llm.attach(Clerk(b.llm))

        async def story() -> tuple[int, Report]:
            return await clerk.count("all of them"), await clerk.report("north")

        assert play(b, story) == (42, Report(shelf="north", boxes=21))
        outputs, bodies = b.outputs(), b.bodies()
        assert len(bodies) == 5
        for call, body in enumerate(bodies):
            places = [place_of(items, body["input"]) for items in outputs[:call]]
            assert None not in places
            assert places == sorted(places)  # type: ignore[type-var]
        assert set(ARRAYS) <= set(outputs[0][-1])
        assert b.codes() == [NOT_EXECUTED_GAP]
        assert b.rollout.gradable


def test_what_nooa_itself_rewrites_is_no_edit() -> None:
    """A comment put before the code, arguments written anew and a coerced result leave the turn native (3.1)."""
    with bench(SCRIPT) as b:
        clerk = b.llm.attach(Clerk(b.llm))
        play(b, lambda: clerk.count("all of them"))
        calls = [event for event in clerk.event_manager.filter(type="ToolCallEvent") if "turnkeep" in event.metadata]
        assert calls[0].arguments["code"].startswith("#")
        assert calls[-1].arguments == {"result": 42}
        assert b.rollout.turns[0].tool_calls[0].arguments.startswith('{"code":   ')
        play(b, lambda: clerk.report("north"))
        sent = b.bodies()[-1]["input"]
        assert [place_of(items, sent) is not None for items in b.outputs()[:4]] == [True] * 4


def test_a_dropped_call_is_answered_as_not_executed() -> None:
    """The call that NOOA drops after an error gets a constant answer, right after its fellow's, and a gap says so."""
    with bench(SCRIPT) as b:
        clerk = b.llm.attach(Clerk(b.llm))
        play(b, lambda: clerk.count("all of them"))
        sent = b.bodies()[3]["input"]
        dropped = b.rollout.turns[2].tool_calls[1].id
        answers = [item for item in sent if item.get("call_id") == dropped and item["type"] == "function_call_output"]
        assert answers == [{"type": "function_call_output", "call_id": dropped, "output": NOT_EXECUTED}]
        at = sent.index(answers[0])
        assert sent[at - 1]["call_id"] == b.rollout.turns[2].tool_calls[0].id
        assert "never run" not in json.dumps(sent[at + 1 :])


def test_each_call_is_answered_exactly_once() -> None:
    """Every function call of every request has one output, so no server can refuse or drop one."""
    with bench(SCRIPT) as b:
        clerk = b.llm.attach(Clerk(b.llm))
        play(b, lambda: clerk.count("all of them"))
        for body in b.bodies():
            made = [item["call_id"] for item in body["input"] if item.get("type") == "function_call"]
            answered = [item["call_id"] for item in body["input"] if item.get("type") == "function_call_output"]
            assert sorted(made) == sorted(answered)


def test_a_call_whose_arguments_are_no_json_is_replayed_and_answered() -> None:
    """NOOA records such a turn only as an error; it is replayed before that error, its calls not executed (4.1)."""
    steps = [[{"call": "execute_python", "arguments": '{"code": '}, python("1")], [result(1)]]
    with bench(steps) as b:
        clerk = b.llm.attach(Clerk(b.llm))
        assert play(b, lambda: clerk.count("it")) == 1
        sent, items = b.bodies()[1]["input"], b.outputs()[0]
        at = place_of(items, sent)
        assert at is not None
        after = sent[at + 2 : at + 5]
        assert [item.get("output") for item in after[:2]] == [NOT_EXECUTED, NOT_EXECUTED]
        assert "Invalid arguments" in after[2]["content"]
        assert b.codes() == [NOT_EXECUTED_GAP]


def test_an_unknown_tool_that_nooa_renames_stays_what_the_policy_said() -> None:
    """A method called as a tool becomes execute_python in NOOA, and stays itself in the history (3.1)."""

    class Lenient(Clerk):
        @strategy(CodeActStrategy(CodeActConfig(translate_tool_calls=True)))  # type: ignore[untyped-decorator]
        async def count(self, goal: str) -> int:
            """Do this: {goal}"""
            ...

    steps = [[{"call": "look", "arguments": {"shelf": "north"}}], [result(1)]]
    with bench(steps) as b:
        clerk = b.llm.attach(Lenient(b.llm))
        assert play(b, lambda: clerk.count("it")) == 1
        assert clerk.looked == ["north"]
        renamed = clerk.event_manager.filter(type="ToolCallEvent")[1]
        assert renamed.name == "execute_python"
        assert place_of(b.outputs()[0], b.bodies()[1]["input"]) is not None
        assert b.codes() == []


@pytest.mark.parametrize("behaviour", ["return_result", "synthetic_comment"])
def test_a_text_only_turn_is_replayed_as_the_text_it_was(behaviour: str) -> None:
    """NOOA makes a tool call of it; the policy is shown its own message, and what NOOA answered as a user's (4.1)."""

    class Talker(Clerk):
        @strategy(CodeActStrategy(CodeActConfig(text_only_stop_behavior=behaviour)))  # type: ignore[untyped-decorator]
        async def count(self, goal: str) -> int:
            """Do this: {goal}"""
            ...

    with bench([[{"reasoning": "hm"}, {"text": ["It is ", "many."]}], [result(1)]]) as b:
        talker = b.llm.attach(Talker(b.llm))
        assert play(b, lambda: talker.count("it")) == 1
        sent = b.bodies()[1]["input"]
        at = place_of(b.outputs()[0], sent)
        assert at is not None
        answer = sent[at + 2]
        assert answer["role"] == "user"
        assert "return_result" in answer["content"]
        assert [item for item in sent if str(item.get("call_id")).startswith("synthetic_")] == []
        assert b.codes() == []


def test_a_text_only_turn_that_nooa_takes_for_the_result_is_replayed_too() -> None:
    """A text that satisfies the return type ends the method; the next method sees it as the text it was."""

    class Talker(Clerk):
        async def say(self) -> str:
            """Say something."""
            ...

    with bench([[{"text": "Nothing to do."}], [{"text": '{"shelf": "north", "boxes": 1}'}]]) as b:
        talker = b.llm.attach(Talker(b.llm))

        async def story() -> Any:
            return await talker.say(), await talker.report("north")

        assert play(b, story)[0] == "Nothing to do."
        assert place_of(b.outputs()[0], b.bodies()[1]["input"]) is not None
        assert b.codes() == []


def test_a_turn_of_reasoning_alone_is_replayed() -> None:
    """NOOA shows nothing of an empty response; its items stay in the history all the same (4.1)."""
    with bench([[{"reasoning": "Only a thought."}], [result(1)]]) as b:
        clerk = b.llm.attach(Clerk(b.llm))
        assert play(b, lambda: clerk.count("it")) == 1
        assert place_of(b.outputs()[0], b.bodies()[1]["input"]) is not None


def test_calls_that_nooa_makes_are_no_gap() -> None:
    """The call that opens a method and the one that an inline return leaves are the runtime's own (5.4)."""
    with bench([[python("return_result(7)")], [{"text": '{"shelf": "north", "boxes": 1}'}]]) as b:
        clerk = b.llm.attach(Clerk(b.llm))

        async def story() -> Any:
            return await clerk.count("it"), await clerk.report("north")

        assert play(b, story)[0] == 7
        sent = b.bodies()[1]["input"]
        made = [item["call_id"].rpartition("_")[0] for item in sent if item.get("type") == "function_call"]
        assert made[0] == "prefill"
        assert made[-1] == "codeact_inline"
        assert "public_assistant_metadata_unavailable" not in b.codes()


def test_an_assistant_entry_that_a_user_adds_is_a_gap() -> None:
    """A tool call that somebody put into the events is nobody's turn, whatever its id looks like (4.4, 5.1)."""
    from nooa.context_blocks import ToolCallEvent, ToolResult

    with bench([[{"text": '{"shelf": "north", "boxes": 1}'}]]) as b:
        clerk = b.llm.attach(Clerk(b.llm))
        done = ToolResult(tool_call_id="prefill_00000000", content="done")
        clerk.event_manager.add(ToolCallEvent(tool_call_id="prefill_00000000", name="t", arguments={}, result=done))
        play(b, lambda: clerk.report("north"))
        assert b.codes() == ["public_assistant_metadata_unavailable"]


def test_invalid_output_is_charged_kept_and_shown_to_the_policy() -> None:
    """Text that fails the schema raises in the client; Predict tells the policy, which sees its own turn (6.3)."""
    with bench([[{"text": '{"shelf": "no"}'}], [{"text": '{"shelf": "north", "boxes": 1}'}]]) as b:
        clerk = b.llm.attach(Clerk(b.llm))
        assert play(b, lambda: clerk.report("north")) == Report(shelf="north", boxes=1)
        sent = b.bodies()[1]["input"]
        at = place_of(b.outputs()[0], sent)
        assert at is not None
        assert "Validation error" in sent[at + 1]["content"]
        assert (b.rollout.used, b.codes()) == (2, [])


def test_a_refusal_fails_also_beside_valid_json() -> None:
    """A refusal is invalid output even where the text parses; the last one is the cause of NOOA's error (6.2, 7.10)."""

    class Refused(Clerk):
        @strategy(PredictStrategy(PredictConfig(max_retries=2)))  # type: ignore[untyped-decorator]
        async def report(self, shelf: str) -> Report:
            """Report on {shelf}."""
            ...

    blocks = [{"type": "output_text", "text": '{"shelf": "a", "boxes": 1}', "annotations": []}]
    said = {"text": "", "extra": {"content": [*blocks, {"type": "refusal", "refusal": ""}]}}
    with bench([[said]]) as b:
        clerk = b.llm.attach(Refused(b.llm))
        with pytest.raises(GenerationError) as raised:
            play(b, lambda: clerk.report("north"))
        assert isinstance(raised.value.__cause__, InvalidPolicyOutput)
        assert b.rollout.turns[0].content == '{"shelf": "a", "boxes": 1}'
        assert (b.rollout.used, b.rollout.gradable) == (2, True)


@pytest.mark.parametrize("fault", ["missing-log-probs", "inf-log-prob"])
def test_a_refusal_fails_also_where_the_turn_has_no_native_items(fault: str) -> None:
    """A turn kept by its text alone, for malformed training fields, is held to its evidence for refusals (6.2, 7.9)."""

    class Refused(Clerk):
        @strategy(PredictStrategy(PredictConfig(max_retries=1)))  # type: ignore[untyped-decorator]
        async def report(self, shelf: str) -> Report:
            """Report on {shelf}."""
            ...

    with bench([[{"refusal": '{"shelf": "a", "boxes": 1}'}]], faults=[fault], on_malformed="gap") as b:
        clerk = b.llm.attach(Refused(b.llm))
        with pytest.raises(GenerationError) as raised:
            play(b, lambda: clerk.report("north"))
        assert isinstance(raised.value.__cause__, InvalidPolicyOutput)
        assert b.rollout.turns[0].parts[0].native is None
        assert "malformed_training_metadata" in b.codes()


def test_predict_as_a_tool_call_is_replayed_as_text() -> None:
    """Predict's output_serialization="tool_call" hides the text in a call; the policy sees its text (4.1)."""

    class Caller(Clerk):
        @strategy(PredictStrategy(PredictConfig(output_serialization="tool_call")))  # type: ignore[untyped-decorator]
        async def report(self, shelf: str) -> Report:
            """Report on {shelf}."""
            ...

    with bench([[{"text": '{"shelf": "north", "boxes": 1}'}]]) as b:
        clerk = b.llm.attach(Caller(b.llm))

        async def story() -> Any:
            return [await clerk.report("north"), await clerk.report("south")]

        play(b, story)
        sent = b.bodies()[1]["input"]
        at = place_of(b.outputs()[0], sent)
        assert at is not None
        assert sent[at + 1] == {"role": "user", "content": "Result accepted."}
        assert b.codes() == []


def test_concurrent_generations_keep_their_turns_apart() -> None:
    """Methods of one agent that its code runs at the same time, and two agents at that, tie their own turns."""
    code = "r = await asyncio.gather(*[self.report(s) for s in ('north', 'south', 'east')])\nprint(len(r))"
    report = [{"reasoning": "a report"}, {"text": '{"shelf": "a", "boxes": 1}'}]
    steps = [[python("import asyncio\n" + code)], report, [result(3)]]
    with bench({"made_up": MADE_UP, "steps": steps, "after": [result(3)]}) as b:
        agents = [b.llm.attach(Clerk(b.llm)) for _ in range(2)]

        async def story() -> list[int]:
            return list(await asyncio.gather(*[agent.count(f"agent {n}") for n, agent in enumerate(agents)]))

        assert play(b, story) == [3, 3]
        outputs, bodies = b.outputs(), [body["input"] for body in b.bodies()]
        assert len(outputs) == 10
        assert b.rollout.gradable
        for n in range(2):
            mine = [call for call, body in enumerate(bodies) if f"agent {n}" in texts_of(body)]
            assert len(mine) == 5
            last = bodies[mine[-1]]
            assert [place_of(outputs[call], last) is not None for call in mine[:-1]] == [True] * 4
            assert not any(place_of(outputs[call], last) for call in range(10) if call not in mine)
        assert b.codes() == []


def test_a_method_called_from_code_sees_the_running_call_answered() -> None:
    """While a call of two runs, a nested generation gets the other answered as not executed; later it is its own."""
    steps = [
        [python("r = await self.report('north')\nprint(r.boxes)"), python("print('second')")],
        [{"text": '{"shelf": "north", "boxes": 5}'}],
        [result(3)],
    ]
    with bench(steps) as b:
        clerk = b.llm.attach(Clerk(b.llm))
        assert play(b, lambda: clerk.count("it")) == 3
        nested, after = b.bodies()[1]["input"], b.bodies()[2]["input"]
        second = b.rollout.turns[0].tool_calls[1].id
        outputs = {item["call_id"]: item["output"] for item in nested if item.get("type") == "function_call_output"}
        assert outputs[second] == NOT_EXECUTED
        outputs = {item["call_id"]: item["output"] for item in after if item.get("type") == "function_call_output"}
        assert outputs[second] == "status: complete"
        assert all(place_of(items, after) is not None for items in b.outputs()[:2])


def test_an_agent_that_model_code_makes_is_attached_by_itself() -> None:
    """A sub-agent inherits the client; its own turns are kept and its prefill is known, without a call of attach."""

    class Helper(Agent):  # type: ignore[misc]
        """You help."""

        async def help(self) -> int:
            """Help."""
            ...

    class Boss(Clerk):
        async def hire(self) -> int:
            """Let a helper do it."""
            return int(await Helper().help())

    code = "print(await self.hire() if hasattr(self, 'hire') else 'helping')"
    with bench([[python(code)], [result(6)]]) as b:
        boss = b.llm.attach(Boss(b.llm))
        assert play(b, lambda: boss.count("it")) == 6
        _, helpers, helpers_next, last = b.bodies()
        assert "You help." in helpers["instructions"]
        assert place_of(b.outputs()[1], helpers_next["input"]) is not None
        assert place_of(b.outputs()[0], last["input"]) is not None
        assert b.codes() == []


def test_codeact_lite_and_markdown_replay_exactly_too() -> None:
    """Formatters that a strategy swaps in, or that the user gave, are wrapped like NOOA's own (4.1)."""

    class Lite(Clerk):
        @strategy(CodeActLiteStrategy())  # type: ignore[untyped-decorator]
        async def count(self, goal: str) -> int:
            """Do this: {goal}"""
            ...

    with bench(SCRIPT) as b:
        lite = b.llm.attach(Lite(b.llm, render_config=RenderConfig(block_formatter=MarkdownBlockFormatter())))

        async def story() -> Any:
            return await lite.count("it"), await lite.report("north")

        assert play(b, story)[0] == 42
        for call, body in enumerate(b.bodies()):
            assert all(place_of(items, body["input"]) is not None for items in b.outputs()[:call])
        assert b.codes() == [NOT_EXECUTED_GAP]


def test_a_formatter_of_another_provider_is_refused() -> None:
    """Messages that are no OpenAI chat messages cannot be read: a ConfigurationError at once."""
    with bench(SCRIPT) as b:
        config = RenderConfig(provider_formatter=AnthropicProviderFormatter())
        with pytest.raises(ConfigurationError, match="AnthropicProviderFormatter"):
            b.llm.attach(Clerk(b.llm, render_config=config))
        with pytest.raises(ConfigurationError, match="embed"):
            TurnkeepLLM(b.llm.policy, embed="nested")  # type: ignore[arg-type]


def test_the_rollout_knows_an_error_that_nooa_shows_the_model_as_text() -> None:
    """CodeAct makes text of a failed call; while it is the last attempt the rollout is ungradable (7.3)."""
    with bench(SCRIPT, faults=["500@1", "500@2", "500@3", "500@4"], retries=0) as b:

        class Hasty(Clerk):
            @strategy(CodeActStrategy(CodeActConfig(max_retries=2)))  # type: ignore[untyped-decorator]
            async def count(self, goal: str) -> int:
                """Do this: {goal}"""
                ...

        hasty = b.llm.attach(Hasty(b.llm))
        with pytest.raises(GenerationError):
            play(b, lambda: hasty.count("it"))
        assert any("LLM API error" in event.content for event in hasty.event_manager.filter(type="Error"))
        assert not b.rollout.gradable
        assert b.rollout.failure is not None
        assert b.rollout.failure["type"] == "TransportFailure"


def test_the_rollout_knows_every_error_of_the_adapter_too() -> None:
    """An error that no policy call has recorded, whatever its class, leaves the rollout ungradable."""
    with bench([[{"text": "fine"}]]) as b:

        async def story() -> None:
            with pytest.raises(ConfigurationError):
                await b.llm.acall([{"role": "user", "content": "x"}], output_model=dict)
            assert not b.rollout.gradable
            await b.llm.acall([{"role": "user", "content": "x"}])
            assert b.rollout.gradable
            with pytest.raises(AttributeError):
                await b.llm.acall([object()])

        play(b, story)
        assert not b.rollout.gradable
        assert b.rollout.failure is not None
        assert b.rollout.failure["message"].startswith("AttributeError")


def test_a_later_success_clears_the_failure_and_the_history_stays_exact() -> None:
    """After an error that NOOA recovers from, the rollout is gradable and every turn still replays (7.3)."""
    with bench(SCRIPT, faults=["500@1"], retries=0) as b:
        clerk = b.llm.attach(Clerk(b.llm))
        assert play(b, lambda: clerk.count("it")) == 42
        sent, rollout = b.bodies()[-1]["input"], b.rollout
        assert rollout.gradable
        answered = [call.number for call in rollout.calls if call.turn is not None][:-1]
        assert len(answered) == 3
        assert all(place_of(output_items(rollout, call), sent) is not None for call in answered)
        assert "LLM API error" in json.dumps(sent)


def test_a_later_codeact_method_is_sent_without_training_fields() -> None:
    """Its prefill call has no ids and stands last: withheld, so that no server drops what stands between (5.4, 7.8)."""
    with bench([[result(1)]]) as b:
        clerk = b.llm.attach(Clerk(b.llm))

        async def story() -> Any:
            return await clerk.count("a"), await clerk.count("b")

        play(b, story)
        sent = b.bodies()[1]["input"]
        assert place_of(without_arrays(b.outputs()[0]), sent) is not None
        assert b.codes() == ["portable_turn_after_native"]


def test_the_metadata_is_never_shown_to_the_model() -> None:
    """Marks and archives stay in the events: no request and no state block holds them."""
    with bench(SCRIPT) as b:
        clerk = b.llm.attach(Clerk(b.llm))
        play(b, lambda: clerk.count("it"))
        sent = json.dumps(b.bodies())
        assert "turnkeep_archive" not in sent
        assert MARK_TEXT not in sent
