"""Starts where memory binds: cuts in the order of b-levels, and placements that are made to fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from placekit_search.memory_starts import Cuts, cut, repaired, too_large
from placekit_search.portfolio import Portfolio
from placekit_search.starts import Start
from search_helpers import machine, search, task_of

from placekit_core import GraphBuilder, Placements, Problem


def two_nets(memory_bytes: int = 4 * 10**9, layers: int = 3) -> Problem:
    """Two chains of `layers` with parameters of 1 GB each, joined by a tensor of 1 kB; every layer sends 100 MB on."""
    b = GraphBuilder("two nets")
    x = b.source("x", 1000, op_type="input")
    for i in range(2 * layers):
        weight = b.source(f"w{i}", 10**9, op_type="parameter")
        x = b.add(f"layer{i}", inputs=[x, weight], outputs=[1000 if i == layers - 1 else 10**8], flops=1e9)[0]
    return Problem.of(b.build(), machine(2, 1, flops_per_s=1e12, memory_bytes=memory_bytes, bytes_per_s=1e8))


def test_a_cut_is_where_little_is_sent() -> None:
    problem = two_nets()
    cuts = Cuts(problem)
    found = cuts.placements(cuts.first(8))
    kernels = [v for v in range(problem.graph.n) if problem.graph.kernel[v]]
    split = {tuple(row[problem.grouping.group_of[kernels]].tolist()) for row in found.device}
    assert (0, 0, 0, 1, 1, 1) in split


def test_borders_slide_to_a_cut_that_fits() -> None:
    """A cut of two devices is the better the closer it is to one of two or more groups further on; the ones before do not fit."""
    problem = two_nets(2**40, layers=40)
    cuts = Cuts(problem)
    assert cuts.neighbours((1, 3)) == [(2, 3), (1, 2), (1, 4)]
    first = {borders[0] for borders in cuts.first(48) if len(borders) == 1}
    target = next(b for b in range(3, problem.g) if first.isdisjoint((b - 1, b, b + 1)))
    asked = list[int]()

    def measure(some: Placements) -> list[Start]:
        rows = list[Start]()
        for row in some.device:
            here, third = int((row == cuts.fastest[0]).sum()), bool((row == cuts.fastest[2]).any())
            asked.append(here)
            value_s = 9.0 if third else 2.0 + abs(here - target) / 100
            rows.append(Start(value_s, 0.001 * (here < target), row, None, 0))
        return rows

    found = cut(problem, 64, measure, lambda: False)
    assert len(found) == len(asked) <= 64
    assert (2.0, 0.0) in [s[:2] for s in found]
    assert target in asked[48:]
    assert cut(problem, 64, measure, lambda: True) == []


def test_nothing_to_cut() -> None:
    """One device; one group."""
    one = GraphBuilder("one")
    one.add("layer", flops=1e9)
    for problem in (Problem.of(two_nets().graph, machine(1, memory_bytes=2**40)), Problem.of(one.build(), machine(2))):
        assert cut(problem, 8, lambda some: pytest.fail("measured"), lambda: False) == []


def test_only_faster_starts_that_do_not_fit_count_once_each() -> None:
    a, b, c = (np.full(3, d, np.int16) for d in range(3))
    failure = (1.0, 9.0, a)
    measured = [(2.0, 0.0, a), (1.0, 0.5, b), (1.0, 0.5, b), (1.2, 0.1, c), (3.0, 0.1, a), failure]
    rows = [Start(value_s, over, device, None, 0) for value_s, over, device in measured]
    assert [start.value_s for start in too_large(rows)] == [1.2, 1.0]
    assert too_large(rows[:1]) == []


def test_repaired_starts_fit() -> None:
    problem = two_nets()
    task = task_of(problem, 100)
    device = np.zeros(problem.g, np.int16)
    measured = task.evaluate(Placements.of(device[None]))
    assert not measured.fits[0]
    large = [Start(float(measured.value_s[0]), 0.5, device, None, 0)]
    [start] = repaired(task, large, 50, lambda: False)
    assert task.evaluate(Placements.of(start.device[None])).fits[0]
    assert repaired(task, large, 50, lambda: True) == []
    assert repaired(task, large, 3, lambda: False) == []


@pytest.mark.parametrize(("memory_bytes", "binds"), [(4 * 10**9, True), (2**40, False)])
def test_the_default_search_has_them_only_where_memory_binds(
    monkeypatch: pytest.MonkeyPatch, memory_bytes: int, binds: bool
) -> None:
    """Links are slow, so that everything on one GPU is fastest; its 6 GB fit only if its memory is large."""
    counts = []

    def spy(*arguments: Any) -> list[Start]:
        found = cut(*arguments)
        counts.append(len(found))
        return found

    monkeypatch.setattr("placekit_search.portfolio.cut", spy)
    evaluate = search(Portfolio(), two_nets(memory_bytes), 400)
    assert evaluate.evaluations == 400
    assert [count > 0 for count in counts] == [True] * binds
