"""The CUDA machine without a GPU: its streams and events, under torch's own detector of races between streams.

`FakeCUDA` stands for `torch.cuda`. Kernels run at once, on the processor, so that results are right whatever the waits are;
what happens before what is followed by `torch.cuda._sanitizer`, and memory is reused as the caching allocator does.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from placekit_cuda.backend import CPUBackend
from placekit_cuda.cuda import CUDAMachine, CUDAStream
from placekit_cuda.engine import Engine, Way
from placekit_cuda.placed_step import PlacedStep
from placekit_cuda.plan import plan
from placekit_testing.sequential import run_sequential
from placekit_testing.speed import mostly_slow
from torch.cuda._sanitizer import EventHandler
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import placekit_core
from placekit_core import BackendError, Grouping, Program, installed
from placekit_core.cli.compose import assembled

pytest.importorskip("placekit_zoo")
pytest.importorskip("placekit_einsum")

torch.set_num_threads(1)


@dataclass(eq=False)
class FakeStream:
    """A stream of a GPU; `id` is what the detector calls it."""

    cuda: FakeCUDA
    device: torch.device
    id: int

    def query(self) -> bool:
        return True

    def wait_event(self, event: FakeEvent) -> None:
        with self.cuda.lock:
            self.cuda.handler._handle_event_wait(event.id, self.id)


class FakeEvent:
    """An event that the host finds reached when it has asked a few times."""

    def __init__(self, cuda: FakeCUDA) -> None:
        self.cuda = cuda
        with cuda.lock:
            cuda.events += 1
            self.id = cuda.events
            cuda.handler._handle_event_creation(self.id)

    def record(self, stream: FakeStream) -> None:
        with self.cuda.lock:
            self.cuda.handler._handle_event_record(self.id, stream.id)

    def query(self) -> bool:
        if self.cuda.broken:
            raise RuntimeError("CUDA error: device-side assert triggered")
        with self.cuda.lock:
            reached = self.cuda.random.random() < 0.3
            if reached:
                self.cuda.handler._handle_event_synchronization(self.id)
            return reached


@dataclass(eq=False)
class Block:
    """Memory that a storage has: on a GPU, of the stream that it was allocated on."""

    number: int
    gpu: int
    stream: int
    users: set[int] = field(default_factory=set)


GPUS = 4


class FakeCUDA:
    """What `CUDAMachine` needs of `torch.cuda`."""

    def __init__(self) -> None:
        self.handler, self.lock, self.random = EventHandler(), threading.RLock(), random.Random(0)
        self.events = self.streams = self.blocks = self.reused = 0
        self.broken = False
        self.default: dict[int, FakeStream] = {}
        self.of_thread = threading.local()
        self.live: dict[int, tuple[StorageWeakRef, Block]] = {}
        self.free: dict[int, list[Block]] = defaultdict(list)
        self.races: list[Any] = []
        self.slept: list[tuple[int, FakeStream]] = []

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return GPUS

    def mem_get_info(self, gpu: int) -> tuple[int, int]:
        return 0, 0

    @property
    def current(self) -> dict[int, FakeStream]:
        """The thread's current stream of each GPU for which it is not the default one."""
        found: dict[int, FakeStream] = self.of_thread.__dict__.setdefault("current", {})
        return found

    def current_device(self) -> int:
        return int(getattr(self.of_thread, "device", 0))

    def set_device(self, gpu: int) -> None:
        self.of_thread.device = gpu

    def current_stream(self, device: Any) -> FakeStream:
        with self.lock:
            if device.index not in self.default:
                self.default[device.index] = self.Stream(device)
        return self.current.get(device.index, self.default[device.index])

    def set_stream(self, stream: FakeStream) -> None:
        """Make `stream` the current one of its GPU, and that the current GPU."""
        assert getattr(self.of_thread, "launching", False), "launched outside of `launching`: the stream would stay"
        self.current[stream.device.index] = stream
        self.set_device(stream.device.index)

    def Stream(self, device: torch.device, priority: int = 0) -> FakeStream:
        self.streams += 1
        self.handler._handle_stream_creation(self.streams)
        return FakeStream(self, device, self.streams)

    def Event(self, enable_timing: bool) -> FakeEvent:
        return FakeEvent(self)

    def _sleep(self, cycles: int) -> None:
        """A kernel on the current stream that only takes time."""
        gpu = self.current_device()
        self.slept.append((cycles, self.current_stream(_Index(gpu))))

    def empty_cache(self) -> None:
        """Nothing is cached."""

    def block(self, value: torch.Tensor) -> Block:
        """The memory of a tensor that was seen before."""
        return self.live[value.untyped_storage()._cdata][1]

    def allocate(self, value: torch.Tensor, gpu: int, stream: int) -> Block:
        """Memory for a new storage: the block of one that was dropped, if `stream` has one."""
        for key, (weak, block) in list(self.live.items()):
            if weak.expired():
                del self.live[key]
                if block.users <= {block.stream}:  # or it comes back later than this test lasts
                    block.users = set()
                    self.free[block.stream].append(block)
        if self.free[stream]:
            self.reused += 1
            block = self.free[stream].pop()
        else:
            self.blocks += 1
            self.handler._handle_memory_allocation(self.blocks)
            block = Block(self.blocks, gpu, stream)
        storage = value.untyped_storage()
        self.live[storage._cdata] = StorageWeakRef(storage), block
        return block

    def kernel(self, name: str, stream: int, reads: set[int], writes: set[int]) -> None:
        """A kernel on `stream`: the detector says what it races with."""
        names: dict[int, list[str]] = defaultdict(list)
        self.races += self.handler._handle_kernel_launch(stream, reads - writes, writes, writes, name, names)


