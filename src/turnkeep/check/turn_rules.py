"""Rules about one turn: what its parts say, how it ended, and how the next request replayed it."""

from collections.abc import Iterator, Mapping
from typing import Any

from turnkeep.check.facts import PROMPT, TurnFacts, strings
from turnkeep.check.finding import ERROR, NOTE, WARNING, For, Found, Rule, rule
from turnkeep.check.plain import read_arguments
from turnkeep.errors import TurnkeepError
from turnkeep.history.agreement import part_disagreement
from turnkeep.history.projection import BY_ITEMS
from turnkeep.rollout.conversation import is_output, literal_items
from turnkeep.rollout.evidence import CallRecord, shared_entries
from turnkeep.rollout.view import RolloutView


@rule(
    For(WARNING, WARNING, WARNING, WARNING, ERROR),
    source="contract 3.1",
    todo="The token ids are of what the policy said, not of what stands here now: the turn replays by its public text.",
)
def edited_turn(facts: TurnFacts) -> Iterator[Found]:
    """The public fields of a turn with generated token ids still say what its native items say."""
    if any(sample.is_trainable for sample in facts.samples):
        yield from _changed_parts(facts)


@rule(
    For(NOTE, NOTE, NOTE, NOTE, NOTE),
    source="contract 3.1",
    todo="Nothing: the turn replays by its public text, and no token ids are trained on that are of another.",
)
def edited_turn_without_ids(facts: TurnFacts) -> Iterator[Found]:
    """The public fields of a turn without token ids still say what its native items say."""
    native = any(part.native is not None for part in facts.turn.parts)
    if native and not any(sample.is_trainable for sample in facts.samples):
        yield from _changed_parts(facts)


def _changed_parts(facts: TurnFacts) -> Iterator[Found]:
    for item, part in enumerate(facts.turn.parts):
        if (why := part_disagreement(part)) is not None:
            yield facts.found(f"this part was changed: {why}", item)


@rule(
    For(NOTE, None, None, None, ERROR),
    source="a step of an ATIF document, and a row of a table, has room for the ids of one item",
    todo="Look at the server that sent them: Gym puts the ids of a policy call on its last item.",
)
def token_ids_twice(facts: TurnFacts) -> Iterator[Found]:
    """One item of a turn has generated token ids."""
    for sample in [sample for sample in facts.samples if sample.is_trainable][:-1]:
        yield facts.found("a later item of the turn has token ids too", sample.item, PROMPT)


@rule(
    For(WARNING, WARNING, WARNING, WARNING, ERROR),
    source="contract 1.8; Gym's strict ATIF export refuses an incomplete response",
    todo="Mask it or leave it out where an unfinished answer must not be learned; see max_output_tokens.",
)
def truncated(facts: TurnFacts) -> Iterator[Found]:
    """A response is not cut off at the token limit, and none of its items is incomplete."""
    reason = facts.turn.finish_reason
    if reason == "length":
        yield facts.found("the response was cut at max_output_tokens", field="finish_reason")
    for item, part in enumerate(facts.turn.parts) if reason not in ("length", "error") else ():
        if part.native is not None and part.native.get("status") == "incomplete":
            yield facts.found("the item is incomplete", item, "status")


@rule(
    For(WARNING, WARNING, WARNING, WARNING, ERROR),
    source="contract 1.8; Gym's strict ATIF export refuses an incomplete response",
    todo="See the response in the evidence; leave the turn out where it is not what the policy wanted to say.",
)
def failed_response(facts: TurnFacts) -> Iterator[Found]:
    """A response is complete: the server does not call it failed, cancelled or incomplete."""
    if facts.turn.finish_reason == "error":
        yield facts.found("the server says that the response failed or is incomplete", field="finish_reason")


@rule(
    For(WARNING, NOTE, NOTE, NOTE, ERROR),
    source="ATIF RFC 0001: arguments are an object; no text, no duplicate keys",
    todo="The policy wrote this. A document that holds arguments as an object cannot hold it.",
)
def arguments_not_json(facts: TurnFacts) -> Iterator[Found]:
    """The arguments of a tool call are JSON that can be read exactly."""
    return _arguments(facts, "not-json")


