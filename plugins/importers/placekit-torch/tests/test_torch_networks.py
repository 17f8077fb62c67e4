"""Imported training steps give what eager torch gives, to the last bit; and are as large as they should be."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from placekit_testing.sequential import run_sequential
from placekit_testing.speed import mostly_slow
from placekit_torch import Step, import_module
from placekit_torch.codegen import operation_seed
from torch import Tensor
from torch_networks import NETWORKS, OPTIMIZERS, small

from placekit_core import Program

torch.set_num_threads(1)  # the tensors are small, and tests run side by side


@contextmanager
def as_imported(program: Program, step: int) -> Iterator[None]:
    """Eager torch as it is traced: optimisers capturable, dropout seeded by operation."""
    seeds = iter([operation_seed(step, op) for op in sorted(program.executable.random_ops)])
    dropout = F.dropout

    def seeded(x: Tensor, p: float, training: bool, inplace: bool = False) -> Tensor:
        if training and p > 0:
            torch.manual_seed(next(seeds))
        return dropout(x, p, training, inplace)

    with (
        mock.patch("torch.nn.functional.dropout", seeded),
        mock.patch("torch.compiler.is_compiling", return_value=True),
    ):
        yield


def capturable(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    for group in optimizer.param_groups:
        group["foreach"] = True  # torch's default on GPUs, and the importer's
        if "capturable" in group:
            group["capturable"] = True
    return optimizer


def by_name(program: Program, values: dict[int, Tensor]) -> dict[str, Tensor]:
    return {program.graph.op_name[program.graph.tensor_producer[t]]: v for t, v in values.items()}


def check_equal_to_eager(
    step: Step, optimizer: Callable[..., Any], steps: int = 3, program: Program | None = None
) -> Program:
    if program is None:
        program = import_module(step.module, step.inputs, loss=step.loss, targets=step.targets, optimizer=optimizer)
    module = copy.deepcopy(step.module)
    eager = capturable(optimizer([p for p in module.parameters() if p.requires_grad]))
    values = program.executable.initial()
    before = {k: v.clone() for k, v in step.module.state_dict().items()}
    for i in range(steps):
        values, results = run_sequential(program, values, i)
        with as_imported(program, i):
            eager.zero_grad()
            loss = step.loss(module(*step.arguments[0]), *step.loss_arguments)
            loss.backward()
            eager.step()
        found = by_name(program, values)
        assert torch.equal(results["loss"], loss.detach())
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            assert torch.equal(found[name], value), f"{name} after step {i}"
        for name, parameter in module.named_parameters():
            for key, value in eager.state[parameter].items() if parameter in eager.state else ():
                if isinstance(value, Tensor):
                    assert torch.equal(found[f"{name}/{key}"], value), f"{name}/{key} after step {i}"
    assert all(torch.equal(before[k], v) for k, v in step.module.state_dict().items()), "the user's module changed"
    assert not any(p.grad is not None for p in step.module.parameters())
    return program


@pytest.mark.parametrize("network", mostly_slow(NETWORKS, ["mlp", "llama", "dropout"]))
def test_step_equals_eager(network: str) -> None:
    torch.manual_seed(2)
    check_equal_to_eager(NETWORKS[network](), OPTIMIZERS["adamw"])


@pytest.mark.parametrize("network", ["lstm", "llama"])
def test_inference_equals_eager(network: str) -> None:
    torch.manual_seed(5)
    step = NETWORKS[network]()
    program = import_module(step.module, step.inputs, mode="inference")
    assert set(np.asarray(program.graph.phase)) == {0}
    _, results = run_sequential(program, program.executable.initial())
    with torch.no_grad(), as_imported(program, 0):
        assert torch.equal(results["output.0"], step.module.eval()(*step.arguments[0]))


@pytest.mark.parametrize("network", ["lstm", "odd"])
def test_operations_run_one_by_one_on_copies_of_their_inputs(network: str) -> None:
    """As on many devices: each operation gets copies (with strides) of the tensors that its edges name, views too."""
    torch.manual_seed(6)
    step = NETWORKS[network]()
    program = import_module(
        step.module, step.inputs, loss=step.loss, targets=step.targets, optimizer=OPTIMIZERS["momentum"]
    )
    graph, executable = program.graph, program.executable
    first = executable.initial()
    expected, _ = run_sequential(program, first, step=7)
    values = dict(first)
    for tensor, base in executable.views.items():
        if base in values:
            values[tensor] = executable.view(tensor)(values[base])
    for op in np.flatnonzero(graph.kernel).tolist():
        sent = {}
        for t in graph.inputs(op).tolist():
            value = values[t]
            sent[t] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)
            assert value.numel() * value.element_size() == graph.tensor_bytes[t]
            assert tuple(value.shape) == graph.shape(t)
        made = executable.compile([op])(sent, 7)
        values.update(made)
        for t in graph.outputs(op):
            if t in executable.views:
                assert graph.tensor_storage[t] == graph.tensor_storage[executable.views[t]]
                values[t] = executable.view(t)(values[executable.views[t]])
        assert set(graph.outputs(op)) == {*made, *(t for t in graph.outputs(op) if t in executable.views)}
    for old, value in expected.items():
        assert torch.equal(values[executable.updates.get(old, old)], value)


def test_fused_runs_equal_the_whole() -> None:
    torch.manual_seed(7)
    step = NETWORKS["lstm"]()
    program = import_module(
        step.module, step.inputs, loss=step.loss, targets=step.targets, optimizer=OPTIMIZERS["adam"]
    )
    graph, executable = program.graph, program.executable
    values = executable.initial()
    expected, results = run_sequential(program, values)
    kernels = np.flatnonzero(graph.kernel)
    for run in np.array_split(kernels, 9):
        inside = set(run.tolist())
        needed = [t for op in run for t in graph.outputs(op) if set(graph.consumers(t).tolist()) - inside]
        keep = {executable.views.get(t, t) for t in needed} | set(executable.updates.values())
        keep |= set(executable.results.values())
        made = executable.compile(run.tolist(), keep=keep)(values)
        assert set(made) <= keep
        values = {**values, **made}
    assert torch.equal(executable.result("loss", values), results["loss"])
    for old, value in expected.items():
        assert torch.equal(values[executable.updates.get(old, old)], value)


def test_random_operations_depend_on_step_and_operation_only() -> None:
    step = small(0.3)
    program = import_module(step.module, step.inputs, loss=step.loss, targets=step.targets)
    random = sorted(program.executable.random_ops)
    assert [program.graph.op_type[op] for op in random] == ["aten.native_dropout"] * 2
    values = program.executable.initial()
    state = torch.random.get_rng_state()
    losses = [run_sequential(program, values, s)[1]["loss"].item() for s in (0, 1, 0)]
    assert losses[0] == losses[2] != losses[1]
    assert torch.equal(state, torch.random.get_rng_state())
    tensor = program.graph.inputs(random[0])[0]
    one, two = program.executable.compile([random[0]]), program.executable.compile([random[0]])
    x = torch.randn(program.graph.shape(tensor))
    dropped = [next(iter(f({int(tensor): x}, 5).values())) for f in (one, two, one)]
    assert torch.equal(dropped[0], dropped[1])
    assert torch.equal(dropped[0], dropped[2])
    assert len({operation_seed(s, o) for s in range(20) for o in range(500)}) == 10000
