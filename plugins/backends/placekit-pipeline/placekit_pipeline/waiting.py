"""Why a placement has no value under backend `pipeline`: which stages wait for each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling import Kernel

from placekit_pipeline.cycles import cycle
from placekit_pipeline.nets import AGAIN, AHEAD, BACKWARD
from placekit_pipeline.pipeline_sums import FIELDS
from placekit_pipeline.stages import Stages, forward_order

_SHOWN = 4  # stages that a message names


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One problem under one schedule: tasks of `microbatches`, with a backward pass or without."""

    stages: Stages
    kernel: Kernel
    schedule: str
    chunks: int
    microbatches: int
    backward: bool


def reason(of: Evaluation, device: NDArray[np.int16]) -> str:
    """What waits for what in the placement `device` [g], for which the evaluation gave infinity."""
    problem = of.stages.problem
    names = problem.cluster.device_names
    if of.chunks > 1:
        found = _mixed(of.stages, device) or _too_many_chunks(of.stages, device, of.chunks)
        if found:
            return found
    state = _State(of, device)
    loop = cycle(state.pairs(AHEAD))
    if loop:
        both = of.schedule == "inference" and bool((problem.graph.phase == BACKWARD).any())
        return (
            "stages wait for each other: "
            + " -> ".join(state.name(s) for s in loop)
            + (" (inference runs the whole program in one pass, its backward phase too)" if both else "")
        )
    stuck = state.stuck()
    if stuck:
        return (
            f"tasks wait for each other: {_listed(stuck)}; gradients do not flow back the way that activations came, or"
            f" schedule {of.schedule!r} has other tasks first"
        )
    loop = cycle({(a % state.size, b % state.size) for a, b in state.pairs(AGAIN)})
    return "updates wait for each other: " + " -> ".join(names[d] for d in loop)


class _State:
    """The stages when nothing could start any more."""

    def __init__(self, of: Evaluation, device: NDArray[np.int16]) -> None:
        self.of, kernel, cluster = of, of.kernel, of.stages.problem.cluster
        self.size, self.names = cluster.size, cluster.device_names
        self.ints, floats = np.zeros(kernel.scratch_ints, np.int32), np.zeros(kernel.scratch_floats)
        self.at = {field.name: int(kernel.ints[i]) for i, field in enumerate(FIELDS)}
        kernel.function(
            np.require(device, np.int16, ["C", "W"]), np.zeros(0, np.float32), kernel.ints, kernel.floats, self.ints,
            floats, np.empty(self.size),
        )  # fmt: skip

    def of_stages(self, name: str) -> list[int]:
        """A figure of every stage."""
        found: list[int] = self.ints[self.at[name] : self.at[name] + self.at["stages"]].tolist()
        return found

    def pairs(self, kind: int) -> set[tuple[int, int]]:
        """Stages that send messages of a kind, and those that receive them."""
        stages = self.at["stages"]
        begin = self.at["messages"] + kind * stages * stages
        table: NDArray[Any] = self.ints[begin : begin + stages * stages].reshape(stages, stages)
        return {(a, b) for a, b in np.argwhere(table > 0).tolist() if kind == AHEAD or a % self.size != b % self.size}

    def stuck(self) -> list[str]:
        """The next task of each stage that is not done."""
        forward, back = self.of_stages("done_f"), self.of_stages("done_b")
        found = []
        for s in np.flatnonzero(self.of_stages("working")).tolist():
            if forward[s] < self.of.microbatches or (self.of.backward and back[s] < self.of.microbatches):
                ahead = f"forward {forward[s]}" if forward[s] < self.of.microbatches else ""
                behind = f"backward {back[s]}" if self.of.backward and back[s] < self.of.microbatches else ""
                found.append(f"{self.name(s)} before " + " and ".join(x for x in (ahead, behind) if x))
        return found

    def name(self, s: int) -> str:
        """A stage in words."""
        return self.names[s % self.size] + (f" (chunk {s // self.size})" if self.of.chunks > 1 else "")


def _mixed(stages: Stages, device: NDArray[np.int16]) -> str:
    """A set of groups that wait for each other on several devices; nothing if there is none."""
    problem = stages.problem
    of, _, _ = forward_order(problem, stages.phase)
    first = np.full(int(of.max(initial=-1)) + 1, -1)
    first[of[::-1]] = np.arange(problem.g)[::-1]
    other = np.flatnonzero(device != device[first[of]])
    if not len(other):
        return ""
    names = problem.cluster.device_names
    pair = [int(first[of[other[0]]]), int(other[0])]
    where = [f"{_operation(stages, group)} on {names[int(device[group])]}" for group in pair]
    return f"stages wait for each other: {where[0]} and {where[1]} need each other's results"


def _too_many_chunks(stages: Stages, device: NDArray[np.int16], most: int) -> str:
    """A device with more chunks than there may be; nothing if there is none."""
    of, ptr, before = forward_order(stages.problem, stages.phase)
    home = np.zeros(len(ptr) - 1, np.int64)
    home[of] = device
    level = np.zeros(len(home), np.int64)
    for i in range(len(home)):
        row = before[ptr[i] : ptr[i + 1]]
        level[i] = (level[row] + (home[row] != home[i])).max(initial=0)
    works = np.unique(of[stages.works])
    for d, name in enumerate(stages.problem.cluster.device_names):
        count = len(np.unique(level[works][home[works] == d]))
        if count > most:
            return f"{name} has {count} chunks, parts of the network with other devices between them; at most {most}"
    return ""


def _operation(stages: Stages, group: int) -> str:
    graph = stages.problem.graph
    forward = graph.kernel & (stages.phase == 0) & (stages.problem.grouping.group_of == group)
    return repr(graph.op_name[int(np.flatnonzero(forward)[0])])


def _listed(parts: list[str]) -> str:
    return ", ".join(parts[:_SHOWN]) + (f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else "")
