import asyncio
import itertools
import json
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rollout_tools import USER, Bench, Heard, Said, responses, scripted, serving

from turnkeep.errors import BudgetExhausted, ConfigurationError, MalformedItem, TransportFailure, UnsupportedClientCall
from turnkeep.history.projection import Entry, RuntimeEntry
from turnkeep.history.turn import Turn
from turnkeep.rollout.policy import PolicyClient
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.rerun import MadeUpIds
from turnkeep.rollout.verify import verify_rollout
from turnkeep.store.sqlite import SqliteStore
from turnkeep.wire.item import Item


def counted(body: bytes, number: int) -> Said:
    """A different answer to each request."""
    return Said(
        200,
        responses(f"answer {number}", prompt_token_ids=[number], generation_token_ids=[1], generation_log_probs=[-0.5]),
    )


def user(text: str) -> Entry:
    return {"role": "user", "content": text}


def fresh() -> str:
    """An id that the runtime makes up anew in each run."""
    return f"prefill_{secrets.token_hex(4)}"


def prefill(call_id: str) -> list[Entry]:
    """A call that the runtime made up, and its result."""
    function = {"name": "look", "arguments": "{}"}
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }
    return [RuntimeEntry(call), {"role": "tool", "tool_call_id": call_id, "content": "seen"}]


async def talk(policy: PolicyClient, words: Sequence[str], ids: Callable[[], str] = fresh) -> list[str]:
    """A conversation that opens with a made-up call, one policy call a word; gives the turns' digests."""
    history: list[Entry] = [*prefill(ids()), *prefill(ids())]
    digests = []
    for word in words:
        history.append(user(word))
        turn = await policy.call(history, {"cache_key": ids(), "temperature": 1.0})
        digests.append(turn.digest)
        history.append(turn)
    return digests


def talking(*words: str) -> Callable[[PolicyClient], Any]:
    return lambda policy: talk(policy, words)


def test_a_rerun_gets_recorded_answers_and_sends_nothing(tmp_path: Path) -> None:
    """An agent started again from its beginning gets its turns back: nothing is sent, nothing charged (10.1, 10.6)."""
    with serving(tmp_path) as bench:
        before = bench.run(talking("a", "b", "c"))
        documents, sent = bench.documents(), len(bench.log())
        for _ in range(2):
            assert bench.run(talking("a", "b", "c"), rerun=True) == before
        assert (len(bench.log()), bench.documents()) == (sent, documents)
        with bench.view() as view:
            assert (view.used, len(view.calls), view.difference) == (3, 3, None)


def test_a_new_rollout_may_be_opened_for_a_rerun(tmp_path: Path) -> None:
    """For a rollout that is new, a re-run changes nothing, so an agent may always ask for one (contract 10.1)."""
    with serving(tmp_path) as bench:
        bench.run(talking("a", "b"), rerun=True)
        assert len(bench.log()) == 2
        with bench.view() as view:
            assert (view.used, view.difference) == (2, None)


def test_without_a_rerun_equal_requests_are_sent(tmp_path: Path) -> None:
    """A rollout opened again without a re-run is live from the start."""
    with serving(tmp_path) as bench:
        for _ in range(2):
            bench.call()
        assert len(bench.log()) == 2


def test_a_rerun_goes_on_where_the_record_ends(tmp_path: Path) -> None:
    """Beyond what is recorded the rollout is live, with recorded ids, and no difference is reported (10.1, 10.4)."""
    with scripted(counted) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        first = bench.run(talking("a", "b"))
        both = bench.run(talking("a", "b", "c", "d"), rerun=True)
        assert both[:2] == first
        assert len(heard.bodies) == 4
        last = [json.loads(body) for body in heard.bodies]
        assert last[3]["input"][: len(last[1]["input"])] == last[1]["input"]
        with bench.view() as view:
            assert (view.used, view.turn_count, view.difference) == (4, 4, None)
            assert [view.request(number) for number in range(4)] == heard.bodies
        assert bench.run(talking("a", "b", "c", "d", "e"), rerun=True)[:4] == both
        assert len(heard.bodies) == 5
        with bench.view() as view:
            assert (view.difference, list(verify_rollout(view))) == (None, [])


