"""The figures: PNG files of known size, the same bytes for the same profiles, and never a reason to lose a run."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import placekit_report
import pytest
from matplotlib.colors import to_hex
from placekit_report import placekit_run_finished
from placekit_report.figure import COLOURS, DPI, GREY, draw, figure
from placekit_report.logger import PAGE
from placekit_report.profile import FILE, Profile, load_profile, profile
from placekit_report.trace import TRACE
from placekit_testing.fakes import FakeBackend, chain, diamond, mixed, sources_only
from placekit_testing.speed import mostly_slow

from placekit_core import Labels, Problem, Result, search

pytest.importorskip("placekit_grouping", reason="a search groups by the grouper `none`")


def of(problem: Problem, seed: int = 0) -> Profile:
    """The profile of a random placement."""
    rng = np.random.default_rng(seed)
    device = [rng.choice(np.flatnonzero(row)) for row in problem.allowed]
    return profile(problem, FakeBackend().open(problem).schedule(problem.placement(device)))


def size(path: Path) -> tuple[int, int]:
    """Width and height of a PNG file, in pixels."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def searched(run_dir: Path, *log: str) -> Result:
    p = diamond()
    with search(p.graph, cluster=p.cluster, backend=FakeBackend(), budget=20, run_dir=run_dir, log=log) as s:
        while s.remaining:
            s.evaluate(s.rng.integers(0, s.problem.cluster.size, (4, s.problem.g)))
    assert s.result is not None
    return s.result


def test_the_profile_of_a_run_can_be_drawn(tmp_path: Path) -> None:
    result = searched(tmp_path / "r", "report")
    assert result.schedule is not None
    draw(tmp_path / "read.png", {"a": load_profile(tmp_path / "r")})
    draw(tmp_path / "made.png", {"a": profile(result.problem, result.schedule, result.summary.programs[0].program)})
    assert (tmp_path / "read.png").read_bytes() == (tmp_path / "made.png").read_bytes()


def test_writing_the_report_changes_no_result(tmp_path: Path) -> None:
    a, b = searched(tmp_path / "a"), searched(tmp_path / "b", "report")
    assert a.placement is not None
    assert b.placement is not None
    assert a.placement.same_as(b.placement)
    names = [{p.name for p in (tmp_path / x).iterdir()} for x in "ab"]
    assert names[1] - names[0] == {FILE, TRACE, PAGE}


@pytest.mark.parametrize("count", mostly_slow([1, 2, 3], [2]))
def test_equal_profiles_give_equal_bytes_of_the_expected_size(tmp_path: Path, count: int) -> None:
    runs = {f"run {i}": of(chain(), i) for i in range(count)}
    draw(tmp_path / "a.png", runs)
    draw(tmp_path / "b.png", runs)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    width, height = figure(runs).get_size_inches() * DPI
    assert size(tmp_path / "a.png") == (int(width), int(height))
    assert size(tmp_path / "a.png")[0] > 300 * count


def test_bars_are_the_seconds_of_the_profile() -> None:
    """12 types, phases in turn: eight colours and grey; the bars of a device add up to what it computes."""
    graph = chain(12).graph
    types = Labels.of(f"type{i}" for i in range(graph.n))
    phase = (np.arange(graph.n) % 3).astype(np.uint8)
    p = of(Problem.of(graph.replace(op_type=types, phase=phase), chain(12).cluster))
    upper, lower = figure({"a": p}).axes
    tops = {d: max(b.get_y() + b.get_height() for b in upper.patches if round(b.get_x() + 0.35) == d) for d in (0, 1)}
    assert [tops[d] for d in (0, 1)] == pytest.approx([1e3 * d.compute_s for d in p.devices]), "in ms"
    assert {to_hex(b.get_facecolor()) for b in upper.patches} == {*COLOURS, GREY}
    assert [b.get_height() for b in lower.patches] == pytest.approx([1e3 * d.copy_s for d in p.devices])
    assert any(line.get_ydata()[0] == pytest.approx(1e3 * p.makespan_s) for line in upper.lines)


