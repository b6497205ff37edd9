"""`once`: a tool that acts on the world runs one time, also when its agent is run again from the evidence."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from turnkeep.errors import ConfigurationError
from turnkeep.rollout import tools
from turnkeep.rollout.record import Rollout


def once[**P, R](method: Callable[P, R]) -> Callable[P, R]:
    """Give a method of an agent (or of anything its code calls) its recorded output when the rollout is run again.

    The arguments and the output must be JSON. Which run of a call is meant is told by the method's name and its
    arguments, in order. A call that began in an earlier process and left no output raises UnfinishedTool (10.5). NOOA
    shows the method to the model with its own signature and docstring.
    """
    signature = inspect.signature(method)

    def call(arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Rollout, str, dict[str, Any]]:
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        values = dict(bound.arguments)
        owner = values.pop("self", None)
        name = method.__qualname__.rpartition("<locals>.")[2]
        return _rollout_of(owner, name), name, values

    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def run_async(*arguments: Any, **named: Any) -> Any:
            rollout, name, values = call(arguments, named)
            return await tools.once(rollout, name, values, lambda: method(*arguments, **named))

        return run_async  # type: ignore[return-value]

    @functools.wraps(method)
    def run(*arguments: Any, **named: Any) -> Any:
        rollout, name, values = call(arguments, named)
        return tools.once_sync(rollout, name, values, lambda: method(*arguments, **named))

    return run


def _rollout_of(owner: Any, name: str) -> Rollout:
    """The rollout of the agent's client, else of the policy call that this context came from."""
    from turnkeep.nooa.llm import TurnkeepLLM, current_rollout  # by now NOOA is imported

    llm = getattr(owner, "llm", None)
    rollout = llm.rollout if isinstance(llm, TurnkeepLLM) else current_rollout.get()
    if rollout is None:
        raise ConfigurationError(f"{name} is marked `once`, but no rollout is at hand: its agent has no TurnkeepLLM")
    return rollout
