"""Runs a decomposed tensor program with torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from placekit_core.errors import ImporterError
from placekit_core.problem import Program
from placekit_einsum.decompose import Decomposed, Kernel, Region, complex_dtype, decompose
from placekit_einsum.program import Tensor, TensorProgram

Function = Callable[..., torch.Tensor]

UNARY: dict[str, Function] = {
    "identity": torch.Tensor.contiguous, "abs": torch.abs, "exp": torch.exp, "log": torch.log, "neg": torch.neg,
    "reciprocal": torch.reciprocal, "relu": torch.relu, "rsqrt": torch.rsqrt, "sigmoid": torch.sigmoid, "silu": F.silu,
    "sqrt": torch.sqrt, "square": torch.square, "tanh": torch.tanh,
}  # fmt: skip
BINARY: dict[str, Function] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum,
    "minimum": torch.minimum, "sum": torch.add, "max": torch.maximum, "min": torch.minimum, "product": torch.mul,
}  # fmt: skip


def import_decomposed(
    program: TensorProgram, dtype: str, seed: int, recipe: Mapping[str, Any] | None = None
) -> Program:
    """The program with its graph and how to execute it."""
    parts = decompose(program, dtype)
    return Program(parts.graph, executable=EinsumExecutable(parts, dtype, seed, recipe or {}))


class EinsumExecutable:
    """`placekit_core.interfaces.Executable` of a tensor program. Values are torch tensors.

    The results are blocks, by the name of the operation that writes each; `gather` puts them together.
    """

    def __init__(self, decomposed: Decomposed, dtype: str, seed: int, recipe: Mapping[str, Any]) -> None:
        self._decomposed, self._seed, self._recipe = decomposed, seed, dict(recipe)
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._complex: torch.dtype = getattr(torch, complex_dtype(dtype))
        graph = decomposed.graph
        self._views = {part: base for part, (base, _) in decomposed.views.items()}
        self._results = {
            graph.op_name[graph.tensor_producer[t]]: t for _, blocks in decomposed.results for t in blocks.values()
        }

    @property
    def recipe(self) -> Mapping[str, Any]:
        """Importer and options; empty for a program made in Python, which no other process can rebuild."""
        return self._recipe

    @property
    def views(self) -> Mapping[int, int]:
        """Parts of blocks that other operations read, with the block."""
        return self._views

    @property
    def updates(self) -> Mapping[int, int]:
        """Nothing: a tensor program has no state."""
        return {}

    @property
    def random_ops(self) -> frozenset[int]:
        """None."""
        return frozenset()

    @property
    def results(self) -> Mapping[str, int]:
        """Tensor of each block of the results, by the name of its operation."""
        return self._results

    def initial(self, seed: int | None = None) -> dict[int, torch.Tensor]:
        """Values of the blocks of all inputs on the CPU. Whole inputs have the same values whatever the decomposition."""
        values = {}
        generator = torch.Generator().manual_seed(self._seed if seed is None else seed)
        for tensor, blocks in self._decomposed.inputs:
            whole = initial_value(tensor, self._dtype, generator)
            values.update({t: whole[_slices(region)].clone() for region, t in blocks.items()})
        return values

    def compile(
        self, ops: Sequence[int], device: Any = None, keep: Collection[int] | None = None
    ) -> Callable[..., dict[int, torch.Tensor]]:
        """`run(values, step=0)`: see `placekit_core.interfaces.Executable`. Raises ImporterError for an input."""
        kernels, graph = self._decomposed.kernels, self._decomposed.graph
        source = next((op for op in ops if op not in kernels), None)
        if source is not None:
            raise ImporterError(f"operation {graph.op_name[source]!r} is an input: there is nothing to run")
        views = self._decomposed.views
        steps = [(kernels[op], _of_cuts(kernels[op].cuts, self._function(kernels[op], device))) for op in ops]
        last: dict[int, int] = {}
        for i, (kernel, _) in enumerate(steps):
            last.update({t: i for read in kernel.reads for t in (read, views[read][0] if read in views else read)})
            last.setdefault(kernel.writes, i)
        kept = {kernel.writes for kernel, _ in steps if keep is None or kernel.writes in keep}
        dropped: list[list[int]] = [[] for _ in steps]
        for kernel, _ in steps:
            if kernel.writes not in kept:
                dropped[last[kernel.writes]].append(kernel.writes)

        def run(values: Mapping[int, torch.Tensor], step: int = 0) -> dict[int, torch.Tensor]:
            made: dict[int, torch.Tensor] = {}

            def value(t: int) -> torch.Tensor:
                if t in made:
                    return made[t]
                if t in values:
                    return values[t]
                return self.view(t)(value(views[t][0]))

            for (kernel, function), old in zip(steps, dropped, strict=True):
                made[kernel.writes] = function(*map(value, kernel.reads))
                for t in old:
                    del made[t]
            return made

        return run

    def view(self, tensor: int) -> Function:
        """The function from a block to the part of it that is `tensor`, which shares its memory."""
        _, region = self._decomposed.views[tensor]
        return lambda block: block[_slices(region)]

    def result(self, name: str, values: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """One block of a result."""
        return values[self._results[name]]

    def gather(self, values: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The whole results by name, from the values of all their blocks."""
        return {
            tensor.name: put_together(tensor.shape, [(r, values[t]) for r, t in blocks.items()])
            for tensor, blocks in self._decomposed.results
        }

    def _function(self, kernel: Kernel, device: Any) -> Function:
        """What a kernel computes, as a function of what it reads."""
        s = kernel.settings
        if kernel.kind == "matmul":
            return lambda a, b: torch.einsum(s[0], a, b)
        if kernel.kind == "elementwise":
            return _elementwise(*s)
        if kernel.kind == "reduction":
            return _reduction(*s)
        if kernel.kind == "formation":
            return _fold(BINARY[s[0]])
        if kernel.kind == "complexer":
            if s[0] == "real":
                return lambda x: torch.view_as_real(x).flatten(-2).to(self._dtype)
            pairs = torch.float64 if self._complex == torch.complex128 else torch.float32
            return lambda x: torch.view_as_complex(x.to(pairs).contiguous().unflatten(-1, (-1, 2)))
        if kernel.kind == "squeezer":
            return lambda x: x.reshape(s[0])
        if kernel.kind == "select":
            shape, places = s
            return lambda *pieces: put_together(shape, list(zip(places, pieces, strict=True)))
        return lambda: _fill(*s, dtype=self._dtype, device=device)


