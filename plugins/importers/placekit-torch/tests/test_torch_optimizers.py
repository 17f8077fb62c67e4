"""Updates as the kernels that optimisers launch: equal to eager torch to the last bit, with their share of the launches."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from placekit_testing.sequential import run_sequential
from placekit_torch import import_module
from torch import Tensor, nn

from placekit_core import Cluster, Graph, GraphBuilder, ImporterError, PlacekitError, Program
from placekit_core.contracts.costs import roofline

torch.set_num_threads(1)  # the tensors are small, and tests run side by side


class Lion(torch.optim.Optimizer):
    """As users write theirs: no `foreach`, no `capturable` (Chen et al. 2023)."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                average = state["exp_avg"]
                p.add_(average.clone().mul_(0.9).add_(p.grad, alpha=0.1).sign_(), alpha=-group["lr"])
                average.mul_(0.99).add_(p.grad, alpha=0.01)


class Counted(torch.optim.Optimizer):
    """Counts its steps in a Python number, and starts from state that is not zero."""

    exact = True

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"], state["average"] = 0, torch.full_like(p, 0.5)
                state["step"] += 1
                state["average"].mul_(0.9).add_(p.grad)
                correction = 1 - 0.9 ** state["step"]
                p.sub_(state["average"] / (correction if self.exact else math.sqrt(correction)) * group["lr"])


class Hard(Counted):
    """Needs the number itself."""

    exact = False


