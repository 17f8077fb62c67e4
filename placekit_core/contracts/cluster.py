"""The machine: devices, and the channels that carry transfers between them. See docs/machine-model.md.

A cluster file lists kinds of devices, devices, and links between devices or hubs (a PCIe switch, a NIC). A name in a link
that belongs to no device is a hub. A link makes one channel per direction. A route is the path with the fewest links
(then the widest; see `_widest_shortest` for ties). A transfer holds all channels of its route from start to end.
"""

from __future__ import annotations

import fnmatch
import hashlib
import heapq
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import combinations
from operator import add
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from placekit_core.contracts.arrays import cached_arrays, freeze
from placekit_core.contracts.errors import ClusterError, explain, listed, unknown
from placekit_core.contracts.files import parse_yaml, read_bytes, reading

MAX_DEVICES = 1024  # with more, finding routes takes seconds; device indices are 16-bit
# fields of a kind that enter a fingerprint only if they are set (as `hosts` do), so that older fingerprints stay valid
_OMIT_IF_DEFAULT = ("reserve_bytes", "headroom")
UNLIMITED = 2**30  # capacity of a channel or device that never makes anything wait

# Classes of operations: the rows of the efficiency table in costs.py.
OperationClass = Literal[
    "matmul", "unaligned_matmul", "quantized_matmul", "inference_matmul", "convolution", "attention", "normalization",
    "reduction", "pooling", "elementwise", "copy", "embedding", "other",
]  # fmt: skip


