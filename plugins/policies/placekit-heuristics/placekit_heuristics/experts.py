"""Policy `expert`: the expert placements of the papers, from the structure of a network's modules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from placekit_core import Graph, NotApplicable, Placement, Policy, Problem, Task
from placekit_heuristics.expert_options import ExpertOptions
from placekit_heuristics.experts_structure import (
    Block,
    Modules,
    branch_blocks,
    prefixes,
    recurrent_stacks,
    residual_blocks,
)
from placekit_heuristics.simple import devices_of, fastest_single, or_single_device, within_allowed

Wanted = NDArray[np.int16]
"""[n] device of each operation; -1 if the rule does not cover it."""


@dataclass(frozen=True)
class Family:
    """A family of networks that experts place by the same rule.

    Attributes:
        name: name of the family.
        what: the structure of its networks, in words.
        find: finds this structure in a network; the result is empty if the network does not have it.
        rule: how to place it: a key of `RULES`, or `single`; empty: the option `inception` decides.
    """

    name: str
    what: str
    find: Callable[[Modules], Any]
    rule: str


def _block_chain(modules: Modules) -> list[Block]:
    """Blocks of parallel branches, if they form a chain: each reads at most one output of an operation outside it."""
    blocks = branch_blocks(modules)
    return blocks if all(len(block.reads) <= 1 for block in blocks) else []


FAMILIES = (  # a graph belongs to the first family whose structure it has
    # Mirhoseini, 4.2: "For RNNLM and NMT, we put each LSTM layer on a device. For NMT, we also put the attention mechanism and
    # the softmax layer on the same device with the highest LSTM layer, and we put the embedding layer on the same device with
    # the first LSTM layer." Placeto (3.2) and Post (4) say the same.
    Family("recurrent", "cells that read the state of their previous call", recurrent_stacks, "layers"),
    # Mirhoseini, 4.2: "we heuristically partition the model into contiguous parts that have roughly the same number of layers".
    # Post: "places the entire model on a single GPU for Inception-V3 and ResNet".
    Family("inception", "a chain of modules that concatenate parallel branches", _block_chain, ""),
    # Placeto, 3.2: "for vision models, we place each parallel branch on a different device".
    Family(
        "cells", "modules that concatenate parallel branches, and read several such modules", branch_blocks, "branches"
    ),
    # Post, 4: "a method that places the entire model on a single GPU for Inception-V3 and ResNet".
    Family("residual", "modules that add their input to the output of their convolutions", residual_blocks, "single"),
)


class Expert(Policy):
    """The expert placement of the papers, for the families of networks where they define one.

    Nothing is repaired: if an expert of the papers runs out of memory, so does this one.
    """

    name = "expert"
    options_class = ExpertOptions

    def place(self, task: Task, rng: Generator) -> Placement:
        """The placement; nothing is evaluated. Raises NotApplicable for a graph of no family, or a machine without GPUs."""
        return or_single_device(task, self.options, lambda: self._place(task))

    def _place(self, task: Task) -> Placement:
        problem = task.problem
        modules = Modules(problem.graph)
        gpus = devices_of(problem, "gpu")
        for family in FAMILIES:
            structure = family.find(modules)
            if structure:
                rule = family.rule or self.options.inception
                if rule == "single":
                    return problem.placement(fastest_single(problem, gpus))
                return place_operations(task, fill_gaps(modules, RULES[rule](problem, modules, structure, gpus), gpus))
        raise NotApplicable(
            f"no expert's placement is defined for {problem.graph.name!r}",
            "its modules have none of these structures: "
            + "; ".join(f"{f.name} ({f.what})" for f in FAMILIES)
            + "; set policy.otherwise=single_device to place everything on one device",
        )


def layers(problem: Problem, modules: Modules, stacks: list[list[str]], gpus: list[int]) -> Wanted:
    """Layer i of every stack on GPU i mod D. Other operations go with the last layer if a layer feeds them, else with the first.

    The modulus is from the code of Luong, Brevdo and Zhao 2017, "Neural Machine Translation (seq2seq) Tutorial", which puts
    layer i on GPU i % num_gpus.
    """
    layer = {path: i for stack in stacks for i, path in enumerate(stack)}
    own = [next((layer[p] for p in prefixes(path) if p in layer), -1) for path in modules.module]
    fed: set[int] = set()
    for v in modules.forward:
        if own[v] >= 0 or any(u in fed for u in modules.producers[v]):
            fed.add(v)
    reached, forward = {modules.module[v] for v in fed}, set(modules.forward)
    index = np.asarray(own)
    for v in np.flatnonzero(index < 0).tolist():
        path = modules.module[v]
        if path or v in forward:
            index[v] = max(layer.values()) if (path in reached if path else v in fed) else 0
    return np.where(index < 0, -1, np.asarray(gpus)[index % len(gpus)]).astype(np.int16)


def branches(problem: Problem, modules: Modules, blocks: list[Block], gpus: list[int]) -> Wanted:
    """Parallel branches of a block on different GPUs: the most expensive first, each on the GPU with the least cost so far.

    Branches that read other branches form another level, which is placed in the same way. The rest is on the first GPU.
    """
    seconds = _seconds(problem, gpus[0])
    device = np.full(problem.graph.n, gpus[0], np.int16)
    block_of = {block.path: block for block in blocks}
    members: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for v, path in enumerate(modules.module):
        block = next((block_of[p] for p in prefixes(path) if p in block_of), None)
        branch = block.branch_of.get(modules.key(v, block.path, block.container), -1) if block else -1
        if block and branch >= 0:
            members[block.path, branch].append(v)
    cost = {key: float(seconds[rows].sum()) for key, rows in members.items()}
    for block in blocks:
        load = {level: [0.0] * len(gpus) for level in block.level}
        for key in sorted((k for k in members if k[0] == block.path), key=lambda k: (-cost[k], k[1])):
            own = load[block.level[key[1]]]
            g = int(np.argmin(own))
            own[g] += cost[key]
            device[members[key]] = gpus[g]
    device[[not path for path in modules.module]] = -1
    return device


def contiguous(problem: Problem, modules: Modules, blocks: list[Block], gpus: list[int]) -> Wanted:
    """Contiguous parts of the network in data order, which take equal time on their GPUs. Blocks are not divided.

    A part holds the forward, backward and update operations of its modules.
    """
    block_of = {block.path for block in blocks}

    def unit(v: int) -> str:
        path = modules.module[v]
        return next((p for p in prefixes(path) if p in block_of), path) or f"#{v}"

    order = {name: i for i, name in enumerate(dict.fromkeys(unit(v) for v in modules.forward))}
    index = np.asarray([order.get(unit(v), -1) for v in range(problem.graph.n)])
    cost = np.bincount(index[index >= 0], _seconds(problem, gpus[0])[index >= 0], minlength=len(order))
    speed = np.asarray([1 / max(_seconds(problem, d).sum(), 1e-30) for d in gpus])
    middle = (np.cumsum(cost) - cost / 2) / max(cost.sum(), 1e-30)
    part = np.searchsorted(np.cumsum(speed)[:-1] / speed.sum(), middle, side="right")
    return np.where(index < 0, -1, np.asarray(gpus)[part][index]).astype(np.int16)


RULES: dict[str, Callable[[Problem, Modules, Any, list[int]], Wanted]] = {
    "layers": layers,
    "branches": branches,
    "contiguous": contiguous,
}


def _seconds(problem: Problem, device: int) -> NDArray[np.float64]:
    """[n] seconds on a device; 0 for operations that may not run there."""
    return np.where(problem.op_allowed[:, device], problem.op_s[:, device], 0.0)


def fill_gaps(modules: Modules, wanted: Wanted, gpus: list[int]) -> Wanted:
    """Replace -1: a kernel goes with its forward operation, or with one that it reads; any other with its first reader."""
    graph, result = modules.graph, wanted.copy()
    for v in graph.topological_order.tolist():
        if result[v] < 0 and graph.kernel[v]:
            before = [int(modules.forward_of[v]), *graph.tensor_producer[graph.inputs(v)].tolist()]
            result[v] = next((result[u] for u in before if u >= 0 and result[u] >= 0), -1)
    return fill_from_readers(graph, result, gpus[0])


def fill_from_readers(graph: Graph, wanted: Wanted, other: int) -> Wanted:
    """Replace -1 by the device of the first reader, or by `other` for an operation without readers. Returns a copy."""
    result = wanted.copy()
    for v in graph.topological_order[::-1].tolist():  # readers come before the operations that they read from
        if result[v] < 0:
            readers = (int(r) for t in graph.outputs(v) for r in graph.consumers(t))
            result[v] = next((result[r] for r in readers), other)
    return result


def place_operations(task: Task, wanted: Wanted) -> Placement:
    """Place each group on the device that `wanted` [n] gives most of its seconds, or most of its operations if it takes no time.

    A group that may not run there goes to the allowed device that is fastest for all such groups. A note counts operations
    that are on another device than wanted because of their group.
    """
    problem = task.problem
    rows = np.arange(problem.graph.n)
    weight = problem.op_s[rows, wanted] + 1e-15
    votes = np.zeros((problem.g, problem.cluster.size))
    np.add.at(votes, (problem.grouping.group_of, wanted), weight)
    device = within_allowed(problem, votes.argmax(axis=1).astype(np.int16))
    away = problem.graph.kernel & (problem.expand(device) != wanted) & problem.op_allowed[rows, wanted]
    if away.any():
        groups = len(np.unique(problem.grouping.group_of[away]))
        task.evaluate.note(
            f"{away.sum()} operations in {groups} groups are not where the rule puts them:"
            " a group goes to the device of most of its seconds"
        )
    return problem.placement(device)
