"""Measures a machine: seconds of operations, launches and copies, as medians of repeated samples.

Operations are timed at their place in the program, with the inputs that they have there. The program runs several times, in
the order of the graph, and each pass times one operation of every signature. A figure is the median over the passes, so a
temporary disturbance spoils only a few samples of each figure. A GPU is held (it waits) until the host has launched a whole
sample, so that a figure is the GPU's time, not the host's time to launch. After a failure or an interruption, the remaining
operations have no figures.
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

from placekit_core import BackendError, Calibration, Cluster, CostFile, DeviceKind, KindCosts, Program, signatures_of
from placekit_cuda.efficiency import with_efficiency
from placekit_cuda.machine import Machine, Stream

Tensors = dict[int, torch.Tensor]
Key = tuple[str, str]
"""(`signatures` or `operations`, the signature or the operation's name)."""
Samples = dict[Key, list[float]]

_SAMPLE_S = {"cpu": 2e-5, "cuda": 3e-4}
"""Least seconds of a sample: shorter kernels are launched repeatedly. A GPU's clock has a resolution of half a microsecond. On a
CPU, only tiny kernels are repeated, because a repetition finds its inputs in the cache."""
_MAX_TIMES = 1000
_HOLD = 1.5  # a GPU is held for this many times the seconds that launching the sample took before
_HOLD_S = 2e-3  # but at least for this: matrix products are slower in the first moments of a GPU's work
_LONGEST_HOLD_S = 0.1  # and at most for this: work that waits for its own result takes as long to launch as to run
_LAUNCHES = 500
_RATE_S = 2e-2  # matrix products grow until one takes this long
_RATE_SIZE = 8192  # rows of the largest matrix product
_BANDWIDTH_BYTES = 2**28
_LEAST_BANDWIDTH_SHARE = (
    0.05  # to derive a bandwidth, the bytes of the largest copy must take at least this share of its seconds
)
_COPIES_BYTES = (4, 2**12, 2**16, 2**20, 2**22, 2**24, 2**26, 2**28)
_COPY_S = 2e-2  # no larger copies once one takes this much longer than the smallest


class Clock:
    """Times work on streams of `machine`.

    Raises BackendError for work that does not end within `timeout_s`; exceptions of the work pass through.

    Attributes:
        launch_s: seconds that the host took to launch the last work once.
    """

    def __init__(self, machine: Machine, repeats: int, timeout_s: float) -> None:
        self.machine, self.repeats, self.timeout_s = machine, repeats, timeout_s
        self.launch_s = 0.0

    def once(self, stream: Stream, work: Callable[[], object], times: int = 1, hold_s: float = 0.0) -> float:
        """Seconds of `work` on `stream`, launched `times` times in a row; a GPU is held for `hold_s` before the first."""
        failed: list[BaseException] = []

        def repeated() -> None:
            begun = time.perf_counter()
            try:
                for _ in range(times):
                    work()
            except BaseException as e:  # it would end the thread of the stream
                failed.append(e)
            self.launch_s = (time.perf_counter() - begun) / times

        with self.machine.launching():
            self.machine.hold(stream, hold_s)
            start = stream.record(timed=True)
            stream.launch(repeated)
            end = stream.record(timed=True)
        ended = end.wait(self.timeout_s + hold_s)
        if failed:
            raise failed[0]
        if not ended:
            raise BackendError(
                f"an operation did not end within {self.timeout_s:g} s", "raise `backend.timeout_s`, or look for a hang"
            )
        return end.since(start) / times

    def median(self, stream: Stream, work: Callable[[], object], sample_s: float) -> float:
        """Median seconds of `repeats` samples, each at least `sample_s` long. A first sample is discarded."""
        times = repetitions(min(self.once(stream, work), self.once(stream, work)), sample_s)
        hold_s = self.hold_s(times)
        return float(np.median([self.once(stream, work, times, hold_s) for _ in range(self.repeats + 1)][1:]))

    def hold_s(self, times: int) -> float:
        """How long to hold a GPU so that the host can launch the last work `times` times before the GPU begins."""
        return min(max(_HOLD * self.launch_s * times, _HOLD_S), _LONGEST_HOLD_S)


def repetitions(seconds: float, sample_s: float) -> int:
    """How many times in a row to launch work that takes `seconds` for one sample."""
    return min(max(math.ceil(sample_s / max(seconds, 1e-9)), 1), _MAX_TIMES)


@dataclass(eq=False)
class _Piece:
    """Operations that are run as one: a single operation that is timed, or all operations up to the next timed one.

    Attributes:
        key: of the timed operation, else None.
        reads: base tensors that the piece needs and does not compute.
        keeps: base tensors that it computes and later pieces read.
        drops: base tensors that it is the last to read.
    """

    ops: list[int]
    key: Key | None
    run: Callable[..., Tensors]
    reads: set[int]
    keeps: set[int]
    drops: set[int] = field(default_factory=set)


class Walk:
    """Runs a program on one device, operation after operation, and times the operations in `keys`.

    Sources stay on the host, and are copied to the device for the operations that read them; values are dropped after
    their last reader. So even programs that are too large for one device can run.

    Attributes:
        error: why an operation failed; that operation and the following ones are not run again.
    """

    def __init__(self, program: Program, keys: Mapping[int, Key], device: torch.device) -> None:
        assert program.executable is not None
        self.device = device
        self.initial: Tensors = program.executable.initial()
        self.times: dict[Key, tuple[int, float]] = {}
        self.error: str | None = None
        self.graph = graph = program.graph
        views = program.executable.views
        groups: list[list[int]] = []
        for op in graph.topological_order[graph.kernel[graph.topological_order]].tolist():
            if not groups or op in keys or groups[-1][-1] in keys:
                groups.append([])
            groups[-1].append(op)
        while groups and groups[-1][0] not in keys:
            groups.pop()  # the operations after the last timed one
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
        """One pass: the seconds of the timed operations. Raises BackendError if the device hangs."""
        values: Tensors = {}
        found = {}
        for i, piece in enumerate(self.pieces):
            name, more = self.graph.op_name[piece.ops[0]], ", or one that follows it," if len(piece.ops) > 1 else ""
            where = f"operation {name!r} of {self.graph.name!r}{more}"
            try:
                seconds = self._run(piece, values, clock, stream)
            except BackendError as e:
                raise BackendError(f"{where}: {e.message}", e.hint) from None
            except Exception as e:
                self.error = f"{where} failed when it was measured: {type(e).__name__}: {e}"
                del self.pieces[i:]
                break
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
            seconds = clock.once(stream, work, *self.times[piece.key])
        else:  # the first pass loads kernels, and shows how many launches each needs, and how long to hold the GPU
            seconds = min(clock.once(stream, work), clock.once(stream, work, 2))
            times = repetitions(seconds, _SAMPLE_S[self.device.type])
            self.times[piece.key] = times, clock.hold_s(times)
        for t in piece.drops:
            values.pop(t, None)
        values.update({t: made[t] for t in piece.keeps})
        return seconds


def calibrate(
    programs: Sequence[Program], cluster: Cluster, machine: Machine, repeats: int, timeout_s: float, hardware: str = ""
) -> Calibration:
    """Measure `cluster`, and the operations of `programs` on one device of each kind, on `machine`.

    Ctrl-C ends the measuring of operations, but keeps the figures so far. Raises BackendError for a program that cannot be
    run, and if a device hangs or fails before operations are measured.
    """
    begun = time.perf_counter()
    for program in programs:
        if program.executable is None:
            raise BackendError(
                f"{program.graph.name!r} is only a graph: there is nothing to run and measure",
                "use an importer whose programs can be run (such as `torch` or `einsum`)",
            )
        if len(programs) > 1 and "" in {signatures_of(program.graph)[v] for v in np.flatnonzero(program.graph.kernel)}:
            raise BackendError(
                f"operations of {program.graph.name!r} have no signatures, and several programs share the names of operations",
                "measure one program at a time",
            )
    clock, notes = Clock(machine, repeats, timeout_s), list[str]()
    kinds, gpus, launch_s = {}, list[str](), 0.0
    for name in cluster.kind_names:
        device, kind = cluster.device_kind.index(name), cluster.kinds[name]
        kinds[name] = _rates(kind, machine, device, clock, _dtypes(programs, kind), notes)
        if kind.type == "gpu":  # this process launches for all of them; the clock's last work had nothing to do
            gpus += [n for n, k in zip(cluster.device_names, cluster.device_kind, strict=True) if k == name]
            launch_s = max(launch_s, clock.launch_s)
    links = _links(cluster, machine, clock, notes)
    samples: dict[str, Samples] = {name: defaultdict(list) for name in kinds}
    failures, interrupted = list[str](), False
    try:
        for name, own in samples.items():
            failures += _operations(programs, machine, cluster.device_kind.index(name), clock, own)
    except BackendError as e:  # a device hangs
        failures.append(str(e))
    except KeyboardInterrupt:
        interrupted = True
    about = f"measured: medians of {repeats}{' at most' if interrupted else ''}{f'; on {hardware}' if hardware else ''}"
    data = cluster.model_dump() | {
        "name": f"{cluster.name.removesuffix('_measured')}_measured",
        "description": f"{cluster.name}, {about}",
        "kinds": {name: kind.model_dump() for name, kind in kinds.items()},
        "links": links,
        "hosts": [{"devices": gpus, "launch_s": _rounded(launch_s)}] if gpus else [],
        "launching": "eager",
        "relay": False,
        "multicast": False,
    }
    costs = {name: KindCosts(**_medians(own)) for name, own in samples.items()}
    file = CostFile(kinds=costs, description=f"{cluster.name}, {about}")
    found = with_efficiency(Cluster.parse(data), [p.graph for p in programs], file)
    spreads = np.array([_spread(values) for own in samples.values() for values in own.values()])
    return Calibration(
        cluster=found, costs=file, figures=len(spreads), repeats=repeats,
        spread=float(np.median(spreads)) if len(spreads) else math.nan,
        largest_spread=float(spreads.max()) if len(spreads) else math.nan,
        notes=tuple(notes), failures=tuple(failures), interrupted=interrupted, seconds=time.perf_counter() - begun,
    )  # fmt: skip


def _operations(
    programs: Sequence[Program], machine: Machine, device: int, clock: Clock, samples: Samples
) -> list[str]:
    """Add samples for every signature, and for every operation without one. Returns the failures."""
    failures = []
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
        if walk.error is not None:
            failures.append(walk.error)
    return failures


def _medians(samples: Samples) -> dict[str, dict[str, float]]:
    tables: dict[str, dict[str, float]] = {"signatures": {}, "operations": {}}
    for (table, key), values in samples.items():
        tables[table][key] = _rounded(float(np.median(values)))
    return tables


def _rates(
    kind: DeviceKind, machine: Machine, device: int, clock: Clock, dtypes: Sequence[str], notes: list[str]
) -> DeviceKind:
    """`kind` with measured FLOP/s of a matrix product, bytes per second of an elementwise operation and seconds of a launch."""
    stream, where = machine.compute(device), machine.torch_device(device)
    flops = dict(kind.flops_per_s)
    for name in dtypes:
        try:
            flops[name] = _rounded(_matmul_rate(getattr(torch, name), kind, stream, where, clock))
        except RuntimeError as e:  # torch has no product of this type
            said = str(e).partition("\n")[0]
            notes.append(f"products of {name} could not be measured ({said}): {name} keeps the rate that it had")
    try:
        size = min(_BANDWIDTH_BYTES, kind.memory_bytes // 8) // 4
        x = torch.rand(max(size, 1), device=where)
        y = torch.empty_like(x)
        bandwidth = 2 * x.nbytes / clock.median(stream, lambda: torch.neg(x, out=y), _SAMPLE_S[where.type])
        launch = _launch_s(stream, where, clock)
    except RuntimeError as e:
        raise BackendError(
            f"device {device} could not be measured: {str(e).partition(chr(10))[0]}",
            "use a smaller `backend.memory_bytes`",
        ) from e
    return kind.model_copy(
        update={
            "flops_per_s": flops,
            "memory_bytes_per_s": _rounded(bandwidth),
            "launch_overhead_s": _rounded(launch),
        }
    )


def _matmul_rate(dtype: torch.dtype, kind: DeviceKind, stream: Stream, where: torch.device, clock: Clock) -> float:
    n = 128
    while True:
        # random numbers, as in programs: with equal numbers a GPU takes less power, and so has a higher clock
        a, b = (torch.randn(n, n, device=where).to(dtype) for _ in range(2))
        seconds = clock.median(stream, partial(torch.mm, a, b), _SAMPLE_S[where.type])
        if seconds >= _RATE_S or n >= _RATE_SIZE or 12 * a.nbytes > kind.memory_bytes // 8:
            return 2.0 * n**3 / seconds
        n *= 2


def _launch_s(stream: Stream, where: torch.device, clock: Clock) -> float:
    """Seconds of a kernel with almost nothing to do, when many run in a row; on a CPU, they include the call.

    Afterwards `clock.launch_s` is the median of the host's seconds for a launch.
    """
    tiny, samples, host = partial(torch.neg, torch.ones(1, device=where)), list[float](), list[float]()
    for _ in range(clock.repeats + 1):  # held like operations, whose figures contain a launch
        samples.append(clock.once(stream, tiny, _LAUNCHES, clock.hold_s(_LAUNCHES)))
        host.append(clock.launch_s)
    clock.launch_s = float(np.median(host[1:]))
    return float(np.median(samples[1:]))


def _links(cluster: Cluster, machine: Machine, clock: Clock, notes: list[str]) -> list[dict[str, object]]:
    """A full-duplex link between every two devices, with the latency and bandwidth of each direction."""
    names, links = cluster.device_names, list[dict[str, object]]()
    for a in range(machine.size):
        for b in range(a + 1, machine.size):
            there, back = (_link(cluster, machine, src, dst, clock, notes) for src, dst in ((a, b), (b, a)))
            links.append({"a": names[a], "b": names[b], **there, "reverse": back})
    return links


def _link(cluster: Cluster, machine: Machine, src: int, dst: int, clock: Clock, notes: list[str]) -> dict[str, float]:
    """Fit latency and bandwidth to the median seconds of copies of several sizes, from the launch until the host sees the end."""
    sizes, medians = list[int](), list[float]()
    room = int(cluster.memory_bytes.min()) // 8
    for size in _COPIES_BYTES:
        value = torch.rand(size // 4, device=machine.torch_device(src))
        samples = [_copy_s(machine, value, src, dst, clock.timeout_s) for _ in range(clock.repeats + 1)]
        sizes.append(size)
        medians.append(float(np.median(samples[1:])))
        if medians[-1] - medians[0] > _COPY_S or (len(sizes) > 1 and 4 * size > room):
            break
    latency, s_per_byte = fit_line(sizes, medians)
    if s_per_byte * sizes[-1] < _LEAST_BANDWIDTH_SHARE * medians[-1]:
        s_per_byte = medians[-1] / sizes[-1]
        notes.append(
            f"larger copies from {cluster.device_names[src]} to {cluster.device_names[dst]} take no longer: this link gets the"
            f" {_rounded(1e-9 / s_per_byte):g} GB/s of the largest copy, a lower bound"
        )
    return {"latency_s": _rounded(latency), "bytes_per_s": _rounded(1 / s_per_byte)}


def _copy_s(machine: Machine, value: torch.Tensor, src: int, dst: int, timeout_s: float) -> float:
    failed: list[BaseException] = []

    def copy() -> None:
        try:
            machine.copy(value, src, dst)
        except BaseException as e:  # it would end the thread of the link
            failed.append(e)

    link = machine.link(src, dst)
    with machine.launching():
        start = time.perf_counter()
        link.launch(copy)
        ended = link.record().wait(timeout_s)
        seconds = time.perf_counter() - start
    if failed or not ended:
        why = f"failed: {failed[0]}" if failed else f"did not end within {timeout_s:g} s"
        raise BackendError(f"a copy of {value.nbytes} bytes from device {src} to device {dst} {why}")
    return seconds


def fit_line(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Fit latency (seconds) and seconds per byte by least squares of relative errors; a negative one becomes 0."""
    x, y = np.asarray(sizes, np.float64), np.asarray(seconds, np.float64)
    latency, slope = np.linalg.lstsq(np.stack([1 / y, x / y], axis=1), np.ones(len(x)), rcond=None)[0]
    if slope < 0:  # then take the best constant
        return float((1 / y).sum() / (1 / y**2).sum()), 0.0
    if latency < 0:  # then take the best proportion
        return 0.0, float((x / y).sum() / ((x / y) ** 2).sum())
    return float(latency), float(slope)


def _dtypes(programs: Sequence[Program], kind: DeviceKind) -> list[str]:
    """Floating-point types, by torch's names, that operations compute in or that the device has rates for."""
    computed = {d for p in programs for d in p.graph.dtype.take(np.flatnonzero(p.graph.kernel)).tolist()}
    return sorted(
        d for d in {*kind.flops_per_s, *computed} if getattr(getattr(torch, d, None), "is_floating_point", False)
    )


def _spread(values: Sequence[float]) -> float:
    """Half the interquartile range, divided by the median; NaN for one sample."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    return float((high - low) / 2 / middle) if middle > 0 and len(values) > 1 else math.nan


def _rounded(value: float) -> float:
    """`value` rounded to four digits, the precision of a measurement."""
    return float(f"{value:.4g}")
