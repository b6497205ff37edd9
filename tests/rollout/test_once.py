import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from turnkeep.errors import ConfigurationError, UnfinishedTool
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.tools import once, once_sync, settle_tool
from turnkeep.store.sqlite import SqliteStore


class Tool:
    """A tool that counts how often it ran."""

    def __init__(self, *outputs: Any) -> None:
        self.outputs, self.ran = list(outputs), 0

    def __call__(self) -> Any:
        """Run."""
        self.ran += 1
        output = self.outputs.pop(0)
        if isinstance(output, BaseException):
            raise output
        return output

    async def soon(self) -> Any:
        """Run as a coroutine."""
        await asyncio.sleep(0)
        return self()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """An empty store."""
    with SqliteStore(tmp_path / "a.db") as store:
        yield store


def begun(store: SqliteStore) -> Rollout:
    return Rollout.open(store, "r")


def again(store: SqliteStore) -> Rollout:
    return Rollout.open(store, "r", rerun=True)


def run(rollout: Rollout, tool: Tool, arguments: Any, *, soon: bool, name: str = "pay") -> Any:
    return asyncio.run(once(rollout, name, arguments, tool.soon)) if soon else once_sync(rollout, name, arguments, tool)


@pytest.mark.parametrize("soon", [False, True])
def test_a_recorded_output_comes_again(store: SqliteStore, soon: bool) -> None:
    """In a re-run a tool marked `once` gives its recorded outputs, in order, and does not run (contract 10.5)."""
    outputs = [{"paid": 3.5, "to": "ü"}, None, [1, "2"]]
    with begun(store) as rollout:
        assert [run(rollout, Tool(output), {"n": 1}, soon=soon) for output in outputs] == outputs
    for _ in range(2):
        tool = Tool("again")
        with again(store) as rollout:
            assert [run(rollout, tool, {"n": 1}, soon=soon) for _ in outputs] == outputs
            assert tool.ran == 0
    with again(store) as rollout:
        assert [run(rollout, tool, {"n": 1}, soon=soon) for _ in range(4)] == [*outputs, "again"]
        assert (tool.ran, len(rollout.tools())) == (1, 4)


def test_other_arguments_are_another_call(store: SqliteStore) -> None:
    """Name and arguments say which record it is; calls may come in another order (contract 10.2, 10.5)."""
    with begun(store) as rollout:
        for number in range(3):
            once_sync(rollout, "pay", {"n": number}, Tool(number))
    tool = Tool("new", "other")
    with again(store) as rollout:
        assert [once_sync(rollout, "pay", {"n": number}, tool) for number in (2, 0, 7, 1)] == [2, 0, "new", 1]
        assert once_sync(rollout, "refund", {"n": 0}, tool) == "other"
        assert tool.ran == 2


def test_without_a_rerun_tools_run(store: SqliteStore) -> None:
    """On a rollout that was not opened for a re-run, an equal call is a new one (contract 10.5)."""
    with begun(store) as rollout:
        tool = Tool(1, 2)
        assert [once_sync(rollout, "pay", {}, tool) for _ in range(2)] == [1, 2]


@pytest.mark.parametrize("soon", [False, True])
def test_an_unfinished_tool_is_a_named_error(store: SqliteStore, soon: bool) -> None:
    """A tool that began and left no output is an UnfinishedTool that says how to settle it, and never runs (10.5)."""
    with begun(store) as rollout, pytest.raises(OSError, match="broke"):
        run(rollout, Tool(OSError("broke")), {"n": 1}, soon=soon)
    tool = Tool("second run")
    for _ in range(2):
        with again(store) as rollout:
            for _ in range(2):
                with pytest.raises(UnfinishedTool, match=r"tool pay .*settle_tool\(rollout, 0, output\)") as caught:
                    run(rollout, tool, {"n": 1}, soon=soon)
                assert (caught.value.rollout, caught.value.index) == ("r", 0)
    assert tool.ran == 0


