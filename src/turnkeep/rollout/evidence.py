"""What a policy call leaves behind: the request and the response, byte for byte, kept apart from the history.

A request repeats the whole conversation, so kept whole the requests of a rollout would grow with the square of its
turns. It is written down as references: to turns the rollout already holds, and to pieces of text kept once under
their digest. With them stands the SHA-256 of the body, and the body is rebuilt byte for byte.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from turnkeep.archive.documents import expecting, read_document, write_document
from turnkeep.errors import CorruptRecord
from turnkeep.history.capture import capture, capture_without_native, readings
from turnkeep.history.projection import (
    Entry,
    Form,
    Projected,
    RuntimeEntry,
    body_chunks,
    body_text,
    project_turn,
    withhold,
)
from turnkeep.history.turn import Turn
from turnkeep.history.wire_cache import WireCache
from turnkeep.rollout.body_hash import BodyHash
from turnkeep.wire.json import loads
from turnkeep.wire.sha import sha256_hex

FORMAT = "turnkeep-call"
VERSION = 2

type Ref = tuple[Form, int | str]
"""How an entry was projected, and the number of its turn or the digest of its text."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request's body as references: one per history entry, the digest of the tail, SHA-256 and length of the body."""

    entries: tuple[Ref, ...]
    tail: str
    sha256: str
    length: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at sending that did not give a usable response: why, the HTTP status, the digest of what came back."""

    error: str
    status: int | None = None
    body: str | None = None


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One policy call: its request, the attempts that failed, the response's digest, the turn it made or its failure.

    `response` is None while the call is in flight, and for ever where the process died or no response came.
    """

    number: int
    request: RequestRecord
    attempts: tuple[Attempt, ...] = ()
    response: str | None = None
    turn: int | None = None
    failure: Mapping[str, Any] | None = field(default=None)
    body: tuple[str, ...] = ()
    """The digests of the blobs that hold the response, the stored body's first; none: the response is a blob itself."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Texts of the request that are kept here and not as blobs, by digest."""
    base: tuple[int, int] | None = field(default=None, compare=False)
    """An earlier call and how many of its request's entries are the first of this one's: they are not written again."""

    @property
    def in_flight(self) -> bool:
        """Sent, and nothing came back: the process died, or the call is going on."""
        return self.response is None and self.failure is None


class Reply(NamedTuple):
    """What one try at sending brought: an error in words (None: a 2xx response, whole), HTTP status, bytes, cookies."""

    error: str | None = None
    status: int | None = None
    body: bytes | None = None
    cookies: Mapping[str, str | None] = MappingProxyType({})
    """Set by the server, by name; None takes one away."""
    retry: bool = False
    """Whether trying again may help."""
    wait: float | None = None
    """Seconds that the server asked to wait."""


class Referred(NamedTuple):
    """A request as references, and the texts that these need kept, by digest."""

    entries: tuple[Ref, ...]
    tail: str
    texts: dict[str, bytes]


class Prepared(NamedTuple):
    """A request ready to be sent: its projected entries, and the JSON text that follows the input."""

    entries: tuple[Projected, ...]
    tail: bytes

    def chunks(self, cache: WireCache | None = None) -> Iterator[bytes]:
        """The request's body, in chunks."""
        return body_chunks(self.entries, self.tail, cache)

    def record(
        self,
        number_of: Callable[[Turn], int | None],
        cache: WireCache | None = None,
        hashed: BodyHash | None = None,
    ) -> tuple[RequestRecord, dict[str, bytes]]:
        """The request as a record, and the pieces that the record needs kept, by digest.

        `hashed` knows the requests before, so that only what is new is hashed.
        """
        found = (hashed or BodyHash()).add(self.entries, self.tail, cache)
        refs = self.refer(number_of, found.texts)
        return RequestRecord(refs.entries, refs.tail, found.body, found.length), refs.texts

    def refer(self, number_of: Callable[[Turn], int | None], digests: Sequence[str | None] = ()) -> Referred:
        """The request as references: no turn of the rollout is written out. `digests` are those known of the texts."""
        texts: dict[str, bytes] = {}

        def keep(text: bytes, digest: str | None = None) -> str:
            digest = digest or sha256_hex(text)
            texts[digest] = text
            return digest

        def refer(entry: Projected, digest: str | None) -> Ref:
            number = None if entry.turn is None else number_of(entry.turn)
            return entry.form, keep(entry.text, digest) if number is None else number

        refs = tuple(map(refer, self.entries, digests or itertools.repeat(None)))
        return Referred(refs, keep(self.tail), texts)


