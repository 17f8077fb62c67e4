"""Modules of the kinds that tracing has trouble with: three steps of each equal eager torch, to the last bit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from placekit_testing.sequential import run_sequential
from placekit_torch import import_module
from torch import Tensor, nn

torch.set_num_threads(1)  # the tensors are small, and tests run side by side


class Exp(torch.autograd.Function):
    """With a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0] * 2


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)


class CustomFunction(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return Exp.apply(self.linear(x))


class InPlace(Linear):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        y += 1
        y[:, 0] = 0
        return y.relu_()


class Repeated(nn.Module):
    """One module under several names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.all = nn.ModuleList([self.first] * 3)

    def forward(self, x: Tensor) -> Tensor:
        for module in self.all:
            x = module(x).tanh()
        return x


class Norms(nn.Module):
    """Also batch normalisation that runs twice per step, and so changes its buffers twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.group, self.up = nn.GroupNorm(2, 4), nn.Upsample(scale_factor=2)
        self.batch = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.batch(self.up(self.batch(self.group(self.conv(x[None, None]))).sin()))


class Average(Linear):
    """With buffers that it changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
            self.count += 1
        return y - self.mean


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x)
        for _ in range(3):
            h = self.cell(x, h)
        return h


class OtherStrides(Linear):
    """The normalisation's kernel gives other strides than it is traced with: the flattening can be no view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).unflatten(0, (2, -1)).transpose(1, 2)
        return self.head(self.norm(y).transpose(1, 2)).flatten(1)


class Complex(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft(self.linear(x)).abs()


MODULES: dict[str, Callable[[], nn.Module]] = {
    "custom function": CustomFunction,
    "in place": InPlace,
    "repeated": Repeated,
    "norms": Norms,
    "average": Average,
    "gru cell": Recurrent,
    "complex": Complex,
    "other strides": OtherStrides,
    "transformer": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    "bfloat16": lambda: nn.Sequential(nn.Linear(4, 4)).bfloat16(),
}


def loss(y: Tensor) -> Tensor:
    return (y.float() ** 2).sum()


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(parameters, foreach=False)


@pytest.mark.parametrize("kind", MODULES)
def test_steps_equal_eager(kind: str) -> None:
    torch.manual_seed(0)
    module = MODULES[kind]()
    x = torch.randn((4, 4, 4) if kind == "transformer" else (4, 4), dtype=next(module.parameters()).dtype)
    program = import_module(module, x, loss=loss, optimizer=optimizer)
    values, eager = program.executable.initial(), optimizer(module.parameters())
    # eager computes the sigmoids of a GRU cell in place, in slices with gaps, the step in new tensors: on some processors torch
    # rounds the two differently
    tolerance = 1e-6 if kind == "gru cell" else 0.0
    check = functools.partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
    for _ in range(3):
        values, results = run_sequential(program, values)
        eager.zero_grad()
        expected = loss(module(x))
        expected.backward()
        eager.step()
        check(results["loss"], expected.detach())
        found = {program.graph.op_name[program.graph.tensor_producer[t]]: v for t, v in values.items()}
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            check(found[name], value)
