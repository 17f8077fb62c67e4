"""Repetition: corresponding groups of equal blocks become one, so that placing one block places them all.

Yao et al. 2026 (Doppler), appendix K: very large graphs repeat structures, transformer blocks for example, so that one can
"learn to place a transformer block and then simply repeat that placement in each repeated structure", "using the overall
running time to compute a reward".
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from os.path import commonprefix

import numpy as np
from numpy.typing import NDArray

from placekit_core import PHASES, Graph, GraphError, Grouping, Labels

_Inside = dict[str, list[int]]
_Children = dict[str, list[str]]
_Wires = dict[int, tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Repeat:
    """m sibling modules of equal structure, one after the other.

    Attributes:
        name: name for all of them: `h.*`, or `h.{1-4}` where `h` has other modules that could be blocks.
        blocks: their m paths, in the order in which data passes through them.
        operations: [m, k] operations of each block in traced order: a column holds corresponding ones. Operations that are
            co-located with others outside their block are left out.
    """

    name: str
    blocks: tuple[str, ...]
    operations: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Block:
    """A module that could be a block.

    Attributes:
        path: module path.
        operations: the operations of the module and below it, ascending.
        whole: whether each operation is free, or co-located with none but these operations.
        reads: distinct tensors that it reads from outside, in the order in which it first reads them.
    """

    path: str
    operations: list[int]
    whole: list[bool]
    reads: list[int]


def repeated(graph: Graph, grouping: Grouping) -> Grouping:
    """`grouping` with corresponding groups of repeated blocks tied together.

    A block is divided as most of its copies are (the first of equals), and each part is one group with the same part of all
    copies. A group that straddles the border of a block is cut there; operations outside repeated blocks, or co-located
    with such, stay with the rest of their group. Co-location sets are never divided, and no group loses a type of device:
    a part was in one group, and corresponding operations have the same `allowed`. Groups may wait for each other afterwards
    (all second halves of the blocks for all first halves, and the reverse). Raises GraphError if nothing repeats.
    """
    repeats = find_repeats(graph)
    if not repeats:
        raise GraphError(f"{graph.name!r} has no repeated blocks, which grouper.repeat is for", _looked_for(graph))
    before = grouping.group_of.astype(np.int64)
    key, count = before.copy(), grouping.count
    for repeat in repeats:
        divided = [Grouping.of(before[row]).group_of for row in repeat.operations]
        usual = Counter(row.tobytes() for row in divided).most_common(1)[0][0]
        parts = next(row for row in divided if row.tobytes() == usual)
        key[repeat.operations] = count + parts
        count += int(parts.max()) + 1
    return Grouping.of(key, _names(graph, grouping, repeats, key, count)).check(graph)


def find_repeats(graph: Graph) -> list[Repeat]:
    """The outermost modules that equal a sibling in structure: no others are looked for inside or beside repeated ones.

    A block has modules of its own, or parameters and a number for a name. (Others are roles in a block, such as the projections
    of queries and keys, not repeated blocks.) Equal means: the same operations in the same order, with their types, costs,
    shapes, phases, allowed devices, module paths below the block, co-location and edges: those inside the block, and which
    of its operations read the same tensor from outside. A path of forward kernels leads from every block to the next, so that
    those side by side (experts, branches) are not tied; and blocks are connected alike, see `_connect`.
    """
    inside, children = _tree(graph)
    found: list[Repeat] = []
    waiting = [""]
    while waiting:
        parent = waiting.pop()
        candidates = _candidates(graph, parent, inside, children)
        equal: defaultdict[Hashable, list[_Block]] = defaultdict(list)
        for path in candidates if len(candidates) > 1 else ():
            whole = _whole(graph, inside[path])
            structure, reads = _structure(graph, path, inside[path], whole)
            equal[structure].append(_Block(path, inside[path], whole, reads))
        alike = [blocks for blocks in equal.values() if len(blocks) > 1 and any(blocks[0].whole)]
        chains = [chain for blocks in alike for chain in _chains(graph, blocks)]
        for chain in chains:
            rows = np.asarray([block.operations for block in chain], np.int64)
            paths = tuple(block.path for block in chain)
            named = [path for path in candidates if path in paths]
            found.append(Repeat(_common_name(parent, named, candidates), paths, rows[:, chain[0].whole]))
        if not chains:
            waiting += reversed(children.get(parent, []))
    return found


def _tree(graph: Graph) -> tuple[_Inside, _Children]:
    """By module path: the operations of the module and those below it, ascending; and the paths directly below it."""
    inside: dict[str, list[int]] = {}
    children: defaultdict[str, list[str]] = defaultdict(list)
    for v in range(graph.n):
        path = graph.module[v]
        while path:
            parent = path.rpartition(".")[0]
            if path not in inside:
                inside[path] = []
                children[parent].append(path)
            inside[path].append(v)
            path = parent
    return inside, dict(children)


def _candidates(graph: Graph, parent: str, inside: _Inside, children: _Children) -> list[str]:
    """The modules directly below `parent` that could be blocks, those with numbers in numerical order."""

    def could_be(path: str) -> bool:
        return path in children or (_last(path).isdecimal() and not graph.kernel[inside[path]].all())

    def number(path: str) -> list[int | str]:
        return [int(p) if p.isdecimal() else p for p in re.split(r"(\d+)", _last(path))]

    return sorted(filter(could_be, children.get(parent, ())), key=number)


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _whole(graph: Graph, operations: list[int]) -> list[bool]:
    """Whether each of these operations is free, or co-located with no other operation than these."""
    size = np.bincount(graph.colocate[graph.colocate >= 0])
    sets = graph.colocate[operations]
    here = np.bincount(sets[sets >= 0], minlength=len(size))
    return [s < 0 or bool(here[s] == size[s]) for s in sets.tolist()]


def _structure(graph: Graph, path: str, operations: list[int], whole: list[bool]) -> tuple[Hashable, list[int]]:
    """A key that equal blocks share, and the distinct tensors from outside in the order in which they are first read."""
    outside: dict[int, int] = {}
    position = {v: i for i, v in enumerate(operations)}
    set_of: dict[int, int] = {}
    signature = graph.columns.get("signature")
    rows = []
    for v, free in zip(operations, whole, strict=True):
        read: list[Hashable] = []
        for t in graph.inputs(v).tolist():
            u = int(graph.tensor_producer[t])
            if u in position:
                read.append((position[u], t - int(graph.output_ptr[u]), _tensor(graph, t)))
            else:  # its shape at the producer does not matter: how it is read is in the signature
                read.append((-1, outside.setdefault(t, len(outside)), int(graph.tensor_bytes[t])))
        tied = int(graph.colocate[v])
        rows.append((
            graph.op_type[v], graph.op_class[v], graph.dtype[v], graph.allowed[v], int(graph.phase[v]), bool(graph.kernel[v]),
            float(graph.flops[v]), float(graph.bytes_accessed[v]), int(graph.persistent_bytes[v]),
            graph.module[v].removeprefix(path), int(graph.call[v]), signature[v] if isinstance(signature, Labels) else "",
            free, -1 if tied < 0 else set_of.setdefault(tied, len(set_of)),
            tuple(read), tuple(_tensor(graph, t) for t in graph.outputs(v)),
        ))  # fmt: skip
    return tuple(rows), list(outside)


def _tensor(graph: Graph, tensor: int) -> Hashable:
    return int(graph.tensor_bytes[tensor]), graph.shape(tensor)


def _chains(graph: Graph, blocks: list[_Block]) -> list[list[_Block]]:
    """Runs of two blocks or more: each block joins the first run that leads to it and that it continues by `_connect`.

    A run that leads to a block that does not continue it has ended.
    """
    rank = np.empty(graph.n, np.int64)
    rank[graph.topological_order] = np.arange(graph.n)
    forward = graph.kernel & (graph.phase == PHASES.index("forward"))
    first = [min((int(rank[v]) for v in block.operations if forward[v]), default=graph.n) for block in blocks]
    ordered = [blocks[i] for i in np.argsort(first, kind="stable").tolist()]
    ahead = _ahead(graph, ordered, forward)
    runs: list[tuple[list[int], _Wires]] = []
    ended: list[list[int]] = []
    for i, block in enumerate(ordered):
        run, wires = [i], _Wires()
        for other in [other for other in runs if ahead[i] >> other[0][-1] & 1]:
            runs.remove(other)
            if _connect(graph, ordered[other[0][-1]], block, other[1]):
                run, wires = [*other[0], i], other[1]
                break
            ended.append(other[0])
        runs.append((run, wires))
    every = sorted([*ended, *(run for run, _ in runs)])
    return [[ordered[i] for i in run] for run in every if len(run) > 1]


def _ahead(graph: Graph, blocks: list[_Block], forward: NDArray[np.bool_]) -> list[int]:
    """By block: the set of the blocks (bit i is block i) from which a path of forward kernels leads to it."""
    own = {v: i for i, block in enumerate(blocks) for v in block.operations}
    ahead = [0] * len(blocks)
    reached = [0] * graph.n  # by operation: the blocks that lead to what reads it, its own included
    producer = graph.tensor_producer.tolist()
    for v in graph.topological_order[forward[graph.topological_order]].tolist():
        for t in graph.inputs(v).tolist():
            reached[v] |= reached[producer[t]]
        if v in own:
            ahead[own[v]] |= reached[v]
            reached[v] |= 1 << own[v]
    return ahead


def _connect(graph: Graph, last: _Block, block: _Block, wires: _Wires) -> bool:
    """Whether `block` follows `last` as that followed the one before it; if so, adds to `wires` what it reads from `last`.

    `wires`: by the index of an outside tensor, position and output of the operation that makes it in the block before.
    What is known of an index does not change along a run. (An index is unknown in the first block, and where the tensor
    comes from elsewhere: from an operation between two blocks, say.) Tensors that pass from block to block are in the same
    order in `last` as in `block`: so the first block's are not crossed either.
    """
    position = {v: i for i, v in enumerate(last.operations)}
    new = _Wires()
    for i, t in enumerate(block.reads):
        u = int(graph.tensor_producer[t])
        if u in position:
            new[i] = (position[u], t - int(graph.output_ptr[u]))
    alike = all(wires.get(i, wire) == wire for i, wire in new.items())
    alike &= sorted(new, key=last.reads.__getitem__) == sorted(new, key=block.reads.__getitem__)
    if alike:
        wires |= new
    return alike


def _common_name(parent: str, blocks: list[str], candidates: list[str]) -> str:
    """`parent.*` if no other candidate has such a name, else with what the blocks are told apart by: `parent.cell_{0,2-4}`."""
    prefix = commonprefix([_last(path) for path in blocks]).rstrip("0123456789")  # noqa: RUF071 (not of files)
    if sum(_last(path).startswith(prefix) for path in candidates) == len(blocks):
        return ".".join(filter(None, [parent, f"{prefix}*"]))
    runs: list[list[str]] = []
    for rest in (_last(path).removeprefix(prefix) for path in blocks):
        if runs and rest.isdecimal() and runs[-1][-1].isdecimal() and int(rest) == int(runs[-1][-1]) + 1:
            runs[-1].append(rest)
        else:
            runs.append([rest])
    some = ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return ".".join(filter(None, [parent, f"{prefix}{{{some}}}"]))


def _names(
    graph: Graph, grouping: Grouping, repeats: list[Repeat], key: NDArray[np.int64], count: int
) -> tuple[str, ...]:
    """By key: an unchanged group keeps its name; a group of whole blocks has theirs (`h.*`).

    Any other group has the name of the module of its costliest operation, with a number where that name is taken.
    """
    general = {
        int(v): (path, repeat.name)
        for repeat in repeats
        for path, row in zip(repeat.blocks, repeat.operations, strict=True)
        for v in row
    }
    names = [grouping.name(i) for i in range(grouping.count)] + [""] * (count - grouping.count)
    cut = np.unique(grouping.group_of[key != grouping.group_of]).tolist()
    changed = {*cut, *range(grouping.count, count)}
    taken = {name for i, name in enumerate(names) if i not in changed}
    named = set(range(count)) - changed
    one = [repeat for repeat in repeats if len(np.unique(key[repeat.operations])) == 1]
    blocks = {int(key[repeat.operations[0, 0]]): repeat.name for repeat in one}
    for v in np.lexsort((np.arange(graph.n), -graph.bytes_accessed, -graph.flops)).tolist():
        group = int(key[v])
        if group in named:
            continue
        path, common = general.get(v, ("", ""))
        name = blocks.get(group) or (common + graph.module[v].removeprefix(path)) or graph.op_type[v]
        name += f"@{graph.call[v]}" if graph.call[v] and group not in blocks else ""
        numbered = (f"{name} ({i})" for i in itertools.count(2))
        names[group] = name if name not in taken else next(n for n in numbered if n not in taken)
        taken.add(names[group])
        named.add(group)
    return tuple(names)


def _looked_for(graph: Graph) -> str:
    """A hint: what counts as a repeated block, and how near this graph comes to one."""
    inside, children = _tree(graph)
    near = [p for p in (_candidates(graph, parent, inside, children) for parent in children) if len(p) > 1]
    some = "; ".join(" ".join(paths[:4]) + (" ..." if len(paths) > 4 else "") for paths in near[:3])
    found = f"no two are equal, and one after the other, among {some}" if near else "this graph has no two such modules"
    return f"looked for modules of one parent with equal operations, numbered (h.0, h.1) or made of modules: {found}"