def test_a_settled_tool_gives_its_output(store: SqliteStore) -> None:
    """After `settle_tool` in another process a re-run goes on with the stated output (contract 10.5)."""
    with begun(store) as rollout, pytest.raises(OSError, match="broke"):
        once_sync(rollout, "pay", {"n": 1}, Tool(OSError("broke")))
    with begun(store) as rollout:
        settle_tool(rollout, 0, {"paid": True})
    tool = Tool("second run")
    with again(store) as rollout:
        assert once_sync(rollout, "pay", {"n": 1}, tool) == {"paid": True}
        assert [record["state"] for record in rollout.tools()] == ["done"]
    assert tool.ran == 0


@pytest.mark.parametrize("asked_first", [False, True])
def test_a_tool_can_be_settled_while_the_rerun_goes_on(store: SqliteStore, asked_first: bool) -> None:
    """A tool settled on the rollout of the re-run itself, as the error says, gives its output there (10.5)."""
    with begun(store) as rollout, pytest.raises(OSError, match="broke"):
        once_sync(rollout, "pay", {"n": 1}, Tool(OSError("broke")))
    tool = Tool("second run")
    with again(store) as rollout:
        if asked_first:
            with pytest.raises(UnfinishedTool):
                once_sync(rollout, "pay", {"n": 1}, tool)
        settle_tool(rollout, 0, "settled")
        assert once_sync(rollout, "pay", {"n": 1}, tool) == "settled"
    assert tool.ran == 0


@pytest.mark.parametrize("number", [-1, 0, 1, 9])
def test_only_unfinished_tools_can_be_settled(store: SqliteStore, number: int) -> None:
    """Settling a tool that is done, or not there, is a ConfigurationError that names the place (contract 10.5)."""
    with begun(store) as rollout:
        once_sync(rollout, "pay", {}, Tool("done"))
        with pytest.raises(ConfigurationError) as caught:
            settle_tool(rollout, number, "x")
        assert (caught.value.rollout, caught.value.index) == ("r", number)
        assert [record["output"] for record in rollout.tools()] == ["done"]


@pytest.mark.parametrize("value", [float("nan"), b"x", {1: 2}, object()], ids=["NaN", "bytes", "key", "object"])
def test_arguments_and_outputs_are_json(store: SqliteStore, value: Any) -> None:
    """What is no JSON is a ConfigurationError: as arguments before the tool runs, as output after it (10.5)."""
    tool = Tool(value)
    with begun(store) as rollout:
        with pytest.raises(ConfigurationError) as caught:
            once_sync(rollout, "pay", value, tool)
        assert (caught.value.field, tool.ran, rollout.tools()) == ("arguments", 0, [])
        with pytest.raises(ConfigurationError) as caught:
            once_sync(rollout, "pay", {}, tool)
        assert (caught.value.field, tool.ran) == ("output", 1)
        assert [record["state"] for record in rollout.tools()] == ["began"]


def test_tools_at_once_keep_their_own_outputs(store: SqliteStore) -> None:
    """Async tools that run at once are recorded apart, and found again in another order (contract 10.5)."""

    async def many(rollout: Rollout, numbers: list[int], tool: Tool | None) -> list[Any]:
        tools = [once(rollout, "pay", {"n": n}, (tool or Tool(n * 10)).soon) for n in numbers]
        return list(await asyncio.gather(*tools))

    with begun(store) as rollout:
        assert asyncio.run(many(rollout, [1, 2, 3], None)) == [10, 20, 30]
    with again(store) as rollout:
        assert asyncio.run(many(rollout, [3, 1, 2], Tool())) == [30, 10, 20]


def test_a_record_is_there_before_the_tool_runs(store: SqliteStore, tmp_path: Path) -> None:
    """While a tool runs, its record is durable: a process that died in it would be found out (contract 10.5)."""

    def look() -> str:
        with SqliteStore(tmp_path / "a.db") as other:
            (row,) = other.rows("r", "tools")
            assert b'"began"' in row.document
        return "looked"

    with begun(store) as rollout:
        assert once_sync(rollout, "look", {}, look) == "looked"
