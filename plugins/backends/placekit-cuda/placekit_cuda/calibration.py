"""What a machine really does: seconds of operations, launches and copies, as medians of repeated samples.

Operations are timed where they stand in the program: it is run again and again in the order of the graph, in each pass one
operation of every signature is timed, with the inputs that it has there. A figure is the median over the passes, so that what
else the computer does for a while spoils few samples of each.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from placekit_core.calibration import Calibration, with_efficiency
from placekit_core.cluster import Cluster, DeviceKind
from placekit_core.costs import CostFile, KindCosts, signatures_of
from placekit_core.errors import BackendError, PlacekitError
from placekit_core.problem import Program
from placekit_cuda.machine import Machine, Stream

Tensors = dict[int, torch.Tensor]
Key = tuple[str, str]
"""`signatures` or `operations`, and which."""

_SAMPLE_S = {"cpu": 2e-5, "cuda": 1e-3}
"""A sample launches a kernel as often as it takes for it to last so long: on a GPU, whose clock begins before the host has
launched anything, many times; on a processor only if it is tiny, because a second one finds its inputs in the cache."""
_MAX_TIMES = 1000
_LAUNCHES = 500
_RATE_S = 2e-2  # products grow until one takes so long
_RATE_SIZE = 8192  # rows of the largest
_BANDWIDTH_BYTES = 2**28
_COPIES_BYTES = (4, 2**12, 2**16, 2**20, 2**22, 2**24)
_COPY_S = 2e-2  # no larger ones once a copy takes so long


class Clock:
    """Times what streams do. Raises BackendError for what does not end within `timeout_s`, and what work raises."""

    def __init__(self, repeats: int, timeout_s: float) -> None:
        self.repeats, self.timeout_s = repeats, timeout_s

    def once(self, stream: Stream, work: Callable[[], object], times: int = 1) -> float:
        """Seconds of `work` on `stream`, launched `times` times in a row."""
        failed: list[BaseException] = []

        def repeated() -> None:
            try:
                for _ in range(times):
                    work()
            except BaseException as e:  # it would end the thread of the stream
                failed.append(e)

        start = stream.record(timed=True)
        stream.launch(repeated)
        end = stream.record(timed=True)
        ended = end.wait(self.timeout_s)
        if failed:
            raise failed[0]
        if not ended:
            raise BackendError(
                f"an operation did not end within {self.timeout_s:g} s", "raise `backend.timeout_s`, or look for a hang"
            )
        return end.since(start) / times

    def median(self, stream: Stream, work: Callable[[], object]) -> float:
        """Median seconds of `repeats` samples, after one that does not count."""
        return float(np.median([self.once(stream, work) for _ in range(self.repeats + 1)][1:]))


@dataclass(eq=False)
class _Piece:
    """Operations that are run as one: a single one that is timed, or all up to the next.

    Attributes:
        key: what is timed, or None.
        reads: base tensors that it needs and does not make.
        keeps: those that it makes and later pieces read.
        drops: those that no later piece reads.
    """

    ops: list[int]
    key: Key | None
    run: Callable[..., Tensors]
    reads: set[int]
    keeps: set[int]
    drops: set[int] = field(default_factory=set)


class Walk:
    """A program on one device, operation after operation; `keys` says which of them are timed.

    Sources stay with the host, and are brought to the device for the operations that read them; values are dropped after
    their last reader. So there is room for programs that are too large for one device.
    """

    def __init__(self, program: Program, keys: Mapping[int, Key], device: torch.device) -> None:
        assert program.executable is not None
        self.device = device
        self.initial: Tensors = program.executable.initial()
        self.times: dict[Key, int] = {}
        self.graph = graph = program.graph
        views = program.executable.views
        groups: list[list[int]] = []
        for op in graph.topological_order[graph.kernel[graph.topological_order]].tolist():
            if not groups or op in keys or groups[-1][-1] in keys:
                groups.append([])
            groups[-1].append(op)
        while groups and groups[-1][0] not in keys:
            groups.pop()  # what comes after the last one that is timed
        reads = [{views.get(int(t), int(t)) for op in ops for t in graph.inputs(op)} for ops in groups]
        last = {t: i for i, tensors in enumerate(reads) for t in tensors}
        self.pieces: list[_Piece] = []
        for i, ops in enumerate(groups):
            made = {int(t) for op in ops for t in graph.outputs(op) if int(t) not in views}
            keeps = {t for t in made if last.get(t, i) > i}
            run = program.executable.compile(ops, device, made if ops[0] in keys else keeps)
            drops = {t for t in reads[i] if last[t] == i}
            self.pieces.append(_Piece(ops, keys.get(ops[0]), run, reads[i] - made, keeps, drops))

    def run(self, clock: Clock, stream: Stream) -> dict[Key, float]:
        """One pass: seconds of what is timed."""
        values: Tensors = {}
        found = {}
        for piece in self.pieces:
            try:
                seconds = self._run(piece, values, clock, stream)
            except PlacekitError:
                raise
            except Exception as e:
                name, more = self.graph.op_name[piece.ops[0]], ", or one that follows it," if len(piece.ops) > 1 else ""
                raise BackendError(
                    f"operation {name!r} of {self.graph.name!r}{more} failed when it was measured: {type(e).__name__}: {e}"
                ) from e
            if piece.key is not None:
                found[piece.key] = seconds
        return found

    def _run(self, piece: _Piece, values: Tensors, clock: Clock, stream: Stream) -> float:
        given: Tensors = {}
        made: Tensors = {}

        def fetch() -> None:
            for t in piece.reads:
                given[t] = values[t] if t in values else self.initial[t].to(self.device)

        def work() -> None:
            made.clear()
            made.update(piece.run(given, 0))

        clock.once(stream, fetch)
        if piece.key is None:
            seconds = clock.once(stream, work)
        elif piece.key in self.times:
            seconds = clock.once(stream, work, self.times[piece.key])
        else:  # the first pass loads kernels, and says how often each has to be launched
            seconds = min(clock.once(stream, work), clock.once(stream, work, 2))
            self.times[piece.key] = min(max(math.ceil(_SAMPLE_S[self.device.type] / max(seconds, 1e-9)), 1), _MAX_TIMES)
        for t in piece.drops:
            values.pop(t, None)
        values.update({t: made[t] for t in piece.keeps})
        return seconds


def calibrate(
    programs: Sequence[Program], cluster: Cluster, machine: Machine, repeats: int, timeout_s: float
) -> Calibration:
    """`cluster`, and the operations of `programs` on one device of each kind, as `machine` measures them.

    Raises BackendError for a program that cannot be run.
    """
    begun = time.perf_counter()
    for program in programs:
        if program.executable is None:
            raise BackendError(
                f"{program.graph.name!r} is a graph of numbers: there is nothing to measure",
                "use an importer whose programs can be run (such as `torch` or `einsum`)",
            )
    clock = Clock(repeats, timeout_s)
    kinds: dict[str, DeviceKind] = {}
    costs: dict[str, KindCosts] = {}
    spreads: list[float] = []
    for kind in cluster.kind_names:
        device = cluster.device_kind.index(kind)
        samples = _operations(programs, machine, device, clock)
        spreads += [_spread(values) for values in samples.values()]
        tables: dict[str, dict[str, float]] = {"signatures": {}, "operations": {}}
        for (table, key), values in samples.items():
            tables[table][key] = _rounded(float(np.median(values)))
        costs[kind] = KindCosts(**tables)
        kinds[kind] = _rates(cluster.kinds[kind], machine, device, clock, _dtypes(programs))
    data = cluster.model_dump() | {
        "name": f"{cluster.name}_measured",
        "description": f"{cluster.name}, measured: medians of {repeats}",
        "kinds": {name: kind.model_dump() for name, kind in kinds.items()},
        "links": _links(cluster, machine, clock),
        "relay": False,
        "multicast": False,
    }
    file = CostFile(kinds=costs, description=f"measured on {cluster.name}: medians of {repeats}")
    found = with_efficiency(Cluster.parse(data), [p.graph for p in programs], file)
    spread = float(np.median(spreads)) if spreads else 0.0
    return Calibration(found, file, len(spreads), repeats, spread, time.perf_counter() - begun)


def _operations(
    programs: Sequence[Program], machine: Machine, device: int, clock: Clock
) -> dict[Key, NDArray[np.float64]]:
    """Samples of every signature, or where an operation has none, of the operation."""
    samples: dict[Key, list[float]] = defaultdict(list)
    for program in programs:
        graph, new = program.graph, dict[Key, int]()
        for op, signature in enumerate(signatures_of(graph)):
            key = ("signatures", signature) if signature else ("operations", graph.op_name[op])
            if graph.kernel[op] and key not in samples:
                new.setdefault(key, op)
        walk = Walk(program, {op: key for key, op in new.items()}, machine.torch_device(device))
        for i in range(1 + clock.repeats):
            for key, seconds in walk.run(clock, machine.compute(device)).items():
                if i:
                    samples[key].append(seconds)
    return {key: np.array(values) for key, values in samples.items()}


def _rates(kind: DeviceKind, machine: Machine, device: int, clock: Clock, dtypes: Sequence[str]) -> DeviceKind:
    """FLOP/s that a product of matrices reaches, bytes per second of an elementwise operation, seconds of a launch."""
    stream, where = machine.compute(device), machine.torch_device(device)
    flops = {name: _rounded(_matmul_rate(getattr(torch, name), kind, stream, where, clock)) for name in dtypes}
    size = min(_BANDWIDTH_BYTES, kind.memory_bytes // 8) // 4
    x = torch.ones(max(size, 1), device=where)
    y = torch.empty_like(x)
    bandwidth = 2 * x.nbytes / clock.median(stream, lambda: torch.neg(x, out=y))
    return kind.model_copy(
        update={
            "flops_per_s": flops,
            "memory_bytes_per_s": _rounded(bandwidth),
            "launch_overhead_s": _rounded(_launch_s(stream, where, clock)),
        }
    )


def _matmul_rate(dtype: torch.dtype, kind: DeviceKind, stream: Stream, where: torch.device, clock: Clock) -> float:
    n = 128
    while True:
        a = torch.ones(n, n, dtype=dtype, device=where)
        seconds = clock.median(stream, partial(torch.mm, a, a))
        if seconds >= _RATE_S or n >= _RATE_SIZE or 12 * a.nbytes > kind.memory_bytes // 8:
            return 2.0 * n**3 / seconds
        n *= 2


def _launch_s(stream: Stream, where: torch.device, clock: Clock) -> float:
    """Seconds for each of many launches, one after the other, of a kernel with almost nothing to do."""
    one, samples = torch.ones(1, device=where), []

    def tiny() -> None:
        torch.neg(one)

    for _ in range(clock.repeats + 1):
        start = stream.record(timed=True)
        for _ in range(_LAUNCHES):
            stream.launch(tiny)
        end = stream.record(timed=True)
        end.wait(clock.timeout_s)
        samples.append(end.since(start) / _LAUNCHES)
    return float(np.median(samples[1:]))


def _links(cluster: Cluster, machine: Machine, clock: Clock) -> list[dict[str, object]]:
    """A full-duplex link between every two devices, with the latency and bandwidth of each direction."""
    names, links = cluster.device_names, list[dict[str, object]]()
    room = int(cluster.memory_bytes.min()) // 8
    for a in range(machine.size):
        for b in range(a + 1, machine.size):
            there, back = (_link(machine, src, dst, room, clock) for src, dst in ((a, b), (b, a)))
            links.append({"a": names[a], "b": names[b], **there, "reverse": back})
    return links


def _link(machine: Machine, src: int, dst: int, room: int, clock: Clock) -> dict[str, float]:
    """As the host sees it that launches a copy and waits for its end, as the engine does; medians for several sizes."""
    sizes, medians = list[int](), list[float]()
    for size in _COPIES_BYTES:
        value = torch.ones(size // 4, device=machine.torch_device(src))
        samples = [_copy_s(machine, value, src, dst, clock.timeout_s) for _ in range(clock.repeats + 1)]
        sizes.append(size)
        medians.append(float(np.median(samples[1:])))
        if len(sizes) > 1 and (medians[-1] > _COPY_S or 4 * size > room):
            break
    latency, s_per_byte = fit_line(sizes, medians)
    return {"latency_s": _rounded(latency), "bytes_per_s": _rounded(1 / s_per_byte)}


def _copy_s(machine: Machine, value: torch.Tensor, src: int, dst: int, timeout_s: float) -> float:
    link, start = machine.link(src, dst), time.perf_counter()
    link.launch(lambda: (machine.copy(value, src, dst), None)[1])
    if not link.record().wait(timeout_s):
        raise BackendError(f"a copy of {value.nbytes} bytes did not end within {timeout_s:g} s")
    return time.perf_counter() - start


def fit_line(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Latency in seconds and seconds per byte: least squares of relative errors; neither is negative."""
    x, y = np.asarray(sizes, np.float64), np.asarray(seconds, np.float64)
    fitted = np.linalg.lstsq(np.stack([1 / y, x / y], axis=1), np.ones(len(x)), rcond=None)[0]
    slope = max(float(fitted[1]), 1e-15)
    return min(max(float(fitted[0]), 0.0), float(y.min())), slope


def _dtypes(programs: Sequence[Program]) -> list[str]:
    """Floating-point types that operations compute in, as torch names them, and float32."""
    named = {"float32", *(d for p in programs for d in p.graph.dtype.take(np.flatnonzero(p.graph.kernel)).tolist())}
    return sorted(d for d in named if getattr(getattr(torch, d, None), "is_floating_point", False))


def _spread(values: NDArray[np.float64]) -> float:
    low, middle, high = np.percentile(values, [25, 50, 75])
    return float((high - low) / 2 / middle) if middle > 0 else 0.0


def _rounded(value: float) -> float:
    """Four digits: more were not measured."""
    return float(f"{value:.4g}")
