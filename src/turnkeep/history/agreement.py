"""Agreement: whether a turn's public fields still say what its native items say (contract section 3)."""

from turnkeep.errors import MalformedItem
from turnkeep.history.scope import scopes_match
from turnkeep.history.turn import Part, Turn, public_fields
from turnkeep.wire.item import CLIENT_CALLS, read_item

_BLOCKS = {"content", "summary"}


def replays_natively(turn: Turn, scope: str | None) -> bool:
    """Whether `turn` may be replayed item by item for a caller of `scope` (contract 2.2, 2.3, 3.1)."""
    return scopes_match(turn.scope, scope) and disagreement(turn) is None


def disagreement(turn: Turn) -> str | None:
    """Why the turn's parts do not agree with their native items, or None where all do."""
    if "disagreement" not in turn._cache:
        found = ((index, part_disagreement(part)) for index, part in enumerate(turn.parts))
        turn._cache["disagreement"] = next((f"part {index}: {why}" for index, why in found if why), None)
    why: str | None = turn._cache["disagreement"]
    return why


def part_disagreement(part: Part) -> str | None:
    """Why one part does not agree with its native item, or None where it does."""
    if part.native is None:
        return "it has no native item"
    # blocks that are numbers are no blocks: in the skeleton they would read as absent
    members = part.native.to_json() if _BLOCKS & part.native.arrays.keys() else part.native.skeleton()
    try:
        readable = read_item(members)
    except MalformedItem as error:
        return f"its native item reads as nothing: {error.message}"
    if members["type"] in CLIENT_CALLS:
        return f"its native item is a {members['type']}"
    if readable.kind != part.kind:
        return f"it is a {part.kind} part and its native item a {readable.kind}"
    for name, value in public_fields(part).items():
        if getattr(readable, name) != value:
            return f"its {name} differs from its native item's"
    return None
