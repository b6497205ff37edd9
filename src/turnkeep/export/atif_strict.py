"""What strict ATIF export refuses: what `turnkeep check --for atif` calls an error, and what no field can show."""

from collections.abc import Iterator

from turnkeep.archive.json_form import to_skeleton
from turnkeep.check.doctor import check_rollout
from turnkeep.check.finding import ERROR, Finding
from turnkeep.errors import ArchiveError, CorruptRecord
from turnkeep.export.atif_arguments import take_apart
from turnkeep.export.atif_plan import Plan, plan_steps
from turnkeep.export.atif_text import is_plain
from turnkeep.export.atif_turn import carriers, length_of, read_routes
from turnkeep.export.samples import first_token
from turnkeep.history.agreement import disagreement
from turnkeep.history.turn import Turn
from turnkeep.rollout.view import RolloutView
from turnkeep.wire.training import REQUIRED, ROUTES


def refusals(view: RolloutView) -> list[Finding]:
    """Every reason for which a strict document of a rollout is refused, in the order of its turns."""
    found = [finding for finding in check_rollout(view, "atif") if finding.severity is ERROR]
    try:
        plan = plan_steps(view)
        found += _of_plan(view, plan)
        for number in range(view.turn_count):
            found += _of_turn(view, number)
    except (CorruptRecord, ArchiveError):
        pass  # the doctor has named it
    return sorted(found, key=lambda finding: view.turn_count if finding.turn is None else finding.turn)


def _of_plan(view: RolloutView, plan: Plan) -> Iterator[Finding]:
    if not plan.steps:
        yield _finding(view, "no-step", "the rollout has nothing that a step could be made of", "Leave it out.")
    for step, call_id in plan.twice:
        message = f"step {step + 1} is another call of the id {call_id!r}, which a request had in a turn's place"
        yield _finding(view, "call-id-twice", message, "Put turns themselves into the history.", field="call_id")
    for step, planned in enumerate(plan.steps):
        if not is_plain([planned.item, [result.item for result in planned.results]]):
            yield _finding(view, "lone-surrogate", f"step {step + 1} holds half of a surrogate pair", _LENIENT)


_LENIENT = "Export leniently: the field then shows U+FFFD, and the exact text stands in extra."


def _of_turn(view: RolloutView, number: int) -> Iterator[Finding]:
    turn = view.turn(number)
    if not is_plain(to_skeleton(turn)):
        yield _finding(view, "lone-surrogate", "a text holds half of a surrogate pair", _LENIENT, number)
    for item, part in enumerate(turn.parts):
        if part.kind == "tool_call" and "nested deeper" in (take_apart(part.arguments).fault or ""):
            yield _finding(view, "arguments-too-deep", "the arguments are nested too deeply", _LENIENT, number, item)
    found = carriers(turn)
    for item in found[:-1]:
        message = "another item of the turn has token ids too, and a step has room for those of one"
        yield _finding(
            view, "token-ids-twice", message, "Look at the server that sent them.", number, item, REQUIRED[0]
        )
    if found and (why := disagreement(turn)) is not None:
        todo = "Export leniently, or give the edited turn no token ids."
        yield _finding(view, "edited-turn", f"the token ids are of another text, since {why}", todo, number, None, None)
    if found:
        yield from _of_routes(view, number, turn, found[-1])


def _of_routes(view: RolloutView, number: int, turn: Turn, item: int) -> Iterator[Finding]:
    native = turn.parts[item].native
    if native is None or (native.arrays.get(ROUTES) is None and native.get(ROUTES) is None):
        return
    todo = "See which server wrote the routes."
    experts = read_routes(native)
    if experts is None:
        if native.get(ROUTES) != []:
            yield _finding(view, "experts-unreadable", "the routes cannot be read", todo, number, item, ROUTES)
        return
    prompt, generated = length_of(native, REQUIRED[0]), length_of(native, REQUIRED[1])
    if first_token(len(experts), prompt, generated) is None:
        message = f"{len(experts)} rows for {prompt} prompt + {generated} generated tokens: whose they are is not known"
        yield _finding(view, "experts-rows", message, todo, number, item, ROUTES)


def _finding(
    view: RolloutView,
    name: str,
    message: str,
    todo: str,
    turn: int | None = None,
    item: int | None = None,
    field: str | None = None,
) -> Finding:
    call = None if turn is None else view.call_of_turn(turn)
    return Finding(name, ERROR, message, todo, view.id, turn, call, item, field)
