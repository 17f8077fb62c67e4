"""Whole layers, for runtimes that divide networks by layers: placements from layers, and layers of a placement."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
from numpy.typing import ArrayLike, NDArray
from placekit_layers import Blocks, sequence

from placekit_core import PHASES, NotApplicable, Placement, PlacementError, Problem
from placekit_runtimes.interface import (
    LEAST,
    Conflict,
    DeviceName,
    RuntimeMap,
    devices_of,
    gpus_or_all,
    seconds_by_device,
)

ANY = "`--format device_map` can express any placement; policy=chain finds the best one with consecutive layers"


def device_numbers(problem: Problem) -> list[DeviceName]:
    """[D] names of devices for runtimes: GPUs by the N of `cuda:N` or their position, other devices as `cpu`."""
    gpus = [problem.device_type(d) == "gpu" for d in range(problem.cluster.size)]
    named = [re.fullmatch(r"cuda:(\d+)(/\d+)?", name) for name in problem.cluster.device_names]
    own = [int(name[1]) if name else sum(gpus[:d]) for d, name in enumerate(named)]
    return [own[d] if gpu else "cpu" for d, gpu in enumerate(gpus)]


@dataclass(frozen=True, eq=False)
class Network:
    """A network as a sequence of blocks, some of which are its layers.

    Attributes:
        blocks: the b blocks, in the order in which they run.
        of_layer: [layers] block of each layer.
    """

    blocks: Blocks
    of_layer: NDArray[np.int64]

    @classmethod
    def of(cls, problem: Problem) -> Network:
        """The blocks of a problem."""
        blocks = sequence(problem)
        return cls(blocks, np.flatnonzero(blocks.layer))

    @property
    def problem(self) -> Problem:
        """The problem."""
        return self.blocks.problem

    def count(self, runtime: str) -> int:
        """The number of layers. Raises NotApplicable if the network has none."""
        if not len(self.of_layer):
            raise NotApplicable(
                f"{runtime} counts layers, but graph {self.problem.graph.name!r} has no numbered list of modules",
                "decoders have one (`h.0`, `model.layers.3`); policy.otherwise=single_device places everything on one device",
            )
        return len(self.of_layer)

    def names(self, devices: Sequence[int]) -> str:
        """Names of devices, for a message."""
        return ", ".join(self.problem.cluster.device_names[d] for d in devices)

    def spread(self, of_layer: Sequence[int], before: int, after: int) -> NDArray[np.int64]:
        """[b] a number for each block: `of_layer[i]` for layer i, `before` before the first layer, `after` after the last.

        Blocks between two layers have the number of the first layer.
        """
        position = np.searchsorted(self.of_layer, np.arange(len(self.blocks)), side="right") - 1
        found = np.asarray([*of_layer, before], np.int64)[position]  # -1, the last element, before the first layer
        found[int(self.of_layer[-1]) + 1 :] = after
        return found

    def stages(self, counts: Sequence[int], devices: Sequence[int]) -> Placement:
        """Put the next `counts[s]` layers on `devices[s]`, for each stage s; devices may repeat.

        Blocks before the first layer are on the first stage, and blocks after the last layer on the last stage, even if that
        stage has no layers, as in vLLM, torchtitan and exo.
        """
        return self.placed(self.spread(np.repeat(devices, counts).tolist(), devices[0], devices[-1]))

    def placed(self, device_of_block: ArrayLike) -> Placement:
        """Put each block on its device [b] or, if it may not run there, on the first device that may run all of it.

        If no device may, only the operations that may not run on the block's device are elsewhere.
        """
        device, allowed = np.asarray(device_of_block), self.blocks.allowed
        moves = ~allowed[np.arange(len(device)), device] & allowed.any(axis=1)
        return self.placed_groups(np.where(moves, allowed.argmax(axis=1), device)[self.blocks.of_group])

    def placed_groups(self, device: NDArray[np.integer]) -> Placement:
        """Put each group on its device [g], or on the first device that may run it."""
        allowed = self.problem.allowed[np.arange(self.problem.g), device]
        return self.problem.placement(np.where(allowed, device, self.problem.allowed.argmax(axis=1)).astype(np.int16))


def latent_notes(problem: Problem, runtime: str) -> list[str]:
    """A note if the graph is a decode step of transformers' latent attention, which `runtime` computes in another way.

    transformers caches the latents of DeepSeek's attention, and in each step expands those of all tokens by `kv_b_proj`. vLLM
    and llama.cpp multiply this matrix into the query and the output of a decode step instead. Such a step has a product of
    `kv_b_proj` with more rows than that of `kv_a_proj_with_mqa`, which has a row for each new token.
    """
    graph, rows = problem.graph, dict[str, float]()
    weights = graph.op_type.is_value("parameter")
    for module in [m for m in graph.module.vocabulary if m.endswith((".kv_b_proj", ".kv_a_proj_with_mqa"))]:
        own = graph.module.is_value(module)
        rows[module] = float(graph.flops[own].sum() / max(graph.persistent_bytes[own & weights].sum(), 1))
    expands = [
        m for m in rows
        if m.endswith(".kv_b_proj") and rows[m] > 1.5 * rows.get(f"{m.removesuffix('b_proj')}a_proj_with_mqa", np.inf)
    ]  # fmt: skip
    if not expands:
        return []
    share = sum(graph.flops[graph.module.is_value(m)].sum() for m in expands) / graph.flops.sum()
    return [
        f"the simulated time is for transformers' attention, not {runtime}'s: transformers expands the cached latents of all"
        f" tokens in each step ({100 * share:.0f}% of the arithmetic here), and {runtime} does not"
    ]


@dataclass(frozen=True, eq=False)
class PlacedLayers:
    """A placement by layers: each block on the device with most of its seconds.

    Attributes:
        network: the blocks of the network; the layers are among them.
        placement: the placement, with the device of each operation in `device` [n].
        of_block: [b] device of each block.
        runtime: name of the runtime, for messages.
    """

    network: Network
    placement: Placement
    device: NDArray[np.int16]
    of_block: NDArray[np.int64]
    runtime: str

    @classmethod
    def of(cls, problem: Problem, placement: Placement, runtime: str) -> PlacedLayers:
        """A placement by layers. Raises PlacementError without layers, or for a placement of another graph."""
        device, network = devices_of(problem, placement), Network.of(problem)
        if not len(network.of_layer):
            raise PlacementError(
                f"{runtime} counts layers, but graph {problem.graph.name!r} has no numbered list of modules",
                "`--format device_map` and `--format json` need none; decoders have such a list: `h.0`, `h.1`",
            )
        of_block = seconds_by_device(problem, network.blocks.of_op, device).argmax(axis=1)
        return cls(network, placement, device, of_block, runtime)

    @property
    def problem(self) -> Problem:
        """The problem."""
        return self.network.problem

    @property
    def devices(self) -> list[int]:
        """[layers] device of each layer."""
        return [int(d) for d in self.of_block[self.network.of_layer]]

    def name(self, layer: int) -> str:
        """Path of a layer's module; of the last block if `layer` is the number of layers."""
        own, names = self.network.of_layer, self.network.blocks.names
        return names[int(own[layer])] if layer < len(own) else names[-1]

    @cached_property
    def before(self) -> int | None:
        """The device with most of the work before the first layer; None if there is no such work."""
        return self._most(np.arange(len(self.of_block)) < self.network.of_layer[0])

    @cached_property
    def after(self) -> int | None:
        """The device with most of the work after the last layer; None if there is no such work."""
        return self._most(np.arange(len(self.of_block)) > self.network.of_layer[-1])

    def _most(self, blocks: NDArray[np.bool_]) -> int | None:
        if not blocks.any():
            return None
        inside = blocks[self.network.blocks.of_op].astype(np.int64)
        return int(seconds_by_device(self.problem, inside, self.device)[1].argmax())

    def map(
        self,
        text: str,
        devices: Sequence[int],
        before: int,
        after: int,
        notes: Sequence[str] = (),
        trains: bool = False,
    ) -> RuntimeMap:
        """The map with layer i on `devices[i]`, blocks before the layers on `before`, and blocks after them on `after`.

        A block that may not run there keeps its device. `trains`: the runtime supports training, too.
        """
        blocks, on = self.network.blocks, self.network.spread(devices, before, after)
        allowed = blocks.allowed[np.arange(len(on)), on]
        device = np.where(allowed[blocks.of_group], on[blocks.of_group], self.placement.device)
        placement = self.problem.placement(device, self.placement.priority)
        conflicts, elsewhere = self._conflicts(self.problem.expand(placement.device), on)
        found = [*notes, *self._shared(on)]
        if not trains and (self.problem.graph.phase != 0).any():
            found.append(
                f"{self.runtime} is for inference, but a training step was placed: import a forward pass with"
                " importer.mode=inference"
            )
        return RuntimeMap(text, placement, conflicts, elsewhere, tuple(found))

    def _conflicts(self, moved: NDArray[np.int16], on: NDArray[np.int64]) -> tuple[tuple[Conflict, ...], float]:
        """The blocks with work that moves, if the map has operations on `moved` [n] and blocks on `on` [b]."""
        graph, blocks = self.problem.graph, self.network.blocks
        seconds = self.problem.op_s[np.arange(graph.n), self.device] * graph.kernel
        away = moved != self.device
        lost = np.bincount(blocks.of_op, seconds * away, minlength=len(blocks))
        bytes_ = np.bincount(blocks.of_op, graph.persistent_bytes * away, minlength=len(blocks))
        all_ = np.bincount(blocks.of_op, seconds, minlength=len(blocks))
        names = self.problem.cluster.device_names
        found = tuple(
            Conflict(blocks.names[b], names[on[b]], float(lost[b] / all_[b]), float(bytes_[b]))
            for b in np.argsort(-lost, kind="stable").tolist()
            if lost[b] > LEAST * all_[b]
        )
        return found, float(lost.sum() / max(all_.sum(), 1e-300))

    def _shared(self, on: NDArray[np.int64]) -> list[str]:
        """A note for a parameter that several devices read."""
        graph, of_op = self.problem.graph, self.network.blocks.of_op
        reads = graph.kernel[graph.edge_op] & (graph.phase[graph.edge_op] == PHASES.index("forward"))
        source, device = graph.tensor_producer[graph.input_tensor[reads]], on[of_op[graph.edge_op[reads]]]
        names = self.problem.cluster.device_names
        for v in np.unique(source[graph.op_type.is_value("parameter")[source]]).tolist():
            readers = [names[d] for d in dict.fromkeys(device[source == v].tolist())]
            if len(readers) > 1:
                return [
                    f"{' and '.join(readers)} read parameter {graph.op_name[v]!r}: {self.runtime} needs a copy on each, which the"
                    " simulation sends in every step"
                ]
        return []