def _number(value: Any) -> Any:
    """YAML reads `11e9` as a string; take it as a number."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT])i?B")


def _whole(value: Any) -> Any:
    """Read a number of bytes: `11e9`, `24GB` or `24GiB`. The last two are equal, because memory is sold in powers of 2."""
    if isinstance(value, str) and (size := _SIZE.fullmatch(value)):
        return round(float(size[1]) * 2.0 ** (10 * " KMGT".index(size[2])))
    number = _number(value)
    return int(number) if isinstance(number, float) and number.is_integer() else value


Launching = Literal["eager", "graph", "per_device"]
"""How a runtime launches operations. `eager`: each host launches for all its devices. `graph`: as recorded graphs,
which takes the host no time. `per_device`: each device has a process that launches its operations."""

Number = Annotated[float, BeforeValidator(_number)]
Positive = Annotated[Number, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[Number, Field(ge=0, allow_inf_nan=False)]
Concurrent = Annotated[int, Field(ge=1, lt=UNLIMITED)] | Literal["unlimited"]


class _Model(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, defer_build=True, ignored_types=(cached_arrays,)
    )


class Efficiency(_Model):
    """Fractions of the peak rates that a class of operations reaches; `compute_16bit` replaces `compute` for 16-bit numbers."""

    compute: Annotated[Number, Field(gt=0, le=1)]
    memory: Annotated[Number, Field(gt=0, le=1)]
    compute_16bit: Annotated[Number, Field(gt=0, le=1)] | None = None


class DeviceKind(_Model):
    """The properties of one kind of device. Rates are peaks; `costs.py` holds the fractions that operations reach.

    Placements may use `usable_bytes`: the memory without `reserve_bytes` (the driver, the CUDA context, other
    programs), less the fraction `headroom` of the remainder (lost to fragmentation in the allocator).
    """

    type: Literal["gpu", "cpu"] = "gpu"
    flops_per_s: dict[str, Positive]
    memory_bytes: Annotated[int, BeforeValidator(_whole), Field(gt=0)]
    memory_bytes_per_s: Positive
    reserve_bytes: Annotated[int, BeforeValidator(_whole), Field(ge=0)] = 0
    headroom: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    launch_overhead_s: NonNegative = 0.0
    streams: Concurrent = 1
    efficiency: dict[OperationClass, Efficiency] = {}

    @model_validator(mode="after")
    def _possible(self) -> DeviceKind:
        if "float32" not in self.flops_per_s:
            raise ValueError("flops_per_s needs at least float32: dtypes that are not listed use its rate")
        if self.usable_bytes < 1:
            raise ValueError("reserve_bytes and headroom leave nothing of memory_bytes")
        return self

    @property
    def usable_bytes(self) -> int:
        """Memory for placements, bytes: without the reserve and the headroom."""
        return int((self.memory_bytes - self.reserve_bytes) * (1.0 - self.headroom))


class Device(_Model):
    """One device, or `count` of them, named KIND:0, KIND:1, ... unless `name` is given."""

    kind: str
    name: str | None = None
    count: Annotated[int, Field(ge=1, le=MAX_DEVICES)] = 1

    @model_validator(mode="after")
    def _one_name_one_device(self) -> Device:
        if self.name is not None and self.count != 1:
            raise ValueError("a device with a name has count 1")
        return self


class Direction(_Model):
    """One direction of a link: bandwidth, latency, and how many transfers it carries at the same time."""

    bytes_per_s: Positive
    latency_s: NonNegative = 0.0
    concurrent: Concurrent = 1


class Link(Direction):
    """A connection between `a` and `b` (names or patterns), or between all pairs of `mesh`.

    Full duplex by default, with the same rate in both directions; `reverse` describes b to a where it differs.
    """

    a: str | None = None
    b: str | None = None
    mesh: str | list[str] | None = None
    duplex: Literal["full", "half"] = "full"
    reverse: Direction | None = None

    @model_validator(mode="after")
    def _two_ends(self) -> Link:
        if (self.mesh is None) == (self.a is None) or (self.a is None) != (self.b is None):
            raise ValueError("a link has either `a` and `b`, or `mesh`")
        if self.reverse is not None and (self.mesh is not None or self.duplex == "half"):
            raise ValueError("`reverse` goes with `a` and `b` and a full-duplex link")
        return self


class Host(_Model):
    """A process that launches the operations of its devices, one after the other in the order of the program.

    Attributes:
        devices: names or patterns.
        launch_s: seconds per launch.
        handover_s: seconds that it adds to each transfer from one of its devices, if the sender or the receiver is a GPU.
        graph_handover_s: replaces `handover_s` between two GPUs if the host starts recorded graphs and waits for their ends.
    """

    devices: str | Annotated[list[str], Field(min_length=1)] = "*"
    launch_s: NonNegative
    handover_s: NonNegative = 0.0
    graph_handover_s: NonNegative = 0.0


@dataclass(frozen=True)
class Channel:
    """One direction of a link (or both, for a half-duplex one). Transfers wait for channels."""

    name: str
    bytes_per_s: float
    latency_s: float
    capacity: int


class Cluster(_Model):
    """A machine. Raises pydantic's ValidationError; `Cluster.parse` turns that into a ClusterError."""

    name: str = "cluster"
    description: str = ""
    kinds: dict[str, DeviceKind]
    devices: Annotated[list[Device], Field(min_length=1)]
    links: list[Link] = []
    hosts: list[Host] = []
    launching: Launching = "eager"
    relay: bool = Field(False, description="devices pass on transfers between others")
    multicast: bool = Field(False, description="one send of a tensor serves all its destinations")

    @model_validator(mode="after")
    def _not_too_many(self) -> Cluster:
        total = sum(d.count for d in self.devices)
        if total > MAX_DEVICES:
            raise ValueError(f"{total} devices are more than {MAX_DEVICES}")
        return self

    @classmethod
    def parse(cls, data: Any, source: str = "cluster") -> Cluster:
        """Cluster from plain data. Raises one ClusterError that names `source` and lists every problem."""
        try:
            cluster = cls.model_validate(data)
        except ValidationError as e:
            message, hint = explain(e, cls, noun="field")
            raise ClusterError(f"{source} is not a valid cluster: {message}", hint) from None
        try:
            _ = cluster.launchers, cluster.routes
        except ClusterError as e:
            raise ClusterError(f"{source}: {e.message}", e.hint) from None
        return cluster

    @cached_property
    def device_names(self) -> tuple[str, ...]:
        """Names of the devices; placements hold indices into it."""
        names: list[str] = []
        count: dict[str, int] = {}
        for d in self.devices:
            if d.kind not in self.kinds:
                raise unknown("device kind", d.kind, self.kinds, ClusterError)
            for _ in range(d.count):
                i = count.get(d.kind, 0)
                names.append(d.name or f"{d.kind}:{i}")
                count[d.kind] = i + 1
        if len(set(names)) < len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise ClusterError(f"two devices of {self.name!r} are called {twice!r}", "rename one of them")
        return tuple(names)

    @cached_property
    def device_kind(self) -> tuple[str, ...]:
        """Kind of each device."""
        return tuple(d.kind for d in self.devices for _ in range(d.count))

    @property
    def kind_names(self) -> tuple[str, ...]:
        """The kinds that devices have, in order of first use: the columns of a CostTable."""
        return tuple(dict.fromkeys(self.device_kind))

    @cached_arrays
    def kind_of(self) -> NDArray[np.int32]:
        """[D] index into `kind_names` of each device."""
        return np.asarray([self.kind_names.index(k) for k in self.device_kind], np.int32)

    @property
    def size(self) -> int:
        """Number of devices D."""
        return len(self.device_kind)

    @cached_arrays
    def memory_bytes(self) -> NDArray[np.float64]:
        """[D] bytes that placements may use on each device: `DeviceKind.usable_bytes`."""
        return np.asarray([self.kinds[k].usable_bytes for k in self.device_kind], np.float64)

    @property
    def withheld_bytes(self) -> int:
        """Memory of all devices that placements may not use: reserves and headroom, bytes."""
        return sum(self.kinds[k].memory_bytes - self.kinds[k].usable_bytes for k in self.device_kind)

    @cached_arrays
    def streams(self) -> NDArray[np.int32]:
        """[D] operations that each device runs at the same time."""
        return np.asarray([_capacity(self.kinds[k].streams) for k in self.device_kind], np.int32)

    @cached_property
    def launchers(self) -> Launchers:
        """The hosts that launch operations, by device. Raises ClusterError for devices with two hosts."""
        names, host_of = self.device_names, np.full(self.size, -1, np.int32)
        for i, host in enumerate(self.hosts):
            for pattern in [host.devices] if isinstance(host.devices, str) else host.devices:
                for d in _devices(pattern, names):
                    if host_of[d] not in (-1, i):
                        raise ClusterError(f"{names[d]} of {self.name!r} has two hosts", "give each device one host")
                    host_of[d] = i
        recorded = self.launching == "graph"
        rows = [(0.0 if recorded else h.launch_s, h.handover_s, h.graph_handover_s if recorded else h.handover_s)
                for h in self.hosts]  # fmt: skip
        launch_s, handover_s, between_gpus_s = np.asarray([*rows, (0.0, 0.0, 0.0)])[host_of].T
        gpu = np.asarray([self.kinds[k].type == "gpu" for k in self.device_kind])
        if self.launching == "per_device":
            host_of = np.arange(self.size, dtype=np.int32)
        both, one = gpu[:, None] & gpu, gpu[:, None] != gpu
        seconds = np.where(both, between_gpus_s[:, None], np.where(one, handover_s[:, None], 0.0))
        return Launchers(host_of, np.ascontiguousarray(launch_s), seconds)

    def launched(self, how: Launching) -> Cluster:
        """The same machine with another way of launching. Raises ClusterError if there is no such way."""
        if how not in get_args(Launching):
            raise unknown("way of launching", str(how), get_args(Launching), ClusterError)
        if how == self.launching:
            return self
        return Cluster(
            **{name: getattr(self, name) for name in Cluster.model_fields} | {"launching": how}
        )  # without the cached properties of `self`

    @cached_property
    def routes(self) -> Routes:
        """Route of every ordered pair of devices. Raises ClusterError where there is no path."""
        return _routes(self)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything but the name and description."""
        unused: dict[str, Any] = {"name": True, "description": True}
        unused["kinds"] = {name: _unused(kind) for name, kind in self.kinds.items()}
        if not self.hosts:
            unused |= {"hosts": True, "launching": True}
        text = self.model_dump_json(exclude=unused)
        return hashlib.sha256(b"placekit-cluster-1\0" + text.encode()).hexdigest()[:32]

    def device_index(self, name: str) -> int:
        """Index of the device called `name`. Raises ClusterError that lists the devices."""
        if name not in self.device_names:
            raise unknown("device", name, self.device_names, ClusterError)
        return self.device_names.index(name)


@dataclass(frozen=True, eq=False)
class Launchers:
    """The host of each of the D devices, and how long its launches take. Devices without a host launch in no time.

    Attributes:
        host: [D] number of the host; devices of one host wait for each other's launches. -1: no host.
        launch_s: [D] seconds per launch.
        handover_s: [D, D] seconds that a transfer from one device to another takes longer; 0 between CPUs.
    """

    host: NDArray[np.int32]
    launch_s: NDArray[np.float64]
    handover_s: NDArray[np.float64]

    def __post_init__(self) -> None:
        freeze(self, "host", "launch_s", "handover_s")

    @property
    def any(self) -> bool:
        """Whether launching takes time on any device."""
        return bool((self.launch_s > 0).any())


@dataclass(frozen=True, eq=False)
class Routes:
    """Channels and the routes over them, as arrays.

    Attributes:
        channels: the C channels.
        ptr, channel: route r = `src * D + dst` holds the channels `channel[ptr[r] : ptr[r + 1]]`. Channels of unlimited
            capacity count for latency and bandwidth, but are left out here: nothing waits for them.
        latency_s: [D, D] the time of a hand-over between GPUs and the latencies on the route, seconds.
        s_per_byte: [D, D] 1 / lowest bandwidth of the route; a transfer takes `latency_s + bytes * s_per_byte` seconds.
    """

    channels: tuple[Channel, ...]
    ptr: NDArray[np.int32]
    channel: NDArray[np.int32]
    latency_s: NDArray[np.float64]
    s_per_byte: NDArray[np.float64]

    def __post_init__(self) -> None:
        freeze(self, "ptr", "channel", "latency_s", "s_per_byte")

    @cached_arrays
    def capacity(self) -> NDArray[np.int32]:
        """[C] transfers that each channel carries at the same time."""
        return np.asarray([c.capacity for c in self.channels], np.int32)


def load_cluster(path: str | Path) -> Cluster:
    """Cluster from a YAML file. Raises ClusterError."""
    path = Path(path)
    if not os.path.isfile(path):
        raise ClusterError(f"no cluster file {path}", "`placekit run --help` lists the machines that ship")
    with reading(path, ClusterError, "cluster", "it needs at least `kinds`, `devices` and `links`"):
        data = parse_yaml(read_bytes(path))
        if not isinstance(data, dict):
            raise ValueError("it holds no cluster")
    return Cluster.parse({"name": path.stem, **data}, str(path))


def _unused(kind: DeviceKind) -> dict[str, Any]:
    """The fields to leave out of the fingerprint of a kind, as pydantic's `exclude`."""
    rows = {c: {"compute_16bit": True} for c, row in kind.efficiency.items() if row.compute_16bit is None}
    return {name: True for name in _OMIT_IF_DEFAULT if not getattr(kind, name)} | ({"efficiency": rows} if rows else {})