def test_concurrent_calls_may_come_in_another_order(tmp_path: Path) -> None:
    """Requests are matched with any recorded one not yet used, so concurrent ones may change places (10.2)."""

    async def ask(policy: PolicyClient, words: str) -> dict[str, str]:
        turns = await asyncio.gather(*[policy.call([user(word)]) for word in words])
        return {word: turn.content for word, turn in zip(words, turns, strict=True)}

    with scripted(counted) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        first = bench.run(lambda policy: ask(policy, "abcdefgh"))
        assert bench.run(lambda policy: ask(policy, "hcagbdef"), rerun=True) == first
        assert len(heard.bodies) == 8


def test_equal_requests_come_in_recorded_order(tmp_path: Path) -> None:
    """Several equal requests get their answers in recorded order; one more than recorded is live (10.2)."""

    async def ask(policy: PolicyClient, times: int) -> list[str]:
        return [(await policy.call([USER])).content for _ in range(times)]

    with scripted(counted) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        first = bench.run(lambda policy: ask(policy, 3))
        assert len(set(first)) == 3
        assert bench.run(lambda policy: ask(policy, 4), rerun=True) == [*first, "answer 3"]


def interrupted(bench: Bench, heard: Heard, agent: Callable[[PolicyClient], Any], at: int) -> None:
    """Run until the server has received request `at`, then end the agent as a kill would, with that call in flight."""

    async def main(policy: PolicyClient) -> None:
        task = asyncio.create_task(agent(policy))
        while len(heard.bodies) <= at:
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    bench.run(main)


def test_a_call_in_flight_is_sent_again_under_its_first_charge(tmp_path: Path) -> None:
    """A call that was in flight is sent again, byte for byte the recorded request, and charged no more (10.3)."""

    def slow(body: bytes, number: int) -> Said:
        return Said(200, responses(str(number)), wait=0.2 if number == 1 else 0.0)

    with scripted(slow) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        interrupted(bench, heard, talking("a", "b", "c"), 1)
        with bench.view() as view:
            assert [call.in_flight for call in view.calls] == [False, True]
        turns = bench.run(talking("a", "b", "c"), rerun=True, budget=3)
        assert heard.bodies[2] == heard.bodies[1]
        assert (len(turns), len(heard.bodies)) == (3, 4)
        with bench.view() as view:
            assert (view.used, view.difference, view.gradable) == (3, None, True)
            assert [view.request(number) for number in range(3)] == [heard.bodies[index] for index in (0, 2, 3)]
            assert list(verify_rollout(view)) == []


def test_a_response_without_its_turn_makes_the_turn(tmp_path: Path) -> None:
    """A process that died between response and turn: the re-run makes the turn of the kept response (10.1)."""

    class Dying(Rollout):
        def add_turn(self, *args: Any, **kwargs: Any) -> Turn:
            raise KeyboardInterrupt

    async def die(url: str, path: Path) -> None:
        with SqliteStore(path) as store, Dying.open(store, "r") as rollout:
            async with PolicyClient(url, rollout) as policy:
                await policy.call([USER])

    with scripted(counted) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(die(heard.url, bench.path))
        with bench.view() as view:
            assert (view.turn_count, view.calls[0].in_flight) == (0, False)
        assert bench.call(rerun=True, scope=None).content == "answer 0"
        assert len(heard.bodies) == 1
        with bench.view() as view:
            assert (view.turn_count, view.used, view.calls[0].turn, list(verify_rollout(view))) == (1, 1, 0, [])


def history_of(ids: Sequence[str]) -> list[Entry]:
    return [*(entry for call_id in ids for entry in prefill(call_id)), USER]


A, B, C, D = (f"prefill_{letter * 8}" for letter in "abcd")


@pytest.mark.parametrize(
    ("recorded", "now", "same"),
    [
        ([A, B], [C, D], True),
        ([A, B], [B, A], True),
        ([A, A], [C, C], True),
        ([A, B, A], [C, D, C], True),
        ([A, B], [C, C], False),
        ([A, A], [C, D], False),
        ([A, B, A], [C, D, D], False),
        ([A, B, A], [C, C, C], False),
    ],
)
def test_ids_are_renamed_one_to_one(tmp_path: Path, recorded: list[str], now: list[str], same: bool) -> None:
    """A request is equal up to a one-to-one renaming of made-up ids: none merged, split or swapped (10.1)."""
    with scripted(counted) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        bench.call(history_of(recorded))
        turn = bench.call(history_of(now), rerun=True)
        assert (turn.content == "answer 0", len(heard.bodies)) == (same, 1 if same else 2)