class Watch(TorchDispatchMode):
    """Tells the detector of every kernel that is launched."""

    def __init__(self, cuda: FakeCUDA) -> None:
        super().__init__()
        self.cuda = cuda

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self.cuda.lock:
            return self._launched(func, args, kwargs or {})

    def _launched(self, func: Any, args: Any, kwargs: Any) -> Any:
        cuda = self.cuda
        given = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        read = {id(v): cuda.block(v) for v in given if v.untyped_storage()._cdata in cuda.live}
        made = func(*args, **kwargs)
        copies = func is torch.ops.aten.copy_.default
        gpus = {b.gpu for b in read.values()}
        assert copies or len(gpus) <= 1, f"{func} reads what is on GPUs {gpus}"
        gpu = gpus.pop() if len(gpus) == 1 else cuda.current_device()
        stream = cuda.current_stream(_Index(gpu)).id
        written = [v for v in tree_leaves(made) if isinstance(v, torch.Tensor)]
        new = [v for v in written if v.untyped_storage()._cdata not in cuda.live]
        fresh = {cuda.allocate(v, gpu, stream).number for v in new if v.untyped_storage()._cdata not in cuda.live}
        writes, reads = set(fresh), set()
        for argument, value in zip(func._schema.arguments, args, strict=False):
            for v in tree_leaves(value):
                if id(v) in read:
                    if argument.alias_info is None:
                        reads.add(read[id(v)].number)
                    elif argument.alias_info.is_write:
                        writes.add(read[id(v)].number)
        if copies and {id(args[0]), id(args[1])} <= read.keys() and len({read[id(v)].gpu for v in args[:2]}) == 2:
            out, into = (cuda.current_stream(_Index(read[id(v)].gpu)) for v in (args[1], args[0]))
            self._copy(out, into, reads, writes)
        elif reads or writes:
            cuda.kernel(str(func), stream, reads, writes)
        return made

    def _copy(self, out: FakeStream, into: FakeStream, reads: set[int], writes: set[int]) -> None:
        """Between GPUs, as ATen does it: on the source's stream, which waits for the destination's, and then the reverse."""
        before, after = FakeEvent(self.cuda), FakeEvent(self.cuda)
        before.record(into)
        out.wait_event(before)
        self.cuda.kernel("copy between GPUs", out.id, reads, writes)
        after.record(out)
        into.wait_event(after)


