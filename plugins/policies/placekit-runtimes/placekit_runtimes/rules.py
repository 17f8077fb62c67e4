"""The rules that count layers: vLLM, torchtitan, exo, llama.cpp, and two that people use by hand."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from placekit_core import ConfigError, NotApplicable, Placement, Task, units
from placekit_runtimes import (
    BandwidthOptions,
    ExoOptions,
    FastestOptions,
    LlamaCppOptions,
    RuleOptions,
    TorchtitanOptions,
    VllmOptions,
    counts,
)
from placekit_runtimes.network import Network, Rule, cpu_of

MULTI_STAGE = ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


class VllmEven(Rule):
    """vLLM's pipeline: as many layers on every GPU, additional layers on the middle ones; memory is not looked at."""

    name = "vllm_even"
    options_class: ClassVar[type[RuleOptions]] = VllmOptions

    def rule(self, task: Task) -> Placement:
        """The placement. Raises NotApplicable without layers, or with fewer devices than stages."""
        network = Network.of(task.problem, self.options)
        layers = network.layers("vllm_even")
        stages = self.options.pipeline_parallel_size or len(network.devices)
        if stages > len(network.devices):
            raise NotApplicable(
                f"pipeline_parallel_size={stages}, and there are {len(network.devices)} devices:"
                f" {network.names(network.devices)}",
                "vLLM has one stage for each device",
            )
        return network.stages(counts.vllm(layers, stages, self.options.layer_partition), network.devices[:stages])


class TorchtitanWeights(Rule):
    """torchtitan's stages: even, with the embedding and the output counted as layers."""

    name = "torchtitan_weights"
    options_class: ClassVar[type[RuleOptions]] = TorchtitanOptions

    def rule(self, task: Task) -> Placement:
        """The placement; with several stages for each device, a device has several runs of layers.

        Stage s is on device s mod p (`_get_stage_indices` in torchtitan), for V-shaped schedules on s and on 2p - 1 - s.
        Raises NotApplicable and ConfigError where torchtitan refuses.
        """
        network, o = Network.of(task.problem, self.options), self.options
        layers, p = network.layers("torchtitan_weights"), len(network.devices)
        several = o.schedule in MULTI_STAGE
        stages = counts.torchtitan_stages(layers, p, o.input_weight, o.output_weight, o.layers_per_stage, several)
        if o.schedule in V_SHAPED and stages != 2 * p:
            raise ConfigError(
                f"schedule {o.schedule} has two stages for each device, and there are {stages} for {p} devices",
                "choose a layers_per_stage that makes two, or another schedule",
            )
        order = [s % p if o.schedule not in V_SHAPED or s < p else stages - 1 - s for s in range(stages)]
        layers_of = counts.torchtitan(layers, stages, o.input_weight, o.output_weight)
        return network.stages(layers_of, [network.devices[i] for i in order])


class ExoMemory(Rule):
    """exo's shards: layers in proportion to memory, over the fewest devices whose memory holds the weights."""

    name = "exo_memory"
    options_class: ClassVar[type[RuleOptions]] = ExoOptions

    def rule(self, task: Task) -> Placement:
        """The placement. Raises NotApplicable where exo finds too little memory."""
        network = Network.of(task.problem, self.options)
        layers = network.layers("exo_memory")
        memory = task.problem.cluster.memory_bytes
        if self.options.strategy == "ring":
            devices = sorted(network.devices, key=lambda d: -memory[d])
            return network.stages(counts.exo_ring(layers, memory[devices].tolist()), devices)
        devices = self._chosen(network, memory)
        shares = counts.exo(layers, memory[devices].tolist())
        weights = float(network.blocks.parameter_bytes.sum())
        for device, count in zip(devices, shares, strict=True):
            if weights * count / layers > memory[device]:
                raise NotApplicable(
                    f"exo refuses {count} of {layers} layers on {network.names([device])}: they need"
                    f" {units.mebibytes(weights * count / layers)} of {units.mebibytes(memory[device])}",
                    "use more devices: policy.min_nodes",
                )
        return network.stages(shares, devices)

    def _chosen(self, network: Network, memory: NDArray[np.float64]) -> list[int]:
        """The fewest devices that hold the weights; of several sets, the one with most memory, in the machine's order."""
        weights = float(network.blocks.parameter_bytes.sum())
        largest = sorted(network.devices, key=lambda d: -memory[d])
        for count in range(self.options.min_nodes, len(largest) + 1):
            if memory[largest[:count]].sum() >= weights:
                return [d for d in network.devices if d in largest[:count]]
        raise NotApplicable(
            f"exo finds no {self.options.min_nodes} or more devices that hold {units.mebibytes(weights)} of weights:"
            f" {network.names(network.devices)} have {units.mebibytes(memory[largest].sum())}",
            "lower policy.min_nodes, or use a machine with more memory",
        )


