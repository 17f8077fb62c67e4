"""llama.cpp: layers over all GPUs in proportion to memory, with the first layers on the CPU if the user wants that.

Follows ggml-org/llama.cpp, src/llama-model.cpp, `load_tensors`, commit a5410f0 (since pull request 18148; before it, the
output was on a GPU only if all layers were), docs/multi-gpu.md at b156652, and common/fit.cpp at 08033df; the code is our own.

This module does not model how llama.cpp makes room for a model that does not fit (`--fit`, on by default). A context that the
user did not set shrinks, to no less than 4,096 tokens. Then layers fill the GPUs from the last one, with 1 GiB left free on
each, and the first layers stay on the CPU. In a mixture of experts, the experts of all layers begin on the CPU, and the experts
of the first layers move to GPUs with room.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from placekit_core import ConfigError, NotApplicable, Placement, PlacementError, Problem
from placekit_runtimes.interface import Rule, Runtime, RuntimeMap, cpu_of, devices_of, nearest
from placekit_runtimes.layers import ANY, Network, PlacedLayers, latent_notes
from placekit_runtimes.options import LlamaCppOptions, RuleOptions
from placekit_runtimes.planning.split import Layout, Operations, Split


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
                    f"{on.count(-1)} of {layers + 1} layers are for the CPU, but {problem.cluster.name!r} has no CPU",
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
                f"tensor_split has {len(split)} shares, but there are {len(gpus)} GPUs",
                f"give a share for each GPU: {network.names(gpus) or 'none'}",
            )
        split += [0.0] * (len(gpus) - len(split))
        return split if any(split) else memory[gpus].tolist()


def gpu_of_layers(layers: int, splits: Sequence[float], n_gpu_layers: int) -> list[int]:
    """[layers + 1] index of the GPU of each layer and of the output, -1 for the CPU, as llama.cpp assigns them.

    The last `n_gpu_layers` layers are on GPUs; the output counts as one of them, the last. Layer i of these k goes to the first
    GPU where the sum of all shares up to it is above i / k, in single precision as in llama.cpp.
    """
    if not splits:
        return [-1] * (layers + 1)
    ends = np.cumsum(np.asarray(splits, np.float32), dtype=np.float32)
    ends /= ends[-1]
    first, count = max(layers + 1 - n_gpu_layers, 0), min(n_gpu_layers, layers + 1)
    place = np.arange(layers + 1) - first
    share = place.astype(np.float32) / np.float32(max(count, 1))
    gpu = np.searchsorted(ends, share, side="right")
    return [int(g) if 0 <= i < count else -1 for i, g in zip(place.tolist(), gpu.tolist(), strict=True)]


class LlamaCpp(Runtime):
    """llama.cpp with `--n-gpu-layers`, `--tensor-split` and `--override-tensor`."""

    name = "llamacpp"
    title = "llama.cpp"
    versions = ("ggml-org/llama.cpp at a5410f0 (load_tensors), b156652 (multi-gpu.md) and 08033df (fit.cpp)",)
    default_rule = LlamaCppLayers
    runs = ("generation",)

    def write(self, problem: Problem, placement: Placement) -> RuntimeMap:
        """Arguments: `--n-gpu-layers 25 --tensor-split 10,15`, the number of last layers on GPUs, and the layers of each GPU.

        The output counts as a layer, the last one. The embedding is always on the CPU; if the machine has none, it is
        counted where the first layer is. `--device` names the GPUs, unless they are all of the machine's in order. Tensors
        of a file (importer `checkpoint`) that are apart from their layer become `--n-cpu-moe` or `--override-tensor`.

        Raises PlacementError for layers that go back to a GPU, or from a GPU to the CPU; and if there are no layers.
        """
        graph = problem.graph
        if graph.attributes.get("program") == "decoder":
            layout = Layout.of(graph)
            split = Split.of(layout, graph, devices_of(problem, placement))
            text = " ".join(map(shlex.quote, arguments(problem, layout, split)))
            device = Operations(layout, graph).devices([split])[0]
            return RuntimeMap(text, nearest(problem, placement, device), notes=(_NO_FIT,))
        layers = PlacedLayers.of(problem, placement, self.title)
        devices = [*layers.devices, layers.devices[-1] if layers.after is None else layers.after]
        found = _Chain(problem, devices, layers.name)
        cpu = next((d for d in range(problem.cluster.size) if d not in found.gpus_of_machine), found.devices[0])
        notes = [_NO_FIT, *latent_notes(problem, self.title)]
        return layers.map(" ".join(found.arguments()), found.devices[:-1], cpu, found.devices[-1], notes)


class _Chain:
    """Layers on consecutive GPUs, after those on the CPU. Raises PlacementError for another order.

    Attributes:
        devices: [layers + 1] device of each layer and of the output.
        more: devices with tensors and no layers; llama.cpp loads nothing to GPUs that `--device` leaves out.
        on_cpu: how many layers are on the CPU.
    """

    def __init__(
        self, problem: Problem, devices: Sequence[int], name: Callable[[int], str], more: Sequence[int] = ()
    ) -> None:
        self.problem, self.devices, self.more = problem, list(devices), more
        self.gpus_of_machine = [d for d in range(problem.cluster.size) if problem.device_type(d) == "gpu"]
        gpus = self.gpus_of_machine
        self.on_cpu = next((i for i, d in enumerate(self.devices) if d in gpus), len(self.devices))
        used = self.devices[self.on_cpu : -1]
        if self.devices[-1] in used or (used and self.devices[-1] not in gpus):
            self.devices[-1] = used[-1]  # the output is on the last GPU, with the last layers or alone
        self._check_order(name)

    def _check_order(self, name: Callable[[int], str]) -> None:
        """Raise PlacementError that names a layer whose device llama.cpp cannot express."""
        names, devices = self.problem.cluster.device_names, self.devices
        for i in range(self.on_cpu + 1, len(devices)):
            here, before = devices[i], devices[i - 1]
            if here not in self.gpus_of_machine:
                why = f"layer {name(i)!r} is on {names[here]}, after {name(i - 1)!r} on {names[before]}"
                raise PlacementError(f"llama.cpp puts the first layers on the CPU, but {why}", ANY)
            if here != before and here in devices[self.on_cpu : i - 1]:
                why = f"layer {name(i - 1)!r} is on {names[before]}, and {name(i)!r} on {names[here]} again"
                raise PlacementError(f"llama.cpp needs consecutive layers on each GPU: {why}", ANY)

    def arguments(self) -> list[str]:
        """`--device`, unless all of the machine's GPUs are used in order, `--n-gpu-layers`, and `--tensor-split` for several."""
        gpus = list(dict.fromkeys([*self.devices[self.on_cpu :], *(d for d in self.more if d in self.gpus_of_machine)]))
        main = main_device(self.problem, [*self.devices, *self.more])
        names = ",".join(buffer_name(self.problem, d, main) for d in gpus)
        # llama.cpp lists the devices of other boxes first
        usual = gpus == self.gpus_of_machine and not remote_devices(self.problem, main)
        own = ["--device", names] if gpus and not usual else []
        shares = ",".join(str(self.devices.count(d)) for d in gpus)
        split = ["--tensor-split", shares] if len(gpus) > 1 else []
        return [*own, "--n-gpu-layers", str(len(self.devices) - self.on_cpu), *split]


