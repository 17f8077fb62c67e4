"""Checks that a schedule is possible: they raise AssertionError that names the first wrong operation or tensor."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from placekit_core import Placement, Problem, Schedule

_ROUNDING = 1e-9  # relative to the end of a run, because an end minus a start is rounded


def check_events(
    problem: Problem, placement: Placement, schedule: Schedule, views: Mapping[int, int], clock_s: float
) -> None:
    """Check columns, inputs, transfers and streams; `clock_s` is the allowed difference between clocks of devices."""
    _check_columns(problem, placement, schedule, clock_s)
    _check_rounds(problem, schedule)
    _check_inputs(problem, schedule, views, clock_s)
    producer = problem.graph.tensor_producer[schedule.transfer_tensor]
    assert np.array_equal(schedule.transfer_src, schedule.op_device[producer]), (
        "a transfer starts on a device without the tensor"
    )
    assert np.all(schedule.transfer_src != schedule.transfer_dst), "a transfer goes to the device that sends it"
    early = np.flatnonzero(schedule.transfer_start_s < schedule.op_end_s[producer] - clock_s)
    assert not len(early), f"tensor {schedule.transfer_tensor[early[0]]} is sent before it is written"
    _check_streams(problem, schedule, clock_s)


def _check_columns(problem: Problem, placement: Placement, schedule: Schedule, clock_s: float) -> None:
    """Each operation runs once, on the device of its group; nothing begins before the run, or ends before it begins."""
    for what, rows, columns in (
        ("operation", problem.graph.n, ("op_start_s", "op_end_s", "op_device", "op_stream")),
        ("transfer", len(schedule.transfer_tensor), (
            "transfer_start_s", "transfer_end_s", "transfer_src", "transfer_dst",
        )),
    ):  # fmt: skip
        start, end, *_ = found = [getattr(schedule, name) for name in columns]
        for column in found:
            assert column.shape == (rows,), f"a column of {what}s has shape {column.shape}, not {(rows,)}"
        assert np.all(start >= -clock_s), f"a {what} starts before the run"
        assert np.all(start <= end + clock_s), f"a {what} ends before it starts"
    assert np.array_equal(schedule.op_device, problem.expand(placement.device)), (
        "an operation ran on another device than its group"
    )


def _check_rounds(problem: Problem, schedule: Schedule) -> None:
    """If a schedule has rounds, all starts have one, and those of a later instant are in later rounds."""
    if schedule.op_round is None or schedule.transfer_round is None:
        assert schedule.op_round is schedule.transfer_round, "only operations or only transfers have rounds"
        return
    kernel = problem.graph.kernel
    start = np.concatenate([schedule.op_start_s[kernel], schedule.transfer_start_s])
    rounds = np.concatenate([schedule.op_round[kernel], schedule.transfer_round])
    order = np.lexsort((rounds, start))
    later = np.diff(start[order]) > 0
    assert np.all(np.diff(rounds[order])[later] > 0), "something starts later in time, but in no later round"


def _check_inputs(problem: Problem, schedule: Schedule, views: Mapping[int, int], clock_s: float) -> None:
    """No operation starts before its inputs are on its device, written or sent; for a view, its base (`views`) counts, too."""
    graph, home = problem.graph, schedule.op_device
    arrived: dict[tuple[int, int], float] = {}
    columns = schedule.transfer_tensor, schedule.transfer_dst, schedule.transfer_end_s
    for t, d, end in zip(*(c.tolist() for c in columns), strict=True):
        arrived[t, d] = min(end, arrived.get((t, d), np.inf))
    for v, t in zip(graph.edge_op.tolist(), graph.input_tensor.tolist(), strict=True):
        producer, here = int(graph.tensor_producer[t]), int(home[v])
        ends = [arrived[x, here] for x in (t, views.get(t, t)) if (x, here) in arrived]
        if home[producer] == here:
            ends.append(float(schedule.op_end_s[producer]))
        assert ends, f"{graph.op_name[v]!r} reads tensor {t} of another device: no transfer"
        early = schedule.op_start_s[v] < min(ends) - clock_s
        assert not early, f"{graph.op_name[v]!r} starts before tensor {t} is there"


def _check_streams(problem: Problem, schedule: Schedule, clock_s: float) -> None:
    """Kernels run on streams that exist, one at a time on each."""
    kernel = np.flatnonzero(problem.graph.kernel)
    device, stream = schedule.op_device[kernel], schedule.op_stream[kernel]
    start, end = schedule.op_start_s[kernel], schedule.op_end_s[kernel]
    assert np.all((stream >= 0) & (stream < problem.cluster.streams[device])), "a stream that does not exist"
    busy: dict[tuple[int, int], float] = {}
    for i in np.lexsort((end, start)).tolist():
        at = int(device[i]), int(stream[i])
        until = busy.get(at, -np.inf)
        shared = min(float(end[i]), until) - start[i]  # if shorter than the clocks' difference, it may have run before
        overlap = start[i] < until - clock_s and shared >= clock_s
        assert not overlap, f"{problem.graph.op_name[kernel[i]]!r} starts while its stream is busy"
        busy[at] = max(until, float(end[i]))


def check_costs(problem: Problem, schedule: Schedule, streams: bool) -> None:
    """Operations take their seconds, after their launch. A tensor is sent to a device once, in at least the time of its route.

    With `streams`, tensors of sources may be sent again (`Session.prefetch`).
    """
    graph, tensor, routes = problem.graph, schedule.transfer_tensor, problem.cluster.routes
    early = np.flatnonzero(graph.kernel & (schedule.op_start_s < problem.launched_s(schedule.op_device)))
    assert not len(early), f"{graph.op_name[early[0]]!r} starts before it is launched"
    expected = problem.op_s[np.arange(graph.n), schedule.op_device]
    taken = schedule.op_end_s - schedule.op_start_s
    for v in np.flatnonzero(np.abs(taken - expected) > _ROUNDING * np.abs(schedule.op_end_s))[:1]:
        raise AssertionError(f"{graph.op_name[v]!r} takes {taken[v]} s, its cost is {expected[v]} s")
    once = graph.kernel[graph.tensor_producer[tensor]] | (not streams)
    sent = set(zip(tensor[once].tolist(), schedule.transfer_dst[once].tolist(), strict=True))
    assert len(sent) == once.sum(), "a tensor is sent to the same device more than once"
    way = schedule.transfer_src, schedule.transfer_dst
    least = routes.latency_s[way] + graph.tensor_bytes[tensor] * routes.s_per_byte[way]
    taken = schedule.transfer_end_s - schedule.transfer_start_s
    for x in np.flatnonzero(taken < least - _ROUNDING * np.abs(schedule.transfer_end_s))[:1]:
        raise AssertionError(f"tensor {tensor[x]} is sent in {taken[x]} s, its route takes {least[x]} s")
