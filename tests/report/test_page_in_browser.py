import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import made_rollouts
import numpy as np
import pytest

from turnkeep.report.arrays import carry
from turnkeep.report.content import Series, gather
from turnkeep.report.page import render_page
from turnkeep.rollout.view import RolloutView
from turnkeep.store.memory import MemoryStore
from turnkeep.store.open import open_store

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on PATH")]


@dataclass
class Opened:
    """A page in the browser, and what it did besides: the addresses asked for, and what was complained of."""

    page: "Page"
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def tip(self) -> str:
        """What the tooltip says."""
        return self.page.locator("#tip").inner_text()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with the pages of three rollouts, and the store of the first."""
    folder = tmp_path_factory.mktemp("pages")
    made_rollouts.by_policy(folder / "a.db")
    memory = MemoryStore()
    made_rollouts.hostile(memory)
    made_rollouts.long(memory)
    with open_store(folder / "a.db") as store:
        views = (RolloutView(store, "survey"), RolloutView(memory, "hostile <b>"), RolloutView(memory, "long"))
        for view in views:
            (folder / f"{view.id[:4]}.html").write_text(render_page(gather(view)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def browser(pages: Path) -> Iterator["Browser"]:
    """Give headless Chromium, once the pages are made: Playwright leaves no room for another event loop."""
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])  # root has no sandbox
        yield running
        running.close()


def open_page(browser: "Browser", file: Path) -> Opened:
    """Open a page, noting whatever it asks for."""
    opened = Opened(browser.new_page(viewport={"width": 1280, "height": 800}))
    opened.page.on("request", lambda request: opened.asked.append(request.url))
    opened.page.on("console", lambda message: opened.complaints.append(message.text))
    opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.page.on("dialog", lambda dialog: opened.complaints.append(dialog.message))
    opened.page.goto(file.as_uri())
    return opened


def test_nothing_of_a_hostile_rollout_runs_and_nothing_is_asked_for(browser: "Browser", pages: Path) -> None:
    """With every fold open and every turn drawn the title is ours, no request goes out, no policy is violated."""
    opened = open_page(browser, pages / "host.html")
    page = opened.page
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    for number in range(len(made_rollouts.HOSTILE)):
        page.locator(f"#turn-{number}").scroll_into_view_if_needed()
        page.locator(f"#turn-{number} .fig[data-drawn]").wait_for()
    assert page.title() == "hostile <b> · turnkeep"
    assert opened.asked == [(pages / "host.html").as_uri()]
    assert opened.complaints == []
    assert page.locator("main script, main img, main svg, main style").count() == 0
    told = page.locator("#turn-0 .text").last.text_content()
    assert told == made_rollouts.HOSTILE[0]


def test_a_script_that_got_into_the_page_would_not_run(browser: "Browser", pages: Path, tmp_path: Path) -> None:
    """The policy stands behind the escaping: a script, a handler and an image put into the file by hand do nothing."""
    page = (pages / "surv.html").read_text(encoding="utf-8")
    evil = "<script>document.title='owned'</script><img src='http://127.0.0.1:9/x' onerror=\"document.title='owned'\">"
    file = tmp_path / "evil.html"
    file.write_text(page.replace("<main>", f"<main>{evil}"), encoding="utf-8")
    opened = open_page(browser, file)
    opened.page.locator("#charts .fig[data-drawn]").first.wait_for()
    assert opened.page.title() == "survey · turnkeep"
    assert any("Content Security Policy" in complaint for complaint in opened.complaints)


def test_each_token_tells_its_id_and_log_prob(browser: "Browser", pages: Path) -> None:
    """Pointing at a bar, and walking with the keys, tells what the store holds, digit for digit."""
    with open_store(pages / "a.db") as store:
        native = RolloutView(store, "survey").turn(0).parts[-1].native
        assert native is not None
        ids, log_probs = native["generation_token_ids"], native["generation_log_probs"]
    opened = open_page(browser, pages / "surv.html")
    figure = opened.page.locator("#turn-0 .fig")
    canvas = figure.locator("canvas")
    figure.scroll_into_view_if_needed()
    opened.page.locator("#turn-0 .fig[data-drawn]").wait_for()

    def tells(index: int) -> bool:
        told = re.search(r"index (\d+) of (\d+): id (\d+)\nlog prob (\S+),", opened.tip())
        assert told is not None
        return told.groups()[:3] == (str(index), str(len(ids)), str(ids[index])) and float(told[4]) == log_probs[index]

    canvas.hover(position={"x": 6 * 5 + 2, "y": 12})
    assert tells(5)
    canvas.focus()
    canvas.press("Home")
    assert tells(0)
    canvas.press("ArrowRight")
    assert tells(1)
    canvas.press("End")
    assert tells(len(ids) - 1)
    canvas.press("Escape")
    assert opened.page.locator("#tip").is_hidden()
    figure.locator(".listing summary").click()
    rows = figure.locator(".listing pre:not(:empty)").inner_text().splitlines()[1:]  # it is written once it is open
    listed = [row.split("\t") for row in rows]
    assert [(int(id), float(log_prob)) for _, id, log_prob in listed] == list(zip(ids, log_probs, strict=True))


def test_charts_and_heat_maps_tell_numbers_and_lead_to_turns(browser: "Browser", pages: Path) -> None:
    """Each picture can be walked by keyboard; Enter on a turn's column goes to the turn."""
    with open_store(pages / "a.db") as store:
        content = gather(RolloutView(store, "survey"))
    numbers = content.cards[2].numbers
    assert numbers.prompt is not None
    assert numbers.shared is not None
    opened = open_page(browser, pages / "surv.html")
    chart = opened.page.locator("#charts .fig").first.locator("canvas")
    opened.page.locator("#charts .fig[data-drawn]").first.wait_for()
    chart.focus()
    for key in ("Home", "ArrowRight", "ArrowRight"):
        chart.press(key)
    told = opened.tip()
    new = numbers.prompt - numbers.shared
    assert [str(count) in told for count in (numbers.shared, new, numbers.generated)] == [True] * 3
    chart.press("Enter")
    assert opened.page.url.endswith("#turn-2")
    load = opened.page.locator("#experts .fig").last
    load.scroll_into_view_if_needed()
    load.locator("canvas").press("End")
    assert content.experts is not None
    layers, experts = content.experts.load.shape
    assert (
        f"layer {layers - 1}, expert {experts - 1}\ntaken {int(content.experts.load[-1, -1]):,} times" in opened.tip()
    )