class LlamaCppLayers(Rule):
    """llama.cpp's split by layers: in proportion to memory, or to `tensor_split`; the embedding stays on the CPU."""

    name = "llamacpp_layers"
    options_class: ClassVar[type[RuleOptions]] = LlamaCppOptions

    def rule(self, task: Task) -> Placement:
        """The placement. Raises NotApplicable if layers are left to a CPU that does not exist."""
        problem, o = task.problem, self.options
        network = Network.of(problem, o)
        layers, cpu = network.layers("llamacpp_layers"), cpu_of(problem)
        gpus = [d for d in network.devices if problem.device_type(d) == "gpu"]
        wanted = layers + 1 if o.n_gpu_layers == "all" else o.n_gpu_layers
        on = counts.llamacpp(layers, self._splits(network, gpus), wanted)
        if cpu is None:
            if -1 in on:
                raise NotApplicable(
                    f"{on.count(-1)} of {layers + 1} layers are for the CPU, and {problem.cluster.name!r} has none",
                    "use policy.n_gpu_layers=all, or a machine with a CPU",
                )
            cpu = gpus[on[0]]
        device = [gpus[i] if i >= 0 else cpu for i in on]
        return network.of_layers(device[:-1], cpu, device[-1])

    def _splits(self, network: Network, gpus: list[int]) -> list[float]:
        """The shares of the GPUs; llama.cpp takes their free memory if `tensor_split` is missing or zero."""
        o, memory = self.options, network.problem.cluster.memory_bytes
        if o.split_mode == "none" and gpus:
            if o.main_gpu >= len(gpus):
                raise ConfigError(
                    f"main_gpu={o.main_gpu} is none of the {len(gpus)} GPUs", f"GPUs: {network.names(gpus)}"
                )
            return [float(i == o.main_gpu) for i in range(len(gpus))]
        split = list(o.tensor_split or [])
        if len(split) > len(gpus):
            raise ConfigError(
                f"tensor_split has {len(split)} shares, and there are {len(gpus)} GPUs",
                f"give a share for each GPU: {network.names(gpus) or 'none'}",
            )
        split += [0.0] * (len(gpus) - len(split))
        return split if any(split) else memory[gpus].tolist()


class BandwidthShare(Rule):
    """Layers in proportion to memory bandwidth, at most as many on a device as its memory holds."""

    name = "bandwidth_share"
    options_class: ClassVar[type[RuleOptions]] = BandwidthOptions

    def rule(self, task: Task) -> Placement:
        """The placement. Raises NotApplicable without layers, or if they do not fit."""
        network = Network.of(task.problem, self.options)
        layers, blocks, cluster = network.layers("bandwidth_share"), network.blocks, task.problem.cluster
        bandwidth = [cluster.kinds[cluster.device_kind[d]].memory_bytes_per_s for d in network.devices]
        first, last = int(network.of_layer[0]), int(network.of_layer[-1])
        room = self.options.utilization * cluster.memory_bytes[list(network.devices)]
        room[0] -= blocks.persistent_bytes[:first].sum()
        room[-1] -= blocks.persistent_bytes[last + 1 :].sum()
        layer = blocks.persistent_bytes[first : last + 1].sum() / layers
        most = np.full(len(room), layers) if layer <= 0 else np.clip(room // max(layer, 1.0), 0, layers).astype(int)
        return network.stages(counts.capped(layers, bandwidth, most.tolist()), network.devices)


class FastestFirst(Rule):
    """The fastest device is filled with blocks in order until its memory is full, then the next one."""

    name = "fastest_first"
    options_class: ClassVar[type[RuleOptions]] = FastestOptions

    def rule(self, task: Task) -> Placement:
        """The placement; networks without layers have one, too. Raises NotApplicable if the blocks do not fit."""
        network, cluster = Network.of(task.problem, self.options), task.problem.cluster
        need = network.blocks.persistent_bytes
        devices = sorted(network.devices, key=lambda d: -self._speed(task, d))
        room = self.options.utilization * cluster.memory_bytes[devices]
        at, used, device = 0, 0.0, []
        for b in range(len(need)):
            while at < len(devices) and used + need[b] > room[at]:
                at, used = at + 1, 0.0
            if at == len(devices):
                raise NotApplicable(
                    f"{network.blocks.names[b]!r} and what follows it, {units.mebibytes(need[b:].sum())}, do not fit:"
                    f" {network.names(devices)} are filled to {self.options.utilization:.0%}",
                    "use a machine with more memory, a smaller model, or a higher policy.utilization",
                )
            used += need[b]
            device.append(devices[at])
        return network.placed(device)

    def _speed(self, task: Task, device: int) -> float:
        kind = task.problem.cluster.kinds[task.problem.cluster.device_kind[device]]
        return kind.memory_bytes_per_s if self.options.by == "bandwidth" else kind.flops_per_s["float32"]
