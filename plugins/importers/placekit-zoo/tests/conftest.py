"""What the tests of all networks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from placekit_testing.sequential import run_sequential
from placekit_zoo.base import ZooImporter


def check_steps(make: Callable[..., ZooImporter], options: dict[str, Any]) -> None:
    """Two training steps of the imported program equal eager torch to the last bit: loss, parameters, buffers."""
    network = make(**options, seed=5)
    program = network.load()[0]
    values = program.executable.initial()
    torch.manual_seed(5)
    step = network.step()
    (positional, keyword), others = step.arguments, step.loss_arguments
    optimizer = step.optimizer(step.module.parameters())
    for group in optimizer.param_groups:
        group.update({"foreach": False} | ({"capturable": True} if "capturable" in group else {}))
    for i in range(2):
        values, results = run_sequential(program, values, i)
        optimizer.zero_grad()
        output = step.module(*positional, **keyword)
        loss = output if step.loss is None else step.loss(output, *others)
        loss.backward()
        with mock.patch("torch.compiler.is_compiling", return_value=True):
            optimizer.step()
        assert torch.equal(results["loss"], loss.detach())
        found = {program.graph.op_name[program.graph.tensor_producer[t]]: v for t, v in values.items()}
        for name, value in [*step.module.named_parameters(), *step.module.named_buffers()]:
            assert torch.equal(found[name], value), name


@pytest.fixture
def steps_equal_eager() -> Callable[[Callable[..., ZooImporter], dict[str, Any]], None]:
    """A check for `(importer, options)`, see `check_steps`."""
    return check_steps
