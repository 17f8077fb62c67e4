"""Implements the kernels of a decomposed tensor program with torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from placekit_einsum.decompose import Kernel, Region, complex_dtype, part
from placekit_einsum.program import Tensor

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


def compiled(kernel: Kernel, dtype: str, device: Any) -> Function:
    """Make a function that computes a kernel from its inputs; `dtype` is the program's."""
    return _of_cuts(kernel.cuts, _of_whole(kernel, dtype, device))


def _of_whole(kernel: Kernel, dtype: str, device: Any) -> Function:
    s, real = kernel.settings, getattr(torch, dtype)
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
            return lambda x: torch.view_as_real(x).flatten(-2).to(real)
        pairs = torch.float64 if complex_dtype(dtype) == "complex128" else torch.float32
        return lambda x: torch.view_as_complex(x.to(pairs).contiguous().unflatten(-1, (-1, 2)))
    if kernel.kind == "squeezer":
        return lambda x: x.reshape(s[0])
    if kernel.kind == "select":
        shape, places = s
        return lambda *pieces: put_together(shape, list(zip(places, pieces, strict=True)))
    return lambda: _fill(*s, dtype=real, device=device)


def initial_value(tensor: Tensor, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """The value of an input before it is split into blocks."""
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
        part(whole, region).copy_(piece)
    return whole


def _of_cuts(cuts: Sequence[Region | None], function: Function) -> Function:
    """A function that applies `function` to parts of its arguments, without copies."""
    if not any(cuts):
        return function
    return lambda *given: function(*(x if cut is None else part(x, cut) for x, cut in zip(given, cuts, strict=True)))


def _elementwise(function: str, labels: tuple[str, ...], out: str, scale: float, shift: float) -> Function:
    """An element-wise kernel: it permutes operands to the order of `out`, and adds missing dimensions with size 1."""
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
    """A reduction, whose result has the order of `out`."""
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
    """A function that aggregates its arguments in their order; a single one is returned as it is."""

    def fold(first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        for other in others:
            first = function(first, other)
        return first

    return fold


def _fill(
    shape: tuple[int, ...], value: float, above: float | None = None, diagonal: int = 0, *, dtype: torch.dtype,
    device: Any,
) -> torch.Tensor:  # fmt: skip
    """A block of a fill; the whole tensor's diagonal lies `diagonal` above the main diagonal of this block."""
    whole = torch.full(shape, value, dtype=dtype, device=device)
    if above is None:
        return whole
    mask = torch.ones(shape, dtype=torch.bool, device=device).triu(diagonal + 1)
    return whole.masked_fill(mask, above)