class Copied(Lion):
    """Begins with a copy of the parameter."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        (p,) = self.param_groups[0]["params"]
        self.state[p].setdefault("old", None)
        if self.state[p]["old"] is None:
            self.state[p]["old"] = p.clone()
        p.add_(p.grad).lerp_(self.state[p]["old"], 0.5)


optim = torch.optim
OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "AdamW": optim.AdamW,
    "RMSprop": lambda p: optim.RMSprop(p, momentum=0.9, centered=True),
    "Adagrad": lambda p: optim.Adagrad(p, lr_decay=0.1, initial_accumulator_value=0.3),
    "Adadelta": optim.Adadelta,
    "Adamax": optim.Adamax,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "ASGD": optim.ASGD,
    "Rprop": optim.Rprop,
    "Lion": Lion,
    "Counted": Counted,
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def loss(y: Tensor) -> Tensor:
    return y.square().mean()


def imported(optimizer: Any, kernels: str = "auto", module: nn.Module | None = None) -> Program:
    return import_module(
        module or network(), torch.ones(2, 5), loss=loss, optimizer=optimizer, optimizer_kernels=kernels
    )


def updates(graph: Graph) -> list[int]:
    return np.flatnonzero(graph.kernel & (graph.phase == 2)).tolist()


def shares(graph: Graph) -> float:
    column = graph.columns.get("launches", np.ones(graph.n))
    return float(np.asarray(column)[updates(graph)].sum())


KERNELS = [(kind, kernels) for kind in ("SGD", "AdamW", "Adagrad") for kernels in ("single", "foreach", "fused")]
OTHERS = [
    pytest.param(k, "foreach", marks=pytest.mark.slow) for k in OPTIMIZERS if k not in ("SGD", "AdamW", "Adagrad")
]


@pytest.mark.parametrize(("kind", "kernels"), [*KERNELS, ("Lion", "single"), ("Counted", "single"), *OTHERS])
def test_three_steps_equal_eager(kind: str, kernels: str) -> None:
    make, module = OPTIMIZERS[kind], network()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = imported(make, kernels, module)
    eager = make(module.parameters())
    for group in eager.param_groups:
        settings = {"foreach": kernels == "foreach" or (kind == "Adagrad" and kernels == "single"), "capturable": True}
        settings["fused"] = kernels == "fused"
        group.update({k: v for k, v in settings.items() if k in group})
    values = program.executable.initial()
    for step in range(3):
        values, _ = run_sequential(program, values, step)
        with mock.patch("torch.compiler.is_compiling", return_value=True):  # `capturable` is allowed on the CPU
            eager.zero_grad()
            loss(module(torch.ones(2, 5))).backward()
            eager.step()
        found = {program.graph.op_name[program.graph.tensor_producer[t]]: v for t, v in values.items()}
        for name, parameter in module.named_parameters():
            assert torch.equal(found[name], parameter.detach()), name
            for key, value in eager.state[parameter].items():
                if isinstance(value, Tensor):
                    assert torch.equal(found[f"{name}/{key}"], value), f"{name}/{key}"


def test_the_kernels_of_the_users_optimizer() -> None:
    found = {}
    for how in ({}, {"foreach": True}, {"foreach": False}, {"fused": True}):
        graph = imported(lambda p, how=how: optim.Adam(p, **how)).graph
        found[str(how)] = len(updates(graph)), shares(graph)
    assert found["{}"] == found["{'foreach': True}"]
    assert found["{'fused': True}"] == (4, pytest.approx(2))  # the step numbers are increased by a kernel of their own
    operations, launches = found["{}"]
    assert operations == 4 * launches
    assert found["{'foreach': False}"][0] == found["{'foreach': False}"][1] > operations
    assert len(updates(imported(Lion).graph)) == shares(imported(Lion).graph)  # it has no other kernels


def test_every_update_stays_with_its_parameter() -> None:
    graph = imported(optim.Adam, "fused").graph
    home = {graph.op_name[v]: graph.colocate[v] for v in range(graph.n)}
    for v in updates(graph):
        name = graph.op_name[v].split("/")[0]
        assert graph.colocate[v] == home[name] == home[f"{name}/exp_avg"] >= 0


def test_large_tensors_and_many_tensors_take_more_launches() -> None:
    def launches(module: nn.Module) -> float:
        x = torch.ones(1, next(module.parameters()).shape[1])
        return shares(import_module(module, x, loss=loss, optimizer=lambda p: optim.SGD(p, fused=True)).graph)

    with torch.device("meta"):
        large, many = nn.Linear(65536, 640, bias=False), nn.Sequential(*(nn.Linear(3, 3) for _ in range(64)))
    assert launches(large) == pytest.approx(2)  # 640 chunks of 65,536 elements, 320 per launch
    assert launches(many) == pytest.approx(2)  # 128 parameters, 64 pairs of parameter and gradient per launch


def test_bytes_of_a_fused_update() -> None:
    graph = imported(lambda p: optim.AdamW(p, fused=True)).graph
    first = updates(graph)[0]
    assert graph.bytes_accessed[first] == 20 * 28 + 4 * 2  # w, g, m, v are read; w, m, v written; the step is both
    assert graph.op_class[first] == "elementwise"


def test_numbers_that_must_be_numbers_are_fixed_and_said() -> None:
    with pytest.warns(UserWarning, match=r"Hard computes with Python numbers that change.*\(step\)"):
        program = imported(Hard)
    assert len(updates(program.graph)) > 4


def test_state_that_begins_from_the_parameter() -> None:
    with pytest.raises(ImporterError, match="state 'old' of Copied starts from values that depend on the parameter"):
        imported(Copied, module=nn.Linear(5, 3, bias=False))


def test_updates_that_depend_on_data() -> None:
    with pytest.raises(ImporterError, match="the update of Adafactor in Sequential cannot be traced"):
        imported(optim.Adafactor)


def test_a_shared_launch_costs_its_share() -> None:
    builder = GraphBuilder("two")
    for name in ("a", "b"):
        builder.add(name, op_class="elementwise", bytes_accessed=0.0)
    builder.columns["launches"] = np.asarray([0.25, 1.0])
    graph = builder.build()
    cluster = Cluster.model_validate(
        {
            "name": "one",
            "kinds": {"gpu": {"flops_per_s": {"float32": 1e12}, "memory_bytes": 1, "memory_bytes_per_s": 1e9,
                              "launch_overhead_s": 8e-6}},
            "devices": [{"name": "gpu:0", "kind": "gpu"}],
        }
    )  # fmt: skip
    assert roofline(graph, cluster).op_s[:, 0].tolist() == [2e-6, 8e-6]
    builder.columns["launches"] = np.asarray([-1.0, 1.0])
    with pytest.raises(PlacekitError, match="launches"):
        roofline(builder.build(), cluster)
