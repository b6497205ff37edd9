"""The timed operations: turnkeep's public API, from a body as received to a body that is sent."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from turnkeep import (
    AssistantText,
    Scope,
    Turn,
    WireCache,
    capture,
    dumps_turn,
    loads_turn,
    pack,
    project,
    to_json,
    unpack,
)

from .checks import check_replayed, check_restored

SCOPE = Scope("policy_model")

SEED_OPERATIONS = ("capture", "snapshot", "restore", "replay")
"""The seed's four. Replay is of a history restored just now, so nothing is cached."""
OPERATIONS = (*SEED_OPERATIONS, "replay, streamed", "replay, cached", "to plain lists")
"""Streamed is the same request in chunks, never held whole. Cached is with every turn's text at hand, as a client has
it that has sent them before."""

type Tell = Callable[[str], None]
"""Hears what is being done."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a history is written down and read back."""

    name: str
    snapshot: Callable[[Sequence[Turn]], bytes]
    restore: Callable[[bytes], list[Turn]]
    keeps_body: bool
    """Whether a restored turn has the response's body, byte for byte."""


def _dump_lines(turns: Sequence[Turn]) -> bytes:
    return "\n".join(map(dumps_turn, turns)).encode()


def _load_lines(data: bytes) -> list[Turn]:
    return [loads_turn(line) for line in data.split(b"\n")]


FORMS: Mapping[str, Form] = {
    "packed": Form("packed", pack, unpack, keeps_body=True),
    "json": Form("json", _dump_lines, _load_lines, keeps_body=False),
}


class Timed(NamedTuple):
    """What the operations took, in seconds for each repeat, and what they made."""

    seconds: dict[str, list[float]]
    size: int
    text_only: int
    checked: dict[str, dict[str, int]]

    def medians(self) -> dict[str, float]:
        """The median of each operation."""
        return {name: statistics.median(values) for name, values in self.seconds.items()}


def capture_all(bodies: Sequence[bytes]) -> list[Turn]:
    """The turns of the bodies."""
    return [capture(body, scope=SCOPE) for body in bodies]


def to_plain_lists(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """The history as plain JSON values, every array a list."""
    return [to_json(turn) for turn in turns]


def replay(turns: Sequence[Turn], cache: WireCache | None = None) -> bytes:
    """The body of the request that sends the whole history back."""
    return project(turns, scope=SCOPE).body(cache=cache)


def replay_streamed(turns: Sequence[Turn]) -> int:
    """The same in chunks, each let go when the next is asked for. Gives the length of all."""
    return sum(map(len, project(turns, scope=SCOPE).chunks()))


def time_operations(bodies: Sequence[bytes], form: Form, repeats: int, tell: Tell) -> Timed:
    """Time each operation `repeats` times, each repeat from the bodies on, and check what the first one gave.

    Raises NotPreserved where a field is not what it was.
    """
    seconds: dict[str, list[float]] = {name: [] for name in OPERATIONS}
    checked: dict[str, dict[str, int]] = {}

    def timed[**P, R](name: str, operation: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        gc.collect()
        begun = time.perf_counter()
        value = operation(*args, **kwargs)
        seconds[name].append(time.perf_counter() - begun)
        return value

    replay(form.restore(form.snapshot(capture_all(bodies[:1]))))  # imports NumPy and the rest
    size = text_only = 0
    for repeat in range(repeats):
        tell(f"{len(bodies)} turns, {form.name}: times, {repeat + 1} of {repeats}")
        turns = timed("capture", capture_all, bodies)
        snapshot = timed("snapshot", form.snapshot, turns)
        if repeat == 0:
            size, text_only = len(snapshot), len(form.snapshot([without_native(turn) for turn in turns]))
        del turns
        restored = timed("restore", form.restore, snapshot)
        sent = timed("replay", replay, restored)
        length = timed("replay, streamed", replay_streamed, restored)
        cache = WireCache(2 * len(sent))
        replay(restored, cache)
        again = timed("replay, cached", replay, restored, cache)
        if again != sent or length != len(sent):
            raise AssertionError("a replay that is cached or streamed differs from the first")
        del again, cache
        timed("to plain lists", to_plain_lists, restored)
        if repeat == 0:
            tell(f"{len(bodies)} turns, {form.name}: comparing every field")
            checked["restore"] = check_restored(bodies, restored, str(SCOPE), with_body=form.keeps_body)
            checked["replay"] = check_replayed(bodies, sent)
    return Timed(seconds, size, text_only, checked)


def without_native(turn: Turn) -> Turn:
    """The text of a turn alone: what is left of it without what makes it exact. For comparison only."""
    return Turn((AssistantText(text=turn.content),), turn.scope, turn.finish_reason)
