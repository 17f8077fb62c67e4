"""The interface of devices for the engine (streams, events, copies), and its implementation with threads of the CPU."""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

Work = Callable[[], None]
LinkSeconds = Callable[[int, int, int], float]
"""An emulated link: a function of (src, dst, bytes) that gives the minimum seconds of a copy."""


class Event(ABC):
    """A point in the work of a stream."""

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> bool:
        """Block the host until the event is reached; False if that takes longer than `timeout_s`."""

    @abstractmethod
    def since(self, other: Any) -> float:
        """Seconds from an earlier event on the same `Machine.clock` to this one; both must be timed and reached."""


class Stream(ABC):
    """A queue of work that runs in order, while the host goes on."""

    @abstractmethod
    def launch(self, work: Work) -> None:
        """Append `work`. Call it within `Machine.launching`."""

    @abstractmethod
    def record(self, timed: bool = False) -> Event:
        """Append an event, reached when all work before it is done; with `timed`, it also records the time."""

    @abstractmethod
    def wait(self, event: Any) -> None:
        """Let all work appended from now on wait for `event`, which may be of any stream of this machine."""


class Machine(ABC):
    """Some devices. Close it after use; then it cannot be used again.

    Attributes:
        ahead: default of `Engine(ahead=...)`: nodes queued on a stream behind the current one.
    """

    ahead = 0

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of devices."""

    @abstractmethod
    def torch_device(self, device: int) -> torch.device:
        """The `torch.device` of a device."""

    @abstractmethod
    def compute(self, device: int) -> Stream:
        """The stream on which a device computes."""

    @abstractmethod
    def link(self, src: int, dst: int) -> Stream:
        """The stream on which copies from `src` to `dst` are made."""

    @abstractmethod
    def copy(self, value: torch.Tensor, src: int, dst: int) -> torch.Tensor:
        """Copy `value` of `compute(src)` for `compute(dst)`, with its strides. Called in work on `link(src, dst)`."""

    @abstractmethod
    def clock(self, stream: Any) -> int:
        """Number of the clock by which the events of a stream are timed."""

    def launching(self) -> AbstractContextManager[None]:
        """A context in which the calling thread may launch work; it restores the thread's current streams at the end.

        Inside, torch records no gradients.
        """
        return nullcontext()

    def hold(self, stream: Any, seconds: float) -> None:
        """Make a GPU idle for `seconds`, so that the host can launch work in advance and the GPU need not wait for it later.

        Call it within `launching`. CPU devices launch nothing, and are not held.
        """
        return None

    def follow(self) -> None:
        """Make all devices wait for work that the calling thread has launched outside `launching`.

        That work may write values that the devices will read, or read values in memory that they will reuse.
        """
        return None

    @abstractmethod
    def notify(self, stream: Any, done: Callable[[BaseException | None], None]) -> None:
        """Call `done`, in any thread, once all work given to `stream` so far has ended; its argument is an error or None."""

    @abstractmethod
    def close(self) -> None:
        """Release streams and threads."""


class _ThreadEvent(Event):
    def __init__(self) -> None:
        self.reached, self.time_s = threading.Event(), 0.0

    def reach(self) -> None:
        self.time_s = time.perf_counter()
        self.reached.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        return self.reached.wait(timeout_s)

    def since(self, other: _ThreadEvent) -> float:
        return self.time_s - other.time_s


class ThreadStream(Stream):
    """A thread that works on one queue. Its work does not raise."""

    def __init__(self, name: str, threads: int) -> None:
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._threads = threads
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.thread.start()

    def launch(self, work: Work) -> None:
        self._queue.put(work)

    def record(self, timed: bool = False) -> _ThreadEvent:
        event = _ThreadEvent()
        self._queue.put(event.reach)
        return event

    def wait(self, event: _ThreadEvent) -> None:
        self._queue.put(lambda: (event.wait(), None)[1])

    def end(self) -> None:
        """Stop after all appended work."""
        self._queue.put(None)

    def _work(self) -> None:
        torch.get_num_threads()  # else torch sets this thread's number to the process's when it first computes
        torch.set_num_threads(self._threads)
        with torch.no_grad():
            while (work := self._queue.get()) is not None:
                work()
                del work  # it holds tensors


def _stream(name: str, threads: int) -> ThreadStream:
    """Start a stream, without changing how many torch threads other new threads of the process get."""
    before = torch.get_num_threads()
    stream = ThreadStream(name, threads)
    stream.record().wait()  # now it has set its own number, and thereby that of new threads
    torch.set_num_threads(before)
    return stream


class CPUMachine(Machine):
    """Devices that are threads of this process, each with its own number of torch threads.

    Args:
        size: number of devices.
        threads: torch threads of each device.
        link_s: emulates slower links; None: copies run at full speed.
    """

    def __init__(self, size: int, threads: int = 1, link_s: LinkSeconds | None = None) -> None:
        self._threads, self._link_s = threads, link_s
        self._compute = [_stream(f"device {d}", threads) for d in range(size)]
        self._links: dict[tuple[int, int], ThreadStream] = {}

    @property
    def size(self) -> int:
        return len(self._compute)

    def torch_device(self, device: int) -> torch.device:
        return torch.device("cpu")

    def compute(self, device: int) -> Stream:
        return self._compute[device]

    def link(self, src: int, dst: int) -> Stream:
        if (src, dst) not in self._links:
            self._links[src, dst] = _stream(f"link {src}-{dst}", 1)
        return self._links[src, dst]

    def clock(self, stream: Stream) -> int:
        return 0

    def copy(self, value: torch.Tensor, src: int, dst: int) -> torch.Tensor:
        start = time.perf_counter()
        made = copied(value, self.torch_device(dst))
        if self._link_s is not None:
            rest = self._link_s(src, dst, value.numel() * value.element_size()) - (time.perf_counter() - start)
            if rest > 0:
                time.sleep(rest)
        return made

    def notify(self, stream: Stream, done: Callable[[BaseException | None], None]) -> None:
        stream.launch(lambda: done(None))

    def close(self) -> None:
        streams = [*self._compute, *self._links.values()]
        for stream in streams:
            stream.end()
        until = time.perf_counter() + 1.0  # a hanging thread is left behind
        for stream in streams:
            stream.thread.join(timeout=max(until - time.perf_counter(), 0.0))


def copied(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on `device` with the same strides; with others, the last bits of results may change.

    A repeated dimension (a stride of 0) is copied once, and repeated again.
    """
    once = value
    for d, (n, stride) in enumerate(zip(value.shape, value.stride(), strict=True)):
        if stride == 0 and n > 1:
            once = once.narrow(d, 0, 1)
    made = torch.empty_strided(once.shape, once.stride(), dtype=value.dtype, device=device)
    made.copy_(once, non_blocking=True)
    return made if once is value else made.expand(value.shape)


def placed(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`value` itself if it is on `device`, else a copy there."""
    return value if value.device == torch.device(device) else copied(value, device)


def nbytes(value: Any) -> int:
    """Bytes of memory that a tensor keeps."""
    return int(value.untyped_storage().nbytes())
