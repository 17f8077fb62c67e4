"""A second opinion on the simulator: a slow and plain one, written from the text of docs/machine-model.md alone.

It shares no code with the backends. The functions are in the order of the page; each names its section.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import combinations

import numpy as np

from placekit_core.contracts.cluster import Cluster
from placekit_core.contracts.problem import Problem


@dataclass(frozen=True)
class Rules:
    """What a user may choose about the execution: the options of the backends `simulator` and `bulk_synchronous`."""

    ready_order: str = "priority"  # priority, fifo, breadth_first, depth_first, random, arrival
    bulk: bool = False
    prefetch: int | None = None
    seed: int = 0
    noise: float = 0.0
    repetition: int = 0


@dataclass(frozen=True)
class Execution:
    """What happened in one step."""

    value_s: float  # the makespan
    peak_bytes: list[float]  # most bytes in use on each device
    operations: dict[int, tuple[int, float, float]]  # of each kernel: device, start, end
    transfers: list[tuple[int, int, float, float]]  # sorted: tensor, destination (each one of a multicast), start, end


def execute(
    problem: Problem, device: Sequence[int], priority: Sequence[float] | None = None, rules: Rules = Rules()
) -> Execution:
    """Execute one step of `problem`, with these devices and priorities of its groups."""
    if rules.prefetch is not None and (rules.bulk or problem.cluster.multicast):
        raise ValueError("machines with multicast, and bulk-synchronous executions, do not stream")
    step = Step(problem, device, rules)
    rank = ranks(problem, step, priority, rules)
    operations, transfers = operation_tasks(problem, step, rank), transfer_tasks(problem, step, rank, rules)
    connect(step, operations, transfers, rules)
    last_round = Rounds(operations + transfers, step, problem.cluster, rules).run()
    kernels = [o for o in operations if step.kernel[o.operation]]
    seconds = step.clock.seconds
    return Execution(
        value_s=seconds(max([k.end for k in kernels], default=0.0) if rules.bulk else last_round),
        peak_bytes=peaks(step, operations, transfers, problem.cluster.size),
        operations={k.operation: (k.device, seconds(k.start), seconds(k.end)) for k in kernels},
        transfers=sorted((s.tensor, d, seconds(s.start), seconds(s.end)) for s in transfers for d in s.destinations),
    )


class Step:
    """The graph as plain lists, and the device of each operation: the placement of groups, expanded (Execution)."""

    def __init__(self, problem: Problem, device: Sequence[int], rules: Rules) -> None:
        graph = problem.graph
        self.operations, self.tensors = range(graph.n), range(graph.t)
        self.device: list[int] = [int(device[g]) for g in problem.grouping.group_of.tolist()]
        self.kernel: list[bool] = graph.kernel.tolist()
        self.persistent: list[int] = graph.persistent_bytes.tolist()
        self.reads: list[list[int]] = [graph.inputs(v).tolist() for v in self.operations]
        self.readers = [[v for v in self.operations if t in self.reads[v]] for t in self.tensors]
        self.producer: list[int] = graph.tensor_producer.tolist()
        self.size: list[int] = graph.tensor_bytes.tolist()
        self.storage: list[int] = graph.tensor_storage.tolist()  # tensor that owns the memory of each tensor
        self.order: list[int] = graph.topological_order.tolist()
        self.noise_of_operation, self.noise_of_tensor = noise_factors(problem, rules)
        self.clock = clock(problem, rules)


def slots(count: int | str) -> float:
    """Clusters: `streams` of a device or `concurrent` of a link, as a number."""
    return math.inf if count == "unlimited" else float(count)


@dataclass(frozen=True, eq=False)
class Channel:
    """Clusters, channels: a direction of a link, or both directions of a half-duplex link."""

    bytes_per_s: float
    latency_s: float
    slots: float  # transfers at the same time


def link_ends(pattern: str, devices: Sequence[str]) -> list[str]:
    """Clusters, links: the devices that a pattern stands for. A name that no device has is a hub."""
    return [name for name in devices if fnmatchcase(name, pattern)] or [pattern]


def all_channels(cluster: Cluster) -> dict[tuple[str, str], Channel]:
    """Clusters, links and channels: the channel from one end to the other, for both directions of every link."""
    found: dict[tuple[str, str], Channel] = {}
    devices = cluster.device_names
    for link in cluster.links:
        if link.mesh is not None:
            patterns = [link.mesh] if isinstance(link.mesh, str) else link.mesh
            pairs = list(combinations(dict.fromkeys(n for p in patterns for n in link_ends(p, devices)), 2))
        else:
            b_ends = link_ends(str(link.b), devices)
            pairs = [(a, b) for a in link_ends(str(link.a), devices) for b in b_ends if a != b]
        for a, b in pairs:
            ways = (link, link.reverse or link)
            there, back = (Channel(way.bytes_per_s, way.latency_s, slots(way.concurrent)) for way in ways)
            found[a, b], found[b, a] = there, there if link.duplex == "half" else back
    return found


@dataclass(frozen=True)
class Path:
    """Clusters, routes: the names on a path from its source on, and its channels."""

    names: list[str]
    channels: list[Channel]

    @property
    def width(self) -> float:
        """Bandwidth of the slowest link."""
        return min([channel.bytes_per_s for channel in self.channels], default=math.inf)

    def latency_s(self, handover_s: float) -> float:
        """What a transfer of no bytes takes, in seconds."""
        for channel in self.channels:
            handover_s += channel.latency_s
        return handover_s

    def duration(self, size: int, handover_s: float, clock: Clock) -> float:
        """What a transfer of `size` bytes takes."""
        return clock.time(self.latency_s(handover_s)) + size * clock.time(1.0 / self.width)


def routes(cluster: Cluster, links: dict[tuple[str, str], Channel], source: str) -> dict[str, Path]:
    """Clusters, routes: the best path from one device to all places.

    Fewest links; then the highest bandwidth of the slowest link; then the names that come first. A path is made of the
    best path to the place before its end, and one link. Only hubs are passed through; devices too with `relay`.
    """
    best = {source: Path([source], [])}
    latest = [source]  # places that are reached with the present number of links
    while latest:
        found: dict[str, list[Path]] = {}
        for place in latest:
            if place == source or cluster.relay or place not in cluster.device_names:
                for (a, b), channel in links.items():
                    if a == place and b not in best:
                        found.setdefault(b, []).append(Path([*best[a].names, b], [*best[a].channels, channel]))
        for place, paths in found.items():
            best[place] = min(paths, key=lambda path: (-path.width, path.names))
        latest = list(found)
    return best


@dataclass(eq=False)
class Task:
    """Execution, tasks: an operation, or a transfer of a tensor to a device (with multicast, to several).

    `rank` and `turn` say what starts first: the lower one. A task is ready when all that it `needs` has ended.
    """

    device: int  # where the operation runs, or the sender of the transfer
    rank: float
    turn: tuple[float, ...]
    phase: int  # for bulk-synchronous execution
    duration: float = 0.0  # this and the times below are of the step's clock
    launched: float = 0.0  # when its host has launched the operation
    operation: int = -1  # -1 for a transfer
    tensor: int = -1
    destinations: list[int] = field(default_factory=list)
    serves: list[int] = field(default_factory=list)  # operations that wait for the transfer
    is_copy: bool = False  # a transfer of a streamed tensor
    channels: list[Channel] = field(default_factory=list)
    needs: list[Task] = field(default_factory=list)
    ready_round: int = -1  # rounds: -1 as long as it has not happened
    start_round: int = -1
    end_round: int = -1
    start: float = 0.0
    end: float = 0.0


def operation_tasks(problem: Problem, step: Step, rank: list[float]) -> list[Task]:
    """Execution, tasks and sources: a task for every operation, by index. Sources take no time."""
    seconds, depth, launched = problem.op_s.tolist(), depths(step), launches(problem, step)
    return [
        Task(
            operation=v, device=d, rank=rank[v], turn=(v,), phase=2 * depth[v] + 1 if step.kernel[v] else -1,
            duration=step.clock.time(seconds[v][d]) * step.noise_of_operation[v] if step.kernel[v] else 0,
            launched=launched[v],
        )
        for v, d in enumerate(step.device)
    ]  # fmt: skip


def host_of(cluster: Cluster, device: int) -> int:
    """Hosts: the number of a device's host in the file; -1 without one."""
    name = cluster.device_names[device]
    for i, host in enumerate(cluster.hosts):
        patterns = [host.devices] if isinstance(host.devices, str) else host.devices
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            return i
    return -1


