"""Activation checkpointing: recomputed operations are in the graph, start late, and give eager torch's results."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from placekit_testing.sequential import run_sequential
from placekit_torch import import_module
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from placekit_core import Graph, place

torch.set_num_threads(1)  # the tensors are small, and tests run side by side


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(8, 64), nn.Linear(64, 8), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.drop(self.up(x).tanh().sin()))


class Network(nn.Module):
    """Blocks, each a checkpoint; with `nested`, the middle ones in a further one."""

    def __init__(self, reentrant: bool | None = None, nested: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(4))
        self.reentrant, self.nested = reentrant, nested

    def forward(self, x: Tensor) -> Tensor:
        x = self.run(self.blocks[0], x)
        if self.nested:
            x = self.run(lambda y: self.run(self.blocks[2], self.run(self.blocks[1], y)), x)
        else:
            x = self.run(self.blocks[2], self.run(self.blocks[1], x))
        return self.run(self.blocks[3], x)

    def run(self, function: Any, x: Tensor) -> Tensor:
        return function(x) if self.reentrant is None else checkpoint(function, x, use_reentrant=self.reentrant)


def loss(y: Tensor) -> Tensor:
    return y.square().mean()


def graph_of(module: nn.Module, x: Tensor | None = None, **options: Any) -> Graph:
    return import_module(module, torch.ones(4, 8) if x is None else x, loss=loss, **options).graph


def repeated(graph: Graph) -> list[int]:
    """Operations of the backward pass that run their forward operation again."""
    first = graph.columns["forward_of"]
    inside = [v for v in np.flatnonzero(graph.phase == 1) if first[v] >= 0 and graph.module[v].startswith("blocks")]
    return [v for v in inside if graph.op_type[v] == graph.op_type[first[v]]]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_equals_eager(nested: bool, reentrant: bool) -> None:
    torch.manual_seed(0)
    module = Network(reentrant, nested)
    x = torch.randn(4, 8, requires_grad=True)
    program = import_module(module, x, loss=loss)
    _, found = run_sequential(program, program.executable.initial())
    loss(module(x)).backward()
    for name, parameter in module.named_parameters():
        assert torch.equal(found[f"gradient.{name}"], parameter.grad), name


def test_what_is_recomputed() -> None:
    graph = graph_of(Network(False))
    again = repeated(graph)
    assert sorted(graph.op_type[v] for v in again) == sorted(["aten.addmm", "aten.tanh", "aten.sin"] * 4)
    names = {graph.module[v] for v in again if graph.op_type[v] == "aten.addmm"}
    assert names == {f"blocks.{i}.up" for i in range(4)}  # nothing needs the output of `down`
    assert all(graph.call[v] == 0 for v in again)
    nested = repeated(graph_of(Network(False, nested=True)))
    assert len(nested) > len(
        again
    )  # the inner regions are recomputed to find their inputs, and again for their gradients


def test_recomputation_waits_for_the_gradient() -> None:
    graph = graph_of(Network(False))
    again = set(repeated(graph))
    first = graph.columns["forward_of"]
    for v in again:
        read = [int(graph.tensor_producer[t]) for t in graph.inputs(v)]
        if not again & set(read):
            awaited = [u for u in read if graph.phase[u] == 1]
            assert len(awaited) == 1
            assert (
                graph.bytes_accessed[v] == graph.bytes_accessed[first[v]]
            )  # it waits for the gradient, and reads none
            assert graph.op_type[awaited[0]] in ("aten.mul", "aten.add")  # of the block's output, along the residual


def test_memory_falls() -> None:
    x = torch.ones(4096, 8)

    def peak(module: Network) -> int:
        result = place(module, inputs=x, loss=loss, policy="single_device", cluster="a100x8")
        return int(result.measurements.peak_bytes.max())

    plain, saved = peak(Network()), peak(Network(False))
    assert saved < 0.5 * plain  # of four blocks, one has its wide activations at a time


def test_dropout_is_the_same_again() -> None:
    torch.manual_seed(0)
    module = Network(False, dropout=0.5)
    x = torch.randn(4, 8)
    program = import_module(module, x, loss=loss)
    plain = Network(None, dropout=0.5)
    plain.load_state_dict(module.state_dict())
    other = import_module(plain, x, loss=loss)
    assert len(program.executable.random_ops) == 2 * len(other.executable.random_ops) == 8
    values = program.executable.initial()
    _, found = run_sequential(program, values)
    (bias,) = (t for t in values if program.graph.op_name[program.graph.tensor_producer[t]] == "blocks.0.up.bias")
    step = torch.zeros(64)
    step[5] = 0.01
    losses = [run_sequential(program, {**values, bias: values[bias] + s * step})[1]["loss"].double() for s in (1, -1)]
    slope = (losses[0] - losses[1]).item() / 0.02
    assert found["gradient.blocks.0.up.bias"][5].item() == pytest.approx(slope, rel=0.02, abs=1e-5)


def test_reentrant_checkpoints_without_gradient_have_none() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = import_module(nn.Sequential(Network(True), nn.Linear(8, 8)), torch.ones(4, 8), loss=loss)
    assert set(program.executable.results) == {"loss", "gradient.1.weight", "gradient.1.bias"}


def test_inference_recomputes_nothing() -> None:
    assert not repeated(import_module(Network(True), torch.ones(4, 8), mode="inference").graph)