def _capacity(value: int | str) -> int:
    return UNLIMITED if value == "unlimited" else int(value)


def _devices(pattern: str, names: tuple[str, ...]) -> list[int]:
    """The devices that match a host's pattern. Raises ClusterError if no device does."""
    found = fnmatch.filter(names, pattern)
    if not found:
        raise ClusterError(f"host of {pattern!r} matches no device", f"devices: {listed(names, pattern)}")
    return [names.index(name) for name in found]


def _match(pattern: str, names: tuple[str, ...]) -> list[str]:
    """The devices that match `pattern`; else the hub of this name. Raises ClusterError for a pattern or `KIND:0`."""
    found = fnmatch.filter(names, pattern)
    if not found and re.search(r"[*?[]|:\d+$", pattern):
        raise ClusterError(f"link end {pattern!r} matches no device", f"devices: {listed(names, pattern)}")
    return found or [pattern]


def _pairs(link: Link, names: tuple[str, ...]) -> Iterable[tuple[str, str]]:
    if link.mesh is not None:
        ends = [n for p in ([link.mesh] if isinstance(link.mesh, str) else link.mesh) for n in _match(p, names)]
        return combinations(dict.fromkeys(ends), 2)
    assert link.a is not None
    assert link.b is not None
    if link.a == link.b and link.a in names:
        raise ClusterError(f"the link from {link.a} to itself connects nothing", "give it another end")
    return [(a, b) for a in _match(link.a, names) for b in _match(link.b, names) if a != b]


