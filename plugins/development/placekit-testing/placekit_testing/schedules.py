"""Checks that a schedule is possible: each function raises AssertionError that names the first wrong operation or tensor.

`clock_s` is the allowed difference between the clocks of devices, in seconds: 0 for a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from placekit_core import Placement, Problem, Schedule

_ROUNDING = 1e-9  # relative to the end of a run, because an end minus a start is rounded


def check_columns(problem: Problem, placement: Placement, schedule: Schedule, clock_s: float = 0.0) -> None:
    """Each operation runs once, on the device of its group; nothing begins before the run, or ends before it begins."""
    n, x = problem.graph.n, len(schedule.transfer_tensor)
    for column in (schedule.op_device, schedule.op_stream, schedule.op_start_s, schedule.op_end_s):
        assert column.shape == (n,), f"a column of operations has shape {column.shape}, not {(n,)}"
    assert np.array_equal(schedule.op_device, problem.expand(placement.device)), "an operation ran elsewhere"
    assert np.all(schedule.op_start_s >= -clock_s), "an operation starts before the run"
    assert np.all(schedule.op_start_s <= schedule.op_end_s + clock_s), "an operation ends before it starts"
    for column in (
        schedule.transfer_src, schedule.transfer_dst, schedule.transfer_start_s, schedule.transfer_end_s,
    ):  # fmt: skip
        assert column.shape == (x,), f"a column of transfers has shape {column.shape}, not {(x,)}"
    assert np.all(schedule.transfer_start_s >= -clock_s), "a transfer starts before the run"
    assert np.all(schedule.transfer_start_s <= schedule.transfer_end_s + clock_s), "a transfer ends before it starts"


def check_rounds(problem: Problem, schedule: Schedule) -> None:
    """If a schedule has rounds, all starts have one, and those of a later instant are in later rounds."""
    if schedule.op_round is None and schedule.transfer_round is None:
        return
    assert schedule.op_round is not None, "only transfers have rounds"
    assert schedule.transfer_round is not None, "only operations have rounds"
    shapes = schedule.op_round.shape, schedule.transfer_round.shape
    assert shapes == (schedule.op_start_s.shape, schedule.transfer_start_s.shape), f"rounds have shapes {shapes}"
    kernel = problem.graph.kernel
    start = np.concatenate([schedule.op_start_s[kernel], schedule.transfer_start_s])
    rounds = np.concatenate([schedule.op_round[kernel], schedule.transfer_round])
    order = np.lexsort((rounds, start))
    later = np.diff(start[order]) > 0
    assert np.all(np.diff(rounds[order])[later] > 0), "something starts later in time, but in no later round"


def check_inputs(problem: Problem, schedule: Schedule, views: Mapping[int, int], clock_s: float = 0.0) -> None:
    """No operation starts before its inputs are on its device, written or sent; for a view, its base (`views`) counts, too."""
    graph, home = problem.graph, schedule.op_device
    arrived: dict[tuple[int, int], float] = {}
    for t, d, end in zip(
        schedule.transfer_tensor.tolist(), schedule.transfer_dst.tolist(), schedule.transfer_end_s.tolist(), strict=True
    ):
        arrived[t, d] = min(end, arrived.get((t, d), np.inf))
    for v, t in zip(graph.edge_op.tolist(), graph.input_tensor.tolist(), strict=True):
        producer, here = int(graph.tensor_producer[t]), int(home[v])
        ends = [arrived[x, here] for x in (t, views.get(t, t)) if (x, here) in arrived]
        if home[producer] == here:
            ends.append(float(schedule.op_end_s[producer]))
        assert ends, f"{graph.op_name[v]!r} reads tensor {t} of another device: no transfer"
        early = schedule.op_start_s[v] < min(ends) - clock_s
        assert not early, f"{graph.op_name[v]!r} starts before tensor {t} is there"


def check_transfers(problem: Problem, schedule: Schedule, clock_s: float = 0.0) -> None:
    """A tensor is sent after it was written, from the device of its producer to another device."""
    producer = problem.graph.tensor_producer[schedule.transfer_tensor]
    assert np.array_equal(schedule.transfer_src, schedule.op_device[producer]), "a transfer from elsewhere"
    assert np.all(schedule.transfer_src != schedule.transfer_dst), "a transfer to where the tensor is"
    early = np.flatnonzero(schedule.transfer_start_s < schedule.op_end_s[producer] - clock_s)
    assert not len(early), f"tensor {schedule.transfer_tensor[early[0]]} is sent before it is written"


def check_streams(problem: Problem, schedule: Schedule, clock_s: float = 0.0) -> None:
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


def check_operation_seconds(problem: Problem, schedule: Schedule) -> None:
    """Every operation takes its seconds on its device, up to rounding."""
    expected = problem.op_s[np.arange(problem.graph.n), schedule.op_device]
    taken = schedule.op_end_s - schedule.op_start_s
    wrong = np.flatnonzero(np.abs(taken - expected) > _ROUNDING * np.abs(schedule.op_end_s))
    if len(wrong):
        v = int(wrong[0])
        raise AssertionError(f"{problem.graph.op_name[v]!r} takes {taken[v]} s, its cost is {expected[v]} s")


def check_transfer_seconds(problem: Problem, schedule: Schedule, streams: bool = False) -> None:
    """A tensor is sent to a device at most once, and takes at least the latency and its bytes at the route's bandwidth.

    With `streams`, tensors of sources may be sent again (`Session.prefetch`).
    """
    tensor, routes = schedule.transfer_tensor, problem.cluster.routes
    once = problem.graph.kernel[problem.graph.tensor_producer[tensor]] | (not streams)
    sent = set(zip(tensor[once].tolist(), schedule.transfer_dst[once].tolist(), strict=True))
    assert len(sent) == once.sum(), "a tensor is sent to the same device more than once"
    way = schedule.transfer_src, schedule.transfer_dst
    least = routes.latency_s[way] + problem.graph.tensor_bytes[tensor] * routes.s_per_byte[way]
    taken = schedule.transfer_end_s - schedule.transfer_start_s
    fast = np.flatnonzero(taken < least - _ROUNDING * np.abs(schedule.transfer_end_s))
    if len(fast):
        x = int(fast[0])
        raise AssertionError(f"tensor {tensor[x]} is sent in {taken[x]} s, its route takes {least[x]} s")
