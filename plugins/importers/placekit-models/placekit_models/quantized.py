"""Linear layers whose weights are stored in 4 or 8 bits, and multiplied by one kernel that reads them so."""

from __future__ import annotations

from typing import Any

import torch
from placekit_torch.tracing import is_fake
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

from placekit_core import ImporterError

GROUP = 128
"""Weights of a row that share a scale, in 4 bits; in 8 bits, all weights of a row do."""


@torch.library.custom_op("placekit::quantized_linear", mutates_args=())
def quantized_linear(x: Tensor, packed: Tensor, scales: Tensor, bits: int) -> Tensor:
    """x [..., in] times the transpose of the weights [out, in], which `packed` [out, in * bits / 8] and `scales` hold."""
    weight = packed.view(torch.int8).to(x.dtype)
    if bits == 4:
        weight = torch.stack([(packed & 15).to(x.dtype) - 8, (packed >> 4).to(x.dtype) - 8], -1).flatten(1)
    rows, groups = scales.shape
    weight = (weight.view(rows, groups, -1) * scales[..., None]).view(rows, -1)
    return nn.functional.linear(x, weight)


@quantized_linear.register_fake
def _(x: Tensor, packed: Tensor, scales: Tensor, bits: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], packed.shape[0])


@register_flop_formula(torch.ops.placekit.quantized_linear, get_raw=True)
def _flops(x: Any, packed: Any, scales: Any, bits: int, out_val: Any = None, **keywords: Any) -> int:
    return int(2 * x.numel() * packed.shape[0])


class QuantizedLinear(nn.Module):
    """A linear layer with weights in `bits` bits. Its weights are random: nothing is converted."""

    def __init__(self, linear: nn.Linear, bits: int) -> None:
        super().__init__()
        rows, columns = linear.weight.shape
        group = GROUP if bits == 4 and columns % GROUP == 0 else columns
        self.bits = bits
        self.weight = nn.Parameter(torch.empty(rows, columns * bits // 8, dtype=torch.uint8), requires_grad=False)
        if not (is_fake(self.weight) or self.weight.is_meta):
            self.weight.random_(0, 256)
        scales = torch.full((rows, columns // group), columns**-0.5 / 2 ** (bits - 1), dtype=linear.weight.dtype)
        self.scales = nn.Parameter(scales, requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] to [..., out]."""
        out = quantized_linear(x, self.weight, self.scales, self.bits)
        biased: Tensor = out if self.bias is None else out + self.bias
        return biased


def quantise(model: Any, bits: int) -> None:
    """Replace the linear layers of `model`, except its head. Raises ImporterError if it has weights of another kind."""
    head = model.get_output_embeddings()
    for path, module in list(model.named_modules()):
        if any(p.dim() == 3 for p in module.parameters(recurse=False)):
            raise ImporterError(
                f"{path} holds the weights of several experts, which are not modelled in {bits} bits",
                "leave out `weights`, or `quantization_config` in the configuration",
            )
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child is not head:
                setattr(module, name, QuantizedLinear(child, bits))


def stored_bits(config: Any) -> int | None:
    """Bits of the weights by the `quantization_config` of a configuration; None without one. Raises ImporterError."""
    if not config:
        return None
    if not isinstance(config, dict):
        raise ImporterError(
            f"`quantization_config` is {config!r:.60}, not a mapping", "remove it from the configuration"
        )
    method = config.get("quant_method")
    bits = config.get("bits") or config.get("w_bit")
    if method == "bitsandbytes" or config.get("load_in_4bit") or config.get("load_in_8bit"):
        bits = 4 if config.get("load_in_4bit") else 8
    elif method == "fp8":
        bits = 8
    if bits in (4, 8):
        return int(bits)
    raise ImporterError(
        f"weights quantised by {method!r} with {bits} bits are not modelled",
        "give weights=int8 or weights=int4, or remove `quantization_config` from the configuration",
    )
