"""A whole rollout through the real servers: what the row holds is what the policy said."""

from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from rows import (
    COUNTER,
    COUNTING,
    WEATHER,
    codes,
    counter_row,
    kept,
    of_the_policy,
    python,
    read,
    result,
    said,
    weather_row,
)
from servers import MODEL, running_gym

from turnkeep import RolloutView, check_rollout
from turnkeep.export.gym_import import import_gym
from turnkeep.export.gym_jsonl import export_gym
from turnkeep.gym import answer, hop
from turnkeep.serve.respond import Options
from turnkeep.store.memory import MemoryStore
from turnkeep.wire.json import dumps, loads, same


@pytest.mark.parametrize("experts", ["nested", "envelope", "none"])
def test_a_row_holds_every_item_as_the_policy_sent_it(tmp_path: Path, experts: Any) -> None:
    """Items, ids, blocks and training fields, a string of routed experts too, are those of the responses (1.6)."""
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db")}, options=Options(experts=experts)) as gym:
        row = read(gym.run(weather_row()))
    with kept(tmp_path / "t.db", "3-0") as rollout:
        assert same(of_the_policy(row), said(rollout))
        assert row["reward"] == 1.0
        assert rollout.scope == f'nemo-gym/responses/v1:["{MODEL}", "gym-policy"]'
        assert row["turnkeep"] == {
            "rollout": "3-0",
            "gaps": [gap._asdict() for gap in rollout.gaps],
            "failure": None,
            "recorded_calls": 0,
            "policy_calls": 2,
            "difference": None,
        }


def test_outputs_and_tool_calls_stand_where_they_happened(tmp_path: Path) -> None:
    """Between the turns stand the tool's call by the agent's code and the output that the policy got."""
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db")}) as gym:
        row = read(gym.run(weather_row()))
    shapes = [(item["type"], item.get("name") or item.get("id")) for item in row["response"]["output"]]
    ids = [item.get("id") for item in row["response"]["output"]]
    assert shapes == [
        ("reasoning", ids[0]),
        ("message", ids[1]),
        ("function_call", "execute_python"),
        ("function_call", "get_weather"),
        ("function_call_output", None),
        ("function_call_output", None),
        ("message", ids[6]),
        ("function_call", "return_result"),
        ("message", "nooa_fallback"),
    ]
    answers = [item for item in row["response"]["output"] if item["type"] == "function_call_output"]
    assert answers[0]["output"] == '{"city":"Oslo","weather_description":"The weather in Oslo is cold."}'
    assert answers[1]["call_id"] == row["response"]["output"][2]["call_id"]
    assert row["response"]["output"][-1]["content"][0]["text"] == "It is cold."
    assert codes(row) == ["non_trainable_terminal_output"]


def test_a_row_is_imported_as_the_turns_that_the_policy_made(tmp_path: Path) -> None:
    """Its turns are the policy's, its gaps come with it, nothing false is found, and it exports as it was (5.2)."""
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db")}) as gym:
        text = gym.run(weather_row()).content
    path = tmp_path / "rows.jsonl"
    path.write_bytes(text)
    with kept(tmp_path / "t.db", "3-0") as rollout, MemoryStore() as store:
        (result,) = import_gym(path, store, scope=rollout.scope)
        assert (result.error, result.turns) == (None, rollout.turn_count)
        again = RolloutView(store, "rows/1")
        assert again.gaps == rollout.gaps
        natives = [[part.native for turn in each.turns for part in turn.parts] for each in (rollout, again)]
        assert natives[0] == natives[1]
        assert {found.rule for found in check_rollout(again)} == {found.rule for found in check_rollout(rollout)}
        out = BytesIO()
        (written,) = export_gym(store, ["rows/1"], out)
        assert (written.remarks, out.getvalue()) == ((), text + b"\n")


def test_the_prompt_of_a_turn_goes_on_from_the_turn_before(tmp_path: Path) -> None:
    """Each trainable item's prompt ids begin with the prompt and generation ids of the one before, as trainers ask."""
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db")}) as gym:
        row = read(gym.run(weather_row()))
    first, second = (item for item in row["response"]["output"] if item.get("generation_token_ids"))
    before = first["prompt_token_ids"] + first["generation_token_ids"]
    assert second["prompt_token_ids"][: len(before)] == before


