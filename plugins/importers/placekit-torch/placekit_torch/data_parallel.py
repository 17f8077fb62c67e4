"""Data parallelism: replicas (towers) of a step, each with a part of the batch, with averaged gradients.

Every tower has its own copy of the parameters, of the optimiser's state, and its own update, as in PyTorch's
DistributedDataParallel (Li et al. 2020). As there, gradients are averaged in buckets of 25 MB, in the order in which the
backward pass computes them. An all-reduce averages a bucket in two halves: tower i receives piece i of the bucket from every
other tower and averages it, then sends the average to all others. Each tower sends and receives 2 (N - 1) / N times the bytes
of the gradients, as in a ring all-reduce; but the transfers of a half may overlap, and those of a ring follow each other.

The step is traced once for each size of a tower's batch. Averages are weighted by these sizes, so that unequal towers give
the gradient of the mean over the whole batch. Each tower has its own statistics of batch normalisation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from placekit_core import ImporterError, Program
from placekit_torch.capture import Captured, Mode, Source
from placekit_torch.executable import TorchExecutable
from placekit_torch.factory import Builder, Given
from placekit_torch.joint import ALIAS, NUMBERS, REGION, REPEATS, TAG, Tag, outside_calls, with_value
from placekit_torch.lowering import Lowered, lower
from placekit_torch.nested_tensors import flat_inputs, replaced
from placekit_torch.options import Kernels
from placekit_torch.step import Step

Node = torch.fx.Node
aten = torch.ops.aten
BUCKET_BYTES = 25 * 2**20
"""Bytes of gradients that are averaged together: `bucket_cap_mb` of DistributedDataParallel."""
_SEQ_NR_OFFSET = 2**32  # more than a trace has operations: offset between two towers' sequence numbers of autograd


@torch.library.custom_op("placekit::weighted_mean", mutates_args=(), tags=(torch.Tag.pointwise,))
def weighted_mean(values: list[Tensor], weights: list[float]) -> Tensor:
    """Sum of `weights[i] * values[i]`, computed in float32 where the values have fewer bits."""
    wide = torch.promote_types(values[0].dtype, torch.float32)
    total = values[0].to(wide) * weights[0]
    for value, weight in zip(values[1:], weights[1:], strict=True):
        total.add_(value.to(wide), alpha=weight)
    return total.to(values[0].dtype)


@weighted_mean.register_fake
def _(values: list[Tensor], weights: list[float]) -> Tensor:
    return torch.empty_like(values[0], memory_format=torch.contiguous_format)


class IndivisibleError(ImporterError):
    """An input or a batch that cannot be divided among towers."""


@dataclass(frozen=True)
class Part:
    """Builds the step of one tower: the whole step, with the tower's rows of each input and target.

    Attributes:
        builder: builds the step with the whole batch.
        shares: sizes of the towers' batches relative to each other, such as (3, 1).
        index: the tower.
        dims: by input name, the dimension to split (default 0), or None to give every tower the whole input.
    """

    builder: Builder
    mode: Mode
    shares: tuple[int, ...]
    index: int
    dims: Mapping[str, int | None]

    def build(self) -> Step:
        """The step with a part of the batch. Raises ImporterError for an input that cannot be split."""
        step = self.builder.build()
        pieces = {id(t): self._piece(name, t, dim) for name, t, dim in self._split(step)}
        inputs, targets = replaced((step.inputs, step.targets), lambda t: pieces.get(id(t), t))
        return Step(step.module, inputs, step.loss, targets, step.optimizer)

    def batch(self, step: Step) -> int:
        """Number of rows of the whole batch, from the first input that is split."""
        return next((t.shape[dim] for _, t, dim in self._split(step)), 0)

    def _split(self, step: Step) -> list[tuple[str, Tensor, int]]:
        """Name, tensor and dimension of each input that is split."""
        given = flat_inputs(step, self.mode)
        unknown = sorted(self.dims.keys() - set(given.names))
        if unknown:
            raise IndivisibleError(
                f"importer.batch_dims names {unknown[0]!r}, which is not an input", f"inputs: {', '.join(given.names)}"
            )
        dims = [(name, t, self.dims.get(name, 0)) for name, t in zip(given.names, given.tensors, strict=True)]
        split = [(name, t, dim) for name, t, dim in dims if dim is not None and t.dim()]
        wrong = [name for name, t, dim in split if not -t.dim() <= dim < t.dim()]
        if wrong:
            raise IndivisibleError(f"importer.batch_dims: {wrong[0]!r} has no dimension {self.dims[wrong[0]]}")
        if not split:
            raise IndivisibleError(
                "no input has a dimension that could be divided among towers", "use importer.towers=1"
            )
        rows = split[0][1].shape[split[0][2]]
        for name, t, dim in split[1:]:
            if t.shape[dim] != rows and name not in self.dims:
                raise IndivisibleError(
                    f"{name!r} cannot be divided among towers: its dimension 0 has {t.shape[dim]} rows, and that of"
                    f" {split[0][0]!r} has {rows}",
                    f"name the dimension to divide, importer.batch_dims={{{name}: D}}, or give the whole input to every tower,"
                    f" importer.batch_dims={{{name}: null}}",
                )
        return split

    def _piece(self, name: str, tensor: Tensor, dim: int) -> Tensor:
        rows, total = tensor.shape[dim], sum(self.shares)
        if rows % total:
            below = rows // total * total
            near = " or ".join(str(n) for n in (below, below + total) if n)
            raise IndivisibleError(
                f"{rows} row{'s' * (rows != 1)} of {name!r} cannot be divided {':'.join(map(str, self.shares))}",
                f"a batch of {near} can; for a model by name, give batch={near.partition(' ')[0]}",
            )
        unit = rows // total
        start = unit * sum(self.shares[: self.index])
        return tensor.detach().narrow(dim, start, unit * self.shares[self.index]).clone()


def shares_of(options: Kernels) -> tuple[int, ...]:
    """Sizes of the towers' batches relative to each other; (1,) for a step without towers."""
    towers = options.towers
    return (1,) * towers if isinstance(towers, int) else tuple(towers)


