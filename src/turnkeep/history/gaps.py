"""Gaps: named conditions under which evidence is missing (contract section 5).

A gap is a condition, not a count: each is collected once per rollout. The detail of a code is constant text.
"""

from typing import NamedTuple

FOREIGN_TURN = "foreign_turn_projected_portable"
PUBLIC_ASSISTANT = "public_assistant_metadata_unavailable"
PORTABLE_AFTER_NATIVE = "portable_turn_after_native"
MALFORMED_TRAINING = "malformed_training_metadata"
UNGRADABLE = "ungradable_when_exported"
"""A rollout that came in from a file which says that it failed: the failure itself is evidence, and stays behind."""

DETAILS = {
    FOREIGN_TURN: "A turn of another scope, without native items, or whose public fields disagree with them was "
    "replayed from its public parts.",
    PUBLIC_ASSISTANT: "An assistant message came as a public dictionary, whose shape cannot tell an edited policy turn "
    "from an example or a prefill.",
    PORTABLE_AFTER_NATIVE: "The last assistant entry of a request had no token ids while an earlier one had them; a "
    "server that splices the older prefix would drop what stands between.",
    MALFORMED_TRAINING: "A response broke the rules for training fields; its turn was kept without native items.",
    UNGRADABLE: "The rollout could not be graded when it was exported; the origin has the failure.",
}
"""What each code means. Neither of the first two says that training metadata ever existed."""


class Gap(NamedTuple):
    """One condition: its code, the invocation it belongs to (or None), and the constant detail of the code."""

    code: str
    invocation: str | None = None
    detail: str | None = None


def gap(code: str, invocation: str | None = None) -> Gap:
    """The gap of a known code, with its detail."""
    return Gap(code, invocation, DETAILS[code])
