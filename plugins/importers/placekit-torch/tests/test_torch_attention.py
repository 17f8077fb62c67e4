"""Attention as one operation: it equals eager torch, and costs what a fused kernel costs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from placekit_testing.sequential import run_sequential
from placekit_torch import import_module
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from placekit_core import Graph, Program

torch.set_num_threads(1)  # the tensors are small, and tests run side by side

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "boolean mask": {"attn_mask": torch.ones(6, 6, dtype=torch.bool).tril()},
    "mask of numbers": {"attn_mask": torch.linspace(-1, 1, 72).view(2, 1, 6, 6)},
    "grouped queries": {"enable_gqa": True},
}


class Attention(nn.Module):
    """Self-attention of 4 heads of 8; values have heads of `width`."""

    def __init__(self, shared: int = 4, width: int = 8, bias: bool = False, **settings: Any) -> None:
        super().__init__()
        self.settings, self.shared, self.width = settings, shared, width
        self.q, self.k = nn.Linear(16, 32), nn.Linear(16, 8 * shared)
        self.v, self.out = nn.Linear(16, width * shared), nn.Linear(4 * width, 16)
        self.bias = nn.Parameter(torch.randn(1, 4, 6, 6)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (4, 8)).transpose(1, 2)
        k = self.k(x).unflatten(-1, (self.shared, 8)).transpose(1, 2)
        v = self.v(x).unflatten(-1, (self.shared, self.width)).transpose(1, 2)
        settings = dict(self.settings)
        if self.bias is not None:
            settings["attn_mask"] = self.bias
        elif "attn_mask" in settings and settings["attn_mask"].dtype != torch.bool:
            settings["attn_mask"] = settings["attn_mask"].to(x.dtype)
        mixed = F.scaled_dot_product_attention(q, k, v, **settings)
        return self.out(mixed.transpose(1, 2).flatten(2))


def loss(y: Tensor) -> Tensor:
    return y.float().square().sum()


def both(module: nn.Module, x: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor], Program]:
    """Loss and gradients of the imported step and of eager torch."""
    program = import_module(module, x, loss=loss)
    _, found = run_sequential(program, program.executable.initial())
    expected = loss(module(x))
    expected.backward()
    gradients = {f"gradient.{k}": p.grad for k, p in module.named_parameters()}
    return found, {"loss": expected.detach(), **gradients}, program


def attention_ops(graph: Graph) -> list[int]:
    return [v for v in range(graph.n) if graph.op_class[v] == "attention"]


@pytest.mark.parametrize("kind", KINDS)
def test_equals_eager(kind: str) -> None:
    torch.manual_seed(0)
    dtype = torch.bfloat16 if kind in ("causal", "boolean mask") else torch.float32
    module = Attention(2 if kind == "grouped queries" else 4, **KINDS[kind]).to(dtype)
    found, expected, program = both(module, torch.randn(2, 6, 16, dtype=dtype))
    assert len(attention_ops(program.graph)) == 2
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("kind", ["other width", "bias with a gradient"])
def test_equals_eager_but_for_rounding_where_eager_takes_plain_products(kind: str) -> None:
    torch.manual_seed(0)
    module = Attention(width=4) if kind == "other width" else Attention(bias=True, shared=2, enable_gqa=True)
    found, expected, program = both(module.double(), torch.randn(2, 6, 16, dtype=torch.float64))
    assert len(attention_ops(program.graph)) == 2
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


def test_dropout_is_drawn_once_and_for_forward_and_backward() -> None:
    torch.manual_seed(0)
    module = Attention(dropout_p=0.4).double()
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    program = import_module(module, x, loss=lambda y: y.square().sum())
    graph, values = program.graph, program.executable.initial()
    assert [graph.op_type[v] for v in program.executable.random_ops] == ["placekit.attention_dropout"]
    losses = [run_sequential(program, values, step)[1]["loss"] for step in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]
    (bias,) = (t for t in values if graph.op_name[graph.tensor_producer[t]] == "v.bias")
    _, found = run_sequential(program, values)
    step = 1e-6
    moved = [values[bias] + sign * step * torch.eye(32, dtype=torch.float64)[3] for sign in (1, -1)]
    up, down = (run_sequential(program, {**values, bias: value})[1]["loss"] for value in moved)
    assert found["gradient.v.bias"][3].item() == pytest.approx(((up - down) / (2 * step)).item(), rel=1e-5)


def test_costs_of_a_fused_kernel() -> None:
    batch, heads, length, width = 2, 4, 6, 8
    graph = import_module(Attention(is_causal=True), torch.randn(2, 6, 16), loss=loss).graph
    forward, backward = attention_ops(graph)
    product = 2 * batch * heads * length * length * width
    assert (graph.flops[forward], graph.flops[backward]) == (2 * product, 5 * product)
    tensor, rows = 4 * batch * heads * length * width, 4 * batch * heads * length
    assert graph.bytes_accessed[forward] == 4 * tensor + rows
    assert graph.bytes_accessed[backward] == 8 * tensor + rows  # also the gradient and out; three gradients are written
    saved = [t for t in graph.inputs(backward) if graph.phase[graph.tensor_producer[t]] == 0]
    assert sorted(graph.tensor_bytes[t] for t in saved) == [rows, *[tensor] * 4]
    assert graph.columns["forward_of"][backward] == forward
    assert not any(tuple(graph.shape(t))[-2:] == (length, length) for t in range(graph.t))


def test_flops_are_those_of_torch() -> None:
    module, x = Attention(2, enable_gqa=True), torch.randn(2, 6, 16)
    graph = import_module(module, x, loss=loss).graph
    from placekit_torch.attention import attention_as

    with attention_as("fused"), FlopCounterMode(display=False) as counter:
        loss(module(x)).backward()
    products = graph.op_class.is_value("attention") | graph.op_class.is_value("matmul")
    assert graph.flops[products].sum() == counter.get_total_flops()


def test_math_takes_attention_apart() -> None:
    class Plain(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            with sdpa_kernel(SDPBackend.MATH):
                return F.scaled_dot_product_attention(q, q, q)

    x = torch.randn(1, 2, 8, 4)
    option = import_module(Attention(), torch.randn(2, 6, 16), attention="math", loss=loss).graph
    for graph in (option, import_module(Plain(), x, mode="inference").graph):  # the code itself may ask for it, too
        assert sum(t == "aten.bmm" for t in graph.op_type.tolist()) >= 2
        assert not any("attention" in t for t in graph.op_type.vocabulary)


def test_what_no_fused_kernel_takes_is_taken_apart() -> None:
    class Three(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, q, q)

    graph = import_module(Three(), torch.randn(2, 8, 4), mode="inference").graph
    assert not any("attention" in t for t in graph.op_type.vocabulary)
