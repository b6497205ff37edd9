"""A small warehouse clerk to run on the embedded policy, and the script of what the policy says to it.

`Clerk.count` is CodeAct with the clerk's own methods as tools, over several turns; `Clerk.report` is Predict. The
script has, in order: a turn of reasoning, two text blocks and two calls; a turn with one call; a turn whose first call
fails, so that NOOA drops the second; the result; and, for `report`, reasoning and JSON split over two blocks. After
that every call gets the same report, so a restored clerk can go on.
"""

# mypy: disable-error-code="empty-body"

from typing import Any

from pydantic import BaseModel

from nooa import Agent, PredictStrategy, strategy
from turnkeep.nooa import TurnkeepLLM

MADE_UP = ["prefill_", "synthetic_", "predict_", "codeact_inline_"]
SCOPE = 'nemo-gym/responses/v1:["policy_model", "gym-policy"]'


class Report(BaseModel):
    """What the clerk says about a shelf."""

    shelf: str
    boxes: int


class Clerk(Agent):  # type: ignore[misc]
    """You are a warehouse clerk. You count what is on the shelves."""

    def __init__(self, llm: TurnkeepLLM, **options: Any) -> None:
        super().__init__(llm=llm, **options)
        self.shelves = {"north": 12, "south": 30}
        self.looked: list[str] = []

    async def look(self, shelf: str) -> int:
        """The number of boxes on a shelf."""
        self.looked.append(shelf)
        return self.shelves[shelf]

    async def move(self, source: str, target: str, boxes: int) -> dict[str, int]:
        """Move boxes from one shelf to another; gives what is on the shelves then."""
        self.shelves[source] -= boxes
        self.shelves[target] += boxes
        return dict(self.shelves)

    async def count(self, goal: str) -> int:
        """Do this and give the number of boxes asked for: {goal}"""
        ...

    @strategy(PredictStrategy())  # type: ignore[untyped-decorator]
    async def report(self, shelf: str) -> Report:
        """Report on the shelf {shelf}."""
        ...


def python(code: str) -> dict[str, Any]:
    """A step's item: a call that runs `code`."""
    return {"call": "execute_python", "arguments": {"code": code}}


def result(value: Any) -> dict[str, Any]:
    """A step's item: a call that gives the result."""
    return {"call": "return_result", "arguments": {"result": value}}


SCRIPT: dict[str, Any] = {
    "made_up": MADE_UP,
    "steps": [
        [
            {"reasoning": "Two shelves to look at."},
            {"text": ["I look at both ", "shelves."]},
            {"call": "execute_python", "arguments": '{"code":   "print(await self.look(\'north\'))"}'},
            python("print(await self.look('south'))"),
        ],
        [{"reasoning": "Even them out."}, python("print(await self.move('south', 'north', 9))")],
        [python("print(await self.look('west'))"), python("print('never run')")],
        [result("42")],
        [{"reasoning": "Only the north is asked for."}, {"text": ['{"shelf": "nor', 'th", "boxes": 21}']}],
    ],
}
