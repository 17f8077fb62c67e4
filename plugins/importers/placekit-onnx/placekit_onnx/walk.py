"""Goes through a model node by node: infers types, computes constants, recognises views; all other nodes are kernels.

Types come from ONNX's own inference, one node at a time. Constants of few elements are computed, because exporters compute
shapes from shapes: `Shape`, `Gather`, `Concat`, `Reshape`. No other data is ever computed.
"""

from __future__ import annotations

import warnings
from collections import ChainMap, Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import infer_node_outputs

from placekit_core import ImporterError, shortened
from placekit_onnx.model import Sizes, declared, opsets, subgraphs
from placekit_onnx.operators import RANDOM, VIEWS, is_known
from placekit_onnx.values import KNOWN, Type, Value, checked_type, constant, type_of

_NAMES = (
    "Abs Add And Cast CastLike Ceil Clip Concat ConstantOfShape Div Equal Expand Flatten Floor Gather GatherElements GatherND"
    " Greater GreaterOrEqual Identity Less LessOrEqual Max Min Mod Mul Neg NonZero Not Or Pow Range ReduceMax ReduceMin"
    " ReduceProd ReduceSum Reshape Round ScatterElements ScatterND Sign Slice Split Sqrt Squeeze Sub Sum Tile Transpose"
    " Unsqueeze Where Xor"
)
_COMPUTED = frozenset(_NAMES.split())
"""Operators that exporters compute shapes with: they are computed here if all their inputs are small constants."""
_LIKE_FIRST = frozenset(["GroupNormalization", "MeanVarianceNormalization"])  # ONNX infers no type for them
_LOOPS = frozenset(["Loop", "Scan", "SequenceMap"])
_SHAPES_HINT = "give the file its shapes (symbolic shape inference), or export it with fixed ones"
MAX_NODES = 300_000
_MAX_ATTRIBUTES = 1024


@dataclass(frozen=True)
class Kernel:
    """A node that becomes an operation; `number` is its position in the file."""

    node: NodeProto
    number: int
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]

    @property
    def attributes(self) -> dict[str, Any]:
        """Its attributes that are numbers or texts."""
        return {
            a.name: helper.get_attribute_value(a)
            for a in self.node.attribute
            if a.type in _SIMPLE and len(a.ints) + len(a.floats) <= _MAX_ATTRIBUTES
        }


_SIMPLE = (AttributeProto.INT, AttributeProto.FLOAT, AttributeProto.STRING, AttributeProto.INTS, AttributeProto.FLOATS)


