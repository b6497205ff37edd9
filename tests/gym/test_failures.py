"""How a run that goes wrong ends: graded with a reason, or a failure row with its class, the evidence kept."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from rows import WEATHER, codes, kept, of_the_policy, python, read, result, said, weather_row
from servers import running_gym

from turnkeep.gym.failures import failure_of
from turnkeep.gym.resources import CookieConflict, merge_cookies
from turnkeep.rollout.record import Rollout
from turnkeep.store.open import open_store
from turnkeep.wire.json import same

WORD: list[Any] = [[{"text": '{"word": "Hello"}'}]]


def echo(tmp_path: Path, adapter: str, **keys: Any) -> dict[str, Any]:
    """The agent server's keys for a test's agent."""
    nooa = {"agent_class": "echoing:Echo", "invocation_adapter": f"echoing:{adapter}"}
    return {"store": str(tmp_path / "t.db"), "nooa": nooa, **keys}


def say(what: str) -> dict[str, Any]:
    """A row for that agent."""
    return weather_row(responses_create_params={"input": what})


def test_a_spent_budget_is_graded_with_its_reason(tmp_path: Path) -> None:
    """`max_policy_calls` spent: no further request goes out, the row is verified and says why it ended (7.5, 7.10)."""
    steps = [[python("print(1)")]]
    with running_gym(steps, agent={"store": str(tmp_path / "t.db"), "max_policy_calls": 3}) as gym:
        row = read(gym.run(weather_row()))
        asked = gym.stats()["requests"]
    assert asked == 3
    assert "_ng_failure_class" not in row
    assert row["nooa_termination_reason"] == "policy_budget_exceeded"
    assert "3 policy calls" in row["nooa_termination_error"]
    assert "policy_budget_exceeded" in codes(row)
    assert row["response"]["status"] == "failed"
    with kept(tmp_path / "t.db", "3-0") as rollout:
        assert same(of_the_policy(row), said(rollout))


def test_output_that_does_not_satisfy_the_schema_is_graded_with_its_reason(tmp_path: Path) -> None:
    """Text that is no such JSON, as often as NOOA asks: a graded row with the reason (6.3, 7.10)."""
    agent = echo(tmp_path, "ask", max_policy_calls=50)
    with running_gym([[{"text": "no JSON"}]], agent=agent) as gym:
        row = read(gym.run(say("x")))
    assert row["nooa_termination_reason"] == "invalid_policy_output"
    assert "invalid_policy_output" in codes(row)
    assert ("reward" in row, "_ng_failure_class" in row) == (True, False)


@pytest.mark.parametrize(
    ("fault", "failure_class", "adapter"),
    [
        ("503@*", "transient", "hide"),
        ("bad-json@*", "legitimate", "ask"),
        ("client-call@*", "legitimate", "hide"),
        ("inf-log-prob@*", "legitimate", "hide"),
    ],
)
def test_what_the_policys_failure_is_called(tmp_path: Path, fault: str, failure_class: str, adapter: str) -> None:
    """A failure row with reward 0 and its class, also where the agent made light of it; never verified (7.3)."""
    with running_gym(WORD, agent=echo(tmp_path, adapter), faults=(fault,)) as gym:
        row = read(gym.run(say("x")))
    assert (row["reward"], row["_ng_failure_class"]) == (0.0, failure_class)
    assert "_ng_failure_terminal" not in row
    assert failure_class in codes(row)
    assert row["response"]["status"] == "failed"
    assert row["error"] == row["response"]["error"]["message"]
    with kept(tmp_path / "t.db", "3-0") as rollout:
        assert not rollout.gradable
        assert rollout.used >= 1


def test_a_passing_failure_is_made_good_by_the_next_try(tmp_path: Path) -> None:
    """After a transient failure the same row, tried again, sends the failed call anew, under its charge."""
    with running_gym(WORD, agent=echo(tmp_path, "ask"), faults=("503@0,1,2,3",)) as gym:
        failed = read(gym.run(say("x")))
        row = read(gym.run(say("x")))
    assert failed["_ng_failure_class"] == "transient"
    assert row["response"]["output"][0]["content"][0]["text"] == '{"word": "Hello"}'
    assert (row["turnkeep"]["recorded_calls"], row["turnkeep"]["policy_calls"]) == (0, 1)
    assert row["turnkeep"]["difference"] is None


@pytest.mark.parametrize(
    ("what", "failure_class"), [("connection", "transient"), ("timeout", "transient"), ("other", "legitimate")]
)
def test_an_agents_own_error_keeps_what_it_did_before(tmp_path: Path, what: str, failure_class: str) -> None:
    """The row of an agent that raised has its class and the turns made before it."""
    with running_gym(WORD, agent=echo(tmp_path, "fall")) as gym:
        row = read(gym.run(say(what)))
    assert (row["reward"], row["_ng_failure_class"]) == (0.0, failure_class)
    assert [item["type"] for item in row["response"]["output"]] == ["message"]
    assert row["response"]["output"][0]["generation_token_ids"]


@pytest.mark.parametrize(
    ("what", "failure_class", "words"),
    [
        ("wordless", "legitimate", "Wordless: its message cannot be made: KeyError"),
        ("half", "legitimate", "ValueError: \\ud83d"),
        ("group", "transient", "ExceptionGroup: several (2 sub-exceptions)"),
        ("cancelled", "legitimate", "CancelledError: "),
    ],
)
def test_whatever_an_agent_raises_becomes_a_row(tmp_path: Path, what: str, failure_class: str, words: str) -> None:
    """An error without words, in a group, of half a pair, or the agent's own cancellation is a row with its turns."""
    with running_gym(WORD, agent=echo(tmp_path, "stumble")) as gym:
        row = read(gym.run(say(what)))
    assert (row["_ng_failure_class"], row["error"]) == (failure_class, words)
    assert [item["type"] for item in row["response"]["output"]] == ["message"]


