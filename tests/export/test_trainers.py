"""Rollouts of the embedded policy as Gym rows, read the way trainers read them."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gym_samples import SCOPE, export, ids, import_rows, message, row
from trainer_reader import RuleBroken, read_nemo_rl, read_trl

from turnkeep import PolicyClient, Rollout, RolloutView, Turn, capture, open_store
from turnkeep.export.gym_jsonl import export_gym
from turnkeep.serve.respond import Options
from turnkeep.serve.script import make_script
from turnkeep.serve.server import running_policy
from turnkeep.store.base import Store
from turnkeep.wire.json import loads, same

SCRIPT = make_script(
    [
        [{"reasoning": "Which city?"}, {"call": "weather", "arguments": {"city": "Oslo"}}],
        [{"text": ["It is ", "cold."]}],
        [{"text": "Bring a coat."}],
        [{"text": "And gloves."}],
    ]
)
PARAMS = {"tools": [{"type": "function", "name": "weather", "parameters": {}}], "temperature": 0.5}
START: list[Any] = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Oslo?"}]


async def talk(url: str, rollout: Rollout, history: list[Any], turns: int) -> list[Any]:
    """The history after so many turns, each of them answered."""
    async with PolicyClient(url, rollout) as policy:
        for _ in range(turns):
            turn = await policy.call(history, PARAMS)
            called = next(iter(turn.tool_calls), None)
            said = {"role": "user", "content": "Go on."}
            history += [turn, {"role": "tool", "tool_call_id": called.id, "content": "-3"} if called else said]
    return history


def fill(store: Store, url: str) -> None:
    """A rollout in one go, one that was cut in two processes, and one that begins with restored turns."""
    for name, parts in (("whole", (3,)), ("resumed", (2, 1))):
        history = [*START]
        for turns in parts:
            with Rollout.open(store, name, scope=SCOPE) as rollout:
                restored = [rollout.turn(number) for number in range(rollout.turn_count)]
                replaced = iter(restored)
                history = [next(replaced) if isinstance(entry, Turn) else entry for entry in history]
                history = asyncio.run(talk(url, rollout, history, turns))
    with Rollout.open(store, "restored", scope=SCOPE) as rollout:
        asyncio.run(talk(url, rollout, history, 1))
        rollout.set_origin({"reward": 0.5, "request": {"responses_create_params": {"input": []}, "task_id": "t"}})


@pytest.fixture(scope="module", params=["nested", "envelope"])
def store(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Such rollouts, with routes as nested lists or as envelopes."""
    path = tmp_path_factory.mktemp("trainers") / "a.db"
    with running_policy(script=SCRIPT, options=Options(experts=request.param)) as url, open_store(path) as store:
        fill(store, url)
        yield store


def read(store: Store, rollout: str) -> tuple[dict[str, Any], list[str]]:
    """The row of a rollout, and the rules of what it does not say."""
    (line,), (written,) = export(store, rollout)
    assert written.error is None
    return loads(line), [remark.rule for remark in written.remarks]


def carriers(view: RolloutView) -> list[dict[str, Any]]:
    """The items with token ids of a rollout's turns."""
    natives = [turn.parts[-1].native for turn in view.turns]
    return [native.to_json() for native in natives if native is not None]


@pytest.mark.parametrize("name", ["whole", "resumed"])
def test_a_whole_rollout_passes_both_trainers(store: Store, name: str) -> None:
    """A rollout in one row is contiguous, and the trainers get the ids, log probs and routes that were kept."""
    value, remarks = read(store, name)
    kept = carriers(RolloutView(store, name))
    messages = read_nemo_rl(value, router_replay=True)
    assert (remarks, [each.role for each in messages]) == ([], ["user", "assistant"] * 3)
    assert [each.token_ids for each in messages[1::2]] == [item["generation_token_ids"] for item in kept]
    assert [each.log_probs for each in messages[1::2]] == [item["generation_log_probs"] for item in kept]
    sample = read_trl(value)
    assert sum(sample.mask) == sum(len(item["generation_token_ids"]) for item in kept)
    last = kept[-1]
    assert sample.prompt_ids + sample.completion_ids == last["prompt_token_ids"] + last["generation_token_ids"]


