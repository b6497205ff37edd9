"""Rules about tool calls and their results, over the conversation of a rollout."""

from collections import Counter
from collections.abc import Iterator

from turnkeep.check.facts import RolloutFacts, Step
from turnkeep.check.finding import ERROR, NOTE, WARNING, For, Found, Rule, rule

_STRICT = "Gym's strict ATIF export: each call is answered exactly once, ids are unique"


@rule(
    For(WARNING, NOTE, NOTE, NOTE, ERROR),
    source=_STRICT,
    todo="Results cannot be told apart by their id: look at the server or parser that makes the ids.",
)
def duplicate_call_id(facts: RolloutFacts) -> Iterator[Found]:
    """No two tool calls of a rollout have the same id."""
    first: dict[str, Step] = {}
    for step in facts.talk.steps:
        if not step.is_result and (before := first.setdefault(step.id, step)) is not step:
            where = f"turn {before.turn}, item {before.item}" if before.item is not None else "a request"
            yield Found(f"{step.id!r} is also the id of a call in {where}", step.turn, step.call, step.item, "call_id")


@rule(
    For(None, None, None, None, ERROR),
    source="a document has one step for a call; two of one id cannot be told apart",
    todo="Put turns themselves into the history, not items made of them.",
)
def call_id_twice(facts: RolloutFacts) -> Iterator[Found]:
    """No request has a call of its own with the id of a call before it."""
    for step in facts.talk.copies:
        message = f"a request has another call of the id {step.id!r}, which stands before it already"
        yield Found(message, step.turn, step.call, field="call_id")


@rule(
    For(WARNING, WARNING, WARNING, WARNING, ERROR),
    source=_STRICT,
    todo="Give the result back, or an error text in its place, before the next policy call.",
)
def unanswered_call(facts: RolloutFacts) -> Iterator[Found]:
    """Every tool call but those of the last turn has a result."""
    last = _last_turn(facts)
    for step in _unanswered(facts):
        if step.turn != last:
            yield Found(f"nothing has a result for {step.id!r}", step.turn, step.call, step.item, "call_id")


@rule(
    For(NOTE, NOTE, NOTE, NOTE, WARNING),
    source=f"{_STRICT}; the schema itself does not ask for it",
    todo="An agent that ends with a tool call leaves it so; Gym's own export needs the result.",
)
def unanswered_last_call(facts: RolloutFacts) -> Iterator[Found]:
    """The tool calls of the last turn have results."""
    last = _last_turn(facts)
    for step in _unanswered(facts):
        if step.turn == last:
            message = f"the rollout ends before a result for {step.id!r}"
            yield Found(message, step.turn, step.call, step.item, "call_id")


@rule(
    For(WARNING, NOTE, NOTE, NOTE, ERROR),
    source=_STRICT,
    todo="The call was dropped from the history, or the id is wrong: look at what builds the history.",
)
def result_without_call(facts: RolloutFacts) -> Iterator[Found]:
    """A tool result has the id of a call that came before it."""
    called = set()
    for step in facts.talk.steps if not facts.unreadable else ():
        if not step.is_result:
            called.add(step.id)
        elif step.id not in called:
            yield Found(
                f"a result for {step.id!r}, which nobody has called before", step.turn, step.call, field="call_id"
            )


@rule(For(WARNING, NOTE, NOTE, NOTE, ERROR), source=_STRICT, todo="Keep one of the two results in the history.")
def result_twice(facts: RolloutFacts) -> Iterator[Found]:
    """A tool call has one result."""
    calls: Counter[str] = Counter()
    results: Counter[str] = Counter()
    for step in facts.talk.steps:
        (results if step.is_result else calls)[step.id] += 1
        if step.is_result and results[step.id] > calls[step.id] > 0:
            yield Found(f"another result for {step.id!r}", step.turn, step.call, field="call_id")


@rule(
    For(NOTE, NOTE, NOTE, NOTE, NOTE),
    source="chat templates write results in the order of the messages, and some carry no ids",
    todo="Put results into the history in the order of the calls.",
)
def results_out_of_order(facts: RolloutFacts) -> Iterator[Found]:
    """The results of a turn's calls come in the order of the calls (of two for one call, the first is looked at)."""
    called: dict[str, int] = {}
    answered: set[str] = set()
    highest: dict[int | None, int] = {}
    told: set[int | None] = set()
    for step in facts.talk.steps:
        if not step.is_result:
            if step.item is not None:  # a call that no turn made is answered where the runtime made it
                called[step.id] = len(called)
                answered.discard(step.id)
        elif step.id not in answered and (place := called.get(step.id)) is not None:
            answered.add(step.id)
            if place < highest.get(step.turn, place) and step.turn not in told:
                told.add(step.turn)
                yield Found(f"the result for {step.id!r} comes late", step.turn, step.call, field="call_id")
            highest[step.turn] = max(place, highest.get(step.turn, place))


@rule(
    For(NOTE, None, None, None, ERROR),
    source="a rollout without recorded requests; an ATIF document needs the observations",
    todo="Collect with PolicyClient, whose requests show what tools gave, or import rows that have it.",
)
def results_unknown(facts: RolloutFacts) -> Iterator[Found]:
    """What tools gave is known, where there were tool calls."""
    called = [note for note in facts.notes if note.calls]
    if called and not facts.knows_results:
        message = "no request was recorded and nothing else shows what tools gave"
        yield Found(message, called[0].number, item=called[0].calls[0][0], field="call_id")


def _unanswered(facts: RolloutFacts) -> Iterator[Step]:
    """The calls of turns that have no result, as far as results can be known."""
    if not facts.knows_results:
        return
    answered = {step.id for step in facts.talk.steps if step.is_result}
    for step in facts.talk.steps:
        if not step.is_result and step.item is not None and step.id not in answered:
            answered.add(step.id)  # another call of the same id is a duplicate, and named as that
            yield step


def _last_turn(facts: RolloutFacts) -> int:
    return facts.rollout.turn_count - 1


RULES: tuple[Rule[RolloutFacts], ...] = (
    duplicate_call_id,
    call_id_twice,
    unanswered_call,
    unanswered_last_call,
    result_without_call,
    result_twice,
    results_out_of_order,
    results_unknown,
)
