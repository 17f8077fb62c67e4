"""The events of a recorded run of backend `pipeline`, as a `Schedule`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling.fields import Field

from placekit_core import Kernel, Schedule, Spans
from placekit_pipeline.nets import AGAIN, AHEAD, BACK, END, SOURCE
from placekit_pipeline.pipeline_sums import LATE
from placekit_pipeline.stages import Stages

TASKS = ("forward", "backward", "weight gradients", "update")


@dataclass(frozen=True, eq=False)
class Run:
    """Tasks [r, 3] (stage, kind, micro-batch) and their times [r, 2]; messages [x, 4] (from, to, kind, micro-batch), [x, 2]."""

    task: NDArray[np.int32]
    task_s: NDArray[np.float64]
    message: NDArray[np.int32]
    message_s: NDArray[np.float64]
    stage: NDArray[np.int32]
    chunks: int

    @classmethod
    def read(
        cls, layout: Sequence[Field], kernel: Kernel, ints: NDArray[np.int32], floats: NDArray[np.float64], chunks: int
    ) -> Run:
        """What a run left in its working space."""
        at = {field.name: int(kernel.ints[i]) for i, field in enumerate(layout)}
        tasks, messages = ints[at["counted"] : at["counted"] + 2].tolist()

        def table(of: NDArray[np.generic], name: str, rows: int, width: int) -> NDArray[np.generic]:
            return of[at[name] : at[name] + rows * width].reshape(rows, width)

        return cls(
            table(ints, "task_row", tasks, 3),  # type: ignore[arg-type]
            table(floats, "task_time", tasks, 2),  # type: ignore[arg-type]
            table(ints, "message_row", messages, 4),  # type: ignore[arg-type]
            table(floats, "message_time", messages, 2),  # type: ignore[arg-type]
            ints[at["stage"] : at["stage"] + at["g"]],
            chunks,
        )


def schedule_of(stages: Stages, device: NDArray[np.int16], run: Run, value_s: float) -> Schedule:
    """The schedule: spans are the tasks of all micro-batches; operations and transfers are those of the first one."""
    problem = stages.problem
    graph, size = problem.graph, problem.cluster.size
    home, stage = problem.expand(device), run.stage[problem.grouping.group_of]
    start, end = np.zeros(graph.n), np.zeros(graph.n)
    order = graph.topological_order
    for (s, kind, batch), (begin, _) in zip(run.task.tolist(), run.task_s.tolist(), strict=True):
        if batch > 0:
            continue
        now = begin
        if kind == 1:  # the forward passes that the task repeats come first
            again = np.flatnonzero(stages.repeats & (stage == s))
            now += float(problem.op_s[again, home[again]].sum())
        of = stages.part[order] == kind
        of &= (home[order] == s) if kind == 3 else (stage[order] == s)
        for v in order[of].tolist():
            start[v] = now
            now = end[v] = now + problem.op_s[v, home[v]]
    tensor, src, dst, sent_s = _transfers(stages, stage, run)
    updates = np.bincount(home[stages.part == 3], minlength=size) > 0
    ran = (run.task[:, 1] < 3) | updates[run.task[:, 0] % size]
    tasks, times = run.task[ran], run.task_s[ran]
    names = [
        TASKS[kind] if kind == 3 else f"{TASKS[kind]} {batch}" + (f" of chunk {s // size}" if run.chunks > 1 else "")
        for s, kind, batch in tasks.tolist()
    ]
    return Schedule(
        op_device=home,
        op_stream=np.where(graph.kernel, 0, -1).astype(np.int32),
        op_start_s=start,
        op_end_s=end,
        transfer_tensor=tensor,
        transfer_src=src,
        transfer_dst=dst,
        transfer_start_s=sent_s[:, 0].copy(),
        transfer_end_s=sent_s[:, 1].copy(),
        value_s=value_s,
        spans=Spans(
            name=tuple(names),
            device=(tasks[:, 0] % size).astype(np.int16),
            start_s=times[:, 0].copy(),
            end_s=times[:, 1].copy(),
        ),
    )


def _transfers(
    stages: Stages, stage: NDArray[np.int32], run: Run
) -> tuple[NDArray[np.int32], NDArray[np.int16], NDArray[np.int16], NDArray[np.float64]]:
    """The tensors that the first micro-batch's messages carry: tensor, from, to, start and end."""
    graph, size, phase = stages.problem.graph, stages.problem.cluster.size, stages.phase
    found: dict[tuple[int, int, int], tuple[float, float]] = {}
    for (a, b, kind, batch), (begin, done) in zip(run.message.tolist(), run.message_s.tolist(), strict=True):
        if batch == 0 and a % size != b % size:
            found[a, b, kind] = begin, done
    producer = graph.tensor_producer[graph.input_tensor]
    rows: dict[tuple[int, int], tuple[float, float]] = {}
    a, b = stage[producer], stage[graph.edge_op]
    for i in np.flatnonzero(a % size != b % size).tolist():
        u, v = int(producer[i]), int(graph.edge_op[i])
        if not graph.kernel[u]:
            kinds = [SOURCE]
        elif phase[v] == 2:
            kinds = [AGAIN if phase[u] == 2 else END]
        else:
            kinds = [BACK] if phase[u] == 1 else [AHEAD, LATE]
        for kind in kinds:
            key = int(a[i]), int(b[i]), kind
            if key in found:
                where = int(graph.input_tensor[i]), int(b[i]) % size
                rows[where] = min(rows.get(where, found[key]), found[key])
    src = [int(stage[graph.tensor_producer[t]]) % size for t, _ in rows]
    return (
        np.asarray([t for t, _ in rows], np.int32),
        np.asarray(src, np.int16),
        np.asarray([d for _, d in rows], np.int16),
        np.asarray(list(rows.values()), np.float64).reshape(-1, 2),
    )
