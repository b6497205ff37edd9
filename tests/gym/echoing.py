"""An agent of one Predict method, for tests: what it returns is what the policy said."""

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


class OwnModel(Agent):  # type: ignore[misc]
    """An agent that would call another policy than the rollout's."""

    @strategy(PredictStrategy(), llm=lambda agent: agent.llm)  # type: ignore[untyped-decorator]
    async def say(self, what: str) -> Word:  # type: ignore[empty-body]
        """Answer: {what}"""
        ...  # noqa: PIE790


def not_async(agent: Echo, request: Any) -> object:
    """No adapter."""
    raise NotImplementedError
