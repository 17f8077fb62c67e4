"""importer.fusion=pointwise: chains of pointwise operations as one operation each, with equal results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from placekit_testing.sequential import run_sequential
from placekit_torch import import_module
from torch import Tensor, nn

from placekit_core import Graph, Program, validate_graph

torch.set_num_threads(1)  # the tensors are small, and tests run side by side


class Chain(nn.Module):
    """Three pointwise operations after a product."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(x).sin() * 2 + 1).cos()


class Around(nn.Module):
    """A pointwise operation before a reduction, and one after it that reads both: as one, they would wait for themselves."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.exp()
        return y / y.sum(-1, keepdim=True) * 2


class Viewed(nn.Module):
    """Views between the members, one of which is also read outside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = x.sin().view(2, 2, 8)
        z = (y.transpose(0, 1) * 2).contiguous().view(4, 8).cos()
        return self.layer(y.view(4, 8)) + z[:, :4].repeat(1, 2)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return self.norm(F.silu(y) * y.sigmoid() + x).tanh().square()


MODULES: dict[str, Callable[[], nn.Module]] = {"chain": Chain, "views": Viewed, "norm": Norm}
optimizer = partial(torch.optim.AdamW, lr=0.01)


def imported(module: nn.Module, **options: Any) -> Program:
    return import_module(module, torch.ones(4, 8), loss=lambda y: y.square().mean(), optimizer=optimizer, **options)


def forward(module: nn.Module, x: Tensor) -> Graph:
    return import_module(module, x, mode="inference", fusion="pointwise").graph


def by_name(program: Program, values: dict[int, Tensor]) -> dict[str, Tensor]:
    return {program.graph.op_name[program.graph.tensor_producer[t]]: v for t, v in values.items()}


@pytest.mark.parametrize("kind", MODULES)
def test_equals_the_unfused_step(kind: str) -> None:
    torch.manual_seed(0)
    module = MODULES[kind]()
    plain, fused = imported(module), imported(module, fusion="pointwise", optimizer_kernels="single")
    single = imported(module, optimizer_kernels="single")
    assert fused.graph.kernel.sum() < single.graph.kernel.sum()
    assert fused.graph.flops.sum() == single.graph.flops.sum()
    assert fused.graph.bytes_accessed.sum() < single.graph.bytes_accessed.sum()
    assert plain.graph.persistent_bytes.sum() == fused.graph.persistent_bytes.sum()
    validate_graph(fused.graph)
    one, two = single.executable.initial(), fused.executable.initial()
    for step in range(2):
        (one, first), (two, second) = run_sequential(single, one, step), run_sequential(fused, two, step)
        assert torch.equal(first["loss"], second["loss"])
        expected, found = by_name(single, one), by_name(fused, two)
        assert all(torch.equal(found[k], v) for k, v in expected.items())


def test_one_operation_with_the_bytes_that_enter_and_leave() -> None:
    graph = forward(Chain(), torch.ones(4, 8))
    (product, chain) = np.flatnonzero(graph.kernel)
    assert graph.op_type[product] == "aten.mm"
    assert graph.op_type[chain] == "placekit.fused_sin_mul_add"
    assert graph.op_class[chain] == "elementwise"
    assert graph.bytes_accessed[chain] == 2 * 4 * 4 * 16
    assert graph.flops[chain] == 4 * 4 * 16
    assert graph.columns["signature"][chain] == "placekit.fused_sin_mul_add[sin, mul, add, cos](f32[4,16])"


def test_no_group_waits_for_itself() -> None:
    graph = forward(Around(), torch.ones(4, 8))
    assert [graph.op_type[v] for v in np.flatnonzero(graph.kernel)] == [
        "aten.exp",
        "aten.sum",
        "placekit.fused_div_mul",
    ]


def test_phases_modules_and_random_operations_stay_apart() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Tanh(), nn.Dropout(0.5), nn.Sigmoid())
    graph = imported(module, fusion="pointwise").graph
    types = {graph.op_type[v]: graph.op_class[v] for v in range(graph.n) if graph.phase[v] < 2}
    assert {"aten.relu", "aten.tanh", "aten.native_dropout", "aten.sigmoid"} <= types.keys()  # four modules
    updates = [v for v in range(graph.n) if graph.kernel[v] and graph.phase[v] == 2]
    assert all(graph.colocate[v] >= 0 for v in updates)
