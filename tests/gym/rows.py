"""What the tests of the agent server share: rows, scripted turns, and what is looked for in answers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from servers import example_rows

from turnkeep.rollout.view import RolloutView
from turnkeep.store.open import open_store
from turnkeep.wire.json import loads

COUNTER = "example_session_state_mgmt"


def python(code: str) -> dict[str, Any]:
    """A scripted item: a call that runs `code`."""
    return {"call": "execute_python", "arguments": {"code": code}}


def result(value: Any) -> dict[str, Any]:
    """A scripted item: a call that gives the result."""
    return {"call": "return_result", "arguments": {"result": value}}


WEATHER: list[Any] = [
    [{"reasoning": "I ask."}, {"text": ["Let me ", "see."]}, python("print(await self.get_weather(city='Oslo'))")],
    [{"text": "So cold."}, result("It is cold.")],
]
"""A turn of reasoning, two text blocks and a call; then text and the result."""

COUNTING: list[Any] = [
    [{"reasoning": "Count."}, python("print(await self.increment_counter(count=1))")],
    [python("print(await self.increment_counter(count=2))")],
    [python("print(await self.get_counter_value())")],
    [result("done")],
]
"""What Gym's counter grades with 1: add 1, add 2, look, over four turns."""


def weather_row(rollout: int = 0, **more: Any) -> dict[str, Any]:
    """A row of Gym's weather example, with Gym's indices."""
    return {**example_rows()[0], "_ng_task_index": 3, "_ng_rollout_index": rollout, **more}


def counter_row(rollout: int = 0, **more: Any) -> dict[str, Any]:
    """The first row of Gym's counter example, with Gym's indices."""
    return {**example_rows(COUNTER)[0], "_ng_task_index": 0, "_ng_rollout_index": rollout, **more}


def read(answer: httpx.Response) -> dict[str, Any]:
    """A 200's body, read exactly."""
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = loads(answer.content)
    return value


@contextmanager
def kept(store: Path, rollout: str) -> Iterator[RolloutView]:
    """A rollout as it is in a store."""
    with open_store(store) as opened:
        yield RolloutView(opened, rollout)


def said(rollout: RolloutView) -> list[dict[str, Any]]:
    """Every output item of every recorded response, in order, as the policy sent it."""
    bodies = [rollout.response(call.number) for call in rollout.calls]
    return [item for body in bodies if body is not None for item in loads(body)["output"]]


def of_the_policy(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of a row's output that are neither outputs nor made by the server."""
    made = ("function_call_output",)
    items = row["response"]["output"]
    return [i for i in items if i["type"] not in made and not str(i.get("id")).startswith(("resource_", "nooa_"))]


def codes(row: dict[str, Any]) -> list[str]:
    """The codes of a row's gaps."""
    return [gap["code"] for gap in row["turnkeep"]["gaps"]]
