"""What the model classes of the Gym at hand refuse or lose, found out by trying them, not by Gym's version.

Every Gym server reads and writes requests and responses through these classes, so a response may have lost something
before it gets here: that leaves no trace but what is missing. What leaves here is never put through them.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from turnkeep.history.gaps import Gap
from turnkeep.history.turn import Turn
from turnkeep.wire.training import TRAINING_FIELDS

IDS_LOST = "gym_hop_without_token_ids"
REASONING_LOST = "gym_hop_empty_reasoning"
ITEM_WITHHELD = "gym_verifier_item_withheld"

DETAILS = {
    IDS_LOST: "A response came without token ids where they were to be given; the model server's classes in this Gym "
    "drop all of them where routed_experts is a string, or where one of the fields is missing.",
    REASONING_LOST: "A reasoning item came without text; the model server's classes in this Gym drop its content.",
    ITEM_WITHHELD: "The verifier was not shown an output item whose type the classes of this Gym refuse; the response "
    "of the row has it.",
}
"""What each code means."""

_IDS = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}
_MESSAGE = {"id": "msg", "type": "message", "role": "assistant", "status": "completed"}
_TEXT = {"content": [{"type": "output_text", "text": "", "annotations": []}]}


@cache
def _adapter() -> Any:
    from nemo_gym.openai_utils import NeMoGymResponseOutputItem
    from pydantic import TypeAdapter

    return TypeAdapter(NeMoGymResponseOutputItem)


def through(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """What becomes of an output item in Gym's classes; None where they refuse it."""
    try:
        kept = _adapter().validate_python(dict(item))
    except ValueError:
        return None
    value: dict[str, Any] = kept.model_dump(mode="json") if hasattr(kept, "model_dump") else dict(kept)
    return value


@cache
def loses_ids() -> bool:
    """Whether token ids vanish beside a `routed_experts` that is a string."""
    kept = through({**_MESSAGE, **_TEXT, **_IDS, "routed_experts": "nrlre1:int8:1x1x1:AA=="})
    return kept is None or kept.get("generation_token_ids") != [2]


@cache
def loses_reasoning() -> bool:
    """Whether the `content` of a reasoning item vanishes."""
    blocks = [{"type": "reasoning_text", "text": "x"}]
    kept = through({"id": "rs", "type": "reasoning", "summary": [], "content": blocks})
    return kept is None or not kept.get("content")


@cache
def request_members() -> frozenset[str]:
    """The members that a request to a Gym model server may have."""
    from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming

    return frozenset(NeMoGymResponseCreateParamsNonStreaming.model_fields)


def turn_gaps(turns: Iterable[Turn], *, ids_expected: bool) -> list[Gap]:
    """The gaps that a Gym server's classes may have made in the policy's turns.

    Token ids are missed where the model server is configured to return them, or where another turn has some; reasoning
    where an item of it has neither text nor encrypted content.
    """
    items = [[part.native for part in turn.parts if part.native is not None] for turn in turns]
    with_ids = [any(item.has_training for item in each) for each in items if each]
    found = []
    if loses_ids() and (ids_expected or any(with_ids)) and not all(with_ids):
        found.append(IDS_LOST)
    if loses_reasoning() and any(_is_empty_reasoning(item) for each in items for item in each):
        found.append(REASONING_LOST)
    return [Gap(code, None, DETAILS[code]) for code in found]


def _is_empty_reasoning(item: Mapping[str, Any]) -> bool:
    return item.get("type") == "reasoning" and not any(map(item.get, ("summary", "content", "encrypted_content")))


def is_refused(item: Mapping[str, Any]) -> bool:
    """Whether a resources server of this Gym would refuse a response for having this output item."""
    return through({name: value for name, value in item.items() if name not in TRAINING_FIELDS}) is None
