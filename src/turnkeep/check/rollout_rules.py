"""Rules about a rollout as a whole: what can be trained on, what is missing, how it ended."""

from collections.abc import Iterator
from dataclasses import replace

from turnkeep.check.facts import RolloutFacts, TurnNote
from turnkeep.check.finding import ERROR, NOTE, WARNING, For, Found, Rule, rule
from turnkeep.history.gaps import MALFORMED_TRAINING, UNGRADABLE
from turnkeep.wire.training import ROUTES


@rule(
    For(ERROR, ERROR, ERROR, ERROR, ERROR),
    source="contract 9.3",
    todo="Run `turnkeep verify`: the store is damaged. Take the rollout from a copy, or leave it out.",
)
def unreadable(facts: RolloutFacts) -> Iterator[Found]:
    """Every turn and every request is there and is what was written."""
    for error in facts.unreadable:
        yield Found(error.message, error.turn, error.call, error.item, error.field, error.index)


@rule(
    For(ERROR, ERROR, ERROR, ERROR, ERROR),
    source="there is nothing to train on, and a document has steps",
    todo="Leave it out; a rollout that was begun and went nowhere may be run again with rerun=True.",
)
def no_step(facts: RolloutFacts) -> Iterator[Found]:
    """Something was said in the rollout."""
    if facts.talk.is_empty and not facts.unreadable:
        yield Found("the rollout has no turn, and nothing else that was said")


@rule(
    For(ERROR, ERROR, ERROR, ERROR, None),
    source="NeMo RL environments/nemo_gym.py (ValueError); every trainer",
    todo="Have the model server return token ids and log probs (NeMo Gym: return_token_id_information: true).",
)
def no_trainable_turn(facts: RolloutFacts) -> Iterator[Found]:
    """At least one turn has generated token ids."""
    if not (facts.unreadable or facts.talk.is_empty or any(note.trainable for note in facts.notes)):
        count = len(facts.notes)
        yield Found("the rollout has no turn" if not count else f"none of {count} turns has generated token ids")


@rule(
    For(NOTE, NOTE, NOTE, NOTE, NOTE),
    source="a trainer passes over it; a foreign turn before the native ones replays exactly",
    todo="Nothing, where another model wrote it; else see why the server sent no ids.",
)
def turn_without_ids(facts: RolloutFacts) -> Iterator[Found]:
    """Turns before the first one with token ids have them too."""
    for note, first in _without_ids(facts):
        if note.number < first:
            yield Found("the turn has no token ids, and later ones have", note.number, note.call)


@rule(
    For(WARNING, WARNING, WARNING, WARNING, NOTE),
    source="contract 7.8; NeMo RL's worker cuts at the last assistant message and prepends the last prefix with ids",
    todo="What stands between is dropped from the prompt without a word: keep prefix_guard on, or end the rollout.",
)
def ids_missing_after_ids(facts: RolloutFacts) -> Iterator[Found]:
    """After a turn with token ids, every turn has them."""
    for note, first in _without_ids(facts):
        if note.number > first:
            yield Found("the turn has no token ids, and an earlier one has", note.number, note.call)


@rule(
    For(WARNING, ERROR, None, WARNING, NOTE),
    source="NeMo RL environments/nemo_gym.py: routed experts are required when router replay is on",
    todo="Have the server send routes for every call, or train without router replay.",
)
def experts_missing(facts: RolloutFacts) -> Iterator[Found]:
    """All trainable turns have routed experts, or none has."""
    if any(routed for note in facts.notes for _, routed in note.trainable):
        for note in facts.notes:
            for item, routed in note.trainable:
                if not routed:
                    message = "no routed experts here, and other turns have them"
                    yield Found(message, note.number, note.call, item, ROUTES)


@rule(
    For(WARNING, NOTE, NOTE, NOTE, ERROR),
    source="contract 5, 7.9, 8.1: strict ATIF export refuses any gap; trainers do not look",
    todo="See what the gap's code says; export leniently where it does not matter.",
)
def gap(facts: RolloutFacts) -> Iterator[Found]:
    """No evidence is missing: the rollout has no gap."""
    for each in facts.rollout.gaps:
        lost = facts.lost if each.code == MALFORMED_TRAINING else ()
        yield from (replace(found, message=f"{each.code}: {found.message}") for found in lost)
        told = lost or (facts.lost_of_row if each.code == MALFORMED_TRAINING else ())
        if not told:
            invocation = "" if each.invocation is None else f" (invocation {each.invocation})"
            yield Found(f"{each.code}{invocation}: {each.detail or 'no detail'}")


