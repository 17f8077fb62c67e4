"""Linear layers and experts whose weights are stored in 4 or 8 bits, and the kernels that read and multiply them.

The weights are random, and nothing is converted: weights and scales only have the sizes that the format gives them.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from placekit_torch.tracing import is_fake
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

from placekit_core import ImporterError

EXPERTS = ("gate_up_proj", "up_proj", "down_proj")
"""Names that transformers gives to the weights of all experts of a layer, [experts, out, in] or [experts, in, out]."""


@dataclass(frozen=True)
class Storage:
    """How weights are stored.

    Attributes:
        bits: bits per weight.
        group: weights of a row that share a scale; None: all of them do.
        scale: type of a scale; None: that of the layer.
        skipped: patterns of modules that are not quantised, beside the head.
        linear: whether linear layers are quantised, or experts alone.
    """

    bits: int
    group: int | None = None
    scale: torch.dtype | None = None
    skipped: tuple[str, ...] = ()
    linear: bool = True

    def skips(self, path: str) -> bool:
        """Whether a pattern matches the path of a module, of one around it, or the end of either."""
        parts = path.split(".")
        around = [".".join(parts[:i]) for i in range(1, len(parts) + 1)]
        return any(fnmatch.fnmatch(p, end) for s in self.skipped for p in around for end in (s, f"*.{s}"))

    def pack(self, shape: Iterable[int], dtype: torch.dtype) -> tuple[nn.Parameter, nn.Parameter]:
        """Random packed weights [..., out, in * bits / 8] for weights [..., out, in], and scales [..., out, groups]."""
        *outer, columns = shape
        group = self.group if self.group and columns % self.group == 0 else columns
        packed = torch.empty(*outer, columns * self.bits // 8, dtype=torch.uint8)
        if not (is_fake(packed) or packed.is_meta):
            packed.random_(0, 256)
        scales = torch.full((*outer, columns // group), columns**-0.5 / 2 ** (self.bits - 1), dtype=dtype)
        if self.scale is not None:
            scales = scales.to(self.scale)
        return nn.Parameter(packed, requires_grad=False), nn.Parameter(scales, requires_grad=False)


INT8, INT4 = Storage(8), Storage(4, group=128)


def _unpacked(packed: Tensor, scales: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    """The weights [out, in]."""
    weight = packed.view(torch.int8).to(dtype)
    if bits == 4:
        weight = torch.stack([(packed & 15).to(dtype) - 8, (packed >> 4).to(dtype) - 8], -1).flatten(1)
    rows, groups = scales.shape
    return (weight.view(rows, groups, -1) * scales.to(dtype)[..., None]).view(rows, -1)


@torch.library.custom_op("placekit::quantized_linear", mutates_args=())
def quantized_linear(x: Tensor, packed: Tensor, scales: Tensor, bits: int) -> Tensor:
    """x [..., in] times the transpose of the weights [out, in], which `packed` [out, in * bits / 8] and `scales` hold."""
    return nn.functional.linear(x, _unpacked(packed, scales, bits, x.dtype))


@torch.library.custom_op("placekit::quantized_grouped_mm", mutates_args=())
def quantized_grouped_mm(x: Tensor, packed: Tensor, scales: Tensor, ends: Tensor, bits: int) -> Tensor:
    """Rows of x [rows, in], up to the end [experts] of each expert's rows, times the transpose of its weights."""
    out = x.new_empty(len(x), packed.shape[1])
    start = 0
    for expert, end in enumerate(ends.tolist()):
        out[start:end] = quantized_linear(x[start:end], packed[expert], scales[expert], bits)
        start = end
    return out


@quantized_linear.register_fake
def _(x: Tensor, packed: Tensor, scales: Tensor, bits: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], packed.shape[0])


@quantized_grouped_mm.register_fake
def _(x: Tensor, packed: Tensor, scales: Tensor, ends: Tensor, bits: int) -> Tensor:
    return x.new_empty(len(x), packed.shape[1])


@register_flop_formula([torch.ops.placekit.quantized_linear, torch.ops.placekit.quantized_grouped_mm], get_raw=True)
def _flops(x: Any, packed: Any, *others: Any, out_val: Any = None, **keywords: Any) -> int:
    return int(2 * x.numel() * packed.shape[-2])


