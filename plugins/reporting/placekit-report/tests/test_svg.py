"""The static timeline: its numbers are the schedule's, its bytes are the same each time, and it asks for nothing from outside."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from placekit_report.blocks import PAIRS, blocks, lanes
from placekit_report.modules import OTHER
from placekit_report.style import GREY
from placekit_report.svg import BLOCKS, Panel, _colour, svg
from placekit_report.timeline import Items
from placekit_testing import fakes
from placekit_testing.small import machine

from placekit_core import Labels, Problem, Schedule, Spans, units

LONG = ".".join(["decoder"] * 20)
SVG = "{http://www.w3.org/2000/svg}"


def scheduled(problem: Problem, seed: int = 0) -> Schedule:
    """The schedule of a random placement."""
    rng = np.random.default_rng(seed)
    device = [rng.choice(np.flatnonzero(row)) for row in problem.allowed]
    return fakes.FakeBackend().open(problem).schedule(problem.placement(device))


def one_after_another(n: int, devices: int = 8) -> Panel:
    """`n` operations one after another, on any device, of 1 to 2 us with pauses; seven modules in turn, three phases."""
    graph = fakes.chain(n).graph
    module = Labels.of(f"{LONG}.part{i % 7}" for i in range(graph.n))
    phase = (np.arange(graph.n) * 3 // graph.n).astype(np.uint8)
    names = tuple(f"{LONG}.{name}" for name in graph.op_name)
    problem = Problem.of(graph.replace(op_name=names, module=module, phase=phase), machine(devices))
    rng = np.random.default_rng(1)
    length, pause = rng.uniform(1e-6, 2e-6, graph.n), rng.exponential(5e-7, graph.n)
    length[~graph.kernel] = pause[~graph.kernel] = 0.0
    end = np.cumsum(length + pause)
    device, none = rng.integers(0, devices, graph.n).astype(np.int16), np.zeros(0)
    empty = none.astype(np.int16)
    return Panel(
        problem,
        Schedule(
            device, np.zeros(graph.n, np.int32), end - length, end, none.astype(np.int32), empty, empty, none, none,
            float(end[-1]),
        ),
    )  # fmt: skip


def rectangles(text: str) -> Iterator[tuple[ElementTree.Element, str]]:
    """The blocks of a picture, with their tooltips."""
    for rect in ElementTree.fromstring(text).iter(f"{SVG}rect"):
        title = rect.find(f"{SVG}title")
        if title is not None:
            yield rect, title.text or ""


def seconds(text: str) -> float:
    """What `units.seconds` wrote."""
    value, unit = text.split()
    return float(value) / {"s": 1.0, "ms": 1e3, "us": 1e6}[unit]


@pytest.mark.parametrize("make", [fakes.diamond, fakes.chain, fakes.mixed, fakes.grouped, fakes.unequal])
def test_tooltips_have_the_numbers_of_the_schedule(make: Callable[[], Problem]) -> None:
    problem = make()
    s = scheduled(problem)
    shown = {title for _, title in rectangles(svg([Panel(problem, s)]))}
    graph = problem.graph
    output = np.bincount(graph.tensor_producer, graph.tensor_bytes, minlength=graph.n)
    for v in np.flatnonzero(graph.kernel):
        end = f"{units.seconds(s.op_end_s[v] - s.op_start_s[v])} from {units.seconds(s.op_start_s[v])}"
        end += f", output {units.mebibytes(output[v])}" if output[v] else ""
        assert any(t.startswith(f"{graph.op_name[v]}\n") and t.endswith(end) for t in shown), graph.op_name[v]
    for x, tensor in enumerate(s.transfer_tensor):
        length = units.seconds(s.transfer_end_s[x] - s.transfer_start_s[x])
        sent = f"{length} from {units.seconds(s.transfer_start_s[x])}, {units.mebibytes(graph.tensor_bytes[tensor])}"
        assert any(t.endswith(sent) and "→" in t for t in shown)


def test_the_picture_of_many_operations_is_small_and_its_areas_are_their_seconds() -> None:
    panel = one_after_another(10_000)
    text = svg([panel])
    assert 100_000 < len(text.encode()) < 200_000
    found = list(rectangles(text))
    assert len(found) <= BLOCKS
    computed_s = float(panel.schedule.op_total_s.sum())
    assert sum(int(re.match(r"(\d+) operations", t)[1]) if "operations" in t else 1 for _, t in found) == sum(
        panel.problem.graph.kernel
    )  # type: ignore[index]
    busy = sum(seconds(re.search(r"\n([\d.]+ \w+) (of|from)", t)[1]) for _, t in found)  # type: ignore[index]
    assert busy == pytest.approx(computed_s, rel=1e-3)
    lane = next(r for r in ElementTree.fromstring(text).iter(f"{SVG}rect") if r.get("class") == "lane")
    full = float(lane.get("width", "")) * float(lane.get("height", ""))  # the whole step of one device
    sides = [(float(r.get("width", "")), float(r.get("height", ""))) for r, _ in found]
    area = sum((w + 0.5 * (w > 3.5)) * h for w, h in sides)  # wide blocks leave half a pixel free
    assert area / full * panel.schedule.end_s == pytest.approx(busy, rel=0.02)


def test_what_overlaps_is_busy_once() -> None:
    """Two streams, and transfers that overlap on one pair of devices."""
    problem = fakes.independent(4)
    zeros, dst, start = np.zeros(4, np.int16), np.ones(4, np.int16), np.array([0.0, 1.0, 1.5, 6.0])
    end = np.array([4.0, 2.0, 3.0, 7.0])
    stream = np.array([0, 1, 2, 0], np.int32)
    tensors = np.arange(4, dtype=np.int32)
    s = Schedule(zeros, stream, start, end, tensors, zeros, dst, start + 1, end + 1, 8.0)
    items = Items.of(problem, s)
    found = lanes(problem, items)
    assert [lane.name for lane in found][:3] == ["gpu:0", "gpu:0 stream 1", "gpu:0 stream 2"]
    assert found[-1].name == "gpu:0 → gpu:1"
    sent = blocks(items, found, 0.01, BLOCKS)[-1]
    assert [(b.start_s, b.end_s, b.busy_s, len(b.items)) for b in sent] == [(1, 5, 4, 3), (7, 8, 1, 1)]


def test_many_pairs_share_the_lanes_of_their_senders() -> None:
    problem, rng = Problem.of(fakes.independent(40).graph, machine(6)), np.random.default_rng(0)
    s = scheduled(problem)
    x = 200
    src = rng.integers(0, 6, x).astype(np.int16)
    dst, start = ((src + rng.integers(1, 6, x)) % 6).astype(np.int16), rng.uniform(0, s.end_s, x)
    tensor = rng.integers(0, len(problem.graph.tensor_bytes), x).astype(np.int32)
    s = replace(s, transfer_tensor=tensor, transfer_src=src, transfer_dst=dst, transfer_start_s=start,
                transfer_end_s=start + 1e-6)  # fmt: skip
    links = [lane for lane in lanes(problem, Items.of(problem, s)) if lane.link]
    assert len({*zip(src.tolist(), dst.tolist(), strict=True)}) > PAIRS
    assert [lane.name for lane in links] == [f"gpu:{d} sends" for d in range(6)]
    assert sum(len(lane.items) for lane in links) == x


def test_micro_batches_have_their_numbers() -> None:
    problem = fakes.diamond()
    device, to, bytes_ = np.array([0, 1, 0], np.int16), np.array([-1, -1, 1], np.int16), np.array([0.0, 0, 5])
    start, end = np.array([0.0, 2.0, 1.0]), np.array([1.0, 4.0, 2.0])
    spans = Spans(("forward 7", "backward 7", "output 7"), device, to, bytes_, start, end)
    text = svg([Panel(problem, replace(scheduled(problem), spans=spans, value_s=4.0), "two tasks")])
    root = ElementTree.fromstring(text)
    written = [t.text for t in root.iter(f"{SVG}text")]
    assert {"forward 7", "backward 7", "Numbers are micro-batches.", "two tasks"} <= {*written}
    assert any(t.startswith("backward 7\n") and t.endswith("2 s from 2 s") for _, t in rectangles(text))


def test_pictures_are_the_same_each_time_and_ask_for_nothing() -> None:
    first, second = fakes.diamond(), fakes.mixed()
    panels = [Panel(first, scheduled(first)), Panel(second, scheduled(second), "the <other> & \x01\ufffe")]
    text = svg(panels)
    assert text == svg(panels)
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"@import|<script|href|font-face", text)
    name = ElementTree.fromstring(text).get("id")
    assert set(re.findall(r"url\(#(\w+)-", text)) <= {name}, "pictures on one page do not use each other's patterns"
    assert "prefers-color-scheme:dark" in text
    assert "the &lt;other&gt; &amp; ��" in text
    assert "→" not in svg(panels, links=False)
    assert ">said &lt;below&gt;</text>" in svg(panels, note="said <below>")


def test_a_program_of_sources_has_an_empty_picture() -> None:
    problem = fakes.sources_only()
    text = svg([Panel(problem, scheduled(problem))])
    assert not list(rectangles(text))
    assert "idle" in text


def test_ten_modules_have_ten_colours() -> None:
    names = [f"m{i}" for i in range(10)]
    assert len({_colour(i, names) for i in range(10)}) == 10
    assert _colour(3, ["a", "b", "c", OTHER]) == GREY