def main_device(problem: Problem, used: Iterable[int]) -> int:
    """The device in whose box llama.cpp runs: the CPU if it has layers or tensors of layers, else the first GPU."""
    return min(used, key=lambda d: problem.device_type(d) == "gpu")


def buffer_name(problem: Problem, device: int, main: int) -> str:
    """The name of a device in llama.cpp that runs in the box of device `main`: `CUDA1`, `ROCm0`, `MTL0`, `CPU`, or `RPC0`."""
    away = remote_devices(problem, main)
    return f"RPC{list(away).index(device)}" if device in away else _own_name(problem, device)


def _own_name(problem: Problem, device: int) -> str:
    """The name of a device in its own box."""
    host, kinds = problem.cluster.launchers.host, problem.cluster.device_kind
    if problem.device_type(device) != "gpu":
        return "CPU"
    begin = next((name for pattern, name in _BACKENDS.items() if re.match(pattern, kinds[device])), "CUDA")
    before = [d for d in range(device) if host[d] == host[device] and problem.device_type(d) == "gpu"]
    named = re.fullmatch(r"cuda:(\d+)", problem.cluster.device_names[device])
    return f"{begin}{named[1] if named else len(before)}"


def remote_devices(problem: Problem, main: int) -> dict[int, str]:
    """The GPUs that are not in the box of `main`, with their names there; each is an rpc-server's."""
    host = problem.cluster.launchers.host
    gpus = [d for d in range(problem.cluster.size) if problem.device_type(d) == "gpu"]
    return {d: _own_name(problem, d) for d in gpus if host[d] != host[main]}


