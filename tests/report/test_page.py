import base64
import hashlib
import re
import sqlite3
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import made_rollouts
from hypothesis import given
from hypothesis import strategies as st
from made_rollouts import HOSTILE, SCOPE, message, response, say, training

from turnkeep.history.capture import capture
from turnkeep.report.content import gather
from turnkeep.report.page import render_page
from turnkeep.rollout.record import Rollout
from turnkeep.rollout.view import RolloutView
from turnkeep.store.base import Store
from turnkeep.store.memory import MemoryStore
from turnkeep.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from turnkeep.history.projection import Entry

NO_CONTENT = ("meta", "br")


class Tags(HTMLParser):
    """What a page's HTML holds: its tags, its attributes, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count a tag."""
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        """Keep text."""
        self.text.append(data)


def page_of(store: Store, rollout: str) -> str:
    """The page of a rollout."""
    return render_page(gather(RolloutView(store, rollout)))


def read(page: str) -> Tags:
    """The page, parsed."""
    tags = Tags()
    tags.feed(page)
    tags.close()
    return tags


def check_harmless(page: str) -> Tags:
    """One script and one style, those of the policy; no handler, no image, no address but on the page itself."""
    tags = read(page)
    assert (tags.tags["script"], tags.tags["style"], tags.tags["meta"]) == (1, 1, 5)
    assert not set(tags.tags) & {"img", "svg", "iframe", "object", "embed", "link", "base", "form", "video", "audio"}
    assert not [name for name, _ in tags.attributes if name.startswith("on") or name in ("src", "style", "srcset")]
    assert all(str(value).startswith("#") for name, value in tags.attributes if name == "href")
    for tag in ("script", "style"):
        source = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page
    return tags


def test_hostile_text_is_shown_and_makes_no_markup() -> None:
    """Whatever a model, a tool, a person or an error says, the page holds its own tags alone, and shows the text."""
    store = MemoryStore()
    made_rollouts.hostile(store)
    page = page_of(store, "hostile <b>")
    text = "".join(check_harmless(page).text)
    assert all(each in text for each in HOSTILE[:4])
    assert "U+202E" in text
    assert not set("\x00\u202e\ufeff\r") & set(page)


@given(st.text(st.characters() | st.sampled_from("<>&\"'/\x00\ud83d\u202e"), max_size=60))
def test_no_text_makes_markup(text: str) -> None:
    """For every text of a message, reasoning, arguments, call id and tool output the page is harmless and UTF-8."""
    store = MemoryStore()
    call = {"type": "function_call", "call_id": f"c{text}", "name": text, "arguments": text}
    history: list[Entry] = [{"role": "user", "content": text}]
    with Rollout.open(store, "r", scope=SCOPE) as rollout:
        say(rollout, history, response([message(text), call, {"type": text or "x", "text": text}]))
        history.append({"role": "tool", "tool_call_id": f"c{text}", "content": text})
        say(rollout, history, response([message("end")]))
    page = page_of(store, "r")
    page.encode()
    check_harmless(page)


def test_a_page_tells_what_became_of_calls_gaps_and_turns() -> None:
    """In flight, failed, portable with the reason, gaps and findings are named where a person looks first."""
    store = MemoryStore()
    made_rollouts.hostile(store)
    with Rollout.open(store, "hostile <b>") as rollout:
        rollout.add_turn(capture(response([message("I said so.")]), SCOPE).edit(0, text="I did not."))
    page = "".join(read(page_of(store, "hostile <b>")).text)
    told = (
        "◌ in flight",
        "✕ TransportFailure",
        "◇ portable",
        "it has no native item",
        "prompt-contiguity",
        "I did not.",
    )
    assert [words for words in told if words not in page] == []


def test_a_damaged_turn_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    """A flipped byte in a stored turn is told on its card; the page is made all the same (contract 9.3)."""
    path = tmp_path / "a.db"
    with SqliteStore(path) as store:
        with Rollout.open(store, "r", scope=SCOPE) as rollout:
            for number in range(3):
                fields = training(range(number, 40), range(30), [-0.5] * 30)
                rollout.add_turn(capture(response([message(f"Said {number}.", **fields)], number), SCOPE))
        digest = RolloutView(store, "r")._documents[1]["body"][0]
    database = sqlite3.connect(path)
    database.execute("UPDATE blobs SET data = data || x'00' WHERE digest = ?", (bytes.fromhex(digest),))
    database.commit()
    database.close()
    with SqliteStore(path) as store:
        page = "".join(read(page_of(store, "r")).text)
    assert "✕ damaged" in page
    assert [words for words in ("Said 0.", "Said 1.", "Said 2.") if words in page] == ["Said 0.", "Said 2."]


def test_a_long_rollout_makes_a_small_page() -> None:
    """200 turns and 50,000 generated tokens are a page of less than 5 MB, every id and log prob in it."""
    store = MemoryStore()
    made_rollouts.long(store)
    page = page_of(store, "long")
    assert len(page.encode()) < 5_000_000
    lengths = [len(base64.b64decode(data)) for data in re.findall(r' data-lp="([^"]*)"', page)]
    assert (len(lengths), sum(lengths)) == (200, 50_000 * 8)
    check_harmless(page)


def test_an_empty_rollout_has_a_page() -> None:
    """A rollout that has only just begun says that nothing was said yet."""
    store = MemoryStore()
    Rollout.open(store, "r").close()
    assert "Nothing was said yet" in page_of(store, "r")