@dataclass(frozen=True, eq=False)
class Stages:
    """Consecutive layers on each device, in the order of the pipeline.

    Attributes:
        layers: the placement by layers.
        devices: [s] device of each stage. With more stages than devices p, stage i is on the device of stage i mod p.
        counts: [s] layers of each stage. A stage without layers has only the embedding, or only the head.
    """

    layers: PlacedLayers
    devices: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(
        cls, problem: Problem, placement: Placement, runtime: str, *, empty: bool = True, loops: bool = False
    ) -> Stages:
        """The stages of a placement.

        Args:
            problem, placement: the placement and its problem.
            runtime: name of the runtime, for messages.
            empty: whether the first and the last stage may have no layers.
            loops: whether a device may have several stages, as for interleaved schedules.

        Raises PlacementError that names the layer that goes back to a device, or that is on a CPU beside GPUs; and if
        the network has no layers.
        """
        layers, taken = PlacedLayers.of(problem, placement, runtime), gpus_or_all(problem)
        for layer, device in enumerate(layers.devices):
            if device not in taken:
                raise PlacementError(
                    f"{runtime} has its stages on GPUs, but layer {layers.name(layer)!r} is on"
                    f" {problem.cluster.device_names[device]}",
                    "use `--format llamacpp`, `device_map` or `json`, which can express layers on a CPU",
                )
        runs = [(device, len(list(same))) for device, same in groupby(layers.devices)]
        extra = [
            [(d, 0)] if empty and d in taken and d != runs[i][0] else []
            for d, i in ((layers.before, 0), (layers.after, -1))
        ]
        for first, last in ((extra[0], extra[1]), (extra[0], []), ([], extra[1]), ([], [])):
            stages = [*first, *runs, *last]
            devices = tuple(d for d, _ in stages)
            if _is_loop(devices, loops):
                return cls(layers, devices, tuple(count for _, count in stages))
        raise _zigzag(layers)

    @property
    def of_layer(self) -> list[int]:
        """[layers] stage of each layer."""
        found: list[int] = np.repeat(np.arange(len(self.counts)), self.counts).tolist()
        return found

    @property
    def ranks(self) -> tuple[int, ...]:
        """[p] devices in the order of the pipeline."""
        return tuple(dict.fromkeys(self.devices))

    @property
    def visible(self) -> str | None:
        """CUDA_VISIBLE_DEVICES that gives the ranks their GPUs; None if they are the machine's first GPUs in order."""
        numbers = [device_numbers(self.layers.problem)[d] for d in self.ranks]
        return None if "cpu" in numbers or numbers == list(range(len(numbers))) else ",".join(map(str, numbers))

    @property
    def launch_notes(self) -> list[str]:
        """Notes for the launch: which GPU each rank has, and whether ranks have several stages."""
        found = []
        if self.visible is not None:
            found.append(
                f"the ranks use the GPUs in another order than the machine: set CUDA_VISIBLE_DEVICES={self.visible}"
            )
        if len(self.devices) > len(self.ranks):
            found.append(f"{len(self.devices)} stages on {len(self.ranks)} ranks need an interleaved schedule")
        return found

    def map(self, text: str, notes: Sequence[str] = (), trains: bool = False) -> RuntimeMap:
        """The map with this text; the first stage also has the blocks before the layers, the last one those after them."""
        devices = [self.devices[s] for s in self.of_layer]
        return self.layers.map(text, devices, self.devices[0], self.devices[-1], notes, trains)


