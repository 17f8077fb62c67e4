"""Importer `einsum`: the papers' tensor programs by name, and tensor programs written in Python."""

from __future__ import annotations

from typing import Any

from placekit_core import Importer, ImporterError, Program
from placekit_einsum.decompose import ITEM_BYTES
from placekit_einsum.execute import import_decomposed
from placekit_einsum.options import Dtype, EinsumOptions
from placekit_einsum.program import TensorProgram
from placekit_einsum.programs import build


class EinsumImporter(Importer):
    """Decomposes a tensor program."""

    name = "einsum"
    options_class = EinsumOptions

    @classmethod
    def convert(cls, source: Any, **about: Any) -> list[Program]:
        """The program of a `TensorProgram`, with `dtype` and `seed` as in `import_program`. Raises ImporterError."""
        dtype, seed = about.pop("dtype", "float32"), about.pop("seed", 0)
        if about:
            raise ImporterError(f"importing a TensorProgram takes no {next(iter(about))!r}", "it takes dtype, seed")
        if not isinstance(source, TensorProgram):
            raise ImporterError(f"{source!r} is not a TensorProgram")
        if dtype not in ITEM_BYTES:
            raise ImporterError(f"a TensorProgram of {dtype!r} cannot be imported", f"known: {', '.join(ITEM_BYTES)}")
        return [import_decomposed(source, dtype, seed)]

    def load(self) -> list[Program]:
        """One program."""
        o: EinsumOptions = self.options
        recipe = {"importer": self.name, "options": o.model_dump(mode="json")}
        return [import_decomposed(build(o), o.dtype, o.seed, recipe)]


def import_program(program: TensorProgram, *, dtype: Dtype = "float32", seed: int = 0) -> Program:
    """The placekit program of a tensor program, with its graph and its executable.

    `seed` is the seed of the inputs when the program is executed. The program has no recipe: another process cannot rebuild it.
    Raises ImporterError that names the tensor if the program is not complete.
    """
    return EinsumImporter.convert(program, dtype=dtype, seed=seed)[0]
