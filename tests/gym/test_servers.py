"""The harness itself: what the other tests here stand on."""

import httpx
import pytest
import ray
from nemo_gym import global_config
from servers import MODEL, example_rows, running_gym

STEPS = [[{"reasoning_content": "A greeting."}, {"text": "Good day."}]]
ASK = {"input": [{"role": "user", "content": "Hello."}]}


@pytest.mark.parametrize(("model", "sessions"), [("bytes", 1), ("typed", 2)])
def test_the_model_server_hands_bytes_on_or_reads_them(model: str, sessions: int) -> None:
    """Ours answers with the policy's bytes and keeps its session by Gym's cookie; Gym's own writes the answer anew."""
    with running_gym(STEPS, model=model, in_process=False) as gym, httpx.Client() as client:
        answers = [client.post(f"{gym.model}/v1/responses", json=ASK) for _ in range(2)]
        direct = httpx.post(f"{gym.policy}/v1/responses", json=ASK)
        assert [answer.status_code for answer in answers] == [200, 200]
        assert [answer.content == direct.content for answer in answers] == [model == "bytes"] * 2
        assert list(client.cookies) == [next(name for name in client.cookies if name.endswith(f"___{MODEL}"))]
        assert len(gym.stats()["by_session"]) == sessions + 1  # the direct call is one more
    assert not ray.is_initialized()
    assert global_config._GLOBAL_CONFIG_DICT is None


def test_a_resources_server_keeps_its_session_by_its_cookie() -> None:
    """Gym's counter begins where the row says, and knows the session by the cookie alone."""
    row = example_rows("example_session_state_mgmt")[0]
    with running_gym(STEPS, resources="example_session_state_mgmt", in_process=False) as gym, httpx.Client() as client:
        client.post(f"{gym.resources}/seed_session", json=row).raise_for_status()
        client.post(f"{gym.resources}/increment_counter", json={"count": 3}).raise_for_status()
        counted = client.post(f"{gym.resources}/get_counter_value", json={})
        stranger = httpx.post(f"{gym.resources}/get_counter_value", json={})
    assert (counted.json(), stranger.json()) == ({"count": row["initial_count"] + 3}, {"count": 0})


def test_gym_runs_again_in_the_same_process() -> None:
    """Two worlds after each other each have an HTTP client of their own: Gym's is closed with its loop."""
    for _ in range(2):
        with running_gym(STEPS, model="typed", in_process=False) as gym:
            assert httpx.post(f"{gym.model}/v1/responses", json=ASK).status_code == 200
