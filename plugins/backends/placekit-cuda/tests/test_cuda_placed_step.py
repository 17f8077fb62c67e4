"""PlacedStep: a training loop under a placement equals plain PyTorch, and its state goes back and forth."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from placekit_cuda import PlacedStep
from placekit_cuda.machine import CPUMachine
from torch import Tensor, nn

import placekit_core
from placekit_core import PlacekitError, Placement, Result, Task

pytest.importorskip("placekit_torch")

torch.set_num_threads(1)

Make = Callable[[Any], torch.optim.Optimizer]
CLUSTER = "k80x2"  # two GPUs and a CPU: three devices here


def sgd(parameters: Any, lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=1e-3, foreach=False)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, amsgrad=True, foreach=False)


class Net(nn.Module):
    """Embedding and head share a weight; batch normalisation; a parameter of its own, one that is frozen, one unused."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(20, 8), nn.BatchNorm1d(8)
        self.linear, self.head = nn.Linear(8, 8), nn.Linear(8, 20)
        self.dropout, self.unused = nn.Dropout(dropout), nn.Linear(2, 2)
        self.scale, self.frozen = nn.Parameter(torch.ones(8)), nn.Parameter(torch.full((8,), 0.5), requires_grad=False)
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        hidden: Tensor = self.norm(self.embed(x)) * self.scale + self.frozen
        return self.head(self.dropout(torch.relu(self.linear(hidden))))


def net(dropout: float = 0.0) -> Net:
    torch.manual_seed(0)
    return Net(dropout)


def batches(n: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n):
        yield torch.randint(0, 20, (16,), generator=generator), torch.randint(0, 20, (16,), generator=generator)


X, Y = next(batches(1))


def spread(task: Task, rng: np.random.Generator) -> Placement:
    return task.problem.placement(rng.integers(0, task.problem.cluster.size, task.problem.g))


def found(module: nn.Module, optimizer: Make, **options: Any) -> Result:
    about = {"inputs": X, "targets": Y, "loss": nn.functional.cross_entropy, "optimizer": optimizer, **options}
    return placekit_core.place(module, **{"cluster": CLUSTER, "policy": spread, "budget": 1, **about})


def placed(module: nn.Module, optimizer: Make, placement: Any = None, **options: Any) -> PlacedStep:
    placement = found(module, optimizer) if placement is None else placement
    return PlacedStep(
        module, optimizer, nn.functional.cross_entropy, placement, **{"inputs": X, "targets": Y, **options}
    )


