"""The three backends in plain Python, operation by operation and tensor by tensor: what the compiled evaluations must equal.

Nothing here knows nets, stores or sums that are kept up to date. Times are exact where the costs are small multiples of
a power of two; elsewhere the compiled evaluations differ by their rounding.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from placekit_layers import sequence
from placekit_layers.following import leaders

from placekit_core import Problem

FORWARD, BACKWARD, UPDATE = range(3)
CHUNKS = 8  # of a device, under `interleaved`
Task = tuple[str, int, int]  # F, B, W or U; stage; micro-batch


def hop_s(problem: Problem, tensor: int, a: int, b: int) -> float:
    """Seconds of a tensor from device a to device b: as the graph's source states them, else those of the route."""
    graph, routes = problem.graph, problem.cluster.routes
    stated = graph.columns.get("transfer_s")
    if isinstance(stated, np.ndarray) and stated[graph.tensor_producer[tensor]] >= 0:
        return float(stated[graph.tensor_producer[tensor]])
    return float(routes.latency_s[a, b] + graph.tensor_bytes[tensor] * routes.s_per_byte[a, b])


def persistent(problem: Problem, home: list[int]) -> list[float]:
    """Persistent bytes on each device."""
    used = [0.0] * problem.cluster.size
    for v, bytes_ in enumerate(problem.graph.persistent_bytes.tolist()):
        used[home[v]] += bytes_
    return used


def max_load(problem: Problem, device: NDArray[np.int16]) -> tuple[float, list[float]]:
    """The largest load of a device: its operations, tensors that leave it and tensors that it needs; CPUs pay none of these."""
    graph, home = problem.graph, problem.expand(device).tolist()
    load = [0.0] * problem.cluster.size
    for v in range(graph.n):
        load[home[v]] += float(problem.op_s[v, home[v]])
    pays = [problem.device_type(d) == "gpu" for d in range(problem.cluster.size)]
    for x in range(graph.t):
        a = home[graph.tensor_producer[x]]
        there = {home[c] for c in graph.consumers(x).tolist()} - {a}
        for b in there:
            load[b] += hop_s(problem, x, a, b) * pays[b]
        load[a] += max((hop_s(problem, x, a, b) for b in there), default=0.0) * pays[a]
    return max(load), persistent(problem, home)


def blocking_latency(problem: Problem, device: NDArray[np.int16]) -> tuple[float, list[float]]:
    """The end of the last call; infinity if calls wait for each other.

    All operations of an accelerator with the same depth are one call; each operation on a CPU is one, too.
    """
    graph, home = problem.graph, problem.expand(device).tolist()
    fast = [problem.device_type(d) == "gpu" for d in range(problem.cluster.size)]
    call: dict[int, tuple[int, int]] = {v: (home[v], -1 - v) for v in range(graph.n)}
    for f in np.flatnonzero(fast).tolist():
        depth = [0] * graph.n
        for v in graph.topological_order.tolist():
            before = graph.tensor_producer[graph.inputs(v)].tolist()
            if graph.kernel[v] and home[v] == f:
                depth[v] = max([1, *(depth[u] + (home[u] != f) for u in before)])
                call[v] = (f, depth[v])
            else:
                depth[v] = max((depth[u] for u in before), default=0)
    seconds: dict[tuple[int, int], float] = defaultdict(float)
    waits: dict[tuple[int, int], set[tuple[int, int]]] = {call[v]: set() for v in np.flatnonzero(graph.kernel).tolist()}
    for v in np.flatnonzero(graph.kernel).tolist():
        seconds[call[v]] += float(problem.op_s[v, home[v]])
    for x in range(graph.t):
        u = int(graph.tensor_producer[x])
        away = {call[c] for c in graph.consumers(x).tolist()} - {call[u]}
        if not graph.kernel[u]:  # nobody sends a source
            away = {q for q in away if q[0] != home[u]}
        hops = {q: hop_s(problem, x, home[u], q[0]) for q in away}
        for q, hop in hops.items():
            seconds[q] += hop * fast[q[0]]
            if graph.kernel[u]:
                waits[q].add(call[u])
        if graph.kernel[u]:
            seconds[call[u]] += max(hops.values(), default=0.0) * fast[home[u]]
    end: dict[tuple[int, int], float] = {}
    while ready := [q for q in waits if q not in end and waits[q] <= end.keys()]:
        for q in ready:
            end[q] = max((end[w] for w in waits[q]), default=0.0) + seconds[q]
    for f, k in end:
        assert k < 2 or end[f, k - 1] + seconds[f, k] <= end[f, k] * (1 + 1e-12), "calls of one accelerator overlap"
    return max(end.values(), default=0.0) if len(end) == len(waits) else math.inf, persistent(problem, home)


def phases(problem: Problem, trains: bool) -> list[int]:
    """The phase of each operation; never earlier than that of one that it reads from."""
    graph = problem.graph
    found = graph.phase.tolist() if trains else [FORWARD] * graph.n
    for v in graph.topological_order.tolist() if trains else ():
        found[v] = max([found[v], *(found[graph.tensor_producer[x]] for x in graph.inputs(v))])
    return found


