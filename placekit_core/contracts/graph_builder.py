"""Builds a Graph operation by operation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placekit_core.contracts.errors import GraphError
from placekit_core.contracts.graph import PHASES, Column, Graph, Labels
from placekit_core.contracts.graph_rules import validate_graph


@dataclass(slots=True)
class _Operation:
    name: str
    op_type: str
    op_class: str
    dtype: str
    flops: float
    bytes_accessed: float
    persistent_bytes: int
    kernel: bool
    phase: str
    module: str
    call: int
    colocate: int
    allowed: str
    inputs: list[int]


class GraphBuilder:
    """Builds a Graph operation by operation; tensors are numbered as they are added, and renumbered by `build`.

    >>> b = GraphBuilder("tiny")
    >>> w = b.source("w", 400)
    >>> y = b.add("matmul", inputs=[w], outputs=[40], flops=1e3, op_class="matmul")
    >>> b.build()
    Graph('tiny', 2 operations, 2 tensors, 1 edges)
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.operations: list[_Operation] = []
        self.tensors: list[tuple[int, int, int, tuple[int, ...]]] = []  # producer, bytes, storage, shape
        self.columns: dict[str, Column] = {}
        self.attributes: dict[str, Any] = {}

    def add(
        self,
        name: str,
        *,
        op_type: str = "",
        op_class: str = "other",
        dtype: str = "float32",
        inputs: Iterable[int] = (),
        outputs: Iterable[int] = (),
        shapes: Sequence[tuple[int, ...]] | None = None,
        flops: float = 0.0,
        bytes_accessed: float = 0.0,
        persistent_bytes: int = 0,
        kernel: bool = True,
        phase: str = "forward",
        module: str = "",
        call: int = 0,
        colocate: int = -1,
        allowed: str = "",
    ) -> list[int]:
        """Add an operation that reads tensors `inputs` and writes one tensor per entry of `outputs` (bytes).

        Returns the ids of its output tensors. A tensor that is read twice is one edge.
        """
        op = len(self.operations)
        self.operations.append(
            _Operation(
                name, op_type or name, op_class, dtype, flops, bytes_accessed, persistent_bytes, kernel, phase, module,
                call, colocate, allowed, list(dict.fromkeys(inputs)),
            )
        )  # fmt: skip
        sizes = list(outputs)
        return [self.output(op, b, shapes[i] if shapes is not None else ()) for i, b in enumerate(sizes)]

    def source(self, name: str, bytes_: int, *, op_type: str = "parameter", **properties: Any) -> int:
        """Add a source with one output of `bytes_` bytes, persistent on its device. Returns the tensor id."""
        shape = properties.pop("shape", ())
        return self.add(
            name, op_type=op_type, op_class="source", outputs=[bytes_], shapes=[shape], persistent_bytes=bytes_,
            kernel=False, **properties,
        )[0]  # fmt: skip

    def output(self, op: int, bytes_: int, shape: tuple[int, ...] = (), storage: int = -1) -> int:
        """Add one more output tensor to operation `op`; `storage` is the tensor whose memory it shares."""
        tensor = len(self.tensors)
        self.tensors.append((op, bytes_, tensor if storage < 0 else storage, shape))
        return tensor

    def build(self) -> Graph:
        """The validated Graph."""
        ops, tensors = self.operations, self.tensors
        bad = next((o for o in ops if o.phase not in PHASES), None)
        if bad is not None:
            raise GraphError(f"phase of operation {bad.name!r} is {bad.phase!r}", f"give one of {', '.join(PHASES)}")
        producer = np.fromiter((t[0] for t in tensors), np.int32, len(tensors))
        order = np.argsort(producer, kind="stable")  # tensor in the graph -> tensor of this builder
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(len(order))
        shapes = [tensors[i][3] for i in order.tolist()]

        def column(key: str, dtype: Any) -> NDArray[Any]:
            return np.fromiter((getattr(o, key) for o in ops), dtype, len(ops))

        def labels(key: str) -> Labels:
            return Labels.of(getattr(o, key) for o in ops)

        graph = Graph(
            name=self.name,
            op_name=tuple(o.name for o in ops),
            op_type=labels("op_type"),
            op_class=labels("op_class"),
            dtype=labels("dtype"),
            flops=column("flops", np.float64),
            bytes_accessed=column("bytes_accessed", np.float64),
            persistent_bytes=column("persistent_bytes", np.int64),
            kernel=column("kernel", np.bool_),
            phase=np.fromiter((PHASES.index(o.phase) for o in ops), np.uint8, len(ops)),
            module=labels("module"),
            call=column("call", np.int32),
            colocate=column("colocate", np.int32),
            allowed=labels("allowed"),
            tensor_producer=producer[order],
            tensor_bytes=np.fromiter((t[1] for t in tensors), np.int64, len(tensors))[order],
            tensor_storage=place[np.fromiter((t[2] for t in tensors), np.int64, len(tensors))[order]],
            shape_ptr=_pointer(shapes),
            shape_dim=np.fromiter(chain.from_iterable(shapes), np.int64),
            input_ptr=_pointer([o.inputs for o in ops]),
            input_tensor=place[self._inputs()],
            columns=dict(self.columns),
            attributes=json.loads(json.dumps(self.attributes)),
        )
        return validate_graph(graph)

    def _inputs(self) -> NDArray[np.int64]:
        """[e] the tensors that the operations read. Raises GraphError if one does not exist."""
        inputs = np.fromiter(chain.from_iterable(o.inputs for o in self.operations), np.int64)
        if len(inputs) and not 0 <= inputs.min() <= inputs.max() < len(self.tensors):
            known = range(len(self.tensors))
            missing = next(o.name for o in self.operations for i in o.inputs if i not in known)
            raise GraphError(f"operation {missing!r} reads a tensor that nothing writes")
        return inputs


def _pointer(rows: Sequence[Sequence[Any]]) -> NDArray[np.int32]:
    """[rows + 1] where each row begins, and where the last one ends."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
