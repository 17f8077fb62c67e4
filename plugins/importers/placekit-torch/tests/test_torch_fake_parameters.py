"""Factories run as their author wrote them: parameters take no memory, all other tensors are real."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from placekit_testing.sequential import run_sequential
from placekit_torch import Step
from placekit_torch.factory import Made
from placekit_torch.importer import import_program
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from placekit_core import Program

torch.set_num_threads(1)


def made(factory: Callable[[], Any], mode: Any = "inference") -> Program:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return import_program(Made(factory, "mine"), name="mine", mode=mode)


def parameters(program: Program) -> dict[str, tuple[int, ...]]:
    graph = program.graph
    return {
        graph.op_name[v]: graph.shape(int(t))
        for t, v in enumerate(graph.tensor_producer)
        if graph.op_type[v] == "parameter"
    }


def dropped_paths() -> nn.Module:
    rates = [x.item() for x in torch.linspace(0, 0.5, 3)]
    widths = torch.unique(torch.tensor([4, 4, 8]), sorted=True).tolist()
    return nn.Sequential(nn.Linear(widths[0], widths[1]), *(nn.Dropout(r) for r in rates), nn.Linear(widths[1], 4))


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    return module.to(torch.float32)


def copied() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), copy.deepcopy(layer))


def lazy() -> nn.Module:
    module = nn.Sequential(nn.LazyLinear(4))
    module(torch.randn(2, 4))
    return module


def loaded() -> nn.Module:
    module = nn.Linear(4, 4)
    module.load_state_dict(nn.Linear(4, 4).state_dict())
    module.load_state_dict({"weight": torch.eye(4), "bias": torch.zeros(4)}, assign=True)
    return module


def assigned() -> nn.Module:
    module = nn.Linear(4, 4)
    module.weight.data = torch.eye(4)
    module.bias.data[1:].zero_()
    nn.init.trunc_normal_(module.weight, std=0.1)
    nn.init.orthogonal_(module.weight)
    module.register_buffer("scale", module.weight.detach().abs().amax())
    return module


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))


def half() -> nn.Module:
    torch.set_default_dtype(torch.bfloat16)
    try:
        return nn.Sequential(nn.Linear(4, 4).float(), nn.BatchNorm1d(4).float()).double().float()
    finally:
        torch.set_default_dtype(torch.float32)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "numbers of tensors": dropped_paths,
    "tied": tied,
    "copied": copied,
    "lazy": lazy,
    "loaded": loaded,
    "assigned": assigned,
    "meta": on_meta,
    "default dtype": half,
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(4, 4)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(4, 4)),
}


@pytest.mark.parametrize("kind", MODULES)
def test_constructors_of_all_kinds(kind: str) -> None:
    program = made(lambda: (MODULES[kind](), torch.randn(3, 2, 4) if kind == "copied" else torch.randn(3, 4)))
    real = {k: tuple(p.shape) for k, p in MODULES[kind]().named_parameters()}
    assert parameters(program) == real
    if kind != "meta":
        assert run_sequential(program, program.executable.initial())[1]["output.0"].isfinite().all()


def test_recurrent_weights_are_parameters_and_not_constants() -> None:
    program = import_program(Made(lambda: (nn.LSTM(4, 4), torch.randn(2, 1, 4)), "mine"), name="mine", mode="inference")
    assert len(parameters(program)) == 4
    assert "buffer" not in program.graph.op_type.vocabulary


def test_accelerates_empty_weights() -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")

    def factory() -> Any:
        with accelerate.init_empty_weights():
            return nn.Sequential(nn.Linear(4, 300_000), nn.BatchNorm1d(300_000)), torch.randn(3, 4)

    assert parameters(made(factory))["0.weight"] == (300_000, 4)


def test_large_tensors_take_no_memory() -> None:
    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.arange(200_000)[:, None] >= torch.arange(200_000))
            self.register_buffer("table", torch.zeros(10**6, 10**6))
            self.weight = nn.Parameter(torch.randn(10**6, 10**6) * 0.02)

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight[:4, :4] + self.mask[:3, :4] + self.table[0, 0]

    assert made(lambda: (Large(), torch.randn(3, 4))).graph.persistent_bytes.sum() > 8e12


class Reads(nn.Linear):
    def __init__(self, width: int = 4) -> None:
        super().__init__(width, width)
        self.scale = float(self.weight.abs().max())

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / self.scale


def test_weights_that_are_read_are_real_and_a_warning_says_so() -> None:
    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "self.scale = float" in text)
    with pytest.warns(UserWarning, match=rf"(?s)mine was built with real weights.*{Path(__file__).name}:{line}: "):
        program = import_program(Made(lambda: (Reads(), torch.randn(3, 4)), "mine"), name="mine", mode="inference")
    assert set(parameters(program)) == {"weight", "bias"}


def test_a_factory_runs_once_if_it_works() -> None:
    calls = []
    made(lambda: calls.append(1) or Step(nn.Linear(4, 4), torch.randn(3, 4)))
    assert calls == [1]