RPC_PORT = 50052
"""The default port of llama.cpp's rpc-server."""
_BACKENDS = {
    r"rx\d|mi\d|strix|radeon|r9700|w\d{4}": "ROCm", r"m\d(_|$)": "MTL", r"a770|b(580|60|70)$|max\d": "SYCL",
}  # fmt: skip
"""Names of llama.cpp's backends by the beginnings of kinds; all other GPUs are CUDA's."""


def arguments(problem: Problem, layout: Layout, split: Split) -> list[str]:
    """The arguments that place the tensors of a file as a split does. Raises PlacementError, see `LlamaCpp.write`."""
    more = split.held[layout.layer >= 0].tolist()
    chain = _Chain(problem, split.home.tolist(), lambda i: f"blk.{i}" if i < layout.layers else "output", more)
    home = np.append(chain.devices, split.held[0])[layout.layer]
    apart = (split.held != home) & (layout.layer >= 0)
    found, experts = chain.arguments(), layout.expert & apart
    cpu = [d for d in range(problem.cluster.size) if problem.device_type(d) != "gpu"]
    first = np.unique(layout.layer[experts & np.isin(split.held, cpu)])
    whole = np.isin(layout.layer[layout.expert & ~np.isin(home, cpu)], first)
    if len(first) and not apart[~experts].any() and (split.held[experts] == split.held[experts][0]).all():
        before = layout.expert & (layout.layer <= first[-1]) & ~np.isin(home, cpu)
        if experts[before].all() and whole.any():
            return [*found, "--n-cpu-moe", str(int(first[-1]) + 1)]
    return [*found, *_overrides(problem, layout, split, apart)]


def _overrides(problem: Problem, layout: Layout, split: Split, apart: NDArray[np.bool_]) -> list[str]:
    """`--override-tensor` for tensors that are apart from their layers, a pattern for the layers of each name and device."""
    by_name: dict[tuple[str, int], list[int]] = {}
    main = main_device(problem, split.used(layout))
    for i in np.flatnonzero(apart).tolist():
        key = layout.names[i].removeprefix(f"blk.{layout.layer[i]}.")
        own = "ffn_.*_exps" if layout.expert[i] else re.escape(key)
        by_name.setdefault((own if layout.layer[i] < layout.layers else f"^{own}", int(split.held[i])), []).append(
            int(layout.layer[i])
        )
    rules = []
    for (pattern, device), layers in by_name.items():
        numbers = "|".join(map(str, dict.fromkeys(layers)))
        where = pattern if pattern.startswith("^") else rf"blk\.({numbers})\.{pattern}"
        name = buffer_name(problem, device, main)
        if match := re.fullmatch(r"RPC(\d+)", name):  # only `--device` takes the name without the address
            name += f"[BOX:{RPC_PORT + int(match[1])}]"
        rules.append(rf"{where}\.={name}")
    return ["--override-tensor", ",".join(rules)] if rules else []


_NO_FIT = (
    "these arguments fix the layers, so llama.cpp no longer fits them to the memory (`--fit`); set `--ctx-size`, too, or it may"
    " shrink the context"
)


RUNTIME = LlamaCpp()
