"""Runs an imported program for real: initial values, kernels as functions, views, random numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from placekit_core import ImporterError
from placekit_torch.capture import Mode
from placekit_torch.codegen import Writer, kernels_function, operation_seed, view_function
from placekit_torch.factory import Builder
from placekit_torch.joint import own_name
from placekit_torch.lowering import Lowered
from placekit_torch.nested_tensors import flat_inputs, plain_tensors
from placekit_torch.operators import is_random


class TorchExecutable:
    """`placekit_core.Executable` of an imported module. Values are torch tensors.

    Only the values of base tensors need to be kept. A tensor in `views` is recomputed from its base on any device that has
    the base; it is sent, with its strides, only to a device without the base.
    """

    def __init__(
        self,
        lowered: Lowered,
        builder: Builder,
        constants: Mapping[str, torch.Tensor],
        mode: Mode,
        seed: int,
        recipe: Mapping[str, Any],
    ) -> None:
        self._lowered, self._builder, self._constants = lowered, builder, dict(constants)
        self._mode, self._seed, self._recipe = mode, seed, dict(recipe)
        self._specs = {
            t: (s.node.meta["val"].shape, s.node.meta["val"].dtype, s.node.meta["val"].stride())
            for s, t in lowered.sources
        }
        code = lowered.code
        self._random = frozenset(op for op, node in code.kernel.items() if is_random(code.calls[node].target))

    @property
    def recipe(self) -> Mapping[str, Any]:
        """Importer and options; empty for a program of Python objects, which no other process can rebuild."""
        return self._recipe

    @property
    def views(self) -> Mapping[int, int]:
        """The base of each view tensor; a base is never a view."""
        return self._lowered.code.views

    @property
    def updates(self) -> Mapping[int, int]:
        """For the tensor of each updated source, the tensor that replaces it at the end of the step."""
        return self._lowered.updates

    @property
    def random_ops(self) -> frozenset[int]:
        """Operations that draw random numbers, with the seed `operation_seed(step, op)`."""
        return self._random

    @property
    def results(self) -> Mapping[str, int]:
        """For each result (`loss`, `output.0`, `gradient.NAME`), the tensor that `result` computes it from."""
        return {name: tensor for name, (tensor, _) in self._lowered.results.items()}

    @staticmethod
    def operation_seed(step: int, op: int) -> int:
        """Seed of the generator of a random operation in a step."""
        return operation_seed(step, op)

    def initial(self, seed: int | None = None) -> dict[int, torch.Tensor]:
        """Values of all sources on the CPU, as the factory builds them with `seed` (None: the importer's seed).

        The optimiser's state is that before its first step. For a program of Python objects, these are copies of the
        module's values. Raises ImporterError if the factory builds another step than for the import.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed if seed is None else seed)
            step = self._builder.build()
        known: dict[str, torch.Tensor] = dict(self._constants)
        for prefix, part in (("module.", step.module), ("loss.", step.loss)):
            if isinstance(part, torch.nn.Module):
                named = [*part.named_parameters(remove_duplicate=False), *part.named_buffers(remove_duplicate=False)]
                known.update(
                    {own_name(prefix + k): v for k, v in [*named, *((k, v) for *_, k, v in plain_tensors(part))]}
                )
        inputs = flat_inputs(step, self._mode)
        given = dict(zip(inputs.names, inputs.tensors, strict=True))
        values = {}
        for source, tensor in self._lowered.sources:
            shape, dtype, stride = self._specs[tensor]
            value = torch.full(shape, source.initial, dtype=dtype) if source.kind == "state" else None
            if value is None:
                value = (given if source.kind == "input" else known).get(source.name)
            if value is None or value.shape != shape or value.dtype != dtype or value.device.type == "meta":
                found = "nothing" if value is None else f"{value.dtype} {tuple(value.shape)} on {value.device}"
                raise ImporterError(
                    f"{source.kind} {source.name!r} was imported as {dtype} {tuple(shape)}, and now there is {found}",
                    "the factory must build the same step, with real tensors, each time it is called",
                )
            own = torch.empty_strided(shape, stride, dtype=dtype)
            values[tensor] = own.copy_(value.detach())
        return values

    def compile(
        self, ops: Sequence[int], device: Any = None, keep: Collection[int] | None = None
    ) -> Callable[..., dict[int, torch.Tensor]]:
        """`run(values, step=0)`: runs kernels `ops` in this order and returns the tensors that they produce.

        Args:
            ops: kernel operations, each after the operations that it reads from.
            device: where tensors without inputs are created and random numbers are drawn; the CPU if None.
            keep: tensors to return; None for all. Others are dropped after their last use.

        `values` holds the tensors that the operations read but do not produce; for a tensor in `views`, the tensor or its base.
        `step` seeds the random operations. A function must not run in two threads at once if it draws random numbers.
        """
        missing = [op for op in ops if op not in self._lowered.code.kernel]
        if missing:
            raise ImporterError(
                f"operation {self._lowered.graph.op_name[missing[0]]!r} is a source: there is nothing to run"
            )
        return kernels_function(self._lowered.code, ops, device, keep)

    def view(self, tensor: int) -> Callable[[torch.Tensor], torch.Tensor]:
        """Function from the value of `views[tensor]` to that of `tensor`, which shares its memory."""
        return view_function(self._lowered.code, tensor)

    def result(self, name: str, values: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """The result `name`, from the value of tensor `results[name]` or of its base."""
        writer = Writer(self._lowered.code, None)
        variable = writer.value(self._lowered.results[name][1])
        made: torch.Tensor = writer.function("values", variable, [variable])(values)
        return made
