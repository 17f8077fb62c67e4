"""What would change a placement: by hand, and against simulations from scratch."""

from __future__ import annotations

import numpy as np
import pytest
from placekit_report import whatif
from placekit_report.causes import explain
from placekit_report.resources import launch_share, more_of_each, scaled_costs
from placekit_report.whatif import Change, what_would_change
from placekit_testing.strategies import random_placements, random_problem
from report_examples import DEVICES, SECONDS, three_on_two, with_seconds

from placekit_core import Backend, Cluster, CostTable, Placement, Placements, Problem

Pipeline = pytest.importorskip("placekit_pipeline.pipeline").Pipeline
Simulator = pytest.importorskip("placekit_sim.simulator").Simulator


def change_of(problem: Problem, placement: Placement, backend: Backend | None = None) -> Change:
    backend = backend or Simulator()
    session = backend.open(problem)
    schedule = session.schedule(placement)
    causes = explain(problem, schedule, placement, session)
    return what_would_change(problem, schedule, placement, causes, backend, session)


def test_a_chain_of_three_on_two_devices() -> None:
    problem = with_seconds(three_on_two(), SECONDS)
    change = change_of(problem, problem.placement(DEVICES))
    assert change.value_s == 15
    used = zip(change.utilisation.name, (15 * change.utilisation.share).tolist(), strict=True)
    assert list(used) == [("gpu:0", 4), ("gpu:1", 4), ("gpu:0 -> gpu:1", 3), ("gpu:1 -> gpu:0", 5)]
    sends = "gpu:1 -> gpu:0 sends during 33.3% of the step"
    assert change.binds == f"{sends}; the link gpu:1 -> gpu:0 takes 33.3% of the critical path"


def test_single_moves_by_hand() -> None:
    """b to device 0: all run one after another, 8 s. c to device 1: 2 + 3 + 4 + 1 s. d away: nothing changes, 15 s."""
    problem = with_seconds(three_on_two(), SECONDS)
    moves = change_of(problem, problem.placement(DEVICES)).moves
    assert moves is not None
    assert len(moves.group) == 5
    assert (moves.group[:2].tolist(), moves.source[:2].tolist(), moves.target[:2].tolist()) == ([3, 4], [1, 0], [0, 1])
    assert moves.value_s[:2].tolist() == [8, 10]
    assert moves.text.endswith("of 5 single moves that were simulated would be better")


def test_resources_by_hand() -> None:
    """Given seconds: a device twice as fast halves them. What changes nothing (memory, launches, latency) is left out."""
    problem = with_seconds(three_on_two(), [0, 2, 1, 4, 1])
    unknown = Problem(
        problem.graph.replace(flops=np.zeros(5), bytes_accessed=np.zeros(5)),
        problem.grouping,
        problem.cluster,
        problem.costs,
    )
    resources = change_of(unknown, problem.placement(DEVICES)).resources
    assert resources is not None
    assert dict(zip(resources.name, resources.value_s.tolist(), strict=True)) == {
        "links among *: 2x the bandwidth": 11.0, "each gpu computes 2x as fast": 11.5,
    }  # fmt: skip


def test_estimated_seconds_are_estimated_again() -> None:
    """a: 4 operations and 2 bytes, each 1 per second, and a launch of 0.5 s; c: a launch only."""
    problem = three_on_two(launch_overhead_s=0.5)
    assert problem.op_s[:, 0].tolist() == [0, 4.5, 0.5, 4.5, 0.5]
    by_name = {r.name: r for r in more_of_each(problem.cluster)}

    def column(name: str) -> list[float]:
        return by_name[name].problem(problem).op_s[:, 0].tolist()

    assert column("each gpu computes 2x as fast") == [0, 2.5, 0.5, 2.5, 0.5]
    assert column("each gpu has 2x the memory bandwidth") == [0, 4.5, 0.5, 4.5, 0.5]
    assert column("each gpu has no launch overhead") == [0, 4, 0, 4, 0]
    assert launch_share(problem)[:, 0].tolist() == pytest.approx([0, 1 / 9, 1, 1 / 9, 1])