def launch_counts(problem: Problem) -> list[float]:
    """Hosts: the number of launches of each operation."""
    column = problem.graph.columns.get("launches")
    return column.tolist() if isinstance(column, np.ndarray) else [1.0 for _ in range(problem.graph.n)]


def launch_s(cluster: Cluster, device: int) -> float:
    """Hosts: the seconds of one launch on a device."""
    host = host_of(cluster, device)
    return cluster.hosts[host].launch_s if host >= 0 and cluster.launching != "graph" else 0.0


def launches(problem: Problem, step: Step) -> list[float]:
    """Hosts: when the launch of each operation ends, by the order of the graph, on the host of its device."""
    cluster, count = problem.cluster, launch_counts(problem)
    now: dict[tuple[int, int], float] = {}
    ends = [0.0 for _ in step.operations]
    for v in step.order:
        d = step.device[v]
        host = host_of(cluster, d)
        if step.kernel[v] and host >= 0 and cluster.launching != "graph":
            thread = (host, d if cluster.launching == "per_device" else -1)
            now[thread] = now.get(thread, 0.0) + count[v] * step.clock.time(launch_s(cluster, d))
            ends[v] = now[thread]
    return ends


def handover(cluster: Cluster, device: int, to: int) -> float:
    """Hosts: by how much the host of a device makes a transfer longer from it to another device, if one of them is a GPU."""
    host = host_of(cluster, device)
    gpus = [cluster.kinds[cluster.device_kind[d]].type == "gpu" for d in (device, to)]
    if host < 0 or not any(gpus):
        return 0.0
    recorded = cluster.launching == "graph" and all(gpus)
    return cluster.hosts[host].graph_handover_s if recorded else cluster.hosts[host].handover_s