def initial_value(tensor: Tensor, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """The whole of an input."""
    made = torch.float64 if dtype == torch.float64 else torch.float32
    if tensor.values == "ones":
        return torch.ones(tensor.shape, dtype=dtype)
    if tensor.values == "normal":
        return (torch.randn(tensor.shape, dtype=made, generator=generator) * tensor.scale).to(dtype)
    positions, width = tensor.shape
    frequency = 10000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.outer(torch.arange(positions, dtype=torch.float64), frequency)
    return torch.stack([angle.cos(), angle.sin()], -1).flatten(1).to(dtype)


def put_together(shape: Sequence[int], pieces: Sequence[tuple[Region, torch.Tensor]]) -> torch.Tensor:
    """A new tensor of `shape` with the pieces at their regions."""
    whole = pieces[0][1].new_empty(tuple(shape))
    for region, piece in pieces:
        whole[_slices(region)] = piece
    return whole


def _slices(region: Region) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in region)


def _of_cuts(cuts: Sequence[Region | None], function: Function) -> Function:
    """`function` of parts of what it is given, without copies."""
    if not any(cuts):
        return function
    slices = [... if cut is None else _slices(cut) for cut in cuts]
    return lambda *given: function(*(x[at] for x, at in zip(given, slices, strict=True)))


def _elementwise(function: str, labels: tuple[str, ...], out: str, scale: float, shift: float) -> Function:
    """Operands are permuted to the order of `out`, with dimensions of size 1 for what they lack."""
    orders = [tuple(own.index(c) for c in out if c in own) for own in labels]
    missing = [tuple(i for i, c in enumerate(out) if c not in own) for own in labels]

    def align(x: torch.Tensor, order: tuple[int, ...], new: tuple[int, ...]) -> torch.Tensor:
        x = x.permute(order)
        for i in new:
            x = x.unsqueeze(i)
        return x

    def one(x: torch.Tensor) -> torch.Tensor:
        x = align(x, orders[0], missing[0])
        if (function, scale, shift) == ("identity", 1.0, 0.0):
            return x.clone(memory_format=torch.contiguous_format)
        x = x * scale if scale != 1.0 else x
        x = x + shift if shift != 0.0 else x
        return UNARY[function](x)

    def two(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return BINARY[function](align(x, orders[0], missing[0]), align(y, orders[1], missing[1]))

    return one if len(labels) == 1 else two


def _reduction(function: str, labels: str, out: str) -> Function:
    """The result is permuted to the order of `out`."""
    dims = [i for i, c in enumerate(labels) if c not in out]
    left = [c for c in labels if c in out]
    order = tuple(left.index(c) for c in out)

    def reduce(x: torch.Tensor) -> torch.Tensor:
        if function == "sum":
            x = x.sum(dims)
        elif function == "product":
            for i in reversed(dims):
                x = x.prod(i)
        else:
            x = x.amax(dims) if function == "max" else x.amin(dims)
        return x.permute(order)

    return reduce


def _fold(function: Function) -> Function:
    """Aggregates any number of values, in their order; one is handed on."""

    def fold(first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        for other in others:
            first = function(first, other)
        return first

    return fold


def _fill(
    shape: tuple[int, ...], value: float, above: float | None = None, diagonal: int = 0, *, dtype: torch.dtype,
    device: Any,
) -> torch.Tensor:  # fmt: skip
    """`diagonal`: how far the diagonal of the whole tensor is above the main one of this block."""
    whole = torch.full(shape, value, dtype=dtype, device=device)
    if above is None:
        return whole
    mask = torch.ones(shape, dtype=torch.bool, device=device).triu(diagonal + 1)
    return whole.masked_fill(mask, above)
