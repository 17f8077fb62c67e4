"""Backend `max_load`: the largest load of a device, the time per sample of a pipeline (Tarnawski et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling import Kernel
from placekit_scheduling.fields import Field
from placekit_scheduling.loads import Loads

from placekit_core import Backend, Executable, Placement, Problem, Routes, Schedule, Session
from placekit_pipeline import LoadOptions
from placekit_pipeline.bounds import load_bound, weights_only
from placekit_pipeline.loads import max_load_loads
from placekit_pipeline.nets import Nets, grid, nets_of, on_grid
from placekit_pipeline.one_pass import one_pass
from placekit_pipeline.session import KernelSession


class MaxLoad(Backend):
    """Evaluates the time per sample of a pipeline: the largest load of a device, on which nothing overlaps.

    The load of an accelerator (type `gpu`) is the sum of the seconds of its operations, of each tensor that it sends, once,
    and of each tensor that it receives, once. Devices of type `cpu` pay no communication. A tensor's
    seconds are those of the graph's column `transfer_s`, else those of the route (of the slowest, if it goes to several
    devices). Memory is the sum of the persistent bytes.
    """

    name = "max_load"
    options_class = LoadOptions
    objective = "max_load"
    simulated = True
    deterministic = True
    parallel = True

    def open(self, problem: Problem, executable: Executable | None = None) -> Session:
        return MaxLoadSession(problem, self.options.threads)


class MaxLoadSession(KernelSession):
    """The objective for one problem; every placement has a value."""

    def load(self) -> tuple[Any, Sequence[Field]]:
        from placekit_pipeline.max_load_kernel import FIELDS, max_load

        return max_load, FIELDS

    def build(self) -> Kernel:
        problem, cluster = self.problem, self.problem.cluster
        nets = nets_of(problem)
        routes = cluster.routes
        total = float(problem.group_s.max(axis=1).sum()) + _hops(nets, routes)
        step = grid(total)
        ptr, net = nets.of_groups(problem.g)
        numbers = {"g": problem.g, "size": cluster.size, "nets": len(nets)}
        arrays: dict[str, NDArray[Any]] = {
            "ptr": nets.ptr, "reader": nets.reader, "producer": nets.producer, "group_ptr": ptr, "group_net": net,
            "pays": self._pays.astype(np.int32),
            "group_s": on_grid(problem.group_s, step), "group_bytes": problem.group_persistent_bytes,
            "bytes_": nets.bytes_, "count": nets.count.astype(np.float64), "hop_s": nets.hop_s,
            "latency_s": routes.latency_s, "s_per_byte": routes.s_per_byte, "grid_s": np.asarray([step]),
        }  # fmt: skip
        return self.packed(
            self.function, self.fields, numbers, arrays, {**numbers, "counts": len(nets) * cluster.size, "one": 1}
        )

    @cached_property
    def _pays(self) -> NDArray[np.bool_]:
        """[D] devices that pay for transfers."""
        return np.asarray([self.problem.device_type(d) == "gpu" for d in range(self.problem.cluster.size)], np.bool_)

    def loads(self) -> Loads:
        """The loads, for policies that minimise them."""
        return max_load_loads(self.problem, nets_of(self.problem), self._pays)

    @cached_property
    def _bound_s(self) -> float:
        return load_bound(weights_only(self.problem))

    def lower_bound(self) -> float | None:
        """The total work divided over all devices, or the largest group if that takes longer; without communication."""
        return self._bound_s

    def schedule(self, placement: Placement) -> Schedule:
        """One sample by itself: operations in topological order, each as early as possible; `value_s` is the largest load."""
        return one_pass(self.problem, placement.device, self.value(placement))


def _hops(nets: Nets, routes: Routes) -> float:
    """An upper bound on the seconds of all transfers on one device."""
    latency, rate = routes.latency_s, routes.s_per_byte
    by_route = nets.count * float(latency.max(initial=0.0)) + nets.bytes_ * float(rate.max(initial=0.0))
    return 2.0 * float(np.where(nets.hop_s >= 0, nets.hop_s, by_route).sum())
