"""The arithmetic of the rules: how many layers each stage gets. Numbers in, numbers out; no graph and no machine.

Each function follows the public source that its docstring names; the code is our own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placekit_core import ConfigError, NotApplicable


def vllm(layers: int, stages: int, partition: Sequence[int] | None = None) -> list[int]:
    """Layers of each vLLM stage: as many for all; what remains goes one each to the last but one, the one before, ...

    So neither the last stage nor, while there are others, the first gets an additional layer: these hold the output and the
    embedding. `partition` (VLLM_PP_LAYER_PARTITION) is taken as it is. Raises ConfigError if that is not one of these
    layers and stages.

    Source: vllm-project/vllm, vllm/distributed/utils.py, `get_pp_indices`, commit 5a6541d.
    """
    if partition is not None:
        if len(partition) != stages:
            raise ConfigError(
                f"layer_partition has {len(partition)} stages, and there are {stages}",
                "give one number for each stage: policy.pipeline_parallel_size, or the number of devices",
            )
        if sum(partition) != layers:
            raise ConfigError(
                f"layer_partition places {sum(partition)} layers, and the network has {layers}",
                "the numbers add up to the layers of the network",
            )
        return list(partition)
    each, rest = divmod(layers, stages)
    return [each + (stages - 1 - rest <= s < stages - 1) for s in range(stages)]


def torchtitan_stages(
    layers: int, devices: int, input_weight: int, output_weight: int, layers_per_stage: int | None, several: bool
) -> int:
    """How many stages torchtitan makes for `devices` ranks; `several`: of a schedule with two or more stages for each rank.

    ceil((layers + weights) / layers_per_stage) stages; without `layers_per_stage` one for each rank, or two. Raises
    ConfigError where torchtitan does: a number of stages that is no multiple of the ranks, or not what the schedule takes.

    Source: pytorch/torchtitan, torchtitan/distributed/pipeline_parallel.py, `pipeline_llm`, commit 02ef790.
    """
    if layers_per_stage is None:
        return devices * (2 if several else 1)
    stages = -(-(layers + input_weight + output_weight) // layers_per_stage)
    if stages % devices:
        raise ConfigError(
            f"layers_per_stage={layers_per_stage} makes {stages} stages, no multiple of {devices} devices",
            "torchtitan refuses that; choose a layers_per_stage that gives each device as many stages",
        )
    each = stages // devices
    if (each > 1) != several:
        takes = "two or more stages" if several else "one stage"
        raise ConfigError(
            f"layers_per_stage={layers_per_stage} makes {each} stage{'s' * (each > 1)} for each device, and the schedule"
            f" takes {takes}",
            "choose another layers_per_stage, or another schedule",
        )
    return stages


def torchtitan(layers: int, stages: int, input_weight: int, output_weight: int) -> list[int]:
    """Layers of each torchtitan stage: stages are even, the embedding counts `input_weight`, the output `output_weight`.

    What does not divide goes one each to the first stages. Raises NotApplicable where torchtitan refuses: more stages than
    layers with weights, or a weight above what a stage holds.

    Source: pytorch/torchtitan, torchtitan/distributed/pipeline_parallel.py, `generate_llm_fqn_per_model_part`,
    commit 02ef790.
    """
    if stages == 1:
        return [layers]
    effective = layers + input_weight + output_weight
    each, rest = divmod(effective, stages)
    if stages > effective:
        raise NotApplicable(
            f"torchtitan makes no {stages} stages of {effective} layers (with the weights of embedding and output)",
            "use fewer devices: policy.devices",
        )
    for name, weight in (("input_weight", input_weight), ("output_weight", output_weight)):
        if weight > each:
            raise NotApplicable(
                f"torchtitan refuses {name}={weight}: a stage holds {each} layers only",
                f"lower policy.{name}, or use fewer devices: policy.devices",
            )
    counts, left = [], layers
    for s in range(stages):
        room = each + (s < rest) - input_weight * (s == 0) - output_weight * (s == stages - 1)
        counts.append(min(room, left))
        left -= counts[-1]
    return counts


def exo(layers: int, memory: Sequence[float]) -> list[int]:
    """Layers of each exo node: in proportion to memory by the method of largest remainders, and one at least.

    A node that would get none takes one from the node with most. Raises NotApplicable with fewer layers than nodes.

    Source: exo-explore/exo, src/exo/master/placement_utils.py, `allocate_layers_proportionally`, commit 027f237.
    """
    nodes = len(memory)
    if layers < nodes:
        raise NotApplicable(
            f"exo gives every node a layer at least, and {layers} layers are too few for {nodes}",
            "use fewer devices: policy.devices, or a lower policy.min_nodes",
        )
    result = proportional(layers, memory)
    for i in range(nodes):
        if result[i] == 0:
            result[int(np.argmax(result))] -= 1
            result[i] = 1
    return result


def exo_ring(layers: int, memory: Sequence[float]) -> list[int]:
    """Layers of each node of exo 0.0, whose nodes are in descending order of memory: the ends of the shares, cut to integers.

    `memory` is in that order. Ends are rounded to five digits first, and the last node gets the remaining layers.

    Source: exo-explore/exo, exo/topology/ring_memory_weighted_partitioning_strategy.py at 57b2f2a, and
    exo/topology/partitioning_strategy.py, `map_partitions_to_shards`, at 9b1ce15.
    """
    total, start, ends = sum(memory), 0.0, []
    for m in memory:
        start = round(start + m / total, 5)
        ends.append(int(start * layers))
    ends[-1] = layers
    return [b - a for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def proportional(layers: int, weight: Sequence[float]) -> list[int]:
    """`layers` in proportion to the weights, by the method of largest remainders; the first of equal remainders comes first."""
    total = sum(weight)
    exact = [layers * (w / total) for w in weight]
    result = [int(x) for x in exact]
    by_remainder = sorted(range(len(weight)), key=lambda i: result[i] - exact[i])
    for i in by_remainder[: layers - sum(result)]:
        result[i] += 1
    return result


def capped(layers: int, weight: Sequence[float], most: Sequence[int]) -> list[int]:
    """`proportional`, with at most `most[i]` layers for device i; what it cannot take is shared among the others in proportion.

    Raises NotApplicable if all devices together take fewer layers.

    Source: exo-explore/exo, pull request 2297: "Allocate layers in proportion to bandwidth while treating available RAM as
    a hard capacity". The text does not say how the rest is shared.
    """
    if sum(most) < layers:
        raise NotApplicable(
            f"{layers} layers do not fit: the devices have room for {sum(most)}",
            "use a machine with more memory, a smaller model, or a higher policy.utilization",
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


def llamacpp(layers: int, splits: Sequence[float], n_gpu_layers: int) -> list[int]:
    """[layers + 1] index of the GPU of each layer and of the output, -1 for the CPU, as llama.cpp assigns them.

    The last `n_gpu_layers` layers are on GPUs. Layer i of k goes to the first GPU where the sum of all shares up to it is
    above i / k, in single precision as in llama.cpp. The output counts as layer `layers`: with `n_gpu_layers` above
    `layers` it is on the last GPU that has layers, otherwise on the CPU.

    Source: ggml-org/llama.cpp, src/llama-model.cpp, `load_tensors`, commit a5410f0.
    """
    if not splits:
        return [-1] * (layers + 1)
    ends = np.cumsum(np.asarray(splits, np.float32), dtype=np.float32)
    ends /= ends[-1]
    first, count = max(layers - n_gpu_layers, 0), min(n_gpu_layers, layers + 1)
    place = np.arange(layers + 1) - first
    share = place.astype(np.float32) / np.float32(max(count, 1))
    gpu = np.searchsorted(ends, share, side="right")
    return [int(g) if 0 <= i < count else -1 for i, g in zip(place.tolist(), gpu.tolist(), strict=True)]
