import base64
import hashlib
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from turnkeep.errors import ConfigurationError
from turnkeep.serve import tokens
from turnkeep.serve.model import Policy
from turnkeep.serve.respond import Options
from turnkeep.serve.script import make_script
from turnkeep.serve.server import run, running_policy
from turnkeep.serve.weights import EXPERTS, LAYERS, TOP_K

SCRIPT = make_script(
    [
        [
            {"reasoning": ["First ", "think \ud83d."]},
            {"text": ["Block one, ", "block two."], "extra": {"phase": "commentary"}},
            {"call": "execute_ipython_cell", "arguments": '{"code" : "print(1)"}'},
        ],
        [{"reasoning_content": "So."}, {"text": '{"answer": 41}'}],
        [{"refusal": "I will not."}],
        [{"text": "Searched."}, {"item": {"type": "web_search_call", "id": "ws_1", "status": "completed"}}],
    ]
)
TRAINING = {"prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Serve the script above from seed 5."""
    with running_policy(policy=Policy(5), script=SCRIPT) as running:
        yield running


def post(base: str, body: Any = None, **options: Any) -> httpx.Response:
    """Post a request: bytes as they are, anything else as JSON."""
    given = {"input": "Hi"} if body is None else body
    content = given if isinstance(given, bytes) else json.dumps(given).encode()
    return httpx.post(f"{base}/v1/responses", content=content, timeout=30, **options)


def turns(count: int) -> list[dict[str, Any]]:
    """Give a history after so many policy turns."""
    return [
        {"role": "user", "content": "Hi"},
        *[{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}] * count,
    ]


def test_the_answer_is_a_complete_responses_object(url: str) -> None:
    """Each short form becomes an output item of its type, and the object has what clients of the API read."""
    response = post(url, {"input": "Hi", "model": "m", "tools": [{"type": "function", "name": "f"}]}).json()
    reasoning, message, call = response["output"]
    assert [block["text"] for block in reasoning["summary"]] == ["First ", "think \ud83d."]
    assert [block["text"] for block in message["content"]] == ["Block one, ", "block two."]
    assert message["phase"] == "commentary"
    assert (call["name"], call["arguments"]) == ("execute_ipython_cell", '{"code" : "print(1)"}')
    assert [item["id"].split("_")[0] for item in response["output"]] == ["rs", "msg", "fc"]
    assert call["call_id"].startswith("call_")
    assert (response["object"], response["status"], response["model"]) == ("response", "completed", "m")
    assert response["incomplete_details"] is None
    usage = response["usage"]
    assert usage["input_tokens"] == len(call["prompt_token_ids"])
    assert usage["output_tokens"] == len(call["generation_token_ids"])
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_the_training_fields_stand_on_the_last_item_and_spell_the_message(url: str) -> None:
    """The generation ids decode to reasoning, text and call in template form, and are not the canonical ones."""
    output = post(url).json()["output"]
    assert [TRAINING & set(item) for item in output] == [set(), set(), TRAINING]
    spelled = tokens.to_text(tokens.decode(output[-1]["generation_token_ids"]))
    assert spelled == (
        "<|think|>First \nthink \ud83d.<|/think|>Block one, block two."
        '<|call|>execute_ipython_cell<|arguments|>{"code" : "print(1)"}<eos>'
    )
    assert tokens.decode(output[-1]["prompt_token_ids"]) == b"<bos><|user|>Hi<eos><|assistant|>"


def test_log_probs_and_experts_are_true(url: str) -> None:
    """Scoring the received ids again, routed freely or by the received experts, gives the received log probs."""
    last = post(url).json()["output"][-1]
    ids, start = last["prompt_token_ids"] + last["generation_token_ids"], len(last["prompt_token_ids"])
    experts = np.array(last["routed_experts"])
    assert experts.shape == (len(ids), LAYERS, TOP_K)
    assert Policy(5).score(ids, start)[0].tolist() == last["generation_log_probs"]
    assert Policy(5).score(ids, start, experts=experts)[0].tolist() == last["generation_log_probs"]
    assert Policy(5).score(ids, start, experts=(experts + 1) % EXPERTS)[0].tolist() != last["generation_log_probs"]


def test_equal_requests_get_equal_bytes_also_from_another_server(url: str) -> None:
    """An answer follows from seed and prompt alone; another seed gives other numbers."""
    with (
        running_policy(policy=Policy(5), script=SCRIPT) as other,
        running_policy(policy=Policy(6), script=SCRIPT) as third,
    ):
        assert post(url).content == post(url).content == post(other).content != post(third).content


def test_every_kind_of_step_comes_out(url: str) -> None:
    """Content reasoning, JSON text, refusals and hosted items; the ids are on the last item, whatever it is."""
    reasoning, message = post(url, {"input": turns(1), "text": {"format": {"type": "json_schema"}}}).json()["output"]
    assert (reasoning["summary"], reasoning["content"][0]["text"]) == ([], "So.")
    assert json.loads(message["content"][0]["text"]) == {"answer": 41}
    (refusal,) = post(url, {"input": turns(2)}).json()["output"]
    assert refusal["content"] == [{"type": "refusal", "refusal": "I will not."}]
    for count in (3, 7):
        _, hosted = post(url, {"input": turns(count)}).json()["output"]
        assert hosted["type"] == "web_search_call"
        assert set(hosted) >= TRAINING


def test_a_limit_cuts_the_answer_and_says_so(url: str) -> None:
    """Status, reason and ids agree at every limit, and one token less than needed is still too few."""
    needed = post(url).json()["usage"]["output_tokens"]
    for limit in range(1, needed + 1):
        response = post(url, {"input": "Hi", "max_output_tokens": limit}).json()
        last = response["output"][-1]
        assert len(last["generation_token_ids"]) == len(last["generation_log_probs"]) == limit
        assert response["status"] == ("completed" if limit == needed else "incomplete")
        if limit < needed:
            assert response["incomplete_details"] == {"reason": "max_output_tokens"}
            assert last["status"] == "incomplete"


def test_experts_come_as_lists_as_an_envelope_or_not_at_all(url: str) -> None:
    """The envelope holds the same numbers as the lists, for all rows or for the generation's."""
    lists = post(url).json()["output"][-1]
    with running_policy(
        policy=Policy(5), script=SCRIPT, options=Options(experts="envelope", experts_rows="generation")
    ) as base:
        envelope = post(base).json()["output"][-1]["routed_experts"]
    with running_policy(policy=Policy(5), script=SCRIPT, options=Options(experts="none")) as base:
        assert "routed_experts" not in post(base).json()["output"][-1]
    rows = len(lists["generation_token_ids"])
    magic, dtype, shape, data = envelope.split(":")
    assert (magic, dtype, shape) == ("nrlre1", "int8", f"{rows}x{LAYERS}x{TOP_K}")
    array = np.frombuffer(base64.b64decode(data), dtype=np.int8).reshape(rows, LAYERS, TOP_K)
    assert array.tolist() == lists["routed_experts"][-rows:]


def test_without_a_script_the_words_are_sampled() -> None:
    """Free sampling emits what the network draws; temperature 0 is another answer than 1; both are reproducible."""
    with running_policy(policy=Policy(5)) as base:
        warm = post(base, {"input": "Hi", "max_output_tokens": 40})
        cold = post(base, {"input": "Hi", "max_output_tokens": 40, "temperature": 0})
        assert warm.content == post(base, {"input": "Hi", "max_output_tokens": 40}).content
        item, other = warm.json()["output"][0], cold.json()["output"][0]
    assert item["type"] == "message"
    assert item["generation_token_ids"] != other["generation_token_ids"]
    assert sum(other["generation_log_probs"]) / len(other["generation_log_probs"]) > sum(
        item["generation_log_probs"]
    ) / len(item["generation_log_probs"])


def test_sessions_are_told_by_cookies_and_stats_tell_what_arrived() -> None:
    """A request without a cookie gets one; the stats name each request's cookie, body digest and native prefix."""
    with running_policy(script=SCRIPT) as base:
        with httpx.Client() as first:
            response = first.post(f"{base}/v1/responses", json={"input": "Hi"})
            history = [{"role": "user", "content": "Hi"}, *response.json()["output"]]
            again = first.post(f"{base}/v1/responses", content=json.dumps({"input": history}))
        stranger = post(base)
        stats = httpx.get(f"{base}/stats").json()
        assert httpx.get(f"{base}/health").json() == {"status": "ok"}
    assert response.cookies["policy_session"] == "1"
    assert "set-cookie" not in again.headers
    assert stranger.cookies["policy_session"] == "2"
    assert stats["requests"] == 3
    assert stats["by_session"] == {"1": 2, "2": 1}
    assert [(entry["session"], entry["assigned"]) for entry in stats["log"]] == [(None, "1"), ("1", None), (None, "2")]
    last = response.json()["output"][-1]
    carried = len(last["prompt_token_ids"]) + len(last["generation_token_ids"])
    assert [entry["native_tokens"] for entry in stats["log"]] == [0, carried, 0]
    assert stats["log"][1]["prompt_tokens"] == carried + 1
    assert stats["log"][2]["sha256"] == hashlib.sha256(b'{"input": "Hi"}').hexdigest()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"\xff", 400),
        (b"[]", 400),
        ({"input": None}, 422),
        ({"input": "Hi", "stream": True}, 422),
        ({"input": "Hi", "max_output_tokens": 0}, 422),
        ({"input": [{"role": "user", "content": 5}]}, 422),
    ],
)
def test_a_malformed_request_gets_a_json_error(url: str, body: Any, status: int) -> None:
    """What cannot be answered is refused with a reason, and the server goes on."""
    response = post(url, body)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.json()["error"]["message"]
    assert post(url).status_code == 200


