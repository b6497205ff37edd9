"""rollout/body_hash.py: the digest of a request's body, hashed on from the request before."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from turnkeep import project
from turnkeep.history.projection import Entry
from turnkeep.history.wire_cache import WireCache
from turnkeep.rollout.body_hash import BodyHash
from turnkeep.testing import strategies
from turnkeep.wire.sha import sha256_hex


@given(
    st.lists(strategies.entries(), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans()), min_size=1, max_size=6),
    st.dictionaries(st.sampled_from(["model", "tools"]), strategies.json_values(), max_size=2),
)
def test_a_digest_is_that_of_the_body(
    entries: list[Entry], cuts: list[tuple[int, int, bool]], params: dict[str, Any]
) -> None:
    """However requests follow each other, grown, cut, moved or withheld, digest and length are those of the body."""
    hashed, cache = BodyHash(), WireCache()
    for start, end, withheld in cuts:
        request = project(entries[start:end], strategies.SCOPE)
        request = request.withheld() if withheld else request
        body = request.body(params)
        found = hashed.add(request.entries, request.tail(params), cache)
        assert (found.body, found.length) == (sha256_hex(body), len(body))
        assert found.texts == tuple(sha256_hex(entry.text) if entry.turn is None else None for entry in request.entries)


@given(strategies.captured_turns(), strategies.captured_turns())
def test_only_what_is_new_is_written(one: Any, other: Any) -> None:
    """A request that goes on from the one before asks for the text of no entry that was in that."""
    asked: list[Any] = []

    class Watched(WireCache):
        def text(self, turn: Any, form: str, make: Any) -> bytes:
            asked.append(turn)
            return super().text(turn, form, make)

    hashed = BodyHash()
    for history in ([one], [one, {"role": "user", "content": "and?"}, other]):
        request = project(history, strategies.SCOPE)
        hashed.add(request.entries, request.tail(), Watched())
    written = [entry.turn for entry in request.entries if entry.form == "native" and not entry.is_empty]
    assert list(map(id, asked)) == list(map(id, written))
