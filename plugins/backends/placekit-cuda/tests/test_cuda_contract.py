"""The contract of backends, for `cpu`; and what `cuda` says before it runs anything."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from placekit_cuda.backend import CPUBackend, CUDABackend
from placekit_cuda.cuda import CUDAMachine
from placekit_testing.backends import BackendContract
from placekit_testing.contract import Make

from placekit_core import BackendError, Executable, Grouping, Problem

EinsumImporter = pytest.importorskip("placekit_einsum.importer").EinsumImporter

torch.set_num_threads(1)


def problem(devices: int = 2, memory_bytes: int | None = None) -> tuple[Problem, Executable]:
    """A small product of matrices on the machine that the backend sees."""
    program = EinsumImporter(program="chainmm", sizes={"n": 32}).load()[0]
    cluster = CPUBackend(devices=devices, memory_bytes=memory_bytes).devices()
    assert program.executable is not None
    return Problem.of(program.graph, cluster, Grouping.colocated(program.graph)), program.executable


@pytest.mark.slow
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


class AtOnce:
    """A stand-in for `torch.cuda` and its streams and events: what is launched is done at once, on the processor."""

    Stream: ClassVar[Any]
    Event: ClassVar[Any]
    device = SimpleNamespace(index=0)

    def __init__(self, *about: Any, **settings: Any) -> None:
        self.time_s = 0.0

    def record(self, stream: Any) -> None:
        self.time_s = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: AtOnce) -> float:
        return 1e3 * (end.time_s - self.time_s)

    def wait_event(self, event: Any) -> None:
        """It is reached."""

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def get_device_properties(gpu: int) -> Any:
        return SimpleNamespace(name="emulated", total_memory=2**28)

    @staticmethod
    def mem_get_info(gpu: int) -> tuple[int, int]:
        return 2**28, 2**28

    @staticmethod
    def memory_reserved(gpu: int) -> int:
        return 0

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def set_device(device: int) -> None:
        """It is the only one."""

    @staticmethod
    def current_stream(device: Any) -> Any:
        return AtOnce()

    @staticmethod
    def set_stream(stream: Any) -> None:
        """All streams do what they are given at once."""

    @staticmethod
    def _sleep(cycles: int) -> None:
        """Nobody waits for what is done at once."""

    @staticmethod
    def empty_cache() -> None:
        """Nothing is cached."""


AtOnce.Stream = AtOnce.Event = AtOnce


class OnProcessor(CUDAMachine):
    def torch_device(self, device: int) -> torch.device:
        return torch.device("cpu")

    def keep(self, value: torch.Tensor, stream: Any) -> None:
        """Memory is given back when nobody has it."""


class TestCUDA(BackendContract):
    """On a GPU if there is one, else on a stand-in for `torch.cuda`."""

    clock_s = 1e-3

    @pytest.fixture
    def make(self, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Make:
        # one cache for all checks: measuring the rates of the machine takes longer than most of them
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp()))
        if not torch.cuda.is_available():
            monkeypatch.setattr(CUDABackend, "cuda", AtOnce)
            monkeypatch.setattr("placekit_cuda.backend.CUDAMachine", OnProcessor)
        return partial(CUDABackend, steps=1, devices=2)

    def problems(self, make: Make) -> Iterable[tuple[Problem, Executable | None]]:
        program = EinsumImporter(program="chainmm", sizes={"n": 32}).load()[0]
        cluster = make().devices()
        return [(Problem.of(program.graph, cluster, Grouping.colocated(program.graph)), program.executable)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_begun(placekit: Any) -> None:
    """One error that says what to do instead, before anything is imported, and exit code 1."""
    program = ("importer=torch", "importer.module=nowhere:make")
    done = placekit("run", "+policy=annealing", "+backend=cuda", "run_dir=run", *program)
    assert (done.code, done.out) == (1, "")
    assert "backend 'cuda' needs a GPU" in done.err
    assert "backend=cpu" in done.err
    assert "backend=simulator" in done.err
    assert "Traceback" not in done.err
    assert "nowhere" not in done.err, "the program was imported first"


def test_options_of_another_machine_are_refused() -> None:
    program = EinsumImporter(program="chainmm", sizes={"n": 32}).load()[0]
    problem = Problem.of(program.graph, CPUBackend(devices=2).devices())
    with pytest.raises(BackendError, match=r"backend\.devices=3 sets how many .* cluster here is 'cpu2' with 2"):
        CPUBackend(devices=3).open(problem, program.executable)
    with pytest.raises(BackendError, match=r"backend\.memory_bytes=7 is for cluster=auto"):
        CPUBackend(memory_bytes=7).open(problem, program.executable)


def test_gpus_that_are_not_there() -> None:
    with pytest.raises(BackendError, match="there is no GPU 2 here: torch sees 2"):
        CUDAMachine([0, 2], cuda=TwoGPUs)


class TwoGPUs:
    """What the backend asks `torch.cuda` before it runs anything."""

    memory = (80 * 2**30, 24 * 2**30 + 5)

    @classmethod
    def get_device_properties(cls, gpu: int) -> Any:
        return SimpleNamespace(name=f"NVIDIA A-{gpu}", total_memory=cls.memory[gpu], uuid=f"GPU-{gpu}")

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return 2


def test_devices_share_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CUDABackend, "cuda", TwoGPUs)
    assert CUDABackend().gpus(5) == [0, 1, 0, 1, 0]
    assert CUDABackend(gpus=[1, 1, 0]).gpus(3) == [1, 1, 0]
    with pytest.raises(BackendError, match=r"gpus=\[0, 1\] is for 2 devices, but the cluster has 3"):
        CUDABackend(gpus=[0, 1]).gpus(3)
    with pytest.raises(BackendError, match=r"(?s)gpus=\[0, 2\] names GPUs that are not there.*0\.\.1"):
        CUDABackend(gpus=[0, 2]).gpus(2)


def test_memory_that_others_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shared(TwoGPUs):
        @classmethod
        def mem_get_info(cls, gpu: int) -> tuple[int, int]:
            return cls.memory[gpu] - 13 * 2**30 * gpu - 2**29, cls.memory[gpu]

        @staticmethod
        def memory_reserved(gpu: int) -> int:
            return 2**30

    monkeypatch.setattr(CUDABackend, "cuda", Shared)
    assert CUDABackend().others() == "12.00 GiB of cuda:1"
    assert CUDABackend(gpus=[0, 0]).others() == ""
    assert CUDABackend(isolation="process").others() == ""
    assert CPUBackend().others() == ""
