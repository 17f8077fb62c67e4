"""A placement as consecutive layers on devices, which the runtimes of large models take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
from numpy.typing import NDArray
from placekit_layers import Blocks, sequence

from placekit_core import PHASES, Placement, PlacementError, Problem
from placekit_torch.forms import Conflict, Form, Name, devices_of, seconds_by_device

_LEAST = 5e-4  # a block of which a smaller share moves is not named: it would say 0.0%


def device_names(problem: Problem) -> list[Name]:
    """[D] devices as in a `device_map`: GPUs by the number in `cuda:N`, else by their position; all others are `cpu`."""
    gpus = [problem.device_type(d) == "gpu" for d in range(problem.cluster.size)]
    named = [re.fullmatch(r"cuda:(\d+)(/\d+)?", name) for name in problem.cluster.device_names]
    own = [int(name[1]) if name else sum(gpus[:d]) for d, name in enumerate(named)]
    return [own[d] if gpu else "cpu" for d, gpu in enumerate(gpus)]


@dataclass(frozen=True, eq=False)
class Layers:
    """A placement by layers: each block on the device with most of its seconds.

    Attributes:
        runtime: who takes the form, for messages.
        placement: the placement, with the device of each operation in `device` [n].
        blocks: the b blocks; the layers are among them.
        of_block: [b] device of each block.
        of_layer: [layers] block of each layer.
    """

    runtime: str
    placement: Placement
    device: NDArray[np.int16]
    blocks: Blocks
    of_block: NDArray[np.int64]
    of_layer: NDArray[np.int64]

    @classmethod
    def of(cls, problem: Problem, placement: Placement, runtime: str) -> Layers:
        """Raises PlacementError if the network has no layers, or the placement is for another graph."""
        device, blocks = devices_of(problem, placement), sequence(problem)
        if not blocks.layer.any():
            raise PlacementError(
                f"{runtime} counts layers, and graph {problem.graph.name!r} has no numbered list of modules",
                "decoders have one (`h.0`, `model.layers.3`); `--format device_map` and `--format json` need none",
            )
        of_block = seconds_by_device(problem, blocks.of_op, device).argmax(axis=1)
        return cls(runtime, placement, device, blocks, of_block, np.flatnonzero(blocks.layer))

    @property
    def problem(self) -> Problem:
        return self.blocks.problem

    @property
    def count(self) -> int:
        """Number of layers."""
        return len(self.of_layer)

    @property
    def devices(self) -> list[int]:
        """[layers] device of each layer."""
        return [int(d) for d in self.of_block[self.of_layer]]

    def name(self, layer: int) -> str:
        """Path of a layer's module; of what comes last if `layer` is the number of layers."""
        return self.blocks.names[int(self.of_layer[layer]) if layer < self.count else -1]

    @cached_property
    def before(self) -> int | None:
        """The device with most of the work that comes before the first layer; None if there is no such work."""
        return self._most(np.arange(len(self.blocks)) < self.of_layer[0])

    @cached_property
    def after(self) -> int | None:
        """The device with most of the work that comes after the last layer; None if there is no such work."""
        return self._most(np.arange(len(self.blocks)) > self.of_layer[-1])

    def _most(self, blocks: NDArray[np.bool_]) -> int | None:
        if not blocks.any():
            return None
        inside = blocks[self.blocks.of_op].astype(np.int64)
        return int(seconds_by_device(self.problem, inside, self.device)[1].argmax())

    def form(self, name: str, text: str, devices: Sequence[int], before: int, after: int, notes: Sequence[str]) -> Form:
        """The form that puts layer i on `devices[i]`, what comes before the layers on `before`, what follows on `after`.

        What is between two layers goes with the first. A block that may not run there stays where it is placed.
        """
        position = np.searchsorted(self.of_layer, np.arange(len(self.blocks)), side="right") - 1
        on = np.asarray([*devices, before], np.int64)[position]
        on[int(self.of_layer[-1]) + 1 :] = after
        allowed = self.blocks.allowed[np.arange(len(on)), on]
        device = np.where(allowed[self.blocks.of_group], on[self.blocks.of_group], self.placement.device)
        placement = self.problem.placement(device, self.placement.priority)
        conflicts, elsewhere = self._conflicts(self.problem.expand(placement.device), on)
        return Form(name, text, placement, conflicts, elsewhere, (*notes, *self._shared(on), *self._training()))

    def _conflicts(self, moved: NDArray[np.int16], on: NDArray[np.int64]) -> tuple[tuple[Conflict, ...], float]:
        """The blocks with work elsewhere than in the form, whose operations are on `moved` [n] and blocks on `on` [b]."""
        graph, count = self.problem.graph, len(self.blocks)
        seconds = self.problem.op_s[np.arange(graph.n), self.device] * graph.kernel
        lost = np.bincount(self.blocks.of_op, seconds * (moved != self.device), minlength=count)
        all_ = np.bincount(self.blocks.of_op, seconds, minlength=count)
        names = self.problem.cluster.device_names
        found = tuple(
            Conflict(self.blocks.names[b], names[on[b]], float(lost[b] / all_[b]))
            for b in np.argsort(-lost, kind="stable").tolist()
            if lost[b] > _LEAST * all_[b]
        )
        return found, float(lost.sum() / max(all_.sum(), 1e-300))

    def _shared(self, on: NDArray[np.int64]) -> list[str]:
        """A note for a parameter that blocks on several devices read."""
        graph = self.problem.graph
        reads = graph.kernel[graph.edge_op] & (graph.phase[graph.edge_op] == PHASES.index("forward"))
        source, device = graph.tensor_producer[graph.input_tensor[reads]], on[self.blocks.of_op[graph.edge_op[reads]]]
        names = self.problem.cluster.device_names
        for v in np.unique(source[graph.op_type.is_value("parameter")[source]]).tolist():
            readers = [names[d] for d in dict.fromkeys(device[source == v].tolist())]
            if len(readers) > 1:
                return [
                    f"{' and '.join(readers)} read parameter {graph.op_name[v]!r}: {self.runtime} needs a copy on each, which the"
                    " simulation sends in every step"
                ]
        return []

    def _training(self) -> list[str]:
        if self.runtime in ("vLLM", "exo", "llama.cpp") and (self.problem.graph.phase != 0).any():
            return [
                f"{self.runtime} is for inference, and a training step was placed: importer.mode=inference imports a forward"
                " pass"
            ]
        return []


