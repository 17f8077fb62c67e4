"""Backend `blocking_latency`: one sample by blocking calls to accelerators (Tarnawski et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling import ROUNDING, Kernel, critical_path_bound
from placekit_scheduling.fields import Field

from placekit_core import Backend, Executable, Placement, Problem, Schedule, Session
from placekit_pipeline import LoadOptions
from placekit_pipeline.bounds import load_bound, weights_only
from placekit_pipeline.cycles import cycle
from placekit_pipeline.nets import TRANSFER_S
from placekit_pipeline.one_pass import one_pass
from placekit_pipeline.session import KernelSession


class BlockingLatency(Backend):
    """The time of one sample, where each connected piece of the graph on an accelerator is one blocking call.

    A call waits for all inputs of its piece; then it receives them, computes, and sends the outputs, one after another. An
    accelerator makes one call at a time, in the order in which calls become ready. Devices of type `cpu` run each
    operation as soon as its inputs are there, any number at the same time, and pay no communication. A tensor's seconds are
    as in `max_load`, and memory is the sum of the persistent bytes. If pieces wait for each other, there is no value.
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
    """The objective for one problem. A *piece* is a connected part of the graph on one accelerator."""

    def load(self) -> tuple[Any, Sequence[Field]]:
        from placekit_pipeline.blocking_kernel import FIELDS, blocking_latency

        return blocking_latency, FIELDS

    def build(self) -> Kernel:
        problem, graph, cluster = self.problem, self.problem.graph, self.problem.cluster
        hop = graph.columns.get(TRANSFER_S)
        hop_s = np.full(graph.t, -1.0)
        if isinstance(hop, np.ndarray):
            hop_s = np.asarray(hop, np.float64)[graph.tensor_producer]
        numbers = {"n": graph.n, "t": graph.t, "g": problem.g, "size": cluster.size}
        arrays = {
            "group_of": problem.grouping.group_of, "kernel": graph.kernel, "output_ptr": graph.output_ptr,
            "consumer_ptr": graph.consumer_ptr, "consumer_op": graph.consumer_op, "producer": graph.tensor_producer,
            "accelerator": np.asarray([problem.device_type(d) == "gpu" for d in range(cluster.size)], np.int32),
            "op_s": problem.op_s, "hop_s": hop_s, "tensor_bytes": graph.tensor_bytes,
            "group_bytes": problem.group_persistent_bytes, "latency_s": cluster.routes.latency_s,
            "s_per_byte": cluster.routes.s_per_byte,
        }  # fmt: skip
        return self.packed(self.function, self.fields, numbers, arrays, numbers)

    def reason(self, device: NDArray[np.int16]) -> str:
        """Why a placement has no value: the pieces that wait for each other, each named by its first operation."""
        graph, kernel = self.problem.graph, self.kernel()
        ints, floats = np.zeros(kernel.scratch_ints, np.int32), np.zeros(kernel.scratch_floats)
        home, peak = np.require(device, np.int16, ["C", "W"]), np.empty(self.problem.cluster.size)
        self.function(home, np.zeros(0, np.float32), kernel.ints, kernel.floats, ints, floats, peak)
        at = {field.name: int(kernel.ints[i]) for i, field in enumerate(self.fields)}
        piece = ints[at["root"] : at["root"] + graph.n]
        while (piece[piece] != piece).any():
            piece = piece[piece]
        u, v = graph.op_edges
        apart = graph.kernel[u] & (piece[u] != piece[v])
        loop = cycle(set(zip(piece[u[apart]].tolist(), piece[v[apart]].tolist(), strict=True)))
        names, device_of = self.problem.cluster.device_names, self.problem.expand(device)
        return "pieces wait for each other: " + " -> ".join(
            f"{graph.op_name[p]!r} on {names[device_of[p]]}" for p in loop
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
