"""Contiguous splits of single nodes under `max_load`, by dynamic programming over prefixes (Tarnawski et al. 2020, section 5)."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from placekit_layers import Blocks
from placekit_layers.following import follow, united
from placekit_layers.prefixes import ideals
from placekit_layers.units import FREE, Units, distinct_pairs
from placekit_scheduling import device_classes

from placekit_core import Grouping, Placement, Problem, Task, strongly_connected
from placekit_pipeline.chain_arrays import CLOSE
from placekit_pipeline.nets import Ints, nets_of
from placekit_pipeline.segments import MOST_SETS, least_route

MOST_NODES = 2000  # larger graphs are split between blocks only
MOST_CELLS = 50_000_000  # of the largest array: prefixes x nodes, nets or sets of devices
AT_ONCE = 4096  # prefixes whose sums are computed together, to limit memory


def split_nodes(task: Task, most: int) -> tuple[Placement | None, bool]:
    """The best contiguous split of the nodes that is found, if any fits, and whether a note says that it is proven.

    If the graph has at most `most` prefixes, splits between all of them are searched or bounded. Before that, or with
    more prefixes instead, splits along one order of the nodes are: only nodes around the borders of the best split, ever more
    of them, may leave this order.
    """
    nodes, classes = nodes_of(task.problem), device_classes(task.problem)
    count, sets = len(nodes), math.prod(len(devices) + 1 for devices in classes)
    if count > MOST_NODES or sets > MOST_SETS or not nodes.allowed.any(axis=1).all():
        return None, False
    program, best, reach = _Program(nodes, classes), _Best(math.inf, np.zeros(count, np.int64), None), 0
    most = min(most, MOST_CELLS // max(*program.member.shape, sets))
    every = ideals(count, nodes.source, nodes.target, most)
    few = (most if every is None else len(every)) // 4
    while reach < count and (near := ideals(count, *_near(nodes, best.stage, reach), few)):
        before, best = best, program.improved(best, near)
        reach = 2 * reach + 4 if best is before else reach
    best = best if every is None else program.improved(best, every)
    if best.device is None:
        return None, False
    split = nodes.placement(best.device)
    proven = every is not None and bool(task.evaluate(split.batch()).value_s[0] <= best.bound * (1 + 1e-9))
    if proven:
        task.evaluate.note(f"no contiguous split of the {count} nodes is better: all others are searched or bounded")
    elif every is None:
        task.evaluate.note(
            f"the {count} nodes have more than {most} prefixes: only splits near the best one were searched"
        )
    return split, proven


def nodes_of(problem: Problem) -> Blocks:
    """The smallest blocks: groups with the groups that follow them (`follow`), and with units that take no time.

    Without modules and a column `forward_of`, a unit of backward operations only is a block of its own. Blocks come in the
    order of their forward data flow, and such a block in the opposite order of its data flow, as in the authors' program.
    """
    graph, units = problem.graph, Units.build(problem.graph)
    u, v = graph.op_edges
    free = _free(problem, units)
    if "forward_of" in graph.columns or any(graph.module.vocabulary):
        free |= ~units.forward
    joined = united(problem, follow(units, np.where(free, FREE, np.arange(units.count)))[units.of])
    of_op = joined[problem.grouping.group_of]
    count = int(joined.max(initial=-1)) + 1
    works = graph.kernel & ~free[units.of]
    lead, late = works & units.leading, works & ~units.leading
    alone = (np.bincount(of_op, lead, minlength=count) == 0)[of_op]
    ahead, back = lead[u] & lead[v], late[u] & late[v] & (alone[u] | alone[v])
    pairs = np.stack([of_op[np.append(u[ahead], v[back])], of_op[np.append(v[ahead], u[back])]])
    component = strongly_connected(count, *distinct_pairs(*pairs))
    source, target = distinct_pairs(*component[pairs[:, component[pairs[0]] != component[pairs[1]]]])
    names = tuple(map(str, range(int(component.max(initial=-1)) + 1)))
    return Blocks(problem, component[joined], names, np.zeros(len(names), np.bool_), source, target)


def _free(problem: Problem, units: Units) -> NDArray[np.bool_]:
    """[u] units that take no time, and need no place of their own.

    Either they exchange data with only one other unit, or they are constants, which cost every device that reads them the same.
    """
    graph = problem.graph
    a, b = (units.of[x] for x in graph.op_edges)
    pairs = distinct_pairs(np.append(a[a != b], b[a != b]), np.append(b[a != b], a[a != b]))[0]
    reads = np.bincount(b[a != b], minlength=units.count) > 0
    bytes_ = np.bincount(units.of, graph.persistent_bytes, minlength=units.count)
    light = (bytes_ == 0) | (bytes_.sum() <= problem.cluster.memory_bytes.min())
    alone = np.bincount(pairs, minlength=units.count) <= 1
    works = np.bincount(units.of, problem.op_s.max(axis=1), minlength=units.count) > 0
    return np.asarray(~works & (alone | (~reads & light)))


def _near(nodes: Blocks, stage: Ints, reach: int) -> tuple[Ints, Ints]:
    """The data flow, and edges that keep all nodes in one order but the `reach` nodes on each side of a border of stages."""
    order = np.lexsort((np.arange(len(nodes)), stage))
    part = np.arange(len(nodes))
    for border in np.flatnonzero(np.diff(stage[order])).tolist():
        part[max(border + 1 - reach, 0) : border + 1 + reach] = border
    part = part[np.argsort(order)]
    source, target = nodes.source, nodes.target
    same = part[source] == part[target]
    last, first = np.ones((2, len(nodes)), np.bool_)
    last[source[same]], first[target[same]] = False, False
    for q, r in pairwise(np.unique(part).tolist()):
        before, after = np.flatnonzero(last & (part == q)), np.flatnonzero(first & (part == r))
        source = np.append(source, np.repeat(before, len(after)))
        target = np.append(target, np.tile(after, len(before)))
    return source, target


class _Best(NamedTuple):
    """The best split so far: its bound in seconds, and [b] stage and device of each node (no devices without a split)."""

    bound: float
    stage: Ints
    device: NDArray[np.int16] | None


class _Program:
    """The dynamic program for b nodes, x nets between them, and K classes of devices; sets of devices as in `chain_arrays`.

    Attributes:
        columns: [b, 2K + 2] of each node: seconds, whether a device may not run it; bytes; least seconds on any device, in
            `unit`s and rounded down, so that sums are exact.
        member: [b, x] nodes that make or read a net; `producer`: [x] node that makes it.
        send_s, receive_s: [x, K] seconds that a device pays for a net.
        speed: [K] least seconds of nodes that a device does in a second, at most; `spare`: [u] all devices outside a set.
        free: [u, K] devices of each class outside a set.
    """

    def __init__(self, nodes: Blocks, classes: list[list[int]]) -> None:
        problem, first = nodes.problem, [devices[0] for devices in classes]
        nets = nets_of(Problem(problem.graph, Grouping(nodes.of_op.astype(np.int32)), problem.cluster, problem.costs))
        pays = np.asarray([problem.device_type(d) == "gpu" for d in first])
        hop = nets.hop_s[:, None]
        self.send_s, self.receive_s = (
            np.where(hop >= 0, hop, nets.count[:, None] * latency + nets.bytes_[:, None] * rate) * pays
            for latency, rate in (least_route(problem.cluster, first, received) for received in (False, True))
        )
        self.producer, self.member = nets.producer, np.zeros((len(nodes), len(nets)), np.float32)
        self.member[nets.producer, np.arange(len(nets))] = 1
        self.member[nets.reader, np.repeat(np.arange(len(nets)), np.diff(nets.ptr))] = 1
        seconds, allowed = nodes.seconds[:, first], nodes.allowed[:, first]
        least = np.where(allowed, seconds, np.inf).min(axis=1)
        self.unit = max(float(least.sum()), 1e-300) / 2**40
        ticks = np.floor(least / self.unit)
        self.columns = np.column_stack([np.where(allowed, seconds, 0), ~allowed, nodes.persistent_bytes, ticks])
        self.speed = (least[:, None] / np.where(allowed & (seconds > 0), seconds, np.inf)).max(axis=0) * (1 + 1e-9)
        many = np.asarray([len(devices) for devices in classes])
        self.radix = np.cumprod([1, *(many[:-1] + 1)])
        self.free = many - np.arange(np.prod(many + 1))[:, None] // self.radix % (many + 1)
        self.spare, self.room, self.classes = self.free @ self.speed, problem.cluster.memory_bytes[first], classes

    def improved(self, best: _Best, found: list[int]) -> _Best:
        """The best split between these prefixes, if its bound is below that of `best`.

        `value[u, i]` is the least largest load of prefix i on the devices of set u. A load is computed from sums of both
        prefixes; only nets that cross the smaller one depend on the two together.
        """
        count, k_all = len(self.columns), len(self.room)
        raw = b"".join(x.to_bytes(8 * (count // 64 + 1), "little") for x in found)
        bits = np.unpackbits(np.frombuffer(raw, np.uint8).reshape(len(found), -1), axis=1, bitorder="little")
        bits = bits[np.lexsort((bits.sum(axis=1), _product(bits[:, :count], self.columns[:, -1:])[:, 0]))]
        words = np.packbits(bits, axis=1, bitorder="little").view(np.uint64).T.copy()
        bits = bits[:, :count]
        sums, inside = _product(bits, self.columns).T.copy(), _product(bits, self.member).astype(np.int16)
        made, done = bits[:, self.producer] > 0, sums[-1] * self.unit
        whole = self.member.sum(axis=0).astype(np.int16)
        cut = (inside > 0) & (inside < whole)
        crossing = (_product(cut & made, self.send_s) + _product(cut & ~made, self.receive_s)).T.copy()
        signed = np.where(made, inside, -inside).T.copy()  # nodes inside, negative without the one that makes the net
        value = np.full((len(self.free), len(found)), np.inf)
        begin, of_class = np.zeros((2, *value.shape), np.int32)
        value[0, 0], limit = 0.0, min(best.bound, 1e200) * (1 - CLOSE)
        for i in range(len(found) - 1):
            sets = np.flatnonzero(value[:, i] < limit).tolist()
            moves = [(u, k, u + int(self.radix[k])) for u in sets for k in np.flatnonzero(self.free[u]).tolist()]
            if not moves:
                continue
            low = done[-1] - limit * max(self.spare[w] for _, _, w in moves)
            high = done[i] + limit * max(self.speed[k] for _, k, _ in moves)
            at = slice(max(int(np.searchsorted(done, low)), i + 1), int(np.searchsorted(done, high, "right")))
            larger = np.bitwise_or.reduce(words[:, i, None] & ~words[:, at], axis=0) == 0
            nets, rows = np.flatnonzero(cut[i]), np.flatnonzero(larger) + at.start
            there, part = signed[nets, at][:, larger], sums[:, rows] - sums[:, i, None]
            more, sends, open_ = abs(there) > inside[i, nets, None], there > 0, abs(there) < whole[nets, None]
            sent = sends & ~made[i, nets, None]
            load = part[:k_all] + crossing[:, rows]
            load += self.send_s[nets].T @ ((more & sent).astype(np.int8) - (open_ & sends))
            load += self.receive_s[nets].T @ ((more & ~sent).astype(np.int8) - (open_ & ~sends))
            load[(part[k_all:-2] > 0.5) | (part[-2] > self.room[:, None])] = np.inf
            for u, k, w in moves:
                largest = np.maximum(load[k], value[u, i])
                ok = (largest < np.minimum(value[w, rows], limit)) & (done[rows] >= done[-1] - limit * self.spare[w])
                value[w, rows[ok]], begin[w, rows[ok]], of_class[w, rows[ok]] = largest[ok], i, k
            limit = min(limit, value[:, -1].min())
        end, u = len(found) - 1, int(value[:, -1].argmin())
        if value[u, end] == np.inf:
            return best
        bound, stage, device = float(value[u, end]), *np.zeros((2, count), np.int64)
        while end:
            i, k = begin[u, end], of_class[u, end]
            own = bits[end] > bits[i]
            stage[own], device[own] = end, self.classes[k][-int(self.free[u, k]) - 1]
            end, u = i, u - int(self.radix[k])
        return _Best(bound, stage, device.astype(np.int16))


def _product(bits: NDArray[Any], matrix: NDArray[Any]) -> NDArray[Any]:
    """`bits` [i, b] times a matrix, a part at a time."""
    return np.concatenate([bits[i : i + AT_ONCE] @ matrix for i in range(0, len(bits), AT_ONCE)])
