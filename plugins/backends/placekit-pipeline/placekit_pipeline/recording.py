"""The events of a recorded run of backend `pipeline`, as a `Schedule`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling import Kernel
from placekit_scheduling.fields import Field

from placekit_core import Schedule, Spans
from placekit_pipeline.nets import AGAIN, AHEAD, BACK, END, SOURCE
from placekit_pipeline.pipeline_sums import LATE, RING
from placekit_pipeline.replicas import Replicas
from placekit_pipeline.stages import Stages

TASKS = ("forward", "backward", "weight gradients", "update")
MESSAGES = {
    SOURCE: "sources", AHEAD: "activations", LATE: "saved activations", BACK: "gradients", END: "gradients for updates",
    AGAIN: "results of updates", RING: "gradients of replicas",
}  # fmt: skip
ONCE = (SOURCE, END, AGAIN)  # sent once per step rather than per micro-batch


@dataclass(frozen=True, eq=False)
class Run:
    """The tasks and messages of all micro-batches.

    Attributes:
        task, task_s: [r, 3] stage, kind and micro-batch of each task; [r, 2] its start and end.
        message, message_s: [x, 4] stages from and to, kind and micro-batch (of rings, bucket) of each message; [x, 2] its
            start and end.
        message_bytes: [x].
        stage: [g] stage of each group.
        chunks: stages that a device may have.
    """

    task: NDArray[np.int32]
    task_s: NDArray[np.float64]
    message: NDArray[np.int32]
    message_s: NDArray[np.float64]
    message_bytes: NDArray[np.float64]
    stage: NDArray[np.int32]
    chunks: int

    @classmethod
    def read(
        cls, layout: Sequence[Field], kernel: Kernel, ints: NDArray[np.int32], floats: NDArray[np.float64], chunks: int
    ) -> Run:
        """Read the tasks and messages from the working space of an evaluation."""
        at = {field.name: int(kernel.ints[i]) for i, field in enumerate(layout)}
        tasks, messages = ints[at["counted"] : at["counted"] + 2].tolist()

        def table(of: NDArray[Any], name: str, rows: int, width: int) -> NDArray[Any]:
            return of[at[name] : at[name] + rows * width].reshape(rows, width)

        message = table(ints, "message_row", messages, 4)
        return cls(
            table(ints, "task_row", tasks, 3),
            table(floats, "task_time", tasks, 2),
            message,
            table(floats, "message_time", messages, 2),
            floats[at["message_bytes"] : at["message_bytes"] + messages],
            ints[at["stage"] : at["stage"] + at["g"]],
            chunks,
        )


def schedule_of(
    stages: Stages, replicas: Replicas, device: NDArray[np.int16], run: Run, value_s: float
) -> Schedule:  # fmt: skip
    """The schedule: spans for the tasks of all micro-batches, operations and transfers of the first one, in the first row."""
    problem = stages.problem
    graph = problem.graph
    home, stage = problem.expand(replicas.lead(device).astype(np.int16)), run.stage[problem.grouping.group_of]
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
        spans=_spans(stages, replicas, home, run),
        op_runs=_runs(stages, replicas, home, stage, run),
    )


def _spans(stages: Stages, replicas: Replicas, home: NDArray[np.int16], run: Run) -> Spans:
    """All tasks, then all messages between devices."""
    size = stages.problem.cluster.size
    updates = np.zeros(size, np.bool_)
    for leader in np.unique(home[stages.part == 3]).tolist():
        updates[replicas.members[leader]] = True
    ran = (run.task[:, 1] < 3) | updates[run.task[:, 0] % size]
    tasks = run.task[ran]
    travels = run.message[:, 0] % size != run.message[:, 1] % size
    sent = run.message[travels]

    def chunk(s: int) -> str:
        return f" of chunk {s // size}" if run.chunks > 1 else ""

    names = [TASKS[kind] + ("" if kind == 3 else f" {batch}{chunk(s)}") for s, kind, batch in tasks.tolist()]
    names += [MESSAGES[kind] + ("" if kind in ONCE else f" {batch}{chunk(a)}") for a, _, kind, batch in sent.tolist()]
    times = np.concatenate([run.task_s[ran], run.message_s[travels]])
    return Spans(
        name=tuple(names),
        device=np.concatenate([tasks[:, 0] % size, sent[:, 0] % size]).astype(np.int16),
        to=np.concatenate([np.full(len(tasks), -1), sent[:, 1] % size]).astype(np.int16),
        bytes_=np.concatenate([np.zeros(len(tasks)), run.message_bytes[travels]]),
        start_s=times[:, 0].copy(),
        end_s=times[:, 1].copy(),
    )


def _runs(
    stages: Stages, replicas: Replicas, home: NDArray[np.int16], stage: NDArray[np.int32], run: Run
) -> NDArray[np.int64]:  # fmt: skip
    """[n] how often each operation ran, on all devices that run it."""
    own = np.zeros((stages.problem.cluster.size * run.chunks, 4), np.int64)
    np.add.at(own, (run.task[:, 0], run.task[:, 1]), 1)
    count = own.copy()
    for leader, members in replicas.members.items() if len(replicas) > 1 else ():
        count[leader] = own[members].sum(axis=0)
    runs = np.where(stages.part == 3, count[home, 3], count[stage, np.maximum(stages.part, 0)])
    runs[stages.repeats] += count[stage[stages.repeats], 1]
    return np.where(stages.part < 0, 1, runs)


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
