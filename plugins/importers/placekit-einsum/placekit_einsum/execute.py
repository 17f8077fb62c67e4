"""Runs decomposed tensor programs. A simulation never imports torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from placekit_core import ImporterError, Program
from placekit_einsum.decompose import Decomposed, decompose, part
from placekit_einsum.program import TensorProgram

if TYPE_CHECKING:
    import torch


def import_decomposed(
    program: TensorProgram, dtype: str, seed: int, recipe: Mapping[str, Any] | None = None
) -> Program:
    """Decompose a tensor program; returns its graph and executable."""
    parts = decompose(program, dtype)
    return Program(parts.graph, executable=EinsumExecutable(parts, dtype, seed, recipe or {}))


class EinsumExecutable:
    """`placekit_core.Executable` of a tensor program. Values are torch tensors.

    The results are blocks, by the name of the operation that writes each; `gather` puts them together.
    """

    def __init__(self, decomposed: Decomposed, dtype: str, seed: int, recipe: Mapping[str, Any]) -> None:
        self._decomposed, self._seed, self._recipe = decomposed, seed, dict(recipe)
        self._dtype = dtype
        graph = decomposed.graph
        self._views = {part: base for part, (base, _) in decomposed.views.items()}
        self._results = {
            graph.op_name[graph.tensor_producer[t]]: t for _, blocks in decomposed.results for t in blocks.values()
        }

    @property
    def recipe(self) -> Mapping[str, Any]:
        """Importer and options; empty for a program written in Python, which no other process can rebuild."""
        return self._recipe

    @property
    def views(self) -> Mapping[int, int]:
        """For each part of a block that other operations read, its block."""
        return self._views

    @property
    def updates(self) -> Mapping[int, int]:
        """Nothing: a tensor program has no state."""
        return {}

    @property
    def random_ops(self) -> frozenset[int]:
        """None."""
        return frozenset()

    @property
    def results(self) -> Mapping[str, int]:
        """Tensor of each block of the results, by the name of its operation."""
        return self._results

    def initial(self, seed: int | None = None) -> dict[int, torch.Tensor]:
        """Values of the blocks of all inputs, on the CPU; the same numbers for every decomposition."""
        import torch

        from placekit_einsum.kernels import initial_value

        values, dtype = {}, getattr(torch, self._dtype)
        generator = torch.Generator().manual_seed(self._seed if seed is None else seed)
        for tensor, blocks in self._decomposed.inputs:
            whole = initial_value(tensor, dtype, generator)
            values.update({t: part(whole, region).clone() for region, t in blocks.items()})
        return values

    def compile(
        self, ops: Sequence[int], device: Any = None, keep: Collection[int] | None = None
    ) -> Callable[..., dict[int, torch.Tensor]]:
        """`run(values, step=0)`: see `placekit_core.Executable`. Raises ImporterError for an input."""
        from placekit_einsum.kernels import compiled

        kernels, graph = self._decomposed.kernels, self._decomposed.graph
        source = next((op for op in ops if op not in kernels), None)
        if source is not None:
            raise ImporterError(f"operation {graph.op_name[source]!r} is an input: there is nothing to run")
        views = self._decomposed.views
        steps = [(kernels[op], compiled(kernels[op], self._dtype, device)) for op in ops]
        last: dict[int, int] = {}
        for i, (kernel, _) in enumerate(steps):
            last.update({t: i for read in kernel.reads for t in (read, views[read][0] if read in views else read)})
            last.setdefault(kernel.writes, i)
        kept = {kernel.writes for kernel, _ in steps if keep is None or kernel.writes in keep}
        dropped: list[list[int]] = [[] for _ in steps]
        for kernel, _ in steps:
            if kernel.writes not in kept:
                dropped[last[kernel.writes]].append(kernel.writes)

        def run(values: Mapping[int, torch.Tensor], step: int = 0) -> dict[int, torch.Tensor]:
            made: dict[int, torch.Tensor] = {}

            def value(t: int) -> torch.Tensor:
                if t in made:
                    return made[t]
                if t in values:
                    return values[t]
                return self.view(t)(value(views[t][0]))

            for (kernel, compute), old in zip(steps, dropped, strict=True):
                made[kernel.writes] = compute(*map(value, kernel.reads))
                for t in old:
                    del made[t]
            return made

        return run

    def view(self, tensor: int) -> Callable[[torch.Tensor], torch.Tensor]:
        """A function that takes a block, and returns its part `tensor` as a view."""
        _, region = self._decomposed.views[tensor]
        return lambda block: part(block, region)

    def result(self, name: str, values: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """One block of a result."""
        return values[self._results[name]]

    def gather(self, values: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Assemble the results from the values of their blocks; by name."""
        from placekit_einsum.kernels import put_together

        return {
            tensor.name: put_together(tensor.shape, [(r, values[t]) for r, t in blocks.items()])
            for tensor, blocks in self._decomposed.results
        }