def test_faults_hit_the_requests_they_name_and_no_others() -> None:
    """Statuses, HTML and cut bodies come at their numbers, and the request after them is answered."""
    faults = ["500@0", "503@1", "429@2", "bad-json@3", "truncated@4", "disconnect@5", "slow@6:0.01"]
    with running_policy(script=SCRIPT, faults=faults) as base:
        assert [post(base).status_code for _ in range(3)] == [500, 503, 429]
        assert post(base).text.startswith("<html>")
        truncated = post(base)
        with pytest.raises(httpx.RemoteProtocolError):
            post(base)
        whole = post(base)
        stats = httpx.get(f"{base}/stats").json()
    assert truncated.status_code == 200
    assert whole.content.startswith(truncated.content)
    assert len(truncated.content) == int(truncated.headers["content-length"]) < len(whole.content)
    assert whole.json()["status"] == "completed"
    assert [entry["status"] for entry in stats["log"]] == [500, 503, 429, 200, 200, 200, 200]


def test_faults_spoil_the_training_fields_or_add_a_client_call() -> None:
    """An infinite log prob stands in the body as -Infinity; log probs can be missing; a client call can be added."""
    with running_policy(script=SCRIPT, faults=["inf-log-prob@0", "missing-log-probs@1", "client-call@2"]) as base:
        infinite, missing, client = post(base), post(base).json(), post(base).json()
    assert b"-Infinity" in infinite.content
    assert json.loads(infinite.content)["output"][-1]["generation_log_probs"][0] == -math.inf
    assert TRAINING - set(missing["output"][-1]) == {"generation_log_probs"}
    assert [item["type"] for item in client["output"]] == ["reasoning", "message", "custom_tool_call", "function_call"]
    assert set(client["output"][-1]) >= TRAINING


