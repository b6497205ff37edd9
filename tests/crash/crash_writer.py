"""A child that keeps turns as fast as it can, saying the number of each once `add_turn` has returned."""

import json
import random
import sys
from functools import cache
from typing import Any

from turnkeep.history.capture import capture
from turnkeep.history.turn import Turn
from turnkeep.rollout.record import Rollout
from turnkeep.store.sqlite import SqliteStore

SCOPE = 'nemo-gym/responses/v1:["policy_model", "gym-policy"]'


@cache
def make_turn(number: int) -> Turn:
    """The turn of this number, the same in every process."""
    rng = random.Random(number)
    count = rng.choice([1, 30, 600])
    item: dict[str, Any] = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": f"Turn {number}.", "annotations": []}],
        "prompt_token_ids": [rng.randrange(50_000) for _ in range(count)],
        "generation_token_ids": [rng.randrange(50_000) for _ in range(count)],
        "generation_log_probs": [-rng.random() for _ in range(count)],
    }
    return capture(json.dumps({"id": f"resp_{number}", "model": "m", "output": [item]}), SCOPE)


def main(path: str) -> None:
    """Go on with the rollout until killed."""
    with SqliteStore(path) as store, Rollout.open(store, "r", scope=SCOPE) as rollout:
        print("ready", flush=True)
        number = rollout.turn_count
        while True:
            rollout.add_turn(make_turn(number))
            print(number, flush=True)
            number += 1


if __name__ == "__main__":
    main(sys.argv[1])
