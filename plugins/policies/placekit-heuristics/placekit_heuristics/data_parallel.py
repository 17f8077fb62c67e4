"""Policy `data_parallel`: a replica of the training step on each GPU."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from placekit_core import NotApplicable, Placement, Policy, Problem, Task
from placekit_heuristics.expert_options import DataParallelOptions
from placekit_heuristics.experts import fill_from_readers, place_operations
from placekit_heuristics.simple import devices_of, or_single_device


class DataParallel(Policy):
    """Tower i on GPU i; the device that holds the parameters averages the gradients and updates the parameters.

    If each tower has its own parameters (option `towers` of importer `torch`), the whole tower is on its GPU.

    Mirhoseini et al. 2017, section 4.4: "These replicas share the data reading operations, which are assigned to the CPU", and
    4.5: "All memory copy activities in Synchronous tower are between a GPU and a CPU": the parameters are on the CPU.
    """

    name = "data_parallel"
    options_class = DataParallelOptions

    def place(self, task: Task, rng: Generator) -> Placement:
        """The placement; nothing is evaluated.

        Raises NotApplicable for a graph without column `tower`, for a machine without GPUs, and for one without a CPU if a
        CPU is to hold the parameters; ClusterError if the device of option `parameters` does not exist.
        """
        return or_single_device(task, self.options, lambda: self._place(task))

    def _place(self, task: Task) -> Placement:
        problem, graph = task.problem, task.problem.graph
        tower = graph.columns.get("tower")
        if not isinstance(tower, np.ndarray) or tower.dtype.kind not in "iu" or tower.ndim != 1:
            raise NotApplicable(
                f"graph {graph.name!r} has no towers (column `tower`), one training step for each GPU",
                "importer.towers=N adds them to a PyTorch module, importer=towers importer.of.name=NAME to another network; or"
                " set policy.otherwise=single_device to place everything on one device",
            )
        gpus = np.asarray(devices_of(problem, "gpu"), np.int16)
        towers = int(tower.max(initial=-1)) + 1
        if towers > len(gpus):
            task.evaluate.note(f"{towers} towers share the {len(gpus)} GPUs of {problem.cluster.name!r}")
        wanted = np.where(tower >= 0, gpus[tower % len(gpus)], np.int16(-1))
        cpus = [d for d in range(problem.cluster.size) if problem.device_type(d) == "cpu"]
        if cpus:
            wanted[graph.op_type.is_value("input")] = cpus[0]
        shared = np.flatnonzero(wanted < 0)
        if len(shared):
            wanted[shared] = self._holders(problem, gpus, cpus)[shared]
        return place_operations(task, wanted)

    def _holders(self, problem: Problem, gpus: NDArray[np.int16], cpus: list[int]) -> NDArray[np.int16]:
        """[n] the device that option `parameters` gives to operations that belong to no tower."""
        where = self.options.parameters
        if where == "spread":
            return _spread(problem, gpus)
        if where == "cpu" and not cpus:
            raise NotApplicable(
                f"cluster {problem.cluster.name!r} has no CPU that could hold the parameters",
                f"set policy.parameters=spread, or policy.parameters=DEVICE: {', '.join(problem.cluster.device_names)}",
            )
        device = cpus[0] if where == "cpu" else problem.cluster.device_index(where)
        return np.full(problem.graph.n, device, np.int16)


def _spread(problem: Problem, gpus: NDArray[np.int16]) -> NDArray[np.int16]:
    """[n] parameters with their state and updates (co-location sets) spread evenly over the GPUs, the largest first.

    Other operations go with their first reader; so averages of gradients go with the updates that read them.
    """
    graph = problem.graph
    sets = np.where(graph.colocate >= 0, graph.colocate, -1)
    size = np.bincount(sets[sets >= 0], graph.persistent_bytes[sets >= 0])
    holder, load = np.full(len(size), gpus[0], np.int16), np.zeros(len(gpus))
    for s in np.argsort(-size, kind="stable"):
        g = int(load.argmin())
        holder[s], load[g] = gpus[g], load[g] + size[s]
    result = np.full(graph.n, -1, np.int16)
    result[sets >= 0] = holder[sets[sets >= 0]]
    return fill_from_readers(graph, result, int(gpus[0]))