def test_an_agent_that_answers_after_its_time_has_timed_out(tmp_path: Path) -> None:
    """A run that makes light of being stopped is past `run_timeout_secs` all the same."""
    with running_gym(WORD, agent=echo(tmp_path, "linger", run_timeout_secs=1.5)) as gym:
        row = read(gym.run(say("x")))
    assert (row["_ng_failure_class"], row["_ng_failure_terminal"]) == ("timeout_exceeded", True)


def test_a_failure_that_will_not_pass_is_an_answer(tmp_path: Path) -> None:
    """The same row after it is a new rollout, for which the policy is asked anew."""
    with running_gym(WORD * 2, agent=echo(tmp_path, "fall")) as gym:
        rows = [read(gym.run(say("other"))) for _ in range(2)]
        asked = gym.stats()["requests"]
    assert [row["turnkeep"]["rollout"] for row in rows] == ["3-0", "3-0.2"]
    assert asked == 2


def test_a_run_that_takes_too_long_is_never_tried_again(tmp_path: Path) -> None:
    """Past `run_timeout_secs` the run is stopped: a terminal failure, an incomplete response, its turns kept."""
    agent = echo(tmp_path, "ask_forever", run_timeout_secs=1.5, max_policy_calls=10_000)
    with running_gym(WORD, agent=agent) as gym:
        row = read(gym.run(say("x")))
    assert (row["_ng_failure_class"], row["_ng_failure_terminal"]) == ("timeout_exceeded", True)
    assert "run_timeout_secs=1.5" in row["error"]
    assert row["response"]["status"] == "incomplete"
    assert row["response"]["output"][0]["type"] == "message"
    with kept(tmp_path / "t.db", "3-0") as rollout:
        assert same(of_the_policy(row), said(rollout))


