"""Tracers `export` and `dynamo` give the step of the joint tracer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from placekit_testing.sequential import run_sequential
from placekit_torch import import_module
from torch import Tensor, nn

from placekit_core import ImporterError

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> dict[str, Tensor]:
        return {"y": self.shared(self.norm(torch.relu(self.shared(x)))) * scale}


def names(program: Any) -> set[tuple[str, int, str]]:
    g = program.graph
    return {(g.module[v], int(g.call[v]), g.op_type[v]) for v in range(g.n)}


@pytest.mark.parametrize("tracer", ["export", "dynamo"])
def test_exported_steps_equal_eager(tracer: str) -> None:
    torch.manual_seed(0)
    module, x = nn.ModuleDict({"block": Block()})["block"], torch.randn(6, 4)
    make: Any = lambda **o: import_module(  # noqa: E731
        module, {"x": x, "scale": 0.5}, loss=lambda y: y["y"].sum(), optimizer=torch.optim.SGD, **o
    )
    program, joint = make(tracer=tracer), make()
    assert names(program) == names(joint)
    _, results = run_sequential(program, program.executable.initial())
    assert torch.equal(results["loss"], run_sequential(joint, joint.executable.initial())[1]["loss"])
    inference = import_module(module, {"x": x}, mode="inference", tracer=tracer)
    assert torch.equal(run_sequential(inference, inference.executable.initial())[1]["output.0"], module.eval()(x)["y"])


@pytest.mark.parametrize("tracer", ["export", "dynamo"])
def test_a_branch_on_data_is_named(tracer: str) -> None:
    class Branch(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.sum() > 0 else x

    with pytest.raises(ImporterError, match=r"(?s)Branch cannot be exported: .*if x\.sum\(\) > 0 else x"):
        import_module(Branch(4, 4), torch.randn(2, 4), mode="inference", tracer=tracer)