def weight_gradients(problem: Problem, phase: list[int]) -> set[int]:
    """Backward operations all of whose results end in the update of one parameter."""
    graph = problem.graph
    ends: list[set[object]] = [set() for _ in range(graph.n)]
    for v in graph.topological_order[::-1].tolist():
        if phase[v] == UPDATE:
            own = int(graph.colocate[v])
            ends[v] = {own if own >= 0 else ("alone", v)}
        elif phase[v] == BACKWARD:
            for x in graph.outputs(v):
                for c in graph.consumers(x).tolist():
                    ends[v] |= ends[c] or {("nowhere", c)}
    return {v for v in range(graph.n) if phase[v] == BACKWARD and len(ends[v]) == 1 and "nowhere" not in str(ends[v])}


@dataclass
class Step:
    """One placement on one problem under one schedule.

    `tasks` are those that ran, with their start and end; `sends` the messages (kind, from, to, micro-batch, start, end).
    """

    problem: Problem
    device: NDArray[np.int16]
    schedule: str
    microbatches: int = 1
    checkpointing: bool = False
    tasks: list[tuple[Task, float, float]] = field(default_factory=list)
    sends: list[tuple[str, int, int, int, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        problem, graph = self.problem, self.problem.graph
        self.size = problem.cluster.size
        self.phase = phases(problem, self.schedule != "inference")
        self.home = problem.expand(self.device).tolist()
        self.possible = True
        stage = self.chunks() if self.schedule == "interleaved" else self.device.tolist()
        self.stage = [stage[group] for group in problem.grouping.group_of]
        self.late_weights = weight_gradients(problem, self.phase) if self.schedule == "zero_bubble" else set()
        self.blocks = sequence(problem) if self.checkpointing and BACKWARD in self.phase else None
        self.working = {self.stage[v] for v in range(graph.n) if graph.kernel[v] and self.phase[v] < UPDATE}
        self.bytes_ = self.messages()
        self.channel_free: dict[int, float] = defaultdict(float)

    def repeats(self, v: int) -> bool:
        """Whether the backward pass repeats operation v of the forward pass."""
        if self.blocks is None or self.phase[v] != FORWARD or not self.problem.graph.kernel[v]:
            return False
        works = any(p == BACKWARD and k for p, k in zip(self.phase, self.problem.graph.kernel, strict=True))
        return bool(self.blocks.layer[self.blocks.of_op[v]]) and works

    def chunks(self) -> list[int]:
        """The stage of each group: device + devices * (number of its chunk), by changes of device on the way to it."""
        problem, graph, group = self.problem, self.problem.graph, self.problem.grouping.group_of
        edges = {
            (int(group[u]), int(group[v]))
            for u, v in zip(*graph.op_edges, strict=True)
            if graph.kernel[u] and graph.kernel[v] and self.phase[u] == self.phase[v] == FORWARD
        }
        level = [0] * problem.g
        device: list[int] = self.device.tolist()
        changed = True
        while changed and max(level, default=0) < self.size * CHUNKS:
            changed = False
            for a, b in edges:
                need = level[a] + (device[a] != device[b])
                if level[b] < need:
                    level[b], changed = need, True
        lead: list[int] = leaders(problem).tolist()
        works = {int(group[v]) for v in range(graph.n) if graph.kernel[v] and self.phase[v] < UPDATE}
        own: dict[int, list[int]] = {}
        for d in range(self.size):
            own[d] = sorted({level[i] for i in works if device[i] == d and lead[i] == i})
        if changed or max(map(len, own.values())) > CHUNKS:
            self.possible = False
            return device
        return [
            d + self.size * (own[d].index(level[lead[i]]) if level[lead[i]] in own[d] else 0)
            for i, d in enumerate(device)
        ]

    def messages(self) -> dict[tuple[str, int, int], float]:
        """Bytes of each kind of message between two stages: each tensor that a stage reads of another, once."""
        graph = self.problem.graph
        found: dict[tuple[str, int, int], float] = defaultdict(float)
        for x in range(graph.t):
            u = int(graph.tensor_producer[x])
            readers: dict[int, set[int]] = defaultdict(set)
            for c in graph.consumers(x).tolist():
                readers[self.stage[c]].add(self.phase[c])
            for b, of in readers.items():
                if b == self.stage[u]:
                    continue
                kinds = set()
                if not graph.kernel[u]:
                    kinds = {"source"}
                elif self.phase[u] == UPDATE:
                    kinds = {"again"}
                else:
                    if UPDATE in of:
                        kinds.add("end")
                    if of - {UPDATE} and self.phase[u] == BACKWARD:
                        kinds.add("back")
                    elif of - {UPDATE}:
                        kinds.add("ahead" if FORWARD in of else "late")
                for kind in kinds:
                    found[kind, self.stage[u], b] += float(graph.tensor_bytes[x])
        return dict(found)

    # ---- seconds

    def task_s(self, kind: str, stage: int) -> float:
        """Seconds of a task of a stage."""
        total = 0.0
        for v in range(self.problem.graph.n):
            if self.stage[v] != stage or not self.problem.graph.kernel[v]:
                continue
            own = "W" if v in self.late_weights else "FBU"[self.phase[v]]
            times = (own == kind) + (kind == "B" and self.repeats(v))
            total += times * float(self.problem.op_s[v, self.home[v]])
        return total

    def between(self, kind: str, a: int, b: int) -> float:
        """Seconds of a message."""
        a_device, b_device, routes = a % self.size, b % self.size, self.problem.cluster.routes
        if a_device == b_device:
            return 0.0
        rate = routes.s_per_byte[a_device, b_device]
        return float(routes.latency_s[a_device, b_device] + self.bytes_[kind, a, b] * rate)

    def held(self, a: int, b: int) -> list[int]:
        """Channels that a message holds: those for one transfer at a time."""
        routes, route = self.problem.cluster.routes, (a % self.size) * self.size + b % self.size
        channels = (
            routes.channel[routes.ptr[route] : routes.ptr[route + 1]].tolist() if a % self.size != b % self.size else []
        )
        return [c for c in channels if routes.capacity[c] == 1]

    def send(self, kind: str, a: int, b: int, batch: int, now: float) -> float:
        """Send a message as soon as its channels are free; its arrival."""
        channels = self.held(a, b)
        start = max([now, *(self.channel_free[c] for c in channels)])
        end = start + self.between(kind, a, b)
        for c in channels:
            self.channel_free[c] = end
        self.sends.append((kind, a, b, batch, start, end))
        return end

    def ranks(self) -> dict[int, int] | None:
        """Stages on the longest path from each stage to the end of the forward phase; None if stages wait for each other."""
        after: dict[int, set[int]] = defaultdict(set)
        for kind, a, b in self.bytes_:
            if kind == "ahead":
                after[a].add(b)
        rank: dict[int, int] = {}
        open_: set[int] = set()

        def of(s: int) -> int:
            if s in open_:
                raise RecursionError
            if s not in rank:
                open_.add(s)
                rank[s] = 1 + max((of(b) for b in after[s]), default=0)
                open_.remove(s)
            return rank[s]

        try:
            for s in range(self.size * CHUNKS):
                of(s)
        except RecursionError:
            return None
        return rank

    # ---- objectives

    def step_s(self, update: bool = True) -> float:
        """Seconds of a step; infinity if tasks wait for each other."""
        rank = self.ranks() if self.possible else None
        if rank is None:
            return math.inf
        return Events(self, rank, self.microbatches, self.schedule != "inference").run(update)

    def token_s(self) -> float:
        """Seconds of one micro-batch through the forward phase."""
        rank = self.ranks() if self.possible else None
        return math.inf if rank is None else Events(self, rank, 1, False).run(False)

    def throughput_s(self) -> float:
        """The largest load of a device or channel for one micro-batch."""
        if self.step_s(update=False) == math.inf:
            return math.inf
        backward = self.schedule != "inference"
        load: dict[object, float] = defaultdict(float)
        for s in range(self.size * CHUNKS):
            for kind in "FBW" if backward else "F":
                load["device", s % self.size] += self.task_s(kind, s)
        for kind, a, b in self.bytes_:
            if kind == "ahead" or (backward and kind in ("back", "late")):
                for c in self.held(a, b):
                    load["channel", c] += self.between(kind, a, b)
        return max(load.values())

    # ---- memory

    def saved(self) -> tuple[dict[int, float], dict[int, float]]:
        """Bytes that each stage saves for a micro-batch in flight, and that each block recomputes."""
        graph, blocks = self.problem.graph, self.blocks
        holders: dict[int, set[int]] = defaultdict(set)
        inner: dict[int, set[int]] = defaultdict(set)
        for v in range(graph.n):
            for x in graph.inputs(v).tolist():
                y = int(graph.tensor_storage[x])
                u = int(graph.tensor_producer[y])
                if not graph.kernel[u] or self.phase[u] != FORWARD:
                    continue
                same = blocks is not None and blocks.of_op[u] == blocks.of_op[v]
                if self.phase[v] == BACKWARD:
                    if same and blocks is not None and blocks.layer[blocks.of_op[u]]:
                        inner[int(blocks.of_op[u])].add(y)
                    else:
                        holders[y].add(self.stage[v])
                elif blocks is not None and self.phase[v] == FORWARD and not same and blocks.layer[blocks.of_op[v]]:
                    holders[y].add(self.stage[v])
        total: dict[int, float] = defaultdict(float)
        for y, stages in holders.items():
            for s in stages:
                total[s] += float(graph.owned_bytes[y])
        again = {block: float(sum(int(graph.owned_bytes[y]) for y in ys)) for block, ys in inner.items()}
        self.counted = {y for y in {*holders, *chain(*inner.values())} if graph.owned_bytes[y]}
        return total, again

    def fixed(self) -> list[float]:
        """Bytes on each device that do not depend on micro-batches: persistent, sources' copies, gradients, largest operation."""
        graph = self.problem.graph
        used = persistent(self.problem, self.home)
        for (kind, a, b), bytes_ in self.bytes_.items():
            if kind == "source" and a % self.size != b % self.size:
                used[b % self.size] += bytes_
        gradients: dict[int, set[int]] = defaultdict(set)
        for v in range(graph.n):
            for x in graph.inputs(v).tolist():
                y = int(graph.tensor_storage[x])
                u = int(graph.tensor_producer[y])
                if graph.kernel[u] and self.phase[u] == BACKWARD and self.phase[v] == UPDATE:
                    gradients[y] |= {self.stage[u], self.stage[v]}
        for y, stages in gradients.items():
            for s in stages:
                used[s % self.size] += float(graph.owned_bytes[y])
        largest, again = [0.0] * self.size, self.saved()[1]
        for v in range(graph.n):
            if graph.kernel[v]:
                new = [
                    x
                    for x in [*graph.inputs(v).tolist(), *graph.outputs(v)]
                    if graph.kernel[graph.tensor_producer[x]]
                    and int(graph.tensor_storage[x]) not in {*self.counted, *gradients}
                ]
                written = [x for x in new if graph.tensor_producer[x] == v]
                work = sum(int(graph.tensor_bytes[x]) for x in new if x not in written)
                work += sum(int(graph.owned_bytes[x]) for x in written)
                if self.blocks is not None and self.phase[v] == BACKWARD:
                    work += int(again.get(int(self.blocks.of_op[v]), 0))
                largest[self.home[v]] = max(largest[self.home[v]], float(work))
        return [u + w for u, w in zip(used, largest, strict=True)]


class Events:
    """The events of `count` micro-batches, instant by instant."""

    def __init__(self, step: Step, rank: dict[int, int], count: int, backward: bool) -> None:
        self.step, self.rank, self.count, self.backward = step, rank, count, backward
        self.size = step.size
        self.kinds = ("FB" + "W" * (step.schedule == "zero_bubble")) if backward else "F"
        self.started: dict[tuple[str, int], int] = defaultdict(int)
        self.done: dict[tuple[str, int], int] = defaultdict(int)
        self.arrived: dict[tuple[str, int, int, int], float] = {}  # kind, from, to, micro-batch
        self.begin_s: dict[int, float] = defaultdict(float)
        self.finish_s: dict[int, float] = defaultdict(float)
        self.running: dict[int, tuple[float, Task]] = {}
        self.in_flight = [0.0] * self.size
        self.most = [0.0] * self.size
        self.saved = step.saved()[0]
        self.order = self.in_turns() if backward and step.schedule == "interleaved" else None

    def peaks(self) -> list[float]:
        """Peak bytes of each device; call it after `run`."""
        return [f + m for f, m in zip(self.step.fixed(), self.most, strict=True)]

    def arrival(self, kinds: tuple[str, ...], stage: int, batch: int) -> float:
        """When the last of these messages is there; infinity if one is not sent yet."""
        need = [(k, a, b) for k, a, b in self.step.bytes_ if k in kinds and b == stage]
        return max([0.0, *(self.arrived.get((k, a, b, batch), math.inf) for k, a, b in need)])

    def ready(self, kind: str, stage: int, now: float) -> bool:
        """Whether the next task of this kind has its inputs."""
        batch = self.started[kind, stage]
        if batch == self.count or stage not in self.step.working:
            return False
        if kind == "F":
            return self.arrival(("ahead",), stage, batch) <= now and self.begin_s[stage] <= now
        if kind == "B":
            return self.done["F", stage] > batch and self.arrival(("back", "late"), stage, batch) <= now
        return self.done["B", stage] > batch

    def in_turns(self) -> dict[int, list[Task]] | None:
        """Each device's tasks in Megatron-LM's order, written out as its tables are; None where it does not apply."""
        own = {d: sorted(s for s in self.step.working if s % self.size == d) for d in range(self.size)}
        own = {d: stages for d, stages in own.items() if stages}
        p, m = len(own), self.count
        if p < 2 or len({len(stages) for stages in own.values()}) > 1 or m % p:
            return None
        v = len(next(iter(own.values())))
        if v < 2:
            return None
        place = {d: v * p - self.rank[stages[0]] for d, stages in own.items()}  # Megatron's rank of the device
        for d, stages in own.items():
            expected = [place[d] + k * p for k in range(v)]
            if not 0 <= place[d] < p or [v * p - self.rank[s] for s in stages] != expected:
                return None
        found = {}
        for d, stages in own.items():
            ahead = [("F", stages[k % (p * v) // p], k // (p * v) * p + k % p) for k in range(m * v)]
            back = [("B", stages[v - 1 - k % (p * v) // p], k // (p * v) * p + k % p) for k in range(m * v)]
            warm = min((p - place[d] - 1) * 2 + (v - 1) * p, m * v)
            steady = [t for pair in zip(ahead[warm:], back, strict=False) for t in pair]
            found[d] = [*ahead[:warm], *steady, *back[m * v - warm :]]
        return found

    def choose(self, d: int, now: float) -> Task | None:
        """The task that device d starts now."""
        schedule, backward = self.step.schedule, self.backward
        if self.order is not None:
            count = sum(n for (_, s), n in self.started.items() if s % self.size == d)
            if d not in self.order or count == len(self.order[d]):
                return None
            kind, s, batch = self.order[d][count]
            assert self.started[kind, s] == batch
            return (kind, s, batch) if self.ready(kind, s, now) else None
        if schedule in ("gpipe", "1f1b", "inference"):
            f, b = self.started["F", d], self.started["B", d]
            full = schedule == "1f1b" and backward and f - b >= self.rank[d]
            kind = "B" if full or f == self.count else "F"
            return (kind, d, f if kind == "F" else b) if kind in self.kinds and self.ready(kind, d, now) else None
        stages = [d + k * self.size for k in range(CHUNKS)] if schedule == "interleaved" else [d]
        back = [s for s in stages if backward and self.ready("B", s, now)]
        if back:  # the least advanced, of later chunks first
            s = min(back, key=lambda s: (self.started["B", s], -s))
            return "B", s, self.started["B", s]
        ahead = [s for s in stages if self.ready("F", s, now) and not (s == d and self.full(d, stages))]
        if ahead:  # micro-batches in turns of as many as there are devices
            p = max(1, len({s % self.size for s in self.step.working}))

            def turn(s: int) -> tuple[int, int, int]:
                return self.started["F", s] // p, s // self.size, self.started["F", s] % p

            s = min(ahead, key=turn)
            return "F", s, self.started["F", s]
        if "W" in self.kinds and self.ready("W", d, now):
            return "W", d, self.started["W", d]
        return None

    def full(self, d: int, stages: list[int]) -> bool:
        """Whether the first stage of device d may begin no further micro-batch."""
        if not self.backward:
            return False
        v, p = sum(s in self.step.working for s in stages), len({s % self.size for s in self.step.working})
        limit = max(self.rank[d], 2 * p) if self.step.schedule == "interleaved" and v != 1 else self.rank[d]
        if "W" in self.kinds and self.started["F", d] - self.done["W", d] >= max(
            self.rank[s] for s in range(self.size)
        ):
            return True
        return self.started["F", d] - self.done["B", d] >= limit

    def run(self, update: bool) -> float:
        """Seconds of all; infinity if tasks wait for each other."""
        step, now = self.step, 0.0
        for kind, a, b in sorted(step.bytes_, key=lambda x: x[1:]):
            if kind == "source" and a % self.size != b % self.size:
                self.begin_s[b] = max(self.begin_s[b], step.send("source", a, b, 0, 0.0))
        while True:
            for d in range(self.size):
                if d not in self.running:
                    task = self.choose(d, now)
                    if task is not None:
                        self.start(d, task, now)
            times = [end for end, _ in self.running.values()]
            times += [t for t in (*self.arrived.values(), *self.begin_s.values()) if t > now]
            if not times:
                break
            now = min(times)
            for d in sorted(d for d, (end, _) in self.running.items() if end == now):
                self.finish(d, now)
        expected = {(k, s): self.count for k in self.kinds for s in step.working}
        if any(self.done[k] != n for k, n in expected.items()):
            return math.inf
        return self.update() if update else max(self.finish_s.values(), default=0.0)

    def start(self, d: int, task: Task, now: float) -> None:
        kind, s, _ = task
        self.started[kind, s] += 1
        end = now + self.step.task_s(kind, s)
        self.running[d] = end, task
        self.step.tasks.append((task, now, end))
        if kind == "F" and self.backward:
            self.in_flight[d] += self.saved.get(s, 0.0)
            self.most[d] = max(self.most[d], self.in_flight[d])

    def finish(self, d: int, now: float) -> None:
        _, (kind, s, batch) = self.running.pop(d)
        self.done[kind, s] += 1
        self.finish_s[s] = now
        if kind == self.kinds[-1] and self.backward:
            self.in_flight[d] -= self.saved.get(s, 0.0)
        sent = {"F": ("ahead", "late") if self.backward else ("ahead",), "B": ("back",), "W": ()}[kind]
        for b in range(self.size * CHUNKS):
            for message in sent:
                if (message, s, b) in self.step.bytes_:
                    self.arrived[message, s, b, batch] = self.step.send(message, s, b, batch, now)

    def update(self) -> float:
        """The end of the last update: each waits for what it reads of other devices."""
        step, size = self.step, self.size
        start = [max(self.finish_s[s] for s in range(d, size * CHUNKS, size)) for d in range(size)]
        for s in range(size * CHUNKS):
            if step.task_s("U", s) > 0:
                start[s % size] = max(start[s % size], self.begin_s[s])
        pairs = sorted((a, b, kind) for kind, a, b in step.bytes_ if kind in ("end", "again") and a % size != b % size)
        for a, b, kind in pairs:
            if kind == "end":
                start[b % size] = max(start[b % size], step.send(kind, a, b, 0, self.finish_s[a]))
        ended: dict[int, float] = {}
        while len(ended) < size:
            before = len(ended)
            for d in range(size):
                waits = {a % size for a, b, kind in pairs if kind == "again" and b % size == d}
                if d in ended or waits - set(ended):
                    continue
                ended[d] = start[d] + sum(step.task_s("U", s) for s in range(d, size * CHUNKS, size))
                step.tasks.append((("U", d, 0), start[d], ended[d]))
                for a, b, kind in pairs:
                    if kind == "again" and a % size == d:
                        start[b % size] = max(start[b % size], step.send(kind, a, b, 0, ended[d]))
            if len(ended) == before:
                return math.inf
        return max(ended.values())


def pipeline(
    problem: Problem,
    device: NDArray[np.int16],
    objective: str,
    schedule: str,
    microbatches: int,
    repeat: bool,
) -> tuple[float, list[float], Step]:
    """Value, peak bytes, and the step of a placement."""
    step = Step(problem, device, schedule, microbatches, repeat)
    rank = step.ranks() if step.possible else None
    if rank is None:
        return math.inf, [], step
    backward = schedule != "inference"
    events = Events(step, rank, 1, False) if objective == "token" else Events(step, rank, microbatches, backward)
    value = events.run(objective == "step")
    peaks = events.peaks()
    if objective == "throughput" and value < math.inf:
        value = Step(problem, device, schedule, microbatches, repeat).throughput_s()
    return value, peaks, step


# ---- replicas


@dataclass
class Rows:
    """One placement on rows of devices: each row is a step of its own, and devices that are in several rows work for all.

    `tasks` and `sends` are as those of `Step`; a ring's bucket is a send ("ring", from, to, bucket, start, end).
    """

    problem: Problem
    device: NDArray[np.int16]
    rows: list[list[int]]
    schedule: str
    microbatches: int
    shares: list[int] | None = None
    overlap: bool = True
    shard: bool = False
    checkpointing: bool = False
    tasks: list[tuple[Task, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        problem, first = self.problem, self.rows[0]
        self.column = [self.column_of(d) for d in self.device.tolist()]
        self.members = [list(dict.fromkeys(row[j] for row in self.rows)) for j in range(len(first))]
        self.possible = -1 not in self.column and all(
            problem.allowed[group, d] for group, j in enumerate(self.column) for d in self.members[j]
        )
        placed = [np.asarray([row[max(j, 0)] for j in self.column], np.int16) for row in self.rows]
        self.steps = [Step(problem, d, self.schedule, self.microbatches, self.checkpointing) for d in placed]
        for step in self.steps:
            step.channel_free, step.sends = self.steps[0].channel_free, self.steps[0].sends
        self.size = problem.cluster.size
        self.backward = self.schedule != "inference"
        self.kinds = ("FB" + "W" * (self.schedule == "zero_bubble")) if self.backward else "F"
        self.named = sorted({d for row in self.rows for d in row})
        self.of = {d: next(s for s, row in zip(self.steps, self.rows, strict=True) if d in row) for d in self.named}
        self.times = {d: sum(d in row for row in self.rows) for d in self.named}
        self.shared = max(self.times.values()) > 1
        self.working = [d for d in self.named if d in self.of[d].working]
        self.once = {
            (kind, a, b): bytes_
            for step, row in zip(self.steps, self.rows, strict=True)
            for (kind, a, b), bytes_ in step.bytes_.items()
            if kind in ("source", "end", "again") and self.of[b] is step
        }

    def column_of(self, device: int) -> int:
        """The column that a placement on a device means; -1 if none or several."""
        columns = {j for row in self.rows for j, d in enumerate(row) if d == device}
        return columns.pop() if len(columns) == 1 else -1

    def ranks(self) -> dict[int, int] | None:
        """Stages on the longest path from each, over all rows."""
        edges = {(a, b) for step in self.steps for kind, a, b in step.bytes_ if kind == "ahead"}
        rank = dict.fromkeys(self.named, 1)
        for _ in range(self.size + 1):
            longer = {a: max([1, *(rank[b] + 1 for x, b in edges if x == a)]) for a in self.named}
            if longer == rank:
                return rank
            rank = longer
        return None

    def divide(self, count: int) -> list[int]:
        """The row of each micro-batch."""
        seconds = [max(sum(self.of[d].task_s(k, d) for k in self.kinds) for d in row) for row in self.rows]
        own, found = [0] * len(self.rows), list[int]()
        for batch in range(count):
            if batch < len(self.rows):
                r = batch
            elif self.shares is not None:
                r = min(range(len(own)), key=lambda r: ((own[r] + 1) / (self.shares or own)[r], r))
            else:
                r = min(range(len(own)), key=lambda r: ((own[r] + 1) * seconds[r], r))
            own[r] += 1
            found.append(r)
        return found

    def gradient_bytes(self, j: int) -> float:
        """Bytes that the backward operations of column j make for updates."""
        graph, phase, found = self.problem.graph, self.steps[0].phase, set()
        for v in range(graph.n):
            for x in graph.inputs(v).tolist():
                y = int(graph.tensor_storage[x])
                u = int(graph.tensor_producer[y])
                mine = self.column[self.problem.grouping.group_of[u]] == j
                if mine and graph.kernel[u] and phase[u] == BACKWARD and phase[v] == UPDATE:
                    found.add(y)
        return float(sum(int(graph.owned_bytes[y]) for y in found))

    def edges(self, j: int) -> list[tuple[int, int]]:
        """The routes of the ring of column j."""
        ring = self.members[j]
        return list(zip(ring, [*ring[1:], ring[0]], strict=True))

    def ring_s(self, j: int, bytes_: float) -> float:
        """Seconds in which the ring of column j averages some bytes."""
        routes, n = self.problem.cluster.routes, len(self.members[j])
        busy: dict[object, float] = defaultdict(float)
        for a, b in self.edges(j):
            seconds = float(routes.latency_s[a, b] + bytes_ / n * routes.s_per_byte[a, b])
            for key in ((a, b), *self.steps[0].held(a, b)):
                busy[key] += seconds
        return 2 * (n - 1) * max(busy.values())

    def update_s(self, d: int) -> float:
        """Seconds of the update of a device: of each column, all or its part."""
        step, total = self.of[d], 0.0
        for v in range(self.problem.graph.n):
            if step.home[v] == d and step.phase[v] == UPDATE and self.problem.graph.kernel[v]:
                ring = self.members[self.column[self.problem.grouping.group_of[v]]]
                total += float(self.problem.op_s[v, d]) / (len(ring) if self.shard else 1)
        if self.shard:  # it sends the parameters that it has updated
            own = [j for j, m in enumerate(self.members) if d in m and len(m) > 1]
            total += sum(self.ring_s(j, self.gradient_bytes(j)) for j in own) / 2
        return total

    def run(self, objective: str) -> tuple[float, list[float]]:
        """Value and peak bytes; infinity and nothing if the placement has no value."""
        rank = self.ranks() if self.possible else None
        if rank is None:
            return math.inf, []
        events = RowEvents(self, rank, 1 if objective == "token" else self.microbatches, objective)
        value = events.run()
        peaks = [0.0] * self.size
        graph, group = self.problem.graph, self.problem.grouping.group_of
        for d in self.named:
            step = self.of[d]
            peaks[d] = step.fixed()[d] + events.most[d]
            for v in np.flatnonzero(graph.op_type.is_value("state")).tolist() if self.shard else ():
                n = len(self.members[self.column[group[v]]])
                peaks[d] -= float(graph.persistent_bytes[v]) * (1 - 1 / n) * (step.home[v] == d)
        if objective == "throughput" and value < math.inf:
            value = self.busiest(events.row_of)
        return value, peaks

    def busiest(self, row_of: list[int]) -> float:
        """The largest load of a device or channel, per micro-batch."""
        load: dict[object, float] = defaultdict(float)
        for r in row_of:
            for d in set(self.rows[r]):
                load["device", d] += sum(self.of[d].task_s(k, d) for k in self.kinds) / len(row_of)
            for kind, a, b in self.steps[r].bytes_:
                if kind == "ahead" or (self.backward and kind in ("back", "late")):
                    for c in self.steps[r].held(a, b):
                        load["channel", c] += self.steps[r].between(kind, a, b) / len(row_of)
        return max(load.values())


class RowEvents:
    """The events of all rows, instant by instant."""

    def __init__(self, rows: Rows, rank: dict[int, int], count: int, objective: str) -> None:
        self.rows, self.rank, self.objective = rows, rank, objective
        self.backward = rows.backward and objective != "token"
        self.kinds = rows.kinds if self.backward else "F"
        self.row_of = rows.divide(count) if objective != "token" else [0]
        self.own = {d: [i for i, r in enumerate(self.row_of) if d in rows.rows[r]] for d in rows.named}
        self.started: dict[tuple[str, int], int] = defaultdict(int)
        self.done: dict[tuple[str, int], int] = defaultdict(int)
        self.arrived: dict[tuple[str, int, int, int], float] = {}
        self.begin_s, self.finish_s, self.averaged = (defaultdict[int, float](float) for _ in range(3))
        self.running: dict[int, tuple[float, Task]] = {}
        self.in_flight, self.most = defaultdict[int, float](float), defaultdict[int, float](float)
        self.last: dict[int, tuple[float, float]] = {}  # start and end of the last backward task
        self.bucket: dict[int, int] = defaultdict(int)
        self.free: dict[int, float] = defaultdict(float)
        averages = objective == "step" and self.backward
        self.rings = {
            j: rows.gradient_bytes(j) for j, m in enumerate(rows.members) if len(m) > 1 and averages
        }  # fmt: skip
        self.rings = {j: bytes_ for j, bytes_ in self.rings.items() if bytes_ > 0}
        self.joined: dict[int, float] = {}  # when the last member of each ring began its last task

    def ready(self, kind: str, d: int, now: float) -> bool:
        k = self.started[kind, d]
        if k == len(self.own[d]) or d not in self.rows.working:
            return False
        batch = self.own[d][k]
        needs = {"F": ("ahead",), "B": ("back", "late"), "W": ()}[kind]
        step = self.rows.steps[self.row_of[batch]]
        there = [self.arrived.get((k, a, b, batch), math.inf) for k, a, b in step.bytes_ if k in needs and b == d]
        if max([0.0, *there]) > now:
            return False
        before = {"B": "F", "W": "B"}.get(kind)
        return self.begin_s[d] <= now if before is None else self.done[before, d] > k

    def choose(self, d: int, now: float) -> str | None:
        rows, flight = self.rows, self.started["F", d] - self.started["B", d]
        keep = 1 + (self.rank[d] - 1) * rows.times[d]
        ready = [kind for kind in self.kinds if self.ready(kind, d, now)]
        ahead = self.started["F", d] < len(self.own[d])
        if rows.schedule == "zero_bubble":
            most = max(1 + (self.rank[x] - 1) * rows.times[x] for x in rows.named)
            full = self.started["F", d] - self.done["W", d] >= most or self.started["F", d] - self.done["B", d] >= keep
            order = "BW" if full and self.backward else "BFW"
        elif rows.schedule == "1f1b" and self.backward:
            order = "B" if flight >= keep or not ahead else "FB" if rows.shared else "F"
        else:
            order = "F" if ahead else "B"
        return next((kind for kind in order if kind in ready), None)

    def run(self) -> float:
        rows, now = self.rows, 0.0
        for kind, a, b in sorted(rows.once, key=lambda x: x[1:]):
            if kind == "source":
                self.begin_s[b] = max(self.begin_s[b], rows.of[b].send(kind, a, b, 0, 0.0))
        while True:
            for d in rows.named:
                chosen = self.choose(d, now) if d not in self.running else None
                if chosen is not None:
                    self.start(d, chosen, now)
            times = [end for end, _ in self.running.values()]
            times += [t for t in (*self.arrived.values(), *self.begin_s.values()) if t > now]
            times += [max(now, t) for t in (self.next_bucket(j) for j in self.rings) if t < math.inf]
            if not times:
                break
            now = min(times)
            for d in sorted(d for d, (end, _) in self.running.items() if end == now):
                self.finish(d, now)
            for j in sorted(self.rings, key=lambda j: rows.rows[0][j]):
                while self.next_bucket(j) <= now:
                    self.average(j, now)
        if any(self.done[k, d] != len(self.own[d]) for k in self.kinds for d in rows.working):
            return math.inf
        return self.update() if self.objective == "step" else max(self.finish_s.values(), default=0.0)

    def start(self, d: int, kind: str, now: float) -> None:
        rows = self.rows
        batch = self.own[d][self.started[kind, d]]
        self.started[kind, d] += 1
        end = now + rows.of[d].task_s(kind, d)
        self.running[d] = end, (kind, d, batch)
        rows.tasks.append(((kind, d, batch), now, end))
        if kind == "F" and self.backward:
            self.in_flight[d] += rows.of[d].saved()[0].get(d, 0.0)
            self.most[d] = max(self.most[d], self.in_flight[d])
        if kind == self.kinds[-1] and self.started[kind, d] == len(self.own[d]):
            self.last[d] = now, end
            for j in self.rings:
                if d in rows.members[j] and set(rows.members[j]) <= self.last.keys():
                    self.joined[j] = now

    def finish(self, d: int, now: float) -> None:
        _, (kind, _, batch) = self.running.pop(d)
        self.done[kind, d] += 1
        self.finish_s[d] = now
        if kind == self.kinds[-1] and self.backward:
            self.in_flight[d] -= self.rows.of[d].saved()[0].get(d, 0.0)
        sent = {"F": ("ahead", "late") if self.backward else ("ahead",), "B": ("back",), "W": ()}[kind]
        step = self.rows.steps[self.row_of[batch]]
        for b in range(step.size):
            for message in sent:
                if (message, d, b) in step.bytes_:
                    self.arrived[message, d, b, batch] = step.send(message, d, b, batch, now)

    def buckets(self, j: int) -> int:
        return math.ceil(self.rings[j] / (25 * 2**20)) if self.rows.overlap else 1

    def next_bucket(self, j: int) -> float:
        """When the next bucket of a ring is ready."""
        if j not in self.joined or self.bucket[j] == self.buckets(j):
            return math.inf
        start, end = max((self.last[d] for d in self.rows.members[j]), key=lambda x: (x[1], x[0]))
        n = self.buckets(j)
        return max(self.joined[j], end if self.bucket[j] + 1 == n else start + (end - start) * (self.bucket[j] + 1) / n)

    def average(self, j: int, now: float) -> None:
        """Average the next bucket of a ring."""
        rows, step = self.rows, self.rows.steps[0]
        channels = {c for a, b in rows.edges(j) for c in step.held(a, b)}
        start = max([now, self.free[j], *(step.channel_free[c] for c in channels)])
        self.free[j] = start + rows.ring_s(j, self.rings[j] / self.buckets(j))
        for c in channels:
            step.channel_free[c] = self.free[j]
        for a, b in rows.edges(j):
            step.sends.append(("ring", a, b, self.bucket[j], start, self.free[j]))
            self.averaged[a] = max(self.averaged[a], self.free[j])
        self.bucket[j] += 1

    def update(self) -> float:
        rows = self.rows
        gone = {d: max(self.finish_s[d], self.averaged[d]) for d in rows.named}
        start = dict(gone)
        for d in rows.named:
            if rows.update_s(d) > 0:
                start[d] = max(start[d], self.begin_s[d])
        pairs = sorted((a, b, kind) for kind, a, b in rows.once if kind != "source")
        for a, b, kind in pairs:
            if kind == "end":
                start[b] = max(start[b], rows.of[b].send(kind, a, b, 0, gone[a]))
        ended: dict[int, float] = {}
        while len(ended) < len(rows.named):
            before = len(ended)
            for d in rows.named:
                if d in ended or {a for a, b, kind in pairs if kind == "again" and b == d} - set(ended):
                    continue
                ended[d] = start[d] + rows.update_s(d)
                rows.tasks.append((("U", d, 0), start[d], ended[d]))
                for a, b, kind in pairs:
                    if kind == "again" and a == d:
                        start[b] = max(start[b], rows.of[b].send(kind, a, b, 0, ended[d]))
            if len(ended) == before:
                return math.inf
        return max(ended.values())
