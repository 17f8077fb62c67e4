"""A training step for any number of rows, cut into the parts that stages can consist of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from placekit_layers import sequence
from placekit_layers.units import position

from placekit_core import Cluster, Graph, Grouping, Labels, Problem, Program

TRACED = (2, 4)
"""Rows of the two imports between which graphs are interpolated; with one row, dimensions may vanish."""
_AFFINE = ("flops", "bytes_accessed", "persistent_bytes", "tensor_bytes", "shape_dim")
_SIGNATURE = "signature"  # of measured costs; it has the shapes of a batch
_LOSS = "loss"  # the module path that importer `torch` gives to operations outside of the module
_SAME = ("input_tensor", "input_ptr", "tensor_producer", "tensor_storage", "phase", "kernel", "colocate", "call")


def interpolated(low: Graph, high: Graph, at: tuple[int, int], rows: int) -> Graph | None:
    """The graph for a batch of `rows`, from those for `at[0]` and `at[1]` rows; None if their operations differ.

    Bytes and arithmetic of an operation are affine in the rows of the batch: one part for parameters, one for each row. If a
    tensor has two dimensions that grow, as in a loss over all pairs of rows, they are not, and there is no such graph. (One
    dimension that grows with the square of the rows, as that of `torch.pdist`, is not noticed.)
    """
    labels = ("op_type", "op_class", "dtype", "module")
    if (
        low.op_name != high.op_name
        or any(not np.array_equal(getattr(low, c), getattr(high, c)) for c in _SAME)
        or any(getattr(low, c).tolist() != getattr(high, c).tolist() for c in labels)
        or not np.array_equal(low.shape_ptr, high.shape_ptr)
    ):
        return None
    if _has_pairs(low, high):
        return None
    columns = {}
    for name in _AFFINE:
        a, b = getattr(low, name), getattr(high, name)
        value = a + (b.astype(np.float64) - a) * ((rows - at[0]) / (at[1] - at[0]))
        columns[name] = value if a.dtype == np.float64 else np.rint(value).astype(a.dtype)
    extra = {name: column for name, column in low.columns.items() if name != _SIGNATURE}
    return low.replace(**columns, columns=extra)


def _has_pairs(low: Graph, high: Graph) -> bool:
    """Whether two dimensions of one tensor grow with the rows: operations then compare each row with each other row."""
    if not np.array_equal(low.shape_ptr, high.shape_ptr):
        return False
    grown = np.flatnonzero(low.shape_dim != high.shape_dim)
    return len(grown) > len(np.unique(np.searchsorted(low.shape_ptr, grown, side="right")))


class Model:
    """A training step that can be loaded for any number of rows, or for some.

    Args:
        name: the step in words.
        load: imports the step for batches of these numbers of rows.
        sizes: the only numbers of rows for which there is a step (those of a profile); None: all.
    """

    def __init__(
        self, name: str, load: Callable[[Sequence[int]], Sequence[Program]], sizes: tuple[int, ...] | None = None
    ) -> None:
        self.name, self.sizes, self._load = name, sizes, load
        first = sizes or TRACED
        self._programs = dict(zip(first, load(first), strict=True))

    def program(self, rows: int) -> Program:
        """The step for a batch of `rows`."""
        if rows not in self._programs:
            low, high = (self._programs[r].graph for r in TRACED)
            found = interpolated(low, high, TRACED, rows)
            self._programs[rows] = Program(found) if found is not None else self._load([rows])[0]
        return self._programs[rows]

    @property
    def compares_rows(self) -> bool:
        """Whether the step compares rows of the batch, as a contrastive loss does: a part of the batch has another loss."""
        return not self.sizes and _has_pairs(*(self._programs[rows].graph for rows in TRACED))

    def problem(self, rows: int, cluster: Cluster, parts: Parts | None = None) -> Problem:
        """The step for a batch of `rows` on a machine's GPUs, or all its devices; with measured costs, if there are any."""
        program = self.program(rows)
        gpus = any(cluster.kinds[kind].type == "gpu" for kind in cluster.device_kind)
        graph = program.graph.replace(allowed=Labels.of(["gpu"] * program.graph.n)) if gpus else program.graph
        if parts is None:
            return Problem.of(graph, cluster, costs=program.costs)
        return Problem.of(graph.replace(module=parts.module), cluster, parts.grouping, program.costs)


