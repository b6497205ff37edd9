"""Tools marked `once`: in a re-run they give their recorded output and do not run again (contract 10.5).

A record is kept before the tool runs and again with its output. A tool that began and left no output (the process
died in it, or it raised) may or may not have had its effect: a re-run stops there with UnfinishedTool, and a person
settles it with `settle_tool`.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from turnkeep.errors import ConfigurationError, UnfinishedTool
from turnkeep.rollout.record import Rollout
from turnkeep.wire.json import dumps, find_unwritable


async def once(rollout: Rollout, name: str, arguments: Any, run: Callable[[], Awaitable[Any]]) -> Any:
    """The output of an async tool, run at most once for each place in the rollout.

    `arguments` and the output are JSON values; equal name and arguments find the recorded output, in recorded order.
    Raises UnfinishedTool, ConfigurationError where something is no JSON.
    """
    recorded = _recorded(rollout, name, arguments)
    if recorded is not None:
        return recorded["output"]
    number = _begin(rollout, name, arguments)
    return _finish(rollout, number, name, arguments, await run())


def once_sync(rollout: Rollout, name: str, arguments: Any, run: Callable[[], Any]) -> Any:
    """`once` for a tool that is no coroutine."""
    recorded = _recorded(rollout, name, arguments)
    if recorded is not None:
        return recorded["output"]
    number = _begin(rollout, name, arguments)
    return _finish(rollout, number, name, arguments, run())


def settle_tool(rollout: Rollout, number: int, output: Any) -> None:
    """State the output of a tool that began and left none, after having looked at what it did.

    `number` is its place among `rollout.tools()`. Raises ConfigurationError where there is no such unfinished tool.
    """
    records = rollout.tools()
    if not 0 <= number < len(records) or records[number]["state"] != "began":
        raise ConfigurationError("there is no such unfinished tool", rollout=rollout.id, index=number)
    _finish(rollout, number, records[number]["name"], records[number]["arguments"], output)


def _recorded(rollout: Rollout, name: str, arguments: Any) -> dict[str, Any] | None:
    record = rollout.take_recorded_tool(name, _text(arguments, name, "arguments"))
    if record is not None and record["state"] != "done":
        raise UnfinishedTool(
            f"tool {name} began in an earlier run and left no output: see whether it took effect, then state its "
            f"output with settle_tool(rollout, {record['number']}, output)",
            rollout=rollout.id,
            index=record["number"],
        )
    return record


def _begin(rollout: Rollout, name: str, arguments: Any) -> int:
    return rollout.add_tool({"name": name, "arguments": arguments, "state": "began", "output": None})


def _finish(rollout: Rollout, number: int, name: str, arguments: Any, output: Any) -> Any:
    _text(output, name, "output")
    rollout.put_tool(number, {"name": name, "arguments": arguments, "state": "done", "output": output})
    return output


def _text(value: Any, name: str, what: str) -> bytes:
    fault = find_unwritable(value)
    if fault is not None:
        raise ConfigurationError(f"the {what} of tool {name}, marked once, must be JSON: {fault.reason}", field=what)
    return dumps(value)
