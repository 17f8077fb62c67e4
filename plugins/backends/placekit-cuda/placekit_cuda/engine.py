"""Runs a plan on a machine, any number of times, in one of three ways; see `Way`."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from placekit_core import BackendError, Executable
from placekit_cuda.machine import Event, Machine, Stream, nbytes, placed
from placekit_cuda.plan import Node, Plan

Tensors = dict[int, torch.Tensor]
Way = Literal["dynamic", "static", "bulk_synchronous"]
"""How a plan is run.

`dynamic`: the host starts a node once its inputs have arrived, or are sure to arrive before its stream reaches it. `static`: the
host launches all nodes at once, in the order of the plan, and streams wait for events. `bulk_synchronous`: the host launches
one phase after another, and waits for the end of each.
"""


@dataclass(eq=False)
class Step:
    """The record of one step.

    Attributes:
        kept: tensors of `Plan.home`, each on its device.
        seconds: from the first launch to the end of all work.
        peak_bytes: [D] highest memory of the values on each device, sources included.
        times: [nodes, 2] when each node began and ended, seconds from the start; NaN if the step was not timed.
    """

    kept: Tensors
    seconds: float
    peak_bytes: NDArray[np.float64]
    times: NDArray[np.float64]


class MemoryExceeded(BackendError):
    """The values on a device need more than its memory. `peak_bytes` [D]: the highest use of each device until then."""

    def __init__(self, message: str, peak_bytes: Sequence[float]) -> None:
        super().__init__(message)
        self.peak_bytes = list(peak_bytes)


class Engine:
    """A plan, compiled for a machine.

    Args:
        priority: [nodes] of the nodes ready on one stream, the highest starts first; ties in the order of the plan.
        memory_bytes: [D] limit for the values on each device; more ends the step with `MemoryExceeded`.
        ahead: for `dynamic`, the number of nodes queued on a stream behind the current one, so that it need not wait for the
            host; None: `Machine.ahead`.
    """

    def __init__(
        self,
        plan: Plan,
        executable: Executable,
        machine: Machine,
        priority: Sequence[float] | None = None,
        memory_bytes: Sequence[float] | None = None,
        ahead: int | None = None,
    ) -> None:
        self.plan, self.machine = plan, machine
        self.ahead = machine.ahead if ahead is None else ahead
        self.owned = [set(tensors) for tensors in plan.sources]
        self.rank = [(-(priority[i] if priority is not None else 0.0), i) for i in range(len(plan.nodes))]
        self.limit = list(memory_bytes) if memory_bytes is not None else [float("inf")] * machine.size
        self.streams: list[Stream] = [
            machine.link(node.src, node.device) if node.transfers else machine.compute(node.device)
            for node in plan.nodes
        ]
        self.functions = [self._function(node, executable) for node in plan.nodes]
        # for each node: the nodes on other streams that it waits for, and whether a node on another stream waits for it
        s, nodes = self.streams, plan.nodes
        self.waits = [[j for j in node.before if s[j] is not s[i]] for i, node in enumerate(nodes)]
        self.awaited = [any(s[k] is not s[i] for k in node.after) for i, node in enumerate(nodes)]

    def _function(self, node: Node, executable: Executable) -> Callable[[Tensors, int], Tensors]:
        if not node.transfers:
            return executable.compile(node.ops, self.machine.torch_device(node.device), node.makes)
        tensor, src, dst, copy = node.tensor, node.src, node.device, self.machine.copy
        view = executable.view(tensor) if tensor not in node.reads else None
        (read,) = node.reads

        def send(values: Tensors, step: int) -> Tensors:
            value = values[read]
            return {tensor: copy(value if view is None else view(value), src, dst)}

        return send

    def place(self, values: Mapping[int, torch.Tensor]) -> list[Tensors]:
        """The sources' values, each on its device."""
        return [
            {t: placed(values[t], self.machine.torch_device(d)) for t in tensors}
            for d, tensors in enumerate(self.plan.sources)
        ]

    def run(
        self,
        sources: Sequence[Tensors],
        step: int = 0,
        way: Way = "static",
        timeout_s: float | None = None,
        timed: bool = False,
    ) -> Step:
        """Run one step. Raises BackendError if it does not end within `timeout_s`.

        An exception of an operation is raised with a note (`__notes__`) that names the operation.
        """
        state = _State(self, sources, step, timed)
        for device in range(self.machine.size):
            state.check_memory(device)  # also on devices where nothing runs
        start = time.perf_counter()
        try:
            if way == "dynamic":
                done = _Dynamic(self, state).finished(timeout_s)
            elif way == "static":
                done = self._static(state, timeout_s)
            else:
                done = self._bulk_synchronous(state, timeout_s)
        except BaseException as e:  # Ctrl-C: skip the rest of the step
            state.error = state.error or e
            raise
        seconds = time.perf_counter() - start
        if not done and state.error is None:  # if the hang ever ends, skip the rest of the step
            state.error = BackendError(
                f"a step did not end within {timeout_s:g} s", "raise `backend.timeout_s`, or look for a hang"
            )
        if state.error is not None:
            raise state.error
        kept = {t: state.values[d][t] for t, d in self.plan.home.items()}
        return Step(kept, seconds, np.array(state.peak, np.float64), state.times())

    def _static(self, state: _State, timeout_s: float | None) -> bool:
        events: dict[int, Event] = {}
        with self.machine.launching():
            for i, stream in enumerate(self.streams):
                for j in self.waits[i]:
                    stream.wait(events[j])
                end = state.launch(i)
                if self.awaited[i]:
                    events[i] = end or stream.record()
        return _reached([s.record() for s in dict.fromkeys(self.streams)], _until(timeout_s))

    def _bulk_synchronous(self, state: _State, timeout_s: float | None) -> bool:
        until, phases = _until(timeout_s), [node.phase for node in self.plan.nodes]
        for _, numbers in groupby(sorted(range(len(phases)), key=phases.__getitem__), phases.__getitem__):
            streams: dict[Stream, None] = {}
            with self.machine.launching():
                for i in numbers:
                    state.launch(i)
                    streams[self.streams[i]] = None
            if not _reached([s.record() for s in streams], until):
                return False
        return True


