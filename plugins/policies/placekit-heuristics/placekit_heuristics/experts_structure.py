"""Recognizes the structures of networks that expert placements refer to, from the modules of a graph's operations.

All functions look at the kernels of the forward phase: their modules (column `module`), their call index in this module and in
the modules around it (`call_path`, or `call`), and the tensors that they read.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from placekit_core import PHASES, Graph, Labels

CONCATENATION = ("cat", "concat")
ADDITION = ("add",)


@dataclass(frozen=True, eq=False)
class Block:
    """A module that joins parallel branches by a concatenation.

    Attributes:
        path: path of the module.
        level: of each branch: 0 if it reads no other branch, else more than the levels of the branches that it reads.
        branch_of: the branch that each key (`Modules.key`: a submodule, or an operation of the module itself) belongs to.
        container: path of the module whose submodules are the branches, or parts of them: `path`, or a list of modules in it.
        reads: forward kernels outside the module that its kernels read.
    """

    path: str
    level: list[int]
    branch_of: dict[str, int]
    container: str
    reads: frozenset[int]


class Modules:
    """The modules of a graph, and the edges between its forward kernels."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.module = graph.module.tolist()
        forward = graph.kernel & (graph.phase == PHASES.index("forward"))
        self.forward = [int(v) for v in graph.topological_order if forward[v]]
        """Forward kernels in topological order."""
        u, v = graph.op_edges
        both = forward[u] & forward[v]
        self.readers: defaultdict[int, list[int]] = defaultdict(list)
        self.producers: defaultdict[int, list[int]] = defaultdict(list)
        for a, b in zip(u[both].tolist(), v[both].tolist(), strict=True):
            self.readers[a].append(b)
            self.producers[b].append(a)
        forward_of = graph.columns.get("forward_of")
        self.forward_of = forward_of if isinstance(forward_of, np.ndarray) else np.full(graph.n, -1)

    @cached_property
    def inside(self) -> dict[str, list[int]]:
        """Forward kernels in each module, at any depth, in topological order; without the whole network (path '')."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for v in self.forward:
            for path in prefixes(self.module[v]):
                found[path].append(v)
        return dict(found)

    def convolves(self, operations: list[int]) -> bool:
        """Whether one of `operations` is a convolution."""
        return any(self.graph.op_class[v] == "convolution" for v in operations)

    def is_type(self, v: int, types: tuple[str, ...]) -> bool:
        """Whether the last part of its operator (`cat` of `aten.cat`) is one of `types`."""
        return self.graph.op_type[v].rpartition(".")[2].lower() in types

    def reads_outside(self, path: str) -> frozenset[int]:
        """Forward kernels outside a module that its kernels read."""
        return frozenset(u for v in self.inside[path] for u in self.producers[v]) - frozenset(self.inside[path])

    def key(self, v: int, path: str, container: str) -> str:
        """The key of operation v of module `path`: its submodule of `container`, or else its submodule of `path`.

        An operation of the module itself has its own number as key, or that of its forward operation.
        """
        for parent in (container, path):
            if self.module[v].startswith(f"{parent}."):
                return f"{parent}.{self.module[v].removeprefix(f'{parent}.').partition('.')[0]}"
        return f"#{v if self.forward_of[v] < 0 else self.forward_of[v]}"


def prefixes(path: str) -> list[str]:
    """`a`, `a.b` and `a.b.c` for `a.b.c`; empty for the empty path."""
    parts = path.split(".") if path else []
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def recurrent_stacks(modules: Modules) -> list[list[str]]:
    """Stacks of recurrent layers, each from the first layer to the last.

    A layer is a module with several calls, where one call directly reads an output (the state) of an earlier one. Only the
    innermost such modules count: the cells, not the decoder around them. The layers of one parent module are a stack.
    """
    graph = modules.graph
    call_path = graph.columns.get("call_path")
    calls: list[dict[str, int]] = []
    for v in range(graph.n):
        paths = prefixes(modules.module[v])
        numbers = call_path[v].split(".") if isinstance(call_path, Labels) and call_path[v] else []
        known = len(numbers) == len(paths)
        calls.append(
            dict(zip(paths, map(int, numbers), strict=True)) if known else {p: int(graph.call[v]) for p in paths[-1:]}
        )
    found = {
        path
        for u in modules.forward
        for v in modules.readers[u]
        for path, number in calls[u].items()
        if calls[v].get(path, -1) > number
    }
    stacks: defaultdict[str, list[str]] = defaultdict(list)
    for path in modules.inside:  # in the order of their first operations
        if path in found and not any(other.startswith(f"{path}.") for other in found):
            stacks[path.rpartition(".")[0]].append(path)
    return list(stacks.values())


def branch_blocks(modules: Modules) -> list[Block]:
    """The outermost modules, in data order, that concatenate the outputs of parallel submodules with convolutions."""
    found: list[Block] = []
    for path in modules.inside:
        if not any(path.startswith(f"{block.path}.") for block in found):
            block = _block(modules, path)
            found += [block] if block else []
    return found


def _block(modules: Modules, path: str) -> Block | None:
    """Module `path` as a block; None unless its last concatenation joins branches with convolutions, two of them independent."""
    inside = modules.inside[path]
    within = set(inside)
    joins = [v for v in inside if modules.module[v] == path and modules.is_type(v, CONCATENATION)]
    if not joins:
        return None
    joined = [u for u in modules.producers[joins[-1]] if u in within]
    container = _container(path, [modules.module[u] for u in joined])
    feeding = _ancestors(modules, joined) & within
    key = {v: modules.key(v, path, container) for v in inside if v in feeding}
    next_keys: defaultdict[str, set[str]] = defaultdict(set)
    previous_keys: defaultdict[str, set[str]] = defaultdict(set)
    for v, own in key.items():
        for u in modules.producers[v]:
            if key.get(u, own) != own:
                next_keys[key[u]].add(own)
                previous_keys[own].add(key[u])
    ends = {key[u] for u in joined}
    branch: dict[str, int] = {}
    level: list[int] = []
    for v, own in key.items():
        [previous] = previous_keys[own] if len(previous_keys[own]) == 1 else [""]
        if own not in branch and previous in branch and next_keys[previous] == {own} and previous not in ends:
            branch[own] = branch[previous]  # a chain of submodules is one branch
        elif own not in branch:
            branch[own] = len(level)
            level.append(0)
        own_branch = branch[own]
        others = [branch[key[u]] for u in modules.producers[v] if u in key and branch[key[u]] != own_branch]
        level[own_branch] = max([level[own_branch], *(level[b] + 1 for b in others)])
    submodules = [level[b] for b in {b for own, b in branch.items() if not own.startswith("#")}]
    parallel = len(set(submodules)) < len(submodules) and modules.convolves(list(key))
    return Block(path, level, branch, container, modules.reads_outside(path)) if parallel else None


def _container(path: str, joined: list[str]) -> str:
    """The container of the branches: `path`, or a submodule (a list of modules) that contains all of `joined`."""
    base = path
    while True:
        below = {m.removeprefix(f"{base}.").partition(".")[0] if m.startswith(f"{base}.") else "" for m in joined}
        [child] = below if len(below) == 1 else [""]
        if not child or f"{base}.{child}" in joined:
            return base
        base = f"{base}.{child}"


def _ancestors(modules: Modules, operations: list[int]) -> set[int]:
    """`operations` and all forward kernels that they depend on."""
    found, waiting = set(operations), list(operations)
    while waiting:
        new = [u for u in modules.producers[waiting.pop()] if u not in found]
        found.update(new)
        waiting += new
    return found


def residual_blocks(modules: Modules) -> list[str]:
    """Modules that read one tensor and add it, or a projection of it, to the result of convolutions on it."""
    return [
        path
        for path, inside in modules.inside.items()
        if modules.convolves(inside)
        and len(modules.reads_outside(path)) == 1
        and any(
            modules.module[v] == path and modules.is_type(v, ADDITION) and len(modules.producers[v]) == 2
            for v in inside
        )
    ]
