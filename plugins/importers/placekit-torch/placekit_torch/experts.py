"""Costs of grouped matrix products, in which each expert of a mixture multiplies its share of the tokens.

Which tokens an expert gets depends on data. The number of rows of the whole product does not: tokens x experts per token.
The costs are those of the expected load, rows / experts for each expert. Sources of the operators:
`torch.nn.functional.grouped_mm`, and `transformers.integrations.moe`, which has one of its own for float32.
"""

from __future__ import annotations

from typing import Any

NAMES = frozenset(["_grouped_mm", "quantized_grouped_mm", "grouped_mm_fallback", "grouped_mm_fallback_backward"])
NOTE = (
    "which tokens an expert gets depends on data; the costs are those of an even load, rows / experts for each expert"
)


def flops(name: str, args: Any) -> float:
    """FLOPs of a grouped product; its backward pass has two.

    Of the operands, [rows, K] x [experts, K, N] is the product with the weights; [K, rows] x [rows, N] is their gradient.
    """
    one, two = args[0].shape, args[1].shape
    experts = one[0] if len(one) == 3 and len(two) == 3 else 1
    product = float(2 * experts * one[-2] * one[-1] * two[-1])
    return 2 * product if name.endswith("backward") else product


def weights_read(rows: int, experts: int) -> float:
    """Expected share of the experts that get at least one of `rows` rows, if each row goes to any with the same chance."""
    return 1 - (1 - 1 / experts) ** rows
