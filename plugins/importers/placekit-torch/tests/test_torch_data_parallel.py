"""Towers of a module: a step on parts of the batch equals eager training on the whole batch, up to rounding."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from placekit_testing.sequential import run_sequential
from placekit_torch import Step, data_parallel, import_module
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from placekit_core import ImporterError, Program, load_cluster, place
from placekit_core.contracts.problem import Problem
from placekit_core.run.config import conf_dir

torch.set_num_threads(1)  # the tensors are small, and tests run side by side

MODEL = """
import torch
from torch import nn
from placekit_torch import Step

def step():
    net = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 2))
    return Step(net, torch.randn(8, 6), nn.functional.mse_loss, torch.randn(8, 2), torch.optim.Adam)
"""


class Attention(nn.Module):
    """A decoder of one layer; its output weights are those of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16, bias=False)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return self.head(self.norm(x)).flatten(0, 1)


def _decoder(batch: int) -> Step:
    tokens = torch.randint(0, 20, (batch, 7))
    return Step(Attention(), tokens, lambda y, t: F.cross_entropy(y, t.flatten()), tokens.roll(-1, 1))


def _convolutions(batch: int) -> Step:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5))
    return Step(net, torch.randn(batch, 3, 8, 8), F.cross_entropy, torch.randint(0, 5, (batch,)))


def _layers(batch: int) -> Step:
    net = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.LayerNorm(9), nn.Linear(9, 2, bias=False))
    return Step(net, {"input": torch.randn(batch, 6)}, F.mse_loss, torch.randn(batch, 2))


NETS: dict[str, Callable[[int], Step]] = {"layers": _layers, "convolutions": _convolutions, "decoder": _decoder}
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3),  # a small gradient over itself would enlarge rounding
}


def _made(net: str, batch: int, optimizer: str = "") -> Step:
    """The step in float64, so that an error of the method is far larger than rounding."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        step = NETS[net](batch)
    finally:
        torch.set_default_dtype(before)
    step.optimizer = OPTIMIZERS.get(optimizer)
    return step


def _towers(step: Step, **options: Any) -> Program:
    return import_module(
        step.module, step.inputs, loss=step.loss, targets=step.targets, optimizer=step.optimizer, name="net", **options
    )


def _named(program: Program) -> dict[str, int]:
    return {program.graph.op_name[v]: int(program.graph.output_ptr[v]) for v in range(program.graph.n)}


@pytest.mark.parametrize(("net", "optimizer", "shares", "bucket_bytes"), [
    ("layers", "adamw", [3, 1], 400), ("layers", "momentum", [1, 1], 25 * 2**20), ("convolutions", "momentum", [2, 1, 1], 1000),
    pytest.param("decoder", "momentum", [1, 2, 5], 2**12, marks=pytest.mark.slow),
])  # fmt: skip
def test_three_steps_equal_training_on_the_whole_batch(
    net: str, optimizer: str, shares: list[int], bucket_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager training for SGD; for AdamW the imported step, because it counts steps in float32, and eager AdamW does not."""
    monkeypatch.setattr(data_parallel, "BUCKET_BYTES", bucket_bytes)
    step = _made(net, 8, optimizer)
    program, whole, module = _towers(step, towers=shares), _towers(step), copy.deepcopy(step.module)
    eager, (arguments, keywords) = OPTIMIZERS[optimizer](module.parameters()), step.arguments
    values, expected = program.executable.initial(), whole.executable.initial()
    for number in range(3):
        values, results = run_sequential(program, values, number)
        expected, wanted = run_sequential(whole, expected, number)
        eager.zero_grad()
        loss = step.loss(module(*arguments, **keywords), *step.loss_arguments)  # type: ignore[misc]
        loss.backward()
        eager.step()
        torch.testing.assert_close(results["loss"], wanted["loss"], rtol=1e-11, atol=0)
    tensors, own = _named(program), _named(whole)
    for name, parameter in module.named_parameters():
        found = [values[tensors[f"tower{i}.{name}"]] for i in range(len(shares))]
        reference = parameter.detach() if optimizer == "momentum" else expected[own[name]]
        torch.testing.assert_close(found[0], reference, rtol=1e-10, atol=1e-10)
        assert all(torch.equal(found[0], other) for other in found), "all towers have the same weights"