def test_a_stateful_server_knows_its_session_through_seed_tools_and_verify(tmp_path: Path) -> None:
    """Gym's counter, which knows a rollout by its cookie alone, counts 3 + 1 + 2 and grades it with 1; one session."""
    with running_gym(COUNTING, agent={"store": str(tmp_path / "t.db")}, resources=COUNTER) as gym:
        answer = gym.run(counter_row())
        stats = gym.stats()
    row = read(answer)
    assert row["reward"] == 1.0
    assert (row["initial_count"], row["expected_count"]) == (3, 6)
    assert list(stats["by_session"].values()) == [4]
    names = {name.partition("___")[2] for name in answer.cookies}
    assert names == {COUNTER, MODEL, "nooa_agent"}


def test_what_a_row_held_is_still_there_exactly(tmp_path: Path) -> None:
    """Members that no model knows come back as they were, a float's bits and an integer's digits included (1.6)."""
    extra = {"task_id": "t-1", "odd": {"z": -0.0, "a": 2**70, "text": "\ud800"}}
    row = {**weather_row(), **extra}
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db")}) as gym:
        body = dumps(row)
        answer = httpx.post(f"{gym.agent}/run", content=body, headers={"content-type": "application/json"}, timeout=60)
    back = read(answer)
    assert same({name: back[name] for name in extra}, extra)
    with kept(tmp_path / "t.db", "3-0") as rollout:
        assert rollout.origin is not None
        assert same(rollout.origin["request"], row)


def test_a_policys_last_message_that_is_the_value_needs_no_other(tmp_path: Path) -> None:
    """Where the agent returns just what the policy said last, nothing is added and there is no gap."""
    agent = {
        "store": str(tmp_path / "t.db"),
        "nooa": {"agent_class": "echoing:Echo", "invocation_adapter": "echoing:ask"},
    }
    with running_gym([[{"text": ['{"word":', '"Hello"}']}]], agent=agent) as gym:
        row = read(gym.run(weather_row(responses_create_params={"input": "Say hello."})))
    assert [item["type"] for item in row["response"]["output"]] == ["message"]
    assert codes(row) == []


def test_a_rows_sampling_wins_over_the_servers_and_nooas(tmp_path: Path) -> None:
    """`max_output_tokens` of the row, `temperature` of the server's `sampling`: both stand in the request sent."""
    agent = {"store": str(tmp_path / "t.db"), "sampling": {"temperature": 0.25, "max_output_tokens": 7}}
    row = weather_row()
    row["responses_create_params"] = {**row["responses_create_params"], "max_output_tokens": 4000}
    with running_gym(WEATHER, agent=agent) as gym:
        read(gym.run(row))
    with kept(tmp_path / "t.db", "3-0") as rollout:
        sent = loads(rollout.request(0))
    assert (sent["temperature"], sent["max_output_tokens"]) == (0.25, 4000)


def test_arguments_that_break_the_schema_never_reach_the_server(tmp_path: Path) -> None:
    """The model is told what is wrong by the schema, the tool is not called, and the model may try again."""
    steps = [[python("print(await self.increment_counter(count='many'))")], *COUNTING]
    with running_gym(steps, agent={"store": str(tmp_path / "t.db")}, resources=COUNTER) as gym:
        row = read(gym.run(counter_row()))
    refused = [item for item in row["response"]["output"] if "Invalid arguments" in str(item.get("output"))]
    assert [item["output"] for item in refused] == [
        """{"error":"Invalid arguments for increment_counter: 'many' is not of type 'integer' at $.count"}"""
    ]
    assert row["reward"] == 1.0