def test_runs_share_their_axes_whatever_their_machines() -> None:
    fig = figure({"small": of(chain(4)), "large": of(mixed()), "none": of(sources_only())})
    upper = fig.axes[:3]
    assert len({ax.get_ylim() for ax in upper}) == 1
    assert [len(ax.get_xticks()) for ax in fig.axes[3:]] == [2, 3, 2]


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    """A `$` begins no formula; of a long path the end is shown."""
    name = "a/" * 60 + "$x_{$"
    draw(tmp_path / "a.png", {name: of(diamond())})
    title = figure({name: of(diamond())}).axes[0].get_title()
    assert title.startswith("…")
    assert title.partition("\n")[0].endswith("$x_{$")


def test_the_legend_fits() -> None:
    graph = chain(4).graph
    types = Labels.of(f"aten.{'some_long_name_' * i}backward" for i in range(graph.n))
    fig = figure({"a": of(Problem.of(graph.replace(op_type=types), chain(4).cluster))})
    fig.draw_without_rendering()
    assert fig.legends[0].get_window_extent().x1 <= fig.bbox.x1


def test_the_legend_shows_what_the_bars_have() -> None:
    """The update has no bar, one type runs backward only: no full colour of it, and no swatch of the update."""
    graph = chain(4).graph
    types = Labels.of("here" if i < 3 else "there" for i in range(graph.n))
    phase = np.array([0, 0, 0, *[1] * (graph.n - 3)], np.uint8)
    fig = figure({"a": of(Problem.of(graph.replace(op_type=types, phase=phase), chain(4).cluster))})
    bars = {b.get_facecolor() for b in fig.axes[0].patches}
    assert {p.get_facecolor() for p in fig.legends[0].get_patches()} == bars
    shown = {text.get_text() for text in fig.legends[0].get_texts()}
    assert {text.partition("  ")[2] or text for text in shown} == {"here", "there", "backward", "forward", "makespan"}


def test_titles_neither_touch_nor_leave_the_figure() -> None:
    p = of(chain(4))
    names = [f"annealing policy.starts=[{i} values] policy.temperature=0.{i} seed={i}" for i in range(4)]
    fig = figure(dict.fromkeys(names, p))
    fig.draw_without_rendering()
    boxes = [ax.title.get_window_extent() for ax in fig.axes[:4]]
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))
    assert all(b.y1 < fig._suptitle.get_window_extent().y0 for b in boxes)
    assert [" ".join(ax.get_title().split("\n")[:-1]) for ax in fig.axes[:4]] == names, "not cut"


def test_without_a_placement_there_is_no_profile(tmp_path: Path) -> None:
    p = diamond()
    with search(
        p.graph, cluster=p.cluster, backend=FakeBackend(failing=1.0), budget=4, run_dir=tmp_path, log=["report"]
    ) as s:
        s.evaluate(np.zeros((4, s.problem.g), np.int16))
    assert s.result is not None
    placekit_run_finished(tmp_path, s.result)
    assert not (tmp_path / FILE).exists()


def test_the_figure_opens_with_pillow_where_it_is_installed(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    draw(tmp_path / "a.png", {"a": of(diamond())})
    with image.open(io.BytesIO((tmp_path / "a.png").read_bytes())) as opened:
        opened.load()
        assert opened.size == size(tmp_path / "a.png")


def test_importing_the_plugin_imports_no_matplotlib() -> None:
    code = "import sys, placekit_report; sys.exit(any(m in sys.modules for m in ('matplotlib', 'torch')))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pyplot_is_never_imported() -> None:
    code = "import sys, placekit_report.figure; sys.exit('matplotlib.pyplot' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_notebook_shows_results_once_the_extension_is_loaded(tmp_path: Path) -> None:
    """What `%load_ext placekit_report` does, with a shell that keeps formatters by type as IPython's does."""
    formatters: dict[type, Callable[[Result], str]] = {}
    page = SimpleNamespace(for_type=formatters.__setitem__)
    placekit_report.load_ipython_extension(
        SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/html": page}))
    )
    result = searched(tmp_path / "r")
    assert formatters == {Result: placekit_report.html}
    shown = formatters[Result](result)
    assert "proven bound" in shown
    assert all(f">{device}</text>" in shown for device in result.problem.cluster.device_names)
