"""Re-run from evidence: an agent started again from the beginning gets the answers it got before (contract section 10).

Requests are compared entry by entry. A turn of the rollout equals only itself. Any other text is equal up to a
one-to-one renaming of the ids that the agent's runtime makes up; the renaming is one for the whole re-run, and every
request that goes out carries the recorded ids, so that its prompt stays an extension of the recorded ones.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from turnkeep.errors import ConfigurationError
from turnkeep.history.turn import Turn
from turnkeep.rollout.evidence import CallRecord, Prepared, Ref, Referred, shared_entries
from turnkeep.wire.json import dumps, loads, same
from turnkeep.wire.sha import sha256_hex

_LONGEST_VALUE = 200


@dataclass(frozen=True, slots=True)
class MadeUpIds:
    """Which ids a runtime makes up anew in each run.

    `patterns` are regular expressions of ids that may stand anywhere in a request's text; `members` are request members
    whose whole value is such an id.
    """

    patterns: tuple[str, ...] = ()
    members: tuple[str, ...] = ()

    def regex(self) -> re.Pattern[bytes]:
        """One expression for all of them, over JSON text. Raises ConfigurationError."""
        members = (f'(?<="{re.escape(name)}":")[^"]*' for name in self.members)
        try:
            return re.compile("|".join((*self.patterns, *members, "(?!)")).encode())
        except re.error as error:
            raise ConfigurationError(f"made-up ids need regular expressions: {error}", field="patterns") from None


class _Shape(NamedTuple):
    """A text with its made-up ids taken out, as a digest, and the ids in order."""

    digest: str
    ids: tuple[bytes, ...]


class Rerun:
    """The recorded calls that are still to be asked for, and the renaming found so far."""

    def __init__(self, calls: Sequence[CallRecord], piece: Callable[[str], bytes], made_up: MadeUpIds) -> None:
        self._piece = piece
        self._regex = made_up.regex()
        self._shapes: dict[str, _Shape] = {}
        self._recorded: dict[bytes, bytes] = {}
        self._current: dict[bytes, bytes] = {}
        self._renamed: dict[bytes, bytes] = {}
        self._unused = {call.number: call for call in calls}
        self.to_be_sent_anew = _failed_at_the_end(calls)
        self._used: list[CallRecord] = []
        self._differences: dict[int, dict[str, Any]] = {}
        self._waiting: dict[tuple[Any, ...], list[int]] = {}
        for call in self._unused.values():
            self._waiting.setdefault(self._key(call.request.entries, call.request.tail), []).append(call.number)

    def take(self, prepared: Prepared, number_of: Callable[[Turn], int | None]) -> CallRecord | None:
        """The first recorded call not yet used whose request equals this one, or None. It is used from now on."""
        if not self._unused:
            return None
        record = self._refer(prepared, number_of)
        waiting = self._waiting.get(self._key(record.entries, record.tail), [])
        for number in waiting:
            call = self._unused[number]
            recorded = self._ids(call.request.entries, call.request.tail)
            if self._rename_to(self._ids(record.entries, record.tail), recorded):
                waiting.remove(number)
                self._used.append(self._unused.pop(number))
                self._differences.pop(number, None)
                return call
        return None

    def _refer(self, prepared: Prepared, number_of: Callable[[Turn], int | None]) -> Referred:
        """The request as references, its texts known by their digests."""
        record = prepared.refer(number_of)
        for digest, text in record.texts.items():
            self._shape(digest, text)
        return record

    def with_recorded_ids(self, prepared: Prepared) -> Prepared:
        """The request with every made-up id renamed back to the recorded one; turns stay as they are."""
        entries = (replace(e, literal=self._rename(e.literal)) if e.turn is None else e for e in prepared.entries)
        return Prepared(tuple(entries), self._rename(prepared.tail))

    def _rename(self, text: bytes) -> bytes:
        """`text` with recorded ids; remembered where each id in it is known, for the renaming only grows."""
        if text not in self._renamed:
            renamed = self._regex.sub(lambda found: self._recorded.get(found[0], found[0]), text)
            if any(found[0] not in self._recorded for found in self._regex.finditer(text)):
                return renamed
            self._renamed[text] = renamed
        return self._renamed[text]

    @property
    def difference(self) -> dict[str, Any] | None:
        """Where the agent went another way than the evidence: the first recorded call that it has not come to, or None.

        What was met is `note_difference`'s; it is withdrawn when the recorded call is asked for after all, as one of
        several calls made at once may be.
        """
        return next(iter(self._differences.values()), None)

    def note_difference(
        self, prepared: Prepared, number_of: Callable[[Turn], int | None], body: Callable[[int], bytes]
    ) -> None:
        """Note where a request that matched nothing first differs from the recorded one it was to be.

        The recorded one is that which shares the most entries with it. There is none where the request goes on from
        one that was used, further than any that is left: the agent has merely got beyond what was recorded.
        """
        if not self._unused:
            return
        record = self._refer(prepared, number_of)
        left = max(self._unused.values(), key=lambda call: self._shared(call, record.entries))
        if left.number in self._differences:
            return
        beyond = max((self._shared(call, record.entries) for call in self._used), default=-1)
        if self._shared(left, record.entries) < beyond:
            return
        path, recorded, now = first_difference(loads(body(left.number)), loads(b"".join(prepared.chunks())))
        found = {"call": left.number, "path": path, "recorded": _brief(recorded), "now": _brief(now)}
        self._differences[left.number] = found

    def _shared(self, call: CallRecord, entries: Sequence[Ref]) -> int:
        return shared_entries(map(self._entry_key, call.request.entries), map(self._entry_key, entries))

    def _key(self, entries: Sequence[Ref], tail: str) -> tuple[Any, ...]:
        return (*map(self._entry_key, entries), self._shape(tail).digest)

    def _entry_key(self, ref: Ref) -> Ref:
        form, value = ref
        return form, self._shape(value).digest if isinstance(value, str) else value

    def _ids(self, entries: Sequence[Ref], tail: str) -> Iterator[bytes]:
        for value in (*(value for _, value in entries), tail):
            if isinstance(value, str):
                yield from self._shape(value).ids

    def _shape(self, digest: str, text: bytes | None = None) -> _Shape:
        if digest not in self._shapes:
            text = self._piece(digest) if text is None else text
            ids = tuple(found[0] for found in self._regex.finditer(text))
            self._shapes[digest] = _Shape(sha256_hex(self._regex.sub(b"\0", text)), ids)
        return self._shapes[digest]

    def _rename_to(self, current: Iterator[bytes], recorded: Iterator[bytes]) -> bool:
        """Whether the ids can be renamed one to one, given the renaming so far; where they can, it is taken on."""
        forth, back = dict(self._recorded), dict(self._current)
        for now, then in zip(current, recorded, strict=True):
            if forth.setdefault(now, then) != then or back.setdefault(then, now) != now:
                return False
        self._recorded, self._current = forth, back
        return True


def count_answered(calls: Sequence[CallRecord]) -> int:
    """How many of the calls a re-run is answered from; the others are sent again."""
    again = _failed_at_the_end(calls)
    return sum(not call.in_flight and call.number not in again for call in calls)


def _failed_at_the_end(calls: Sequence[CallRecord]) -> frozenset[int]:
    """The calls that ended in transport failures which nothing but their like came after: they ended the run."""
    ended = itertools.takewhile(_is_transport_failure, reversed(calls))
    return frozenset(call.number for call in ended)


def _is_transport_failure(call: CallRecord) -> bool:
    return call.failure is not None and call.failure["type"] == "TransportFailure"


def first_difference(one: Any, other: Any, path: str = "") -> tuple[str, Any, Any]:
    """The path of the first place at which two JSON values differ, and both values there (None where one has none)."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in (*one, *(name for name in other if name not in one)):
            if name not in one or name not in other or not same(one[name], other[name]):
                return first_difference(one.get(name), other.get(name), f"{path}.{name}".lstrip("."))
    if isinstance(one, list) and isinstance(other, list):
        for index in range(max(len(one), len(other))):
            pair = [values[index] if index < len(values) else None for values in (one, other)]
            if not same(*pair) or index >= min(len(one), len(other)):
                return first_difference(pair[0], pair[1], f"{path}[{index}]")
    return path, one, other


def _brief(value: Any) -> Any:
    text = dumps(value).decode()
    return value if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."
