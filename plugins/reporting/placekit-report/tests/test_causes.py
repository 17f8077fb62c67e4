"""Why events start when they do, and the critical path."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from placekit_report.causes import WHY, Causes, copies_of, explain
from placekit_report.events import AHEAD, DEVICE, INPUT, LINK, NONE, TRANSFER, Events
from placekit_report.timeline import timeline
from placekit_report.whatif import utilisation, what_binds, what_would_change
from placekit_scheduling.tracing import run_traced
from placekit_testing.strategies import Case, problems, random_placements
from report_examples import DEVICES, SECONDS, three_on_two, with_seconds

from placekit_core import BackendError, Cluster, GraphBuilder, Problem, Schedule

Pipeline = pytest.importorskip("placekit_pipeline.pipeline").Pipeline
simulator = pytest.importorskip("placekit_sim.simulator")
BulkSynchronous, Simulator = simulator.BulkSynchronous, simulator.Simulator


def test_a_chain_of_three_on_two_devices() -> None:
    problem = with_seconds(three_on_two(), SECONDS)
    placement, session = problem.placement(DEVICES), Simulator().open(problem)
    schedule = session.schedule(placement)
    for causes in (explain(problem, schedule, placement, session), explain(problem, schedule)):
        sent, back = 5, 6
        assert causes.cause.tolist() == [-1, -1, 1, sent, back, 1, 3]
        assert [WHY[w] for w in causes.why] == [
            "started at once", "started at once", "waited for the device, which ran", "waited for the transfer of",
            "waited for the transfer of", "waited for its input from", "waited for its input from",
        ]  # fmt: skip
        assert causes.critical.tolist() == [1, sent, 3, back, 4]
        assert dict(zip(causes.part_name, causes.part_s.tolist(), strict=True)) == {
            "computing on gpu:0": 3.0, "computing on gpu:1": 4.0, "gpu:0 -> gpu:1": 3.0, "gpu:1 -> gpu:0": 5.0,
        }  # fmt: skip
        assert causes.part_name[0] == "gpu:1 -> gpu:0", "most seconds first"
    assert causes.derived
    assert not explain(problem, schedule, placement, session).derived


def test_a_step_that_waits_for_its_host() -> None:
    """Each launch takes 6 s: b, launched at 18, starts then, and c when its input has come back."""
    plain = with_seconds(three_on_two(), SECONDS)
    cluster = Cluster.parse({**plain.cluster.model_dump(), "hosts": [{"launch_s": 6.0}]})
    problem = Problem(plain.graph, plain.grouping, cluster, plain.costs)
    placement, session = problem.placement(DEVICES), Simulator().open(problem)
    schedule = session.schedule(placement)
    assert schedule.op_start_s.tolist() == [0, 6, 12, 18, 27]
    causes = explain(problem, schedule, placement, session)
    host = "waited for the host to launch it"
    assert [WHY[w] for w in causes.why[1:5]] == [host, host, host, "waited for the transfer of"]
    assert dict(zip(causes.part_name, causes.part_s.tolist(), strict=True)) == {
        "launching by the host": 18.0, "gpu:1 -> gpu:0": 5.0, "computing on gpu:1": 4.0, "computing on gpu:0": 1.0,
    }  # fmt: skip
    drawn = timeline(problem, schedule, causes, WHY)
    assert (drawn["tracks"]["name"][-1], drawn["tracks"]["kind"][-1]) == ("host", "host")
    events, last = drawn["events"], len(drawn["tracks"]["name"]) - 1
    [row] = [i for i, track in enumerate(events["track"]) if track == last]
    assert (events["start_s"][row], events["duration_s"][row]) == (0.0, 24.0)
    assert drawn["texts"][events["name"][row]] == "launches of 4 operations"
    binds = what_binds(problem, utilisation(problem, schedule), causes)
    assert "; launching operations, one after the other, by the host, takes 64" in binds
    found = what_would_change(problem, schedule, placement, causes, Simulator(), session).resources
    assert found is not None
    values = dict(zip(found.name, found.value_s.tolist(), strict=True))
    assert values["the host launches 2x as fast"] == schedule.end_s - 9


def test_a_measured_schedule_has_gaps() -> None:
    """The device starts a and b a quarter of a second late."""
    problem = with_seconds(three_on_two(), SECONDS)
    schedule = Simulator().open(problem).schedule(problem.placement(DEVICES))
    late, sent_s = np.array([0, 0.25, 0.25, 0.5, 0.5]), schedule.transfer_end_s + np.array([0.25, 0.5])
    schedule = replace(schedule, op_start_s=schedule.op_start_s + late, op_end_s=schedule.op_end_s + late)
    schedule = replace(
        schedule, transfer_start_s=schedule.transfer_start_s + np.array([0.25, 0.5]), transfer_end_s=sent_s
    )
    causes = explain(problem, schedule, measured=True)
    assert causes.why.tolist() == [NONE, NONE, DEVICE, TRANSFER, TRANSFER, INPUT, INPUT]
    parts = dict(zip(causes.part_name, causes.part_s.tolist(), strict=True))
    assert parts["waiting"] == pytest.approx(0.5), "before a, and before b"
    assert causes.part_s.sum() == pytest.approx(15.5)


def test_a_transfer_waits_for_the_link_and_streams_ahead() -> None:
    """Two parameters of device 0 are read by a and b of device 1; the link sends one after another."""
    b = GraphBuilder("stream")
    w, v = b.source("w", 4), b.source("v", 2)
    b.add("a", inputs=[w])
    b.add("b", inputs=[v])
    problem = with_seconds(Problem.of(b.build(), three_on_two().cluster), [0, 0, 1, 1])
    placement = problem.placement([0, 0, 1, 1])
    session = Simulator().open(problem)
    causes = explain(problem, session.schedule(placement), placement, session)
    assert (causes.cause.tolist(), causes.why.tolist()) == (
        [-1, -1, 4, 5, -1, 4],
        [NONE, NONE, TRANSFER, TRANSFER, NONE, LINK],
    )
    session = Simulator(prefetch=0).open(problem)
    causes = explain(problem, session.schedule(placement), placement, session)
    assert (causes.cause[5], WHY[causes.why[5]]) == (2, "was copied ahead, once the device had run")


def check(problem: Problem, schedule: Schedule, causes: Causes, exact: bool) -> None:
    """Causes end when events start, lead to the start, and the parts add up."""
    events = Events.of(problem, schedule)
    own = np.flatnonzero(causes.cause >= 0)
    before = causes.cause[own]
    assert (causes.why[causes.cause < 0] == NONE).all()
    assert (causes.why[own] != NONE).all()
    assert (events.end_s[before] <= events.start_s[own]).all()
    if exact:
        assert (events.end_s[before] == events.start_s[own]).all()
    assert (events.to[before][np.isin(causes.why[own], (TRANSFER, LINK))] >= 0).all()
    assert (events.to[before][np.isin(causes.why[own], (INPUT, DEVICE, AHEAD))] < 0).all()
    assert causes.part_s.sum() == pytest.approx(schedule.end_s)
    path = causes.critical
    assert (causes.cause[path[1:]] == path[:-1]).all()
    if len(path):
        assert causes.cause[path[0]] == -1
        assert events.end_s[path[-1]] == schedule.end_s


@settings(max_examples=60, deadline=None)
@given(
    case=problems(max_n=24, max_devices=4), prefetch=st.sampled_from([None, 0, 2]), noise=st.sampled_from([0.0, 0.3])
)
def test_causes_of_simulations(case: Case, prefetch: int | None, noise: float) -> None:
    problem = case.problem
    placement = problem.placement(*random_placements(case.rng, problem, 1, True).one(0))
    backend = Simulator(prefetch=None if problem.cluster.multicast else prefetch, noise=noise)
    session = backend.open(problem)
    schedule = session.schedule(placement)
    check(problem, schedule, explain(problem, schedule, placement, session), exact=True)
    derived = explain(problem, schedule)
    check(problem, schedule, derived, exact=False)
    assert derived.derived


def test_causes_of_micro_batches() -> None:
    """Two stages of 2 s, two micro-batches, messages of 3 s: the second message waits for the link."""
    b = GraphBuilder("stages")
    [y] = b.add("a", outputs=[3])
    b.add("b", inputs=[y])
    problem = with_seconds(Problem.of(b.build(), three_on_two().cluster), [2, 2])
    session, placement = Pipeline(microbatches=2).open(problem), problem.placement([0, 1])
    schedule = session.schedule(placement)
    assert schedule.spans is not None
    assert schedule.spans.name == ("forward 0", "forward 1", "forward 0", "forward 1", "activations 0", "activations 1")
    causes = explain(problem, schedule, placement, session)
    check(problem, schedule, causes, exact=True)
    assert causes.derived
    assert causes.cause.tolist() == [-1, 0, 4, 5, 0, 4]
    assert causes.why.tolist() == [NONE, DEVICE, TRANSFER, TRANSFER, INPUT, LINK]
    assert causes.critical.tolist() == [0, 4, 5, 3]
    assert dict(zip(causes.part_name, causes.part_s.tolist(), strict=True)) == {
        "gpu:0 -> gpu:1": 6.0, "computing on gpu:0": 2.0, "computing on gpu:1": 2.0,
    }  # fmt: skip


def test_a_trace_of_another_run_is_refused() -> None:
    problem = with_seconds(three_on_two(), SECONDS)
    session = Simulator().open(problem)
    schedule, other = (session.schedule(problem.placement(d)) for d in (DEVICES, [0, 0, 0, 0, 0]))
    kernel = session.kernel()
    assert kernel is not None
    run = run_traced(kernel, problem, np.asarray(DEVICES, np.int16), None)
    assert len(copies_of(problem, schedule, run)) == 2
    with pytest.raises(BackendError, match="is not that of its schedule"):
        copies_of(problem, other, run)