def test_what_the_agent_does_with_a_tools_values_later_is_not_in_the_row(tmp_path: Path) -> None:
    """The row has a tool's arguments and output as they were, though the agent's code changes the objects (1.6)."""
    code = "asked = {'city': 'Oslo'}\nseen = await self.get_weather(**asked)\nseen.clear()\nseen['made'] = 'up'"
    with running_gym([[python(code)], [result("Cold.")]], agent={"store": str(tmp_path / "t.db")}) as gym:
        row = read(gym.run(weather_row()))
    call, output = row["response"]["output"][1:3]
    assert (call["name"], call["arguments"]) == ("get_weather", '{"city":"Oslo"}')
    assert output["output"] == '{"city":"Oslo","weather_description":"The weather in Oslo is cold."}'


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("float('nan')", "nan is no JSON number"),
        ("[{1}]", "JSON cannot hold a set"),
        ("object", "JSON cannot hold a type"),
    ],
)
def test_arguments_that_json_cannot_hold_are_told_to_the_model(tmp_path: Path, value: str, why: str) -> None:
    """They reach no server, and end neither the run nor the request."""
    steps = [[python(f"print(await self.increment_counter(count={value}))")], *COUNTING]
    with running_gym(steps, agent={"store": str(tmp_path / "t.db")}, resources=COUNTER) as gym:
        row = read(gym.run(counter_row()))
    assert row["reward"] == 1.0
    assert f"Invalid arguments for increment_counter: {why} at $.count" in row["response"]["output"][2]["output"]


def test_the_request_in_a_row_is_the_one_that_came(tmp_path: Path) -> None:
    """Turns restored into the input keep their training fields and what no model names, though a verifier's echo of
    the request has lost them (1.6)."""
    ids = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
    text = {"type": "output_text", "text": "Let me see.", "annotations": []}
    turn = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [text], "odd": 2**70}
    row = weather_row()
    asked = {"input": [*row["responses_create_params"]["input"], {**turn, **ids, "routed_experts": "nrlre1:x"}]}
    asked["input"].append({"role": "user", "content": "Well?"})
    row["responses_create_params"] = {**row["responses_create_params"], **asked}
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db")}) as gym:
        assert same(read(gym.run(row))["responses_create_params"], row["responses_create_params"])


@pytest.mark.parametrize("path", ["/run", "/v1/responses"])
def test_a_cookie_that_came_with_the_request_gives_way_to_the_servers_own(tmp_path: Path, path: str) -> None:
    """A client that brings the model server's cookie of an earlier run gets the new one: that is no conflict."""
    row = weather_row() if path == "/run" else weather_row()["responses_create_params"]
    name = f"PolicyModel___{MODEL}"
    with (
        running_gym(WEATHER, agent={"store": str(tmp_path / "t.db")}) as gym,
        httpx.Client(cookies={name: "of-an-earlier-run", "other": "kept"}, timeout=60) as client,
    ):
        answer = client.post(gym.agent + path, json=row)
    assert "error" not in read(answer) or read(answer)["error"] is None
    assert answer.cookies[name] != "of-an-earlier-run"
    assert answer.cookies["other"] == "kept"


def test_a_value_with_half_a_character_is_told_to_the_verifier(tmp_path: Path) -> None:
    """A lone surrogate in what the agent returned is escaped, as in all JSON here (1.6)."""
    nooa = {"agent_class": "echoing:Echo", "invocation_adapter": "echoing:half"}
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db"), "nooa": nooa}) as gym:
        row = read(gym.run(weather_row()))
    assert row["response"]["output"][-1]["content"][0]["text"] == r'{"half":"\ud83d"}'
    assert row.get("error") is None


def test_an_item_that_this_gym_refuses_is_kept_in_the_row(tmp_path: Path) -> None:
    """A hosted item is in the row whatever Gym's classes say; where they refuse it the verifier is not shown it."""
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "x"},
    }
    steps = [[{"item": search}, *WEATHER[0]], WEATHER[1]]
    with running_gym(steps, agent={"store": str(tmp_path / "t.db")}) as gym:
        row = read(gym.run(weather_row()))
    assert row["reward"] == 1.0
    assert same(row["response"]["output"][0], search)
    assert (hop.ITEM_WITHHELD in codes(row)) == hop.is_refused(search)


