import html
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import made_rollouts
import pytest
from made_rollouts import SCOPE, message, response

from turnkeep.errors import ConfigurationError, StoreError
from turnkeep.history.capture import capture
from turnkeep.report.serve import listening
from turnkeep.rollout.record import Rollout
from turnkeep.store.open import open_store


@contextmanager
def serving(path: Path) -> Iterator[httpx.Client]:
    """A client of the pages of the store at `path`, served by a thread."""
    with listening(str(path), 0) as (server, listener, address):
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give a store with a hostile rollout, and one whose id looks like a path."""
    path = tmp_path / "a.db"
    with open_store(path) as store:
        made_rollouts.hostile(store)
        with Rollout.open(store, "rows.jsonl/1?x=&y", scope=SCOPE) as rollout:
            rollout.add_turn(capture(response([message("The only turn.")]), SCOPE))
    return path


def test_every_rollout_of_the_list_leads_to_its_page(path: Path) -> None:
    """The list has a row for each rollout, and its link gives the page, whatever characters the id has."""
    with serving(path) as client:
        listed = client.get("/").text
        links = [html.unescape(link) for link in re.findall(r'href="(/rollout[^"]*)"', listed)]
        pages = [client.get(link) for link in links]
    assert [page.status_code for page in pages] == [200, 200]
    assert "The only turn." in pages[0].text
    assert "<h1>hostile &lt;b&gt;</h1>" in pages[1].text
    assert "ungradable" in listed


def test_a_host_of_another_name_is_refused(path: Path) -> None:
    """A page that was made to lead here by a name of its own (DNS rebinding) reads nothing; loopback's names do."""
    with serving(path) as client:
        port = client.base_url.port
        codes = {
            host: client.get("/", headers={"host": host}).status_code
            for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", f"localhost:{port}")
        }
    assert list(codes.values()) == [400, 400, 400, 400, 200]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_nothing_but_reading_is_answered(path: Path, method: str) -> None:
    """Methods that could change something are refused on every address."""
    with serving(path) as client:
        assert [client.request(method, url).status_code for url in ("/", "/rollout?id=x")] == [405, 405]


def test_pages_are_read_anew(path: Path) -> None:
    """What was written between two requests stands in the second, and nothing may be cached."""
    with serving(path) as client:
        url = "/rollout?id=new"
        assert client.get(url).status_code == 404
        with open_store(path) as store, Rollout.open(store, "new", scope=SCOPE) as rollout:
            rollout.add_turn(capture(response([message("Fresh.")]), SCOPE))
            page = client.get(url)
            assert "● live" in client.get("/").text
        assert "● live" not in client.get("/").text
    assert "Fresh." in page.text
    assert page.headers["cache-control"] == "no-store"


def test_the_policy_stands_in_the_header_too(path: Path) -> None:
    """Every answer, errors included, carries the content security policy, and forbids to be framed."""
    with serving(path) as client:
        answers = [client.get(url) for url in ("/", "/rollout?id=hostile%20%3Cb%3E", "/rollout?id=nope")]
    policies = [answer.headers["content-security-policy"] for answer in answers]
    assert all("default-src 'none'" in policy and "frame-ancestors 'none'" in policy for policy in policies)


def test_no_store_and_a_taken_port_are_said_at_once(path: Path, tmp_path: Path) -> None:
    """A store that is not there is not made, and a port in use is an error in words."""
    with pytest.raises(StoreError, match="no store"), listening(str(tmp_path / "none.db"), 0):
        pass
    with serving(path) as client:
        port = client.base_url.port
        assert port is not None
        with pytest.raises(ConfigurationError, match="cannot listen"), listening(str(path), port):
            pass
