"""Backend `blocking_latency`: one sample by blocking calls to accelerators (Tarnawski et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling import ROUNDING, Kernel, critical_path_bound
from placekit_scheduling.fields import Field

from placekit_core import Backend, Executable, Graph, Placement, Problem, Schedule, Session
from placekit_pipeline import LoadOptions
from placekit_pipeline.bounds import load_bound, weights_only
from placekit_pipeline.cycles import cycle
from placekit_pipeline.nets import TRANSFER_S, grid, on_grid
from placekit_pipeline.one_pass import one_pass
from placekit_pipeline.session import KernelSession


class BlockingLatency(Backend):
    """Evaluates the time of one sample on accelerators that compute in blocking calls.

    An accelerator makes one call after another. If a path leads from one of its operations through other devices back to
    another of its operations, the second operation needs a later call than the first. Each operation is in the earliest call
    that it can be in, so a call has all operations of one depth, connected or not, as `reworkSplitIntoContiguous` in the
    paper's program defines it.

    A call waits for all inputs of its operations; then it receives them, computes, and sends the outputs, one after another.
    A tensor that other calls read is sent once, and received once by each of them. A transfer between two calls of one
    accelerator takes time only if the graph has the column `transfer_s`.

    Devices of type `cpu` run each operation as soon as its inputs are there, any number at the same time, and pay no
    communication. A tensor's seconds are as in `max_load`, and memory is the sum of the persistent bytes. If calls wait for
    each other, there is no value.
    """

    name = "blocking_latency"
    options_class = LoadOptions
    objective = "blocking_latency"
    simulated = True
    deterministic = True
    parallel = True

    def open(self, problem: Problem, executable: Executable | None = None) -> Session:
        return BlockingSession(problem, self.options.threads)


class BlockingSession(KernelSession):
    """The objective for one problem."""

    def load(self) -> tuple[Any, Sequence[Field]]:
        from placekit_pipeline.blocking_kernel import FIELDS, blocking_latency

        return blocking_latency, FIELDS

    def build(self) -> Kernel:
        problem, cluster = self.problem, self.problem.cluster
        graph, order = problem.graph, self.problem.graph.topological_order
        tensors = np.argsort(np.argsort(order)[graph.tensor_producer], kind="stable")
        hop_s = self._hop_s()
        step = grid(float(problem.op_s.max(axis=1).sum()) + _hops(problem, hop_s))
        devices = [d for d in range(cluster.size) if problem.device_type(d) == "gpu"]
        accelerator = np.full(cluster.size, -1)
        accelerator[devices] = np.arange(len(devices))
        slots = int((graph.depth + graph.kernel).max(initial=0)) + 2
        calls = slots * len(devices)
        numbers = {
            "n": graph.n, "t": graph.t, "g": problem.g, "size": cluster.size, "accelerators": len(devices),
            "slots": slots, "calls": calls,
        }  # fmt: skip
        group_of = problem.grouping.group_of[order]
        arrays = {
            **_flow(graph, order, tensors), "group_of": group_of,
            "group_ptr": np.searchsorted(np.sort(group_of), np.arange(problem.g + 1)),
            "group_op": np.argsort(group_of, kind="stable"), "kernel": graph.kernel[order],
            "accelerator": accelerator, "accelerator_of": np.repeat(np.arange(len(devices)), slots),
            "op_s": on_grid(problem.op_s[order], step), "hop_s": np.where(hop_s < 0, hop_s, on_grid(hop_s, step))[tensors],
            "tensor_bytes": graph.tensor_bytes[tensors], "group_bytes": problem.group_persistent_bytes,
            "latency_s": cluster.routes.latency_s, "s_per_byte": cluster.routes.s_per_byte,
            "grid_s": np.asarray([step, 1 / step]),
        }  # fmt: skip
        sizes = {
            **numbers, "counts": 3, "lists": calls + 1, "units": calls + graph.n, "depths": graph.n * len(devices),
            "waits": calls * len(devices),
        }  # fmt: skip
        return self.packed(self.function, self.fields, numbers, arrays, sizes)

    def _hop_s(self) -> NDArray[np.float64]:
        """[t] seconds of a hop of each tensor from the graph's column `transfer_s`; -1 without that column."""
        graph = self.problem.graph
        hop = graph.columns.get(TRANSFER_S)
        if not isinstance(hop, np.ndarray):
            return np.full(graph.t, -1.0)
        return np.asarray(hop, np.float64)[graph.tensor_producer]

    def reason(self, device: NDArray[np.int16]) -> str:
        """Why a placement has no value: the calls that wait for each other, each named by its first operation."""
        graph, kernel, names = self.problem.graph, self.kernel(), self.problem.cluster.device_names
        ints, floats = np.zeros(kernel.scratch_ints, np.int32), np.zeros(kernel.scratch_floats)
        home, peak = np.require(device, np.int16, ["C", "W"]), np.empty(self.problem.cluster.size)
        self.function(home, np.zeros(0, np.float32), kernel.ints, kernel.floats, ints, floats, peak)
        at = {field.name: int(kernel.ints[i]) for i, field in enumerate(self.fields)}
        unit = np.empty(graph.n, np.int64)
        unit[graph.topological_order] = ints[at["unit"] : at["unit"] + graph.n]
        u, v = graph.op_edges
        apart = graph.kernel[u] & (unit[u] != unit[v])
        loop = cycle(set(zip(unit[u[apart]].tolist(), unit[v[apart]].tolist(), strict=True)))
        first, device_of = [int(np.argmax(unit == call)) for call in loop], self.problem.expand(device)
        return "calls wait for each other: " + " -> ".join(
            f"{graph.op_name[p]!r} on {names[device_of[p]]}" for p in first
        )

    @cached_property
    def _bound_s(self) -> float:
        problem = self.problem
        path = critical_path_bound(problem) * (1 - ROUNDING)
        cpus = any(problem.device_type(d) == "cpu" for d in range(problem.cluster.size))
        return path if cpus else max(path, load_bound(weights_only(problem)))

    def lower_bound(self) -> float | None:
        """The longest path on the fastest devices; if there are no CPUs, at least the total work over all devices."""
        return self._bound_s

    def schedule(self, placement: Placement) -> Schedule:
        """Operations in topological order, each as early as possible; `value_s` is the value of the blocking calls.

        Raises BackendError if the placement has no value.
        """
        return one_pass(self.problem, placement.device, self.value(placement))


