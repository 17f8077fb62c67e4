"""The backends `cpu` and `cuda`: they run placements and measure the seconds of a step."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from placekit_core import (
    Backend,
    BackendError,
    Calibration,
    Cluster,
    Executable,
    Problem,
    Program,
    Session,
    units,
    usable_cores,
)
from placekit_cuda import CPUOptions, CUDAOptions, MeasuringOptions
from placekit_cuda.cuda import CUDAMachine
from placekit_cuda.detected import CONTEXT_BYTES, described, remembered
from placekit_cuda.isolation import IsolatedSession
from placekit_cuda.machine import CPUMachine, LinkSeconds, Machine
from placekit_cuda.processor import processor
from placekit_cuda.session import MeasuredSession

# FLOP/s (float32) and bytes per second of one core: nominal, because `cluster=auto` must give the same machine each time
_FLOPS_PER_S, _BYTES_PER_S, _OVERHEAD_S = 3e10, 1e10, 3e-6


class MeasuringBackend(Backend):
    """Runs programs on the devices of a cluster."""

    simulated = False
    deterministic = False
    options: MeasuringOptions

    @abstractmethod
    def machine(self, cluster: Cluster) -> Machine:
        """The devices for `cluster`. Raises BackendError if this backend cannot provide one of them."""

    def open(self, problem: Problem, executable: Executable | None = None) -> Session:
        if executable is None:
            raise BackendError(
                f"backend {self.name!r} runs programs, but {problem.graph.name!r} is only a graph",
                "use an importer whose programs can be run (such as `torch` or `einsum`), or backend=simulator",
            )
        o, cluster = self.options, problem.cluster
        if (o.devices or cluster.size) != cluster.size:
            raise BackendError(
                f"backend.devices={o.devices} sets how many devices cluster=auto has, but the cluster here is"
                f" {cluster.name!r} with {cluster.size}",
                "leave one of the two out",
            )
        if o.memory_bytes is not None and (cluster.memory_bytes != o.memory_bytes).any():
            raise BackendError(
                f"backend.memory_bytes={o.memory_bytes} is for cluster=auto, but the devices of {cluster.name!r} have"
                f" {', '.join(str(b) for b in dict.fromkeys(cluster.memory_bytes.tolist()))}",
                "leave one of the two out, or change `memory_bytes` in the cluster's file",
            )
        if o.isolation == "process":
            return IsolatedSession(self.name, o, problem, executable)
        return MeasuredSession(problem, executable, o, partial(self.machine, cluster))

    def calibrate(self, programs: Sequence[Program], cluster: Cluster | None = None, *, repeats: int) -> Calibration:
        """Measure the devices and the operations of `programs`, in this process. Raises BackendError."""
        from placekit_cuda.calibration import calibrate

        if self.options.isolation != "none":
            raise BackendError("calibration measures in this process", "leave out backend.isolation")
        known = cluster or self.devices()
        assert known is not None  # a measuring backend sees its machine
        machine = self.machine(known)
        try:
            return calibrate(programs, known, machine, repeats, self.options.timeout_s, self.hardware())
        finally:
            machine.close()

    def link_s(self, cluster: Cluster) -> LinkSeconds | None:
        """The seconds of copies on the links of `cluster`; None if links are not emulated."""
        routes = cluster.routes
        if self.options.links == "memory":
            return None
        return lambda src, dst, size: float(routes.latency_s[src, dst] + size * routes.s_per_byte[src, dst])


class CPUBackend(MeasuringBackend):
    """Each device is a thread of this process, with `threads` torch threads and its own count of memory in use."""

    name = "cpu"
    options_class = CPUOptions
    options: CPUOptions

    def devices(self) -> Cluster:
        """As many devices as option `devices` or the cores allow, with equal shares of the memory and nominal rates."""
        threads = self.options.threads
        count = self.options.devices or max(1, usable_cores() // threads)
        memory = self.options.memory_bytes
        if memory is None:
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // count // 2**20 * 2**20
        kind = {
            "type": "cpu",
            "flops_per_s": {"float32": threads * _FLOPS_PER_S},
            "memory_bytes": memory,
            "memory_bytes_per_s": _BYTES_PER_S,
            "launch_overhead_s": _OVERHEAD_S,
        }
        link = {"mesh": "cpu:*", "bytes_per_s": _BYTES_PER_S, "latency_s": 2e-5}
        return Cluster.parse(
            {"name": f"cpu{count}", "kinds": {"cpu": kind}, "devices": [{"kind": "cpu", "count": count}],
             "links": [link] if count > 1 else []}
        )  # fmt: skip

    def hardware(self) -> str:
        threads = f"{self.options.threads} thread{'s' if self.options.threads > 1 else ''} a device"
        return f"{usable_cores()} cores of {processor()}, {threads}, torch {torch.__version__}"

    def machine(self, cluster: Cluster) -> Machine:
        return CPUMachine(cluster.size, self.options.threads, self.link_s(cluster))


_MUCH = 2**30
"""Other processes' use of a GPU is reported only above this: a driver and a desktop hold some hundred MiB."""


