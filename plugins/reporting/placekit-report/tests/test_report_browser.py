"""The page in a headless Chromium: it draws, zooms, tells, finds, needs no mouse, and fits a phone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made_report import HOSTILE, report
from placekit_report.page import render
from placekit_testing.browser import Browser, chromium

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
      const t = placekit.timelines[0], lane = t.laneOf({event});
      return [t.x(t.events.start[{event}] + t.events.duration[{event}] / 2), lane.y + lane.h / 2 - t.frame.scrollTop];
    }})()""")
    return at["x"] + x, at["y"] + y


@pytest.mark.slow
def test_the_page_draws_its_timeline_and_asks_for_nothing_else(browser: Browser, page: Page) -> None:
    data = report(events=400)
    opened(browser, page(events=400))
    assert browser.requests == [page(events=400).as_uri()]
    assert frame(browser)["events"] == len(data["runs"][0]["programs"][0]["timeline"]["events"]["track"])
    colours = browser.evaluate("""(() => {
      const c = document.querySelector(".frame canvas"), d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
      const found = {};
      for (let i = 0; i < d.length; i += 4) { const k = [d[i], d[i + 1], d[i + 2]]; found[k] = (found[k] || 0) + 1; }
      return Object.entries(found).filter(([, n]) => n > 400).map(([k]) => k);
    })()""")
    assert {"0,114,178", "230,159,0", "0,158,115", "169,177,186"} <= set(colours)  # modules, transfers
    assert browser.evaluate("document.querySelectorAll('.uplot').length") == 3  # two devices' memory, the search
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert HOSTILE in browser.evaluate("document.body.innerText")