@contextmanager
def capturable(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """As Adam is traced: its step counter is a tensor, which torch has on the CPU only where it compiles."""
    if not isinstance(optimizer, torch.optim.Adam):
        yield
        return
    for group in optimizer.param_groups:
        group["capturable"] = True
    with mock.patch("torch.compiler.is_compiling", return_value=True):
        yield


def plain_step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(module(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def same(one: Any, other: Any) -> bool:
    """Equal to the last bit, through dicts and lists."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return torch.equal(one, other) if isinstance(one, Tensor) else one == other


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [adam])
def test_a_hundred_steps_equal_plain_torch_to_the_bit(optimizer: Make) -> None:
    plain, module = net(), net()
    eager = optimizer([p for p in plain.parameters() if p.requires_grad])
    with placed(module, optimizer) as step:
        assert len(set(step.devices.values())) == 3
        for x, y in batches(100):
            with capturable(eager):
                expected = plain_step(plain, eager, x, y)
            assert torch.equal(step(x, y), expected)
        assert step.steps == 100
        assert same(step.state_dict(), plain.state_dict())
        assert step.state_dict().keys() == plain.state_dict().keys()
        made = step.optimizer_state_dict()
        assert same(made["state"], eager.state_dict()["state"])
        assert same(net().state_dict(), module.state_dict()), "the module is as it was"
        assert step.copy_to() is module
        assert same(module.state_dict(), plain.state_dict())
        assert module.calls == plain.calls == 100, "a buffer that no state_dict has"


def test_state_stays_on_its_devices() -> None:
    result = found(net(), adam)
    assert result.placement is not None
    with placed(net(), adam, result) as step:
        graph, names = result.problem.graph, result.problem.cluster.device_names
        device = result.problem.expand(result.placement.device)
        expected = {graph.op_name[v]: names[device[v]] for v in np.flatnonzero(~graph.kernel)}
        assert step.devices == expected
        for name in ("scale", "embed.weight"):
            assert {step.devices[f"{name}/{key}"] for key in ("exp_avg", "exp_avg_sq", "step")} == {expected[name]}
        step(X, Y)
        held = [set(tensors) for tensors in step._sources]
        step(X, Y)
        assert held == [set(tensors) for tensors in step._sources]
        assert sum(map(len, held)) == len(expected)


@pytest.mark.parametrize("optimizer", [adam])
def test_going_on_from_a_checkpoint_equals_no_interruption(optimizer: Make, tmp_path: Path) -> None:
    """Also with dropout, whose numbers depend on the step; and under another placement."""
    data = list(batches(8))
    with placed(net(0.3), optimizer) as whole:
        losses = [whole(x, y) for x, y in data]
        end = whole.state_dict()
    with placed(net(0.3), optimizer) as first:
        for x, y in data[:4]:
            first(x, y)
        saved = {"net": first.state_dict(), "optimizer": first.optimizer_state_dict(), "steps": first.steps}
        torch.save(saved, tmp_path / "checkpoint.pt")
        first(*data[4])
        assert same(saved["net"], torch.load(tmp_path / "checkpoint.pt")["net"]), "the values are own copies"
    saved = torch.load(tmp_path / "checkpoint.pt")
    other = net(0.3)
    with placed(other, optimizer, found(other, optimizer, cluster="p100x4", seed=5)) as second:
        second.load_state_dict(saved["net"])
        second.load_optimizer_state_dict(saved["optimizer"])
        second.steps = saved["steps"]
        assert [torch.equal(second(x, y), loss) for (x, y), loss in zip(data[4:], losses[4:], strict=True)] == [
            True
        ] * 4
        assert same(second.state_dict(), end)


class TestPlacements:
    """What says where operations go."""

    def losses(self, module: nn.Module, placement: Any, optimizer: Make = sgd) -> list[float]:
        with placed(module, optimizer, placement) as step:
            return [step(x, y).item() for x, y in batches(2)]

    def test_groups_and_priorities(self) -> None:
        def urgent(task: Task, rng: np.random.Generator) -> Placement:
            return task.problem.placement(spread(task, rng).device, rng.permutation(task.problem.g))

        result = found(net(), sgd, policy=urgent, grouper="colocation")
        assert result.placement is not None
        assert result.placement.priority is not None
        assert self.losses(net(), result) == self.losses(net(), found(net(), sgd))
        with pytest.raises(PlacekitError, match=r"has \d+ groups.*\n.*give the result that it comes from"):
            self.losses(net(), result.placement)

    def test_of_another_step(self, tmp_path: Path) -> None:
        result = found(net(), sgd, run_dir=tmp_path / "run")
        for form in (result, tmp_path / "run"):
            with pytest.raises(PlacekitError, match=r"another (step|graph)"):
                self.losses(net(), form, adam)


class Several(nn.Module):
    """Arguments by name, nested, with a constant among them; and one tensor in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, pair: tuple[Tensor, Tensor], *, factor: float, again: Tensor) -> Tensor:
        return self.linear(pair[0] * factor).sum() + pair[1].mean() * again.sum()


def test_nested_inputs_and_a_module_that_returns_its_loss() -> None:
    torch.manual_seed(1)
    module = Several()
    a, b = torch.randn(2, 3), torch.randn(3, 2)
    inputs = {"pair": (a, b.T), "factor": 2.0, "again": a}
    result = placekit_core.place(module, inputs=inputs, optimizer=sgd, cluster=CLUSTER, policy=spread, budget=1)
    with PlacedStep(module, sgd, None, result, inputs=inputs) as step:
        assert torch.equal(step(inputs), module(**inputs).detach())
        step.copy_to()
        c, d = torch.randn(2, 3), torch.randn(2, 3)  # d has other strides than b.T
        again = {"pair": (c, d), "factor": 2.0, "again": c.clone()}
        assert step(again).item() == pytest.approx(module(**again).item())
        with pytest.raises(PlacekitError, match=r"an input of the step is 2\.0, and cannot become 3\.0"):
            step({**again, "factor": 3.0})
        with pytest.raises(PlacekitError, match=r"'input\.pair\.0' and another input were one tensor"):
            step({**again, "again": d})
        with pytest.raises(PlacekitError, match="nested in another way"):
            step({"pair": (c, d), "factor": 2.0})
        assert step.steps == 2


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X[:8], Y[:8], r"'input.0' is torch.int64 \(8,\), but the step was made for torch.int64 \(16,\)"),
        (X, Y.float(), r"'target.0' is torch.float32 \(16,\)"),
        ((X, X), Y, "nested in another way"),
        (X, X.tolist(), "nested in another way"),
        (None, Y, "'input.0' is NoneType|nested in another way"),
    ],
)
def test_other_inputs_than_the_traced_ones(x: Any, y: Any, message: str) -> None:
    with placed(net(), sgd) as step, pytest.raises(PlacekitError, match=message):
        step(x, y)