class Walk:
    """Finds the kernels of a model.

    Attributes:
        kernels: the kernels, in the model's order.
        views: number of nodes that are views.
        folded: number of nodes whose results are constant.
        custom: number of kernels by operator, for operators that ONNX does not define.
    """

    def __init__(self, path: str, model: ModelProto, sizes: Sizes) -> None:
        self.path, self.sizes, self.opsets = path, sizes, opsets(model)
        self.imports = [helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]
        self.values: ChainMap[str, Value] = ChainMap()
        self.declared: ChainMap[str, Type] = ChainMap()
        self.kernels: list[Kernel] = []
        self.views = self.folded = self.tensors = self.number = 0
        self.custom: Counter[str] = Counter()
        self.untyped: dict[str, ImporterError] = {}
        for name, type_ in sizes.types.items():
            self._new(name, "input", type_)
        self._graph(model.graph)

    def _new(self, name: str, kind: Any, type_: Type, data: NDArray[Any] | None = None) -> Value:
        """Add a value with a tensor of its own. Raises ValueError if the name is taken."""
        if name in self.values.maps[0]:
            raise ValueError(f"{name!r:.100} is written twice")
        self.values[name] = Value(self.tensors, name, kind, type_, data)
        self.tensors += 1
        return self.values[name]

    def _graph(self, graph: GraphProto) -> None:
        if graph.sparse_initializer:
            raise ValueError("it has sparse weights, which placekit does not read")
        self.declared.update(declared([*graph.value_info, *graph.output], self.sizes.sizes))
        for tensor in graph.initializer:
            type_, data = constant(tensor, f"initializer {tensor.name!r:.100}")
            self._new(tensor.name, "constant", type_, data)
        for node in graph.node:
            number, self.number = self.number, self.number + 1
            if number == MAX_NODES:
                raise ValueError(f"it has more than {MAX_NODES:,} nodes")
            try:
                self._node(node, number)
            except ValueError as e:
                raise ValueError(f"{shown(node, number)} {e}") from None

    def error(self, node: NodeProto, number: int, problem: str, hint: str) -> ImporterError:
        return ImporterError(shortened(f"{self.path}: {shown(node, number)} {problem}"), hint)

    def _node(self, node: NodeProto, number: int) -> None:
        inputs = tuple(self._read(name) for name in node.input)
        if node.op_type == "If" and not node.domain:
            self._branch(node, number, inputs)
            return
        inner = list(subgraphs(node))
        if (node.op_type in _LOOPS and not node.domain) or (inner and node.op_type != "FlexAttention"):
            raise self.error(
                node, number, "holds a graph of its own, which runs as often as its data says",
                "a placement is the same for all data: export the model with its loops unrolled",
            )  # fmt: skip
        if node.op_type == "Constant" and not node.domain:
            self.folded += 1
            self._new(_single_output(node), "constant", *_constant_of(node))
            return
        schema = self._schema(node)
        types = self._types(node, number, schema, inputs)
        if node.op_type in ("Shape", "Size") and not node.domain:
            self._shape(node, inputs, types)
        elif self._is_view(node, inputs, types):
            self._view(inputs, types)
        elif self._is_constant(node, inputs):
            self.folded += 1
            data = self._compute(node, inputs, types)
            for name, type_ in types.items():
                self._new(name, "constant", type_, data.get(name))
        else:
            if schema is None and not is_known(node.domain, node.op_type):
                self.custom[f"{node.domain}.{node.op_type}"] += 1
            outputs = tuple(self._new(name, "result", type_) for name, type_ in types.items())
            outer = dict.fromkeys(name for graph in inner for each in graph.node for name in each.input)
            captured = tuple(self.values[name] for name in outer if name in self.values)  # a mask or bias of its scores
            self.kernels.append(Kernel(node, number, (*inputs, *captured), outputs))

    def _read(self, name: str) -> Value | None:
        if not name:
            return None
        if name not in self.values:
            if name in self.untyped:
                raise self.untyped[name]
            raise ValueError(f"reads {name!r:.100}, which nothing before it writes")
        return self.values[name]

    def _branch(self, node: NodeProto, number: int, inputs: Sequence[Value | None]) -> None:
        """Replace an `If` with a constant condition by the branch that this chooses."""
        condition = inputs[0] if inputs else None
        branches = {a.name: a.g for a in node.attribute}
        if condition is None or condition.data is None or condition.data.size != 1:
            raise self.error(
                node, number, "chooses between two graphs by the data of a tensor",
                "a placement is the same for all data: export the model without the condition",
            )  # fmt: skip
        branch = branches.get("then_branch" if bool(condition.data.reshape(-1)[0]) else "else_branch")
        if branch is None or len(branch.output) != len(node.output):
            raise ValueError("has another number of outputs than its branch")
        self.folded += 1
        outer, outer_declared = self.values, self.declared
        self.values, self.declared = outer.new_child(), outer_declared.new_child()
        self._graph(branch)
        made = [self._read(each.name) for each in branch.output]
        self.values, self.declared = outer, outer_declared
        for name, value in zip(node.output, made, strict=True):
            if name in outer.maps[0]:
                raise ValueError(f"writes {name!r:.100}, which is written twice")
            if name and value is not None:
                outer[name] = value

    def _schema(self, node: NodeProto) -> defs.OpSchema | None:
        """ONNX's schema of the operator; None for unknown ones of other domains. Raises ValueError for unknown ones of ONNX."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        version = self.opsets.get(domain)
        if version is None:
            raise ValueError(f"has an operator of domain {domain!r:.60}, which the file does not import")
        if not 0 < version < 2**31:
            raise ValueError(f"has an operator of domain {domain!r:.60} in version {version}")
        try:
            schema: defs.OpSchema = defs.get_schema(node.op_type, version, domain)
        except defs.SchemaError:
            if domain:
                return None
            raise ValueError(f"has an operator that version {version} of ONNX does not have") from None
        for what, given, least, most in (
            ("inputs", len(node.input), schema.min_input, schema.max_input),
            ("outputs", len(node.output), schema.min_output, schema.max_output),
        ):
            if not least <= given <= most:
                raise ValueError(f"has {given:,} {what}, but needs {least if given < least else most}")
        return schema

    def _types(
        self, node: NodeProto, number: int, schema: defs.OpSchema | None, inputs: Sequence[Value | None]
    ) -> dict[str, Type]:
        """Types of the outputs. Raises ImporterError if the type of the first one is not known."""
        given = {name: v for name, v in zip(node.input, inputs, strict=True) if v is not None}
        inferred: Mapping[str, TypeProto] = {}
        if schema is not None:
            data = {name: numpy_helper.from_array(v.data) for name, v in given.items() if v.data is not None}
            empty = {name: v.type for name, v in given.items() if not v.type.elements}  # such as no axes: known, too
            data |= {name: helper.make_tensor(name, t.dtype, t.shape, []) for name, t in empty.items()}
            try:
                inferred = infer_node_outputs(
                    schema, node, {name: v.type.proto() for name, v in given.items()}, data, None, self.imports
                )
            except Exception as e:  # any error of the compiled code
                raise ValueError(f"does not fit its inputs: {_reason(e)}") from None
        types: dict[str, Type] = {}
        for i, name in enumerate(node.output):
            try:
                if name:
                    types[name] = self._type(node, number, name, inferred.get(name), inputs)
            except ImporterError as e:
                if not i:
                    raise
                self.untyped[name] = e  # such as the mask of a dropout; raised only if something reads it
        return types

    def _type(
        self, node: NodeProto, number: int, name: str, proto: TypeProto | None, inputs: Sequence[Value | None]
    ) -> Type:
        """The inferred type of one output, or the file's own declaration if sizes stay open."""
        try:
            dtype, shape = type_of(proto, {}) if proto is not None else (0, None)
        except ValueError as e:
            raise ValueError(f"writes {name!r:.100}, which {e}") from None
        stated = self.declared.get(name)
        if shape is not None and None not in shape:
            return checked_type(dtype, tuple(d or 0 for d in shape), f"writes {name!r:.100}, which")
        if stated is not None and dtype in (0, stated.dtype) and (shape is None or _agree(shape, stated.shape)):
            return stated
        first = next((v for v in inputs if v is not None), None)
        if node.op_type in _LIKE_FIRST and not node.domain and first is not None:
            return first.type
        if node.op_type in _COMPUTED and all(v is None or v.data is not None for v in inputs):
            data = self._compute(node, inputs, {})
            if name in data:
                return _type_of_array(data[name])
        known = "" if shape is None else f" beyond {['?' if d is None else d for d in shape]}".replace("'", "")
        raise self.error(
            node, number, f"writes {name!r:.100}, whose {'shape is not known' + known if dtype else 'type is not known'}",
            _SHAPES_HINT,
        )  # fmt: skip

    def _shape(self, node: NodeProto, inputs: Sequence[Value | None], types: Mapping[str, Type]) -> None:
        first = inputs[0]
        if first is None:
            raise ValueError("has no input")
        shape = first.type.shape
        given = {a.name: a.i for a in node.attribute}
        if node.op_type == "Shape":
            data = np.asarray(shape[slice(given.get("start"), given.get("end"))], np.int64)
        else:
            data = np.asarray(first.type.elements, np.int64)
        self.folded += 1
        for name in types:
            self._new(name, "constant", _type_of_array(data), data)

    def _is_view(self, node: NodeProto, inputs: Sequence[Value | None], types: Mapping[str, Type]) -> bool:
        """Whether the only output is the first input, perhaps with another shape."""
        first = inputs[0] if inputs else None
        if node.domain or first is None or len(types) != 1 or first.kind == "constant":
            return False
        [type_] = types.values()
        if node.op_type == "Dropout":
            training = inputs[2] if len(inputs) > 2 else None
            return training is None or (training.data is not None and not training.data.any())
        same = type_ == first.type
        return node.op_type in VIEWS or (node.op_type in ("Cast", "CastLike", "Expand") and same)

    def _view(self, inputs: Sequence[Value | None], types: Mapping[str, Type]) -> None:
        [(name, type_)] = types.items()
        first = inputs[0]
        assert first is not None
        if type_.bytes_ != first.type.bytes_:
            raise ValueError(f"makes {type_} of {first.type}")
        if name in self.values.maps[0]:
            raise ValueError(f"writes {name!r:.100}, which is written twice")
        self.views += 1
        self.values[name] = Value(first.tensor, first.name, first.kind, type_)

    def _is_constant(self, node: NodeProto, inputs: Sequence[Value | None]) -> bool:
        """Whether a runtime would compute the node before the first step. Quantised weights stay quantised."""
        standard = not node.domain and node.op_type not in RANDOM and node.op_type != "DequantizeLinear"
        return standard and all(v is None or v.kind == "constant" for v in inputs)

    def _compute(
        self, node: NodeProto, inputs: Sequence[Value | None], types: Mapping[str, Type]
    ) -> dict[str, NDArray[Any]]:
        """Compute a node that reads small constants: its outputs by name; empty if they are large or it fails."""
        if node.op_type not in _COMPUTED or any(t.elements > KNOWN for t in types.values()):
            return {}
        given = {name: v for name, v in zip(node.input, inputs, strict=True) if v is not None}
        if not given or any(v.data is None for v in given.values()):
            return {}
        graph = helper.make_graph(
            [node], "constant", [helper.make_value_info(name, v.type.proto()) for name, v in given.items()],
            [helper.make_value_info(name, TypeProto()) for name in node.output if name],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=self.imports)
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = ReferenceEvaluator(model).run(None, {name: v.data for name, v in given.items()})
        except Exception:  # then its data stays unknown
            return {}
        arrays = zip((n for n in node.output if n), made, strict=True)
        return {
            name: array
            for name, array in arrays
            if isinstance(array, np.ndarray) and (name not in types or array.shape == types[name].shape)
        }


