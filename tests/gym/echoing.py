"""An agent of one Predict method, for tests: what it returns is what the policy said."""

import asyncio
from contextlib import suppress
from typing import Any

from nooa.config.strategy_config import PredictConfig
from pydantic import BaseModel

from nooa import Agent, PredictStrategy, strategy


class Word(BaseModel):
    """What is said."""

    word: str


class Echo(Agent):  # type: ignore[misc]
    """You answer in one word."""

    @strategy(PredictStrategy(PredictConfig(max_retries=2)))  # type: ignore[untyped-decorator]
    async def say(self, what: str) -> Word:  # type: ignore[empty-body]
        """Answer: {what}"""
        ...  # noqa: PIE790 - what makes it a method that NOOA generates


async def ask(agent: Echo, request: Any) -> object:
    """Give the request's text to the agent."""
    return await agent.say(request.input)


async def ask_forever(agent: Echo, request: Any) -> object:
    """Ask until somebody stops it."""
    while True:
        await agent.say(request.input)


async def fall(agent: Echo, request: Any) -> object:
    """Raise what the request names, after one policy call."""
    await agent.say(request.input)
    raise {"connection": ConnectionError, "timeout": TimeoutError}.get(request.input, ValueError)(request.input)


async def hide(agent: Echo, request: Any) -> object:
    """Make light of whatever goes wrong."""
    try:
        return await agent.say(request.input)
    except Exception:  # noqa: BLE001 - that is what this agent is here for
        return "all is well"


async def half(agent: Echo, request: Any) -> object:
    """Give half of a surrogate pair, in an object."""
    return {"half": "\ud83d"}


async def raw(agent: Echo, request: Any) -> object:
    """Give bytes that are no text, after one policy call."""
    await agent.say(request.input)
    return b"\xff"


class Wordless(Exception):
    """An error that has no words."""

    def __str__(self) -> str:
        raise KeyError("words")


async def stumble(agent: Echo, request: Any) -> object:
    """After one policy call, raise in one of the ways that are easily forgotten."""
    await agent.say(request.input)
    if request.input == "wordless":
        raise Wordless
    if request.input == "half":
        raise ValueError("\ud83d")
    if request.input == "group":
        raise ExceptionGroup("several", [ValueError("one"), ConnectionResetError("two")])
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task
    return None


async def linger(agent: Echo, request: Any) -> object:
    """Make light of being stopped, and give an answer all the same."""
    await agent.say(request.input)
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    return "done"


class OwnModel(Agent):  # type: ignore[misc]
    """An agent that would call another policy than the rollout's."""

    @strategy(PredictStrategy(), llm=lambda agent: agent.llm)  # type: ignore[untyped-decorator]
    async def say(self, what: str) -> Word:  # type: ignore[empty-body]
        """Answer: {what}"""
        ...  # noqa: PIE790


def not_async(agent: Echo, request: Any) -> object:
    """No adapter."""
    raise NotImplementedError
