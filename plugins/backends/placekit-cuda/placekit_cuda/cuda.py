"""CUDA devices for the engine: streams of `torch.cuda`, with several logical devices on one GPU if there are too few GPUs.

Kernels run asynchronously, and their memory is reused asynchronously. Two rules of the caching allocator matter here: a block
belongs to the stream that it was allocated on, and that stream reuses it as soon as its tensor is dropped on the host. A tensor
that another stream reads must therefore be recorded for that stream (`record_stream`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from placekit_core import BackendError
from placekit_cuda.machine import Event, LinkSeconds, Machine, Stream, Work, copied

_CLOCK_ATTEMPTS = 50  # maximum number of attempts to measure a GPU's clock
_CYCLES_PER_S = 3e9  # no GPU has a faster clock
STREAMS = 32
"""Streams that `torch.cuda` creates for a GPU and priority; after that it hands out the same streams again."""


class CUDAEvent(Event):
    """An event of `torch.cuda`."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def wait(self, timeout_s: float | None = None) -> bool:
        start = time.perf_counter()
        while not self.event.query():  # no sleep: it would be measured
            if timeout_s is not None and time.perf_counter() - start >= timeout_s:
                return False
        return True

    def since(self, other: CUDAEvent) -> float:
        return float(other.event.elapsed_time(self.event)) / 1e3


class CUDAStream(Stream):
    """One stream for kernels; two for copies between two GPUs: one of the source and one of the destination.

    torch copies on the source's current stream. Before the copy, that stream waits for the destination's current stream;
    after it, the destination's stream waits for the source's. A copy's memory therefore belongs to the last of `streams`,
    and the copy ends there. Both streams wait for events, because without peer access torch packs a strided tensor on the
    source's stream before that barrier.
    """

    def __init__(self, cuda: Any, *streams: Any) -> None:
        self.cuda, self.streams = cuda, streams

    def launch(self, work: Work) -> None:
        for stream in self.streams:
            self.cuda.set_stream(stream)
        work()

    def record(self, timed: bool = False) -> CUDAEvent:
        event = self.cuda.Event(enable_timing=timed)
        event.record(self.streams[-1])
        return CUDAEvent(event)

    def wait(self, event: CUDAEvent) -> None:
        for stream in self.streams:
            stream.wait_event(event.event)