def test_routes_of_a_call_follow_those_of_the_call_before(store: Store) -> None:
    """The routes that a trainer puts together are those of the last call, which saw every token."""
    messages = read_nemo_rl(read(store, "whole")[0], router_replay=True)
    last = read_nemo_rl({"response": {"output": carriers(RolloutView(store, "whole"))[-1:]}}, router_replay=True)
    together, alone = (np.concatenate([each.routes for each in log]) for log in (messages, last))
    assert np.array_equal(together, alone)


def test_restored_turns_are_prompt_and_are_not_trained_on_again(store: Store) -> None:
    """Turns of another rollout stand in the input with their ids; only what was generated here is trained on."""
    value, remarks = read(store, "restored")
    restored = [item for item in value["responses_create_params"]["input"] if item.get("generation_token_ids")]
    assert [same(one, other) for one, other in zip(restored, carriers(RolloutView(store, "resumed")), strict=True)]
    (kept,) = carriers(RolloutView(store, "restored"))
    messages = read_nemo_rl(value, router_replay=True)
    assert (remarks, [each.token_ids for each in messages]) == (
        [],
        [kept["prompt_token_ids"], kept["generation_token_ids"]],
    )
    assert read_trl(value).mask == [1] * len(kept["generation_token_ids"])


def test_a_row_has_the_request_the_items_and_what_the_origin_tells(store: Store) -> None:
    """Input and parameters are the first request, the output all items in order, the rest from the origin."""
    value, _ = read(store, "whole")
    view = RolloutView(store, "whole")
    assert same(value["responses_create_params"], loads(view.request(0)))
    assert value["responses_create_params"]["instructions"] == "Be short."
    output = value["response"]["output"]
    natives = [part.native for turn in view.turns for part in turn.parts]
    assert [
        item for item in output if item.get("type") != "function_call_output" and item.get("role") != "user"
    ] == natives
    kinds = [item.get("type") or item["role"] for item in output]
    assert kinds == ["reasoning", "function_call", "function_call_output", "message", "user", "message"]
    last = loads(view.response(2) or b"")
    assert {name: value["response"][name] for name in last if name not in ("output", "usage")} == {
        name: member for name, member in last.items() if name not in ("output", "usage")
    }
    totals = [turn.usage["total_tokens"] for turn in view.turns if turn.usage is not None]
    assert value["response"]["usage"]["total_tokens"] == sum(totals)
    other, _ = read(store, "restored")
    assert (other["reward"], other["task_id"]) == (0.5, "t")
    assert list(other)[:2] == ["responses_create_params", "response"]


def test_a_collected_row_can_be_imported_and_comes_back(store: Store, tmp_path: Path) -> None:
    """What was exported imports into the same turns' items, and exports to the same bytes (contract 9.1)."""
    with open_store(tmp_path / "b.db") as other:
        (line,), _ = export(store, "whole")
        (result,) = import_rows(other, tmp_path / "f.jsonl", line, scope=SCOPE)
        assert (result.error, result.turns) == (None, 3)
        assert export(other)[0] == [line]
        pairs = zip(RolloutView(other, "f/1").turns, RolloutView(store, "whole").turns, strict=True)
        assert all(one.parts == two.parts and one.scope == two.scope for one, two in pairs)


def _items(value: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in value["response"]["output"] if item.get("generation_token_ids")]


def _set(number: int, **members: Any) -> Callable[[dict[str, Any]], None]:
    return lambda value: _items(value)[number].update(members)


def _cut_routes(value: dict[str, Any]) -> None:
    item = _items(value)[1]
    item["routed_experts"] = item["routed_experts"][len(item["prompt_token_ids"]) :]


def _forget(value: dict[str, Any]) -> None:
    for item in _items(value):
        item["generation_token_ids"] = []


