"""Contiguous splits of single nodes under `max_load`, by dynamic programming over prefixes (Tarnawski et al. 2020, section 5)."""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from typing import Annotated, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_layers import Blocks
from placekit_layers.following import followers
from placekit_layers.prefixes import Lattice, lattice
from placekit_layers.units import distinct_pairs
from placekit_scheduling import device_classes

from placekit_core import Grouping, Placement, Problem, Task, strongly_connected
from placekit_pipeline.chain_arrays import CLOSE
from placekit_pipeline.nets import FORWARD, Floats, Ints, nets_of
from placekit_pipeline.segments import MOST_SETS, least_route

MOST_NODES = 4000  # larger graphs are split between blocks only
MOST_STATES = 10_000_000  # prefixes x sets of devices
FEW = 1000  # prefixes that are tried at once
ORDERS = 40  # orders of the nodes to split along, before all prefixes are tried


Best = tuple[float, Ints, NDArray[np.int16] | None]
"""Bound of a split in seconds, and [b] stage and device of each node; no devices if no split was found."""


class States(NamedTuple):
    """What the compiled loop reads: i prefixes of b nodes, x nets between nodes, K classes of devices, u sets of devices.

    Attributes:
        ptr, node, after: see `Lattice`.
        seconds: [b, K] seconds of each node; infinite where a device may not run it.
        bytes_: [b] bytes of each node; `room`: [K] memory of a device.
        net_ptr, net: nets that each node makes or reads, in compressed rows; `makes`: whether it makes the net.
        members: [x] number of nodes that make or read each net.
        send_s, receive_s: [x, K] seconds that a device pays for sending or receiving it.
        radix, many, of_set: see `Table`.
        least_s: [b] seconds on the fastest device; `spare`: [u] how many devices as fast as that the devices not in the set
            amount to, at most.
    """

    ptr: Ints
    node: Ints
    after: Ints
    seconds: Annotated[Floats, 2]
    bytes_: Floats
    room: Floats
    net_ptr: Ints
    net: Ints
    makes: NDArray[np.bool_]
    members: Ints
    send_s: Annotated[Floats, 2]
    receive_s: Annotated[Floats, 2]
    radix: Ints
    many: Ints
    of_set: Annotated[Ints, 2]
    least_s: Floats
    spare: Floats


