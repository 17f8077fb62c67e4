"""Autocast: the casts of the device that the code names, and each weight's once."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from placekit_testing.sequential import run_sequential
from placekit_torch import import_module
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from placekit_core import Graph

torch.set_num_threads(1)  # the tensors are small, and tests run side by side


class Network(nn.Module):
    """Uses one layer twice, and, with `exact`, leaves autocast for a product, by the device of its tensors."""

    def __init__(self, device: str | None, saved: bool = False, exact: bool = False) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(8), nn.Linear(8, 8)
        self.device, self.saved, self.exact = device, saved, exact

    def inner(self, x: Tensor) -> Tensor:
        y = self.layer(self.layer(self.norm(x)).softmax(-1))
        q = y.unflatten(-1, (2, 4)).transpose(0, 1)[None]
        return F.scaled_dot_product_attention(q, q, q)[0].transpose(0, 1).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        if self.device is None:
            return self.body(x)
        with torch.autocast(self.device, torch.bfloat16):
            return self.body(x)

    def body(self, x: Tensor) -> Tensor:
        y = checkpoint(self.inner, x, use_reentrant=False) if self.saved else self.inner(x)
        if self.exact:
            with torch.autocast(x.device.type, enabled=False):
                y = y.float() @ x.T
        return F.mse_loss(y.float(), torch.zeros_like(y, dtype=torch.float32))


def graph_of(module: nn.Module, **options: str) -> Graph:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return import_module(module, torch.ones(4, 8), loss=lambda y: y, **options).graph


def types(graph: Graph, op_type: str, phase: int = 0) -> list[str]:
    return [graph.dtype[v] for v in range(graph.n) if graph.op_type[v] == op_type and graph.phase[v] == phase]


def casts_of(graph: Graph, source: str) -> list[int]:
    (t,) = (t for t in range(graph.t) if graph.op_name[graph.tensor_producer[t]] == source)
    return [v for v in graph.consumers(t).tolist() if graph.op_type[v] == "aten._to_copy"]


@pytest.mark.parametrize("saved", [False, True])
def test_cpu_equals_eager(saved: bool) -> None:
    torch.manual_seed(0)
    module, x = Network("cpu", saved, exact=True), torch.randn(4, 8)
    program = import_module(module, x, loss=lambda y: y)
    _, found = run_sequential(program, program.executable.initial())
    loss = module(x)
    loss.backward()
    assert torch.equal(found["loss"], loss.detach())
    for name, parameter in module.named_parameters():
        assert torch.equal(found[f"gradient.{name}"], parameter.grad), name


def test_cuda_has_its_own_policy() -> None:
    cpu, cuda = graph_of(Network("cpu")), graph_of(Network("cuda"))
    for graph in (cpu, cuda):
        assert set(types(graph, "aten.addmm")) == set(types(graph, "placekit.attention")) == {"bfloat16"}
        assert types(graph, "aten.native_layer_norm") == types(graph, "aten.mse_loss") == ["float32"]
    assert types(cpu, "aten._softmax") == ["bfloat16"]
    assert types(cuda, "aten._softmax") == ["float32"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_weight_is_cast_once(device: str) -> None:
    graph = graph_of(Network(device))
    assert len(casts_of(graph, "layer.weight")) == len(casts_of(graph, "layer.bias")) == 1
    graph = graph_of(Network(device, saved=True))
    assert [graph.phase[v] for v in casts_of(graph, "layer.weight")] == [0, 1]  # once more when it is recomputed


def test_leaving_autocast_by_the_device_of_a_tensor() -> None:
    graph = graph_of(Network("cuda", exact=True))
    assert types(graph, "aten.mm") == ["float32"]


def test_the_option_is_autocast_around_module_and_loss() -> None:
    inside, option = graph_of(Network("cuda")), graph_of(Network(None), autocast="bfloat16")
    assert sorted(zip(inside.op_type.tolist(), inside.dtype.tolist(), strict=True)) == sorted(
        zip(option.op_type.tolist(), option.dtype.tolist(), strict=True)
    )
    assert set(types(graph_of(Network(None), autocast="float16"), "aten.addmm")) == {"float16"}


def test_torch_is_as_before() -> None:
    graph_of(Network("cuda"))
    with pytest.warns(UserWarning, match="CUDA is not available"), torch.autocast("cuda"):
        assert not torch.is_autocast_enabled("cuda")
    with torch.autocast("cpu", torch.bfloat16):
        x = torch.ones(2, 2)
        assert (x @ x).dtype == torch.bfloat16
        assert torch.softmax(x @ x, -1).dtype == torch.bfloat16
    assert (x @ x).dtype == torch.float32
