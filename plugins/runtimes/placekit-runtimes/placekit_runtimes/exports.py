"""A placement in the forms of all runtimes, for the page of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np

from placekit_core import Export, Placement, PlacementError, Problem
from placekit_runtimes.accelerate import Accelerate
from placekit_runtimes.accelerate.device_map import device_map
from placekit_runtimes.interface import Runtime, notes_of


def exports(problem: Problem, placement: Placement, runtimes: Sequence[Runtime]) -> list[Export]:
    """The placement for each of `runtimes` that can express it, and that people use for such a step.

    Nothing for programs without modules or layers, for data parallelism, and if one device runs everything. A device map
    that does not fit is left out: moving modules until it fits would delay the end of the run.
    """
    graph, found = problem.graph, list[Export]()
    modules = "torch" in graph.attributes or graph.attributes.get("program") == "decoder"
    one = len(np.unique(problem.expand(placement.device)[graph.kernel])) < 2
    if not modules or one or "tower" in graph.columns:
        return []
    generates = graph.attributes.get("mode") in ("prefill", "prompt", "decode")
    step = "training" if graph.phase.any() else "generation" if generates else "inference"
    for own in runtimes:
        if step not in own.runs:
            continue
        with contextlib.suppress(PlacementError):
            made = device_map(problem, placement) if isinstance(own, Accelerate) else own.write(problem, placement)
            cost = own.cost(problem, made)
            if cost is None or not cost.error:
                seconds, details = (None, ()) if cost is None else (cost.value_s, cost.details[:1])
                notes = [*details, *notes_of(own.name, made)]
                found.append(Export(own.title, own.name, made.text, made.placement, seconds, notes))
    return found
