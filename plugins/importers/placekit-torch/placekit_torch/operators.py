"""The costs of ATen operators: class, FLOPs, bytes, and the signature by which measured costs are looked up.

FLOPs: matrix products, convolutions and attention follow the formulas of `torch.utils.flop_counter` (a multiply-add counts
2). Pointwise operations, optimisers included, count one per output element. Reductions, normalisations, softmax and pooling
count one per element of their largest input (without constant factors, which the memory traffic of these operations hides).
Copies, creations and look-ups count none; anything else counts one per output element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import flop_registry

from placekit_torch import experts

_CLASSES: dict[str, str] = {
    "matmul": "mm addmm bmm baddbmm addbmm mv addmv dot vdot addr _int_mm _scaled_mm linalg_solve _grouped_mm quantized_linear"
    " quantized_grouped_mm grouped_mm_fallback grouped_mm_fallback_backward",
    "convolution": "convolution _convolution convolution_backward cudnn_convolution mkldnn_convolution",
    "normalization": "_softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data native_layer_norm"
    " native_layer_norm_backward native_group_norm native_group_norm_backward native_batch_norm native_batch_norm_backward"
    " batch_norm_backward _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training"
    " _batch_norm_with_update_functional _batch_norm_no_update _fused_rms_norm _fused_rms_norm_backward"
    " _weight_norm_interface _weight_norm_interface_backward causal_softmax causal_softmax_backward",
    "reduction": "nll_loss_forward nll_loss2d_forward cumsum cumprod logcumsumexp linalg_vector_norm _cdist_forward argmax"
    " argmin median mode norm var_mean std_mean aminmax logsumexp count_nonzero mse_loss l1_loss smooth_l1_loss",
    "elementwise": "nll_loss_backward nll_loss2d_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward",
    "pooling": "max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices avg_pool2d avg_pool3d"
    " max_pool3d_with_indices_backward avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d adaptive_max_pool2d"
    " _adaptive_avg_pool2d_backward adaptive_max_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward",
    "copy": "clone copy cat stack _to_copy full zeros ones empty empty_strided arange scalar_tensor fill lift_fresh_copy"
    " slice_backward select_backward slice_scatter select_scatter diagonal_backward diagonal_scatter as_strided_scatter"
    " zero constant_pad_nd reflection_pad2d repeat roll flip tril triu eye linspace full_like zeros_like ones_like empty_like"
    " new_full new_zeros new_ones new_empty new_empty_strided unfold_backward _reshape_copy pixel_shuffle",
    "embedding": "embedding embedding_dense_backward _embedding_bag gather index index_select take scatter scatter_add"
    " index_put index_copy index_add index_fill scatter_reduce _unsafe_index _unsafe_index_put _embedding_bag_dense_backward",
}
_CLASS_OF = {name: group for group, names in _CLASSES.items() for name in names.split()}
# The first set reads only the looked-up part of its first input; the second set reads only its shape.
_LOOKUPS = frozenset(["embedding", "_embedding_bag", "gather", "index", "index_select", "take", "_unsafe_index"])
_CREATED = [f"{kind}_like" for kind in ("full", "zeros", "ones", "empty", "rand", "randn", "randint")]
_CREATED += [f"new_{kind}" for kind in ("full", "zeros", "ones", "empty", "empty_strided")]
_SHAPE_ONLY = frozenset([*_CREATED, "fill", "zero", "copy"])
_EMPTY = frozenset(["empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted"])
_VIEWED = [f"{view}_scatter" for view in ("slice", "select", "diagonal", "as_strided")]
_SET = frozenset([*_VIEWED, "index_copy", "index_put", "_unsafe_index_put", "scatter"])
_ADDED = frozenset(["index_add", "scatter_add", "scatter_reduce", "index_reduce"])
_SHORT = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "b8", "complex64": "c64", "complex128": "c128",
}  # fmt: skip


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in a node's value, or in its arguments with values in place of nodes."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [t for part in value for t in tensors(part)]


def size(tensor: torch.Tensor) -> int:
    """Bytes of the elements of a tensor."""
    return tensor.numel() * tensor.element_size()


def base_name(target: Any) -> str:
    """Name of the operator without namespace and overload, e.g. `mm`."""
    packet = getattr(target, "_overloadpacket", None)
    return str(packet.__name__) if packet is not None else str(getattr(target, "__name__", target))


def op_type(target: Any) -> str:
    """Name of the operator without overload, e.g. `aten.mm`."""
    return f"{getattr(target, 'namespace', 'python')}.{base_name(target)}"


def op_class(target: Any, operands: Sequence[torch.Tensor] = ()) -> str:
    """Row of the efficiency table of `placekit_core.contracts.costs`; `operands` are the tensors read and written."""
    name = base_name(target)
    if name in _CLASS_OF:
        group = _CLASS_OF[name]
        return f"unaligned_{group}" if group == "matmul" and any(map(_unaligned, operands)) else group
    if name.startswith("attention") or "scaled_dot_product" in name or "flex_attention" in name:
        return "attention"
    if "upsample_" in name:
        return "elementwise"
    if torch.Tag.reduction in getattr(target, "tags", ()) or name in ("_foreach_norm", "_foreach_max"):
        return "reduction"
    return "elementwise" if is_pointwise(target) or is_random(target) else "other"


def _unaligned(matrix: torch.Tensor) -> bool:
    """Whether rows of numbers of at most 16 bits do not begin at multiples of 16 bytes, which tensor cores need for speed."""
    width = matrix.element_size()
    rows = [s for s, d in zip(matrix.stride()[-2:], matrix.shape[-2:], strict=True) if s > 1 and d > 1]
    return width <= 2 and any(s * width % 16 for s in rows)


def is_pointwise(target: Any) -> bool:
    """Whether each element of the results depends on one element of each input."""
    name = base_name(target)
    return torch.Tag.pointwise in getattr(target, "tags", ()) or (
        name.startswith("_foreach_") and name not in ("_foreach_norm", "_foreach_max")
    )


def is_random(target: Any) -> bool:
    """Whether the operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def compute_dtype(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> str:
    """Dtype of the computation: that of the first floating-point tensor, else of the first tensor."""
    both = [*inputs, *outputs]
    chosen = next((t for t in both if t.dtype.is_floating_point or t.dtype.is_complex), both[-1] if both else None)
    return "float32" if chosen is None else str(chosen.dtype).removeprefix("torch.")


def flops(target: Any, args: Any, kwargs: Any, outputs: Any) -> float:
    """Floating-point operations, by the rules of the module docstring; `args` with tensors in place of nodes."""
    if isinstance(getattr(target, "members", None), tuple):  # several kernels as one
        return float(target.flops(args))
    formula = flop_registry.get(getattr(target, "_overloadpacket", None))
    if formula is not None:
        return float(formula(*args, **kwargs, out_val=outputs))
    if base_name(target) in experts.NAMES:
        return experts.flops(base_name(target), args)
    group = op_class(target)
    if group in ("copy", "embedding"):
        return 0.0
    if group in ("reduction", "normalization", "pooling"):
        return float(max((t.numel() for t in tensors((args, kwargs))), default=0))
    return float(sum(t.numel() for t in tensors(outputs)))


def bytes_read(target: Any, reads: Sequence[int], outputs: Sequence[torch.Tensor]) -> int:
    """Bytes read; `reads` are the sizes of the distinct tensors that it reads, in the order of its arguments."""
    name = base_name(target)
    if name in _SHAPE_ONLY:
        return sum(reads[1:])
    if name in _LOOKUPS and reads:
        return min(reads[0], sum(size(t) for t in outputs)) + sum(reads[1:])
    if (
        name in experts.NAMES and len(reads) > 2 and outputs[0].dim() == 2
    ):  # rows, weights (and their scales), int32 end of each expert's rows
        share = experts.weights_read(len(outputs[0]), reads[-1] // 4)
        return reads[0] + int(sum(reads[1:-1]) * share) + reads[-1]
    return sum(reads)


def is_empty(target: Any) -> bool:
    """Whether the operator only allocates memory, which no kernel on a device does."""
    return base_name(target) in _EMPTY


def writes_part(target: Any) -> bool:
    """Whether the operator replaces or changes a part of its first argument, as a key-value cache is extended."""
    return base_name(target) in _SET | _ADDED


def part_bytes(target: Any, args: Any, kwargs: Any) -> int:
    """Bytes that such an operator reads and writes where it changes its first argument in place.

    It reads the indices and the new part, and writes the part; it reads the old part if it adds to that. A mask, whose number
    of true elements nobody knows, costs a pass over the whole.
    """
    name, whole = base_name(target), args[0]
    *where, part = tensors((args[1:], kwargs))
    adds = name in _ADDED
    if name.endswith("index_put"):
        adds = args[3:] == (True,) or kwargs.get("accumulate", False)
        if any(t.dtype in (torch.bool, torch.uint8) for t in where):
            return sum(map(size, [*where, part])) + 2 * size(whole)
        indexed = {d for d, t in enumerate(args[1]) if t is not None}
        elements = math.prod(np.broadcast_shapes(*(tuple(t.shape) for t in where)))
        elements *= math.prod(n for d, n in enumerate(whole.shape) if d not in indexed)
        read = sum(map(size, where)) + size(part)
    elif name.startswith("scatter"):  # of a number, or of the elements of a tensor that have an index
        index = where[0] if where else part
        elements = index.numel()
        read = size(index) + (elements * part.element_size() if where else 0)
    else:
        elements = part.numel()
        read = sum(map(size, where)) + size(part)
    return int(read + (2 if adds else 1) * elements * whole.element_size())


def signature(target: Any, args: Any, kwargs: Any) -> str:
    """Operator, shapes, types and attributes; operations with equal signatures cost the same on a device.

    A tensor is written as `f32[4,8]`, with its strides, `f32[4,8]{1,4}`, if it is not contiguous.
    """
    named = [f"{k}={_text(v)}" for k, v in kwargs.items() if k not in ("device", "pin_memory", "layout")]
    several = f"[{', '.join(target.names)}]" if isinstance(getattr(target, "names", None), tuple) else ""
    return f"{op_type(target)}{several}({', '.join([*map(_text, args), *named])})"


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        text = f"{_SHORT.get(kind, kind)}[{','.join(map(str, value.shape))}]"
        return text if value.is_contiguous() else f"{text}{{{','.join(map(str, value.stride()))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return str(value).removeprefix("torch.")