def test_the_renaming_is_one_for_the_whole_rerun(tmp_path: Path) -> None:
    """Ids that an earlier request tied together cannot be swapped in a later one: that one does not match (10.1)."""

    async def ask(policy: PolicyClient, *histories: list[str]) -> list[str]:
        return [(await policy.call(history_of(ids))).content for ids in histories]

    with scripted(counted) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        bench.run(lambda policy: ask(policy, [A, B], [A, B, A]))
        assert bench.run(lambda policy: ask(policy, [C, D], [C, D, C]), rerun=True) == ["answer 0", "answer 1"]
        assert bench.run(lambda policy: ask(policy, [C, D], [D, C, D]), rerun=True) == ["answer 0", "answer 2"]
        with bench.view() as view:
            assert view.difference is not None
            assert (view.difference["call"], view.difference["path"]) == (1, "input[0].call_id")
            assert (view.difference["recorded"], view.difference["now"]) == (A, B)


def test_only_made_up_ids_are_renamed(tmp_path: Path) -> None:
    """An id that the runtime did not make up, or a member that is none of its own, must be equal as it is (10.1)."""
    with scripted(counted) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        bench.call([{"role": "tool", "tool_call_id": "call_1", "content": "x"}], {"cache_key": "k1", "user": "u"})
        other = {"role": "tool", "tool_call_id": "call_2", "content": "x"}
        bench.call([other], {"cache_key": "k1", "user": "u"}, rerun=True)
        bench.call([{**other, "tool_call_id": "call_1"}], {"cache_key": "k1", "user": "v"}, rerun=True)
        assert len(heard.bodies) == 3
        bench.call([{**other, "tool_call_id": "call_1"}], {"cache_key": "k2", "user": "u"}, rerun=True)
        assert len(heard.bodies) == 3


def test_after_a_difference_requests_carry_recorded_ids(tmp_path: Path) -> None:
    """From the first request that matches nothing the rollout is live, and sends the recorded ids (10.4)."""
    with scripted(counted) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        bench.run(talking("a", "b", "c"))
        turns = bench.run(talking("a", "B", "c"), rerun=True)
        recorded, live = json.loads(heard.bodies[2])["input"], json.loads(heard.bodies[4])["input"]
        assert len(heard.bodies) == 5
        assert live[:6] == recorded[:6]
        with bench.view() as view:
            assert view.difference == {"call": 1, "path": "input[6].content", "recorded": "b", "now": "B"}
            assert (view.used, view.turn_count) == (5, 5)
            assert [view.turn(number).digest for number in (0, 3, 4)] == turns
            assert list(verify_rollout(view)) == []


@pytest.mark.parametrize(
    ("params", "path", "recorded", "now"),
    [
        ({"temperature": 0.5}, "temperature", 1.0, 0.5),
        ({"temperature": 1}, "temperature", 1.0, 1),
        ({"temperature": 1.0, "tools": []}, "tools", None, []),
        ({}, "temperature", 1.0, None),
    ],
)
def test_the_difference_names_path_and_values(
    tmp_path: Path, params: dict[str, Any], path: str, recorded: Any, now: Any
) -> None:
    """A difference in the parameters is reported with call, path and both values (contract 10.4)."""
    with scripted(counted) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        bench.call(params={"temperature": 1.0})
        bench.call(params=params, rerun=True)
    with bench.view() as view:
        assert view.difference == {"call": 0, "path": path, "recorded": recorded, "now": now}


def test_the_difference_is_with_the_nearest_request(tmp_path: Path) -> None:
    """The recorded request that is reported is the one that shares the most with what was asked (contract 10.4)."""

    async def ask(policy: PolicyClient, *texts: str) -> None:
        for text in texts:
            await policy.call([user(word) for word in text])

    with scripted(counted) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        bench.run(lambda policy: ask(policy, "xyz", "abc", "abd"))
        bench.run(lambda policy: ask(policy, "abe"), rerun=True)
    with bench.view() as view:
        assert view.difference == {"call": 1, "path": "input[2].content", "recorded": "c", "now": "e"}


