"""The rules of a simulation: the order of ready tasks, noise, barriers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placekit_core import Problem
from placekit_sim import MachineOptions, SimulatorOptions


@dataclass(frozen=True, eq=False)
class Rules:
    """The rules of one simulation of one problem with n operations, t tensors and D devices.

    Attributes:
        use_priority: order ready tasks by the placement's priorities, if it has any.
        rank: [n] fixed order of the operations, lower first, or None.
        arrival: start tasks in the order in which they became ready, event by event; else by round and index.
        bulk: put barriers around the transfers between levels.
        op_factor: [n] noise on the duration of each operation, or None.
        transfer_factor: [t, D] noise on the transfer of each tensor to each device, or None.
        prefetch: copy the outputs of sources this many readers ahead; None: copy all at time 0.
    """

    use_priority: bool = False
    rank: NDArray[np.int32] | None = None
    arrival: bool = False
    bulk: bool = False
    op_factor: NDArray[np.float64] | None = None
    transfer_factor: NDArray[np.float64] | None = None
    prefetch: int | None = None

    @classmethod
    def of(cls, problem: Problem, options: MachineOptions, bulk: bool = False, repetition: int = 0) -> Rules:
        """The rules for `problem` under `options`; `repetition` selects the noise."""
        graph, order = problem.graph, options.ready_order
        rank = None
        if order == "breadth_first":
            rank = graph.depth
        elif order == "depth_first":
            rank = -graph.depth
        elif order == "random":
            rank = np.random.default_rng([options.seed, 0]).permutation(graph.n).astype(np.int32)
        op_factor = transfer_factor = None
        if options.noise > 0:
            rng = np.random.default_rng([options.seed, 1, repetition])
            sigma = options.noise
            op_factor = np.exp(sigma * rng.standard_normal(graph.n) - sigma**2 / 2)
            shape = (graph.t, problem.cluster.size)
            transfer_factor = np.exp(sigma * rng.standard_normal(shape) - sigma**2 / 2)
        prefetch = options.prefetch if isinstance(options, SimulatorOptions) else None
        return cls(
            order == "priority", rank, order == "arrival" and not bulk, bulk, op_factor, transfer_factor, prefetch
        )

    def op_s(self, problem: Problem) -> NDArray[np.float64]:
        """[n, D] seconds of each operation on each device, noise included."""
        return problem.op_s if self.op_factor is None else problem.op_s * self.op_factor[:, None]
