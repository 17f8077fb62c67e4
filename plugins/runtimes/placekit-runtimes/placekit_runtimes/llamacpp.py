"""llama.cpp: layers over all GPUs in proportion to memory, with the first layers on the CPU if the user wants that.

Follows ggml-org/llama.cpp, src/llama-model.cpp, `load_tensors`, commit a5410f0 (since pull request 18148; before it, the
output was on a GPU only if all layers were), docs/multi-gpu.md at b156652, and common/fit.cpp at 08033df; the code is our own.

A model that does not fit is fitted before (`--fit`, on by default), which is not modelled: a context that is not set shrinks,
to 4,096 tokens at least; then layers fill the last GPU first, each but for 1 GiB, and the first layers stay on the CPU. Of a
mixture of experts all layers have their experts on the CPU at first, and those of the first layers go to GPUs with room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from placekit_core import ConfigError, NotApplicable, Placement, PlacementError, Problem
from placekit_runtimes.interface import Rule, Runtime, RuntimeMap, cpu_of
from placekit_runtimes.layers import ANY, Network, PlacedLayers, device_numbers, latent_notes
from placekit_runtimes.options import LlamaCppOptions, RuleOptions


class LlamaCppLayers(Rule):
    """llama.cpp's split by layers: in proportion to memory, or to `tensor_split`; the embedding stays on the CPU."""

    name = "llamacpp_layers"
    options_class: ClassVar[type[RuleOptions]] = LlamaCppOptions

    def rule(self, problem: Problem, note: Callable[[str], None]) -> Placement:
        """The placement. Raises NotApplicable if layers are left to a CPU that does not exist."""
        network, o = Network.of(problem), self.options
        layers, cpu = network.count(self.name), cpu_of(problem)
        for text in latent_notes(problem, "llama.cpp"):
            note(text)
        gpus = [d for d in self.ranks(problem) if problem.device_type(d) == "gpu"]
        wanted = layers + 1 if o.n_gpu_layers == "all" else o.n_gpu_layers
        on = gpu_of_layers(layers, self._splits(network, gpus), wanted)
        if cpu is None:
            if -1 in on:
                raise NotApplicable(
                    f"{on.count(-1)} of {layers + 1} layers are for the CPU, and {problem.cluster.name!r} has none",
                    "use policy.n_gpu_layers=all, or a machine with a CPU",
                )
            cpu = gpus[on[0]]
        device = [gpus[i] if i >= 0 else cpu for i in on]
        return network.placed(network.spread(device[:-1], cpu, device[-1]))

    def _splits(self, network: Network, gpus: list[int]) -> list[float]:
        """The shares of the GPUs; llama.cpp takes their free memory if `tensor_split` is missing or zero."""
        o, memory = self.options, network.problem.cluster.memory_bytes
        split = list(o.tensor_split or [])
        if len(split) > len(gpus):
            raise ConfigError(
                f"tensor_split has {len(split)} shares, and there are {len(gpus)} GPUs",
                f"give a share for each GPU: {network.names(gpus) or 'none'}",
            )
        split += [0.0] * (len(gpus) - len(split))
        return split if any(split) else memory[gpus].tolist()


def gpu_of_layers(layers: int, splits: Sequence[float], n_gpu_layers: int) -> list[int]:
    """[layers + 1] index of the GPU of each layer and of the output, -1 for the CPU, as llama.cpp assigns them.

    The last `n_gpu_layers` layers are on GPUs. Layer i of k goes to the first GPU where the sum of all shares up to it is
    above i / k, in single precision as in llama.cpp. The output counts as layer `layers`: with `n_gpu_layers` above
    `layers` it is on the last GPU that has layers, otherwise on the CPU.
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


class LlamaCpp(Runtime):
    """llama.cpp with `--n-gpu-layers` and `--tensor-split`."""

    name = "llamacpp"
    title = "llama.cpp"
    versions = ("ggml-org/llama.cpp at a5410f0 (load_tensors), b156652 (multi-gpu.md) and 08033df (fit.cpp)",)
    default_rule = LlamaCppLayers

    def write(self, problem: Problem, placement: Placement) -> RuntimeMap:
        """Arguments: `--n-gpu-layers 25 --tensor-split 10,15`, the number of last layers on GPUs, and the layers of each GPU.

        The output counts as a layer, the last one. The embedding is always on the CPU; if the machine has none, it is
        counted where the first layer is. `--device` names the GPUs where they are not in the machine's order, as the CUDA
        backend does. Raises PlacementError for layers that go back to a GPU, or from a GPU to the CPU; and if there are no
        layers.
        """
        layers = PlacedLayers.of(problem, placement, self.title)
        is_gpu = [problem.device_type(d) == "gpu" for d in range(problem.cluster.size)]
        devices = [*layers.devices, layers.devices[-1] if layers.after is None else layers.after]
        on_cpu = next((i for i, d in enumerate(devices) if is_gpu[d]), len(devices))
        used = devices[on_cpu:-1]
        if devices[-1] in used or (used and not is_gpu[devices[-1]]):
            devices[-1] = used[-1]  # the output is on the last GPU, with the last layers or alone
        gpus = list(dict.fromkeys(devices[on_cpu:]))
        _check_order(layers, devices, on_cpu, is_gpu)
        counts = {d: devices.count(d) for d in gpus}
        cpu = next((d for d, gpu in enumerate(is_gpu) if not gpu), devices[0])
        text = [f"--n-gpu-layers {len(devices) - on_cpu}"]
        if gpus == sorted(gpus):
            shares = [str(counts.get(d, 0)) for d in range(gpus[-1] + 1) if is_gpu[d]] if gpus else []
        else:
            shares = [str(counts[d]) for d in gpus]
            text.insert(0, f"--device {','.join(f'CUDA{device_numbers(problem)[d]}' for d in gpus)}")
        text += [f"--tensor-split {','.join(shares)}"] if shares else []
        return layers.map(" ".join(text), devices[:-1], cpu, devices[-1], [_NO_FIT, *latent_notes(problem, self.title)])


_NO_FIT = (
    "with these arguments llama.cpp does not fit the layers to the memory by itself (`--fit`); it may still shrink a context that"
    " `--ctx-size` does not set"
)


def _check_order(layers: PlacedLayers, devices: list[int], on_cpu: int, is_gpu: list[bool]) -> None:
    """Raise PlacementError that names a layer whose device llama.cpp cannot express."""
    names = layers.problem.cluster.device_names
    for i in range(on_cpu + 1, len(devices)):
        here, before = devices[i], devices[i - 1]
        if not is_gpu[here]:
            why = f"layer {layers.name(i)!r} is on {names[here]}, after {layers.name(i - 1)!r} on {names[before]}"
            raise PlacementError(f"llama.cpp has the first layers on the CPU, and {why}", ANY)
        if here != before and here in devices[on_cpu : i - 1]:
            why = f"layer {layers.name(i)!r} goes back to {names[here]} after {layers.name(i - 1)!r} on {names[before]}"
            raise PlacementError(f"llama.cpp takes consecutive layers, and {why}", ANY)


RUNTIME = LlamaCpp()