@pytest.mark.parametrize("bad", [Said(400, b"no"), Said(200, b"no")], ids=["refused", "no JSON"])
def test_a_failure_at_the_end_is_sent_anew(tmp_path: Path, bad: Said) -> None:
    """A transport failure that ended the run is not failed again but sent again under its charge, its bytes kept (as a
    call in flight is, contract 10.3)."""
    with scripted(lambda body, number: bad if number == 1 else counted(body, number)) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        with pytest.raises(TransportFailure):
            bench.run(talking("a", "b"))
        turns = bench.run(talking("a", "b"), rerun=True)
        assert (len(turns), len(heard.bodies)) == (2, 3)
        again, failed = (json.loads(body)["input"] for body in heard.bodies[:0:-1])
        assert again == failed
        with bench.view() as view:
            assert (view.used, view.gradable, view.difference) == (2, True, None)
            assert view.attempt_bodies(1) == [b"no"]
            assert list(verify_rollout(view)) == []


def test_a_failure_that_a_later_try_made_up_for_is_not_met_again(tmp_path: Path) -> None:
    """After a failed run and a second that got the answer, a third gets it too, and sends nothing (contract 10.1)."""
    with scripted(lambda body, number: Said(400, b"no") if number == 1 else counted(body, number)) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        with pytest.raises(TransportFailure):
            bench.run(talking("a", "b"))
        turns = bench.run(talking("a", "b"), rerun=True)
        assert bench.run(talking("a", "b"), rerun=True) == turns
        assert len(heard.bodies) == 3
        with bench.view() as view:
            assert (view.used, view.gradable, view.difference) == (2, True, None)


def test_a_failure_that_the_agent_went_on_from_is_met_again_before_its_equal(tmp_path: Path) -> None:
    """A request that failed, another, and the first once more: a re-run meets them in that order (contract 10.2)."""

    async def ask(policy: PolicyClient) -> list[str]:
        said = []
        for word in ("x", "y", "x"):
            try:
                said.append((await policy.call([user(word)])).content)
            except TransportFailure as error:
                said.append(error.message)
        return said

    with scripted(lambda body, number: Said(400, b"no") if number == 0 else counted(body, number)) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        said = bench.run(ask)
        assert bench.run(ask, rerun=True) == said
        assert len(heard.bodies) == 3


def test_earlier_failures_come_again(tmp_path: Path) -> None:
    """A failure that the agent went on from comes again in a re-run, with its bytes, and nothing is sent (10.1)."""
    answers = {
        1: Said(422, b'{"error": "too long"}'),
        2: Said(200, b"<html>"),
        3: Said(200, responses(prompt_token_ids=[1])),
        4: Said(200, json.dumps({"output": [{"type": "computer_call", "call_id": "c", "action": {}}]}).encode()),
    }

    async def stubborn(policy: PolicyClient) -> list[Any]:
        results: list[Any] = []
        for number in range(6):
            try:
                results.append((await policy.call([user(str(number))])).content)
            except (TransportFailure, MalformedItem, UnsupportedClientCall) as error:
                results.append((error.to_json(), getattr(error, "body", None), getattr(error, "status", None)))
                assert not policy.rollout.gradable
            else:
                assert policy.rollout.gradable
        return results

    with scripted(lambda body, number: answers.get(number) or counted(body, number)) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        first = bench.run(stubborn)
        documents = bench.documents()
        kinds = [result if isinstance(result, str) else result[0]["type"] for result in first]
        failed = ["TransportFailure", "TransportFailure", "MalformedItem", "UnsupportedClientCall"]
        assert kinds == ["answer 0", *failed, "answer 5"]
        assert bench.run(stubborn, rerun=True) == first
        assert len(heard.bodies) == 6
        assert bench.documents() == documents
        with bench.view() as view:
            assert (view.used, view.gradable) == (6, True)