def test_a_rollout_that_another_writer_has_is_a_row_of_its_own(tmp_path: Path) -> None:
    """A busy rollout is a transient failure row that names it, with status 409; on /v1/responses it is a 409."""
    with (
        running_gym(WEATHER, agent={"store": str(tmp_path / "t.db")}) as gym,
        open_store(tmp_path / "t.db") as store,
        Rollout.open(store, "3-0"),
    ):
        row = read(gym.run(weather_row()))
    assert (row["_ng_failure_class"], row["reward"]) == ("transient", 0.0)
    assert row["turnkeep"]["failure"] == {"type": "RolloutBusy", "status": 409}
    assert "3-0" in row["error"]


def test_a_resources_server_that_refuses_the_seed_is_told(tmp_path: Path) -> None:
    """A row that the resources server cannot seed is a failure in its words, before any policy call."""
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db")}, resources="example_session_state_mgmt") as gym:
        row = read(gym.run(weather_row()))
        asked = gym.stats()["requests"]
    assert asked == 0
    assert row["_ng_failure_class"] == "legitimate"
    assert "/seed_session with 422" in row["error"]
    assert "initial_count" in row["error"]


BREAKING = "breaking"


class Breaking(BaseHTTPRequestHandler):
    """Answers the seed, and /verify where there is a verdict; hangs up on anything else."""

    verdict: bytes | None = None

    def do_POST(self) -> None:
        """Answer or hang up."""
        self.rfile.read(int(self.headers["content-length"]))
        answer = {"/seed_session": b"{}", "/verify": self.verdict}.get(self.path)
        if answer is not None:
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def breaking(verdict: bytes | None = None) -> Iterator[dict[str, Any]]:
    """A resources server that hangs up on tools; gives its part of Gym's configuration."""
    handler = type("Handler", (Breaking,), {"verdict": verdict})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield {BREAKING: {"resources_servers": {BREAKING: {"host": "127.0.0.1", "port": server.server_port}}}}
        finally:
            server.shutdown()
            thread.join()


def test_a_tool_that_cannot_be_reached_is_not_the_policys_failure(tmp_path: Path) -> None:
    """Where the resources server breaks off in a tool, the run is a transient failure, though the agent went on."""
    steps = [[python("print(await self.get_weather(city='Oslo'))")], [result("No idea.")]]
    reference = {"type": "resources_servers", "name": BREAKING}
    agent = {"store": str(tmp_path / "t.db"), "resources_server": reference}
    with breaking() as place, running_gym(steps, agent=agent, extra=place) as gym:
        row = read(gym.run(weather_row()))
        asked = gym.stats()["requests"]
    assert asked == 2
    assert (row["_ng_failure_class"], row["reward"]) == ("transient", 0.0)
    assert "/get_weather" in row["error"]
    assert row["response"]["output"][-1]["name"] == "return_result"


def test_a_verifier_that_breaks_off_leaves_the_turns_and_the_gap(tmp_path: Path) -> None:
    """Where /verify does not answer, the row is a transient failure with its gap, and has what the policy said."""
    reference = {"type": "resources_servers", "name": BREAKING}
    agent = {"store": str(tmp_path / "t.db"), "resources_server": reference}
    with breaking() as place, running_gym([[result("Cold.")]], agent=agent, extra=place) as gym:
        row = read(gym.run(weather_row()))
    assert (row["_ng_failure_class"], row["reward"]) == ("transient", 0.0)
    assert codes(row) == ["non_trainable_terminal_output", "transient"]
    assert row["response"]["output"][0]["name"] == "return_result"


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (b"{}", "without a reward that is a number: {}"),
        (b'{"reward": null}', "without a reward"),
        (b'{"reward": "1"}', "without a reward"),
        (b'{"reward": true}', "without a reward"),
        (b"[]", "without a reward"),
        (b"<html>", "no JSON"),
        (b'{"reward": NaN}', "no JSON that can be kept"),
        (b'{"reward": 1, "reward": 2}', "no JSON that can be kept"),
    ],
)
def test_a_verdict_without_a_reward_is_a_failure_row(tmp_path: Path, verdict: bytes, words: str) -> None:
    """What is no JSON object with a number as reward grades nothing, and is told with its address."""
    reference = {"type": "resources_servers", "name": BREAKING}
    agent = {"store": str(tmp_path / "t.db"), "resources_server": reference}
    with breaking(verdict) as place, running_gym([[result("Cold.")]], agent=agent, extra=place) as gym:
        row = read(gym.run(weather_row(reward=7.0)))
    assert (row["_ng_failure_class"], row["reward"]) == ("legitimate", 0.0)
    assert "/verify answered" in row["error"]
    assert words in row["error"]
    assert row["response"]["output"][0]["name"] == "return_result"


