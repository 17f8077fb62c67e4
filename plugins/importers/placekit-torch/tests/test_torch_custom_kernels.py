"""Fused kernels: they compute what several operators compute, and their costs are those of one pass over their tensors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from placekit_testing.sequential import run_sequential
from placekit_torch import import_module
from placekit_torch.custom_kernels import FusedAdam, causal_softmax
from placekit_torch.operators import op_class
from torch import Tensor, nn

torch.set_num_threads(1)  # the tensors are small, and tests run side by side


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def train(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        module(torch.randn(4, 6, generator=generator)).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in module.parameters()]


def test_fused_adam_is_adam() -> None:
    first, second = small(), small()
    expected = train(first, torch.optim.Adam(first.parameters(), lr=0.01), 5)
    found = train(second, FusedAdam(second.parameters(), lr=0.01), 5)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_master_weights_keep_updates_that_half_precision_rounds_away() -> None:
    weight = nn.Parameter(torch.ones(8, dtype=torch.float16))  # the next smaller number is 0.9995
    optimizer = FusedAdam([weight], lr=1e-5)
    for step in range(1, 101):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        moved = float(optimizer.state[weight]["master"][0])
        assert moved == pytest.approx(1 - 1e-5 * step, abs=5e-6)
    assert weight[0].item() == pytest.approx(0.999, abs=5e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_traced_steps_equal_eager(dtype: torch.dtype) -> None:
    module = small().to(dtype)
    x = torch.randn(4, 6, dtype=dtype)
    program = import_module(module, x, loss=lambda y: y.float().square().mean(), optimizer=FusedAdam)
    eager, values = FusedAdam(module.parameters()), program.executable.initial()
    for step in range(3):
        values, _ = run_sequential(program, values, step)
        eager.zero_grad()
        module(x).float().square().mean().backward()
        eager.step()
    graph = program.graph
    found = {graph.op_name[graph.tensor_producer[t]]: v for t, v in values.items()}
    for name, parameter in module.named_parameters():
        assert torch.equal(found[name], parameter.detach()), name
        for key, value in eager.state[parameter].items():
            assert torch.equal(found[f"{name}/{key}"], value), f"{name}/{key}"


def test_the_update_is_one_operation_per_parameter() -> None:
    program = import_module(
        small().half(), torch.randn(4, 6).half(), loss=lambda y: y.float().sum(), optimizer=FusedAdam
    )
    graph = program.graph
    (first, *others) = [v for v in range(graph.n) if graph.phase[v] == 2 and graph.kernel[v]]
    assert len(others) == 3
    assert graph.op_class[first] == "elementwise"
    n = 6 * 5  # half a parameter and a gradient in, half a parameter out; three float32 tensors in and out; the step
    assert graph.bytes_accessed[first] == 30 * n + 8


def test_causal_softmax_and_its_gradient() -> None:
    torch.manual_seed(0)
    scores = torch.randn(2, 3, 7, 7, dtype=torch.float64, requires_grad=True)
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    expected = torch.softmax((scores * 0.5).masked_fill(future, -torch.inf), -1)
    weights = causal_softmax(scores, 0.5)
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
    direction = torch.randn_like(weights)
    (found,) = torch.autograd.grad(weights, scores, direction)
    (right,) = torch.autograd.grad(expected, scores, direction)
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-6)


def test_products_whose_rows_do_not_begin_at_16_bytes() -> None:
    def group(*shape: int, dtype: torch.dtype = torch.float16) -> str:
        return op_class(torch.ops.aten.mm.default, [torch.empty(shape, dtype=dtype)])

    assert group(4, 50257) == group(4, 50257, dtype=torch.bfloat16) == "unaligned_matmul"
    assert group(4, 50304) == group(50257, 8) == group(1, 50257) == "matmul"
    assert group(4, 50257, dtype=torch.float32) == "matmul"  # float32 does not use tensor cores here
    assert op_class(torch.ops.aten.mm.default, [torch.empty(50257, 8).half().T]) == "matmul"
    assert op_class(torch.ops.aten.add.Tensor, [torch.empty(4, 50257).half()]) == "elementwise"


def test_a_model_in_half_precision_has_unaligned_products() -> None:
    class Tagger(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.cross_entropy(super().forward(x), torch.zeros(len(x), dtype=torch.int64))

    graph = import_module(Tagger(8, 13).half(), torch.randn(4, 8).half(), optimizer=FusedAdam).graph
    assert graph.op_class.is_value("unaligned_matmul").sum() == 2  # forward and the gradient of the weight
    assert not graph.op_class.is_value("matmul").any()