def _other_prompt(value: dict[str, Any]) -> None:
    _items(value)[2]["prompt_token_ids"][0] += 1


FAULTS: dict[str, Callable[[dict[str, Any]], None]] = {
    "contiguous": _other_prompt,
    "lengths": lambda value: _items(value)[1]["generation_log_probs"].pop(),
    "nan": lambda value: _items(value)[0]["generation_log_probs"].__setitem__(0, float("nan")),
    "nothing_trainable": _forget,
    "routes_rows": _cut_routes,
    "routes_missing": _set(1, routed_experts=None),
    "routes_rank": _set(2, routed_experts=[[1], [2]]),
    "reward_components": lambda value: value.update(reward=1.0, reward_components={"a": 0.5}),
}


@pytest.mark.parametrize("rule", FAULTS)
def test_a_planted_fault_is_refused_by_its_rule(tmp_path: Path, rule: str) -> None:
    """Each rule of the trainers is broken by the row that it is about, and by no other."""
    items = [message(**ids(9, 3)), message(**ids(14, 4)), message(**ids(20, 2))]
    value = row(*items)
    read_nemo_rl(value, router_replay=True)
    FAULTS[rule](value)
    with pytest.raises(RuleBroken) as caught:
        read_nemo_rl(value, router_replay=True)
    assert caught.value.rule == rule


def test_a_turn_in_another_context_is_told(tmp_path: Path) -> None:
    """A turn whose request lacks turns before it is written, told, and found not contiguous by the trainer."""
    script = make_script([[{"text": "One."}], [{"text": "Two."}]])
    with running_policy(script=script) as url, open_store(tmp_path / "a.db") as store:
        with Rollout.open(store, "r", scope=SCOPE) as rollout:
            asyncio.run(talk(url, rollout, [*START], 1))
            asyncio.run(talk(url, rollout, [{"role": "user", "content": "Bergen?"}], 1))
        value, remarks = read(store, "r")
        assert remarks == ["not_one_conversation"]
        with pytest.raises(RuleBroken, match="contiguous"):
            read_nemo_rl(value)
        assert {"role": "user", "content": "Bergen?"} in value["response"]["output"]


def test_turns_without_requests_or_natives_are_told(tmp_path: Path) -> None:
    """Turns that no policy call made, and parts without native items, are written as they can be and told."""
    with open_store(tmp_path / "a.db") as store:
        turn = capture({"id": "r", "model": "m", "output": [message("a"), message("b", **ids())]}, SCOPE)
        with Rollout.open(store, "r", scope=SCOPE) as rollout:
            rollout.add_turn(turn.edit(0, text="edited"))
        value, remarks = read(store, "r")
        assert remarks == ["no_request", "no_native_item"]
        output = value["response"]["output"]
        assert output[0]["content"] == [{"type": "output_text", "text": "edited", "annotations": []}]
        assert same(output[1], message("b", **ids()))
        assert value["responses_create_params"] == {"input": []}


def test_a_damaged_rollout_is_left_out_and_named(tmp_path: Path) -> None:
    """A rollout that cannot be read is left out whole, named, and the others are written (contract 9.3)."""
    path = tmp_path / "a.db"
    with open_store(path) as store:
        rows = row(message("one")), row(message(**ids(90, 50))), row(message("three"))
        import_rows(store, tmp_path / "f.jsonl", *rows)
        with closing(sqlite3.connect(path)) as db:
            longest = "SELECT digest FROM blobs ORDER BY length(data) DESC LIMIT 1"
            db.execute(f"UPDATE blobs SET data = zeroblob(length(data)) WHERE digest = ({longest})")
            db.commit()
        out = BytesIO()
        written = [*export_gym(store, store.rollouts(), out)]
        assert [None if each.error is None else each.error.rollout for each in written] == [None, "f/2", None]
        left = [loads(line) for line in out.getvalue().splitlines()]
        assert all(same(one, other) for one, other in zip(left, (rows[0], rows[2]), strict=True))