def test_a_rerun_needs_no_budget(tmp_path: Path) -> None:
    """Recorded answers cost nothing, so a spent budget holds a re-run up only where it goes further (7.5, 10.1)."""
    with serving(tmp_path) as bench:
        first = bench.run(talking("a", "b"), budget=2)
        assert bench.run(talking("a", "b"), rerun=True) == first
        with pytest.raises(BudgetExhausted):
            bench.run(talking("a", "b", "c"), rerun=True)
        assert len(bench.log()) == 2


def test_a_rerun_leaves_the_evidence_as_it_was(tmp_path: Path) -> None:
    """What a re-run reads it does not write: rows and blobs recorded before stay byte for byte (10.6)."""
    with scripted(counted) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        bench.run(talking("a", "b", "c"))
        documents = bench.documents()
        bench.run(talking("a", "b", "X", "y"), rerun=True)
        assert len(heard.bodies) == 5
        now = bench.documents()
        assert [row for row in documents if row not in now] == []
        with bench.view() as view:
            assert [view.request(number) for number in range(5)] == heard.bodies


def test_edited_turns_are_found_again(tmp_path: Path) -> None:
    """A history with edited turns, examples and withheld fields matches its record just the same (10.1)."""

    async def editing(policy: PolicyClient) -> list[str]:
        history: list[Entry] = [{"role": "assistant", "content": "example"}, USER]
        contents = []
        for number in range(4):
            turn = await policy.call(history)
            contents.append(turn.content)
            history += [turn.edit(0, text=f"edited {number}") if number % 2 else turn, USER]
        return contents

    with scripted(counted) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        first = bench.run(editing)
        with bench.view() as view:
            gaps = view.gaps
        assert bench.run(editing, rerun=True) == first
        assert len(heard.bodies) == 4
        with bench.view() as view:
            assert view.gaps == gaps


def test_patterns_may_have_groups(tmp_path: Path) -> None:
    """A pattern of made-up ids with a group in it names the whole id, and ids are renamed back all the same (10.4)."""
    made_up = MadeUpIds(patterns=(r"prefill_([0-9a-f]{8})",))
    with scripted(counted) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        bench.run(lambda policy: talk(policy, "a", lambda: A), made_up=made_up)
        bench.run(lambda policy: talk(policy, "ab", lambda: B), made_up=made_up, rerun=True)
        assert len(heard.bodies) == 2
        assert (A.encode() in heard.bodies[1], B.encode() in heard.bodies[1]) == (True, False)


def test_what_is_no_pattern_is_refused() -> None:
    """A pattern that is no regular expression is a ConfigurationError."""
    with pytest.raises(ConfigurationError):
        MadeUpIds(patterns=("(",)).regex()


def test_a_call_asked_for_after_all_is_no_difference(tmp_path: Path) -> None:
    """Of calls made at once an unrecorded one may come first: what looked like a difference is withdrawn, and the one
    behind it is told (contract 10.2, 10.4)."""

    async def ask(policy: PolicyClient, *texts: str) -> None:
        for text in texts:
            await policy.call([user(word) for word in text])

    seen: list[Any] = []

    async def look(policy: PolicyClient, *texts: str) -> None:
        for text in texts:
            await ask(policy, text)
            seen.append(policy.rollout.difference and policy.rollout.difference["now"])

    with scripted(counted) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        bench.run(lambda policy: ask(policy, "ab", "xy"))
        bench.run(lambda policy: look(policy, "ac", "xz", "ab", "xy"), rerun=True)
        assert seen == ["c", "c", "z", None]
        assert len(heard.bodies) == 4
    with bench.view() as view:
        assert (view.used, view.difference) == (4, None)


@pytest.mark.parametrize("words", ["abcd", "axyz"])
def test_each_call_after_the_record_writes_out_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """A re-run that is beyond its record, or went another way, writes out the newest turn in each call and no other."""
    written = 0
    write = Item.wire_chunks

    def watched(item: Item) -> Any:
        nonlocal written
        written += 1
        return write(item)

    monkeypatch.setattr(Item, "wire_chunks", watched)
    counts = []
    with scripted(counted) as heard:
        for more in ("", "1", "12", "123"):
            bench = Bench(tmp_path / f"{more}.db", heard.url)
            bench.run(talking("a", "b"))
            written = 0
            bench.run(talking(*words, *more), rerun=True)
            counts.append(written)
    assert [after - before for before, after in itertools.pairwise(counts)] == [1, 1, 1]
