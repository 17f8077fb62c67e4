"""Which of a network's repeated layers each device runs, in a few words."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from placekit_core.contracts.graph import PHASES
from placekit_core.contracts.placement import Placement
from placekit_core.contracts.problem import Problem


def layers_of(problem: Problem, placement: Placement) -> dict[str, str]:
    """The layers of each device, as text: `h.0-19`, and `weights of h.0-19` where these are on another device.

    A layer is a module in a list of modules, `h.0` in `h`, whose forward kernels all are in the group named after it; without
    such groups, nothing is returned. Lists and devices are in the order of their first layers in the graph.
    """
    graph, grouping = problem.graph, problem.grouping
    forward = graph.kernel & (graph.phase == PHASES.index("forward"))
    count = max(grouping.count, 1)
    key, first = np.unique(
        graph.module.codes[forward].astype(np.int64) * count + grouping.group_of[forward], return_index=True
    )
    groups: dict[str, set[int]] = {}
    for pair in key[np.argsort(first, kind="stable")].tolist():
        parts = graph.module.vocabulary[pair // count].split(".")
        for i in range(1, len(parts)):
            if parts[i].isdecimal():
                groups.setdefault(".".join(parts[: i + 1]), set()).add(pair % count)
    lists: defaultdict[str, dict[int, int]] = defaultdict(dict)  # device of each layer
    number_of = {grouping.name(i): i for i in range(grouping.count)}
    for path, inside in groups.items():
        group, (parent, _, number) = next(iter(inside)), path.rpartition(".")
        if len(inside) == 1 and grouping.name(group) == path:
            lists[parent][int(number)] = int(placement.device[group])
            weights = number_of.get(f"weights of {path}")  # see `Grouping.sources_apart`
            if weights is not None and placement.device[weights] != placement.device[group]:
                lists[f"weights of {parent}"][int(number)] = int(placement.device[weights])
    found: defaultdict[int, list[str]] = defaultdict(list)
    for parent, layers in lists.items():
        numbers: defaultdict[int, list[int]] = defaultdict(list)
        for i in sorted(layers) if len(layers) > 1 else ():
            numbers[layers[i]].append(i)
        for device, some in numbers.items():
            found[device].append(f"{parent}.{_ranges(some)}")
    return {problem.cluster.device_names[device]: ", ".join(texts) for device, texts in found.items()}


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers as text: 0-3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
