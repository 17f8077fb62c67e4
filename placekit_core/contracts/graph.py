"""The dataflow graph: immutable, one column per property. Every importer makes one, from a network or from a file.

An operation reads tensors and writes tensors; an edge says that an operation reads a tensor. Sources (parameters,
inputs, optimizer state) are operations too: they launch nothing (`kernel` is False), and their bytes are persistent.

    w (source) ──t0──▶ matmul ──t2──▶ relu          n = 4 operations, t = 4 tensors, e = 3 edges
    x (source) ──t1──▶    ▲
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from placekit_core.contracts.arrays import cached_arrays, freeze, read_only
from placekit_core.contracts.errors import GraphError

Scalar = TypeVar("Scalar", bound=np.generic)

PHASES = ("forward", "backward", "update")


def distinct(values: NDArray[Scalar]) -> NDArray[Scalar]:
    """The distinct values, ascending; for millions of integers, sorting takes a fifth of the time of numpy's hashing."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


@dataclass(frozen=True, eq=False)
class Labels:
    """A column of strings: `codes[i]` indexes `vocabulary`. `labels[i]` is the string of row i."""

    codes: NDArray[np.int32]
    vocabulary: tuple[str, ...]

    @classmethod
    def of(cls, values: Iterable[str]) -> Labels:
        """Column with these values; the vocabulary is in order of first appearance."""
        index: dict[str, int] = {}
        codes = [index.setdefault(v, len(index)) for v in values]
        return cls(np.asarray(codes, np.int32), tuple(index))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int | np.integer[Any]) -> str:
        return self.vocabulary[int(self.codes[row])]

    def take(self, rows: NDArray[np.integer[Any]]) -> Labels:
        """The column at these rows, with the same vocabulary."""
        return Labels(self.codes[rows], self.vocabulary)

    def compact(self) -> Labels:
        """The same column with the vocabulary that `Labels.of` gives it: values that occur, in order of first appearance."""
        used, first, codes = np.unique(self.codes, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order))
        return Labels(rank[codes.reshape(-1)], tuple(self.vocabulary[c] for c in used[order]))

    def tolist(self) -> list[str]:
        """One string per row."""
        return [self.vocabulary[c] for c in self.codes]

    def is_value(self, value: str) -> NDArray[np.bool_]:
        """True where the row equals `value`."""
        code = self.vocabulary.index(value) if value in self.vocabulary else -1
        return np.equal(self.codes, code)


Column = NDArray[Any] | Labels


