import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_tools import USER, Bench, Heard, Said, responses, scripted

from turnkeep.errors import PreparationFailure, TransportFailure
from turnkeep.history.projection import Entry, RuntimeEntry
from turnkeep.rollout.policy import PolicyClient
from turnkeep.rollout.verify import verify_rollout

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("user"), st.text(max_size=8)),
        st.tuples(st.just("made up"), st.integers(0, 3)),
        st.tuples(st.just("edit"), st.text(max_size=4)),
        st.tuples(st.just("forget"), st.integers(1, 3)),
        st.tuples(st.sampled_from(["again", "fail", "malformed", "example"]), st.just(0)),
    ),
    max_size=7,
)
"""What an agent does between its calls; each step but `malformed` ends in one."""


@pytest.fixture(scope="module")
def heard() -> Iterator[Heard]:
    """A server whose answers all differ; it refuses requests that ask to fail."""

    def answer(body: bytes, number: int) -> Said:
        if json.loads(body).get("user") == "fail":
            return Said(400, f"refused {number}".encode())
        training = {"prompt_token_ids": [number], "generation_token_ids": [7], "generation_log_probs": [-0.5]}
        return Said(200, responses(f"answer {number}", **(training if number % 3 else {})))

    with scripted(answer) as server:
        yield server


def make_agent(steps: list[tuple[str, Any]], run: int) -> Callable[[PolicyClient], Any]:
    """An agent that does the steps, with made-up ids of its own run, and gives what came of each."""

    def made_up(number: int) -> list[Entry]:
        call_id = f"prefill_{run:04x}{number:04x}"
        calls = [{"id": call_id, "function": {"name": "look", "arguments": "{}"}}]
        entry = RuntimeEntry({"role": "assistant", "content": None, "tool_calls": calls})
        return [entry, {"role": "tool", "tool_call_id": call_id, "content": "seen"}]

    async def agent(policy: PolicyClient) -> list[Any]:
        history: list[Entry] = [USER]
        results: list[Any] = []
        counter = itertools.count()
        for what, value in [*steps, ("user", "the last")]:
            if what == "user":
                history.append({"role": "user", "content": value})
            elif what == "made up":
                history += made_up(value)
            elif what == "forget":
                del history[1 : 1 + value]
            elif what == "example":
                history.append({"role": "assistant", "content": "example"})
            key = f"prefill_{run:04x}{0xF000 + next(counter):04x}"
            try:
                sent = [*history, {"role": "nobody"}] if what == "malformed" else history
                turn = await policy.call(sent, {"cache_key": key, "user": "fail" if what == "fail" else "x"})
            except (TransportFailure, PreparationFailure) as error:
                results.append((type(error).__name__, str(error), getattr(error, "body", None)))
            else:
                results.append(turn.digest)
                history.append(turn.edit(0, text=value) if what == "edit" else turn)
        return results

    return agent


@settings(max_examples=25)
@given(steps=STEPS)
def test_any_run_can_be_run_again(heard: Heard, steps: list[tuple[str, Any]]) -> None:
    """Whatever an agent did, run again with other made-up ids it gets the same and sends nothing (10.1, 10.2, 10.6)."""
    with tempfile.TemporaryDirectory(prefix="turnkeep-") as folder:
        bench = Bench(Path(folder) / "a.db", heard.url)
        before = len(heard.bodies)
        first = bench.run(make_agent(steps, 1), retries=0)
        sent, documents = heard.bodies[before:], bench.documents()
        assert len(sent) == sum(what != "malformed" for what, _ in steps) + 1
        with bench.view() as view:
            assert [view.request(number) for number in range(len(sent))] == sent
            assert list(verify_rollout(view)) == []
        for run in (2, 3):
            assert bench.run(make_agent(steps, run), rerun=True, retries=0) == first
        assert len(heard.bodies) == before + len(sent)
        assert bench.documents() == documents
        with bench.view() as view:
            assert (view.used, view.difference, view.gradable) == (len(sent), None, True)


@settings(max_examples=15)
@given(steps=STEPS, extra=STEPS)
def test_any_run_can_go_on(heard: Heard, steps: list[tuple[str, Any]], extra: list[tuple[str, Any]]) -> None:
    """Run again and further, an agent sends what is new, whose made-up ids are those recorded (10.1, 10.4)."""
    with tempfile.TemporaryDirectory(prefix="turnkeep-") as folder:
        bench = Bench(Path(folder) / "a.db", heard.url)
        longer = [*steps, ("user", "the last"), *extra]
        first = bench.run(make_agent(steps, 1), retries=0)
        before = len(heard.bodies)
        went = bench.run(make_agent(longer, 2), rerun=True, retries=0)
        assert went[: len(first)] == first
        assert len(heard.bodies) - before == sum(what != "malformed" for what, _ in extra) + 1
        with bench.view() as view:
            count = len(view.calls)
            bodies = [view.request(number) for number in range(count)]
            assert bodies[-(len(heard.bodies) - before) :] == heard.bodies[before:]
            assert list(verify_rollout(view)) == []
        assert bench.run(make_agent(longer, 3), rerun=True, retries=0) == went