def _is_loop(devices: Sequence[int], loops: bool) -> bool:
    """Whether each device has one stage, or (with `loops`) stages cycle through the devices in order."""
    own = tuple(dict.fromkeys(devices))
    return tuple(devices) == own or (loops and tuple(devices) == own * (len(devices) // len(own)))


def _zigzag(layers: PlacedLayers) -> PlacementError:
    """The error that names the first layer that goes back to a device."""
    names = layers.problem.cluster.device_names
    last: dict[int, int] = {}  # last layer on each device; the current device comes last
    for i, device in enumerate(layers.devices):
        if device in last and (other := next(reversed(last))) != device:
            where = (
                f"layer {layers.name(last[device])!r} is on {names[device]}, {layers.name(last[other])!r} on"
                f" {names[other]}, and {layers.name(i)!r} on {names[device]} again"
            )
            return PlacementError(f"{layers.runtime} needs consecutive layers on each device: {where}", ANY)
        last.pop(device, None)
        last[device] = i
    raise AssertionError("layers without a zigzag are stages")


def proportional(layers: int, weight: Sequence[float]) -> list[int]:
    """Divide `layers` in proportion to `weight` by the method of largest remainders; of equal ones, the first gets more."""
    total = sum(weight)
    exact = [layers * (w / total) for w in weight]
    result = [int(x) for x in exact]
    by_remainder = sorted(range(len(weight)), key=lambda i: result[i] - exact[i])
    for i in by_remainder[: layers - sum(result)]:
        result[i] += 1
    return result
