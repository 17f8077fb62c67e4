"""Policy `chain`: the best contiguous split of a network's blocks over devices in any order."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_layers import Blocks, or_single_device, sequence
from placekit_layers.splits import as_path, one_block_moved, shortened
from placekit_scheduling import Kernel

from placekit_core import NotApplicable, Placement, Placements, Policy, Task
from placekit_pipeline import ChainOptions
from placekit_pipeline.chain_arrays import BUSIEST, CLOSE, FLOW, MAX, SUM, TOKEN, TRAIN, Found, Table
from placekit_pipeline.max_load import MaxLoadSession
from placekit_pipeline.node_splits import split_nodes
from placekit_pipeline.segments import Segments, segments_of, values_add_up

START = 0.1  # share of the budget for the tables' own splits
SHORT = 200  # evaluations of the first search, which solves most problems
MAX_BLOCKS = 160  # longer sequences are shortened to this by joining neighbours with little work
FINER = 30  # times as many prefixes of single nodes as of blocks: loops over them need no table of segments
EFFORT = 2_000_000  # partial splits after which the search ends without a proof


class ChainPolicy(Policy):
    """Finds the best split of the blocks (`placekit_layers`) into contiguous stages, each on another device, in any order.

    Stages are cut between prefixes: sets of blocks that contain all blocks that they read from. A chain of b blocks has b + 1
    prefixes. A graph with branches has more; above `max_ideals`, only prefixes along one order of its blocks are used. Unless
    the value is that of the busiest device, branches are joined until the blocks are a chain (`as_path`), because stages of
    different branches would work at the same time.

    Tables, filled by dynamic programming over prefixes and sets of devices, bound from below all ways to finish a split,
    memory included. A depth-first search follows them and evaluates splits that may be better than the best so far. It ends
    with a proof when no such split is left, or without one after `EFFORT` partial splits.

    With s segments between prefixes and n_k devices of class k, filling the tables takes O(s K A prod_k (n_k + 1)) time,
    A = 1 if all routes are equal, else K. Under `max_load`, `split_nodes` first splits between single nodes, and the search
    starts from its split.
    """

    name = "chain"
    options_class = ChainOptions

    def place(self, task: Task, rng: Generator) -> Placement:
        """Place by the best split found, and note whether it is proven to be the best.

        Raises NotApplicable if no split is allowed or fits, unless `otherwise` is `single_device`.
        """
        return or_single_device(task, self.options.otherwise, lambda: self._split(task))

    def _split(self, task: Task) -> Placement:
        if not isinstance(task.evaluate.session, MaxLoadSession):
            return self._split_blocks(task, None)
        start, proven = split_nodes(task, FINER * self.options.max_ideals)
        if start is not None and proven:
            return start
        try:
            return self._split_blocks(task, start)
        except NotApplicable:
            if start is None:
                raise
            return start

    def _split_blocks(self, task: Task, start: Placement | None) -> Placement:
        """The best split between blocks, or `start` if that is better."""
        evaluate = task.evaluate
        blocks = sequence(task.problem)
        if values_add_up(evaluate.session, evaluate.objective):
            blocks = as_path(blocks)
        longer, blocks = len(blocks), shortened(blocks, MAX_BLOCKS)
        nowhere = np.flatnonzero(np.logical_not(blocks.allowed.any(axis=1)))
        if len(nowhere):
            raise NotApplicable(
                f"no device may run all of block {blocks.names[nowhere[0]]!r}, and policy 'chain' does not divide blocks",
                "choose a policy that places groups one by one, such as portfolio",
            )
        segments = segments_of(blocks, evaluate.session, evaluate.objective, self.options.max_ideals)
        table = segments.table
        kernel = evaluate.kernel()
        with evaluate.ledger.paused():  # compiling is not searching
            from placekit_pipeline.chain_tables import loops

            completions, with_spare, explore = loops(table)
        best = completions(table)
        size = int(table.size[-1])
        ways: list[tuple[float, int, NDArray[np.float64]]] = []
        for stages in range(size, 0, -1):
            if stages < size:
                best = with_spare(table, best)
            ways.append((_least(table, best), stages, best))
        # bounds are sums in different orders: equal ones differ by rounding, and fewer stages go first
        ways = sorted((way for way in ways if way[0] < math.inf), key=lambda w: (float(f"{w[0]:.9e}"), w[1]))
        if not ways:
            raise NotApplicable(*_nothing_fits(blocks, table))
        if kernel is None:
            return self._candidates(task, blocks, table, ways)
        return _Search(task, kernel, self.options.share, blocks, longer, segments, ways, explore).run(start)

    def _candidates(
        self, task: Task, blocks: Blocks, table: Table, ways: list[tuple[float, int, NDArray[np.float64]]]
    ) -> Placement:
        """For backends without a compiled evaluation: try the split of least bound for each number of stages."""
        count = int(max(1, min(len(ways), task.evaluate.remaining)))
        kind = MAX if table.numbers[0] == BUSIEST else SUM
        rows = [split(blocks, table, best, stages, kind).device for _, stages, best in ways[:count]]
        measured = task.evaluate(Placements.of(np.stack(rows)))
        return task.problem.placement(rows[int(np.argmin(task.evaluate.scores(measured)))])


class _Search:
    """The search of one problem.

    Attributes:
        ways: bound in seconds, number of stages, and tables, for each number of stages; the lowest bound first.
        found: the best split so far.
        left: evaluations that the search may still make.
        name: the blocks, in notes.
    """

    def __init__(
        self, task: Task, kernel: Kernel, share: float, blocks: Blocks, longer: int, segments: Segments,
        ways: list[tuple[float, int, NDArray[np.float64]]], explore: Callable[..., None],
    ) -> None:  # fmt: skip
        self.task, self.kernel, self.blocks, self.explore = task, kernel, blocks, explore
        self.name = f"{len(blocks)} blocks" + (f", joined from {longer}," if longer > len(blocks) else "")
        self.segments, self.table, self.ways = segments, segments.table, ways
        left = task.evaluate.remaining * share
        self.left = int(max(1, left)) if math.isfinite(left) else 2**62
        self.found = Found(
            np.asarray([np.inf]), np.zeros(task.problem.g, np.int16), np.zeros(3, np.int64), np.zeros(1),
            np.asarray([task.evaluate.failing_signal_s]),
        )  # fmt: skip

    def run(self, start: Placement | None) -> Placement:
        """Try the tables' own splits, then search shortly; without a proof, improve the best split, then search long."""
        rows = [] if start is None else [start.device]
        rows += [
            split(self.blocks, self.table, best, stages, kind).device
            for _, stages, best in self.ways
            for kind in (SUM, MAX)
        ]
        self._try(rows[: max(1, int(START * self.left))])
        proven = self._explore(min(self.left, SHORT))
        if not proven:
            while self._try(self._neighbours()):
                pass
            proven = self._explore(self.left)
        self._note(proven)
        return self.task.problem.placement(self.found.device)

    def _explore(self, evaluations: int) -> bool:
        """Search the splits into each number of stages. Returns whether the best split is proven."""
        evaluate, found, kernel = self.task.evaluate, self.found, self.kernel
        found.counts[:], found.total[0] = 0, 0.0
        if evaluations < 1:
            return False
        ended = False
        for low, stages, best in self.ways:
            if low >= found.value[0]:
                continue
            if evaluate.progress >= 1 and evaluate.evaluations:
                ended = True
                break
            numbers = self.table.numbers.copy()
            numbers[2] = stages
            found.counts[1:] = 0
            self.explore(
                kernel.function, kernel.ints, kernel.floats, kernel.scratch_ints, kernel.scratch_floats,
                self.task.problem.cluster.memory_bytes.astype(np.float64), self.table._replace(numbers=numbers), best, found,
                evaluations, EFFORT,
            )  # fmt: skip
            ended |= bool(found.counts[2])
        count = int(found.counts[0])
        if count:
            evaluate.charge(count, Placements.of(found.device), float(found.total[0]) / count)
        self.left -= count
        return not ended

    def _try(self, rows: list[NDArray[np.int16]]) -> bool:
        """Evaluate splits. Returns whether one is better than the best so far."""
        if not rows or self.left < 1:
            return False
        distinct = np.unique(np.stack(rows), axis=0)[: self.left]
        measured = self.task.evaluate(Placements.of(distinct))
        self.left -= len(distinct)
        value = np.where(measured.fits, measured.value_s, np.inf)
        first = math.isinf(self.found.value[0])
        better = float(value.min()) < float(self.found.value[0]) * (1 - CLOSE)
        if better or first:
            self.found.value[0], self.found.device[:] = value.min(), distinct[int(value.argmin())]
        return better

    def _neighbours(self) -> list[NDArray[np.int16]]:
        """The best split with one block moved to a neighbouring stage, or with two devices exchanged."""
        first = np.unique(self.blocks.of_group, return_index=True)[1]
        rows = list(one_block_moved(self.found.device[first]))
        allowed = [row for row in rows if self.blocks.allowed[np.arange(len(row)), row].all()]
        return [row.astype(np.int16)[self.blocks.of_group] for row in allowed]

    def _note(self, proven: bool) -> None:
        """Note whether the best split is proven."""
        evaluate = self.task.evaluate
        if math.isinf(self.found.value[0]):
            evaluate.note(f"no split that was evaluated fits the memory; {_memory(self.table)}")
        elif not proven:
            evaluate.note(
                f"the search of splits of {self.name} ended before its proof; a larger budget may find a better split"
            )
        elif self.segments.proves and self.segments.exact:
            alike = ", apart from exchanging equal devices," if self.segments.exchanges else ""
            evaluate.note(
                f"no contiguous split of the {self.name}{alike} is better: all others are searched or bounded"
            )
        elif self.segments.proves:
            evaluate.note(f"no split of the {self.name} along their order is better; the graph has other orders")


