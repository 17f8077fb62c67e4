"""A program as an importer returns it: a graph and, if the source has them, costs, a machine, and a way to execute it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

from placekit_core.contracts.cluster import Cluster
from placekit_core.contracts.costs import CostTable
from placekit_core.contracts.errors import ImporterError
from placekit_core.contracts.graph import Graph


class Executable(Protocol):
    """How to run a program for real; the core imports no library for it.

    Values are tensors of the library that the importer uses, addressed by the tensor numbers of the graph. Only the
    values of base tensors need to be kept: a tensor in `views` is made again from its base on any device that has the
    base. A device without the base receives just the view. Copies between devices must keep strides, or the last bits of
    results may change.
    """

    @property
    def recipe(self) -> Mapping[str, Any]:
        """`{"importer": name, "options": {...}}` for another process to rebuild it from; empty if that is impossible."""
        ...

    def initial(self, seed: int | None = None) -> dict[int, Any]:
        """Values of all sources (parameters, buffers, optimizer state, example inputs), without views, as fresh copies.

        With `seed` None, the seed of the importer's options.
        """
        ...

    def compile(
        self, ops: Sequence[int], device: Any = None, keep: Collection[int] | None = None
    ) -> Callable[..., dict[int, Any]]:
        """Return `run(values, step=0)`, which runs the kernels `ops`, in this order, on `device` (of the library; None: the CPU).

        `values` holds the tensors that the operations read but do not produce; for a tensor in `views`, the tensor or its
        base. `run` returns the tensors that the operations produce, without views. With `keep`, it returns only those in
        `keep` and drops the others after their last use. Random operations are seeded by (`step`, operation). Do not call
        one function from two threads at once.
        """
        ...

    @property
    def views(self) -> Mapping[int, int]:
        """Each view, by its tensor, with the tensor of its base (never a view itself)."""
        ...

    def view(self, tensor: int) -> Callable[[Any], Any]:
        """The function from the value of `views[tensor]` to that of `tensor`, which shares its memory."""
        ...

    @property
    def updates(self) -> Mapping[int, int]:
        """Updates at the end of a step: for the tensor of each updated source, the tensor that replaces it."""
        ...

    @property
    def results(self) -> Mapping[str, int]:
        """Results of the step by name (`loss`, `output.0`, ...): for each, the tensor to keep for `result`."""
        ...

    def result(self, name: str, values: Mapping[int, Any]) -> Any:
        """The result `name`, from values that hold tensor `results[name]` or its base."""
        ...

    @property
    def random_ops(self) -> frozenset[int]:
        """Operations that draw random numbers; they are seeded by (step, operation), independent of the placement."""
        ...


class Deferred:
    """An `Executable` that imports its program at first use, for a graph that was made without it.

    Using it raises ImporterError if `load` returns another graph.
    """

    def __init__(self, load: Callable[[], Program], graph: Graph, recipe: Mapping[str, Any]) -> None:
        self._load, self._graph, self.recipe = load, graph, recipe

    @cached_property
    def _made(self) -> Executable:
        program = self._load()
        if program.graph.fingerprint != self._graph.fingerprint or program.executable is None:
            raise ImporterError(f"importing {self._graph.name!r} again gave another graph", "start again")
        return program.executable

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._made, name)


@dataclass(frozen=True, eq=False)
class Program:
    """A program as an importer returns it: a graph and, if the source has them, costs, a machine, and a way to execute it."""

    graph: Graph
    costs: CostTable | None = None
    cluster: Cluster | None = None
    executable: Executable | None = None
    split: Literal["train", "test"] | None = None
