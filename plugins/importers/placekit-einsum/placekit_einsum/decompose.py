"""Decomposes a tensor program into a dataflow graph of shards, formations and selections.

    D[i0,j0] ─┬▶ DE[i0,j1,k0] ─┐              all blocks of a tensor have the same size; there is one operation, a shard, per
    E[i0,j1] ─┘                ├▶ DE[i0,j1]   block of the index space (dimensions of the result, then summed or reduced
    D[i0,j1] ─┬▶ DE[i0,j1,k1] ─┘              ones); if there are summed or reduced dimensions, one formation per block of
    E[i1,j1] ─┘                               the result aggregates the shards along them

If an expression splits its operand more finely than the operand is split, it reads parts of the operand's blocks. If the two
splits cross, it reads selections: blocks that are assembled from parts of several blocks. If all expressions read the operand
in the same layout, the parts are additional outputs of the operation that writes the block. Otherwise parts would overlap, and
a device could receive the same numbers twice; so each reader reads the whole block and takes its part.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from placekit_core import Graph, GraphBuilder, Labels
from placekit_einsum.program import Tensor, TensorProgram

ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
SHORT = {
    "float64": "f64",
    "float32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "complex64": "c64",
    "complex128": "c128",
}
Region = tuple[tuple[int, int], ...]  # start and stop along each dimension
Read = tuple[int, Region | None]  # a tensor, and the region that is read (None: all of it)


@dataclass(frozen=True)
class Kernel:
    """The computation of an operation: it reads the regions `cuts` of the tensors `reads`, and writes the tensor `writes`."""

    kind: str
    settings: tuple[Any, ...]
    reads: tuple[int, ...]
    cuts: tuple[Region | None, ...]
    writes: int


@dataclass(frozen=True)
class Decomposed:
    """The graph of a program, and the data that a run of it needs. Tensors are numbered as in the graph.

    Attributes:
        kernels: the computation of each operation that is not an input.
        inputs: for each input, its blocks by region.
        views: for each tensor that is a part of a block, the block and the part's region in it.
        results: for each result, its blocks by region.
    """

    graph: Graph
    kernels: dict[int, Kernel]
    inputs: list[tuple[Tensor, dict[Region, int]]]
    views: dict[int, tuple[int, Region]]
    results: list[tuple[Tensor, dict[Region, int]]]


def complex_dtype(dtype: str) -> str:
    """The complex type whose real and imaginary parts have this type, or float32 if it is shorter."""
    return "complex128" if dtype == "float64" else "complex64"


def part(whole: Any, region: Region) -> Any:
    """A region of a torch tensor, as a view."""
    for dimension, (low, high) in enumerate(region):
        if high - low != whole.shape[dimension]:
            whole = whole.narrow(dimension, low, high - low)
    return whole


def decompose(program: TensorProgram, dtype: str = "float32") -> Decomposed:
    """Decompose `program`, with real numbers of type `dtype`. Raises ImporterError for an incomplete program."""
    results = program.results
    layouts = defaultdict(set)
    for tensor in program.tensors:
        for x, labels in zip(tensor.operands, tensor.labels, strict=True):
            layouts[x.name].add(tuple(tensor.parts.get(c, 1) for c in labels))
    work = _Decomposer(program.name, dtype, {name for name, read in layouts.items() if len(read) == 1})
    for tensor in program.tensors:
        work.input(tensor) if tensor.kind == "input" else work.expression(tensor)
    return work.finish([t for t in program.tensors if t.kind == "input"], results)


class _Decomposer:
    """Adds the operations of one tensor after another. Until `finish`, tensors of the graph have the builder's numbers."""

    def __init__(self, name: str, dtype: str, in_parts: set[str]) -> None:
        self.builder = GraphBuilder(name)
        self.dtype = dtype
        self.in_parts = in_parts  # the tensors that all expressions read in one layout
        self.kernels: dict[int, Kernel] = {}
        self.blocks: dict[tuple[str, tuple[int, ...]], int] = {}
        self.selections: dict[tuple[str, tuple[int, ...], tuple[int, ...]], int] = {}
        self.parts: dict[tuple[int, Region], int] = {}
        self.columns: dict[str, list[str]] = {"meta_op": [], "meta_role": [], "signature": []}

    def input(self, tensor: Tensor) -> None:
        """Add a source for each block of an input."""
        shape = _block(tensor.shape, tensor.layout)
        for index in _indices(tensor.layout):
            self.blocks[tensor.name, index] = self.builder.source(
                tensor.name + _text(tensor.out, index), math.prod(shape) * self._item(tensor),
                op_type="input", dtype=self.dtype, shape=shape,
            )  # fmt: skip
            self._describe("", "input", "")

    def expression(self, tensor: Tensor) -> None:
        """Add the shards of an expression, and its formations if it sums or reduces a dimension."""
        own, reduced = len(tensor.out), tensor.reduced
        size = _block(tuple(tensor.size.values()), tuple(tensor.parts.values()))
        sizes = dict(zip(tensor.size, size, strict=True))
        shape = _block(tensor.shape, tensor.layout)
        partial: dict[tuple[int, ...], list[int]] = {}
        for index in _indices(tuple(tensor.parts.values())):
            at = dict(zip(tensor.size, index, strict=True))
            reads = [
                self._read(x, tuple(tensor.parts.get(c, 1) for c in labels), tuple(at.get(c, 0) for c in labels))
                for x, labels in zip(tensor.operands, tensor.labels, strict=True)
            ]
            written = self._operation(
                tensor, tensor.name + _text("".join(tensor.size), index), _op_type(tensor), _op_class(tensor), reads,
                shape, _flops(tensor, sizes, math.prod(shape)), tensor.kind, self._settings(tensor, shape, index[:own]),
                copies=self._copies(tensor),
            )  # fmt: skip
            self._describe(tensor.name, "shard", self._signature(reads))
            partial.setdefault(index[:own], []).append(written)
        for index, written_at in partial.items():
            if not reduced:
                self.blocks[tensor.name, index] = written_at[0]
                continue
            reads = [(t, None) for t in written_at]
            function = "sum" if tensor.kind == "matmul" else tensor.function
            self.blocks[tensor.name, index] = self._operation(
                tensor, tensor.name + _text(tensor.out, index), "formation", "elementwise", reads, shape,
                (len(reads) - 1) * math.prod(shape) * _per_element(function, tensor.is_complex),
                "formation", (function,), copies=len(reads) > 1,
            )  # fmt: skip
            self._describe(tensor.name, "reduce", self._signature(reads))

    def finish(self, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> Decomposed:
        """Build and validate the graph, and renumber all tensors as in the graph."""
        builder = self.builder
        for key, values in self.columns.items():
            builder.columns[key] = Labels.of(values)
        order = np.argsort([t[0] for t in builder.tensors], kind="stable")  # as `GraphBuilder.build` numbers tensors
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order))
        new: list[int] = number.tolist()
        kernels = {
            op: Kernel(k.kind, k.settings, tuple(new[t] for t in k.reads), k.cuts, new[k.writes])
            for op, k in self.kernels.items()
        }
        views = {new[part]: (new[base], region) for (base, region), part in self.parts.items()}

        def blocks(tensors: Sequence[Tensor]) -> list[tuple[Tensor, dict[Region, int]]]:
            return [
                (t, {_region(t.shape, t.layout, i): new[self.blocks[t.name, i]] for i in _indices(t.layout)})
                for t in tensors
            ]

        return Decomposed(builder.build(), kernels, blocks(inputs), views, blocks(results))

    def _read(self, x: Tensor, parts: tuple[int, ...], index: tuple[int, ...]) -> Read:
        """Find block `index` of `x` when split into `parts`: one of its own blocks, a part of one, or a selection."""
        if parts == x.layout:
            return self.blocks[x.name, index], None
        region = _region(x.shape, parts, index)
        if all(fine % coarse == 0 for fine, coarse in zip(parts, x.layout, strict=True)):
            owner = tuple(i * q // p for i, p, q in zip(index, parts, x.layout, strict=True))
            return self._part(x, owner, region)
        key = (x.name, parts, index)
        if key not in self.selections:
            self.selections[key] = self._select(x, parts, index, region)
        return self.selections[key], None

    def _part(self, x: Tensor, owner: tuple[int, ...], region: Region) -> Read:
        """The part of block `owner` of `x` in `region`; an additional output of the block's operation for `x` in `in_parts`."""
        block = _region(x.shape, x.layout, owner)
        cut = tuple((max(a, low) - low, min(b, high) - low) for (a, b), (low, high) in zip(region, block, strict=True))
        base = self.blocks[x.name, owner]
        if cut == tuple((0, high - low) for low, high in block):
            return base, None
        if x.name not in self.in_parts:
            return base, cut
        if (base, cut) not in self.parts:
            shape = tuple(b - a for a, b in cut)
            bytes_ = math.prod(shape) * self._item(x)
            self.parts[base, cut] = self.builder.output(self.builder.tensors[base][0], bytes_, shape, base)
        return self.parts[base, cut], None

    def _select(self, x: Tensor, parts: tuple[int, ...], index: tuple[int, ...], region: Region) -> int:
        """Add a selection: a block that is assembled from parts of several blocks of `x`."""
        spans = []
        for (low, high), length, count in zip(region, x.shape, x.layout, strict=True):
            step = length // count
            spans.append(range(low // step, (high - 1) // step + 1))
        reads, places = [], []
        for owner in product(*spans):
            block = _region(x.shape, x.layout, owner)
            reads.append(self._part(x, owner, region))
            places.append(tuple((max(a, c) - a, min(b, d) - a) for (a, b), (c, d) in zip(region, block, strict=True)))
        shape = tuple(high - low for low, high in region)
        layout = "x".join(map(str, parts))
        written = self._operation(
            x, f"{x.name} in {layout}{_text(x.out, index)}", "select", "copy", reads, shape, 0.0, "select",
            (shape, tuple(places)), copies=True,
        )  # fmt: skip
        self._describe(f"{x.name} in {layout}", "reduce", self._signature(reads))
        return written

    def _operation(
        self, tensor: Tensor, name: str, op_type: str, op_class: str, reads: Sequence[Read], shape: tuple[int, ...],
        flops: float, kind: str, settings: tuple[Any, ...], copies: bool,
    ) -> int:  # fmt: skip
        """Add a kernel with one output of `shape`. Without `copies`, it returns its input, and accesses no memory."""
        written = math.prod(shape) * self._item(tensor)
        read = sum(math.prod(self._shape(r)) * self._read_item(r) for r in set(reads))
        half = ITEM_BYTES[self.dtype] < 4  # then complex numbers are computed in single precision
        is_complex = tensor.is_complex or any(self._reads_complex(r) for r in reads)
        op = len(self.builder.operations)
        (output,) = self.builder.add(
            name, op_type=op_type, op_class=op_class, dtype="float32" if half and is_complex else self.dtype,
            inputs=[t for t, _ in reads], outputs=[written], shapes=[shape],
            flops=float(flops), bytes_accessed=float(read + written) if copies else 0.0,
        )  # fmt: skip
        self.kernels[op] = Kernel(kind, settings, tuple(t for t, _ in reads), tuple(cut for _, cut in reads), output)
        return output

    def _describe(self, meta_op: str, role: str, signature: str) -> None:
        for key, value in zip(self.columns, (meta_op, role, signature), strict=True):
            self.columns[key].append(value)

    def _shape(self, read: Read) -> tuple[int, ...]:
        tensor, cut = read
        return self.builder.tensors[tensor][3] if cut is None else tuple(high - low for low, high in cut)

    def _read_item(self, read: Read) -> int:
        """Bytes of one number in the tensor that is read."""
        _, bytes_, _, shape = self.builder.tensors[read[0]]
        return bytes_ // math.prod(shape)

    def _reads_complex(self, read: Read) -> bool:
        return self._read_item(read) > ITEM_BYTES[self.dtype]

    def _signature(self, reads: Sequence[Read]) -> str:
        """Signature of the operation added last: type, settings, and types and shapes of its inputs.

        The strides of a part that is not contiguous are included, `f32[4,8]{16,1}`, because kernels take longer on it.
        """
        op = len(self.builder.operations) - 1
        given = []
        for r in reads:
            kind = complex_dtype(self.dtype) if self._reads_complex(r) else self.dtype
            given.append(f"{SHORT[kind]}[{','.join(map(str, self._shape(r)))}]{self._strides(r)}")
        settings = [str(s) for s in self.kernels[op].settings]
        dtype = [] if reads else [SHORT[self.dtype]]
        return f"einsum.{self.builder.operations[op].op_type}({', '.join([*given, *settings, *dtype])})"

    def _strides(self, read: Read) -> str:
        """`{16,1}`, the strides of an input that is not contiguous; else empty."""
        block, shape = self.builder.tensors[read[0]][3], self._shape(read)
        strides, packed = _row_major(block), _row_major(shape)
        same = all(n == 1 or s == p for n, s, p in zip(shape, strides, packed, strict=True))
        return "" if same else f"{{{','.join(map(str, strides))}}}"

    def _item(self, tensor: Tensor) -> int:
        """Bytes of one number of `tensor`."""
        size = ITEM_BYTES[self.dtype]
        return 2 * max(size, 4) if tensor.is_complex else size

    def _copies(self, tensor: Tensor) -> bool:
        """Whether the shards of an expression write memory: not for a squeezer, and for a complexer only if the type changes."""
        return tensor.kind != "squeezer" and (tensor.kind != "complexer" or ITEM_BYTES[self.dtype] < 4)

    def _settings(self, tensor: Tensor, shape: tuple[int, ...], index: tuple[int, ...]) -> tuple[Any, ...]:
        """Settings of the kernel of one shard."""
        if tensor.kind == "matmul":
            return (f"{','.join(tensor.labels)}->{tensor.out}",)
        if tensor.kind == "elementwise":
            return (tensor.function, tensor.labels, tensor.out, tensor.scale, tensor.shift)
        if tensor.kind == "reduction":
            return (tensor.function, tensor.labels[0], tensor.out)
        if tensor.kind == "complexer":
            return (tensor.function,)
        if tensor.kind == "squeezer":
            return (shape,)
        if tensor.above == tensor.value:
            return (shape, tensor.value)
        *_, (row, _), (column, _) = _region(tensor.shape, tensor.layout, index)
        return (
            shape,
            tensor.value,
            tensor.above,
            row - column,
        )  # the whole tensor's diagonal, relative to the block's


def _op_type(tensor: Tensor) -> str:
    """Doppler's name for the kind of operation (appendix E.1)."""
    if tensor.kind == "elementwise":
        if len(tensor.operands) == 1:
            return "input_elemwise"
        same = all(set(labels) == set(tensor.out) for labels in tensor.labels)
        return "straight_elemwise" if same else "bcast_elemwise"
    return f"{tensor.function}_reduction" if tensor.kind == "reduction" else tensor.kind


def _op_class(tensor: Tensor) -> str:
    """Row of the efficiency table of the roofline model."""
    return tensor.kind if tensor.kind in ("matmul", "elementwise", "reduction") else "copy"


def _flops(tensor: Tensor, sizes: dict[str, int], written: int) -> float:
    """FLOPs of one shard: 2 per multiply-add, 1 per element that a function writes or a reduction reads."""
    if tensor.kind == "matmul":
        return 2.0 * math.prod(sizes.values())
    if tensor.kind == "reduction":
        return float(math.prod(sizes.values()) * _per_element(tensor.function, tensor.is_complex))
    if tensor.kind == "elementwise":
        steps = (tensor.scale != 1.0) + (tensor.shift != 0.0) + (tensor.function != "identity")
        return float(steps * written * _per_element(tensor.function, tensor.is_complex))
    return 0.0


def _per_element(function: str, is_complex: bool) -> int:
    """Real operations per element; a product or quotient of complex numbers takes 6, other complex functions 2."""
    return 1 if not is_complex else 6 if function in ("mul", "div", "product") else 2


def _indices(counts: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(product(*map(range, counts)))


def _block(shape: tuple[int, ...], parts: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length // count for length, count in zip(shape, parts, strict=True))


def _region(shape: tuple[int, ...], parts: tuple[int, ...], index: tuple[int, ...]) -> Region:
    """The region of block `index`."""
    sizes = _block(shape, parts)
    return tuple((i * size, (i + 1) * size) for i, size in zip(index, sizes, strict=True))


def _text(labels: str, index: tuple[int, ...]) -> str:
    """`[i0,j1]`."""
    return f"[{','.join(f'{label}{i}' for label, i in zip(labels, index, strict=True))}]"


def _row_major(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]