def test_measured_seconds_change_as_their_estimate_does() -> None:
    problem = three_on_two(launch_overhead_s=0.5)
    op_s = problem.op_s[:, :1].copy()
    op_s[1] = 9.0
    costs = CostTable(("gpu",), op_s, np.arange(5)[:, None] == 1)
    measured = Problem(problem.graph, problem.grouping, problem.cluster, costs)
    fast = {r.name: r for r in more_of_each(problem.cluster)}["each gpu computes 2x as fast"]
    changed = scaled_costs(measured, fast.cluster, fast.speed)
    assert changed.op_s[:, 0].tolist() == [0, 9 * 2.5 / 4.5, 0.5, 2.5, 0.5]
    assert np.shares_memory(changed.measured, costs.measured)
    assert launch_share(measured)[1, 0] == 0, "a measured figure does not say"


def test_more_of_a_link_goes_both_ways_and_one_by_one() -> None:
    data = three_on_two().cluster.model_dump()
    way = {"bytes_per_s": 4.0, "latency_s": 1.0}
    data["links"] = [{"a": "gpu:0", "b": "hub", **way, "reverse": way}, {"a": "gpu:1", "b": "hub", **way}]
    cluster = Cluster.parse(data)
    found = {r.name: r.cluster.routes for r in more_of_each(cluster)}
    names = ["all links", "link gpu:0 - hub", "link gpu:1 - hub"]
    assert {n for n in found if "link" in n} == {
        f"{n}: {x}" for n in names for x in ("2x the bandwidth", "half the latency")
    }
    assert found["all links: 2x the bandwidth"].s_per_byte[0, 1] == 1 / 8
    assert found["link gpu:0 - hub: 2x the bandwidth"].s_per_byte[0, 1] == 1 / 4, "the other link is as narrow"
    data |= {
        "devices": [{"kind": "gpu", "count": 17}],
        "links": [{"a": f"gpu:{i}", "b": "hub", **way} for i in range(17)],
    }
    many = [r.name for r in more_of_each(Cluster.parse(data)) if "link" in r.name]
    assert many == ["all links: 2x the bandwidth", "all links: half the latency"]
    for way_of in ((0, 1), (1, 0)):
        assert found["link gpu:0 - hub: half the latency"].latency_s[way_of] == 1.5
        assert found["all links: half the latency"].latency_s[way_of] == 1.0


def test_moves_are_simulations_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    problem = random_problem(rng, 60, 4)
    placement = problem.placement(random_placements(rng, problem).device)
    monkeypatch.setattr(whatif, "MOST", 7)
    change, again = change_of(problem, placement), change_of(problem, placement)
    assert change.moves is not None
    assert again.moves is not None
    assert " of 7 single moves" in change.moves.text
    assert len(set(change.moves.group.tolist())) == len(change.moves.group), "each group once, with its best device"
    assert "those on the critical path came first" in change.moves.text
    assert change.moves.value_s.tolist() == again.moves.value_s.tolist()
    session = Simulator().open(problem)
    for group, target, value_s in zip(change.moves.group, change.moves.target, change.moves.value_s, strict=True):
        device = placement.device.copy()
        device[group] = target
        assert session.evaluate(Placements.of(device)).value_s[0] == value_s


def test_without_a_simulation_there_is_a_reason() -> None:
    problem = with_seconds(three_on_two(), SECONDS)
    placement = problem.placement(DEVICES)
    schedule = Simulator().open(problem).schedule(placement)
    causes = explain(problem, schedule, measured=True)
    change = what_would_change(problem, schedule, placement, causes)
    assert (change.moves, change.resources) == (None, None)
    assert "nothing simulates" in change.reason
    assert change.binds