def rebuild_request(record: RequestRecord, turn: Callable[[int, Form], bytes], piece: Callable[[str], bytes]) -> bytes:
    """The body that was sent, byte for byte, from the texts of turns and pieces.

    Raises CorruptRecord where the references give another.
    """
    texts = (piece(ref) if isinstance(ref, str) else turn(ref, form) for form, ref in record.entries)
    body = body_text(texts, piece(record.tail))
    if len(body) != record.length or sha256_hex(body) != record.sha256:
        raise CorruptRecord("the request cannot be rebuilt: its digest differs", field="request")
    return body


def captured(call: CallRecord, body: bytes, kept: Turn) -> Turn:
    """The turn that a call's response makes: `kept`, or what it should have been. Raises as `capture` does."""
    make = capture if call.failure is None else capture_without_native
    turn = make(body, kept.scope)
    return next((reading for reading in readings(turn) if reading.digest == kept.digest), turn)


def turn_text(turn: Turn, form: Form) -> bytes:
    """A turn as it stood in a request."""
    projected = project_turn(turn, native=form != "portable")
    return (withhold(projected) if form == "withheld" else projected).text


def tail_members(tail: bytes) -> dict[str, Any]:
    """The members of a request other than its input, of the text that follows that."""
    members: dict[str, Any] = loads(b"{" + tail.removeprefix(b",") + b"}")
    return members


def history_of(record: RequestRecord, turn: Callable[[int], Turn], piece: Callable[[str], bytes]) -> Iterator[Entry]:
    """The history that a recorded request was projected from, as far as a request shows it."""
    instructions = tail_members(piece(record.tail)).get("instructions")
    if instructions:
        yield {"role": "system", "content": instructions}
    for form, ref in record.entries:
        if isinstance(ref, int):
            yield turn(ref)
        else:
            items = loads(b"[" + piece(ref) + b"]")
            public = form in ("portable", "runtime")
            yield from (_public(item, form) for item in items) if public else items


def _public(item: dict[str, Any], form: Form) -> Entry:
    """The assistant dictionary behind a projected item that had no turn."""
    if item.get("type") == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        calls = [{"id": item["call_id"], "type": "function", "function": function}]
        item = {"role": "assistant", "content": None, "tool_calls": calls}
    return RuntimeEntry(item) if form == "runtime" else item


def shared_base(entries: Sequence[Ref], calls: Iterable[CallRecord]) -> tuple[int, int] | None:
    """The call of `calls` whose request begins most like `entries`, and how many entries they share."""
    bases = [(shared_entries(entries, call.request.entries), call.number) for call in calls]
    shared, number = max(bases, default=(0, 0))
    return (number, shared) if shared else None


def shared_entries(entries: Iterable[Ref], others: Iterable[Ref]) -> int:
    """How many first entries two requests have in common; none behind the first that differs is looked at."""
    pairs = zip(entries, others, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def write_call(call: CallRecord) -> bytes:
    """The call's document."""
    request = call.request
    shared = 0 if call.base is None else call.base[1]
    return write_document(
        FORMAT,
        VERSION,
        {
            "number": call.number,
            "request": {
                "base": None if call.base is None else list(call.base),
                "entries": [list(ref) for ref in request.entries[shared:]],
                "tail": request.tail,
                "sha256": request.sha256,
                "length": request.length,
            },
            "texts": dict(call.texts),
            "attempts": [{"error": a.error, "status": a.status, "body": a.body} for a in call.attempts],
            "response": call.response,
            "body": list(call.body),
            "turn": call.turn,
            "failure": call.failure,
        },
    )


def read_call(document: bytes, calls: Sequence[CallRecord] = ()) -> CallRecord:
    """The call of a document; `calls` are those before it. Raises ArchiveError, UnsupportedVersion."""
    value = read_document(document, FORMAT, 1, VERSION)
    with expecting(FORMAT):
        request = value["request"]
        base = tuple(request["base"]) if request.get("base") is not None else None
        begun = calls[base[0]].request.entries[: base[1]] if base else ()
        return CallRecord(
            number=value["number"],
            request=RequestRecord(
                (*begun, *((form, ref) for form, ref in request["entries"])),
                request["tail"],
                request["sha256"],
                request["length"],
            ),
            attempts=tuple(Attempt(a["error"], a["status"], a["body"]) for a in value["attempts"]),
            response=value["response"],
            turn=value["turn"],
            failure=value["failure"],
            body=tuple(value.get("body", ())),
            texts=value.get("texts", {}),
            base=base,
        )


def read_references(document: bytes) -> Iterator[str]:
    """The digests of the blobs that a call's document names; its texts may be among them, though they are none."""
    value = read_document(document, FORMAT, 1, VERSION)
    with expecting(FORMAT):
        yield from (ref for _, ref in value["request"]["entries"] if isinstance(ref, str))
        yield value["request"]["tail"]
        yield from (attempt["body"] for attempt in value["attempts"] if attempt["body"] is not None)
        if value["response"] is not None:
            yield from value.get("body") or (value["response"],)
