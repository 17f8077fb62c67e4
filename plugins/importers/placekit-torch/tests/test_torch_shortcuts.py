"""The short paths of tracing give the graphs that torch's own paths give."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from placekit_testing.speed import mostly_slow
from placekit_torch import import_module, optimizers, shortcuts
from torch import Tensor, nn
from torch.fx.experimental import proxy_tensor
from torch_networks import NETWORKS

torch.set_num_threads(1)


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


def traced(network: str, optimizer: str | None = None) -> tuple[str, Any, str]:
    torch.manual_seed(0)
    step = NETWORKS[network]()
    update = OPTIMIZERS[optimizer] if optimizer else None
    program = import_module(step.module, step.inputs, loss=step.loss, targets=step.targets, optimizer=update)
    return program.graph.fingerprint, program.graph.attributes, repr(program.executable._lowered.code)


@pytest.mark.parametrize("network", mostly_slow(NETWORKS, ["odd"]))
def test_graph_and_code_are_those_of_torch(network: str, long_ways: Callable[[], None]) -> None:
    short = traced(network)
    long_ways()
    assert traced(network) == short


@pytest.mark.slow
def test_an_update_repeated_for_other_shapes_is_the_traced_one(long_ways: Callable[[], None]) -> None:
    short = {optimizer: traced("mlp", optimizer) for optimizer in OPTIMIZERS}
    long_ways()
    assert short == {optimizer: traced("mlp", optimizer) for optimizer in OPTIMIZERS}


def test_short_paths_are_taken_under_their_version_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few of the operators of an LSTM take torch's path: those that have no short one."""
    long: list[Any] = []

    def counted(mode: Any, op: Any, *args: Any) -> Any:
        long.append(op)
        return original(mode, op, *args)

    original = shortcuts._torch_record
    monkeypatch.setattr(shortcuts, "_torch_record", counted)
    step = NETWORKS["lstm"]()
    graph = import_module(step.module, step.inputs, mode="inference").graph
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