def _held_by_others(cuda: Any, gpu: int) -> int:
    """Bytes in use on a GPU that are neither PyTorch's nor of its context."""
    free, total = cuda.mem_get_info(gpu)
    return int(total - free - cuda.memory_reserved(gpu) - CONTEXT_BYTES)


class CUDABackend(MeasuringBackend):
    """Each device is a GPU, or a stream on a GPU that several devices share.

    Raises BackendError on creation if there is no GPU, so that a run that needs one fails at once.
    """

    name = "cuda"
    options_class = CUDAOptions
    options: CUDAOptions
    cuda: Any = torch.cuda
    """Tests replace this."""

    def __init__(self, options: Any = None, **values: Any) -> None:
        super().__init__(options, **values)
        if not self.cuda.is_available():
            why = "torch was built without CUDA" if torch.version.cuda is None else "torch finds no CUDA device"
            raise BackendError(
                f"backend 'cuda' needs a GPU, and there is none here ({why})",
                "use backend=cpu to run on threads of this machine's processor, or backend=simulator to simulate GPUs",
            )

    def devices(self) -> Cluster:
        """All GPUs, or the devices in the options; rates and links are measured when the GPUs are first detected.

        Devices that share a GPU have equal parts of its memory, and each has the rates of the whole GPU.
        """
        o = self.options
        gpus = self.gpus(o.devices or len(o.gpus or ()) or self.cuda.device_count())
        nominal = described(self.cuda, gpus, o.memory_bytes)
        return remembered(self.cuda, gpus, nominal, lambda: self.calibrate([], nominal, repeats=5).cluster)

    def hardware(self) -> str:
        there = Counter(self.cuda.get_device_properties(g).name for g in range(self.cuda.device_count()))
        gpus = ", ".join(f"{n} x {name}" for name, n in there.items())
        return f"{gpus}, torch {torch.__version__}, CUDA {torch.version.cuda}"

    def others(self) -> str:
        """The memory that other processes hold on the GPUs; empty with isolation: asking takes GPU memory in this process."""
        if self.options.isolation != "none":
            return ""
        held = {g: _held_by_others(self.cuda, g) for g in self.options.gpus or range(self.cuda.device_count())}
        return ", ".join(f"{units.mebibytes(size)} of cuda:{g}" for g, size in held.items() if size > _MUCH)

    def machine(self, cluster: Cluster) -> Machine:
        for name, kind in zip(cluster.device_names, cluster.device_kind, strict=True):
            if cluster.kinds[kind].type != "gpu":
                raise BackendError(
                    f"device {name!r} of cluster {cluster.name!r} is a {cluster.kinds[kind].type}, not a GPU",
                    "use a cluster of GPUs only, or backend=cpu",
                )
        return CUDAMachine(self.gpus(cluster.size), self.link_s(cluster), self.cuda)

    def gpus(self, size: int) -> list[int]:
        """The GPU of each of `size` devices: option `gpus`, else all GPUs in turn. Raises BackendError."""
        given, there = self.options.gpus, self.cuda.device_count()
        if given is None:
            return [d % there for d in range(size)]
        if len(given) != size or not all(0 <= g < there for g in given):
            raise BackendError(
                f"backend.gpus={given} is for {len(given)} devices, but the cluster has {size}"
                if len(given) != size
                else f"backend.gpus={given} names GPUs that are not there",
                f"give {size} numbers, each 0..{there - 1}",
            )
        return list(given)
