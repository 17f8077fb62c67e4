"""Gradient accumulation: micro-batches one after another, and one update; equal to a loop in eager torch."""

from __future__ import annotations

import copy
from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from placekit_testing.sequential import run_sequential
from placekit_torch import import_module
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from placekit_core import ImporterError, Program, place

torch.set_num_threads(1)  # the tensors are small, and tests run side by side


class Network(nn.Module):
    def __init__(self, saved: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(dropout)
        self.last, self.saved = nn.Linear(16, 5), saved

    def inner(self, x: Tensor) -> Tensor:
        return self.drop(self.first(x).tanh()).sin()

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(self.inner, x, use_reentrant=False) if self.saved else self.inner(x)
        return self.last(self.norm(y))


def data(batch: int = 12) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(batch, 6), torch.randint(0, 5, (batch,))


optimizer = partial(torch.optim.Adam, lr=0.01, foreach=False)


def imported(module: nn.Module, accumulate: int, batch: int = 12, **options: str) -> Program:
    x, y = data(batch)
    return import_module(
        module, x, loss=F.cross_entropy, targets=y, optimizer=optimizer, accumulate=accumulate, **options
    )


@pytest.mark.parametrize("fusion", ["none", "pointwise"])
@pytest.mark.parametrize("saved", [False, True])
def test_equals_a_loop_in_eager_torch(saved: bool, fusion: str) -> None:
    torch.manual_seed(0)
    module = Network(saved)
    program = imported(module, 3, fusion=fusion)
    module = copy.deepcopy(module)
    values, eager, (x, y) = program.executable.initial(), optimizer(module.parameters(), capturable=True), data()
    for step in range(2):
        values, results = run_sequential(program, values, step)
        eager.zero_grad()
        total = torch.zeros(())
        for part in range(3):
            loss = F.cross_entropy(module(x[4 * part : 4 * part + 4]), y[4 * part : 4 * part + 4]) / 3
            loss.backward()
            total = total + loss.detach()
        with mock.patch("torch.compiler.is_compiling", return_value=True):
            eager.step()
        assert torch.equal(results["loss"], total)
        found = {program.graph.op_name[program.graph.tensor_producer[t]]: v for t, v in values.items()}
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            assert torch.equal(found[name], value), name


def test_micro_batches_run_one_after_another() -> None:
    graph = imported(Network(), 3).graph
    forward = [v for v in np.flatnonzero(graph.kernel & (graph.phase == 0)) if graph.op_name[v].startswith("first")]
    assert [graph.call[v] for v in forward] == [0, 1, 2]
    awaited = [[u for t in graph.inputs(v) if graph.phase[u := int(graph.tensor_producer[t])] == 1] for v in forward]
    assert [len(u) for u in awaited] == [0, 1, 1]
    sums = [v for v in range(graph.n) if graph.phase[v] == 1 and "first.weight/add" in graph.op_name[v]]
    (home,) = (graph.colocate[v] for v in range(graph.n) if graph.op_name[v] == "first.weight")
    assert len(sums) == 2
    assert all(graph.colocate[v] == home for v in sums)


def test_memory_is_that_of_a_micro_batch() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x.tanh().sin().cos()) * self.last(x).square()

    x, y = data(60000)

    def peak(parts: int) -> float:
        found = place(
            Wide(),
            inputs=x,
            loss=F.cross_entropy,
            targets=y,
            policy="single_device",
            cluster="a100x8",
            accumulate=parts,
        )
        return float(found.measurements.peak_bytes.max()) - 60000 * (6 * 4 + 8)

    assert peak(6) < 0.25 * peak(1)


def test_random_numbers_differ_among_micro_batches_and_are_repeated_by_checkpoints() -> None:
    program = imported(Network(True, dropout=0.5), 2)
    seeds = program.executable._lowered.code.seeds
    again = {seeds.get(v, v) for v in program.executable.random_ops}
    assert (len(program.executable.random_ops), len(again)) == (4, 2)


def test_a_batch_that_cannot_be_split() -> None:
    with pytest.raises(ImporterError, match="a batch of 12, which cannot be split into 5"):
        imported(Network(), 5)