def split_nodes(task: Task, most: int) -> tuple[Placement | None, bool]:
    """The best contiguous split of the nodes that is found, if any fits, and whether a note says that it is proven.

    It splits along orders of the nodes first, each order stage by stage of the best split so far; then, if the graph has at
    most `most` prefixes, between any two of them. Loads are lower bounds where routes differ.
    """
    problem, evaluate, classes = task.problem, task.evaluate, device_classes(task.problem)
    sets = math.prod(len(devices) + 1 for devices in classes)
    short = problem.group_persistent_bytes.sum() > problem.cluster.memory_bytes.min()
    for joined in (False, True) if short else (True,):
        nodes = nodes_of(problem, joined)
        count = len(nodes)
        if count > MOST_NODES or sets > MOST_SETS or not nodes.allowed.any(axis=1).all():
            return None, False
        every = lattice(count, nodes.source, nodes.target, min(most, MOST_STATES // sets))
        if every is not None:
            break
    states, rng = _states(nodes, classes), np.random.default_rng(0)
    best: Best = (math.inf, np.zeros(count, np.int64), None)
    for _ in range(ORDERS if every is None or len(every.ideals) > FEW else 0):
        order = _order(nodes, best[1], rng)
        best = _best(task, lattice(count, order[:-1], order[1:], count + 1), states, classes, best)
    low, _, device = _best(task, every, states, classes, best)
    if device is None:
        return None, False
    split = nodes.placement(device)
    proven = every is not None and bool(evaluate(split.batch()).value_s[0] <= low * (1 + 1e-9))
    if proven:
        evaluate.note(f"no contiguous split of the {count} nodes is better: all others are searched or bounded")
    return split, proven


def nodes_of(problem: Problem, joined: bool) -> Blocks:
    """The finest blocks: groups with the groups that follow them, and with what takes no time and has one neighbour.

    Unless `joined`, what has bytes has a block of its own.

    Without modules and a column `forward_of`, a backward operation outside the groups of forward operations is a block of its
    own, and comes in the opposite order of its data flow, as in the authors' program.
    """
    graph = problem.graph
    known = "forward_of" in graph.columns or any(graph.module.vocabulary)
    groups = _blocks(problem, followers(problem) if known else np.arange(problem.g))
    own = _owners(groups, joined | (groups.persistent_bytes == 0))
    of_op = own[groups.of_op]
    lead = graph.kernel & (graph.phase == FORWARD) & (of_op == groups.of_op)
    forward = np.bincount(of_op[lead], minlength=len(groups)) > 0
    u, v = graph.op_edges
    ahead = lead[u] & lead[v]
    back = (graph.phase[u] > FORWARD) & (graph.phase[v] > FORWARD) & ~(forward[of_op[u]] & forward[of_op[v]])
    source, target = (
        np.concatenate([of_op[u[ahead]], of_op[v[back]]]),
        np.concatenate([of_op[v[ahead]], of_op[u[back]]]),
    )
    component = strongly_connected(len(groups), *distinct_pairs(source, target))
    kept, number = np.unique(component[own], return_inverse=True)
    source, target = (np.searchsorted(kept, component[x]) for x in (source, target))
    return _blocks(
        problem, number[groups.of_group], *distinct_pairs(source[source != target], target[source != target])
    )


def _blocks(problem: Problem, of_group: Ints, *edges: Ints) -> Blocks:
    count = int(of_group.max(initial=-1)) + 1
    source, target = edges or np.zeros((2, 0), np.int64)
    return Blocks(problem, of_group, tuple(map(str, range(count))), np.zeros(count, np.bool_), source, target)


def _owners(groups: Blocks, light: NDArray[np.bool_]) -> Ints:
    """[b] the group that each group goes with: another one for groups that take no time, and need no place of their own.

    These have one neighbour, or they are constants without bytes: a device with a reader pays for them as much as any other.
    """
    first, second = (groups.of_op[x] for x in groups.problem.graph.op_edges)
    near = [set[int]() for _ in range(len(groups))]
    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        near[a].add(b)
        near[b].add(a)
    idle = light & (groups.seconds.max(axis=1) == 0)
    reads = np.bincount(second[first != second], minlength=len(groups)) > 0
    constant, own = idle & ~reads & (groups.persistent_bytes == 0), np.arange(len(groups))
    rest = np.flatnonzero(idle).tolist()
    while rest:
        x = rest.pop()
        near[x].discard(x)
        if own[x] != x or not near[x] or (len(near[x]) > 1 and not constant[x]):
            continue
        to = min(near[x])
        if groups.allowed[x][groups.allowed[to]].all():
            own[x] = to
            near[to] |= near[x]
            for y in near[x]:
                near[y] = near[y] - {x, y} | ({to} - {y})
                rest += [y] if idle[y] else []
    while (own != own[own]).any():
        own = own[own]
    return own


def _order(nodes: Blocks, stage: Ints, rng: Generator) -> Ints:
    """[b] an order of the nodes, stage by stage, along one random path after another."""
    missing = np.bincount(nodes.target, minlength=len(nodes)).tolist()
    ptr = np.searchsorted(nodes.source, np.arange(len(nodes) + 1)).tolist()
    at, luck, readers = stage.tolist(), rng.random(len(nodes)).tolist(), nodes.target.tolist()
    ready = [(at[x], 0, luck[x], x) for x in range(len(nodes)) if missing[x] == 0]
    heapify(ready)
    order = list[int]()
    while ready:
        x = heappop(ready)[-1]
        order.append(x)
        for y in readers[ptr[x] : ptr[x + 1]]:
            missing[y] -= 1
            if missing[y] == 0:
                heappush(ready, (at[y], -len(order), luck[y], y))
    return np.asarray(order, np.int64)


def _states(nodes: Blocks, classes: list[list[int]]) -> States:
    """What the loop reads, without prefixes."""
    problem = nodes.problem
    nets = nets_of(Problem(problem.graph, Grouping(nodes.of_op.astype(np.int32)), problem.cluster, problem.costs))
    first = [devices[0] for devices in classes]
    pays = np.asarray([problem.device_type(d) == "gpu" for d in first])
    hop = nets.hop_s[:, None]
    by_route = [
        np.where(hop >= 0, hop, nets.count[:, None] * latency + nets.bytes_[:, None] * rate) * pays
        for latency, rate in (least_route(problem.cluster, first, received) for received in (False, True))
    ]
    member = np.concatenate([nets.producer, nets.reader])
    net = np.concatenate([np.arange(len(nets)), np.repeat(np.arange(len(nets)), np.diff(nets.ptr))])
    by_node = np.argsort(member, kind="stable")
    many = np.asarray([len(devices) for devices in classes])
    radix = np.cumprod([1, *(many[:-1] + 1)])
    of_set = np.ascontiguousarray(np.arange(np.prod(many + 1))[:, None] // radix % (many + 1))
    seconds = np.ascontiguousarray(np.where(nodes.allowed, nodes.seconds, np.inf)[:, first])
    least_s = seconds.min(axis=1)
    speed = (least_s[:, None] / np.where(seconds > 0, seconds, np.inf)).max(axis=0)
    none = np.zeros(0, np.int64)
    return States(
        none, none, none, seconds, nodes.persistent_bytes, problem.cluster.memory_bytes[first].astype(np.float64),
        np.searchsorted(member[by_node], np.arange(len(nodes) + 1)), net[by_node], by_node < len(nets), np.bincount(net),
        *by_route, radix, many, of_set, least_s, (many - of_set) @ speed * (1 + 1e-9),
    )  # fmt: skip


def _best(task: Task, found: Lattice | None, states: States, classes: list[list[int]], best: Best) -> Best:
    """The best split between these prefixes, if its bound is below that of `best`."""
    if found is None:
        return best
    with task.evaluate.ledger.paused():  # compiling is not searching
        from placekit_pipeline.node_loops import loop

        function = loop(len(found.ideals) * len(states.spare))
    arcs = [np.asarray(column, np.int64) for column in found[1:]]
    value, begin, of_class = function(states._replace(ptr=arcs[0], node=arcs[1], after=arcs[2]), best[0] * (1 - CLOSE))
    end = len(found.ideals) - 1
    u = int(value[end].argmin())
    bound = float(value[end, u])
    if bound == math.inf:
        return best
    stage, device = np.zeros((2, len(states.least_s)), np.int64)
    devices = [list(some) for some in classes]
    while end:
        i, k = int(begin[end, u]), int(of_class[end, u])
        own = found.ideals[end] & ~found.ideals[i]
        rows = [x for x in range(len(device)) if own >> x & 1]
        stage[rows], device[rows] = -end, devices[k].pop()
        end, u = i, u - int(states.radix[k])
    return bound, np.unique(stage, return_inverse=True)[1], device.astype(np.int16)
