import asyncio
import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rollout_tools import MADE_UP, SCOPE, USER, Bench, Said, responses, scripted, serving

from turnkeep.errors import (
    BudgetExhausted,
    ConfigurationError,
    MalformedItem,
    MissingTurn,
    PreparationFailure,
    TransportFailure,
    TurnkeepError,
    UnsupportedClientCall,
)
from turnkeep.history.projection import Entry
from turnkeep.history.turn import Turn
from turnkeep.rollout.outcome import outcome
from turnkeep.rollout.policy import PolicyClient
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.verify import verify_rollout
from turnkeep.rollout.view import RolloutView
from turnkeep.store.sqlite import SqliteStore

MALFORMED: list[tuple[str, Any]] = [
    ("tool result without a call id", {"role": "tool", "content": "3"}),
    ("tool result with an empty call id", {"role": "tool", "content": "3", "tool_call_id": ""}),
    ("tool result whose call id is a number", {"role": "tool", "content": "3", "tool_call_id": 3}),
    ("tool result of nothing", {"role": "tool", "content": None, "tool_call_id": "c"}),
    ("call without id", {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}),
    (
        "call whose arguments are an object",
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {}}}]},
    ),
    ("call without a function", {"role": "assistant", "tool_calls": [{"id": "c"}]}),
    ("calls that are no list", {"role": "assistant", "tool_calls": {"id": "c"}}),
    ("item of a call without id", {"type": "function_call", "name": "f", "arguments": "{}"}),
    ("item of a call with an object", {"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}),
    ("item of a result without a call id", {"type": "function_call_output", "output": "3"}),
    ("reasoning that is a list", {"role": "assistant", "reasoning_content": ["hm"], "content": "a"}),
    ("unknown role", {"role": "narrator", "content": "a"}),
    ("role that is no text", {"role": ["user"], "content": "a"}),
    ("no role", {"content": "a"}),
    ("user content that is a number", {"role": "user", "content": 3}),
    ("system content that is a number", {"role": "system", "content": 3}),
    ("NaN", {"role": "user", "content": [{"type": "input_text", "text": "a", "score": float("nan")}]}),
    ("infinity", {"role": "developer", "content": [float("-inf")]}),
    ("bytes", {"role": "user", "content": [b"a"]}),
    ("a set", {"role": "user", "content": [{1}]}),
    ("a key that is a number", {"role": "user", "content": [{1: "a"}]}),
    ("an integer of too many digits", {"role": "user", "content": [10**5000]}),
    ("text", "hello"),
    ("nothing", None),
]


def nested(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = [value]
    return value


def circle() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One policy for the tests that send nothing."""
    with serving(tmp_path_factory.mktemp("shared")) as bench:
        yield bench


@pytest.mark.parametrize(("name", "entry"), MALFORMED, ids=[name for name, _ in MALFORMED])
def test_a_malformed_history_charges_and_sends_nothing(tmp_path: Path, shared: Bench, name: str, entry: Any) -> None:
    """Each malformation is a PreparationFailure with the entry's index, kept, before charge and sending (7.2)."""
    bench = Bench(tmp_path / "a.db", shared.url)
    sent = len(bench.log())
    with pytest.raises(PreparationFailure) as caught:
        bench.call([USER, USER, entry])
    assert (caught.value.entry, caught.value.rollout) == (2, "r")
    with bench.view() as view:
        assert (view.used, view.calls, view.gradable) == (0, (), False)
        assert [(failure["type"], failure["entry"]) for failure in view.failures] == [("PreparationFailure", 2)]
        assert view.failure == {**caught.value.to_json()}
    assert len(bench.log()) == sent


@pytest.mark.parametrize("depth", [300, 900, 1200, 4000, 20_000])
def test_nesting_is_kept_or_refused(tmp_path: Path, shared: Bench, depth: int) -> None:
    """A deeply nested value is either sent as it is or a PreparationFailure, and nothing else (contract 7.2)."""
    bench = Bench(tmp_path / "a.db", shared.url)
    with suppress(PreparationFailure, TransportFailure):  # the server may refuse what was sent
        bench.call([USER, {"role": "user", "content": [nested(depth)]}])
    with bench.view() as view:
        assert list(verify_rollout(view)) == []


@pytest.mark.parametrize("params", [{"tools": circle()}, {"metadata": {"a": float("inf")}}, {"user": b"x"}])
def test_a_malformed_parameter_charges_and_sends_nothing(tmp_path: Path, shared: Bench, params: Any) -> None:
    """A request member that JSON cannot hold is a PreparationFailure that names it, nothing charged (contract 7.2)."""
    bench = Bench(tmp_path / "a.db", shared.url)
    with pytest.raises(PreparationFailure) as caught:
        bench.call(params=params)
    assert caught.value.field == next(iter(params))
    with bench.view() as view:
        assert (view.used, view.gradable) == (0, False)


@pytest.mark.parametrize("name", ["input", "instructions"])
def test_the_history_cannot_be_given_twice(tmp_path: Path, shared: Bench, name: str) -> None:
    """`input` and `instructions` come from the history alone: as parameters they are a ConfigurationError."""
    with pytest.raises(ConfigurationError) as caught:
        Bench(tmp_path / "a.db", shared.url).call(params={name: "x"})
    assert caught.value.field == name


class Watching(Rollout):
    """A rollout that notes, at each step of a call, what another reader of the file sees just after it."""

    steps: list[tuple[str, dict[str, Any]]]

    def _commit(self, *args: Any, **kwargs: Any) -> None:
        super()._commit(*args, **kwargs)
        with SqliteStore(self._store.path) as store:  # type: ignore[attr-defined]
            view = RolloutView(store, self.id)
            self.steps.append(("commit", seen(view)))


def seen(view: RolloutView) -> dict[str, Any]:
    call = view.calls[-1] if view.calls else None
    response = None if call is None else view.response(call.number)
    request = None if call is None else view.request(call.number)
    return {"used": view.used, "request": request, "response": response is not None, "turns": view.turn_count}


def test_the_order_of_a_call(tmp_path: Path) -> None:
    """Charge and request are durable before sending, the response before the turn, seen from outside (contract 7.1)."""

    async def main(url: str) -> list[tuple[str, dict[str, Any]]]:
        Watching.steps = []
        with SqliteStore(tmp_path / "a.db") as store, Watching.open(store, "r", scope=SCOPE) as rollout:
            async with PolicyClient(url, rollout) as policy:
                await policy.call([USER], {"temperature": 0.5})
        return Watching.steps

    with serving(tmp_path) as bench:
        begun, answered, made = [what for _, what in asyncio.run(main(bench.url))]
        assert hashlib.sha256(begun["request"]).hexdigest() == bench.log()[0]["sha256"]
    assert (begun["used"], begun["response"], begun["turns"]) == (1, False, 0)
    assert (answered["used"], answered["response"], answered["turns"]) == (1, True, 0)
    assert (made["used"], made["response"], made["turns"]) == (1, True, 1)


def test_what_arrives_had_been_charged_and_recorded(tmp_path: Path) -> None:
    """While the server holds a request, a reader finds it charged, kept and without a response (contract 7.1)."""

    async def agent(policy: PolicyClient) -> None:
        call = asyncio.create_task(policy.call([USER]))
        while not heard.bodies:
            await asyncio.sleep(0.005)
        with SqliteStore(tmp_path / "a.db") as store:
            view = RolloutView(store, "r")
            assert (view.used, view.calls[0].in_flight, view.turn_count) == (1, True, 0)
            assert view.request(0) == heard.bodies[0]
        await call

    with scripted([Said(200, responses(), wait=0.1)]) as heard:
        Bench(tmp_path / "a.db", heard.url).run(agent)


def test_a_wrong_response_is_kept_before_it_is_judged(tmp_path: Path) -> None:
    """The order holds for a response that is refused: its bytes are evidence, byte for byte (contract 7.1, 1.5)."""
    body = responses(prompt_token_ids=[1], generation_token_ids=[2, -3], generation_log_probs=[-0.5, -0.25])
    with scripted([Said(200, body)]) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        with pytest.raises(MalformedItem) as caught:
            bench.call()
    assert caught.value.place == {"item": 0, "field": "generation_token_ids", "index": 1}
    assert (caught.value.rollout, caught.value.call) == ("r", 0)
    with bench.view() as view:
        assert (view.used, view.response(0), view.turn_count, view.gradable) == (1, body, 0, False)
        assert view.failure is not None
        assert view.failure["type"] == "MalformedItem"


@pytest.mark.parametrize("fault", ["inf-log-prob", "missing-log-probs", "bad-json", "truncated", "client-call", "500"])
def test_a_failed_attempt_is_ungradable_until_one_succeeds(tmp_path: Path, fault: str) -> None:
    """After a failure of 7.3 the rollout is ungradable, whatever the agent made of it; a success clears it (7.3)."""

    async def agent(policy: PolicyClient) -> tuple[bool, bool, bool]:
        with pytest.raises(TurnkeepError):
            await policy.call([USER])
        ungraded = policy.rollout.gradable
        with SqliteStore(policy.rollout._store.path) as store:  # type: ignore[attr-defined]
            kept = RolloutView(store, "r").gradable
        await policy.call([USER])
        return ungraded, kept, policy.rollout.gradable

    with serving(tmp_path, faults=[f"{fault}@0"]) as bench:
        assert bench.run(agent, retries=0) == (False, False, True)
        with bench.view() as view:
            assert (view.gradable, view.failure, view.used, view.turn_count) == (True, None, 2, 1)
            assert view.calls[0].failure is not None
            assert list(verify_rollout(view)) == []


def test_a_preparation_failure_is_cleared_by_a_success(tmp_path: Path) -> None:
    """A malformed history that the agent recovers from does not stay ungradable; one at the end does (contract 7.3)."""
    wrong: list[Entry] = [{"role": "nobody"}]

    async def agent(policy: PolicyClient, last: list[Entry]) -> None:
        with pytest.raises(PreparationFailure):
            await policy.call(wrong)
        await policy.call([USER])
        if last:
            with pytest.raises(PreparationFailure):
                await policy.call(last)

    with serving(tmp_path) as bench:
        bench.run(lambda policy: agent(policy, []))
        with bench.view() as view:
            assert (view.gradable, outcome(view).graded) == (True, True)
        bench.run(lambda policy: agent(policy, wrong))
        with bench.view() as view:
            assert (view.gradable, outcome(view).graded, len(view.failures)) == (False, False, 3)


@pytest.mark.parametrize(
    "kind", ["custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "computer_call"]
)
def test_client_calls_are_refused_after_the_response_is_kept(tmp_path: Path, kind: str) -> None:
    """Each of the five client-executed calls raises, with its response as evidence and no turn for the agent (7.4)."""
    item = {"type": kind, "id": "x_1", "call_id": "c_1", "status": "completed", "name": "n", "input": "i", "action": {}}
    with serving(tmp_path, [[{"text": "Now."}, {"item": item}]]) as bench:
        with pytest.raises(UnsupportedClientCall) as caught:
            bench.call()
        assert (caught.value.item, caught.value.call, caught.value.rollout) == (1, 0, "r")
        with bench.view() as view:
            body = view.response(0)
            assert body is not None
            assert json.loads(body)["output"][1]["type"] == kind
            assert (view.turn_count, view.used, view.gradable) == (0, 1, False)
            assert list(verify_rollout(view)) == []


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_the_budget_holds_among_concurrent_calls(tmp_path: Path, budget: int) -> None:
    """Of 50 calls at once exactly `max_policy_calls` go out; the others are BudgetExhausted, and none is sent (7.5)."""

    async def agent(policy: PolicyClient) -> list[Turn | BaseException]:
        calls = [policy.call([USER, {"role": "user", "content": str(number)}]) for number in range(50)]
        return await asyncio.gather(*calls, return_exceptions=True)

    with serving(tmp_path) as bench:
        results = bench.run(agent, budget=budget)
        assert sum(isinstance(result, Turn) for result in results) == budget
        assert sum(isinstance(result, BudgetExhausted) for result in results) == 50 - budget
        assert len(bench.log()) == budget
        with bench.view() as view:
            assert (view.used, len(view.calls), view.turn_count, view.gradable) == (budget, budget, budget, True)
            assert sorted(call.turn for call in view.calls if call.turn is not None) == list(range(budget))
        with pytest.raises(BudgetExhausted):
            bench.call()
        bench.call(budget=budget + 1)


def test_the_budget_holds_among_threads(tmp_path: Path) -> None:
    """Threads that share a rollout, each with a client and a loop of its own, cannot pass the budget either (7.5)."""

    def work(rollout: Rollout, url: str) -> bool:
        async def main() -> bool:
            async with PolicyClient(url, rollout, made_up=MADE_UP) as policy:
                try:
                    await policy.call([USER])
                except BudgetExhausted:
                    return False
                return True

        return asyncio.run(main())

    from concurrent.futures import ThreadPoolExecutor

    with (
        serving(tmp_path) as bench,
        SqliteStore(bench.path) as store,
        Rollout.open(store, "r", scope=SCOPE, max_policy_calls=3) as rollout,
    ):
        with ThreadPoolExecutor(6) as threads:
            went = list(threads.map(lambda _: work(rollout, bench.url), range(6)))
        assert (sum(went), len(bench.log()), rollout.used) == (3, 3, 3)


def test_calls_that_fail_are_charged_once(tmp_path: Path) -> None:
    """Retries of one call are one charge, and a call that fails for good is charged (contract 7.1, 7.5)."""
    with serving(tmp_path, faults=["500@0,1,2,3"]) as bench:
        with pytest.raises(TransportFailure):
            bench.call(retries=1, budget=2)
        bench.call(retries=2)
        with pytest.raises(BudgetExhausted):
            bench.call()
        with bench.view() as view:
            assert (view.used, [len(call.attempts) for call in view.calls]) == (2, [2, 2])


BAD_BODIES = [
    b"",
    b"<html>Bad gateway</html>",
    b'{"output": [',
    b"\xff\xfe\x00",
    b"null",
    b"[]",
    b'{"id": "resp_1"}',
    b'{"output": null}',
    b'{"output": {}}',
    b'{"output": [], "output": []}',
    b'{"output": [], "x": NaN}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: repr(body[:20]))
def test_a_body_that_is_no_responses_object_is_kept(tmp_path: Path, body: bytes) -> None:
    """A 2xx body that is no Responses object is a TransportFailure whose bytes are kept as they came (contract 7.6)."""
    with scripted([Said(200, body)]) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        with pytest.raises(TransportFailure) as caught:
            bench.call()
        assert len(heard.bodies) == 1
    assert (caught.value.body, caught.value.rollout, caught.value.call) == (body, "r", 0)
    with bench.view() as view:
        assert (view.response(0), view.used, view.gradable, view.turn_count) == (body, 1, False, 0)
        assert list(verify_rollout(view)) == []


@pytest.mark.parametrize("fault", ["bad-json", "truncated"])
def test_faults_of_the_embedded_policy_are_kept_as_they_came(tmp_path: Path, fault: str) -> None:
    """What the embedded policy spoils is evidence as it came over the wire (contract 7.6)."""
    with serving(tmp_path, faults=[f"{fault}@0"]) as bench:
        with pytest.raises(TransportFailure) as caught:
            bench.call()
        with bench.view() as view:
            assert view.response(0) == caught.value.body
            assert caught.value.body


def test_calls_and_turns_that_are_not_there_are_named(tmp_path: Path) -> None:
    """Asking for a call or turn that the rollout has not is an error that says how many there are."""
    with serving(tmp_path) as bench:
        turn = bench.call()
        with bench.view() as view:
            for number in (1, -1):
                for read in (view.request, view.response, view.attempt_bodies, view.history):
                    with pytest.raises(ConfigurationError, match="has 1 policy calls") as caught:
                        read(number)
                    assert (caught.value.rollout, caught.value.call) == ("r", number)
                for look in (view.turn, view.call_of_turn):
                    with pytest.raises(MissingTurn):
                        look(number)

        async def add(policy: PolicyClient) -> None:
            policy.rollout.add_turn(turn, call=5)

        with pytest.raises(ConfigurationError):
            bench.run(add)