def test_reasoning_content_is_in_the_row_though_a_model_would_drop_it(tmp_path: Path) -> None:
    """The content of a reasoning item, which Gym 0.4.0's classes drop, is in the row."""
    steps = [[{"reasoning_content": ["one", "two"]}, *WEATHER[1]]]
    with running_gym(steps, agent={"store": str(tmp_path / "t.db")}) as gym:
        row = read(gym.run(weather_row()))
    assert [block["text"] for block in row["response"]["output"][0]["content"]] == ["one", "two"]


def test_what_gyms_own_model_server_loses_is_a_named_gap(tmp_path: Path) -> None:
    """Behind Gym's typed model server a gap names lost reasoning, and lost ids where they were to come, by trying."""
    steps = [[{"reasoning_content": "Think."}, *WEATHER[1]]]
    agent = {"store": str(tmp_path / "t.db")}
    with running_gym(steps, agent=agent, model="typed", options=Options(experts="envelope")) as gym:
        row = read(gym.run(weather_row()))
    assert (hop.REASONING_LOST in codes(row)) == hop.loses_reasoning()
    assert hop.IDS_LOST not in codes(row)
    with kept(tmp_path / "t.db", "3-0") as rollout:
        expected = hop.turn_gaps(rollout.turns, ids_expected=True)
        assert any(item.get("generation_token_ids") for item in said(rollout)) != hop.loses_ids()
    assert (hop.IDS_LOST in [gap.code for gap in expected]) == hop.loses_ids()


def test_v1_responses_runs_one_episode_without_seed_or_verify(tmp_path: Path) -> None:
    """The answer is a Responses object with the same items, and its rollout is kept under a name of its own."""
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db")}) as gym:
        asked = weather_row()["responses_create_params"]
        answer = read(httpx.post(f"{gym.agent}/v1/responses", json=asked, timeout=60))
    assert answer["status"] == "completed"
    with kept(tmp_path / "t.db", answer["id"].removeprefix("turnkeep-")) as rollout:
        assert same(of_the_policy({"response": answer}), said(rollout))


@pytest.mark.parametrize(
    ("params", "place"),
    [
        ({"input": "x", "metadata": [*range(20_000)]}, "metadata: "),
        ({"input": [{"role": "user", "content": [[*range(20_000)]]}]}, "input.0.content.0: "),
        (
            {
                "input": [
                    {"role": "user", "content": "x"},
                    {"type": "message", "role": "assistant", "content": [{"x": 1}]},
                ]
            },
            "input.1",
        ),
    ],
)
def test_a_refusal_names_the_place_and_does_not_recite_the_value(
    tmp_path: Path, params: dict[str, Any], place: str
) -> None:
    """Of what was given stand the keys and the beginning of the value in the refusal, and no names of Gym's classes."""
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db")}) as gym:
        answer = gym.run(weather_row(responses_create_params=params))
    told = answer.json()["error"]["message"]
    assert answer.status_code == 422
    assert told.startswith(f"responses_create_params.{place}")
    assert "NeMoGym" not in told.partition(": ")[0]
    assert len(told) < 500


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "no JSON"),
        (b"[]", "a run request is a JSON object"),
        (b'{"responses_create_params": {"input": "x", "temprature": 1}}', "temprature"),
        (b'{"responses_create_params": {"input": "x"}, "_ng_rollout_id": "../x"}', "_ng_rollout_id"),
    ],
)
def test_a_request_that_is_none_is_refused_in_words(tmp_path: Path, body: bytes, words: str) -> None:
    """A malformed request is a 422, or a failure row where only its id is at fault, that says what is wrong."""
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db")}) as gym:
        answer = httpx.post(f"{gym.agent}/run", content=body, timeout=60)
    told = answer.json()
    assert words in (told["error"]["message"] if answer.status_code == 422 else told["error"])


@pytest.mark.parametrize("odd", ["n/a", 5, [1], None, {"reasoning_tokens": "two"}])
def test_odd_details_of_a_usage_are_passed_over(odd: Any) -> None:
    """Details that are no object, or count nothing, leave the sum of what was counted."""
    counts = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 7}}
    usages = [{**counts, "output_tokens_details": {"reasoning_tokens": 7}}, {**counts, "output_tokens_details": odd}]
    assert answer._usage(usages) == {"input_tokens": 2, "output_tokens": 4, "total_tokens": 6, **details}
