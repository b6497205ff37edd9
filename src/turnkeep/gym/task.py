"""The default agent of the Gym server: one CodeAct method that does the task a row asks for."""

from collections.abc import Iterable, Mapping
from typing import Any

import nooa


class TaskAgent(nooa.Agent):  # type: ignore[misc]
    """You do the task that you are given, with the methods that the environment gives you."""

    @nooa.strategy(nooa.CodeActStrategy())  # type: ignore[untyped-decorator]
    async def solve_task(self, task: str) -> str:  # type: ignore[empty-body] # NOOA makes it
        """Do what `task` asks for.

        Call the methods that are there; do not make up what they would give. Give a short answer that rests on what
        they gave.
        """
        ...  # noqa: PIE790 - what makes it a method that NOOA generates


async def solve(agent: TaskAgent, request: Any) -> object:
    """Give the text of the last user message of a Responses request to `TaskAgent.solve_task`."""
    return await agent.solve_task(last_user_text(request.input))


def last_user_text(value: Any) -> str:
    """The text of the last user message in a Responses input. Raises ValueError where there is none."""
    if isinstance(value, str):
        text = value
    else:
        messages = (item for item in reversed(list(value)) if _member(item, "role") == "user")
        text = next((_text(_member(message, "content")) for message in messages), "")
    if not text.strip():
        raise ValueError("the request has no user message with text, so there is no task")
    return text


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks: Iterable[Any] = content or ()
    return "\n".join(_member(block, "text") for block in blocks if _member(block, "type") in ("input_text", "text"))


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