def transfer_tasks(problem: Problem, step: Step, rank: list[float], rules: Rules) -> list[Task]:
    """Execution, tasks: a transfer for every tensor and device that reads it elsewhere; with multicast, for every tensor.

    Its rank is that of the first operation that waits for it.
    """
    names, depth, links = problem.cluster.device_names, depths(step), all_channels(problem.cluster)
    routes_from = [routes(problem.cluster, links, name) for name in names]
    made: list[Task] = []
    for t, u in enumerate(step.producer):
        others = sorted({step.device[v] for v in step.readers[t]} - {step.device[u]})
        for to in [others] if problem.cluster.multicast and others else [[d] for d in others]:
            path = routes_from[step.device[u]][names[to[0]]]
            streamed = rules.prefetch is not None and not step.kernel[u]
            served = [[v for v in step.readers[t] if step.device[v] in to]]
            for serves in copies(step, t, to[0], rules.prefetch or 0) if streamed else served:
                made.append(Task(
                    device=step.device[u], tensor=t, destinations=to, serves=serves, is_copy=streamed,
                    rank=min(rank[v] for v in serves), channels=path.channels,
                    turn=(1, step.order.index(serves[0]), step.reads[serves[0]].index(t)) if streamed else (0, t, to[0]),
                    duration=path.duration(step.size[t], handover(problem.cluster, step.device[u], to[0]), step.clock)
                    * step.noise_of_tensor[t][to[0]],
                    phase=2 * depth[u] + 2 if step.kernel[u] else 0,
                ))  # fmt: skip
    return made


