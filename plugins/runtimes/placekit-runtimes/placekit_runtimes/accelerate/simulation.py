"""Seconds and memory of a device map as accelerate runs it, which differs from the machine model of the simulator.

One host thread launches the operations in the order of the program. A launch takes it as long as a host of the machine model
with `launching: eager`, so no time on a machine without hosts. A device runs operations in the order of their launches, one
at a time. A tensor is copied when a module of the map that is on another device is called, once for each call. A copy between
GPUs waits for all that was launched on both, and both wait for it; the host waits for a copy from or to its own memory. The
weights of a module on `cpu` are copied to the main device when the module runs, and dropped after.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from placekit_core import Labels, Problem, launches_of, units
from placekit_runtimes.accelerate.hooks import CPU, Located
from placekit_runtimes.interface import DeviceName, RuntimeCost, lacking_memory, memory_text
from placekit_runtimes.layers import device_numbers


@dataclass(frozen=True, eq=False)
class OneThread:
    """A step under a device map, as accelerate runs it.

    Attributes:
        value_s: seconds from the first launch to the end of the last operation.
        peak_bytes: [D] highest memory in use on each device. Weights that are streamed are on the CPU all the time, and on the
            main device while their module runs.
        moved_bytes: bytes of the tensors that are copied between devices.
        streamed_bytes: bytes of the weights that are copied from the CPU.
    """

    value_s: float
    peak_bytes: NDArray[np.float64]
    moved_bytes: float
    streamed_bytes: float


def run_by_accelerate(problem: Problem, located: Located) -> OneThread:
    """Simulate a step; `located` is `hooks.locate` of the map, without breaks.

    Outputs are in use from their operation to their last reader, in the order of the program: the allocator of PyTorch gives
    memory when an operation is launched.
    """
    thread = _Thread(problem, located)
    order = problem.graph.topological_order
    thread.calls(order)
    for position, v in enumerate(order[problem.graph.kernel[order]].tolist()):
        thread.run(position, v)
    return OneThread(max(thread.host, *thread.free), thread.peak(), thread.moved_bytes, thread.streamed_bytes)


def cost_of(problem: Problem, located: Located) -> RuntimeCost:
    """The seconds and memory of a map as accelerate runs it, or why accelerate cannot."""
    if located.breaks:
        more = f" (and {len(located.breaks) - 1} more)" if len(located.breaks) > 1 else ""
        return RuntimeCost(None, error=f"accelerate cannot run this map: {located.breaks[0].why}{more}")
    found = run_by_accelerate(problem, located)
    copied = [f"{units.mebibytes(found.moved_bytes)} copied between devices"] if found.moved_bytes else []
    streamed = [f"{units.mebibytes(found.streamed_bytes)} of weights from the CPU"] if found.streamed_bytes else []
    details = (
        f"run by accelerate: {units.seconds(found.value_s)} ({', '.join(['modules in order', *copied, *streamed])})",
        f"peak memory run by accelerate: {memory_text(problem, found.peak_bytes)}",
    )
    lacking = lacking_memory(problem, found.peak_bytes)
    error = f"run by accelerate, this map does not fit: {lacking}" if lacking else ""
    return RuntimeCost(found.value_s, found.peak_bytes, error, details)


@dataclass
class _Memory:
    """Bytes that are in use on a device from one position in the program to another, both included."""

    device: list[int] = field(default_factory=list)
    bytes_: list[float] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)

    def add(self, device: int, bytes_: float, position: int) -> int:
        """A new block, used at `position`; returns its number."""
        self.device.append(device)
        self.bytes_.append(bytes_)
        self.first.append(position)
        self.last.append(position)
        return len(self.device) - 1


class _Thread:
    """The state of the host thread and of the devices.

    Attributes:
        host: when the host thread is free, seconds.
        free: [D] when each device has finished what was launched on it.
    """

    def __init__(self, problem: Problem, located: Located) -> None:
        self.problem, self.graph, self.located = problem, problem.graph, located
        cluster, names = problem.cluster.launched("eager"), device_numbers(problem)
        self.host, self.free = 0.0, [0.0] * cluster.size
        self.moved_bytes = self.streamed_bytes = 0.0
        index: dict[DeviceName | None, int] = {name: names.index(name) for name in names}
        index[None] = index[located.main]
        self.on = [index[name] for name in located.runs]
        is_input = self.graph.op_type.is_value("input")
        self.home = [r if own else index[h] for h, r, own in zip(located.home, self.on, is_input, strict=True)]
        self.is_cpu = [problem.device_type(d) == "cpu" for d in range(cluster.size)]
        self.routes = cluster.routes
        self.launch_s = (launches_of(self.graph) * cluster.launchers.launch_s[self.on]).tolist()
        self.op_s = problem.op_s[np.arange(self.graph.n), self.on].tolist()
        self.memory, self.copies, self.storage = _Memory(), dict[tuple[int, str], int](), dict[int, int]()
        self.streams = located.main != CPU
        self.call = [""] * self.graph.n

    def calls(self, order: NDArray[np.int32]) -> None:
        """Name the call of the map's entry in which each operation is: an entry may be called several times."""
        paths = self.graph.columns.get("call_path")
        for v in order.tolist():
            key = self.located.key[v]
            if key is None:
                continue
            path = paths[v] if isinstance(paths, Labels) else ""
            depth = key.count(".") + 1 if key else 0
            own = ".".join(path.split(".")[:depth]) if path else str(self.graph.call[v])
            self.call[v] = f"{key}#{own if key else ''}#{self.graph.phase[v]}"

    def run(self, position: int, v: int) -> None:
        """Launch an operation, after the copies that it needs."""
        device, phase_s = self.on[v], self.op_s[v]
        for t in self.graph.inputs(v).tolist():
            self._read(position, v, t, device)
        self.host += self.launch_s[v]
        self.free[device] = max(self.host, self.free[device]) + phase_s
        if self.is_cpu[device]:
            self.host = self.free[device]
        for t in self.graph.outputs(v):
            if self.graph.tensor_storage[t] == t:
                self.storage[t] = self.memory.add(device, float(self.graph.owned_bytes[t]), position)

    def _read(self, position: int, v: int, t: int, device: int) -> None:
        graph, u = self.graph, int(self.graph.tensor_producer[t])
        weight = not graph.kernel[u] and self.located.home[u] == CPU and self.streams
        if weight:
            module = f"{graph.module[v]}#{graph.call[v]}"
            self._copied(position, t, f"weight of {module}", self.home[u], device)
            return
        block = self.storage.get(int(graph.tensor_storage[t]))
        if block is not None:
            self.memory.last[block] = position
        if self.on[u] != device:
            self._copied(position, t, self.call[v] or f"{device}", self.on[u], device)

    def _copied(self, position: int, t: int, call: str, source: int, target: int) -> None:
        """Copy a tensor for a call, unless it has been copied for this call."""
        if (t, call) in self.copies:
            self.memory.last[self.copies[t, call]] = position
            return
        bytes_, routes = float(self.graph.tensor_bytes[t]), self.routes
        start = max(self.host, *(self.free[d] for d in (source, target) if not self.is_cpu[d]), 0.0)
        end = start + float(routes.latency_s[source, target] + bytes_ * routes.s_per_byte[source, target])
        for d in (source, target):
            self.free[d] = end
            if self.is_cpu[d]:
                self.host = end
        self.copies[t, call] = self.memory.add(target, bytes_, position)
        if call.startswith("weight of "):
            self.streamed_bytes += bytes_
        else:
            self.moved_bytes += bytes_

    def peak(self) -> NDArray[np.float64]:
        """[D] persistent bytes, and the highest sum of the others at any position."""
        size, count = self.problem.cluster.size, int(self.graph.kernel.sum())
        persistent = np.bincount(self.home, self.graph.persistent_bytes, minlength=size).astype(np.float64)
        change: NDArray[np.float64] = np.zeros((size, count + 2))
        m = self.memory
        device = np.asarray(m.device, np.int64)
        np.add.at(change, (device, np.asarray(m.first, np.int64)), m.bytes_)
        np.add.at(change, (device, np.asarray(m.last, np.int64) + 1), np.negative(m.bytes_))
        most: NDArray[np.float64] = np.cumsum(change, axis=1).max(axis=1)
        return persistent + np.maximum(most, 0.0)
