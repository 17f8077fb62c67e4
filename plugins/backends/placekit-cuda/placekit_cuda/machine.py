"""Devices as the engine sees them: streams that work in order, events between them, copies from one device to another."""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

Work = Callable[[], None]
LinkSeconds = Callable[[int, int, int], float]
"""(src, dst, bytes) to the least seconds that a copy takes: an emulated link."""


class Event(ABC):
    """A point in the work of a stream."""

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> bool:
        """Let the host wait until it is reached; False if it was not within `timeout_s`."""

    @abstractmethod
    def since(self, other: Any) -> float:
        """Seconds between an earlier event on the same `Machine.clock` and this one; both are reached, and recorded timed."""


class Stream(ABC):
    """Does what it is given one after the other, while the host goes on."""

    @abstractmethod
    def launch(self, work: Work) -> None:
        """Append `work`."""

    @abstractmethod
    def record(self, timed: bool = False) -> Event:
        """Append an event, reached when all before it is done; `timed` if the moment matters."""

    @abstractmethod
    def wait(self, event: Any) -> None:
        """Let what is appended from here on wait for `event`, of any stream of this machine."""


class Machine(ABC):
    """Some devices. Closed after use; then it cannot be used again."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of devices."""

    @abstractmethod
    def torch_device(self, device: int) -> torch.device:
        """What torch calls a device."""

    @abstractmethod
    def compute(self, device: int) -> Stream:
        """The stream on which a device computes."""

    @abstractmethod
    def link(self, src: int, dst: int) -> Stream:
        """The stream on which copies from `src` to `dst` are made."""

    @abstractmethod
    def copy(self, value: torch.Tensor, src: int, dst: int) -> torch.Tensor:
        """A copy of `value`, of `compute(src)`, for `compute(dst)`, with its strides. Called in work of `link(src, dst)`."""

    @abstractmethod
    def clock(self, stream: Any) -> int:
        """Number of the clock by which the events of a stream are timed."""

    def follow(self) -> None:
        """Let all devices wait for what the calling thread has launched by itself.

        It may be making what they will read, and reading what they made, whose memory they will use again.
        """
        return None

    @abstractmethod
    def notify(self, stream: Any, done: Callable[[BaseException | None], None]) -> None:
        """Call `done`, in any thread, once all that `stream` was given so far is done, with what went wrong if it did."""

    @abstractmethod
    def close(self) -> None:
        """Give back streams and threads."""


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
        """Stop after all that was appended."""
        self._queue.put(None)

    def _work(self) -> None:
        torch.get_num_threads()  # or torch gives this thread the process's number when it first computes
        torch.set_num_threads(self._threads)
        with torch.no_grad():
            while (work := self._queue.get()) is not None:
                work()
                del work  # it holds tensors


def _stream(name: str, threads: int) -> ThreadStream:
    """A stream; the number of torch threads that other threads of the process begin with stays what it was."""
    before = torch.get_num_threads()
    stream = ThreadStream(name, threads)
    stream.record().wait()  # it has set its own, and with it that of threads to come
    torch.set_num_threads(before)
    return stream


class CPUMachine(Machine):
    """Devices that are threads of this process, each with its own number of torch threads.

    Args:
        size: number of devices.
        threads: torch threads of each device.
        link_s: emulates slower links; None: copies are as fast as they go.
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
        until = time.perf_counter() + 1.0  # what hangs is left behind
        for stream in streams:
            stream.thread.join(timeout=max(until - time.perf_counter(), 0.0))


def copied(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on `device`, with the same strides, or the last bits of what is computed from it may change.

    What is repeated (a stride of 0) is copied once, and repeated again.
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