def connect(step: Step, operations: list[Task], transfers: list[Task], rules: Rules) -> None:
    """Execution, ready, and Streaming, copies: what each task waits for.

    An operation waits for the writers on its own device, and for the transfers that serve it. A transfer waits for the
    writer of its tensor; a copy for the reader P + 1 places before the first one that it serves, if there is one.
    """
    for task in operations:
        writers = sorted({step.producer[t] for t in step.reads[task.operation]})
        task.needs = [operations[u] for u in writers if step.device[u] == task.device]
        task.needs += [send for send in transfers if task.operation in send.serves]
    for task in transfers:
        task.needs = [operations[step.producer[task.tensor]]]
        if task.is_copy:
            readers = readers_of_sources(step, task.destinations[0])
            place = readers.index(task.serves[0]) - (rules.prefetch or 0) - 1
            task.needs = [operations[readers[place]]] if place >= 0 else []


@dataclass(frozen=True)
class Clock:
    """Execution, whole ticks: in which unit times are computed."""

    per_s: int = 0  # ticks per second; 0: times are floating-point seconds

    def time(self, seconds: float) -> float:
        """A duration in this unit; whole numbers below 2^53 are added without rounding."""
        return float(round(seconds * self.per_s)) if self.per_s else seconds

    def seconds(self, time: float) -> float:
        """A time of this unit in seconds."""
        return time / self.per_s if self.per_s else time


def clock(problem: Problem, rules: Rules) -> Clock:
    """Time in ticks: the longest tick in which every duration is a whole number, if no sum of them is rounded."""
    cluster, graph = problem.cluster, problem.graph
    names, links = cluster.device_names, all_channels(cluster)
    routes_from = [routes(cluster, links, name) for name in names]
    pairs = [(a, b) for a in range(cluster.size) for b in range(cluster.size) if a != b]
    latencies = [routes_from[a][names[b]].latency_s(handover(cluster, a, b)) for a, b in pairs] or [0.0]
    per_byte = [1.0 / routes_from[a][names[b]].width for a, b in pairs] or [0.0]
    launch = [launch_s(cluster, d) for d in range(cluster.size)]
    durations = [*latencies, *per_byte, *launch, *(s for row in problem.op_s.tolist() for s in row)]
    sizes = [int(graph.tensor_bytes[t]) for v in range(graph.n) for t in graph.inputs(v).tolist()]
    for tick in [Clock(10**decimals) for decimals in range(13)] if rules.noise == 0 else []:
        errors = [abs(s - tick.seconds(tick.time(s))) for s in durations]
        if all(error <= 1e-15 * s + 1e-18 for error, s in zip(errors, durations, strict=True)):
            launched = [count * tick.time(s) for count in launch_counts(problem) for s in set(launch)]
            longest = sum(tick.time(max(row)) for row in problem.op_s.tolist())
            longest += sum(launch_counts(problem)) * tick.time(max(launch))
            longest += sum(tick.time(max(latencies)) + size * tick.time(max(per_byte)) for size in sizes)
            if all(ticks.is_integer() for ticks in launched) and longest < 2.0**53:
                return tick
    return Clock()


