"""The short paths of tracing give the graphs that torch's own paths give."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from placekit_testing.speed import mostly_slow
from placekit_torch import import_module, optimizers, shortcuts
from torch import Tensor, nn
from torch.fx.experimental import proxy_tensor

torch.set_num_threads(1)


class Recurrent(nn.Module):
    """Changes views of its gates in place, inside `lstm_cell`."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.drop = nn.LSTMCell(4, 4), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for t in range(3):
            state = self.cell(self.drop(x[:, t]), state)
        assert state is not None
        return state[0]


class Mutates(nn.Module):
    """Changes views, bases of views, buffers, and memory through several views; sums in another type."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).mul_(3)
        y[:, :2].mul_(2)
        y.t()[0].add_(1)
        halves = y.chunk(2, 1)
        self.last.copy_(y.detach()[0])
        self.last[1:].zero_()
        rows = y.unbind(0)
        z = torch.cat([rows[0].unsqueeze(0), torch.stack(rows[1:]).masked_fill_(y[1:] > 3, 0.5)])
        z.transpose_(0, 1)
        return z.double().cumsum(0).view(-1)[:6].clone().float() + halves[1].sum()


class Shapes(nn.Module):
    """Results that share memory, tuples, factories, strides, conjugates."""

    def forward(self, x: Tensor) -> Tensor:
        values, index = x.sort(dim=1)
        mean = torch.var_mean(x, 0)[1]
        wide = x.to(memory_format=torch.contiguous_format).expand(2, *x.shape)
        spectrum = torch.view_as_real(torch.fft.rfft(x).conj().resolve_conj()).sum()
        ones = torch.ones_like(x).tril() + torch.arange(x.shape[1]) + torch.full((), 2.0)
        picked = values.gather(1, index) + x[:, [0] * x.shape[1]]
        return (
            (wide.permute(2, 1, 0).reshape(-1, 2) @ wide.flatten(1)).sum()
            + mean.max()
            + spectrum
            + (picked * ones).sum()
        )


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
        )  # fmt: skip
        self.layers[0].weight.data = self.layers[0].weight.data.contiguous(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).mean()


def sequence() -> tuple[nn.Module, Tensor]:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 3, 8)


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "recurrent": lambda: (Recurrent(), torch.randn(2, 3, 4)),
    "mutates": lambda: (Mutates(), torch.randn(4, 4)),
    "shapes": lambda: (nn.Sequential(nn.Linear(4, 4), Shapes()), torch.randn(4, 4)),
    "convolutional": lambda: (Convolutional(), torch.randn(2, 2, 8, 8)),
    "attention": sequence,
}
OPTIMIZERS: dict[str, Any] = {
    "adam": torch.optim.Adam,
    "amsgrad": lambda p: torch.optim.AdamW(p, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
}


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it to trace without any short path."""

    def switch() -> None:
        monkeypatch.setattr(shortcuts, "APPLIES", False)  # as under another version of torch
        monkeypatch.setattr(optimizers, "repeat_update", lambda *_: None)

    return switch


def traced(network: str, mode: Any, optimizer: str | None = None) -> tuple[str, Any, str]:
    module, x = NETWORKS[network]()
    update = OPTIMIZERS[optimizer] if optimizer else None
    program = import_module(module, x, loss=lambda y: F.mse_loss(y, y.detach()), optimizer=update, mode=mode)
    return program.graph.fingerprint, program.graph.attributes, repr(program.executable._lowered.code)


@pytest.mark.parametrize("network", mostly_slow(NETWORKS, ["mutates", "shapes"]))
def test_graph_and_code_are_those_of_torch(network: str, long_ways: Callable[[], None]) -> None:
    short = traced(network, "train")
    long_ways()
    assert traced(network, "train") == short


def test_an_update_repeated_for_other_shapes_is_the_traced_one(long_ways: Callable[[], None]) -> None:
    short = {optimizer: traced("convolutional", "train", optimizer) for optimizer in OPTIMIZERS}
    long_ways()
    assert short == {optimizer: traced("convolutional", "train", optimizer) for optimizer in OPTIMIZERS}


def test_short_paths_are_taken_under_their_version_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few of the operators of an LSTM take torch's path: those that have no short one."""
    long: list[Any] = []

    def counted(mode: Any, op: Any, *args: Any) -> Any:
        long.append(op)
        return original(mode, op, *args)

    original = shortcuts._torch_record
    monkeypatch.setattr(shortcuts, "_torch_record", counted)
    graph = import_module(Recurrent(), torch.randn(2, 3, 4), mode="inference").graph
    assert len(long) < graph.attributes["traced_operations"] / 2
    with shortcuts.shortcuts():
        assert proxy_tensor.proxy_call is shortcuts._record
    monkeypatch.setattr(shortcuts, "APPLIES", False)
    with shortcuts.shortcuts():
        assert proxy_tensor.proxy_call is original


def test_wrong_operations_fail_as_in_torch() -> None:
    """An in-place operation whose result has another shape; and torch is left as it was."""

    class Wrong(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[0].clone().add_(x)

    with pytest.raises(Exception, match=r"shape|broadcast|size"):
        import_module(Wrong(), torch.randn(3, 4), mode="inference")
    assert gc.isenabled()
    assert proxy_tensor.proxy_call is shortcuts._torch_record
