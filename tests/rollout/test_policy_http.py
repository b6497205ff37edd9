import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from rollout_tools import USER, Bench, Said, responses, scripted, serving

from turnkeep.errors import ConfigurationError, TransportFailure
from turnkeep.rollout.policy import PolicyClient
from turnkeep.rollout.verify import verify_rollout

OK = Said(200, responses())


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408, 425])
def test_passing_failures_are_tried_again(tmp_path: Path, status: int) -> None:
    """After a status that may pass the same body goes out again; each attempt and what it brought is kept (7.1)."""
    with scripted([Said(status, b"wait, \xff"), Said(status, b""), OK]) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        bench.call()
        assert len(heard.bodies) == 3
        assert len(set(heard.bodies)) == 1
    with bench.view() as view:
        assert [attempt.status for attempt in view.calls[0].attempts] == [status, status]
        assert view.attempt_bodies(0) == [b"wait, \xff", b""]
        assert (view.used, view.gradable, view.request(0)) == (1, True, heard.bodies[0])


@pytest.mark.parametrize("status", [400, 401, 404, 422, 301])
def test_lasting_failures_are_not_tried_again(tmp_path: Path, status: int) -> None:
    """After a status that will not pass nothing more is sent; the body is kept and stands in the error (7.3)."""
    with scripted([Said(status, b'{"error": "no"}')]) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        with pytest.raises(TransportFailure) as caught:
            bench.call()
        assert len(heard.bodies) == 1
    assert (caught.value.status, caught.value.body, caught.value.call) == (status, b'{"error": "no"}', 0)
    with bench.view() as view:
        assert (view.attempt_bodies(0), view.response(0), view.gradable) == ([b'{"error": "no"}'], None, False)


@pytest.mark.parametrize(("retries", "sent"), [(0, 1), (2, 3)])
def test_retries_are_bounded(tmp_path: Path, retries: int, sent: int) -> None:
    """`retries` bounds how often a call is tried again; then it is a TransportFailure with the last answer."""
    with scripted([Said(503, b"1"), Said(503, b"2"), Said(503, b"3")]) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        with pytest.raises(TransportFailure) as caught:
            bench.call(retries=retries)
        assert len(heard.bodies) == sent
    assert (caught.value.status, caught.value.body) == (503, str(sent).encode())


def test_retry_after_wins_over_the_backoff(tmp_path: Path) -> None:
    """A server's Retry-After is waited for in place of the backoff, which here would outlast the test."""
    with scripted([Said(429, b"", (("Retry-After", "0"),)), OK]) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        bench.run(lambda policy: asyncio.wait_for(policy.call([USER]), 30), backoff=3600.0)
        assert len(heard.bodies) == 2


def test_a_server_that_comes_up_later_is_reached(tmp_path: Path) -> None:
    """A refused connection is tried again, and the call succeeds once the server is up."""
    port = free_port()

    async def agent(policy: PolicyClient) -> None:
        call = asyncio.create_task(policy.call([USER]))
        while not policy.rollout.calls or not policy.rollout.calls[0].attempts:
            await asyncio.sleep(0.005)
        with scripted([OK], port=port):
            await call

    bench = Bench(tmp_path / "a.db", f"http://127.0.0.1:{port}")
    bench.run(agent, retries=1000, backoff=0.0005)
    with bench.view() as view:
        first = view.calls[0].attempts[0]
        assert (first.status, first.body, view.used) == (None, None, 1)
        assert "ConnectError" in first.error