class CUDAMachine(Machine):
    """Logical devices on GPUs.

    Args:
        gpus: GPU of each device. Devices on one GPU share its cores, its memory and its memory bandwidth.
        link_s: emulates slower links: after each copy, a kernel on the link's stream waits. None: copies run at full speed.
        cuda: `torch.cuda`, or a test's replacement of it.

    Raises BackendError for a GPU that does not exist, and if the links of the devices on a GPU need too many streams.
    """

    ahead = 1  # after a long kernel, the host takes 60 us or more to launch the next one: docs/gpu.md

    def __init__(self, gpus: Sequence[int], link_s: LinkSeconds | None = None, cuda: Any = torch.cuda) -> None:
        self.gpus, self._link_s, self._cuda = list(gpus), link_s, cuda
        there = cuda.device_count() if cuda.is_available() else 0
        strange = [gpu for gpu in self.gpus if not 0 <= gpu < there]
        if strange:
            raise BackendError(
                f"there is no GPU {strange[0]} here: torch sees {there}",
                "use placekit_cuda.machine.CPUMachine(size) to run on threads"
                if there == 0
                else f"give 0..{there - 1}",
            )
        for gpu, devices in Counter(gpus).items():
            others = len(self.gpus) - 1  # a link has a stream at each of its ends
            if devices * others > STREAMS:
                raise BackendError(
                    f"{devices} devices on GPU {gpu}, in a machine of {len(self.gpus)}, need {devices * others} streams for"
                    f" their links, and torch has {STREAMS}",
                    "use fewer devices",
                )
        # not the priority of links, so that torch never hands out the same stream for both
        self._compute = [
            CUDAStream(cuda, cuda.Stream(self.torch_device(d), priority=-1)) for d in range(len(self.gpus))
        ]
        self._links: dict[tuple[int, int], CUDAStream] = {}
        # a call of the CUDA runtime gives the thread a context; without one, cuBLAS warns when it is first used there
        self._watch = _EventPoller(lambda: cuda.mem_get_info(self.gpus[0]), self.launching)
        self._cycles_per_s = self._clock() if link_s is not None else {}

    @property
    def size(self) -> int:
        return len(self.gpus)

    def torch_device(self, device: int) -> torch.device:
        return torch.device("cuda", self.gpus[device])

    def compute(self, device: int) -> Stream:
        return self._compute[device]

    def link(self, src: int, dst: int) -> Stream:
        if (src, dst) not in self._links:
            ends = [src, dst] if self.gpus[src] != self.gpus[dst] else [dst]
            streams = [self._cuda.Stream(self.torch_device(d)) for d in ends]
            self._links[src, dst] = CUDAStream(self._cuda, *streams)
        return self._links[src, dst]

    def clock(self, stream: CUDAStream) -> int:
        return int(stream.streams[-1].device.index)

    def copy(self, value: torch.Tensor, src: int, dst: int) -> torch.Tensor:
        made = copied(value, self.torch_device(dst))
        self.keep(value, self._links[src, dst].streams[0])
        self.keep(made, self._compute[dst].streams[0])
        if self._link_s is not None:
            seconds = self._link_s(src, dst, value.numel() * value.element_size())
            self._cuda._sleep(int(seconds * self._cycles_per_s[self.gpus[dst]]))
        return made

    def keep(self, value: torch.Tensor, stream: Any) -> None:
        """Let torch reuse the memory of `value`, once dropped, only after `stream` has finished its work so far."""
        value.record_stream(stream)

    @contextlib.contextmanager
    def launching(self) -> Iterator[None]:
        # once for many launches, because a context of torch.cuda.stream for each costs more than most kernels
        device = self._cuda.current_device()
        streams = [self._cuda.current_stream(self.torch_device(self.gpus.index(gpu))) for gpu in set(self.gpus)]
        try:
            with torch.no_grad():
                yield
        finally:
            for restore, before in [*((self._cuda.set_stream, s) for s in streams), (self._cuda.set_device, device)]:
                with contextlib.suppress(RuntimeError):  # a broken device: the work raises its own error
                    restore(before)

    def hold(self, stream: CUDAStream, seconds: float) -> None:
        if seconds > 0:
            stream.launch(lambda: self._cuda._sleep(int(seconds * _CYCLES_PER_S)))

    def follow(self) -> None:
        for device, compute in enumerate(self._compute):
            event = self._cuda.Event(enable_timing=False)
            event.record(self._cuda.current_stream(self.torch_device(device)))
            compute.wait(CUDAEvent(event))

    def notify(self, stream: CUDAStream, done: Callable[[BaseException | None], None]) -> None:
        self._watch.add(stream.record(), done)

    def close(self) -> None:
        self._watch.end()
        streams = [s for stream in (*self._compute, *self._links.values()) for s in stream.streams]
        self._compute, self._links = [], {}
        with contextlib.suppress(RuntimeError):  # after a failed kernel, nothing can be released
            if all(s.query() for s in streams):  # emptying the cache would wait for a hanging stream
                self._cuda.empty_cache()

    def _clock(self) -> dict[int, float]:
        """Cycles per second of each GPU, measured with a kernel that waits for cycles to pass."""
        found, cycles = {}, 10_000_000
        for gpu in set(self.gpus):
            stream = self._compute[self.gpus.index(gpu)]
            before = 0.0
            for _ in range(_CLOCK_ATTEMPTS):  # the first attempt loads the kernel, and clocks rise under load
                start = stream.record(timed=True)
                with self.launching():
                    stream.launch(lambda: self._cuda._sleep(cycles))
                end = stream.record(timed=True)
                end.wait()
                found[gpu] = cycles / end.since(start)
                if abs(found[gpu] / max(before, 1.0) - 1) < 0.01:
                    break
                before = found[gpu]
        return found


class _EventPoller:
    """A thread that polls the events of a machine, and calls the callback of each event that is reached.

    The thread calls `begin` first. The callbacks are called within `launching`.
    """

    def __init__(self, begin: Callable[[], object], launching: Callable[[], AbstractContextManager[None]]) -> None:
        self._begin, self._launching = begin, launching
        self._waiting: list[tuple[CUDAEvent, Callable[[BaseException | None], None]]] = []
        self._some, self._ended = threading.Condition(), False
        self._thread: threading.Thread | None = None

    def add(self, event: CUDAEvent, done: Callable[[BaseException | None], None]) -> None:
        """Call `done` when `event` is reached."""
        with self._some:
            self._waiting.append((event, done))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="cuda events", daemon=True)
                self._thread.start()
            self._some.notify()

    def end(self) -> None:
        """Forget all pending callbacks."""
        with self._some:
            self._ended = True
            self._some.notify()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def _work(self) -> None:
        with contextlib.suppress(RuntimeError):  # a broken device: its events raise for whoever waits
            self._begin()
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(RuntimeError):
                stack.enter_context(self._launching())
            self._loop()

    def _loop(self) -> None:
        while True:
            with self._some:
                while not self._waiting and not self._ended:
                    self._some.wait()
                if self._ended:
                    return
                waiting, self._waiting = self._waiting, []
            later = []
            for event, done in waiting:
                error: BaseException | None = None
                try:
                    reached = event.wait(0.0)
                except Exception as e:  # a kernel failed: tell the callback
                    reached, error = True, e
                if reached:
                    done(error)
                else:
                    later.append((event, done))
            with self._some:
                self._waiting = later + self._waiting
            waiting, later = [], []
            del event, done  # they hold the values of a step