@rule(
    For(WARNING, NOTE, NOTE, NOTE, ERROR),
    source="ATIF RFC 0001: arguments are an object",
    todo="The policy wrote this. A document that holds arguments as an object cannot hold it.",
)
def arguments_not_object(facts: TurnFacts) -> Iterator[Found]:
    """The arguments of a tool call are a JSON object."""
    return _arguments(facts, "not-object")


@rule(
    For(NOTE, None, None, None, ERROR),
    source="validators have limits of their own",
    todo="The policy wrote this. Export leniently: the exact text then stands in extra.",
)
def arguments_too_deep(facts: TurnFacts) -> Iterator[Found]:
    """The arguments of a tool call are nested at most 100 levels deep."""
    return _arguments(facts, "too-deep")


@rule(
    For(NOTE, NOTE, None, None, WARNING),
    source="ATIF RFC 0001 (1.4): prompt_token_ids has prompt_tokens ids; Gym conformance TE-2",
    todo="One of the two counts is of something else: look at the server, and trust the ids.",
)
def usage_differs(facts: TurnFacts) -> Iterator[Found]:
    """The usage counts as many prompt and output tokens as there are ids."""
    if len(facts.samples) != 1:
        return
    sample, usage = facts.samples[0], facts.turn.usage
    for field, ids in (("input_tokens", sample.prompt), ("output_tokens", sample.generation)):
        counted = usage.get(field) if isinstance(usage, Mapping) else None
        if ids is not None and type(counted) is int and counted != len(ids):
            yield facts.found(
                f"usage counts {counted} {field.replace('_', ' ')}, and there are {len(ids)} ids", None, field
            )


@rule(
    For(WARNING, WARNING, WARNING, WARNING, NOTE),
    source="NeMo Gym, On-Policy Corrections: history is append-only, reasoning included",
    todo="Put the turn itself into the history, not a dictionary made of it.",
)
def reasoning_dropped(facts: TurnFacts) -> Iterator[Found]:
    """The reasoning of a turn stands in the next request too, where that repeats the turn by other means."""
    thoughts = [(item, part.text) for item, part in enumerate(facts.turn.parts) if part.kind == "reasoning"]
    calls = facts.rollout.calls
    if facts.call is None or facts.call + 1 >= len(calls) or not any(text for _, text in thoughts):
        return
    repeated = _repeated(facts.rollout, facts.number, calls[facts.call], calls[facts.call + 1])
    said = "\n".join(strings(repeated))
    for item, text in thoughts:
        if repeated and any(line not in said for line in text.split("\n")):
            yield facts.found(f"the reasoning is not in the request of policy call {facts.call + 1}", item)


def _repeated(rollout: RolloutView, turn: int, before: CallRecord, after: CallRecord) -> list[dict[str, Any]]:
    """The assistant's items that the request of `after` has in a turn's place; none where it has the turn itself."""
    new = after.request.entries[shared_entries(before.request.entries, after.request.entries) :]
    if any(ref == turn for _, ref in new):
        return []
    literal = [ref for form, ref in new if isinstance(ref, str) and form not in ("runtime", *BY_ITEMS)]
    try:
        items = [item for ref in literal for item in literal_items(rollout, after.number, ref)]
    except TurnkeepError:
        return []  # a damaged request is for `turnkeep verify` to name
    return [item for item in items if _is_assistants(item)]


def _is_assistants(item: Mapping[str, Any]) -> bool:
    kind = item.get("type")
    return not is_output(item) and (kind in ("function_call", "reasoning") or item.get("role") == "assistant")


def _arguments(facts: TurnFacts, fault: str) -> Iterator[Found]:
    """The tool calls whose arguments have this fault."""
    for item, part in enumerate(facts.turn.parts):
        if part.kind == "tool_call" and (read := read_arguments(part.arguments)).fault == fault:
            yield facts.found(f"the arguments of {part.name} {read.why}", item, "arguments")


RULES: tuple[Rule[TurnFacts], ...] = (
    edited_turn,
    edited_turn_without_ids,
    token_ids_twice,
    truncated,
    failed_response,
    arguments_not_json,
    arguments_not_object,
    arguments_too_deep,
    usage_differs,
    reasoning_dropped,
)