DISTRIBUTED = """
import os
import sys
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
module = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.GELU(), torch.nn.LayerNorm(9), torch.nn.Linear(9, 2, bias=False))
module.double().load_state_dict(torch.load(f"{folder}/first.pt"))
inputs, targets = torch.load(f"{folder}/batch.pt")
parallel = DistributedDataParallel(module)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
rows = slice(4 * rank, 4 * rank + 4)
for _ in range(3):
    optimizer.zero_grad()
    F.mse_loss(parallel(inputs[rows]), targets[rows]).backward()
    optimizer.step()
torch.save(module.state_dict(), f"{folder}/last{rank}.pt")
torch.distributed.barrier()
os._exit(0)  # threads of gloo sometimes abort a process that ends otherwise
"""


@pytest.mark.slow
def test_equal_towers_are_distributed_data_parallel(tmp_path: Path) -> None:
    """The same weights after three steps as two processes of PyTorch's own."""
    step = _made("layers", 8, "momentum")
    torch.save(step.module.state_dict(), tmp_path / "first.pt")
    torch.save((step.inputs["input"], step.targets), tmp_path / "batch.pt")
    command = [sys.executable, "-c", DISTRIBUTED]
    processes = [subprocess.Popen([*command, str(rank), str(tmp_path)]) for rank in range(2)]
    assert [p.wait(300) for p in processes] == [0, 0]
    program = _towers(step, towers=2)
    values = program.executable.initial()
    for number in range(3):
        values, _ = run_sequential(program, values, number)
    tensors = _named(program)
    for rank in range(2):
        for name, value in torch.load(tmp_path / f"last{rank}.pt").items():
            torch.testing.assert_close(values[tensors[f"tower{rank}.{name}"]], value, rtol=1e-12, atol=1e-12)


def test_without_optimizer_the_gradients_are_those_of_the_whole_batch() -> None:
    step = _made("layers", 8)
    program = _towers(step, towers=[3, 1])
    _, results = run_sequential(program, program.executable.initial())
    step.loss(step.module(**step.inputs), step.targets).backward()  # type: ignore[misc]
    for name, parameter in step.module.named_parameters():
        for i in range(2):
            torch.testing.assert_close(results[f"tower{i}.gradient.{name}"], parameter.grad, rtol=1e-12, atol=1e-12)


def test_bytes_between_the_towers_are_those_of_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of N towers sends 2 (N - 1) / N times the bytes of the gradients, and the loss."""
    monkeypatch.setattr(data_parallel, "BUCKET_BYTES", 2**30)
    step = _made("layers", 8, "momentum")
    g = _towers(step, towers=4).graph
    tower = np.asarray(g.columns["tower"])
    sent = np.zeros(4)
    for t, to in {(int(t), int(tower[v])) for t, v in zip(g.input_tensor, g.edge_op, strict=True)}:
        source = tower[g.tensor_producer[t]]
        sent[source] += g.tensor_bytes[t] if source != to else 0
    size = sum(p.numel() * 8 for p in step.module.parameters())
    assert sent.sum() == pytest.approx(4 * 2 * 3 / 4 * size + 3 * 8)


def test_costs_follow_the_parts_of_the_batch() -> None:
    step = _made("layers", 8, "momentum")
    whole, g = _towers(step).graph, _towers(step, towers=[3, 1]).graph
    tower, forward = np.asarray(g.columns["tower"]), g.kernel & (g.phase == 0)
    flops = [g.flops[forward & (tower == i)].sum() for i in range(2)]
    assert flops[0] == 3 * flops[1]
    assert sum(flops) == whole.flops[whole.kernel & (whole.phase == 0)].sum()
    assert g.persistent_bytes[(g.op_type.is_value("parameter"))].sum() == 2 * sum(
        p.numel() * 8 for p in step.module.parameters()
    )
    assert g.attributes["shares"] == [3, 1]
    back = np.asarray(g.columns["forward_of"])
    assert (tower[back[back >= 0]] == tower[back >= 0]).all(), "gradients belong to operations of their own tower"


class Recomputed(nn.Module):
    """Two layers that are computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def test_a_tower_recomputes_what_it_computed() -> None:
    """What a recomputation repeats, and the gradient that it waits for, are in its own tower."""
    step = Step(Recomputed(), torch.randn(8, 6), F.mse_loss, torch.randn(8, 6))
    graph = _towers(step, towers=2).graph
    tower, forward = graph.columns["tower"], graph.columns["forward_of"]
    repeats = np.flatnonzero(forward >= 0)
    assert len(repeats) > 0
    np.testing.assert_array_equal(tower[repeats], tower[forward[repeats]])
    for v in repeats.tolist():
        read = [u for u in graph.tensor_producer[graph.inputs(v)].tolist() if "all_reduce" not in graph.op_name[u]]
        assert {int(tower[u]) for u in read} == {int(tower[v])}


