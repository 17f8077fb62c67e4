"""exo: shards of layers in proportion to memory, on the fewest devices that hold the weights.

Follows exo-explore/exo, src/exo/master/placement.py and placement_utils.py at 027f237; the format of shards is that of
src/exo/shared/types/worker/shards.py and runners.py at 05e3383, and src/exo/worker/engines/mlx/auto_parallel.py at 00fc33f.
The code is our own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from placekit_core import NotApplicable, Placement, Problem, units
from placekit_runtimes.interface import Rule, Runtime, RuntimeMap
from placekit_runtimes.layers import Network, Stages, proportional


class ExoMemory(Rule):
    """exo's shards: layers in proportion to memory, over the fewest devices whose memory holds the weights."""

    name = "exo_memory"

    def rule(self, problem: Problem, note: Callable[[str], None]) -> Placement:
        """The placement. Raises NotApplicable where exo finds too little memory."""
        network, ranks = Network.of(problem), self.ranks(problem)
        layers, memory = network.count(self.name), problem.cluster.memory_bytes
        devices = self._chosen(network, ranks, memory)
        shares = shard_layers(layers, memory[devices].tolist())
        weights = float(network.blocks.parameter_bytes.sum())
        for device, count in zip(devices, shares, strict=True):
            if weights * count / layers > memory[device]:
                raise NotApplicable(
                    f"exo refuses {count} of {layers} layers on {network.names([device])}: they need"
                    f" {units.mebibytes(weights * count / layers)} of {units.mebibytes(memory[device])}",
                    "use a machine whose devices have more memory",
                )
        return network.stages(shares, devices)

    def _chosen(self, network: Network, ranks: Sequence[int], memory: NDArray[np.float64]) -> list[int]:
        """The fewest devices that hold the weights; of several sets, the one with most memory, in the machine's order."""
        weights = float(network.blocks.parameter_bytes.sum())
        largest = sorted(ranks, key=lambda d: -memory[d])
        for count in range(1, len(largest) + 1):
            if memory[largest[:count]].sum() >= weights:
                return [d for d in ranks if d in largest[:count]]
        raise NotApplicable(
            f"exo finds no devices that hold {units.mebibytes(weights)} of weights:"
            f" {network.names(ranks)} have {units.mebibytes(memory[largest].sum())}",
            "use a machine with more memory, or a smaller model",
        )


def shard_layers(layers: int, memory: Sequence[float]) -> list[int]:
    """Layers of each exo node: in proportion to memory by the method of largest remainders, and one at least.

    A node that would get none takes one from the node with most. Raises NotApplicable with fewer layers than nodes.
    """
    nodes = len(memory)
    if layers < nodes:
        raise NotApplicable(
            f"exo gives every node a layer at least, and {layers} layers are too few for {nodes}",
            "use fewer devices: policy.devices",
        )
    result = proportional(layers, memory)
    for i in range(nodes):
        if result[i] == 0:
            result[int(np.argmax(result))] -= 1
            result[i] = 1
    return result


class Exo(Runtime):
    """exo, whose nodes have consecutive layers."""

    name = "exo"
    title = "exo"
    versions = ("exo-explore/exo at 027f237 (placement), 05e3383 and 00fc33f (shards)",)
    default_rule = ExoMemory
    runs = ("generation",)

    def write(self, problem: Problem, placement: Placement) -> RuntimeMap:
        """The shard of each node, in the order of the ranks: layers from `startLayer` up to `endLayer`, which is exclusive.

        Each node has a layer at least. In the simulation the first node has the embedding and the last one the head; exo
        loads both on every node. The model card and the identifiers of nodes and runners are exo's own
        (`/instance/previews`).
        """
        stages = Stages.of(problem, placement, self.title, empty=False)
        ends = np.cumsum(stages.counts).tolist()
        shards = [
            {
                "node": problem.cluster.device_names[device],
                "PipelineShardMetadata": {
                    "deviceRank": rank,
                    "worldSize": len(ends),
                    "startLayer": ends[rank] - stages.counts[rank],
                    "endLayer": ends[rank],
                    "nLayers": ends[-1],
                },
            }
            for rank, device in enumerate(stages.devices)
        ]
        return stages.map("[\n" + ",\n".join(f" {json.dumps(s)}" for s in shards) + "\n]")


RUNTIME = Exo()
