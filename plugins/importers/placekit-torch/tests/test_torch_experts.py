"""Mixtures of experts have the costs of an even load."""

from __future__ import annotations

import pytest
import torch
from placekit_torch import import_module
from placekit_torch.experts import weights_read
from torch import Tensor, nn


class Grouped(nn.Module):
    """As transformers' experts: tokens sorted by expert, one grouped product."""

    def __init__(self, experts: int, kind: torch.dtype) -> None:
        super().__init__()
        self.router = nn.Linear(16, experts, dtype=kind)
        self.weight = nn.Parameter(torch.randn(experts, 16, 32, dtype=kind))

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(-1).topk(2, -1)
        order = chosen.flatten().argsort()
        counts = nn.functional.one_hot(chosen.flatten(), len(self.weight)).sum(0)
        rows = nn.functional.grouped_mm(x[order // 2], self.weight, offs=counts.cumsum(0).to(torch.int32))
        return rows * weight.flatten()[order, None]


def test_flops_and_bytes_of_grouped_products() -> None:
    tokens, experts = 8, 64
    with pytest.warns(UserWarning, match="which tokens an expert gets depends on data"):
        graph = import_module(
            Grouped(experts, torch.bfloat16), torch.randn(tokens, 16).bfloat16(), loss=lambda y: y.float().sum()
        ).graph
    grouped = [v for v in range(graph.n) if graph.op_type[v] == "aten._grouped_mm"]
    assert [float(graph.flops[v]) for v in grouped] == [2 * tokens * 2 * 16 * 32] * len(grouped)
    assert len(grouped) >= 2
    assert {graph.op_class[v] for v in grouped} == {"matmul"}
    rows = tokens * 2
    share = 1 - (1 - 1 / experts) ** rows
    expected = rows * 16 * 2 + int(experts * 16 * 32 * 2 * share) + experts * 4 + rows * 32 * 2
    assert float(graph.bytes_accessed[grouped[0]]) == expected
    assert weights_read(1, experts) == pytest.approx(1 / experts)