@rule(
    For(ERROR, ERROR, ERROR, ERROR, ERROR),
    source="contract 1.5, 7.9; NeMo Gym TokenIDLogProbMixin",
    todo="The turn is kept by its text alone, and `export gym` gives the items as they were: mend the row, or leave it "
    "out.",
)
def row_malformed(facts: RolloutFacts) -> Iterator[Found]:
    """The training fields of an imported row are what the contract says (a row kept with --on-malformed gap)."""
    for found in facts.lost_of_row:
        yield replace(found, message=f"{MALFORMED_TRAINING}: {found.message}")


@rule(
    For(NOTE, None, None, None, ERROR),
    source="it is no UTF-8: no field of a document and no column can hold it",
    todo="Export leniently: the field then shows U+FFFD, and the exact text stands in extra.",
)
def lone_surrogate(facts: RolloutFacts) -> Iterator[Found]:
    """No text holds half of a surrogate pair."""
    for note in facts.notes:
        yield from note.torn
    yield from facts.talk.torn


@rule(
    For(ERROR, ERROR, ERROR, ERROR, ERROR),
    source="contract 7.3, 8.1; NeMo Gym: a failed row is not graded",
    todo="Run the agent again with rerun=True: a later policy call that succeeds clears it. Leave out an imported one.",
)
def ungradable(facts: RolloutFacts) -> Iterator[Found]:
    """The last attempt left the rollout fit to be graded."""
    failure = facts.rollout.failure
    if not facts.rollout.gradable and failure is not None:
        places = (failure.get(name) for name in ("turn", "call", "item", "field", "index"))
        yield Found(f"it ended in a {failure.get('type')}: {failure.get('message')}", *places)
    if any(each.code == UNGRADABLE for each in facts.rollout.gaps):
        yield Found("it was ungradable when it was exported")


@rule(
    For(WARNING, WARNING, WARNING, WARNING, ERROR),
    source="contract 10.3",
    todo="Run the agent again with rerun=True: the call is sent again under its first charge.",
)
def unfinished_call(facts: RolloutFacts) -> Iterator[Found]:
    """Every policy call has ended: in a turn, or in a failure."""
    for call in facts.rollout.calls:
        if call.turn is None and call.failure is None:
            what = "was sent, and nothing came back" if call.in_flight else "was answered, and no turn was made of it"
            yield Found(f"policy call {call.number} {what}", call=call.number)


@rule(
    For(WARNING, WARNING, WARNING, WARNING, WARNING),
    source="contract 10.5",
    todo="See whether it took effect, then state its output with settle_tool.",
)
def unfinished_tool(facts: RolloutFacts) -> Iterator[Found]:
    """Every tool marked `once` that began has left its output."""
    for record in facts.tools:
        if record["state"] != "done":
            yield Found(f"tool {record['name']} began and left no output", field="tools", index=record["number"])


@rule(
    For(WARNING, WARNING, WARNING, WARNING, WARNING),
    source="contract 10.4",
    todo="Turns of both ways stand in this rollout; the prompts of the later way do not extend those of the earlier.",
)
def rerun_difference(facts: RolloutFacts) -> Iterator[Found]:
    """A re-run went the way of its evidence."""
    difference = facts.rollout.difference
    if difference is not None:
        message = f"a re-run first went another way at {difference.get('path')} of policy call {difference.get('call')}"
        yield Found(message, call=difference.get("call"))


def _without_ids(facts: RolloutFacts) -> Iterator[tuple[TurnNote, int]]:
    """The turns that carry no training fields, in a rollout where others do, and the number of the first that does.

    Those that lost them because they were malformed are left to the gap that says so.
    """
    first = next((note.number for note in facts.notes if note.has_fields), None)
    if first is not None:
        lost = {found.turn for found in (*facts.lost, *facts.lost_of_row)}
        for note in facts.notes:
            if not (note.has_fields or note.is_empty or note.number in lost):
                yield note, first


RULES: tuple[Rule[RolloutFacts], ...] = (
    unreadable,
    no_step,
    no_trainable_turn,
    turn_without_ids,
    ids_missing_after_ids,
    experts_missing,
    gap,
    row_malformed,
    lone_surrogate,
    ungradable,
    unfinished_call,
    unfinished_tool,
    rerun_difference,
)