class Rounds:
    """Execution, resources and rounds. What is running is listed in the order in which it was started."""

    def __init__(self, tasks: list[Task], step: Step, cluster: Cluster, rules: Rules) -> None:
        self.tasks, self.step, self.bulk = tasks, step, rules.bulk
        self.streams = [slots(cluster.kinds[kind].streams) for kind in cluster.device_kind]
        self.arrival = rules.ready_order == "arrival" and not rules.bulk
        self.round, self.now = 0, 0.0
        self.running: list[Task] = []
        self.unlaunched: list[Task] = []  # operations that wait for nothing but their host
        self.ended = [task for task in tasks if task.phase < 0]  # in this round; sources in the first one

    def run(self) -> float:
        """Carry out all rounds. Returns the time of the last one."""
        while True:
            for task in self.ended:
                task.end_round = self.round
            self.make_ready()
            self.start()
            if not self.running and not self.unlaunched:
                return self.now
            self.now = min([task.end for task in self.running] + [task.launched for task in self.unlaunched])
            self.round += 1
            ended = [task for task in self.running if task.end == self.now]
            self.ended = [t for t in ended if t.operation < 0] + [t for t in ended if t.operation >= 0]
            self.running = [task for task in self.running if task.end != self.now]

    def make_ready(self) -> None:
        """Rounds, 1: a task becomes ready when all that it needs has ended.

        Bulk-synchronous execution: all tasks of a phase become ready when all phases before it have ended. First come
        the outputs of sources (0), then the operations of a level (1, 3, ...) and their outputs (2, 4, ...).
        """
        phase = min([task.phase for task in self.tasks if task.end_round < 0], default=0)
        self.unlaunched = []
        for task in self.tasks:
            ready = task.phase == phase if self.bulk else all(other.end_round >= 0 for other in task.needs)
            if ready and task.ready_round < 0 and task.end_round < 0:
                if task.launched > self.now:
                    self.unlaunched.append(task)
                    continue
                task.ready_round = self.round
                if self.arrival and not task.is_copy:
                    task.turn = arrival_turn(self.step, task, self.ended)

    def start(self) -> None:
        """Rounds, 2: every ready task that can start does so, in rule order. One that waits holds up none behind it."""
        for task in sorted([t for t in self.tasks if t.ready_round >= 0 and t.start_round < 0], key=self.start_key):
            if self.is_free(task):
                task.start_round, task.start, task.end = self.round, self.now, self.now + task.duration
                self.running.append(task)

    def is_free(self, task: Task) -> bool:
        """Resources: whether there is a stream for an operation, or a slot in all channels for a transfer."""
        if task.operation >= 0:
            busy = [other for other in self.running if other.operation >= 0 and other.device == task.device]
            return len(busy) < self.streams[task.device]
        return all(len([other for other in self.running if c in other.channels]) < c.slots for c in task.channels)

    def start_key(self, task: Task) -> tuple[bool, int, float, int, tuple[float, ...]]:
        """Rule order: the rank, then ready in an earlier round, then the turn. Operations and transfers do not compete.

        One after another (`arrival`): operations that were ready before come first, by device.
        """
        devices = [other.device for other in self.ended if other.operation >= 0]
        first = self.arrival and task.operation >= 0 and task.ready_round < self.round and task.device in devices
        place = devices.index(task.device) if first else len(devices)
        return task.operation < 0, place, task.rank, task.ready_round, task.turn


def depths(step: Step) -> list[int]:
    """Execution, rule order, and bulk-synchronous levels: kernels on the longest path before each operation."""
    depth = [0 for _ in step.operations]
    for v in step.order:
        depth[v] = max([depth[u] + step.kernel[u] for u in [step.producer[t] for t in step.reads[v]]], default=0)
    return depth


def ranks(problem: Problem, step: Step, priority: Sequence[float] | None, rules: Rules) -> list[float]:
    """Execution, rule order: what each order compares first, for each operation; the lower number starts first."""
    if rules.ready_order == "priority" and priority is not None:
        return [-float(priority[g]) for g in problem.grouping.group_of.tolist()]
    if rules.ready_order in ("breadth_first", "depth_first"):
        sign = 1.0 if rules.ready_order == "breadth_first" else -1.0
        return [sign * depth for depth in depths(step)]
    if rules.ready_order == "random":
        return [float(r) for r in np.random.default_rng([rules.seed, 0]).permutation(problem.graph.n)]
    if rules.ready_order in ("priority", "fifo", "arrival"):
        return [0.0 for _ in step.operations]
    raise ValueError(f"there is no ready order {rules.ready_order!r}")