class EmulatedMachine(CUDAMachine):
    """The CUDA machine on tensors of the processor."""

    _cuda: FakeCUDA

    def torch_device(self, device: int) -> Any:
        return _Index(self.gpus[device])

    @contextlib.contextmanager
    def launching(self) -> Iterator[None]:
        of_thread = self._cuda.of_thread
        before, of_thread.launching = getattr(of_thread, "launching", False), True
        try:
            with super().launching(), Watch(self._cuda):
                yield
        finally:
            of_thread.launching = before

    def keep(self, value: torch.Tensor, stream: Any) -> None:
        self._cuda.block(value).users.add(stream.id)


class _Index(str):
    """`cpu` for torch, and the GPU that it stands for."""

    index: int

    def __new__(cls, index: int) -> _Index:
        made = super().__new__(cls, "cpu")
        made.index = index
        return made


@cache
def program(workload: str) -> Program:
    mode = ["importer.mode=train"] if workload == "rnnlm_small" else []
    return assembled([f"workload={workload}", *mode], installed()).build("importer").load()[0]


def raced(workload: str, gpus: Sequence[int], way: Way, steps: int = 2, ahead: int | None = None) -> FakeCUDA:
    """Run some steps of a random placement, each with the results of one device; the fake, which knows of the races."""
    found, devices = program(workload), len(gpus)
    graph, executable = found.graph, found.executable
    assert executable is not None
    grouping = Grouping.colocated(graph)
    device = np.random.default_rng(0).integers(0, devices, grouping.count).astype(np.int16)[grouping.group_of]
    order = [int(v) for v in graph.topological_order if graph.kernel[v]]
    level = graph.depth if way == "bulk_synchronous" else None
    if level is not None:
        order.sort(key=lambda v: level[v])
    keep = executable.results.values()
    made = plan(graph, executable, device, devices, order, fixed=way == "static", keep=keep, level=level)
    cuda = FakeCUDA()
    machine = EmulatedMachine(gpus, cuda=cuda)
    engine = Engine(made, executable, machine, ahead=ahead)
    values = executable.initial()
    sources = engine.place(values)
    for d, tensors in enumerate(sources):
        for value in tensors.values():
            cuda.allocate(value, gpus[d], 0)
    _, expected = run_sequential(found, values)
    for _ in range(steps):
        step = engine.run(sources, 0, way, timeout_s=120)
        for name, value in expected.items():
            assert torch.equal(executable.result(name, {**values, **step.kept}), value)
        del step
    machine.close()
    return cuda


WORKLOADS = ["chainmm_small", "llama_layer_sharded_small"]


@pytest.mark.parametrize("way", ["static", "dynamic", "bulk_synchronous"])
@pytest.mark.parametrize("gpus", [[0, 0, 1]])
@pytest.mark.parametrize("workload", mostly_slow(WORKLOADS, WORKLOADS[:1]))
def test_nothing_races(workload: str, gpus: list[int], way: Way) -> None:
    cuda = raced(workload, gpus, way)
    assert not cuda.races, f"{len(cuda.races)} races, the first:\n{cuda.races[0]}"
    assert cuda.reused > 0, "memory is reused, or nothing could race for it"


def test_a_stream_is_held_by_a_kernel_of_its_own() -> None:
    """Before what is launched next, for at least as long as asked for: a GPU has at most so many cycles in a second."""
    cuda = FakeCUDA()
    machine = EmulatedMachine([0, 1], cuda=cuda)
    stream = machine.compute(1)
    assert isinstance(stream, CUDAStream)
    with machine.launching():
        machine.hold(stream, 0.0)
        assert cuda.slept == []
        machine.hold(stream, 2e-3)
    [(cycles, slept)] = cuda.slept
    assert slept is stream.streams[0]
    assert cycles / 2.9e9 >= 2e-3
    machine.close()