def _flow(graph: Graph, order: NDArray[np.integer], tensors: NDArray[np.integer]) -> dict[str, NDArray[Any]]:
    """Producers and readers of tensors; operations and tensors are numbered in these orders: topological, and by producer."""
    op, tensor = np.argsort(order), np.argsort(tensors)
    producer, made = op[graph.tensor_producer[tensors]], tensor[graph.input_tensor]
    reader, row = op[graph.edge_op], np.arange(graph.n + 1)
    by_tensor, by_reader = np.lexsort((reader, made)), np.argsort(reader, kind="stable")
    consumer_ptr = np.searchsorted(made[by_tensor], np.arange(graph.t + 1))
    near = np.unique(np.stack([np.concatenate([producer, reader]), np.concatenate([np.arange(graph.t), made])]), axis=1)
    return {
        "producer": producer, "consumer_ptr": consumer_ptr, "consumer_op": reader[by_tensor],
        "reader_ptr": consumer_ptr[np.searchsorted(producer, row)],
        "input_ptr": np.searchsorted(reader[by_reader], row), "input_op": producer[made[by_reader]],
        "tensor_ptr": np.searchsorted(near[0], row), "tensor_of": near[1],
    }  # fmt: skip


def _hops(problem: Problem, hop_s: NDArray[np.float64]) -> float:
    """An upper bound on the seconds of all transfers: each tensor is sent once, and received by each of its readers."""
    graph, routes = problem.graph, problem.cluster.routes
    latency, rate = float(routes.latency_s.max(initial=0.0)), float(routes.s_per_byte.max(initial=0.0))
    each = np.where(hop_s < 0, latency + rate * graph.tensor_bytes, hop_s)
    return float((each * (1 + np.diff(graph.consumer_ptr))).sum())
