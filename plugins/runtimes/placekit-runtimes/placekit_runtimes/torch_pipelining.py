"""Pipelines of torch.distributed: consecutive modules on each device, cut before the first call of a module.

Checked with `torch.distributed.pipelining.pipeline` of PyTorch 2.13.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placekit_core import Placement, PlacementError, Problem
from placekit_runtimes.interface import Runtime, RuntimeMap
from placekit_runtimes.modules import PlacedModules, above


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline: its device, and the module whose first call begins it."""

    device: str
    begins: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Pipeline(RuntimeMap):
    """The stages of a chain of modules, in the order of the forward pass."""

    stages: tuple[Stage, ...]

    @property
    def split_spec(self) -> dict[str, str]:
        """The `split_spec` of `torch.distributed.pipelining.pipeline`, with the names of `SplitPoint` as text."""
        return _split_spec(self.stages)


class TorchPipelining(Runtime):
    """Pipelines of `torch.distributed.pipelining`: a stage of consecutive modules on each device."""

    name = "pipeline"
    title = "torch.distributed.pipelining"
    versions = ("PyTorch 2.13",)
    runs = ("training",)

    def write(self, problem: Problem, placement: Placement) -> Pipeline:
        """The stages of a placement that is a chain, and their `split_spec`, as JSON; see `pipeline`."""
        return pipeline(problem, placement)


RUNTIME = TorchPipelining()


def _split_spec(stages: tuple[Stage, ...]) -> dict[str, str]:
    return {stage.begins: "SplitPoint.BEGINNING" for stage in stages[1:]}


def pipeline(problem: Problem, placement: Placement) -> Pipeline:
    """The stages of a placement that is a chain: each device runs one part of the forward pass, and sends to the next only.

    A module is on the device with most of its seconds, as in `device_map`. Operations of the forward pass outside these
    modules, and the loss, belong to the stage that is running at that point.

    Raises PlacementError that names the module that breaks the chain.
    """
    placed = PlacedModules(problem, placement, "a pipeline is a chain of modules")
    runs = list(_parts(placed))
    begins = [placed.module_of(runs[0][1]), *(_beginning(placed, op, d) for d, op in runs[1:])]
    first = [0, *(int(np.flatnonzero(placed.below(m)[placed.forward])[0]) for m in begins[1:])]
    stage = np.full(placed.graph.n, -1)
    stage[placed.forward] = np.searchsorted(first, np.arange(len(placed.forward)), side="right") - 1
    _check_chain(placed, stage)
    names = problem.cluster.device_names
    entry = [names[placed.leaves[m]] if m in placed.leaves else None for m in placed.modules]
    conflicts, elsewhere = placed.conflicts(names, entry)
    stages = tuple(Stage(names[d], module) for (d, _), module in zip(runs, begins, strict=True))
    meant = placed.moved(names, entry, [names[runs[s][0]] if s >= 0 else None for s in stage.tolist()])
    data = {"stages": [{"device": s.device, "begins": s.begins} for s in stages], "split_spec": _split_spec(stages)}
    return Pipeline(json.dumps(data, indent=1), meant, conflicts, elsewhere, stages=stages)


def _parts(placed: PlacedModules) -> Iterator[tuple[int, int]]:
    """(device, first operation) of each part of the forward pass. Raises PlacementError if a device has several."""
    last: dict[int, str] = {}  # the last module on each device so far; the current device comes last
    for op in placed.forward.tolist():
        module = placed.module_of(op)
        if module not in placed.leaves:
            continue
        device = placed.leaves[module]
        if device in last and next(reversed(last)) != device:
            names, other = placed.problem.cluster.device_names, next(reversed(last))
            raise _no_chain(
                f"module {last[device]!r} is on {names[device]}, {last[other]!r} on {names[other]}, and {module!r} on"
                f" {names[device]} again"
            )
        if device not in last:
            yield device, op
        last[device] = module


def _beginning(placed: PlacedModules, op: int, device: int) -> str:
    """The module with the call that begins a stage; `op` is the first operation of a leaf in the stage.

    It is the outermost module that begins there and that the forward pass calls exactly once. A module that only holds
    others, like a ModuleList, may never be called; torch.distributed.pipelining would not split there.
    """
    leaf, graph = placed.module_of(op), placed.graph
    before = placed.forward[: int(np.flatnonzero(placed.forward == op)[0])]
    mine = np.asarray([m in placed.leaves for m in placed.modules], np.bool_)[graph.module.codes]
    calls = 0
    for module in [*reversed(list(above(leaf))), leaf]:
        own = placed.forward[graph.module.is_value(module)[placed.forward]]
        calls = len(np.unique(graph.call[own]))
        if calls == 1 and not (placed.below(module) & mine)[before].any():
            return module
    name = placed.problem.cluster.device_names[device]
    raise _no_chain(f"the stage on {name} begins with module {leaf!r}, which is called {max(calls, 2)} times")


def _check_chain(placed: PlacedModules, stage: NDArray[np.int_]) -> None:
    """Raise PlacementError unless operations read only from their own stage and the one before, and inputs in the first."""
    graph, reader = placed.graph, dict[int, int]()
    for v in placed.forward.tolist():
        here = int(stage[v])
        what = f"module {placed.module_of(v)!r} in stage {here}" if placed.module_of(v) else f"stage {here}"
        for t in graph.inputs(v).tolist():
            u = int(graph.tensor_producer[t])
            if graph.kernel[u]:
                if stage[u] not in (here, here - 1):
                    raise _no_chain(
                        f"{what} reads {graph.op_name[u]!r} of stage {stage[u]}, which is not the one before"
                    )
            elif placed.kinds[u] == "input" and here > 0:
                raise _no_chain(f"{what} reads {graph.op_name[u]!r}, which enters in stage 0")
            elif placed.kinds[u] == "parameter" and reader.setdefault(u, here) != here:
                raise _no_chain(f"{what} reads parameter {graph.op_name[u]!r}, which stage {reader[u]} reads, too")


def _no_chain(why: str) -> PlacementError:
    return PlacementError(
        f"the placement is not a chain of modules: {why}",
        "`--format device_map` can express any placement; grouper=module places whole modules, which gives chains more often",
    )
