"""Backend `my_method`: a machine that does one thing at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placekit_core import Backend, Executable, Measurements, Placement, Placements, Problem, Schedule, Session
from placekit_my_method import MyMethodOptions

ROUNDING = 1e-9  # the bound is lowered by this share, because its sum and the sum of a value are rounded differently


class MyMethod(Backend):
    """Nothing overlaps: the makespan is the sum of all operations and of all transfers, one per tensor and destination."""

    name = "my_method"
    options_class = MyMethodOptions
    objective = "makespan"
    simulated = True
    deterministic = True
    parallel = True

    def open(self, problem: Problem, executable: Executable | None = None) -> Session:
        """A session; it needs no preparation."""
        return MyMethodSession(problem)


class MyMethodSession(Session):
    """One problem. Operations run in topological order; a transfer runs just before the first operation that needs it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        graph = problem.graph
        self.position = np.full(graph.n, -1)  # sources exist before anything runs
        order = graph.topological_order
        self.position[order[graph.kernel[order]]] = np.arange(graph.kernel.sum())
        outputs = np.bincount(graph.tensor_producer, graph.owned_bytes, minlength=graph.n)
        self.bytes_ = graph.persistent_bytes + outputs  # [n] memory that each operation needs on its device

    def evaluate(self, placements: Placements) -> Measurements:
        """Evaluate a batch. Memory is never freed: it holds persistent bytes, all outputs and all received copies."""
        problem, graph = self.problem, self.problem.graph
        b, size = len(placements), problem.cluster.size
        value, peak = np.zeros(b), np.zeros((b, size))
        for row, device in enumerate(placements.device):
            run = self._run(device)
            value[row] = run.value_s
            peak[row] = np.bincount(run.op_device, self.bytes_, minlength=size)
            peak[row] += np.bincount(run.transfer_dst, graph.tensor_bytes[run.transfer_tensor], minlength=size)
        fits = np.asarray((peak <= problem.cluster.memory_bytes).all(axis=1))
        return Measurements(value, peak, fits, (None,) * b)

    def schedule(self, placement: Placement) -> Schedule:
        """The events of one run."""
        return self._run(placement.device)

    def lower_bound(self) -> float:
        """The sum over groups of their seconds on their fastest allowed device.

        Proof: the value is the sum of all operations and transfers. No transfer takes negative time, and all operations of a
        group run on one device that the group is allowed on.
        """
        seconds = np.where(self.problem.allowed, self.problem.group_s, np.inf).min(axis=1)
        return float(seconds.sum()) * (1 - ROUNDING)

    def _run(self, device: NDArray[np.int16]) -> Schedule:
        """The events of the placement `device` [g]."""
        graph, cluster = self.problem.graph, self.problem.cluster
        home = self.problem.expand(device)  # [n]
        producer, reader = home[graph.tensor_producer[graph.input_tensor]], home[graph.edge_op]  # [e] devices
        before = self.position[graph.edge_op]  # [e]
        edge = np.flatnonzero(producer != reader)
        edge = edge[np.argsort(before[edge], kind="stable")]
        key = graph.input_tensor[edge].astype(np.int64) * cluster.size + reader[edge]
        first = np.sort(np.unique(key, return_index=True)[1])
        edge = edge[first]  # for each tensor and destination, the edge to the first reader
        sent, src, dst = graph.input_tensor[edge], producer[edge], reader[edge]  # [x]

        transfer_s = cluster.routes.latency_s[src, dst] + graph.tensor_bytes[sent] * cluster.routes.s_per_byte[src, dst]
        seconds = np.concatenate([transfer_s, self.problem.op_s[np.arange(graph.n), home]])
        turn = np.argsort(np.concatenate([before[edge], self.position]), kind="stable")  # a transfer before its reader
        end = np.empty(len(seconds))
        end[turn] = np.cumsum(seconds[turn])
        start = np.empty(len(seconds))
        start[turn] = np.concatenate([[0.0], end[turn]])[:-1]
        x = len(edge)
        stream = np.where(graph.kernel, 0, -1).astype(np.int32)
        value = float(end.max(initial=0.0))
        return Schedule(home, stream, start[x:], end[x:], sent, src, dst, start[:x], end[:x], value)