def _routes(cluster: Cluster) -> Routes:
    names = cluster.device_names
    channels: list[Channel] = []
    out: dict[str, dict[str, int]] = {}  # node -> node -> channel
    for link in cluster.links:
        for a, b in _pairs(link, names):
            for u, v in ((a, b), (b, a)):
                if v in out.setdefault(u, {}):
                    raise ClusterError(
                        f"{u} and {v} of {cluster.name!r} have two links", "give one link with their sum"
                    )
                if link.duplex == "full" or u == a:
                    arrow = "->" if link.duplex == "full" else "<->"
                    way = link.reverse if link.reverse is not None and u == b else link
                    channels.append(
                        Channel(f"{u}{arrow}{v}", way.bytes_per_s, way.latency_s, _capacity(way.concurrent))
                    )
                out[u][v] = len(channels) - 1
    size = len(names)
    loose = next((node for node, to in out.items() if node not in names and len(to) == 1), None)
    if loose is not None and size > 1:
        raise ClusterError(
            f"hub {loose!r} of {cluster.name!r} has only one link, so it connects nothing",
            "a link end that names no device is a hub: correct the name, or link the hub to something else, too;"
            f" devices: {listed(names, loose)}",
        )
    ptr, flat = [0], []
    latency, inverse = np.zeros((size, size)), np.zeros((size, size))
    limited = [c.capacity < UNLIMITED for c in channels]
    latency_of, bytes_per_s = [c.latency_s for c in channels], [c.bytes_per_s for c in channels]
    no_relay, handover_s = set() if cluster.relay else set(names), cluster.launchers.handover_s
    for i, src in enumerate(names):
        paths = _widest_shortest(src, out, bytes_per_s, no_relay)
        latencies, inverses = [0.0] * size, [0.0] * size
        for j, dst in enumerate(names):
            if i != j:
                if dst not in paths:
                    raise ClusterError(
                        f"no route from {src} to {dst} in {cluster.name!r}", "add a link, or `relay: true`"
                    )
                route = paths[dst]
                flat += [c for c in route if limited[c]]
                # `sum` rounds in another way from Python 3.12 on
                latencies[j] = reduce(add, [latency_of[c] for c in route], float(handover_s[i, j]))
                inverses[j] = 1.0 / min([bytes_per_s[c] for c in route])
            ptr.append(len(flat))
        latency[i], inverse[i] = latencies, inverses
    routes = Routes(tuple(channels), np.asarray(ptr, np.int32), np.asarray(flat, np.int32), latency, inverse)
    if cluster.multicast:
        for i, src in enumerate(names):
            rows = [i * size + j for j in range(size) if j != i]
            ways = {
                (*flat[ptr[r] : ptr[r + 1]], latency.flat[r], inverse.flat[r]) for r in rows
            }  # one send can serve all destinations only if each of them needs the same channels
            if len(ways) > 1:
                raise ClusterError(
                    f"multicast from {src} in {cluster.name!r} would hold different channels per destination",
                    "link the devices to one hub, limited in the direction of the hub only (`reverse: concurrent: unlimited`)",
                )
    return routes


def _widest_shortest(
    source: str, out: dict[str, dict[str, int]], bytes_per_s: list[float], no_relay: set[str]
) -> dict[str, list[int]]:
    """Channels on the path to every node: fewest links, then the highest bandwidth of the slowest link.

    A path extends the best path to the node before it. Among equal paths, the first in the order of node names wins, compared
    from the source on.
    """
    best: dict[str, list[int]] = {}
    queue: list[tuple[int, float, list[str], list[int]]] = [(0, -np.inf, [source], [])]
    while queue:
        hops, neg_width, path, used = heapq.heappop(queue)
        node = path[-1]
        if node in best:
            continue
        best[node] = used
        if node in no_relay and node != source:
            continue
        for nxt, c in out.get(node, {}).items():
            if nxt not in best:
                heapq.heappush(queue, (hops + 1, max(neg_width, -bytes_per_s[c]), [*path, nxt], [*used, c]))
    best.pop(source)
    return best