@pytest.mark.slow
class TestTimeline:
    @pytest.fixture(autouse=True)
    def opened(self, browser: Browser, page: Page) -> None:
        opened(browser, page(events=400))
        self.browser = browser
        self.data = report(events=400)["runs"][0]["programs"][0]["timeline"]

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

    def said(self) -> str:
        return str(self.browser.evaluate("document.querySelector('[aria-live]').textContent"))

    def test_the_wheel_zooms_with_ctrl_or_after_a_click(self) -> None:
        at, whole = frame(self.browser), self.range()
        point = at["x"] + at["gutter"] + 200, at["y"] + 40
        self.browser.mouse("mouseWheel", *point, deltaX=0, deltaY=-50)
        assert self.range() == whole
        self.browser.mouse("mouseWheel", *point, deltaX=0, deltaY=-50, modifiers=2)
        near = self.range()
        assert near < whole
        at = frame(self.browser)
        point = at["x"] + at["gutter"] + 200, at["y"] + 40
        self.browser.drag(*point, *point)
        self.browser.mouse("mouseWheel", *point, deltaX=0, deltaY=-200)
        assert self.range() < near
        self.browser.evaluate(
            "[...document.querySelectorAll('.tools button')].find(b => b.textContent === 'Fit').click()"
        )
        assert self.range() == whole

    def test_a_drag_moves_and_on_the_axis_chooses_a_range(self) -> None:
        self.focus()
        self.key("+", "+")
        at, span = frame(self.browser), self.range()
        x, y = at["x"] + at["gutter"] + 400, at["y"] + 40
        self.browser.drag(x, y, x - 100, y)
        assert self.range() == pytest.approx(span)
        assert frame(self.browser)["from"] == pytest.approx(
            at["from"] + 100 * span / (at["width"] - at["gutter"]), rel=0.05
        )
        self.browser.drag(x, at["y"] + 8, x + 150, at["y"] + 8)
        assert self.range() == pytest.approx(150 * span / (at["width"] - at["gutter"]), rel=0.05)

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
        assert self.browser.evaluate("document.querySelector('.find output').textContent") == f"{len(matches)} matches"
        whole, seen = self.range(), set()
        for i in range(len(matches)):
            self.key("Enter")
            assert (
                self.browser.evaluate("document.querySelector('.find output').textContent")
                == f"{i + 1} of {len(matches)}"
            )
            seen.add(self.selected())
        assert seen == matches
        assert self.range() < whole
        assert wanted in self.said()

    def test_keys_alone_reach_everything(self) -> None:
        """Tab reaches the timeline, goes through its events, and leaves; Enter opens; the cause is a button."""
        self.browser.evaluate("document.querySelector('.find input').focus()")
        for _ in range(4):
            self.browser.key("Tab")
            if self.browser.evaluate("document.activeElement.className") == "frame":
                break
        self.key("Tab")
        assert self.selected() == 0
        self.key("Tab", "ArrowRight")
        assert self.selected() == 2
        assert self.data["texts"][self.data["events"]["name"][2]] in self.said()
        self.key("ArrowDown")
        assert self.data["events"]["track"][self.selected()] == 1
        self.key("ArrowUp", "Enter")
        assert "Cause" in self.browser.evaluate("document.activeElement.textContent")
        before = self.selected()
        self.key("Enter")
        assert self.selected() == self.data["events"]["cause"][before]
        self.key("Escape")
        assert self.selected() == -1
        assert self.browser.evaluate("document.activeElement.className") == "frame"
        self.key("Home")
        whole = self.range()
        self.key("+")
        assert self.range() < whole
        start = frame(self.browser)["from"]
        self.key("ArrowRight")
        assert frame(self.browser)["from"] > start
        self.key("-", "Home")
        assert self.range() == whole
        self.key("Escape", "Tab")
        assert self.browser.evaluate("document.activeElement.className") != "frame"

    def test_legend_and_buttons(self) -> None:
        self.browser.evaluate("document.querySelector('.drawn .legend button').click()")
        self.browser.settle()
        dim = self.browser.evaluate("placekit.timelines[0].dimmed.reduce((a, b) => a + b, 0)")
        assert dim == sum(c != 0 for c in self.data["events"]["colour"])
        height = frame(self.browser)["height"]
        self.browser.evaluate(
            "[...document.querySelectorAll('.tools button')].find(b => b.textContent === 'Links').click()"
        )
        self.browser.settle()
        assert frame(self.browser)["height"] < height


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [{"events": 400, "devices": 8}, {"events": 400, "runs": 2}, {"events": 60, "programs": 3}], ids=str
)
@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_needs_no_scrolling_to_the_side(
    browser: Browser, page: Page, shape: dict[str, int], dark: bool
) -> None:
    opened(browser, page(**shape), width=360, height=740, scale=2, touch=True, dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth") == 360
    assert browser.evaluate("[...document.querySelectorAll('.frame')].every(f => f.clientWidth < 360)")


@pytest.mark.slow
def test_a_phone_shows_numbers_instead_of_bars(browser: Browser, page: Page) -> None:
    shown = "[...document.querySelectorAll('svg.bar')].filter(b => b.checkVisibility()).length"
    opened(browser, page(events=400))
    assert browser.evaluate(shown) > 0
    opened(browser, page(events=400), width=360, height=740, scale=2, touch=True)
    assert browser.evaluate(shown) == 0
    seen = "[...document.querySelectorAll('.scroll')].find(s => s.ariaLabel.startsWith('What crosses'))"
    assert browser.evaluate(f"{seen}.scrollWidth <= {seen}.clientWidth")


@pytest.mark.slow
def test_short_events_have_the_mark_of_their_phase(browser: Browser, page: Page) -> None:
    """The last third of each device is backward; events are narrower than two pixels."""
    opened(browser, page(events=6000))
    dark = browser.evaluate("""(() => {
      const t = placekit.timelines[0], [lane] = t.lanes, scale = devicePixelRatio, { events } = t;
      const row = t.context.getImageData(0, (lane.y + lane.h - 1) * scale, t.canvas.width, 1).data;
      const ink = (time) => { const i = 4 * Math.floor(t.x(time) * scale); return row[i] + row[i + 1] + row[i + 2] < 130; };
      const share = (phase) => { const own = []; for (let e = events.first[0]; e < events.last[0]; e++)
        if (events.phase[e] === phase) own.push(ink((events.start[e] + events.end[e]) / 2) ? 1 : 0);
        return own.reduce((a, b) => a + b) / own.length; };
      return [share(0), share(1)];
    })()""")
    assert dark[0] < 0.02
    assert dark[1] > 0.95


@pytest.mark.slow
def test_fingers_choose_move_and_pinch(browser: Browser, page: Page) -> None:
    opened(browser, page(events=400), width=360, height=740, scale=2, touch=True)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        found = [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(points)]
        browser.call("Input.dispatchTouchEvent", type=kind, touchPoints=found)

    e = report(events=400)["runs"][0]["programs"][0]["timeline"]["events"]
    event = max(range(len(e["track"])), key=lambda i: e["duration_s"][i])
    x, y = middle(browser, event)
    touch("touchStart", (x, y))
    touch("touchEnd")
    browser.settle()
    at = frame(browser)
    assert at["selected"] == event
    assert browser.evaluate("document.querySelector('.details').checkVisibility()")
    y, whole = at["y"] + 60, at["to"] - at["from"]
    touch("touchStart", (150, y))
    touch("touchStart", (150, y), (200, y))
    for apart in (60, 80, 100):
        touch("touchMove", (175 - apart / 2, y), (175 + apart / 2, y))
    touch("touchEnd")
    browser.settle()
    near = frame(browser)
    assert near["to"] - near["from"] == pytest.approx(whole / 2, rel=0.1)
    touch("touchStart", (200, y))
    for x in (180, 160, 140, 120):
        touch("touchMove", (x, y))
    touch("touchEnd")
    browser.settle()
    assert frame(browser)["from"] > near["from"]


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_text_has_contrast(browser: Browser, page: Page, dark: bool) -> None:
    opened(browser, page(events=400), dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, background[4:-1].split(","))) < 64) == dark
    assert [x for x in browser.evaluate(CONTRASTS) if x[0] < TEXT_CONTRAST] == []