def arrival_turn(step: Step, task: Task, ended: list[Task]) -> tuple[float, ...]:
    """One after another: the place among tasks that become ready in this round. The last to end made an operation ready.

    Launches end after transfers, and before operations.
    """
    made_by = max([i for i, other in enumerate(ended) if other in task.needs], default=-1)
    if task.operation < 0:
        return 0, made_by, task.tensor, min(task.serves)  # 0: before streamed copies
    if made_by < 0:
        transfers = len([other for other in ended if other.operation < 0])
        return transfers - 0.5 if task.launched > 0 else -1.0, task.operation  # launched, or it reads nothing
    last = ended[made_by]
    while last.operation < 0 and made_by > 0 and ended[made_by - 1].tensor == last.tensor:
        made_by -= 1  # transfers of one tensor that end one after the other count as one
    written = [last.tensor] if last.operation < 0 else [t for t in step.tensors if step.producer[t] == last.operation]
    return made_by, max(t for t in step.reads[task.operation] if t in written), task.operation


def readers_of_sources(step: Step, device: int) -> list[int]:
    """Streaming, readers: operations of a device that read a source of another device, in topological order."""
    far = [not step.kernel[u] and step.device[u] != device for u in step.producer]
    return [v for v in step.order if step.device[v] == device and any(far[t] for t in step.reads[v])]


def copies(step: Step, tensor: int, device: int, prefetch: int) -> list[list[int]]:
    """Streaming, copies: the readers that each copy of a tensor serves, P + 1 places or fewer from one to the next."""
    served: list[list[int]] = []
    before = -math.inf
    for place, v in enumerate(readers_of_sources(step, device)):
        if tensor in step.reads[v]:
            if place - before > prefetch + 1:
                served.append([])
            served[-1].append(v)
            before = place
    return served


def allocations(step: Step, operations: list[Task], transfers: list[Task]) -> list[tuple[int, int, int, int]]:
    """Memory: device, bytes, the round in which they are taken, and the round in which they are freed.

    Outputs of kernels: one allocation for all tensors that share memory, unless a source owns it. Received copies (and
    Streaming, memory): from the start of the transfer to the end of the last reader.
    """
    made: list[tuple[int, int, int, int]] = []
    for owner, u in enumerate(step.producer):
        if step.storage[owner] == owner and step.kernel[u]:
            sharing = [t for t in step.tensors if step.storage[t] == owner]
            uses = [operations[v] for t in sharing for v in step.readers[t] if step.device[v] == step.device[u]]
            uses += [operations[u], *(send for send in transfers if send.tensor in sharing)]
            made.append((step.device[u], step.size[owner], operations[u].start_round, max(o.end_round for o in uses)))
    for send in transfers:
        for d in send.destinations:
            freed = max(operations[v].end_round for v in send.serves if step.device[v] == d)
            made.append((d, step.size[send.tensor], send.start_round, freed))
    return made


def peaks(step: Step, operations: list[Task], transfers: list[Task], size: int) -> list[float]:
    """Memory: the most bytes on each device. In a round, what ends is freed before anything is taken."""
    made, found = allocations(step, operations, transfers), list[float]()
    for device in range(size):
        own = [(bytes_, taken, freed) for d, bytes_, taken, freed in made if d == device]
        sums = [sum(b for b, taken, freed in own if taken <= now < freed) for now in {taken for _, taken, _ in own}]
        always = sum(b for v, b in enumerate(step.persistent) if step.device[v] == device)
        found.append(float(always + max(sums, default=0)))
    return found


def noise_factors(problem: Problem, rules: Rules) -> tuple[list[float], list[list[float]]]:
    """Noise: factors of operations [n], and of tensors and destinations [t, devices], drawn in this order."""
    shape, half = (problem.graph.t, problem.cluster.size), rules.noise * rules.noise / 2.0
    generator = np.random.default_rng([rules.seed, 1, rules.repetition])
    of_operations, of_tensors = generator.standard_normal(problem.graph.n), generator.standard_normal(shape)
    return np.exp(rules.noise * of_operations - half).tolist(), np.exp(rules.noise * of_tensors - half).tolist()