class QuantizedLinear(nn.Module):
    """A linear layer with stored weights."""

    def __init__(self, linear: nn.Linear, storage: Storage) -> None:
        super().__init__()
        self.bits = storage.bits
        self.weight, self.scales = storage.pack(linear.weight.shape, linear.weight.dtype)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] to [..., out]."""
        out = quantized_linear(x, self.weight, self.scales, self.bits)
        biased: Tensor = out if self.bias is None else out + self.bias
        return biased


def quantise(model: Any, storage: Storage) -> None:
    """Store the weights of linear layers, except the head, and of experts in few bits. Raises ImporterError for others."""
    head = model.get_output_embeddings()
    for path, module in list(model.named_modules()):
        own = {n: p for n, p in module.named_parameters(recurse=False) if p.dim() == 3}
        if own and not storage.skips(path):
            if not _has_experts(module) or not own.keys() <= {*EXPERTS}:
                raise ImporterError(
                    f"{path}, a {type(module).__name__}, holds weights with three dimensions ({', '.join(own)}), which"
                    f" placekit cannot store in {storage.bits} bits",
                    "leave out `weights`, and `quantization_config` in the configuration, to plan with dtype",
                )
            for name, weight in own.items():
                experts, *sizes = weight.shape
                rows, columns = reversed(sizes) if module.is_transposed else sizes
                packed, scales = storage.pack((experts, rows, columns), weight.dtype)
                setattr(module, name, packed)
                module.register_parameter(f"{name}_scales", scales)
        for name, child in list(module.named_children()):
            plain = storage.linear and type(child) is nn.Linear and child is not head
            if plain and not storage.skips(f"{path}.{name}".lstrip(".")):
                setattr(module, name, QuantizedLinear(child, storage))


def _has_experts(module: nn.Module) -> bool:
    """Whether the module is one of transformers' experts, which can run as grouped products of matrices."""
    return hasattr(module, "is_transposed") and hasattr(module, "has_gate")


def quantised_experts(storage: Storage) -> Any:
    """A context in which the experts of transformers multiply with stored weights."""
    from transformers.integrations import moe

    grouped: Callable[..., Tensor] = moe.grouped_mm_experts_forward

    def multiply(
        module: Any, x: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None = None, is_transposed: bool = False
    ) -> Tensor:
        [scales] = [getattr(module, f"{n}_scales") for n in EXPERTS if getattr(module, n, None) is weight]
        out: Tensor = quantized_grouped_mm(x, weight, scales, ends, storage.bits)
        return out if bias is None else out + bias

    def run(module: Any, *arguments: Tensor) -> Tensor:
        if not hasattr(module, "down_proj_scales"):
            return grouped(module, *arguments)
        with mock.patch.object(moe, "_grouped_linear", functools.partial(multiply, module)):
            return grouped(module, *arguments)

    return mock.patch.dict(moe.ExpertsInterface._global_mapping, grouped_mm=run)


def stored(config: Any) -> Storage | None:
    """How a `quantization_config` stores weights; None without one. Raises ImporterError."""
    if not config:
        return None
    if not isinstance(config, dict):
        raise ImporterError(
            f"`quantization_config` is {config!r:.60}, not a mapping", "remove it from the configuration"
        )
    method = config.get("quant_method")
    bits = config.get("bits") or config.get("w_bit")
    skipped = next((v for k in ("modules_to_not_convert", "llm_int8_skip_modules") if (v := config.get(k))), ())
    skipped, group = [skipped] if isinstance(skipped, str) else skipped, config.get("group_size")
    if not isinstance(skipped, list | tuple) or not isinstance(group, int | None):
        raise ImporterError(
            f"`quantization_config` has group_size {group!r:.60}, and skips {skipped!r:.60}",
            "make group_size a number, and the skipped modules a list",
        )
    if method == "mxfp4":  # 32 weights of 4 bits share a scale of 8 bits; experts alone are stored so
        return Storage(4, 32, torch.uint8, tuple(skipped), linear=False)
    if method == "bitsandbytes" or config.get("load_in_4bit") or config.get("load_in_8bit"):
        bits = 4 if config.get("load_in_4bit") else 8
    elif method in ("fp8", "fbgemm_fp8"):
        bits = 8
    if bits in (4, 8):
        base = INT8 if bits == 8 else INT4
        width = base.group if group is None else group if group > 0 else None  # -1: a scale for each row
        return Storage(base.bits, width, base.scale, tuple(skipped))
    bits_text = f" with {bits} bits" if bits else ""
    raise ImporterError(
        f"importer model does not know weights quantised by {method!r}{bits_text}",
        "give weights=int8 or weights=int4, or checkpoint=... instead of model=...",
    )
