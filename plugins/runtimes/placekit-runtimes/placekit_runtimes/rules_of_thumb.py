"""Rules of thumb that belong to no runtime: layers in proportion to bandwidth, and the fastest device first.

From discussions of exo: exo-explore/exo, issue 957 and pull request 2297 (bandwidth), issue 701 and pull request 1088 (fastest).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from placekit_core import NotApplicable, Placement, Problem, units
from placekit_runtimes.interface import Rule
from placekit_runtimes.layers import Network, proportional

UTILIZATION = 0.9
"""Share of each device's memory that parameters and state may take; vLLM's default."""


def _bandwidth(problem: Problem, device: int) -> float:
    return problem.cluster.kinds[problem.cluster.device_kind[device]].memory_bytes_per_s


class BandwidthShare(Rule):
    """Layers in proportion to memory bandwidth, at most as many on a device as its memory holds."""

    name = "bandwidth_share"

    def rule(self, problem: Problem, note: Callable[[str], None]) -> Placement:
        """The placement. Raises NotApplicable without layers, or if they do not fit."""
        network, devices = Network.of(problem), self.ranks(problem)
        layers, blocks = network.count(self.name), network.blocks
        bandwidth = [_bandwidth(problem, d) for d in devices]
        first, last = int(network.of_layer[0]), int(network.of_layer[-1])
        room = UTILIZATION * problem.cluster.memory_bytes[list(devices)]
        room[0] -= blocks.persistent_bytes[:first].sum()
        room[-1] -= blocks.persistent_bytes[last + 1 :].sum()
        layer = blocks.persistent_bytes[first : last + 1].sum() / layers
        most = np.full(len(room), layers) if layer <= 0 else np.clip(room // max(layer, 1.0), 0, layers).astype(int)
        return network.stages(capped(layers, bandwidth, most.tolist()), devices)


class FastestFirst(Rule):
    """The device with the highest memory bandwidth is filled with blocks in order until its memory is full, then the next one."""

    name = "fastest_first"

    def rule(self, problem: Problem, note: Callable[[str], None]) -> Placement:
        """The placement; networks without layers have one, too. Raises NotApplicable if the blocks do not fit."""
        network = Network.of(problem)
        need = network.blocks.persistent_bytes
        devices = sorted(self.ranks(problem), key=lambda d: -_bandwidth(problem, d))
        room = UTILIZATION * problem.cluster.memory_bytes[devices]
        at, used, device = 0, 0.0, []
        for b in range(len(need)):
            while at < len(devices) and used + need[b] > room[at]:
                at, used = at + 1, 0.0
            if at == len(devices):
                raise NotApplicable(
                    f"{network.blocks.names[b]!r} and what follows it, {units.mebibytes(need[b:].sum())}, do not fit:"
                    f" {network.names(devices)} are filled to {UTILIZATION:.0%}",
                    "use a machine with more memory, or a smaller model",
                )
            used += need[b]
            device.append(devices[at])
        return network.placed(device)


def capped(layers: int, weight: Sequence[float], most: Sequence[int]) -> list[int]:
    """Divide layers in proportion to `weight`, but at most `most[i]` on device i; the other devices share what is left over.

    Raises NotApplicable if all devices together take fewer layers.

    Source: exo-explore/exo, pull request 2297: "Allocate layers in proportion to bandwidth while treating available RAM as
    a hard capacity". It does not say how to share what is left over.
    """
    if sum(most) < layers:
        raise NotApplicable(
            f"{layers} layers do not fit: the devices have room for {sum(most)}",
            "use a machine with more memory, or a smaller model",
        )
    result = [0] * len(weight)
    full: set[int] = set()
    while sum(result) < layers:
        open_ = [i for i in range(len(weight)) if i not in full]
        taken = sum(result[i] for i in full)
        share = proportional(layers - taken, [weight[i] for i in open_])
        for i, count in zip(open_, share, strict=True):
            result[i] = min(count, most[i])
        full |= {i for i, count in zip(open_, share, strict=True) if count > most[i]}
    return result
