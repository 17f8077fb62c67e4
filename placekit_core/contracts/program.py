"""What an importer gives: a graph, and where the source has them its costs, its machine, and how to execute it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from placekit_core.contracts.cluster import Cluster
from placekit_core.contracts.costs import CostTable
from placekit_core.contracts.graph import Graph


class Executable(Protocol):
    """How to run a program for real; the core never imports torch for it.

    Values are tensors of whatever library the importer uses, addressed by the tensor numbers of the graph. What must be
    kept are the values of base tensors: one in `views` is redone from its base wherever the base is. A device without the
    base receives just the view; copies between devices keep strides, or the last bits of results may change.
    """

    @property
    def recipe(self) -> Mapping[str, Any]:
        """`{"importer": name, "options": {...}}`, from which another process rebuilds it; empty if none can."""
        ...

    def initial(self, seed: int | None = None) -> dict[int, Any]:
        """Values of all sources (parameters, buffers, optimiser state, example inputs), without views; own copies.

        None: the seed of the importer's options.
        """
        ...

    def compile(
        self, ops: Sequence[int], device: Any = None, keep: Collection[int] | None = None
    ) -> Callable[..., dict[int, Any]]:
        """`run(values, step=0)`, which runs kernels `ops`, in this order, on `device` (of the library; None: the CPU).

        `values` has the tensors that the operations read and do not produce; of a tensor in `views`, itself or its base.
        It returns the tensors that they produce, without views; with `keep`, only those of them, and others are dropped
        after their last use. Random operations are seeded by (`step`, operation). One function is not for two threads.
        """
        ...

    @property
    def views(self) -> Mapping[int, int]:
        """Tensors that are views, with the tensor of which each is one (itself no view)."""
        ...

    def view(self, tensor: int) -> Callable[[Any], Any]:
        """The function from the value of `views[tensor]` to that of `tensor`, which shares its memory."""
        ...

    @property
    def updates(self) -> Mapping[int, int]:
        """New value for old: tensor that replaces a source's tensor at the end of the step, by the source's tensor."""
        ...

    @property
    def results(self) -> Mapping[str, int]:
        """What the step computes (`loss`, `output.0`, ...): the tensor that each is made of, to be kept for `result`."""
        ...

    def result(self, name: str, values: Mapping[int, Any]) -> Any:
        """The result `name`, from values that hold tensor `results[name]` or its base."""
        ...

    @property
    def random_ops(self) -> frozenset[int]:
        """Operations that draw random numbers: seeded by (step, operation), whatever the placement."""
        ...


@dataclass(frozen=True, eq=False)
class Program:
    """What an importer gives: a graph, and where the source has them its costs, its machine, and how to execute it."""

    graph: Graph
    costs: CostTable | None = None
    cluster: Cluster | None = None
    executable: Executable | None = None
    split: Literal["train", "test"] | None = None
