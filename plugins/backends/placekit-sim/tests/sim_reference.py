"""The machine model in plain Python: the definition that the compiled kernel is held against, to the bit.

One round: all completions of the instant, then every start that is possible, in rule order. Operations and sends that
take no time complete in a further round of the same instant. See docs/machine-model.md.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from placekit_sim.events import Run
from placekit_sim.rules import Rules

from placekit_core import Problem

Key = tuple[float, int, int, int]  # rank, round in which it became ready, operation or sending, first destination


class Memory:
    """Bytes in use per device, and how many readers each allocation still has."""

    def __init__(self, problem: Problem, device: list[int]) -> None:
        graph = problem.graph
        self.storage: list[int] = graph.tensor_storage.tolist()
        self.bytes_: list[int] = graph.tensor_bytes.tolist()
        producer = graph.tensor_producer.tolist()
        # outputs at home: storages of sources are persistent, and a view has no memory of its own
        self.at_home = [
            b if self.storage[x] == x and graph.kernel[producer[x]] else 0 for x, b in enumerate(self.bytes_)
        ]
        self.readers = [0] * graph.t  # of each storage at home: local consumers and outgoing sends
        self.copy_readers: dict[tuple[int, int], int] = {}  # (sending, device) -> consumers there
        self.used = [0] * problem.cluster.size
        for v, b in enumerate(graph.persistent_bytes.tolist()):
            self.used[device[v]] += b
        self.peak = list(self.used)

    def allocate(self, device: int, bytes_: int) -> None:
        self.used[device] += bytes_
        self.peak[device] = max(self.peak[device], self.used[device])

    def drop_home(self, tensor: int, device: int) -> None:
        """One reader less of what `tensor` is stored in, on the device of its producer."""
        s = self.storage[tensor]
        self.readers[s] -= 1
        if self.readers[s] == 0:
            self.used[device] -= self.at_home[s]

    def drop_copy(self, tensor: int, sending: int, device: int) -> None:
        """One reader less of a received copy."""
        self.copy_readers[sending, device] -= 1
        if self.copy_readers[sending, device] == 0:
            self.used[device] -= self.bytes_[tensor]


class Ahead:
    """What is copied ahead of its readers under `Rules.prefetch`. A sending of a tensor has a number of its own, from t on.

    Attributes:
        of: (tensor, operation) -> the sending that brings the tensor to the operation.
        tensor, to, readers: of each sending: what is sent, to which device, and the operations that it is for.
        first: sendings that are ready at time 0; `after`: operation -> those that are ready when it ends.
    """

    def __init__(self, model: Reference, device: list[int], prefetch: int) -> None:
        self.of: dict[tuple[int, int], int] = {}
        self.tensor: dict[int, int] = {}
        self.to: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}
        self.first: list[int] = []
        self.after: dict[int, list[int]] = defaultdict(list)
        graph, window = model.problem.graph, prefetch + 1
        readers: list[list[int]] = [[] for _ in range(model.problem.cluster.size)]
        latest: dict[
            tuple[int, int], tuple[int, int]
        ] = {}  # (tensor, device) -> its last sending, place of its last reader
        for v in graph.topological_order.tolist():
            d = device[v]
            reads = [
                x for x in model.inputs[v] if not model.kernel[model.producer[x]] and device[model.producer[x]] != d
            ]
            if not reads:
                continue
            place = len(readers[d])
            readers[d].append(v)
            for x in reads:
                sending, before = latest.get((x, d), (-1, -1))
                if sending < 0 or place - before > window:
                    sending = graph.t + len(self.tensor)
                    self.tensor[sending], self.to[sending], self.readers[sending] = x, d, []
                    ready = self.first if place < window else self.after[readers[d][place - window]]
                    ready.append(sending)
                self.readers[sending].append(v)
                self.of[x, v] = sending
                latest[x, d] = sending, place


class Reference:
    """The model of one problem under one set of rules."""

    def __init__(self, problem: Problem, rules: Rules) -> None:
        self.problem, self.rules = problem, rules
        graph, cluster = problem.graph, problem.cluster
        self.op_s: list[list[float]] = rules.op_s(problem).tolist()
        self.inputs = [graph.inputs(v).tolist() for v in range(graph.n)]
        self.outputs = [graph.outputs(v) for v in range(graph.n)]
        self.consumers = [graph.consumers(x).tolist() for x in range(graph.t)]
        self.bytes_ = graph.tensor_bytes.astype(np.float64).tolist()
        self.producer: list[int] = graph.tensor_producer.tolist()
        self.kernel: list[bool] = graph.kernel.tolist()
        self.sources = [v for v in range(graph.n) if not self.kernel[v]]
        self.unread = [False] * graph.t  # storages that nothing ever reads
        for x in range(graph.t):
            s = int(graph.tensor_storage[x])
            self.unread[x] = s == x
        for x in graph.input_tensor.tolist():
            self.unread[int(graph.tensor_storage[x])] = False
        self.factor = None if rules.transfer_factor is None else rules.transfer_factor.tolist()
        routes, size = cluster.routes, cluster.size
        self.latency_s: list[list[float]] = routes.latency_s.tolist()
        self.s_per_byte: list[list[float]] = routes.s_per_byte.tolist()
        self.channels = [
            [tuple(routes.channel[routes.ptr[a * size + b] : routes.ptr[a * size + b + 1]].tolist()) for b in range(size)]
            for a in range(size)
        ]  # fmt: skip
        self.levels: list[list[int]] = []
        if rules.bulk and any(self.kernel):
            depth = graph.depth.tolist()
            self.levels = [[] for _ in range(max(d for v, d in enumerate(depth) if self.kernel[v]) + 1)]
            for v in range(graph.n):
                if self.kernel[v]:
                    self.levels[depth[v]].append(v)

    def run(self, device: NDArray[np.int16], priority: NDArray[np.float32] | None = None, memory: bool = True) -> Run:
        """Simulate one placement: `device` [g], `priority` [g]. `memory` False leaves `peak_bytes` at NaN."""
        return _Simulation(self, device, priority, memory).run()


class _Simulation:
    def __init__(
        self, model: Reference, device: NDArray[np.int16], priority: NDArray[np.float32] | None, memory: bool
    ) -> None:
        problem, rules = model.problem, model.rules
        graph, cluster = problem.graph, problem.cluster
        self.model = model
        self.device: list[int] = problem.expand(device).tolist()
        self.rank: list[float] = [0.0] * graph.n
        if rules.rank is not None:
            self.rank = rules.rank.tolist()
        elif rules.use_priority and priority is not None:
            self.rank = (-problem.expand(priority)).tolist()
        self.memory = Memory(problem, self.device) if memory else None
        self.missing = [len(i) for i in model.inputs]
        self.streams_free: list[int] = cluster.streams.tolist()
        self.channel_free: list[int] = cluster.routes.capacity.tolist()
        self.ready: list[list[Key]] = [[] for _ in range(cluster.size)]  # heaps of operations
        self.waiting: dict[tuple[int, ...], list[Key]] = defaultdict(list)  # heaps of sends, by the channels they hold
        self.events: list[tuple[float, int, int, int]] = []  # end, kind (0 operation, 1 send), index, first destination
        self.ahead = None if rules.prefetch is None else Ahead(model, self.device, rules.prefetch)
        # a tensor is sent under its number, or under that of a sending of its own (see `Ahead`)
        self.tensor = {x: x for x in range(graph.t)} | (self.ahead.tensor if self.ahead else {})
        self.destinations: dict[tuple[int, int], list[int]] = {}  # of the send (sending, first destination)
        self.op_start, self.op_end = [0.0] * graph.n, [0.0] * graph.n
        self.copies: list[tuple[int, int, float, float]] = []  # tensor, destination, start, end
        self.now, self.round = 0.0, 0

    def run(self) -> Run:
        model = self.model
        self.announce(model.sources)
        if self.ahead:
            self.request(self.ahead.first)
        if not model.rules.bulk:
            self.make_ready(v for v, k in enumerate(model.kernel) if k and not model.inputs[v])
            self.drain()
        else:
            self.drain()
            for level in model.levels:
                self.make_ready(level)
                self.drain()
                self.announce(level)
                self.drain()
        copies = sorted(self.copies)
        size = self.model.problem.cluster.size
        return Run(
            value_s=self.now,
            peak_bytes=np.asarray(self.memory.peak, np.float64) if self.memory else np.full(size, np.nan),
            op_start_s=np.asarray(self.op_start, np.float64),
            op_end_s=np.asarray(self.op_end, np.float64),
            copy_tensor=np.asarray([x for x, _, _, _ in copies], np.int32),
            copy_dst=np.asarray([d for _, d, _, _ in copies], np.int32),
            copy_start_s=np.asarray([s for _, _, s, _ in copies], np.float64),
            copy_end_s=np.asarray([e for _, _, _, e in copies], np.float64),
        )

    def drain(self) -> None:
        """Run until nothing is running and nothing can start."""
        self.start_all()
        while self.events:
            self.now = self.events[0][0]
            self.round += 1
            while self.events and self.events[0][0] == self.now:
                _, kind, index, first = heapq.heappop(self.events)
                if kind == 0:
                    self.finish_op(index)
                else:
                    self.finish_send(index, self.destinations[index, first])
            self.start_all()

    def make_ready(self, ops: Iterable[int]) -> None:
        for v in ops:
            heapq.heappush(self.ready[self.device[v]], (self.rank[v], self.round, v, 0))

    def announce(self, ops: Iterable[int]) -> None:
        """The outputs of `ops` exist: tell local consumers, and queue the sends."""
        model, device = self.model, self.device
        for v in ops:
            home = device[v]
            for x in model.outputs[v]:
                remote: dict[int, list[int]] = defaultdict(list)
                for c in model.consumers[x]:
                    if device[c] != home:
                        if self.ahead is None or model.kernel[v]:
                            remote[device[c]].append(c)
                    else:
                        if self.memory:
                            self.memory.readers[self.memory.storage[x]] += 1
                        self.arrived(c)
                self.queue_sends(x, home, remote)

    def queue_sends(self, tensor: int, home: int, remote: dict[int, list[int]]) -> None:
        if not remote:
            return
        order = sorted(remote)
        sends = [order] if self.model.problem.cluster.multicast else [[d] for d in order]
        for to in sends:
            self.destinations[tensor, to[0]] = to
            rank = min(self.rank[c] for d in to for c in remote[d])
            channels = self.model.channels[home][to[0]]
            heapq.heappush(self.waiting[channels], (rank, self.round, tensor, to[0]))
        if self.memory:
            self.memory.readers[self.memory.storage[tensor]] += len(sends)
            for d in order:
                self.memory.copy_readers[tensor, d] = len(remote[d])

    def request(self, sendings: list[int]) -> None:
        """These copies of what sources write are wanted now."""
        assert self.ahead
        for s in sendings:
            d, readers = self.ahead.to[s], self.ahead.readers[s]
            self.destinations[s, d] = [d]
            channels = self.model.channels[self.home(s)][d]
            heapq.heappush(self.waiting[channels], (min(self.rank[c] for c in readers), self.round, s, d))
            if self.memory:
                self.memory.copy_readers[s, d] = len(readers)

    def home(self, sending: int) -> int:
        """The device that it is sent from."""
        return self.device[self.model.producer[self.tensor[sending]]]

    def arrived(self, op: int) -> None:
        """One more input of `op` is on its device."""
        self.missing[op] -= 1
        if self.missing[op] == 0 and not self.model.rules.bulk:
            self.make_ready([op])

    def finish_op(self, op: int) -> None:
        home = self.device[op]
        self.streams_free[home] += 1
        if self.memory:
            for x in self.model.inputs[op]:
                if self.device[self.model.producer[x]] == home:
                    self.memory.drop_home(x, home)
                else:
                    self.memory.drop_copy(x, self.ahead.of.get((x, op), x) if self.ahead else x, home)
            for x in self.model.outputs[op]:
                if self.model.unread[x]:
                    self.memory.used[home] -= self.memory.at_home[x]
        if not self.model.rules.bulk:
            self.announce([op])
        if self.ahead:
            self.request(self.ahead.after[op])

    def finish_send(self, sending: int, to: list[int]) -> None:
        home = self.home(sending)
        for c in self.model.channels[home][to[0]]:
            self.channel_free[c] += 1
        if self.ahead and sending in self.ahead.tensor:  # of a source: its home memory is never freed
            for c in self.ahead.readers[sending]:
                self.arrived(c)
            return
        if self.memory:
            self.memory.drop_home(sending, home)
        for c in self.model.consumers[sending]:
            if self.device[c] in to:
                self.arrived(c)

    def start_all(self) -> None:
        """Start, in rule order, everything that has its resources."""
        for device, heap in enumerate(self.ready):
            while heap and self.streams_free[device] > 0:
                self.start_op(heapq.heappop(heap)[2])
        # heads of the heaps stand for all: if one has no free channel, neither has any send behind it
        open_ = [c for c, heap in self.waiting.items() if heap and self.is_free(c)]
        while open_:
            first = min(open_, key=lambda c: self.waiting[c][0])
            _, _, sending, to = heapq.heappop(self.waiting[first])
            self.start_send(sending, self.destinations[sending, to])
            open_ = [c for c in open_ if self.waiting[c] and self.is_free(c)]

    def is_free(self, channels: tuple[int, ...]) -> bool:
        return all(self.channel_free[c] > 0 for c in channels)

    def start_op(self, op: int) -> None:
        home = self.device[op]
        self.streams_free[home] -= 1
        if self.memory:
            for x in self.model.outputs[op]:
                self.memory.allocate(home, self.memory.at_home[x])
        end = self.now + self.model.op_s[op][home]
        self.op_start[op], self.op_end[op] = self.now, end
        heapq.heappush(self.events, (end, 0, op, 0))

    def start_send(self, sending: int, to: list[int]) -> None:
        model, tensor, home = self.model, self.tensor[sending], self.home(sending)
        for c in model.channels[home][to[0]]:
            self.channel_free[c] -= 1
        seconds = model.latency_s[home][to[0]] + model.bytes_[tensor] * model.s_per_byte[home][to[0]]
        if model.factor is not None:
            seconds *= model.factor[tensor][to[0]]
        end = self.now + seconds
        for d in to:
            self.copies.append((tensor, d, self.now, end))
            if self.memory:
                self.memory.allocate(d, self.memory.bytes_[tensor])
        heapq.heappush(self.events, (end, 1, sending, to[0]))