class _Dynamic:
    """Starts each node as soon as it is ready, in the thread that is notified of the end of the node that it waited for.

    A node is ready when the nodes that it waits for have been launched (on its own stream, which works in order) or have
    ended (on other streams). So a stream never has to wait for another one.
    """

    def __init__(self, engine: Engine, state: _State) -> None:
        self.engine, self.state = engine, state
        self.lock = threading.Lock()
        self.missing = [len(node.before) for node in engine.plan.nodes]
        self.ready: dict[Stream, list[tuple[float, int]]] = {s: [] for s in engine.streams}
        self.given = dict.fromkeys(engine.streams, 0)
        self.left = len(self.missing)
        self.end = threading.Event()
        with self.lock, engine.machine.launching():
            for i, count in enumerate(self.missing):
                if count == 0:
                    heapq.heappush(self.ready[engine.streams[i]], engine.rank[i])
            for stream in self.ready:
                self._start(stream)

    def finished(self, timeout_s: float | None) -> bool:
        """Wait for the last node; False if that takes longer."""
        return self.left == 0 or self.end.wait(timeout_s)

    def _start(self, stream: Stream) -> None:
        """Launch ready nodes on `stream`, at most `ahead` behind the current one. Call it with the lock held."""
        while self.given[stream] <= self.engine.ahead and self.ready[stream] and not self.end.is_set():
            _, i = heapq.heappop(self.ready[stream])
            self.given[stream] += 1
            try:
                self.state.launch(i)
                self.engine.machine.notify(stream, partial(self._ended, i))
            except BaseException as e:  # the device is broken: nothing more will end
                self._fail(e)
            self._count_off(i, own=True)

    def _fail(self, error: BaseException) -> None:
        self.state.error = self.state.error or error
        self.end.set()

    def _ended(self, i: int, error: BaseException | None) -> None:
        with self.lock:
            if error is not None:
                self._fail(error)
            self.left -= 1
            self.given[self.engine.streams[i]] -= 1
            for stream in {self.engine.streams[i]: None} | self._count_off(i, own=False):
                self._start(stream)
            if self.left == 0:
                self.end.set()

    def _count_off(self, i: int, own: bool) -> dict[Stream, None]:
        """Count off node `i` for the nodes after it, on its own stream or on others; returns the streams with nodes now ready."""
        streams, rank = self.engine.streams, self.engine.rank
        woken: dict[Stream, None] = {}
        for k in self.engine.plan.nodes[i].after:
            if (streams[k] is streams[i]) == own:
                self.missing[k] -= 1
                if self.missing[k] == 0:
                    heapq.heappush(self.ready[streams[k]], rank[k])
                    woken[streams[k]] = None
        return woken