def test_policy_data_parallel_places_a_tower_on_each_device() -> None:
    cluster = load_cluster(conf_dir() / "cluster" / "rtx4090_3090.yaml")
    result = place(_made("layers", 8, "momentum"), cluster=cluster, policy="data_parallel", towers=[3, 1])
    [program] = result.programs
    problem: Problem = program.problem
    assert program.placement is not None
    device = program.placement.device[problem.grouping.group_of]
    assert (device == np.asarray(problem.graph.columns["tower"])).all()


def test_an_input_without_the_batch_is_given_whole_if_that_is_said() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 1)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.linear(x.transpose(0, 1) * mask).mean()

    inputs = (torch.randn(3, 8, 5), torch.randn(1, 5))
    with pytest.raises(ImporterError, match=r"'input.1' cannot be divided among towers: its dimension 0 has 1") as e:
        import_module(Masked(), inputs, towers=2, batch_dims={"input.0": 1})
    assert "importer.batch_dims={input.1: null}" in e.value.hint
    graph = import_module(Masked(), inputs, towers=2, batch_dims={"input.0": 1, "input.1": None}).graph
    shapes = {graph.op_name[v]: graph.shape(int(graph.output_ptr[v])) for v in range(10)}
    assert (shapes["tower0.input.0"], shapes["tower1.input.1"]) == ((3, 4, 5), (1, 5))


def test_mistakes() -> None:
    for options, said, hint in (
        ({"towers": 3}, r"8 rows of 'input\.input' cannot be divided 1:1:1", "a batch of 6 or 9 can"),
        ({"towers": [3, 0]}, "towers", ""),
        ({"towers": 2, "batch_dims": {"x": 0}}, "batch_dims names 'x', which is not an input", "input.input, target.0"),
        ({"towers": 2, "batch_dims": {"target.0": 7}}, r"'target\.0' has no dimension 7", ""),
    ):
        with pytest.raises(ImporterError, match=said) as e:
            _towers(_made("layers", 8, "momentum"), **options)
        assert hint in e.value.hint


@pytest.mark.slow
def test_a_run_executes_towers_on_threads(placekit: Callable) -> None:
    Path("towers_run.py").write_text(MODEL)
    code, out, _ = placekit(
        "run", "importer=torch", "importer.module=towers_run:step", "importer.towers=[3,1]", "policy=random",
        "backend=cpu", "backend.devices=2", "budget.evaluations=2", "run_dir=two",
    )  # fmt: skip
    assert code == 0
    assert "random on cpu2, seed 0, measured" in out
    code, _, err = placekit("apply", "two")
    assert code == 1
    assert "--format device_map cannot express data parallelism: every device has the whole module" in err
    assert placekit("apply", "two", "--format", "json").code == 0
