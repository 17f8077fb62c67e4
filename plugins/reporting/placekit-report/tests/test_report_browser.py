"""The page in a headless Chromium: it draws, zooms, tells, finds, needs no mouse, and fits a phone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from headless_chromium import Browser, chromium
from made_report import DEVICE_MAP, HOSTILE, report
from placekit_report.page import render

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium")
Page = Callable[..., Path]
TEXT_CONTRAST = 4.5
CONTRASTS = """(() => {
  const parse = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const under = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !e.checkVisibility() || e.closest("script, button:disabled")) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(under(e))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), walker.currentNode.data.trim().slice(0, 40), e.className]);
  }
  return found.sort((x, y) => x[0] - y[0]).slice(0, 5);
})()"""
"""The five texts with the least contrast to what is behind them."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The file of a page with made data, each made once."""
    made: dict[str, Path] = {}

    def make(**shape: int) -> Path:
        key = str(sorted(shape.items()))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("page") / "report.html"
            made[key].write_text(render(report(**shape)))
        return made[key]

    return make


def opened(browser: Browser, path: Path, **screen: Any) -> None:
    browser.emulate(**screen)
    browser.open(path)
    if screen.get("scripts", True):
        browser.settle()
        assert browser.errors == []


def frame(browser: Browser, nth: int = 0) -> dict[str, float]:
    """What the timeline says about itself, and where it is, scrolled into the window."""
    found = browser.evaluate(f"""(() => {{
      const f = document.querySelectorAll(".frame")[{nth}];
      f.scrollIntoView({{ block: "center" }});
      const box = f.getBoundingClientRect(), t = placekit.timelines[{nth}];
      return {{ x: box.left, y: box.top, width: box.width, height: box.height, gutter: t.gutter, ...f.dataset }};
    }})()""")
    return {key: float(value) for key, value in found.items()}


def middle(browser: Browser, event: int) -> tuple[float, float]:
    """Where an event is in the window."""
    at = frame(browser)
    x, y = browser.evaluate(f"""(() => {{
      const t = placekit.timelines[0], lane = t.lanes[t.events.track[{event}]];
      return [t.x(t.events.start[{event}] + t.events.duration[{event}] / 2), lane.y + lane.height / 2];
    }})()""")
    return at["x"] + x, at["y"] + y


@pytest.mark.slow
def test_the_page_draws_its_timeline_and_asks_for_nothing_else(browser: Browser, page: Page) -> None:
    opened(browser, page(events=400))
    assert browser.requests == [page(events=400).as_uri()]
    colours = browser.evaluate("""(() => {
      const c = document.querySelector(".frame canvas"), d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
      const found = {};
      for (let i = 0; i < d.length; i += 4) { const k = [d[i], d[i + 1], d[i + 2]]; found[k] = (found[k] || 0) + 1; }
      return Object.entries(found).filter(([, n]) => n > 400).map(([k]) => k);
    })()""")
    assert {"0,114,178", "230,159,0", "0,158,115", "169,177,186"} <= set(colours)  # modules, transfers
    assert browser.evaluate("document.querySelectorAll('svg.chart polyline').length") == 1  # the search
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert HOSTILE in browser.evaluate("document.body.innerText")


@pytest.mark.slow
class TestTimeline:
    @pytest.fixture(autouse=True)
    def opened(self, browser: Browser, page: Page) -> None:
        opened(browser, page(events=400))
        self.browser = browser
        self.data = report(events=400)["run"]["programs"][0]["timeline"]

    def range(self) -> float:
        self.browser.settle()
        at = frame(self.browser)
        return at["to"] - at["from"]

    def key(self, *keys: str) -> None:
        for k in keys:
            self.browser.key(k)
        self.browser.settle()

    def selected(self) -> int:
        self.browser.settle()
        return int(frame(self.browser)["selected"])

    def focus(self) -> None:
        self.browser.evaluate("document.querySelector('.frame').focus()")

    def test_hover_tells_what_an_event_is_and_why_it_started(self) -> None:
        e = self.data["events"]
        event = max(range(len(e["track"])), key=lambda i: e["duration_s"][i] * (e["cause"][i] >= 0))
        self.browser.mouse("mouseMoved", *middle(self.browser, event))
        self.browser.settle()
        told = self.browser.evaluate("document.querySelector('.hold .tip').innerText")
        texts = self.data["texts"]
        assert texts[e["name"][event]] in told
        assert f"{e['duration_s'][event] * 1e6:.4g} µs" in told
        assert f"{texts[e['why'][event]]} {texts[e['name'][e['cause'][event]]]}" in told
        assert "1.0 MiB" in told

    def test_search_finds_counts_and_jumps(self) -> None:
        wanted = "aten.mm_1"
        names = [self.data["texts"][i] for i in self.data["events"]["name"]]
        matches = {i for i, name in enumerate(names) if wanted in name}
        self.browser.evaluate("document.querySelector('.find input').focus()")
        self.browser.insert(wanted)
        self.browser.settle()
        assert self.browser.evaluate("document.querySelector('.find output').textContent") == f"{len(matches)} found"
        whole, seen = self.range(), set()
        for _ in matches:
            self.key("Enter")
            seen.add(self.selected())
        assert seen == matches
        assert self.range() < whole

    def test_keys_zoom_pan_and_select(self) -> None:
        whole = self.range()
        self.focus()
        self.key("+", "+")
        assert self.range() < whole
        start = frame(self.browser)["from"]
        self.key("ArrowRight")
        assert frame(self.browser)["from"] > start
        self.key("Home")
        assert self.range() == whole
        self.browser.evaluate("placekit.timelines[0].select(5)")
        self.key("ArrowRight")
        assert self.selected() == 6
        self.browser.evaluate("document.querySelector('.details button').click()")
        assert self.selected() == self.data["events"]["cause"][6]
        self.focus()
        self.key("Escape")
        assert self.selected() == -1


@pytest.mark.slow
@pytest.mark.parametrize("clipboard", ["{ writeText: async (text) => (window.copied = text) }", "undefined"])
def test_a_key_copies_a_device_map(browser: Browser, page: Page, clipboard: str) -> None:
    """By the clipboard of the browser or, where a page has none, by selecting it."""
    opened(browser, page(events=60, programs=3))
    browser.evaluate(f"Object.defineProperty(navigator, 'clipboard', {{ value: {clipboard} }}) && 0")
    browser.evaluate("addEventListener('copy', () => (window.copied = getSelection().toString())), 0")
    browser.evaluate("document.querySelector('button.copy').focus()")
    browser.key("Enter")
    browser.settle()
    assert browser.evaluate("document.querySelector('button.copy').textContent") == "Copied"
    assert browser.evaluate("window.copied") == DEVICE_MAP


@pytest.mark.slow
@pytest.mark.parametrize("shape", [{"events": 400, "devices": 8}, {"events": 60, "programs": 3}], ids=str)
@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_needs_no_scrolling_to_the_side(
    browser: Browser, page: Page, shape: dict[str, int], dark: bool
) -> None:
    opened(browser, page(**shape), width=360, height=740, scale=2, touch=True, dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth") == 360
    assert browser.evaluate("[...document.querySelectorAll('.frame')].every(f => f.clientWidth < 360)")


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_text_has_contrast(browser: Browser, page: Page, dark: bool) -> None:
    opened(browser, page(events=400), dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, background[4:-1].split(","))) < 64) == dark
    assert [x for x in browser.evaluate(CONTRASTS) if x[0] < TEXT_CONTRAST] == []
