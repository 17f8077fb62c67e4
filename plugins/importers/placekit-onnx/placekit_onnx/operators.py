"""The costs of ONNX operators: class, FLOPs, bytes, and the signature by which measured costs are looked up.

FLOPs: matrix products, convolutions and attention count as in `torch.utils.flop_counter` (a multiply-add counts 2); recurrent
layers count their matrix products. All others count as in importer `torch`: pointwise operations one per output element;
reductions, normalisations, softmax and pooling one per element of their largest input; copies, creations and look-ups
none; anything else one per output element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from placekit_onnx.values import Type

_CLASSES: dict[str, str] = {
    "matmul": "MatMul Gemm MatMulInteger QLinearMatMul Einsum LSTM GRU RNN FusedMatMul FusedGemm MatMulNBits",
    "convolution": "Conv ConvTranspose ConvInteger QLinearConv DeformConv FusedConv NhwcConv",
    "attention": "Attention FlexAttention",
    "normalization": "BatchNormalization InstanceNormalization LayerNormalization GroupNormalization RMSNormalization LRN"
    " MeanVarianceNormalization LpNormalization Softmax LogSoftmax Hardmax SimplifiedLayerNormalization"
    " SkipLayerNormalization SkipSimplifiedLayerNormalization",
    "reduction": "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum"
    " ReduceSumSquare ArgMax ArgMin CumSum CumProd TopK NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
    "pooling": "MaxPool AveragePool GlobalAveragePool GlobalMaxPool LpPool GlobalLpPool MaxRoiPool RoiAlign",
    "copy": "Concat Slice Split Transpose Pad Expand Tile Cast CastLike BitCast ConstantOfShape Range EyeLike DepthToSpace"
    " SpaceToDepth Trilu Identity Reshape Flatten Squeeze Unsqueeze Dropout CenterCropPad ReverseSequence Col2Im Shape Size",
    "embedding": "Gather GatherElements GatherND Scatter ScatterElements ScatterND TensorScatter OneHot Compress",
    "elementwise": "Abs Acos Acosh Add And Asin Asinh Atan Atanh Bernoulli BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor"
    " Ceil Celu Clip Cos Cosh DequantizeLinear Div DynamicQuantizeLinear Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual"
    " HardSigmoid HardSwish IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow"
    " QuantizeLinear RandomNormal RandomNormalLike RandomUniform RandomUniformLike Reciprocal Relu Resize RotaryEmbedding"
    " Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum SwiGLU Swish Tan Tanh ThresholdedRelu Upsample"
    " Where Xor FastGelu QuickGelu BiasGelu",
}
_CLASS_OF = {name: group for group, names in _CLASSES.items() for name in names.split()}
_LOOKUPS = frozenset(["Gather", "GatherElements", "GatherND", "Compress"])  # they read only part of their first input
RANDOM = frozenset(
    ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"]
)
"""Operators whose results are not constant even if all inputs are."""
VIEWS = frozenset(["Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"])
"""Operators whose result is their first input, with another shape."""
# by operator, positions of the inputs that are shapes, axes and the like
_SHAPES: dict[str, tuple[int, ...]] = {
    "BlackmanWindow": (0,), "CenterCropPad": (1,), "Clip": (1, 2), "ConstantOfShape": (0,), "CumSum": (1,), "Dropout": (1, 2),
    "Expand": (1,), "HammingWindow": (0,), "HannWindow": (0,), "OneHot": (1, 2), "Pad": (1, 2, 3), "Range": (0, 1, 2),
    "ReduceL1": (1,), "ReduceL2": (1,), "ReduceLogSum": (1,), "ReduceLogSumExp": (1,), "ReduceMax": (1,),
    "ReduceMean": (1,), "ReduceMin": (1,), "ReduceProd": (1,), "ReduceSum": (1,), "ReduceSumSquare": (1,), "Reshape": (1,),
    "Resize": (1, 2, 3), "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,), "Tile": (1,), "TopK": (1,), "Trilu": (1,),
    "Unsqueeze": (1,), "Upsample": (1,),
}  # fmt: skip
Operands = Sequence[Type | None]
Attributes = Mapping[str, Any]


def is_shape(op: str, position: int) -> bool:
    """Whether an input is a shape, an axis or the like, which a kernel gets as a number instead of a tensor."""
    return position in _SHAPES.get(op, ())


def is_known(domain: str, op: str) -> bool:
    """Whether this module knows the FLOPs of an operator; else only its bytes count.

    Operators of ONNX Runtime (`com.microsoft`) cost as much as ONNX's of the same name, except attention, which has weights.
    """
    if domain == "ai.onnx.preview":
        return op == "FlexAttention"
    return domain in ("", "ai.onnx") or (domain == "com.microsoft" and op_class(op) not in ("other", "attention"))


def op_class(op: str, operands: Sequence[Type] = ()) -> str:
    """Row of the efficiency table of `placekit_core`; `operands` are the tensors read and written."""
    group = _CLASS_OF.get(op, "other")
    return f"unaligned_{group}" if group == "matmul" and any(map(_unaligned, operands)) else group


def _unaligned(matrix: Type) -> bool:
    """Whether rows of 16-bit numbers do not begin at multiples of 16 bytes: the same rule as in importer `torch`."""
    row = matrix.shape[-1] if len(matrix.shape) > 1 else 1
    return row > 1 and matrix.name in ("float16", "bfloat16") and row % 8 > 0


def compute_dtype(op: str, inputs: Sequence[Type], outputs: Sequence[Type]) -> str:
    """Type that an operation computes in: of its first floating-point input, else of its first tensor.

    Quantised products compute in the type of their first input.
    """
    both = [*inputs, *outputs]
    if op in ("QLinearMatMul", "QLinearConv") and inputs:
        return inputs[0].name
    return next((t for t in both if t.is_floating), both[0]).name if both else "float32"


def flops(op: str, inputs: Operands, outputs: Sequence[Type], attributes: Attributes) -> float:
    """Floating-point operations, by the rules of the module docstring. Wrong operands raise IndexError, KeyError and the like."""
    formula = _FORMULAS.get(op)
    if formula is not None:
        return float(formula(inputs, outputs, attributes))
    group = op_class(op)
    if group in ("copy", "embedding"):
        return 0.0
    if group in ("reduction", "normalization", "pooling"):
        return float(max((t.elements for t in inputs if t is not None), default=0))
    return float(sum(t.elements for t in outputs))


def bytes_accessed(op: str, read: Sequence[Type], outputs: Sequence[Type], whole: bool) -> float:
    """Bytes read and written. `read` are the distinct tensors read; `whole`: the first of them is the first input."""
    sizes, written = [t.bytes_ for t in read], sum(t.bytes_ for t in outputs)
    if op in _LOOKUPS and whole and sizes:
        sizes[0] = min(sizes[0], written)
    return float(sum(sizes) + written)


def signature(op: str, inputs: Operands, attributes: Attributes) -> str:
    """Operator, types, shapes and attributes; operations with equal signatures cost the same on a device."""
    named = [f"{k}={_text(v)}" for k, v in sorted(attributes.items())]
    return f"onnx.{op}({', '.join([*('' if t is None else str(t) for t in inputs), *named])})"


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    text = f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _shape(operands: Operands, i: int) -> tuple[int, ...]:
    operand = operands[i]
    if operand is None:
        raise IndexError(i)
    return operand.shape


def _matmul(inputs: Operands, outputs: Sequence[Type], attributes: Attributes) -> int:
    return 2 * outputs[0].elements * _shape(inputs, 0)[-2 if attributes.get("transA") else -1]


def _gemm(inputs: Operands, outputs: Sequence[Type], attributes: Attributes) -> int:
    return 2 * outputs[0].elements * _shape(inputs, 0)[0 if attributes.get("transA") else 1]


def _conv(weight: int) -> Any:
    def formula(inputs: Operands, outputs: Sequence[Type], attributes: Attributes) -> int:
        return 2 * outputs[0].elements * math.prod(_shape(inputs, weight)[1:])  # [out, in / groups, *kernel]

    return formula


def _conv_transpose(inputs: Operands, outputs: Sequence[Type], attributes: Attributes) -> int:
    return 2 * math.prod(_shape(inputs, 0)) * math.prod(_shape(inputs, 1)[1:])  # [in, out / groups, *kernel]


def _recurrent(gates: int) -> Any:
    def formula(inputs: Operands, outputs: Sequence[Type], attributes: Attributes) -> int:
        steps, batch, width = _shape(inputs, 0)
        directions, _, hidden = _shape(inputs, 2)
        return 2 * steps * batch * directions * gates * hidden * (width + hidden)

    return formula


def _attention(inputs: Operands, outputs: Sequence[Type], attributes: Attributes) -> int:
    """Products of queries and keys, and of weights and values; [batch, heads, tokens, width] or [batch, tokens, width]."""
    query, key, value = (_shape(inputs, i) for i in range(3))
    past = _shape(inputs, 4)[2] if len(inputs) > 4 and inputs[4] is not None else 0
    if len(query) == 4:
        heads, width, value_width = query[1], query[3], value[3]
    else:
        heads, shared = attributes["q_num_heads"], attributes["kv_num_heads"]
        width, value_width = query[-1] // heads, value[-1] // shared
    return 2 * query[0] * heads * query[-2] * (key[-2] + past) * (width + value_width)


def _einsum(inputs: Operands, outputs: Sequence[Type], attributes: Attributes) -> int:
    """FLOPs of one product after another, from the left. The dimensions of an ellipsis count once, as a factor of each."""
    equation = attributes["equation"].decode().replace(" ", "")
    texts, arrow, out = equation.partition("->")
    terms = texts.split(",")
    kept = set(out) if arrow else {k for k in texts if texts.count(k) == 1}
    sizes: dict[str, int] = {}
    rest = 1
    for term, shape in zip(terms, (_shape(inputs, i) for i in range(len(inputs))), strict=True):
        before, dots, after = term.partition("...")
        named = zip(before + after, shape[: len(before)] + shape[len(shape) - len(after) :], strict=True)
        sizes.update(named)
        rest = max(rest, math.prod(shape[len(before) : len(shape) - len(after)])) if dots else rest
    total, seen = 0, set(terms[0])
    for i, term in enumerate(terms[1:], 2):
        seen |= set(term)
        total += 2 * rest * math.prod(sizes[k] for k in seen if k != ".")
        seen &= kept.union(*terms[i:])  # the product sums over letters that neither the output nor a later term has
    return total or sum(t.elements for t in outputs)


def _packed_matmul(inputs: Operands, outputs: Sequence[Type], attributes: Attributes) -> int:
    return 2 * outputs[0].elements * int(attributes["K"])


_FORMULAS: dict[str, Any] = {
    "MatMul": _matmul, "MatMulInteger": _matmul, "QLinearMatMul": _matmul, "FusedMatMul": _matmul, "Gemm": _gemm,
    "FusedGemm": _gemm, "Conv": _conv(1), "FusedConv": _conv(1), "ConvInteger": _conv(1), "DeformConv": _conv(1),
    "QLinearConv": _conv(3), "ConvTranspose": _conv_transpose, "RNN": _recurrent(1), "GRU": _recurrent(3),
    "LSTM": _recurrent(4), "Attention": _attention, "FlexAttention": _attention, "Einsum": _einsum, "MatMulNBits": _packed_matmul,
}  # fmt: skip
