"""What the tests of the doctor share: a sound rollout, faults planted in it, and what is found then.

A sound rollout has turns whose prompts extend each other and whose routes cover prompt and generation.
"""

import base64
import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turnkeep import Finding, Rollout, RolloutView, Scope, Turn, capture, check_rollout, from_json, open_store, to_json
from turnkeep.store.memory import MemoryStore

SCOPE = Scope("policy_model")
LAYERS, TOP_K, EXPERTS = 4, 2, 8

type Fields = dict[str, Any]


def experts(rows: int, *, top_k: int = TOP_K, layers: int = LAYERS, first: int = 0) -> list[list[list[int]]]:
    """Routes [rows, layers, top_k]: different experts in each place, no row equal to the one before it."""
    return [
        [[(first + row + layer + place) % EXPERTS for place in range(top_k)] for layer in range(layers)]
        for row in range(rows)
    ]


def fields(prompt: Sequence[int], generation: Sequence[int], **others: Any) -> Fields:
    """Training fields of an item, routes for all tokens among them."""
    return {
        "prompt_token_ids": list(prompt),
        "generation_token_ids": list(generation),
        "generation_log_probs": [-0.25 * (1 + index) for index in range(len(generation))],
        "routed_experts": experts(len(prompt) + len(generation)),
        **others,
    }


def sound(turns: int = 3, generated: int = 3) -> list[Fields]:
    """The training fields of a rollout in which nothing is wrong, a turn each."""
    made: list[Fields] = []
    seen = [1, 2, 3, 4]
    for number in range(turns):
        generation = [100 + 10 * number + index for index in range(generated)]
        made.append(fields(seen, generation))
        seen = [*seen, *generation, 50 + number, 60 + number]
    return made


def message(text: str = "Yes.", **members: Any) -> dict[str, Any]:
    """A message item."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": "msg_1", "type": "message", "role": "assistant", "content": content, **members}


def tool_call(call_id: str, arguments: str = "{}", **members: Any) -> dict[str, Any]:
    """A function call."""
    return {"type": "function_call", "call_id": call_id, "name": "look", "arguments": arguments, **members}


def turn(*items: Mapping[str, Any], **members: Any) -> Turn:
    """The turn of a response of these items."""
    return capture({"id": "r", "status": "completed", "model": "m", "output": list(items), **members}, SCOPE)


def rebuilt(made: Turn, item: int = 0, **members: Any) -> Turn:
    """The turn with members of an item's native set past capture, as an archive that was written by others may be."""
    form = copy.deepcopy(to_json(made))
    form["parts"][item]["native"].update(members)
    return from_json(form)


def turns_of(made: Sequence[Fields]) -> list[Turn]:
    """A turn of one message each."""
    return [turn(message(f"Turn {number}.", **each)) for number, each in enumerate(made)]


def envelope(array: Any, dtype: str = "int8") -> str:
    """Routes as NeMo RL's string."""
    values = np.array(array, dtype=dtype)
    shape = "x".join(map(str, values.shape))
    return f"nrlre1:{dtype}:{shape}:{base64.b64encode(values.tobytes()).decode()}"


def check_turns(path: Path, turns: Sequence[Turn], profile: str | None = None, **limits: int) -> list[Finding]:
    """What the doctor finds in a rollout of these turns, kept in a file and read again."""
    with open_store(path / "rollouts.db") as store:
        with Rollout.open(store, "r", scope=SCOPE) as rollout:
            for each in turns:
                rollout.add_turn(each)
        return check_rollout(RolloutView(store, "r"), profile, **limits)


def check_in_memory(made: Sequence[Fields], profile: str | None = None, **limits: int) -> list[Finding]:
    """What the doctor finds in a rollout with these training fields, in a store in memory."""
    with MemoryStore() as store:
        with Rollout.open(store, "r", scope=SCOPE) as rollout:
            for each in turns_of(made):
                rollout.add_turn(each)
        return check_rollout(RolloutView(store, "r"), profile, **limits)


def places(findings: Sequence[Finding]) -> list[tuple[str, int | None, int | None, str | None, int | None]]:
    """Rule, turn, item, field and index of each finding."""
    return [(each.rule, each.turn, each.item, each.field, each.index) for each in findings]