@dataclass(frozen=True, eq=False)
class Graph:
    """A dataflow graph of n operations, t tensors and e edges. Build one with `GraphBuilder`.

    Attributes:
        name: what the graph is called in reports.
        op_name: unique name per operation.
        op_type: operator, e.g. `aten.convolution`; `source` kinds are `parameter`, `buffer`, `input`, `state`.
        op_class: row of the efficiency table in `costs.py` (`matmul`, `convolution`, `elementwise`, ...).
        dtype: number type of its arithmetic, e.g. `float32`; selects the device's peak rate.
        flops: [n] floating-point operations (a multiply-add counts 2).
        bytes_accessed: [n] bytes read and written.
        persistent_bytes: [n] bytes that live on its device for the whole step (parameters, inputs, state).
        kernel: [n] False for sources: they take no time and no stream, exist from the start, and read nothing.
        phase: [n] index into `PHASES`.
        module: module path that it came from; `call`: [n] call index within that module, from 0.
        colocate: [n] operations with the same non-negative number share a device; -1 is free.
        allowed: device types that may run it, joined by `|` (`cpu`, `cpu|gpu`); `` means any.
        tensor_producer: [t] operation that writes the tensor, ascending.
        tensor_bytes: [t] bytes that a transfer of it moves.
        tensor_storage: [t] tensor that owns its memory: itself, or the tensor that it views or overwrites in place.
        shape_ptr, shape_dim: shapes of the tensors in compressed rows; see `shape`.
        input_ptr, input_tensor: [n+1], [e] tensors that each operation reads, each once, in compressed rows.
        columns: extra columns with n rows, saved with the graph.
        attributes: JSON values about the graph as a whole; not part of the fingerprint. `work` is how much one step computes, as
            `[32, "samples"]`; reports show it per second. They also show `context`, the tokens of a sequence, and the bytes of
            the operations that `cache` names, which hold keys and values.
    """

    name: str
    op_name: tuple[str, ...]
    op_type: Labels
    op_class: Labels
    dtype: Labels
    flops: NDArray[np.float64]
    bytes_accessed: NDArray[np.float64]
    persistent_bytes: NDArray[np.int64]
    kernel: NDArray[np.bool_]
    phase: NDArray[np.uint8]
    module: Labels
    call: NDArray[np.int32]
    colocate: NDArray[np.int32]
    allowed: Labels
    tensor_producer: NDArray[np.int32]
    tensor_bytes: NDArray[np.int64]
    tensor_storage: NDArray[np.int32]
    shape_ptr: NDArray[np.int32]
    shape_dim: NDArray[np.int64]
    input_ptr: NDArray[np.int32]
    input_tensor: NDArray[np.int32]
    columns: Mapping[str, Column] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, column in self.all_columns().items():
            if name in self.columns or isinstance(column, Labels):
                read_only(column.codes if isinstance(column, Labels) else column)
            else:
                freeze(self, name)

    def all_columns(self) -> dict[str, Column]:
        """Every column by name, the extra ones included."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {k: v for k, v in own.items() if isinstance(v, np.ndarray | Labels)} | dict(self.columns)

    @property
    def n(self) -> int:
        """Number of operations."""
        return len(self.op_name)

    @property
    def t(self) -> int:
        """Number of tensors."""
        return len(self.tensor_bytes)

    @property
    def e(self) -> int:
        """Number of edges."""
        return len(self.input_tensor)

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {self.n} operations, {self.t} tensors, {self.e} edges)"

    def inputs(self, op: int) -> NDArray[np.int32]:
        """Tensors that `op` reads."""
        return self.input_tensor[self.input_ptr[op] : self.input_ptr[op + 1]]

    def outputs(self, op: int) -> range:
        """Tensors that `op` writes."""
        return range(self.output_ptr[op], self.output_ptr[op + 1])

    def consumers(self, tensor: int) -> NDArray[np.int32]:
        """Operations that read `tensor`, ascending."""
        return self.consumer_op[self.consumer_ptr[tensor] : self.consumer_ptr[tensor + 1]]

    def shape(self, tensor: int) -> tuple[int, ...]:
        """Shape of `tensor`; `()` for a scalar, or if the source of the graph has no shapes."""
        return tuple(self.shape_dim[self.shape_ptr[tensor] : self.shape_ptr[tensor + 1]].tolist())

    @cached_arrays
    def output_ptr(self) -> NDArray[np.int32]:
        """[n+1] tensors `output_ptr[v] .. output_ptr[v+1]` are the outputs of operation v."""
        return np.searchsorted(self.tensor_producer, np.arange(self.n + 1)).astype(np.int32)

    @cached_arrays
    def owned_bytes(self) -> NDArray[np.int64]:
        """[t] memory in bytes that a kernel allocates for each tensor; 0 for views, updates and outputs of sources."""
        return np.equal(self.tensor_storage, np.arange(self.t)) * self.kernel[self.tensor_producer] * self.tensor_bytes

    @cached_arrays
    def edge_op(self) -> NDArray[np.int32]:
        """[e] operation that each edge leads to (the consumer), in the order of `input_tensor`."""
        return np.repeat(np.arange(self.n, dtype=np.int32), np.diff(self.input_ptr))

    @cached_arrays
    def consumer_ptr(self) -> NDArray[np.int32]:
        """[t+1] rows of `consumer_op`."""
        return np.concatenate([[0], np.cumsum(np.bincount(self.input_tensor, minlength=self.t))]).astype(np.int32)

    @cached_arrays
    def consumer_op(self) -> NDArray[np.int32]:
        """[e] operations that read each tensor, ascending within a tensor."""
        return self.edge_op[np.argsort(self.input_tensor, kind="stable")]

    @cached_arrays
    def topological_order(self) -> NDArray[np.int32]:
        """[n] operations, each after all that it reads from; ties by index. Raises GraphError on a cycle."""
        source = self.tensor_producer[self.input_tensor]
        if np.all(source < self.edge_op):
            return np.arange(self.n, dtype=np.int32)
        import heapq

        missing = np.diff(self.input_ptr).tolist()
        ready = [v for v in range(self.n) if missing[v] == 0]
        output_ptr, consumer_ptr, consumer_op = (
            a.tolist() for a in (self.output_ptr, self.consumer_ptr, self.consumer_op)
        )
        order: list[int] = []
        while ready:
            v = heapq.heappop(ready)
            order.append(v)
            for c in consumer_op[consumer_ptr[output_ptr[v]] : consumer_ptr[output_ptr[v + 1]]]:
                missing[c] -= 1
                if missing[c] == 0:
                    heapq.heappush(ready, c)
        if len(order) < self.n:
            raise GraphError(f"graph {self.name!r} has a cycle: {self._cycle(missing)}", "unroll the loop")
        return np.asarray(order, np.int32)

    def _cycle(self, missing: list[int]) -> str:
        """One cycle among the operations that never became ready, as text."""
        v = next(i for i in range(self.n) if missing[i] > 0)
        seen: dict[int, int] = {}
        path: list[int] = []
        while v not in seen:  # every stuck operation waits for another stuck one: walking back must close a loop
            seen[v] = len(path)
            path.append(v)
            v = next(int(u) for u in self.tensor_producer[self.inputs(v)] if missing[u] > 0)
        loop = [*path[seen[v] :], v][::-1]
        shown = loop if len(loop) <= 6 else [*loop[:3], -1, *loop[-2:]]
        return " -> ".join("..." if i < 0 else self.op_name[i] for i in shown)

    @cached_arrays
    def op_edges(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Distinct (producer, consumer) pairs of operations, sorted."""
        key = distinct(self.tensor_producer[self.input_tensor].astype(np.int64) * self.n + self.edge_op)
        return (key // self.n).astype(np.int32), (key % self.n).astype(np.int32)

    @cached_arrays
    def depth(self) -> NDArray[np.int32]:
        """[n] number of kernels on the longest path that ends before each operation (its level)."""
        level = np.zeros(self.n, np.int32)
        kernel, producer = self.kernel, self.tensor_producer
        for v in self.topological_order.tolist():
            before = producer[self.inputs(v)]
            if len(before):
                level[v] = (level[before] + kernel[before]).max()
        return level

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all columns and operation names; a placement is valid for graphs with the same fingerprint."""
        digest = hashlib.sha256(b"placekit-graph-1\0" + "\0".join(self.op_name).encode())
        for key, column in sorted(self.all_columns().items()):
            values = column.codes if isinstance(column, Labels) else column
            digest.update(f"{key}:{values.dtype.str}:{values.shape}".encode())
            digest.update(np.ascontiguousarray(values).tobytes())
            if isinstance(column, Labels):
                digest.update("\0".join(column.vocabulary).encode())
        return digest.hexdigest()[:32]

    def replace(self, **changes: Any) -> Graph:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)