def test_nobody_there_is_a_transport_failure(tmp_path: Path) -> None:
    """Where no server is reached the call is charged, has its request, and ends in a TransportFailure."""
    bench = Bench(tmp_path / "a.db", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(TransportFailure, match="ConnectError") as caught:
        bench.call(retries=1)
    assert (caught.value.status, caught.value.body) == (None, None)
    with bench.view() as view:
        assert (view.used, len(view.calls[0].attempts), view.gradable) == (1, 2, False)
        assert view.request(0)


def test_a_timeout_is_not_sent_again(tmp_path: Path) -> None:
    """A call that times out is not sent again, since the policy may be working on it; it is a TransportFailure."""
    with scripted([Said(200, responses(), wait=0.5)]) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        with pytest.raises(TransportFailure, match="ReadTimeout"):
            bench.call(timeout=0.1)
        assert len(heard.bodies) == 1
    with bench.view() as view:
        assert (view.used, view.turn_count, view.gradable) == (1, 0, False)


def test_a_broken_connection_is_tried_again_and_its_bytes_kept(tmp_path: Path) -> None:
    """A response that breaks off is kept as far as it came, and the call is tried again (contract 7.6)."""
    with serving(tmp_path, faults=["disconnect@0"]) as bench:
        turn = bench.call()
        with bench.view() as view:
            (attempt,) = view.calls[0].attempts
            (body,) = view.attempt_bodies(0)
            whole = view.response(0)
            assert body is not None
            assert whole is not None
            assert attempt.status == 200
            assert 0 < len(body) < len(whole)
            assert whole.startswith(body)
            assert (view.turn(0).digest, list(verify_rollout(view))) == (turn.digest, [])


def test_cookies_go_out_with_the_next_call(tmp_path: Path) -> None:
    """Cookies that the server sets go out with the rollout's next call, in another process too (contract 7.7)."""
    with serving(tmp_path) as bench:
        for _ in range(3):
            bench.call()
        assert [entry["session"] for entry in bench.log()] == [None, "1", "1"]
        other = Bench(bench.path, bench.url, "other")
        other.call()
        assert bench.log()[3]["session"] is None
        with bench.view() as view, other.view() as theirs:
            assert (view.cookies, theirs.cookies) == ({"policy_session": "1"}, {"policy_session": "2"})


def test_cookies_are_replaced_and_expire(tmp_path: Path) -> None:
    """A cookie set again is replaced, others stay, and one that has run out goes out no more (contract 7.7)."""
    answers = [
        [("Set-Cookie", "a=1; Path=/; HttpOnly"), ("Set-Cookie", "b=x=y; Max-Age=3600"), ("Set-Cookie", 'q="1 2"')],
        [("Set-Cookie", "a=2; Secure"), ("Set-Cookie", "c=3; Expires=Wed, 01 Jan 2098 00:00:00 GMT")],
        [("Set-Cookie", "b=; Max-Age=0"), ("Set-Cookie", "c=; Expires=Thu, 01 Jan 1970 00:00:00 GMT")],
        [("set-cookie", "nothing"), ("set-cookie", "=empty")],
        [],
    ]
    with scripted([Said(200, responses(), tuple(headers)) for headers in answers]) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        for _ in answers:
            bench.call()
        sent = [headers.get("cookie") for headers in heard.headers]
    assert sent == [None, 'a=1; b=x=y; q="1 2"', 'a=2; b=x=y; q="1 2"; c=3', 'a=2; q="1 2"', 'a=2; q="1 2"']


def test_cookies_of_a_failed_attempt_count(tmp_path: Path) -> None:
    """A cookie set with a 503 goes out with the very next attempt (contract 7.7)."""
    with scripted([Said(503, b"", (("Set-Cookie", "lane=7"),)), OK]) as heard:
        Bench(tmp_path / "a.db", heard.url).call()
        assert [headers.get("cookie") for headers in heard.headers] == [None, "lane=7"]


def test_a_cookie_of_any_characters_goes_back(tmp_path: Path) -> None:
    """A cookie whose value is not ASCII goes back as it came, and breaks nothing (contract 7.7)."""
    with scripted([Said(200, responses(), (("Set-Cookie", "name=caf\xe9"),)), OK]) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        bench.call()
        bench.call()
        assert heard.headers[1]["cookie"] == "name=caf\xe9"


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/v1/responses"])
def test_the_endpoint_is_found(tmp_path: Path, path: str) -> None:
    """A base URL, one that ends in /v1 and the endpoint's own all lead to /v1/responses."""
    with serving(tmp_path) as bench:
        Bench(bench.path, bench.url + path).call()
        assert len(bench.log()) == 1


def test_own_headers_and_sampling_are_sent(tmp_path: Path) -> None:
    """Headers go with every request; sampling members win over those of a call."""
    with scripted([OK]) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        bench.call(params={"temperature": 1.0, "top_p": 0.5}, sampling={"temperature": 0.25}, headers={"x-run": "7"})
        assert heard.headers[0]["x-run"] == "7"
        assert heard.bodies == [b'{"input":[{"role":"user","content":"Begin."}],"temperature":0.25,"top_p":0.5}']


def test_one_client_serves_several_event_loops(tmp_path: Path) -> None:
    """A client used from one event loop after another works in each, and leaves nothing open."""
    from turnkeep.rollout.record import Rollout
    from turnkeep.store.sqlite import SqliteStore

    async def use(policy: PolicyClient) -> None:
        async with policy:
            await policy.call([USER])

    with serving(tmp_path) as bench, SqliteStore(bench.path) as store, Rollout.open(store, "r") as rollout:
        policy = PolicyClient(bench.url, rollout)
        for _ in range(2):
            asyncio.run(use(policy))
        assert rollout.turn_count == 2


def test_a_cancelled_call_is_in_flight(tmp_path: Path) -> None:
    """A call that the agent gives up stays charged, with its request and no response (contract 7.1)."""
    with scripted([Said(200, responses(), wait=0.3)]) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        with pytest.raises(TimeoutError):
            bench.run(lambda policy: asyncio.wait_for(policy.call([USER]), 0.1))
    with bench.view() as view:
        assert (view.used, view.calls[0].in_flight, view.turn_count) == (1, True, 0)


@pytest.mark.parametrize(
    "options",
    [{"timeout": 0}, {"retries": -1}, {"backoff": -1}, {"on_malformed": "x"}, {"prefix_guard": "x"}],
    ids=str,
)
def test_options_that_cannot_work_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    """An option that cannot work is a ConfigurationError before anything is done."""
    with pytest.raises(ConfigurationError):
        Bench(tmp_path / "a.db", "http://127.0.0.1:9").call(**options)
    with pytest.raises(ConfigurationError, match="http"):
        Bench(tmp_path / "b.db", "127.0.0.1:9").call()


@pytest.mark.parametrize(
    ("headers", "cookies"),
    [
        ({"Set-Cookie": "a=b; Max-Age=--1"}, {"a": "b"}),
        ({"Set-Cookie": "a=b; Max-Age=²"}, {"a": "b"}),
        ({"Set-Cookie": f"a=b; Max-Age={'9' * 5000}"}, {"a": "b"}),
        ({"Set-Cookie": f"a=b; Max-Age=-{'9' * 5000}"}, {}),
        ({"Set-Cookie": "a=b; Max-Age=00"}, {}),
        ({"Set-Cookie": f"a=b; Expires=Thu, 01 Jan 1970 00:00:00 +{'9' * 40}"}, {"a": "b"}),
    ],
    ids=ascii,
)
def test_odd_headers_lose_no_response(tmp_path: Path, headers: dict[str, str], cookies: dict[str, str]) -> None:
    """A header that says nothing sensible is passed over, and the response is kept all the same (contract 7.6)."""
    odd = tuple({**headers, "Retry-After": "²"}.items())
    with scripted([Said(503, b"", odd), Said(200, responses(), odd)]) as heard:
        bench = Bench(tmp_path / "a.db", heard.url)
        bench.call()
    with bench.view() as view:
        assert (view.response(0), view.cookies, view.gradable) == (responses(), cookies, True)