@dataclass(frozen=True, eq=False)
class Stages:
    """Consecutive layers on each device, in the order of the pipeline.

    Attributes:
        layers: the placement by layers.
        devices: [s] device of each stage. If the s stages are more than the p devices, stage i is on the device of i mod p.
        counts: [s] layers of each stage. A stage without layers has only the embedding, or only the head.
    """

    layers: Layers
    devices: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(
        cls, problem: Problem, placement: Placement, runtime: str, *, empty: bool = True, loops: bool = False
    ) -> Stages:
        """The stages of a placement.

        Args:
            problem, placement: what is placed, and how.
            runtime: who takes the stages, for messages.
            empty: whether the first and the last stage may have no layers.
            loops: whether a device may have several stages, as interleaved schedules need them.

        Raises PlacementError that names the layer which goes back to a device, or which is on a CPU beside GPUs; and if
        there are no layers.
        """
        layers, taken = Layers.of(problem, placement, runtime), _gpus(problem)
        for layer, device in enumerate(layers.devices):
            if device not in taken:
                raise PlacementError(
                    f"{runtime} has its stages on GPUs, and layer {layers.name(layer)!r} is on"
                    f" {problem.cluster.device_names[device]}",
                    "`--format llamacpp`, `device_map` and `json` hold layers on a CPU",
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
    def ranks(self) -> tuple[int, ...]:
        """[p] devices in the order of the pipeline."""
        return tuple(dict.fromkeys(self.devices))

    @property
    def visible(self) -> str | None:
        """CUDA_VISIBLE_DEVICES that gives the ranks their GPUs; None if they are the machine's first GPUs in order."""
        numbers = [device_names(self.layers.problem)[d] for d in self.ranks]
        return None if "cpu" in numbers or numbers == list(range(len(numbers))) else ",".join(map(str, numbers))

    def form(self, name: str, text: str, notes: Sequence[str] = ()) -> Form:
        """The form with this text: the first stage also has what comes before the layers, the last what follows them."""
        devices = np.repeat(self.devices, self.counts).tolist()
        return self.layers.form(name, text, devices, self.devices[0], self.devices[-1], notes)


def _gpus(problem: Problem) -> list[int]:
    """The devices that can have stages: the GPUs, or all devices of a machine without GPUs."""
    every = range(problem.cluster.size)
    return [d for d in every if problem.device_type(d) == "gpu"] or list(every)


def _is_loop(devices: Sequence[int], loops: bool) -> bool:
    """Whether each device has one stage, or all devices follow each other again and again."""
    own = tuple(dict.fromkeys(devices))
    return tuple(devices) == own or (loops and tuple(devices) == own * (len(devices) // len(own)))


def _zigzag(layers: Layers) -> PlacementError:
    """The error that names the first layer which goes back to a device."""
    names = layers.problem.cluster.device_names
    last: dict[int, int] = {}  # last layer on each device; the current device comes last
    for i, device in enumerate(layers.devices):
        if device in last and (other := next(reversed(last))) != device:
            where = (
                f"layer {layers.name(i)!r} goes back to {names[device]}, where {layers.name(last[device])!r} is,"
                f" after {layers.name(last[other])!r} on {names[other]}"
            )
            return PlacementError(
                f"{layers.runtime} takes consecutive layers, and {where}",
                "`--format device_map` holds any placement; policy=chain finds the best one with consecutive layers",
            )
        last.pop(device, None)
        last[device] = i
    raise AssertionError("layers without a zigzag are stages")
