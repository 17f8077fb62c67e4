"""The policies `scotch` and `mincut`: how they describe the machine to Scotch and use its mapping."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_partitioning.partitioning import Partitioning, Parts, gpus
from pydantic import BaseModel

from placekit_core import Problem
from placekit_scotch import ScotchOptions
from placekit_scotch.library import load, static_mapping

SPEED = 1000  # speed of the fastest device
LINK = 10  # cost of the fastest link


class Scotch(Partitioning):
    """Static mapping onto all devices (Mirhoseini et al. 2017, section 4.2).

    In the graph, the weight of a vertex is the seconds of a group, and the weight of an edge the bytes that two groups exchange.
    In the target architecture, which is the machine, they are the speed of a device, and the seconds of a tensor of mean size on
    a route. Building it raises NotApplicable if there is no Scotch.
    """

    name = "scotch"
    options_class = ScotchOptions

    def __init__(self, options: BaseModel | None = None, **values: Any) -> None:
        super().__init__(options, **values)
        load(self.name)

    def parts(self, parts: Parts, rng: Generator) -> NDArray[np.int64]:
        """[k] the mapping with the cheapest transfers, of several."""
        speed, link = np.maximum(np.rint(SPEED * parts.speed), 1).astype(np.int64), link_costs(parts)
        exchange = parts.exchange
        best, least = np.zeros(len(parts.groups), np.int64), np.inf
        for seed in rng.integers(2**31, size=self.options.runs).tolist():
            found = static_mapping(exchange, parts.load, speed, link, parts.fixed, self.options.imbalance, seed)
            source, target = found[exchange.source], found[exchange.neighbour]
            cost = float((exchange.bytes_ * np.where(source == target, 0, link[source, target])).sum())
            if cost < least:
                best, least = found, cost
        return best


class MinCut(Scotch):
    """`scotch` without the CPUs: they run only what no GPU may run. Raises NotApplicable if there is no GPU."""

    name = "mincut"

    def targets(self, problem: Problem) -> NDArray[np.int64]:
        """[p] the GPUs."""
        return gpus(problem, self.name, "policy=scotch maps onto all devices")


def link_costs(parts: Parts) -> NDArray[np.int64]:
    """[p, p] cost of the route between two targets: seconds of a tensor of mean size, the cheapest being `LINK`."""
    routes = parts.problem.cluster.routes
    bytes_ = parts.exchange.bytes_.mean() if len(parts.exchange.bytes_) else 0.0
    seconds = (routes.latency_s + bytes_ * routes.s_per_byte)[np.ix_(parts.targets, parts.targets)]
    seconds = (seconds + seconds.T) / 2
    between = seconds[~np.eye(len(seconds), dtype=bool)]
    least = float(between[between > 0].min(initial=np.inf))
    cost = np.clip(np.rint(LINK * seconds / least), 1, 10**6).astype(np.int64) if np.isfinite(least) else None
    return np.ones(seconds.shape, np.int64) if cost is None else cost
