"""Reads the model in a file: parses it without its weights, inlines its functions, and finds the sizes of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx
import onnx.inliner
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto, defs

from placekit_core import ImporterError
from placekit_onnx.options import OnnxOptions
from placekit_onnx.values import Type, checked_type, type_of
from placekit_onnx.wire import without_weights

MAX_EXPANDED = 256 * 2**20  # bytes after functions are inlined
_NODE = 64  # least bytes of a node in memory
MAX_CALLS = 50  # depth of functions that call functions
Function = tuple[str, str, str]


def read_model(path: Path) -> ModelProto:
    """Read the model in a file, with its functions inlined, without the data of large tensors. Raises OSError and ValueError."""
    with path.open("rb") as file:
        data = without_weights(file)
    try:
        model: ModelProto = ModelProto.FromString(data)
    except DecodeError as e:
        raise ValueError(f"it is damaged: {e}") from None
    if not model.HasField("graph") or not model.graph.node:
        raise ValueError("it has no graph")
    _check_texts(model)
    _check_versions(model)
    if model.functions:
        if _inlined_bytes(model) > MAX_EXPANDED:
            raise ValueError(f"with its functions inlined, it has more than {MAX_EXPANDED:,} bytes")
        try:
            model = onnx.inliner.inline_local_functions(model)
        except Exception as e:  # any error of the compiled code
            raise ValueError(f"its functions cannot be inlined: {e}") from None
    return model


def _check_texts(model: ModelProto) -> None:
    """Raise ValueError if a string is not UTF-8; protobuf returns such strings as bytes."""
    messages: list[Message] = [model]
    while messages:
        for field, value in messages.pop().ListFields():
            values = value if field.is_repeated else [value]
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                messages += values
            elif field.type == FieldDescriptor.TYPE_STRING and not all(isinstance(v, str) for v in values):
                raise ValueError(f"it has text that is not UTF-8 ({field.name})")


def _check_versions(model: ModelProto) -> None:
    newest = defs.onnx_opset_version()
    versions = opsets(model)
    if not versions:
        raise ValueError("it does not say which version of ONNX's operators it uses (opset_import)")
    if not 1 <= versions.get("", 1) <= newest:
        raise ValueError(
            f"it uses version {versions['']} of ONNX's operators, but the installed onnx {onnx.__version__} knows 1 to {newest}"
        )


def opsets(model: ModelProto) -> dict[str, int]:
    """Versions of the operators that a model uses, by domain."""
    return {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH or attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _inlined_bytes(model: ModelProto) -> int:
    """Bytes of all nodes after functions are inlined. Raises ValueError."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    known: dict[Function, int] = {}

    def count(nodes: Iterable[NodeProto], calls: tuple[Function, ...]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            total += _NODE + node.ByteSize() + sum(count(g.node, calls) for g in subgraphs(node))
            if key in functions:
                total += called(key, calls)
        return total

    def called(key: Function, calls: tuple[Function, ...]) -> int:
        if key in calls:
            raise ValueError(f"function {key[1]!r:.100} calls itself")
        if len(calls) >= MAX_CALLS:
            raise ValueError(f"more than {MAX_CALLS} functions call each other")
        if key not in known:
            known[key] = count(functions[key].node, (*calls, key))
        return known[key]

    return count(model.graph.node, ())


class Sizes:
    """Finds the sizes of the dimensions that a file leaves open, from the options.

    Attributes:
        types: type of each input.
        sizes: size of each dimension that has a name.
    """

    def __init__(self, path: str, options: OnnxOptions, inputs: Iterable[ValueInfoProto]) -> None:
        self.path, self.options = path, options
        self.named = {k: v for k, v in options.dims.items() if isinstance(v, int)}
        self.sizes = dict(self.named)
        self.types = self._types(list(inputs))

    def _types(self, inputs: list[ValueInfoProto]) -> dict[str, Type]:
        """Type of each input. Raises ImporterError for dimensions without a size, and ValueError for types without one."""
        open_: list[str] = []
        used: set[str] = set()
        batched = False
        found: dict[str, Type] = {}
        for each in inputs:
            what = f"input {each.name!r:.100}"
            try:
                dtype, shape = type_of(each.type, {})
            except ValueError as e:
                raise ValueError(f"{what} {e}") from None
            given = self.options.dims.get(each.name)
            dims = each.type.tensor_type.shape.dim
            if isinstance(given, list):
                used.add(each.name)
                shape = self._whole(what, given, shape)
            elif shape is None:
                open_.append(f"{what} has no shape")
                continue
            sizes: list[int] = []
            for axis, size in enumerate(shape):
                name = dims[axis].dim_param if axis < len(dims) else ""
                if size is None and name in self.named:
                    size = self.named[name]
                    used.add(name)
                elif size is None and axis == 0 and self.options.batch is not None:
                    size, batched = self.options.batch, True
                if size is None:
                    open_.append(f"{what} has no size for dimension {axis}" + (f" ({name})" if name else ""))
                elif name:
                    self.sizes.setdefault(name, size)
                sizes.append(size or 0)
            found[each.name] = checked_type(dtype, tuple(sizes), what)
        self._check(open_, used, batched, inputs)
        return found

    def _whole(self, what: str, given: list[int], shape: tuple[int | None, ...] | None) -> tuple[int | None, ...]:
        known = shape or (None,) * len(given)
        if len(known) != len(given) or any(k not in (None, g) for k, g in zip(known, given, strict=True)):
            has = ["?" if k is None else k for k in known]
            raise ImporterError(
                f"{self.path}: {what} has the shape {has}, but importer.dims gives it {given}".replace("'", ""),
                "sizes that the file fixes cannot be changed",
            )
        return tuple(given)

    def _check(self, open_: list[str], used: set[str], batched: bool, inputs: list[ValueInfoProto]) -> None:
        if open_:
            others = len(open_) - 1
            more = f", and {others} more {'is' if others == 1 else 'are'} open" if others else ""
            names = {d.dim_param: 0 for i in inputs for d in i.type.tensor_type.shape.dim if d.dim_param}
            missing = [n for n in names if n not in self.sizes]
            ways = ["importer.batch=N for first dimensions"] * any("dimension 0" in each for each in open_)
            ways += [f"'importer.dims={{{', '.join(f'{n}: N' for n in missing[:5])}}}' by name"] * bool(missing)
            ways += ["'importer.dims={INPUT: [N, ...]}' for a whole shape"]
            raise ImporterError(f"{self.path}: {open_[0]}{more}", f"give {', or '.join(ways)}")
        unused = [k for k in self.options.dims if k not in used and not self._is_dimension(k, inputs)]
        if unused:
            names = {d.dim_param: 0 for i in inputs for d in i.type.tensor_type.shape.dim if d.dim_param}
            raise ImporterError(
                f"{self.path}: no input and no open dimension is called {unused[0]!r}",
                f"inputs: {_some(i.name for i in inputs)}; open dimensions: {_some(names)}",
            )
        if self.options.batch is not None and not batched:
            raise ImporterError(
                f"{self.path}: importer.batch={self.options.batch}, but no input leaves its first dimension open",
                "the file fixes the sizes of its inputs; export it with a dynamic batch",
            )

    def _is_dimension(self, name: str, inputs: list[ValueInfoProto]) -> bool:
        return any(name == d.dim_param for i in inputs for d in i.type.tensor_type.shape.dim)


def _some(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:8]) + (f", and {len(found) - 8} more" if len(found) > 8 else "") or "none"


def declared(values: Iterable[ValueInfoProto], sizes: Mapping[str, int]) -> dict[str, Type]:
    """The types that the file declares for values, except those with open dimensions."""
    found: dict[str, Type] = {}
    for each in values:
        try:
            dtype, shape = type_of(each.type, sizes)
            if shape is not None and None not in shape:
                found[each.name] = checked_type(dtype, tuple(d or 0 for d in shape), "it")
        except ValueError:  # such a declaration is ignored
            continue
    return found