def test_a_value_that_cannot_be_written_is_a_failure_row(tmp_path: Path) -> None:
    """An agent that returns what no text can be made of has failed, and its turns are in the row."""
    with running_gym(WORD, agent=echo(tmp_path, "raw")) as gym:
        row = read(gym.run(say("x")))
    assert (row["reward"], row["_ng_failure_class"]) == (0.0, "legitimate")
    assert [item["type"] for item in row["response"]["output"]] == ["message"]


@pytest.mark.parametrize(
    ("error", "failure_class"),
    [
        (aiohttp.ServerDisconnectedError(), "transient"),
        (aiohttp.ClientOSError(104, "reset"), "transient"),
        (aiohttp.ConnectionTimeoutError(), "transient"),
        (aiohttp.ClientPayloadError("cut off"), "transient"),
        (aiohttp.InvalidURL("x"), "legitimate"),
        (httpx.ReadTimeout("late"), "transient"),
        (httpx.ReadError("reset"), "transient"),
        (httpx.UnsupportedProtocol("x"), "legitimate"),
    ],
)
def test_what_an_adapters_own_http_error_is_called(error: Exception, failure_class: str) -> None:
    """Connections, timeouts and cut-off bodies of the HTTP clients at hand may pass, and what they are a cause of."""
    assert failure_of(error, None).failure_class == failure_class
    above = RuntimeError("no answer")
    above.__cause__ = error
    assert failure_of(above, None).failure_class == failure_class


def test_one_cookie_with_two_values_is_an_error() -> None:
    """The cookies of both servers go out together; one name with two values cannot, and is named."""
    assert merge_cookies({}, {"a": "1", "b": "2"}, {"b": "2", "c": "3"}) == {"a": "1", "b": "2", "c": "3"}
    assert merge_cookies({"b": "0"}, {"b": "1"}, {"b": "0"}) == {"b": "1"}
    with pytest.raises(CookieConflict, match="different values: b"):
        merge_cookies({"b": "0"}, {"b": "1"}, {"b": "2"})


def test_v1_responses_says_its_failure_as_an_http_error(tmp_path: Path) -> None:
    """Without a row to put it into, a failed policy is a 502 that says what happened."""
    with running_gym(WORD, agent=echo(tmp_path, "ask"), faults=("503@*",)) as gym:
        answer = httpx.post(f"{gym.agent}/v1/responses", json={"input": "x"}, timeout=60)
    assert answer.status_code == 502
    assert "503" in answer.json()["error"]["message"]


def test_a_tool_that_no_method_can_be_made_of_is_named(tmp_path: Path) -> None:
    """A tool whose name hides something of the agent is a failure row that names the tool."""
    row = weather_row()
    tools = [{**row["responses_create_params"]["tools"][0], "name": "events"}]
    row["responses_create_params"] = {**row["responses_create_params"], "tools": tools}
    with running_gym(WEATHER, agent={"store": str(tmp_path / "t.db")}) as gym:
        failed = read(gym.run(row))
    assert failed["_ng_failure_class"] == "legitimate"
    assert "tool events" in failed["error"]
