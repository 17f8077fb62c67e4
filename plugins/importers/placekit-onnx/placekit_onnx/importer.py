"""Importer `onnx`."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

from placekit_core import GraphBuilder, Importer, ImporterError, Labels, PlacekitError, Program, reading, shortened
from placekit_onnx import operators
from placekit_onnx.model import Sizes, read_model
from placekit_onnx.options import OnnxOptions
from placekit_onnx.scopes import module_of, weight_module, weights_module, with_outer
from placekit_onnx.values import MAX_TOTAL, Value
from placekit_onnx.walk import Kernel, Walk, shown

HINT = "an ONNX model is one file that ends in .onnx"


class OnnxImporter(Importer):
    """Imports one program, inference, named like its file.

    Inputs and weights are sources. Nodes are operations, except constants, views, and nodes that compute shapes.
    """

    name = "onnx"
    options_class = OnnxOptions

    def load(self) -> list[Program]:
        """The program. Raises ImporterError that names the file, and the node or value."""
        o: OnnxOptions = self.options
        if not o.path:
            raise ImporterError(f"importer {self.name!r} needs a file", "give importer.path=FILE")
        path = Path(o.path)
        try:
            with reading(path, ImporterError, "ONNX model", HINT):
                model = read_model(path)
                weights = {tensor.name for tensor in model.graph.initializer}
                sizes = Sizes(o.path, o, [i for i in model.graph.input if i.name not in weights])
                walk = Walk(o.path, model, sizes)
                program = _Lowering(path.stem, walk).program(walk)
        except ImporterError:
            raise
        except PlacekitError as e:  # from the core's checks
            raise ImporterError(shortened(f"{o.path}: {e.message}"), e.hint) from None
        if walk.custom:
            named = ", ".join(f"{name} ({count})" for name, count in walk.custom.most_common(5))
            warnings.warn(
                f"{o.path} has operators that ONNX does not define, whose cost is taken to be that of their bytes: {named}"
                + (f", and {len(walk.custom) - 5} more" if len(walk.custom) > 5 else ""),
                stacklevel=2,
            )
        return [program]


def _text(name: str) -> str:
    """`name`. Raises ValueError if it is not printable."""
    if not name.isprintable():
        raise ValueError(f"the name {name!r:.100} has characters that cannot be printed")
    return name


def _tensors_read(kernel: Kernel) -> list[Value]:
    """The distinct tensors that a kernel reads; constant shapes and scalars do not count."""
    found: dict[int, Value] = {}
    for i, value in enumerate(kernel.inputs):
        if value is None:
            continue
        if value.kind == "constant" and (
            value.type.elements <= 1 or (value.data is not None and operators.is_shape(kernel.node.op_type, i))
        ):
            continue
        found.setdefault(value.tensor, value)
    return list(found.values())


class _Lowering:
    """Builds the graph: sources first, then kernels in the file's order."""

    def __init__(self, name: str, walk: Walk) -> None:
        self.builder = GraphBuilder(name)
        self.names: Counter[str] = Counter()
        self.signatures: list[str] = []
        self.tensor: dict[int, int] = {}  # from a value's tensor to the number of the tensor in the graph
        self.total = 0
        self.modules = [module_of(kernel.node) for kernel in walk.kernels]
        self.reads = [_tensors_read(kernel) for kernel in walk.kernels]

    def program(self, walk: Walk) -> Program:
        """The program. Raises ValueError that names a node."""
        scopes = {outer for module in set(self.modules) for outer in with_outer(module)}
        first: dict[int, tuple[Value, str]] = {}  # sources, with the module that reads them first
        for module, reads in zip(self.modules, self.reads, strict=True):
            for value in reads:
                if value.kind != "result":
                    first.setdefault(value.tensor, (value, module))
        for value, module in sorted(first.values(), key=lambda x: (x[0].kind != "constant", x[0].tensor)):
            self._source(value, "" if value.kind == "input" else weight_module(value.name, module, scopes))
        for kernel, module, reads in zip(walk.kernels, self.modules, self.reads, strict=True):
            self._kernel(kernel, module or weights_module(v.name for v in reads if v.kind == "constant"), reads)
        if not walk.kernels:
            raise ValueError("nothing in it depends on its inputs")
        if self.total > MAX_TOTAL:
            raise ValueError(f"its tensors have {self.total:.3g} bytes together")
        self.builder.columns = {"signature": Labels.of(self.signatures)}
        self.builder.attributes = {
            "mode": "inference", "opset": walk.opsets.get("", 0), "kernels": len(walk.kernels), "views": walk.views,
            "folded": walk.folded,
        }  # fmt: skip
        return Program(self.builder.build())

    def _unique(self, name: str) -> str:
        self.names[_text(name)] += 1
        return name if self.names[name] == 1 else self._unique(f"{name}#{self.names[name]}")

    def _source(self, value: Value, module: str) -> None:
        kind = "input" if value.kind == "input" else "parameter"
        self.total += value.type.bytes_
        self.tensor[value.tensor] = self.builder.source(
            self._unique(value.name), value.type.bytes_, op_type=kind, dtype=value.type.name, shape=value.type.shape,
            module=module,
        )  # fmt: skip
        self.signatures.append("")

    def _kernel(self, kernel: Kernel, module: str, reads: list[Value]) -> None:
        node, op = kernel.node, kernel.node.op_type
        attributes = kernel.attributes
        inputs = [None if v is None else v.type for v in kernel.inputs]
        outputs = [v.type for v in kernel.outputs]
        read = [v.type for v in reads]
        known = operators.is_known(node.domain, op)
        try:
            flops = operators.flops(op, inputs, outputs, attributes) if known else 0.0
        except (LookupError, ValueError, TypeError, ArithmeticError, AttributeError):
            raise ValueError(f"{shown(node, kernel.number)} does not fit its inputs") from None
        whole = bool(reads) and reads[0] is kernel.inputs[0]
        made = self.builder.add(
            self._unique(node.name or f"{op}_{kernel.number}"),
            op_type=_text(f"{node.domain or 'onnx'}.{op}"),
            op_class=operators.op_class(op, [*read, *outputs]) if known else "other",
            dtype=operators.compute_dtype(op, read, outputs),
            inputs=[self.tensor[v.tensor] for v in reads],
            outputs=[t.bytes_ for t in outputs],
            shapes=[t.shape for t in outputs],
            flops=flops,
            bytes_accessed=operators.bytes_accessed(op, read, outputs, whole),
            module=module,
        )
        self.total += sum(t.bytes_ for t in outputs)
        self.signatures.append(operators.signature(op, inputs, attributes))
        self.tensor.update(zip((v.tensor for v in kernel.outputs), made, strict=True))