def import_towers(
    builder: Builder,
    name: str,
    mode: Mode,
    seed: int,
    recipe: Mapping[str, Any],
    options: Kernels,
    trace: Callable[[Builder], Captured],
) -> Program:
    """Import the towers of `options` as one program; `trace` captures the step of a builder. Raises ImporterError.

    The graph's column `tower` has the tower of each operation; `policy=data_parallel` places by it.
    """
    shares = shares_of(options)
    parts = [Part(builder, mode, shares, i, options.batch_dims) for i in range(len(shares))]
    given: list[Builder] = [Given(p.build()) if isinstance(builder, Given) else p for p in parts]
    traced: dict[int, Captured] = {}
    for share, part in zip(shares, given, strict=True):
        if share not in traced:
            traced[share] = _traced(trace, part, share)
    towers = _Towers([traced[s] for s in shares], [s / sum(shares) for s in shares])
    attributes = {"mode": mode, "torch": torch.__version__, "towers": len(shares), "shares": list(shares)}
    lowered = lower(towers.captured, name, attributes)
    nodes = list(towers.captured.graph.nodes)
    tower = [towers.tower[s.node] for s in towers.captured.sources]
    tower += [towers.tower[nodes[lowered.code.kernel[op]]] for op in range(len(tower), lowered.graph.n)]
    columns = {**lowered.graph.columns, "tower": np.asarray(tower, np.int16)}
    lowered = replace(lowered, graph=replace(lowered.graph, columns=columns))
    return Program(lowered.graph, executable=TowersExecutable(lowered, given, towers, mode, seed, recipe))


def _traced(trace: Callable[[Builder], Captured], part: Builder, share: int) -> Captured:
    """Trace the step of a tower; an error names the tower's share of the batch."""
    try:
        return trace(part)
    except IndivisibleError:
        raise
    except ImporterError as e:
        raise ImporterError(
            f"the step of a tower with {share} part{'s' * (share > 1)} of the batch: {e.message}",
            "if it can be traced without importer.towers, the module itself depends on the size of the whole batch: it has"
            " a cache in a buffer, for example, or the batch size as a number",
        ) from e