def test_what_is_told_of_a_column_scrolls_with_it(browser: "Browser", pages: Path) -> None:
    """Scrolling hides nothing: the tooltip stays beside its column."""
    opened = open_page(browser, pages / "surv.html")
    chart = opened.page.locator("#charts .fig").first.locator("canvas")
    chart.focus()
    chart.press("Home")
    told, tip = opened.tip(), opened.page.locator("#tip")
    assert told
    heights = [each.bounding_box() for each in (chart, tip)]
    opened.page.evaluate(
        "new Promise(done => { addEventListener('scroll', () => requestAnimationFrame(done)); scrollBy(0, 60); })"
    )
    assert opened.tip() == told
    for before, each in zip(heights, (chart, tip), strict=True):
        after = each.bounding_box()
        assert before is not None
        assert after is not None
        assert after["y"] == before["y"] - 60


def test_numbers_beside_an_axis_are_whole(browser: "Browser", tmp_path: Path) -> None:
    """Bytes by the million stand beside their axis with nothing cut off: the canvas is empty at its left edge."""
    store = MemoryStore()
    made_rollouts.long(store, turns=2)
    content = gather(RolloutView(store, "long"))
    large = Series("request", carry(np.array([21e6, 12_345_678.0])))
    page = tmp_path / "large.html"
    page.write_text(render_page(replace(content, sizes=(large,))), encoding="utf-8")
    canvas = open_page(browser, page).page.locator("#charts .fig[data-drawn] canvas").last
    edge = "c => c.getContext('2d').getImageData(0, 0, {}, c.height).data.some(v => v)"
    assert (canvas.evaluate(edge.format(2)), canvas.evaluate(edge.format(60))) == (False, True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_long_page_draws_what_is_looked_at(browser: "Browser", pages: Path, scheme: str) -> None:
    """Of 200 turns those in sight are drawn, the last when it is gone to, in light and in dark."""
    opened = open_page(browser, pages / "long.html")
    page = opened.page
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.locator("#charts .fig[data-drawn]").first.wait_for()
    assert (
        page.locator("#charts .fig:not([data-drawn]), #experts .fig:not([data-drawn])").count() == 0
    )  # out of sight, too
    assert page.locator("#conversation .fig[data-drawn]").count() < 20
    page.goto((pages / "long.html").as_uri() + "#turn-199")
    page.locator("#turn-199 .fig[data-drawn]").wait_for()
    assert page.locator("#conversation .fig[data-drawn]").count() < 40
    painted = page.locator("#turn-199 canvas").evaluate(
        "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v)"
    )
    assert painted
    assert opened.complaints == []


@pytest.mark.parametrize("name", ["surv", "host", "long"])
def test_a_narrow_page_has_nothing_beside_it(browser: "Browser", pages: Path, name: str) -> None:
    """The page is as wide as the window: nothing is reached by scrolling sideways."""
    page = open_page(browser, pages / f"{name}.html").page
    for width in (320, 457, 800):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") == width
    page.close()
