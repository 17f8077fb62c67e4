"""Pictures of schedules: their numbers are the schedule's, equal schedules give equal bytes, nothing comes from outside."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
from placekit_report.svg import Panel, svg
from placekit_testing import fakes

from placekit_core import Problem, Schedule, Spans, units

SVG = "{http://www.w3.org/2000/svg}"


def scheduled(problem: Problem, seed: int = 0) -> Schedule:
    """The schedule of a random placement."""
    rng = np.random.default_rng(seed)
    device = [rng.choice(np.flatnonzero(row)) for row in problem.allowed]
    return fakes.FakeBackend().open(problem).schedule(problem.placement(device))


def tooltips(text: str) -> list[str]:
    """The tooltips of the blocks of a picture."""
    return [title.text or "" for title in ElementTree.fromstring(text).iter(f"{SVG}title")]


def test_tooltips_have_the_numbers_of_the_schedule() -> None:
    problem = fakes.mixed()
    s = scheduled(problem)
    shown = tooltips(svg([Panel(problem, s)]))
    for v in np.flatnonzero(problem.graph.kernel):
        length = units.seconds(s.op_end_s[v] - s.op_start_s[v])
        assert f"{problem.graph.op_name[v]}\n{length} from {units.seconds(s.op_start_s[v])}" in shown
    assert len(shown) == problem.graph.kernel.sum() + len(s.transfer_tensor)


def test_short_events_are_merged() -> None:
    problem = fakes.chain(5_000)
    text = svg([Panel(problem, scheduled(problem))])
    shown = tooltips(text)
    assert len(shown) < 1_500
    counts = [int(m[1]) if (m := re.match(r"(\d+) events", t)) else 1 for t in shown]
    s = scheduled(problem)
    assert sum(counts) == problem.graph.kernel.sum() + len(s.transfer_tensor)


def test_micro_batches_and_titles() -> None:
    problem = fakes.diamond()
    device, to, bytes_ = np.array([0, 1, 0], np.int16), np.array([-1, -1, 1], np.int16), np.array([0.0, 0, 5])
    start, end = np.array([0.0, 2.0, 1.0]), np.array([1.0, 4.0, 2.0])
    spans = Spans(("forward 7", "backward 7", "output 7"), device, to, bytes_, start, end)
    text = svg([Panel(problem, replace(scheduled(problem), spans=spans, value_s=4.0), "two tasks")])
    written = [t.text for t in ElementTree.fromstring(text).iter(f"{SVG}text")]
    assert {"forward", "backward", "two tasks"} <= {*written}
    assert "backward 7\n2 s from 2 s" in tooltips(text)


def test_pictures_are_the_same_each_time_and_ask_for_nothing() -> None:
    first, second = fakes.diamond(), fakes.sources_only()
    panels = [Panel(first, scheduled(first)), Panel(second, scheduled(second), "the <other> & \x01\ufffe")]
    text = svg(panels)
    assert text == svg(panels)
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"@import|<script|href|font-face", text)
    assert "the &lt;other&gt; &amp; \ufffd\ufffd" in text
    assert "-&gt;" not in svg(panels, links=False)
    assert ">said &lt;below&gt;</text>" in svg(panels, note="said <below>")
