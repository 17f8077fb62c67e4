"""The contract of backends, for `cpu`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
import pytest
import torch
from placekit_cuda.backend import CPUBackend

from placekit_core.grouping import Grouping
from placekit_core.interfaces import Executable
from placekit_core.problem import Problem
from placekit_core.testing.backends import BackendContract
from placekit_core.testing.contract import Make

EinsumImporter = pytest.importorskip("placekit_einsum.importer").EinsumImporter

torch.set_num_threads(1)


def problem(devices: int = 2, memory_bytes: int | None = None) -> tuple[Problem, Executable]:
    """A small product of matrices on the machine that the backend sees."""
    program = EinsumImporter(program="chainmm", sizes={"n": 32}).load()[0]
    cluster = CPUBackend(devices=devices, memory_bytes=memory_bytes).devices()
    assert program.executable is not None
    return Problem.of(program.graph, cluster, Grouping.colocated(program.graph)), program.executable


class TestCPU(BackendContract):
    clock_s = 1e-3

    @pytest.fixture
    def make(self) -> Make:
        return partial(CPUBackend, steps=1, devices=2)

    def problems(self, make: Make) -> Iterable[tuple[Problem, Executable | None]]:
        return [problem()]

    def too_large(self, make: Make) -> tuple[Problem, Executable | None]:
        need = int(np.ceil(problem()[0].graph.persistent_bytes.sum()))
        return problem(memory_bytes=need + 512)
