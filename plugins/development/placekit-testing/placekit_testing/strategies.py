"""Random graphs, machines and placements, small and nasty, for tests of backends, policies and bounds.

`random_*` take a numpy Generator and need nothing else; `problems()` is a hypothesis strategy over them. Durations and
sizes are small multiples of powers of two, so that events coincide often and sums are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.random import Generator

from placekit_core import Cluster, CostTable, Graph, GraphBuilder, Grouping, Placements, Problem

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

T = TypeVar("T")
TICK_S = 2.0**-10
BYTES = (0, 1, 2, 4, 4, 8, 16)


def pick(rng: Generator, options: Sequence[T]) -> T:
    """One of the options."""
    return options[int(rng.integers(len(options)))]


def random_graph(rng: Generator, n: int) -> Graph:
    """A graph of about n operations. Some have several outputs or views, update a source, write in place, or are never read."""
    b = GraphBuilder("random")
    tensors: list[int] = []
    parameters: list[tuple[int, int]] = []  # tensor, co-location set
    n_sources = int(rng.integers(0, max(1, n // 3) + 1))
    for i in range(n_sources):
        parameter = rng.random() < 0.5
        colocate = len(parameters) if parameter else -1
        tensor = b.source(f"s{i}", pick(rng, BYTES), colocate=colocate)
        if rng.random() < 0.2:  # a source with a second tensor
            tensors.append(b.output(len(b.operations) - 1, pick(rng, BYTES)))
        if parameter:
            parameters.append((tensor, colocate))
        tensors.append(tensor)
    for i in range(n - n_sources):
        k = min(len(tensors), pick(rng, [0, 1, 1, 2, 2, 3]))
        recent = tensors[-8:] if rng.random() < 0.6 else tensors
        inputs = rng.choice(recent, size=min(k, len(recent)), replace=False).tolist() if recent else []
        update = bool(parameters) and rng.random() < 0.15
        colocate = -1
        if update:
            parameter_tensor, colocate = parameters.pop(int(rng.integers(len(parameters))))
            inputs.append(parameter_tensor)
        outputs = [pick(rng, BYTES) for _ in range(pick(rng, [0, 1, 1, 1, 2, 3]))]
        made = b.add(
            f"k{i}", inputs=inputs, outputs=outputs, colocate=colocate, op_class=pick(rng, ["matmul", "copy"]),
            flops=float(rng.integers(0, 4)), bytes_accessed=float(rng.integers(0, 4)),
            persistent_bytes=pick(rng, [0, 0, 0, 3]), phase="update" if update else "forward",
            allowed=pick(rng, ["", "", "", "", "cpu|gpu", "gpu"]),
        )  # fmt: skip
        op = len(b.operations) - 1
        if made and rng.random() < 0.3:  # a smaller view of an output
            made.append(b.output(op, pick(rng, BYTES), storage=made[0]))
        if update:
            made.append(b.output(op, b.tensors[parameter_tensor][1], storage=parameter_tensor))
        elif i % 5 == 4 and inputs and _writes_over(b, op, inputs[0]):
            made.append(b.output(op, b.tensors[inputs[0]][1], storage=b.tensors[inputs[0]][2]))
        tensors += made
    return b.build()


def _writes_over(b: GraphBuilder, op: int, tensor: int) -> bool:
    """Let kernel `op` write over a tensor: co-locate it with the owner of that memory. False if it cannot be."""
    owner = b.operations[b.tensors[b.tensors[tensor][2]][0]]
    if not owner.kernel or (owner.colocate >= 0) != (owner.colocate >= 1000):
        return False
    owner.colocate = b.operations[op].colocate = owner.colocate if owner.colocate >= 0 else 1000 + op
    return True


def random_step(rng: Generator, n: int) -> Graph:
    """A training step of n forward operations: modules that interleave, gradients, parameters shared and updated.

    Some operations may run on CPUs only, some gradients on GPUs only; every co-location set has a device type.
    """
    b = GraphBuilder("step")
    x = b.source("x", 8, op_type="input")
    made: list[list[int]] = [[x]]
    reads: list[list[int]] = []
    parameters = [b.source(f"w{i}", 4, colocate=i) for i in range(int(rng.integers(1, 5)))]
    counters = [b.source(f"c{i}", 4, colocate=100 + i, op_type="buffer") for i in range(2)]
    first = len(b.operations)
    forward_of = [-1] * (first + n + len(counters))
    for v in range(n):
        ins = {pick(rng, made[int(k)]) for k in rng.integers(0, len(made), int(rng.integers(1, 4)))}
        if rng.random() < 0.5:
            ins.add(pick(rng, parameters))
        reads.append(sorted(ins))
        made.append(b.add(
            f"f{v}", inputs=reads[-1], outputs=rng.integers(1, 50, int(rng.integers(1, 3))).tolist(),
            module=pick(rng, ["", "a", "a.b", "c.d", "c.d.e"]), call=int(rng.integers(0, 2)),
            allowed=pick(rng, ["", "", "", "cpu|gpu", "cpu"]) if rng.random() < 0.3 else "",
            colocate=200 + int(rng.integers(0, 2)) if rng.random() < 0.08 else -1, flops=float(rng.integers(0, 10**9)),
        ))  # fmt: skip
    for i, c in enumerate(counters):
        b.add(f"count{i}", inputs=[c], colocate=100 + i)
        b.output(len(b.operations) - 1, 4, storage=c)
    gradient = made[-1][0]
    for v in reversed(range(n)):
        saved = [gradient, *reads[v]] if rng.random() < 0.9 else [*reads[v], x]
        forward = b.operations[first + v]
        gradient = b.add(
            f"b{v}", inputs=saved, outputs=[int(rng.integers(1, 50))], phase="backward", module=forward.module,
            call=forward.call, flops=1e8, allowed="gpu" if rng.random() < 0.1 else "",
        )[0]  # fmt: skip
        forward_of.append(first + v if rng.random() < 0.8 else -1)
    for i, w in enumerate(parameters):
        b.add(f"u{i}", inputs=[w, gradient], phase="update", colocate=i)
        b.output(len(b.operations) - 1, 4, storage=w)
        forward_of.append(-1)
    b.columns["forward_of"] = np.asarray(forward_of, np.int32)
    return b.build()


def machine(kinds: Sequence[str] = ("cpu", "gpu"), devices: int = 1, memory_bytes: int = 2**60, **kind: Any) -> Cluster:
    """A machine with a direct link between any two devices; kind `cpu` are CPUs, other kinds GPUs; huge memory."""
    properties = {
        "flops_per_s": {"float32": 1 / TICK_S}, "memory_bytes": memory_bytes, "memory_bytes_per_s": 1 / TICK_S, **kind
    }  # fmt: skip
    return Cluster.parse(
        {
            "name": "mesh",
            "kinds": {k: {"type": "cpu" if k == "cpu" else "gpu", **properties} for k in kinds},
            "devices": [{"kind": k, "count": devices} for k in kinds],
            "links": [{"mesh": "*", "bytes_per_s": 1 / TICK_S}] if len(kinds) * devices > 1 else [],
        }
    )


def random_cluster(rng: Generator, max_devices: int = 4) -> Cluster:
    """A machine: a mesh, a hub (full or half duplex, shared or not), two nodes, a relaying chain, a bus, multicast."""
    size = int(rng.integers(1, max_devices + 1))
    names = [f"d{i}" for i in range(size)]

    def kind(type_: str) -> dict[str, Any]:
        return {
            "type": type_, "flops_per_s": {"float32": pick(rng, [0.5, 1.0, 2.0]) / TICK_S}, "memory_bytes": 2**20,
            "memory_bytes_per_s": 1 / TICK_S, "streams": pick(rng, [1, 1, 2, 3, "unlimited"]),
            "launch_overhead_s": pick(rng, [0, 1]) * TICK_S,
        }  # fmt: skip

    def way() -> dict[str, Any]:
        return {
            "bytes_per_s": pick(rng, [1, 2, 4, 8]) / TICK_S, "latency_s": pick(rng, [0, 1, 2]) * TICK_S,
            "concurrent": pick(rng, [1, 1, 1, 2, "unlimited"]),
        }  # fmt: skip

    shape = pick(rng, ["mesh", "hub", "half", "nodes", "chain", "bus", "multicast", "free"])
    free = {"bytes_per_s": 2.0**60, "concurrent": "unlimited"}
    links: list[dict[str, Any]] = []
    if shape in ("mesh", "free"):
        links = [{"mesh": "*", **way(), **({"concurrent": "unlimited"} if shape == "free" else {})}]
    elif shape in ("hub", "half"):
        links = [{"a": d, "b": "switch", **way(), "duplex": "half" if shape == "half" else "full"} for d in names]
    elif shape == "nodes":
        links = [{"a": d, "b": f"node{i % 2}", **way()} for i, d in enumerate(names)]
        links.append({"a": "node0", "b": "node1", **way()})
    elif shape == "chain":
        links = [{"a": a, "b": b, **way()} for a, b in pairwise(names)]
    else:  # each device sends over its single egress channel, and receives without waiting
        egress = way()
        links = [{"a": d, "b": "switch", **egress, "reverse": free} for d in names]
    return Cluster.parse(
        {
            "name": shape,
            "kinds": {"fast": kind("gpu"), "slow": kind("cpu")},
            "devices": [
                {"kind": "fast" if i == 0 else pick(rng, ["fast", "slow"]), "name": d} for i, d in enumerate(names)
            ],
            "links": links if size > 1 else [],
            "relay": shape == "chain",
            "multicast": shape == "multicast",
        }
    )


def random_costs(rng: Generator, graph: Graph, cluster: Cluster) -> CostTable:
    """0 to 4 ticks for each kernel on each kind of device."""
    kinds = cluster.kind_names
    op_s = rng.integers(0, 5, (graph.n, len(kinds))) * TICK_S
    return CostTable(kinds, np.where(graph.kernel[:, None], op_s, 0.0), np.zeros(op_s.shape, np.bool_))


def random_grouping(rng: Generator, graph: Graph) -> Grouping:
    """Groups of co-located operations only, or a few random groups of those."""
    finest = Grouping.colocated(graph)
    if finest.count == 0 or rng.random() < 0.7:
        return finest
    merged = rng.integers(0, max(1, finest.count // 2), finest.count)
    return Grouping.of(merged[finest.group_of])


def random_problem(rng: Generator, n: int = 12, max_devices: int = 4) -> Problem:
    """A random graph of about n operations on a random machine, with random costs and groups."""
    graph, cluster = random_graph(rng, n), random_cluster(rng, max_devices)
    return Problem(graph, random_grouping(rng, graph), cluster, random_costs(rng, graph, cluster))


def random_placements(rng: Generator, problem: Problem, b: int = 1, priorities: bool = False) -> Placements:
    """b random placements on allowed devices; priorities take a few values of either sign, and both zeros."""
    weight = problem.allowed * rng.random((b, problem.g, problem.cluster.size))
    device = weight.argmax(axis=2)
    order = rng.choice([-2.5, -1.0, -0.0, 0.0, 1.0, 2.0, 1e9], (b, problem.g)) if priorities else None
    return Placements.of(device, order)


@dataclass(frozen=True)
class Case:
    """A problem and its generator, from which a test draws anything else it needs."""

    problem: Problem
    rng: Generator

    def __repr__(self) -> str:
        return f"Case({self.problem.graph!r}, {self.problem.cluster.name}, {self.problem.cluster.size} devices)"


def problems(max_n: int = 16, max_devices: int = 4) -> SearchStrategy[Case]:
    """Hypothesis strategy: random problems of 1..max_n operations, shrinking in size."""
    from hypothesis import strategies as st

    def case(seed: int, n: int, devices: int) -> Case:
        rng = np.random.default_rng(seed)
        return Case(random_problem(rng, n, devices), rng)

    return st.builds(case, st.integers(0, 2**32 - 1), st.integers(1, max_n), st.integers(1, max_devices))