def shown(node: NodeProto, number: int) -> str:
    """A node, for a message: its name, or its number in the file."""
    name = repr(node.name[:100]) if node.name else str(number)
    return f"node {name} ({node.op_type[:60]})"


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:300]


def _agree(shape: Sequence[int | None], stated: Sequence[int]) -> bool:
    return len(shape) == len(stated) and all(a in (None, b) for a, b in zip(shape, stated, strict=True))


def _type_of_array(data: NDArray[Any]) -> Type:
    return checked_type(helper.np_dtype_to_tensor_dtype(data.dtype), data.shape, "it")


def _single_output(node: NodeProto) -> str:
    if len(node.output) != 1 or node.input:
        raise ValueError("has inputs, or not one output")
    name: str = node.output[0]
    return name


def _constant_of(node: NodeProto) -> tuple[Type, NDArray[Any] | None]:
    """Type and elements of a node `Constant`."""
    if len(node.attribute) != 1:
        raise ValueError("has not one value")
    [a] = node.attribute
    if a.name == "value":
        return constant(a.t, "has a tensor that")
    kinds = {"value_int": (TensorProto.INT64, a.i), "value_ints": (TensorProto.INT64, a.ints),
             "value_float": (TensorProto.FLOAT, a.f), "value_floats": (TensorProto.FLOAT, a.floats)}  # fmt: skip
    if a.name not in kinds:
        raise ValueError(f"has the attribute {a.name!r:.60}, which placekit does not read")
    dtype, value = kinds[a.name]
    data = np.asarray(value, helper.tensor_dtype_to_np_dtype(dtype))
    return _type_of_array(data), data if data.size <= KNOWN else None
