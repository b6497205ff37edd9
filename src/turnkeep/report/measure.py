"""A rollout's turns one by one, with what can be said of each in numbers. One turn is in memory at a time."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from turnkeep.check.facts import Array, Sample, first_difference, read_samples
from turnkeep.errors import TurnkeepError
from turnkeep.history.agreement import disagreement
from turnkeep.history.scope import scopes_match
from turnkeep.history.turn import Turn
from turnkeep.rollout.view import RolloutView


class Numbers(NamedTuple):
    """What a turn has in numbers; None is not known. Log probs are in nats.

    `prompt` and `shared` are of the last item that has training fields, the others of all of them: token ids of the
    prompt, how many of its first ids are those of the prompt and the generation before it (None: nothing is before it),
    generated ids, their log probs [G], and the routes' shape [tokens, layers, top_k] or, unreadable, their form.
    """

    prompt: int | None = None
    shared: int | None = None
    generated: int | None = None
    log_probs: Array | None = None
    experts: list[int] | str | None = None

    @property
    def mean_log_prob(self) -> float | None:
        """The mean of the log probs; None where there is none that is finite."""
        return None if self.log_probs is None else finite_mean(self.log_probs)

    @property
    def least_log_prob(self) -> float | None:
        """The lowest log prob: the token that the policy found least likely. None where it is not finite."""
        least = -np.inf if self.log_probs is None else float(self.log_probs.min(initial=np.inf))
        return least if np.isfinite(least) else None


class Seen(NamedTuple):
    """A turn as it was read: the turn and its training fields, or the error where it is damaged.

    `shared` has for each of `samples` what `Numbers.shared` has for the last.
    """

    number: int
    call: int | None
    turn: Turn | None
    samples: tuple[Sample, ...]
    numbers: Numbers
    shared: tuple[int | None, ...] = ()
    error: TurnkeepError | None = None


def see_turns(rollout: RolloutView) -> Iterator[Seen]:
    """Every turn of the rollout, damaged ones too, in order."""
    before: Sample | None = None
    for number in range(rollout.turn_count):
        call = rollout.call_of_turn(number)
        try:
            turn = rollout.turn(number)
        except TurnkeepError as error:
            before = None  # what the next prompt goes on from is not known
            yield Seen(number, call, None, (), Numbers(), error=error)
            continue
        samples = read_samples(number, turn)
        shared = []
        for sample in samples:
            shared.append(shared_ids(sample, before))
            before = sample if sample.is_trainable else before
        yield Seen(number, call, turn, samples, _measure(samples, shared), tuple(shared))


def _measure(samples: Sequence[Sample], shared: Sequence[int | None]) -> Numbers:
    if not samples:
        return Numbers()
    last = samples[-1]
    generated = [sample.generation for sample in samples if sample.generation is not None]
    log_probs = [sample.log_probs for sample in samples if sample.log_probs is not None]
    return Numbers(
        None if last.prompt is None else len(last.prompt),
        shared[-1],
        sum(map(len, generated)) if generated else None,
        np.concatenate(log_probs) if log_probs else None,
        next((_experts(sample) for sample in reversed(samples) if sample.routes is not None), None),
    )


def finite_mean(log_probs: Array) -> float | None:
    """The mean of log probs [n]; None where there are none, or it is beyond all floats."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(log_probs.mean()) if log_probs.size else np.nan
    return mean if np.isfinite(mean) else None


def shared_ids(sample: Sample, before: Sample | None) -> int | None:
    """How many of the prompt's first ids are those of the prompt and the generation of `before`."""
    if before is None or sample.prompt is None or before.prompt is None or before.generation is None:
        return None
    differs = first_difference(sample.prompt, before.prompt, before.generation)
    return len(before.prompt) + len(before.generation) if differs is None else differs


def _experts(sample: Sample) -> list[int] | str | None:
    routes = sample.routes
    if routes is None:
        return None
    return routes.form if routes.experts is None else list(routes.experts.shape)


def why_portable(turn: Turn, scope: str | None) -> str | None:
    """Why a turn replays by its public parts for a caller of `scope`, or None where it replays natively (2.2, 3.1)."""
    if not turn.parts:
        return None
    if not scopes_match(turn.scope, scope):
        if turn.scope is None:
            return "it has no scope"
        return f"its scope {turn.scope} " + ("is another runtime's" if turn.scope == scope else f"is not {scope}")
    return disagreement(turn)


def kinds_of(turn: Turn) -> list[str]:
    """The kinds of a turn's parts, in order: `text`, `reasoning`, `call`, or `hosted` for what reads as nothing."""
    return [kind_of(part) for part in turn.parts]


def kind_of(part: Any) -> str:
    """The kind of one part."""
    if part.kind == "tool_call":
        return "call"
    native = part.native
    opaque = part.kind == "text" and not part.text and native is not None and native.get("type") != "message"
    return "hosted" if opaque else str(part.kind)


def unsettled(rollout: RolloutView) -> Iterator[str]:
    """In words: tools marked `once` that a person has to settle, and failures that came before any policy call."""
    for tool in recorded(rollout.tools):
        if "error" in tool:
            yield str(tool["error"]["message"])
        elif tool.get("state") != "done":
            yield f"the tool {tool.get('name')} (number {tool.get('number')}) began and left no output"
    for failure in recorded(lambda: rollout.failures):
        if "error" in failure:
            yield str(failure["error"]["message"])
        else:
            place = "" if failure.get("entry") is None else f" (history entry {failure['entry']})"
            yield f"{failure.get('type')}: {failure.get('message')}{place}"


def recorded(read: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What `read` gives; where it is damaged, one record that holds the `error`."""
    try:
        return read()
    except TurnkeepError as error:
        return [{"error": error.to_json()}]