@pytest.mark.slow
def test_two_runs_share_one_time_axis(browser: Browser, tmp_path: Path) -> None:
    data = report(events=400, runs=2)
    data["runs"][1]["programs"] = report(events=400, devices=1)["runs"][0]["programs"]  # names of its lanes are shorter
    (tmp_path / "two.html").write_text(render(data))
    opened(browser, tmp_path / "two.html")
    first, second = frame(browser, 0), frame(browser, 1)
    assert (first["from"], first["to"], first["gutter"]) == (second["from"], second["to"], second["gutter"])
    browser.evaluate("document.querySelectorAll('.frame')[1].focus()")
    browser.key("+")
    browser.settle()
    closer = frame(browser, 0)
    assert closer["to"] - closer["from"] < first["to"] - first["from"]
    assert closer["to"] == frame(browser, 1)["to"]


@pytest.mark.slow
def test_a_family_shows_one_program_at_a_time(browser: Browser, page: Page) -> None:
    opened(browser, page(events=60, programs=3))
    seen = "[...document.querySelectorAll('article')].filter(a => a.checkVisibility()).map(a => a.dataset.program)"
    assert browser.evaluate(seen) == ["branch_0"]
    browser.evaluate(
        "(s => { s.selectedIndex = 2; s.dispatchEvent(new Event('change')); })(document.querySelector('select'))"
    )
    browser.settle()
    assert browser.evaluate(seen) == ["branch_2"]
    assert frame(browser, 1)["events"] > 0


@pytest.mark.slow
def test_curves_tell_their_values(browser: Browser, page: Page) -> None:
    opened(browser, page(events=400))
    for chart, wanted in ((".chart[data-memory]", "capacity"), (".chart[data-search]", "seed 3")):
        x, y = browser.evaluate(f"""(() => {{
          const over = document.querySelector("{chart} .u-over");
          over.scrollIntoView({{ block: "center" }});
          const box = over.getBoundingClientRect();
          return [box.left + box.width / 2, box.top + box.height / 2];
        }})()""")
        browser.mouse("mouseMoved", x, y)
        browser.settle()
        assert wanted in browser.evaluate(f"document.querySelector('{chart} .tip').innerText")


@pytest.mark.slow
def test_fifty_thousand_events_are_drawn(browser: Browser, page: Page) -> None:
    """No time is tested."""
    opened(browser, page(events=50_000, devices=8))
    assert frame(browser)["events"] == 50_000 // 15 * 15
    browser.evaluate("document.querySelector('.frame').focus()")
    for _ in range(8):
        browser.key("+")
    browser.settle()
    assert 0 < frame(browser)["events"] < 25_000
