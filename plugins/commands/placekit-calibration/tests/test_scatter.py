"""The scatter plot of `placekit fidelity`: a PNG of known size, the same bytes for the same values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from placekit_calibration.agreement import RANDOM, SEARCH, Fidelity
from placekit_calibration.scatter import SIZE, draw, figure
from placekit_report.figure import DPI


def values(measured_s: list[float], name: str = "chain") -> Fidelity:
    measured = np.array(measured_s)
    made = tuple(RANDOM if i % 2 else SEARCH for i in range(len(measured)))
    simulated = np.where(np.isfinite(measured), 0.9 * measured, 1.0)
    return Fidelity(
        program=name, cluster="cpu2", made=made, evaluations=np.zeros(len(measured), np.int64), simulated_s=simulated,
        measured_s=measured, spread_s=0.01 * measured, simulated_fits=np.ones(len(measured), np.bool_),
        error=(None,) * len(measured), samples_s=measured[None, :], scale=np.ones(1),
    )  # fmt: skip


def test_equal_values_give_equal_bytes(tmp_path: Path) -> None:
    found = values([0.1, 0.2, 0.15, 0.12])
    for name in ("a.png", "b.png"):
        draw(tmp_path / name, found)
    data = (tmp_path / "a.png").read_bytes()
    assert data == (tmp_path / "b.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(data[16:20], "big") == int(SIZE * DPI)


@pytest.mark.parametrize(("measured_s", "scale"), [([1e-3, 2e-3, 3e-3], "linear"), ([12e-3, 20e-3, 60e-3], "log")])
def test_axes_are_logarithmic_where_the_range_asks_for_it(measured_s: list[float], scale: str) -> None:
    [ax] = figure(values(measured_s)).axes
    assert ax.get_xscale() == ax.get_yscale() == scale
    assert ax.get_xlim() == ax.get_ylim()
    assert ax.get_xlabel() == "measured (ms)"
    low, high = ax.get_xlim()
    ax.figure.draw_without_rendering()
    named = [t.get_text() for t, at in zip(ax.get_xticklabels(), ax.get_xticks(), strict=True) if low <= at <= high]
    assert len([text for text in named if text]) >= 2, "numbers say what the axis is"


def test_bars_are_within_the_axes() -> None:
    found = replace(values([12e-3, 20e-3, 60e-3]), spread_s=np.array([1e-3, 1e-3, 20e-3]))
    low, high = figure(found).axes[0].get_xlim()
    assert low <= 11
    assert high >= 80


def test_what_could_not_be_measured_is_left_out_and_names_are_shown_as_they_are() -> None:
    fig = figure(values([0.1, np.nan, 0.3, 0.2, np.nan], "a$b_{$"))
    points = [
        line.get_xdata() for line in fig.axes[0].lines if line.get_linestyle() == "None" and line.get_marker() in "o^"
    ]
    assert sorted(np.concatenate(points).tolist()) == pytest.approx([100, 200, 300])
    assert fig.axes[0].get_title().startswith("a$b_{$ on cpu2, 3 placements")
    fig.draw_without_rendering()


def test_one_time_for_all() -> None:
    figure(values([0.1, 0.1, 0.1])).draw_without_rendering()