def test_state_that_does_not_fit() -> None:
    with placed(net(), sgd) as step:
        before = step.state_dict()
        for state, message in (
            ({k: v for k, v in before.items() if k != "scale"}, "lacks 'scale'"),
            ({**before, "other": X}, "has 'other', which the module does not have"),
            ({**before, "scale": torch.ones(3)}, r"scale has shape \(3,\) here, but \(8,\) in the step"),
        ):
            with pytest.raises(PlacekitError, match=message):
                step.load_state_dict(state)
        own = step.optimizer_state_dict()
        with pytest.raises(
            PlacekitError, match=r"this state has \[1\] parameters by group, but the optimizer has \[\d+\]"
        ):
            step.load_optimizer_state_dict(sgd([nn.Parameter(X.float())]).state_dict())
        other = copy.deepcopy(own)
        other["state"][0]["momentum_buffer"] = torch.ones(2)
        with pytest.raises(PlacekitError, match="scale/momentum_buffer has shape"):
            step.load_optimizer_state_dict(other)
        assert same(step.state_dict(), before)


def test_another_learning_rate_is_another_step() -> None:
    data = list(batches(6))
    plain = net()
    eager = sgd([p for p in plain.parameters() if p.requires_grad])
    expected = [plain_step(plain, eager, x, y) for x, y in data[:3]]
    eager.param_groups[0]["lr"] = 0.01
    expected += [plain_step(plain, eager, x, y) for x, y in data[3:]]

    def slow(parameters: Any) -> torch.optim.Optimizer:
        return sgd(parameters, lr=0.01)

    with placed(net(), sgd) as first, placed(net(), slow) as second:
        losses = [first(x, y) for x, y in data[:3]]
        second.load_state_dict(first.state_dict())
        with pytest.warns(UserWarning, match=r"lr=0\.05; the step keeps its own lr=0\.01"):
            second.load_optimizer_state_dict(first.optimizer_state_dict())
        losses += [second(x, y) for x, y in data[3:]]
    assert all(map(torch.equal, losses, expected))


def test_a_step_that_fails_changes_nothing() -> None:
    with placed(net(), sgd) as step:
        before = step.state_dict()
        with pytest.raises(IndexError):
            step(X + 20, Y)
        assert step.steps == 0
        assert same(step.state_dict(), before)
        plain = net()
        eager = sgd([p for p in plain.parameters() if p.requires_grad])
        assert torch.equal(step(X, Y), plain_step(plain, eager, X, Y))


def test_machines() -> None:
    result = found(net(), sgd)
    machine = CPUMachine(3)
    with placed(net(), sgd, result, machine=machine) as step:
        loss = step(X, Y)
    with placed(net(), sgd, result, machine=machine) as again:
        assert torch.equal(again(X, Y), loss), "it was not closed by the first step"
    machine.close()
    with pytest.raises(PlacekitError, match="for 3 devices, but the machine has 2"):
        placed(net(), sgd, result, machine=CPUMachine(2))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_gpus() -> None:
    """As many devices as there are on the GPUs at hand: the losses of plain torch on one, but for rounding."""
    from placekit_cuda.cuda import CUDAMachine

    plain = net().cuda()
    eager = sgd([p for p in plain.parameters() if p.requires_grad])
    machine = CUDAMachine([d % torch.cuda.device_count() for d in range(3)])
    with placed(net(), sgd, machine=machine) as step:
        for x, y in batches(20):
            assert step(x, y).item() == pytest.approx(plain_step(plain, eager, x.cuda(), y.cuda()).item(), rel=1e-4)
        expected, state = plain.state_dict(), step.state_dict()
        for key, value in state.items():
            assert value.device.type == "cpu"
            torch.testing.assert_close(value, expected[key].cpu(), rtol=1e-3, atol=1e-5)
        first = step(X.cuda(), Y.cuda())
        assert first.is_cuda
        step.load_state_dict(state)
        step.copy_to(plain)
    machine.close()


def test_a_step_needs_an_optimizer() -> None:
    with pytest.raises(PlacekitError, match="a training step needs an optimizer"):
        placed(net(), None, "nowhere")  # type: ignore[arg-type]