class _State:
    """The state of one step while it runs."""

    def __init__(self, engine: Engine, sources: Sequence[Tensors], step: int, timed: bool) -> None:
        self.engine, self.step = engine, step
        self.values = [dict(given) for given in sources]
        self.left = [dict(uses) for uses in engine.plan.uses]
        self.lock = threading.Lock()
        self.used = [float(sum(nbytes(v) for v in given.values())) for given in sources]
        self.peak = list(self.used)
        self.error: BaseException | None = None
        first = {engine.machine.clock(s): s for s in engine.streams} if timed else {}
        self.timed, self.origin = timed, {clock: s.record(timed=True) for clock, s in first.items()}
        _reached(list(self.origin.values()), None)
        self.events: dict[int, tuple[Event, Event]] = {}

    def launch(self, i: int) -> Event | None:
        """Give node `i` to its stream; returns the event of its end if the step is timed."""
        stream = self.engine.streams[i]
        if not self.timed:
            stream.launch(partial(self._do, i))
            return None
        begin = stream.record(timed=True)
        stream.launch(partial(self._do, i))
        end = stream.record(timed=True)
        self.events[i] = begin, end
        return end

    def times(self) -> NDArray[np.float64]:
        """[nodes, 2], seconds from the start."""
        found = np.full((len(self.engine.plan.nodes), 2), np.nan)
        for i, ends in self.events.items():
            origin = self.origin[self.engine.machine.clock(self.engine.streams[i])]
            found[i] = [e.since(origin) for e in ends]
        return found

    def check_memory(self, device: int) -> None:
        """Raise MemoryExceeded if the device uses more memory than it has."""
        used, limit = self.used[device], self.engine.limit[device]
        if used > limit:
            raise MemoryExceeded(f"device {device} is out of memory: {used:.0f} of {limit:.0f} bytes", self.peak)

    def _do(self, i: int) -> None:
        if self.error is not None:
            return  # after a failure, inputs are missing
        engine, node = self.engine, self.engine.plan.nodes[i]
        at = node.src if node.transfers else node.device
        try:
            with self.lock:
                self.used[node.device] += node.peak_bytes
                self.peak[node.device] = max(self.peak[node.device], self.used[node.device])
                self.check_memory(node.device)
            self._account(node, at, engine.functions[i](self.values[at], self.step))
        except BaseException as e:
            # tracebacks show notes; Python 3.10 has no add_note
            e.__notes__ = [*getattr(e, "__notes__", ()), engine.plan.about(node)]
            self.error = self.error or e

    def _account(self, node: Node, at: int, made: Tensors) -> None:
        to = node.device
        self.values[to].update(made)
        with self.lock:
            self.used[to] += sum(map(nbytes, made.values())) - node.peak_bytes
            for t in node.reads:
                self.left[at][t] -= 1
                if not self.left[at][t] and t not in self.engine.owned[at]:
                    self.used[at] -= nbytes(self.values[at].pop(t))


def _until(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.perf_counter() + timeout_s


def _reached(events: Sequence[Event], until: float | None) -> bool:
    return all(e.wait(None if until is None else max(until - time.perf_counter(), 0.0)) for e in events)
