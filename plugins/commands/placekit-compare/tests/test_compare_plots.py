"""How plots are drawn: axes, marks, colours, and lines that leave texts alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from placekit_compare.plots import distribution
from placekit_compare.rows import Row
from placekit_compare.svg import Axis, Style, axis, palette, stacked
from placekit_testing.small import chain, machine

from placekit_core import Summary, place


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """The summary of a small run."""
    folder: Path = tmp_path_factory.mktemp("base") / "run"
    return place(chain(6), cluster=machine(2), policy="etf", baselines=[], run_dir=folder).summary


@pytest.mark.parametrize(
    ("bound_s", "kinds"), [(1.0, ["bound", "device"]), (0.1, ["device"]), (None, ["device"])], ids=str
)
def test_lines_across_look_the_same_everywhere_and_strike_through_no_text(
    base: Summary, bound_s: float | None, kinds: list[str]
) -> None:
    """The bound and the best single device stand at the left and the right, where the names and the medians are."""
    values = {"a_policy": [1.05, 1.1, 1.4], "a_policy_with_a_rather_long_name": [1.2, 1.45, 1.5]}
    found = []
    for label, each in values.items():
        changes: list[dict[str, Any]] = [{"seed": i, "value_s": v, "bound_s": bound_s} for i, v in enumerate(each)]
        found.append(Row(label, [base.model_copy(update=c) for c in changes], one_device_s=1.5))
    drawn = distribution(found, {row.label: Style(i) for i, row in enumerate(found)})
    texts = re.findall(r'<text x="(.+?)" y="(.+?)" text-anchor="(\w+)".*?>(.+?)</text>', drawn)
    lines = re.findall(r'<path d="([^"]+)" class="reference (\w+)"', drawn)
    assert [kind for _, kind in lines] == kinds
    broken = 0
    for d, _ in lines:
        pieces = [tuple(map(float, piece)) for piece in re.findall(r"M(\S+?) (\S+?)V([\d.]+)", d)]
        broken += len(pieces) - 1
        for x, top, bottom in pieces:
            assert top < bottom
            for start, y, anchor, text in texts:
                width = 5.5 * len(text)
                left = float(start) - {"start": 0, "middle": width / 2, "end": width}[anchor]
                assert not (left < x < left + width and top < float(y) - 4 < bottom), text
    assert broken >= 2 * len(kinds), "around the texts of both rows"


@pytest.mark.parametrize(
    ("values", "log"), [([1.0, 9.0], False), ([1.0, 11.0], True), ([3.0], False), ([0.0, 50.0], False)]
)
def test_axes_have_a_few_round_ticks(values: list[float], log: bool) -> None:
    found = axis(values, 0.0, 300.0)
    assert found.log == log
    assert all(0 <= found(v) <= 300 for v in values)
    ticks = found.ticks(5)
    assert 2 <= len(ticks) <= 8
    assert all(len(f"{t:.6g}") <= 4 for t in ticks)


def test_logarithmic_axes_of_a_narrow_and_a_wide_range() -> None:
    assert Axis(1.0, 10.0, 0, 1, log=True).ticks(4) == [1, 2, 5, 10]
    assert Axis(0.7, 1400.0, 0, 1, log=True).ticks(4) == [1, 10, 100, 1000]
    assert len(Axis(1e-3, 1e5, 0, 1, log=True).ticks(4)) <= 5


def test_marks_of_equal_values_are_beside_one_another() -> None:
    assert stacked([5.0, 5.0, 5.0, 50.0], 7.0, 7) == [0, 1, -1, 0]
    assert len(set(stacked([5.0] * 7, 7.0, 7))) == 7
    assert set(stacked([5.0] * 9, 7.0, 7)) == set(stacked([5.0] * 7, 7.0, 7))


def test_every_colour_is_seen_on_a_white_and_on_a_dark_page() -> None:
    """Contrast of at least 3 : 1, as WCAG 2.1 asks for graphics (1.4.11); and 56 policies look different."""

    def light(colour: str) -> float:
        parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    on_white, on_dark = (re.findall(r"--c\d: (#\w{6})", line) for line in palette().splitlines()[:2])
    assert len(on_white) == len(on_dark) == 8
    assert min(1.05 / (light(c) + 0.05) for c in on_white) >= 3
    assert min((light(c) + 0.05) / (light("#15191d") + 0.05) for c in on_dark) >= 3
    assert len({Style(i).key() for i in range(56)}) == 56
