"""Tools that run once, and re-runs of a NOOA agent from the evidence (contract section 10)."""

import json
from pathlib import Path
from typing import Any

import pytest
from agents import MADE_UP, SCOPE, Clerk, python, result
from harness import bench, play

from turnkeep.errors import ConfigurationError, UnfinishedTool
from turnkeep.nooa import MADE_UP_IDS, TurnkeepLLM, once
from turnkeep.rollout.policy import PolicyClient
from turnkeep.rollout.record import Rollout
from turnkeep.store.open import open_store

pytestmark = [pytest.mark.nooa, pytest.mark.filterwarnings("default")]

ORDERED: list[str] = []


class Buyer(Clerk):
    """You buy boxes."""

    @once
    async def order(self, shelf: str, boxes: int = 10) -> str:
        """Order boxes for a shelf; they are paid at once."""
        ORDERED.append(f"{shelf}:{boxes}")
        if boxes > 99:
            raise RuntimeError("the line went dead")
        return f"order {len(ORDERED)} of {boxes}"

    @once
    def note(self, text: str) -> int:
        """Write a note."""
        ORDERED.append(text)
        return len(text)


STEPS = [
    [python("print(await self.order('north'), self.note('hi'))")],
    [python("print(await self.order('north', boxes=3))")],
    [result(1)],
]


@pytest.fixture(autouse=True)
def _nothing_ordered() -> None:
    ORDERED.clear()


def test_a_rerun_gets_recorded_answers_and_recorded_tool_outputs(tmp_path: Path) -> None:
    """A new agent's requests differ in made-up ids alone: none is sent or charged, no tool runs again (10.1, 10.5)."""
    store = str(tmp_path / "turns.db")
    with bench(STEPS, store=store) as b:
        buyer = b.llm.attach(Buyer(b.llm))
        assert play(b, lambda: buyer.count("it")) == 1
        assert ORDERED == ["north:10", "hi", "north:3"]
        b.rollout.close()
        with Rollout.open(open_store(store), "r-1", scope=SCOPE, rerun=True) as again:
            b.llm = TurnkeepLLM(PolicyClient("http://127.0.0.1:9", again, retries=0))
            second = b.llm.attach(Buyer(b.llm))
            assert play(b, lambda: second.count("it")) == 1
            assert (again.used, again.difference, ORDERED) == (3, None, ["north:10", "hi", "north:3"])
            assert again.gradable
            seen = [event.stdout for event in second.event_manager.filter(type="PythonOutput")]
            assert seen[1:] == ["order 1 of 10 2\n", "order 3 of 3\n"]


def test_a_tool_that_left_no_output_is_an_error_in_a_rerun(tmp_path: Path) -> None:
    """It may have had its effect: UnfinishedTool, for a person to settle, never a silent second run (10.5)."""
    store = str(tmp_path / "turns.db")
    with bench([[python("print(await self.order('north', 100))")], [result(1)]], store=store) as b:
        buyer = b.llm.attach(Buyer(b.llm))
        play(b, lambda: buyer.count("it"))
        b.rollout.close()
        with Rollout.open(open_store(store), "r-1", scope=SCOPE, rerun=True) as again:
            b.llm = TurnkeepLLM(PolicyClient(b.url, again))
            second = b.llm.attach(Buyer(b.llm))
            with pytest.raises(UnfinishedTool):
                play(b, lambda: second.order("north", 100))
            assert ORDERED == ["north:100"]


def test_the_model_sees_a_once_tool_with_its_signature_and_docstring() -> None:
    """NOOA documents the method as if it were not decorated."""
    with bench([[result(1)]]) as b:
        buyer = b.llm.attach(Buyer(b.llm))
        play(b, lambda: buyer.count("it"))
        shown = b.bodies()[0]["instructions"]
        assert "async def order(self, shelf: str, boxes: int = 10) -> str" in shown
        assert "Order boxes for a shelf; they are paid at once." in shown
        assert "def note(self, text: str) -> int" in shown


def test_a_once_tool_without_a_rollout_is_refused() -> None:
    """A function that no policy call led to has no rollout to record in: a ConfigurationError."""

    @once
    def lonely(x: int) -> int:
        """Give x."""
        return x

    import contextvars

    with pytest.raises(ConfigurationError, match="no rollout is at hand"):
        contextvars.Context().run(lonely, 1)


def test_a_once_function_that_is_no_method_finds_the_rollout_of_its_call() -> None:
    """What model code calls, however deep, belongs to the policy call whose code runs (10.5)."""

    @once
    def deep(x: int) -> int:
        """Give x."""
        return x

    class Deep(Clerk):
        async def dig(self) -> int:
            """Dig."""
            return deep(4)

    with bench([[python("print(await self.dig())")], [result(4)]]) as b:
        agent = b.llm.attach(Deep(b.llm))
        play(b, lambda: agent.count("it"))
        tools: list[dict[str, Any]] = b.rollout.tools()
        assert [(tool["name"], tool["arguments"], tool["output"]) for tool in tools] == [("deep", {"x": 4}, 4)]


def test_made_up_ids_are_found_where_nooa_puts_them() -> None:
    """In calls, in the text of outputs, after an escaped line end, and as the whole of prompt_cache_key (10.1)."""
    regex = MADE_UP_IDS.regex()
    ids = [f"{name}01234abc" for name in MADE_UP]
    text = json.dumps(
        {"a": [f"tool_call_id='{id_}'\n{id_}" for id_ in ids], "b": "call_01234abc"}, separators=(",", ":")
    )
    assert [found.decode() for found in regex.findall(text.encode())] == [id_ for id_ in ids for _ in range(2)]
    body = b'{"prompt_cache_key":"7a0c-CodeActStrategy","model":null}'
    assert regex.findall(body) == [b"7a0c-CodeActStrategy"]


def test_a_clients_policy_knows_the_ids_that_nooa_makes_up() -> None:
    """TurnkeepLLM sets them where the user set none."""
    with bench([[result(1)]]) as b:
        assert b.llm.policy.made_up == MADE_UP_IDS
