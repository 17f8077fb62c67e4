"""What every workload becomes on four GPUs, without a GPU: the placed step on fake tensors of `cuda:0` to `cuda:3`.

Fake tensors have shapes, strides, types and devices, and no values: an operation that reads from another device, or makes
something on the wrong one, is an error as it would be on GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from placekit_cuda.engine import Engine
from placekit_cuda.machine import Event, Machine, Stream, nbytes
from placekit_cuda.plan import plan
from placekit_testing.speed import mostly_slow
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from placekit_core import Grouping, Program, installed
from placekit_core.cli.compose import assembled

pytest.importorskip("placekit_torch")
pytest.importorskip("placekit_zoo")
pytest.importorskip("placekit_einsum")

torch.set_num_threads(1)


class Reached(Event):
    """All before it is done."""

    def wait(self, timeout_s: float | None = None) -> bool:
        return True

    def since(self, other: Any) -> float:
        return 0.0


class Now(Stream):
    """Does what it is given at once, on the host."""

    def launch(self, work: Callable[[], None]) -> None:
        work()

    def record(self, timed: bool = False) -> Event:
        return Reached()

    def wait(self, event: Any) -> None:
        """It is reached."""


class FakeMachine(Machine):
    """GPUs that hold fake tensors."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.streams = {key: Now() for key in np.ndindex(size, size)}

    @property
    def size(self) -> int:
        return self._size

    def torch_device(self, device: int) -> torch.device:
        return torch.device("cuda", device)

    def compute(self, device: int) -> Stream:
        return self.streams[device, device]

    def link(self, src: int, dst: int) -> Stream:
        return self.streams[src, dst]

    def clock(self, stream: Any) -> int:
        return 0

    def copy(self, value: torch.Tensor, src: int, dst: int) -> torch.Tensor:
        assert value.device == self.torch_device(src), f"a tensor on {value.device} is sent from {src}"
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=self.torch_device(dst))

    def notify(self, stream: Any, done: Callable[[BaseException | None], None]) -> None:
        done(None)

    def close(self) -> None:
        pass


class Copies(TorchFunctionMode):
    """`copy_` checks devices and does nothing: a torch without CUDA refuses it also for fake tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.copy_:
            assert args[0].device == args[1].device, f"a copy from {args[1].device} to {args[0].device} within a kernel"
            return args[0]
        return func(*args, **(kwargs or {}))


def lowered(found: Program, devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a random placement of `found` on fake tensors, and check where everything is."""
    graph, executable = found.graph, found.executable
    assert executable is not None
    grouping = Grouping.colocated(graph)
    device = np.random.default_rng(0).integers(0, devices, grouping.count).astype(np.int16)[grouping.group_of]
    order = [int(v) for v in graph.topological_order if graph.kernel[v]]
    made = plan(graph, executable, device, devices, order, keep=executable.results.values())

    class Generator(torch.Generator):  # those of CUDA are not there
        def __new__(cls, device: Any) -> Any:
            return torch._C.Generator.__new__(torch._C.Generator, "cpu")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "Generator", Generator)
        engine = Engine(made, executable, FakeMachine(devices))
    # where there is a GPU, torch would use each device that a fake tensor is on; fewer may be there
    monkeypatch.setattr(fake_tensor, "init_gpu_context", lambda device: None)
    with FakeTensorMode(), torch.no_grad(), Copies():
        values = executable.initial()
        sources = [{t: on(values[t], d) for t in tensors} for d, tensors in enumerate(made.sources)]
        step = engine.run(sources)
    assert {t: v.device.index for t, v in step.kept.items()} == made.home
    for old, new in executable.updates.items():
        assert (step.kept[new].shape, step.kept[new].stride()) == (values[old].shape, values[old].stride())
        assert nbytes(step.kept[new]) == nbytes(values[old])


def on(value: torch.Tensor, device: int) -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=f"cuda:{device}")


def programs(options: Sequence[str]) -> list[Program]:
    loaded: list[Program] = assembled(list(options), installed()).build("importer").load()
    return [p for p in loaded if p.executable is not None]


WORKLOADS = ["chainmm_small", "rnnlm_small", "llama_layer_small", "nmt_small", "resnet_small"]
TRAINED = {"llama_layer_small", "nmt_small", "resnet_small", "rnnlm_small"}


@pytest.mark.parametrize("workload", mostly_slow(WORKLOADS, WORKLOADS[:2]))
def test_a_workload_lowers(workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mode = ["importer.mode=train"] if workload in TRAINED else []
    for found in programs([f"workload={workload}", *mode])[:2]:  # the programs of a family are alike
        lowered(found, 4, monkeypatch)


def test_a_tensor_on_the_wrong_device_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this test of every workload would say if a transfer were missing."""
    found = programs(["workload=rnnlm_small", "importer.mode=train"])[0]
    monkeypatch.setattr(FakeMachine, "copy", lambda self, value, src, dst: value)
    with pytest.raises(Exception, match="device"):
        lowered(found, 4, monkeypatch)
