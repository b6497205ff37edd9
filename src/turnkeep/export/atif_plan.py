"""Which steps an ATIF document of a rollout has: its turns and what stood between them, tool outputs at their calls."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from turnkeep.export.atif_calls import FIELDS
from turnkeep.rollout.conversation import conversation
from turnkeep.rollout.view import RolloutView


class Result(NamedTuple):
    """A tool's output; its call's id, or None where no step has the call; where it came, if not right after its call.

    `after` is the `step_id` of the step that it came after, and how many others came between.
    """

    item: Mapping[str, Any]
    call_id: str | None = None
    after: list[int] | None = None


@dataclass(slots=True)
class Planned:
    """A step to be: a turn by its number, or an item; neither for outputs whose calls no step has."""

    turn: int | None = None
    item: Mapping[str, Any] | None = None
    results: list[Result] = field(default_factory=list)


def plan_steps(view: RolloutView) -> list[Planned]:
    """The steps of a rollout in order, one turn read at a time. Raises CorruptRecord."""
    steps: list[Planned] = []
    owners: dict[str, int] = {}
    late = 0  # outputs since the last step that did not come right after their call
    for said in conversation(view):
        item = said.item
        if said.kind == "output" and item is not None:
            call_id = item.get("call_id")
            owner = owners.get(call_id) if isinstance(call_id, str) else None
            if owner is None:
                steps.append(Planned(results=[Result(item)]))
                late = 0
            elif owner == len(steps) - 1 and not late:
                steps[owner].results.append(Result(item, call_id))
            else:
                steps[owner].results.append(Result(item, call_id, [len(steps), late]))
                late += 1
            continue
        late = 0
        owners.update(dict.fromkeys(_call_ids(view, said.turn, item), len(steps)))
        steps.append(Planned(said.turn, item))
    return steps


def _call_ids(view: RolloutView, turn: int | None, item: Mapping[str, Any] | None) -> list[str]:
    if turn is not None:
        return [call.id for call in view.turn(turn).tool_calls]
    if item is not None and item.get("type") == "function_call" and all(isinstance(item.get(f), str) for f in FIELDS):
        return [item["call_id"]]
    return []