def split(blocks: Blocks, table: Table, best: NDArray[np.float64], stages: int, kind: int) -> Placement:
    """The split into `stages` stages with the least sum (`kind` SUM) or the least largest stage (MAX) in the tables."""
    end, ways = len(table.ptr) - 2, table.hop_s.shape[1]
    left, place, way = len(table.size) - 1, 0, 0
    many = table.many.copy()
    device = np.zeros(len(blocks), np.int16)
    for q in range(stages, 0, -1):
        choice: tuple[float, int, int] = (math.inf, -1, -1)
        for s, k in product(range(table.ptr[place], table.ptr[place + 1]), range(len(table.radix))):
            j = int(table.after[s])
            fits = table.fixed_bytes[s] + table.flight[q] * table.saved_bytes[s] <= table.room[k]
            barred = table.of_set[left, k] == 0 or np.isinf(table.seconds[s, k])
            if barred or (j == end) != (q == 1) or not fits:
                continue
            a = k if ways > 1 else 0
            rest = best[kind, left - table.radix[k], j, a]
            seconds = table.seconds[s, k]
            value = max(seconds, rest) if kind == MAX else table.passing[s, k] + table.hop_s[place, way, a] + rest
            choice = min(choice, (float(value), s, k))
        _, s, k = choice
        device[table.mask[table.after[s]] & ~table.mask[place]] = table.device[table.class_ptr[k + 1] - many[k]]
        many[k] -= 1
        place, left, way = int(table.after[s]), left - int(table.radix[k]), k if ways > 1 else 0
    return blocks.placement(device)