class _Towers:
    """Joins captured steps, one per tower, into one.

    Attributes:
        captured: the joined step; names of sources, modules and results begin with `tower0.`, `tower1.`, ...
        tower: the tower of each node.
        own: for each tower, its sources as its own step names them, each with its name in the joined step.
    """

    def __init__(self, steps: Sequence[Captured], weights: Sequence[float]) -> None:
        self.steps, self.weights = steps, list(weights)
        self.captured, self.tower = Captured(torch.fx.Graph()), dict[Node, int]()
        self.copies: list[dict[Node, Node]] = [{} for _ in steps]
        self.own: list[list[tuple[Source, str]]] = [[] for _ in steps]
        for sources in (True, False):
            for i, step in enumerate(steps):
                for node in step.graph.nodes:
                    if (node.op != "call_function") == sources and node.meta.get("phase") != "update":
                        self._copy(i, node)
        self._average()
        for i, step in enumerate(steps):
            for node in step.graph.nodes:
                if node.meta.get("phase") == "update" and node not in self.copies[i]:
                    self._copy(i, node)
            self._describe(i, step)
        if "loss" in steps[0].results:
            losses = [copies[step.results["loss"]] for copies, step in zip(self.copies, steps, strict=True)]
            self.captured.results = {"loss": self._mean(losses, 0), **self.captured.results}
            self.captured.operations += 1

    def _copy(self, i: int, node: Node) -> None:
        """Copy a node of tower i's step, with the tower in its names and numbers."""
        copy = self.captured.graph.node_copy(node, self.copies[i].__getitem__)
        copy.meta = dict(node.meta)
        tag = node.meta.get("custom", {}).get(TAG)
        if tag is not None:
            copy.meta["custom"] = {TAG: Tag(_of(i, tag.module), tag.call, f"0.{tag.call_path}".rstrip("."))}
        if "owner" in node.meta:
            copy.meta["owner"] = _of(i, node.meta["owner"])
        if node.meta.get("seq_nr", -1) >= 0:
            copy.meta["seq_nr"] = node.meta["seq_nr"] + i * _SEQ_NR_OFFSET
        if "seq_nrs" in node.meta:
            copy.meta["seq_nrs"] = [n + i * _SEQ_NR_OFFSET if n >= 0 else n for n in node.meta["seq_nrs"]]
        for key in (REGION, REPEATS):  # equal towers share a trace, but recompute each for itself
            if key in node.meta:
                copy.meta[key] = node.meta[key] * len(self.steps) + i
        if NUMBERS in node.meta:
            copy.meta[NUMBERS] = tuple(n * len(self.steps) + i for n in node.meta[NUMBERS])
        self.copies[i][node], self.tower[copy] = copy, i

    def _describe(self, i: int, step: Captured) -> None:
        """Add the sources, updates, co-located kernels and results of tower i."""
        copies, joined = self.copies[i], self.captured
        for s in step.sources:
            source = Source(_of(i, s.name), s.kind, copies[s.node], _of(i, s.owner), _of(i, s.module), s.initial)
            joined.sources.append(source)
            self.own[i].append((s, source.name))
        joined.updates |= {_of(i, name): copies[node] for name, node in step.updates.items()}
        joined.together |= {_of(i, name): copies[node] for name, node in step.together.items()}
        for name, node in step.results.items():
            if name != "loss":
                joined.results[_of(i, name)] = copies[node]
        joined.operations += step.operations

    def _gradients(self, step: Captured) -> list[Node]:
        """The gradients of a step, in the order of the trace: the updates read them, or they are results `gradient.*`."""
        read = {
            n for node in step.graph.nodes if node.meta.get("phase") == "update" and node.op == "call_function"
            for n in node.all_input_nodes if n.op == "call_function" and n.meta["phase"] == "backward"
        }  # fmt: skip
        read |= {node for name, node in step.results.items() if name.startswith("gradient.")}
        return [node for node in step.graph.nodes if node in read]

    def _average(self) -> None:
        """Average the gradients of all towers, bucket by bucket, and replace the copies of gradients by averages.

        All towers run the same operations, so their gradients come in the same order.
        """
        gradients = [self._gradients(step) for step in self.steps]
        shapes = [[(n.meta["val"].shape, n.meta["val"].dtype) for n in own] for own in gradients]
        if any(own != shapes[0] for own in shapes):
            raise ImporterError(
                "the towers' gradients do not correspond: the step runs other operations for other batch sizes",
                "give all towers equal parts: importer.towers=N",
            )
        for bucket in _buckets([n.meta["val"] for n in gradients[0]]):
            own = [[gradients[i][k] for k in bucket] for i in range(len(self.steps))]
            packed = [self._concatenate(i, [self.copies[i][n] for n in nodes]) for i, nodes in enumerate(own)]
            for i, (nodes, whole) in enumerate(zip(own, self._all_reduce(packed), strict=True)):
                start = 0
                for node in nodes:
                    value = node.meta["val"]
                    part = self._view(i, aten.slice.Tensor, whole, 0, start, start + value.numel())
                    self.copies[i][node] = self._view(i, aten.view.default, part, list(value.shape))
                    start += value.numel()

    def _concatenate(self, i: int, gradients: Sequence[Node]) -> Node:
        """Concatenate the gradients of a bucket into one vector."""
        rows = []
        for node in gradients:
            if not node.meta["val"].is_contiguous():
                node = self._kernel(i, aten.clone.default, node, memory_format=torch.contiguous_format)
            rows.append(self._view(i, aten.view.default, node, [-1]))
        return rows[0] if len(rows) == 1 else self._kernel(i, aten.cat.default, rows)

    def _all_reduce(self, packed: Sequence[Node]) -> list[Node]:
        """Average the towers' vectors: each tower averages one piece, then every tower joins all pieces."""
        length, towers = packed[0].meta["val"].numel(), len(packed)
        size = -(-length // towers)
        starts = range(0, length, size)
        means = []
        for i, start in enumerate(starts):
            end = min(start + size, length)
            same = len(starts) == 1
            parts = [
                row if same else self._view(k, aten.slice.Tensor, row, 0, start, end) for k, row in enumerate(packed)
            ]
            means.append(self._mean(parts, i))
        return [means[0] if len(means) == 1 else self._kernel(i, aten.cat.default, means) for i in range(towers)]

    def _mean(self, values: Sequence[Node], tower: int) -> Node:
        return self._kernel(tower, torch.ops.placekit.weighted_mean.default, list(values), self.weights)

    def _view(self, i: int, target: Any, *args: Any) -> Node:
        node = self._kernel(i, target, *args)
        node.meta[ALIAS] = 0
        return node

    def _kernel(self, i: int, target: Any, *args: Any, **kwargs: Any) -> Node:
        node = self.captured.graph.call_function(target, args, kwargs)
        node.meta.update(phase="backward", custom={TAG: outside_calls(_of(i, "all_reduce"))})
        self.tower[node] = i
        self.captured.operations += 1
        return with_value(node)


def _of(tower: int, name: str) -> str:
    return f"tower{tower}.{name}".rstrip(".")


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[int]]:
    """Positions of the gradients in each bucket, which has one dtype and, except the last, at least BUCKET_BYTES."""
    open_: dict[torch.dtype, tuple[list[int], int]] = {}
    for k, g in enumerate(gradients):
        members, size = open_.get(g.dtype, ([], 0))
        members, size = [*members, k], size + g.numel() * g.element_size()
        open_[g.dtype] = (members, size)
        if size >= BUCKET_BYTES:
            yield members
            del open_[g.dtype]
    yield from (members for members, _ in open_.values())


class TowersExecutable(TorchExecutable):
    """Runs towers; all start from the same parameters, each with its part of the inputs."""

    def __init__(
        self,
        lowered: Lowered,
        builders: Sequence[Builder],
        towers: _Towers,
        mode: Mode,
        seed: int,
        recipe: Mapping[str, Any],
    ) -> None:
        super().__init__(lowered, builders[0], {}, mode, seed, recipe)
        tensor = {source.name: t for source, t in lowered.sources}
        self._towers = []
        for builder, own, step in zip(builders, towers.own, towers.steps, strict=True):
            sources = tuple((source, tensor[name]) for source, name in own)
            self._towers.append(
                TorchExecutable(replace(lowered, sources=sources), builder, step.constants, mode, seed, recipe)
            )

    def initial(self, seed: int | None = None) -> dict[int, Tensor]:
        """Values of all sources; see `TorchExecutable.initial`. All towers have the same parameters."""
        return {t: value for tower in self._towers for t, value in tower.initial(seed).items()}