@dataclass(frozen=True, eq=False)
class Parts:
    """The b parts of a step, in the order in which they run; stages consist of consecutive parts.

    Attributes:
        grouping: the operations of each part, with their gradients and updates.
        begins: [b] the module whose first call begins each part; empty for the first one.
        layer: [b] whether the part is one of the network's repeated layers.
        module: [n] the graph's column `module`, empty for operations that run apart from the others of their module.
    """

    grouping: Grouping
    begins: tuple[str, ...]
    layer: NDArray[np.bool_]
    module: Labels

    def __len__(self) -> int:
        return len(self.begins)

    @classmethod
    def of(cls, problem: Problem) -> Parts:
        """The parts of a problem: its blocks (`placekit_layers`), joined where no call of a module marks the cut.

        torch cuts a step where the calls are. A block may have operations that run between later ones, such as a mask that
        the network makes anew for each layer: they count as operations without a module, which are in the part before.
        """
        graph, module, apart = problem.graph, problem.graph.module, np.zeros(problem.graph.n, np.bool_)
        while True:
            module = Labels.of(np.where(apart, "", module.tolist()).tolist())
            blocks = sequence(replace(problem, graph=graph.replace(module=module)))
            begins, starts = _begins(graph, blocks.of_op, len(blocks))
            first = np.asarray([i == 0 or bool(m) for i, m in enumerate(begins)], np.bool_)
            part = np.cumsum(first) - 1
            runs_in = np.searchsorted(np.sort(starts), position(graph), side="right")
            apart = (runs_in != part[blocks.of_op]) & ~blocks.layer[blocks.of_op] & _runs(graph) & ~module.is_value("")
            if not apart.any():
                break
        grouping = Grouping(part[blocks.of_op].astype(np.int32), tuple(np.asarray(blocks.names)[first].tolist()))
        layer = np.bincount(part, blocks.layer) > 0
        return cls(grouping, tuple(m for m, f in zip(begins, first.tolist(), strict=True) if f), layer, module)


def _runs(graph: Graph) -> NDArray[np.bool_]:
    """[n] operations of the module's forward pass."""
    named = np.asarray([p.split(".")[0] != _LOSS for p in graph.module.vocabulary], np.bool_)
    return np.asarray(named[graph.module.codes] & (graph.phase == 0) & graph.kernel)


def _begins(graph: Graph, block: NDArray[np.int64], count: int) -> tuple[list[str], list[int]]:
    """For each block, the outermost module that is called once, when the block begins; empty if there is no such module.

    Also the positions of the first operations of these modules.
    """
    order = graph.topological_order
    order = order[(graph.phase[order] == 0) & graph.kernel[order]]
    paths, code, call = graph.module.vocabulary, graph.module.codes[order], graph.call[order]
    named = np.asarray([bool(p) and p.split(".")[0] != _LOSS for p in paths], np.bool_)
    earliest: dict[str, int] = {}
    calls: dict[str, set[int]] = {}
    for path, own, number in {(paths[c], int(b), int(k)) for c, b, k in zip(code, block[order], call, strict=True)}:
        names = path.split(".")
        for depth in range(1, len(names) + 1):
            module = ".".join(names[:depth])
            earliest[module] = min(earliest.get(module, count), own)
        calls.setdefault(path, set()).add(number)
    found, starts, place = [""] * count, list[int](), position(graph)
    for b in range(1, count):
        inside = np.flatnonzero((block[order] == b) & named[code])
        if len(inside):
            names = paths[code[inside[0]]].split(".")
            outer = (".".join(names[:depth]) for depth in range(1, len(names) + 1))
            found[b] = next((m for m in outer if earliest[m] == b and len(calls.get(m, ())) == 1), "")
            starts += [int(place[order[inside[0]]])] if found[b] else []
    return found, starts