def test_unusable_options_are_refused() -> None:
    """A wrong option, an unknown fault and a port in use are configuration errors, found before serving."""
    with pytest.raises(ConfigurationError):
        Options(experts="some")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        Options(delay=-1)
    with pytest.raises(ConfigurationError, match="unknown fault"), running_policy(faults=["flood"]):
        pass
    with running_policy() as base, pytest.raises(ConfigurationError, match="cannot listen"):
        run(port=int(base.rsplit(":", 1)[1]))


def test_it_runs_as_a_process_that_prints_one_line(tmp_path: Path, url: str) -> None:
    """A child process prints its URL once it listens, answers as a server in this process does, and stops on SIGINT."""
    script = tmp_path / "script.jsonl"
    script.write_text('[{"text": "Hello from the script."}]\n')
    command = [sys.executable, "-m", "turnkeep.serve", "--seed", "5", "--script", str(script), "--fault", "503@1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        base = re.fullmatch(r"turnkeep policy on (http://127\.0\.0\.1:\d+)\n", line)
        assert base is not None
        answers = [post(base[1]) for _ in range(2)]
        child.send_signal(signal.SIGINT)
        rest = child.stdout.read()
    assert (child.returncode, rest) == (0, "")
    assert [answer.status_code for answer in answers] == [200, 503]
    with running_policy(policy=Policy(5), script=make_script([[{"text": "Hello from the script."}]])) as here:
        assert post(here).content == answers[0].content


def test_the_process_refuses_a_wrong_fault() -> None:
    """Arguments that cannot work end the process with a message and status 2."""
    command = [sys.executable, "-m", "turnkeep.serve", "--fault", "flood"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 2
    assert "unknown fault 'flood'" in done.stderr
