"""What a member of Placeto's families is made of: nodes and cells of ENAS (Pham et al. 2018)."""

from __future__ import annotations

from typing import TypedDict

CellNode = tuple[str, int, str, int]
"""Operation and state that it reads, twice: a node adds both results."""
RecurrentNode = tuple[int, str]
"""Node that it reads (-1: the cell's inputs), activation."""


class SampledCnn(TypedDict):
    """A member of `placeto_cifar10`: N cells between reductions, channels, nodes of both kinds of cells."""

    cells: int
    width: int
    convolution: list[CellNode]
    reduction: list[CellNode]


class SampledRnn(TypedDict):
    """A member of `placeto_ptb`: steps that the cell is unrolled for, and its nodes."""

    steps: int
    cell: list[RecurrentNode]