def test_without_a_wait_there_are_races(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CUDAStream, "wait", lambda self, event: None)
    assert raced("chainmm_small", (0, 1), "static", steps=1).races


@pytest.mark.parametrize("of", ["value", "made"])
def test_without_record_stream_there_are_races(monkeypatch: pytest.MonkeyPatch, of: str) -> None:
    """What is sent must outlive the copy, and what arrived the last reader; both are dropped when they are launched."""
    keep, calls = EmulatedMachine.keep, iter(range(10**6))

    def forgets(self: EmulatedMachine, value: torch.Tensor, stream: Any) -> None:
        if (next(calls) % 2 == 0) != (of == "value"):  # `copy` first keeps what it sends
            keep(self, value, stream)

    monkeypatch.setattr(EmulatedMachine, "keep", forgets)
    assert raced("rnnlm_small", (0, 1), "static", steps=1).races


class TestPlacedStep:
    """A step reads batches that the caller's own stream makes, and the caller goes on with the loss."""

    def races(self) -> list[Any]:
        cuda = FakeCUDA()
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        x, y = torch.randn(4, 8), torch.randn(4, 4)
        loss, optimizer = torch.nn.functional.mse_loss, partial(torch.optim.SGD, lr=0.1, foreach=False)
        found = placekit_core.place(
            net, inputs=x, targets=y, loss=loss, optimizer=optimizer, policy="random", budget=1,
            cluster=CPUBackend(devices=2).devices(), grouper="none",
        )  # fmt: skip
        machine = EmulatedMachine([0, 0], cuda=cuda)
        step = PlacedStep(net, optimizer, loss, found, inputs=x, targets=y, machine=machine)
        for _ in range(3):
            with Watch(cuda):
                x, y = torch.randn(4, 8), torch.randn(4, 4)
                x = x + 1
            value = step(x, y)
            with Watch(cuda):
                value = value * 2
        machine.close()
        return cuda.races

    def test_nothing_races(self) -> None:
        assert not self.races()

    def test_without_waiting_for_the_caller_there_are_races(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(EmulatedMachine, "follow", lambda self: None)
        assert self.races()


@pytest.mark.parametrize("way", ["static", "dynamic", "bulk_synchronous"])
def test_a_broken_device_is_an_error_at_once(way: Way) -> None:
    """A kernel that fails is heard of when the host asks for an event, and of every later one too."""
    found = program("chainmm_small")
    graph, executable = found.graph, found.executable
    assert executable is not None
    order = [int(v) for v in graph.topological_order if graph.kernel[v]]
    device = np.random.default_rng(0).integers(0, 2, graph.n).astype(np.int16)
    made = plan(graph, executable, device, 2, order, keep=executable.results.values())
    cuda = FakeCUDA()
    machine = EmulatedMachine([0, 0], cuda=cuda)
    engine = Engine(made, executable, machine)
    sources = engine.place(executable.initial())
    for tensors in sources:
        for value in tensors.values():
            cuda.allocate(value, 0, 0)
    cuda.broken = True
    start = time.perf_counter()
    with pytest.raises(RuntimeError, match="device-side assert"):
        engine.run(sources, 0, way, timeout_s=60)
    assert time.perf_counter() - start < 30
    machine.close()


def test_links_that_torch_has_no_streams_for_are_refused() -> None:
    assert EmulatedMachine([0] * 6, cuda=FakeCUDA()).size == 6
    with pytest.raises(BackendError, match="7 devices on GPU 0, in a machine of 7, need 42 streams"):
        EmulatedMachine([0] * 7, cuda=FakeCUDA())
