"""What the tests of the NOOA adapter share: a real server, a rollout, and what was really sent."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agents import MADE_UP, SCOPE

from turnkeep.history.turn import Turn
from turnkeep.nooa import TurnkeepLLM
from turnkeep.rollout.policy import PolicyClient
from turnkeep.rollout.record import Rollout
from turnkeep.serve.script import make_script
from turnkeep.serve.server import running_policy
from turnkeep.store.open import open_store
from turnkeep.wire.json import dumps, loads, same, without_nulls

ARRAYS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts")


@dataclass
class Bench:
    """A running policy, a rollout and a NOOA client of it."""

    url: str
    rollout: Rollout
    llm: TurnkeepLLM
    options: dict[str, Any] = field(default_factory=dict)

    def bodies(self) -> list[dict[str, Any]]:
        """Every request so far, parsed."""
        return [loads(self.rollout.request(call)) for call in range(self.rollout.used)]

    def outputs(self) -> list[list[Any]]:
        """The output items of every response so far, as received, less their null members."""
        return [output_items(self.rollout, call) for call in range(self.rollout.used)]

    def codes(self) -> list[str]:
        """The codes of the rollout's gaps."""
        return [gap.code for gap in self.rollout.gaps]


@contextmanager
def bench(
    steps: list[Any] | dict[str, Any], *, store: str = "memory:", rollout: str = "r-1", faults: Any = (), **llm: Any
) -> Iterator[Bench]:
    """A server that says `steps`, and a client in a fresh rollout."""
    script = make_script(steps if isinstance(steps, dict) else {"made_up": MADE_UP, "steps": steps})
    policy = {name: llm.pop(name) for name in ("prefix_guard", "retries", "on_malformed") if name in llm}
    with (
        running_policy(script=script, faults=faults) as url,
        open_store(store) as kept,
        Rollout.open(kept, rollout, scope=SCOPE) as opened,
    ):
        client = PolicyClient(url, opened, **policy)
        yield Bench(url, opened, TurnkeepLLM(client, **llm))


def play[T](bench: Bench, story: Callable[[], Awaitable[T]]) -> T:
    """Run `story` in an event loop of its own and close the client in it."""

    async def tell() -> T:
        try:
            return await story()
        finally:
            await bench.llm.aclose()

    return asyncio.run(tell())


def output_items(rollout: Rollout, call: int) -> list[Any]:
    """The output items of a recorded response, less their null members, which are not sent back."""
    body = rollout.response(call)
    assert body is not None
    items: list[Any] = loads(without_nulls(dumps(loads(body)["output"])))
    return items


def place_of(items: list[Any], sent: list[Any]) -> int | None:
    """Where `items` stand side by side in `sent`, equal to the last bit; None where they do not."""
    found = (at for at in range(len(sent) - len(items) + 1) if same(sent[at : at + len(items)], items))
    return next(found, None)


def without_arrays(items: list[Any]) -> list[Any]:
    """The items less their training fields."""
    return [{name: value for name, value in item.items() if name not in ARRAYS} for item in items]


def types_of(items: list[Any]) -> list[str]:
    """What stands in a request, shortly: the types of items and the roles of messages."""
    return [str(item.get("type") if item.get("type", "message") != "message" else item["role"]) for item in items]


def texts_of(items: list[Any]) -> str:
    """All text of a request's input, to look for words in."""
    return dumps(items).decode()


def kinds(turn: Turn) -> list[str]:
    """The kinds of a turn's parts."""
    return [part.kind for part in turn.parts]