def _least(table: Table, best: NDArray[np.float64]) -> float:
    """The lower bound of all splits with these tables."""
    kind, microbatches = int(table.numbers[0]), int(table.numbers[1])
    total, largest, back, wait = (float(x) for x in best[:, -1, 0, 0])
    if kind == FLOW and math.isfinite(total):
        return total + (microbatches - 1) * largest
    return {TOKEN: total, BUSIEST: largest, TRAIN: max(back, total + wait)}.get(kind, math.inf)


def _nothing_fits(blocks: Blocks, table: Table) -> tuple[str, str]:
    """Message and hint if no contiguous split is allowed, or none fits."""
    barred = np.isinf(table.seconds)
    if barred.any():
        alone = np.flatnonzero(~blocks.allowed.any(axis=1))
        why = (
            f"no device may run all of block {blocks.names[int(alone[0])]!r}"
            if len(alone)
            else ("along the network, blocks change back and forth between the device types that they may run on")
        )
        return f"no contiguous split is allowed: {why}", "use a search, such as policy=portfolio"
    return (
        f"no contiguous split fits the memory; {_memory(table)}",
        "use smaller micro-batches, backend.checkpointing=block, backend.schedule=1f1b, or more memory",
    )


def _memory(table: Table) -> str:
    """The bytes that the program keeps, and the memory of the devices, in words."""
    whole = int(table.ptr[1]) - 1  # the segment from the first prefix to the last
    rooms = float(sum(float(r) * int(n) for r, n in zip(table.room, table.many, strict=True)))
    saved = float(table.saved_bytes[whole])
    most = int(table.flight.max())
    flight = f", and {_gibibytes(saved)} for each of up to {most} micro-batches in flight" if saved and most else ""
    kept = _gibibytes(float(table.fixed_bytes[whole]))
    return f"the program keeps {kept}{flight}, and the devices have {_gibibytes(rooms)} together"


def _gibibytes(bytes_: float) -> str:
    if bytes_ < 2**20:
        return f"{bytes_:.0f} B"
    return f"{bytes_ / 2**30:.2f} GiB"
