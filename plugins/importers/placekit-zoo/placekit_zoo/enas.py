"""The parts of a member of Placeto's families: nodes and cells of ENAS (Pham et al. 2018)."""

from __future__ import annotations

from typing import TypedDict

CellNode = tuple[str, int, str, int]
"""Two pairs of an operation and the state that it reads; a node adds both results."""
RecurrentNode = tuple[int, str]
"""The node that it reads (-1: the cell's inputs), and its activation."""


class SampledCnn(TypedDict):
    """A member of `placeto_cifar10`: N cells between reductions, channels, and the nodes of both kinds of cells."""

    cells: int
    width: int
    convolution: list[CellNode]
    reduction: list[CellNode]


class SampledRnn(TypedDict):
    """A member of `placeto_ptb`: number of steps that the cell is unrolled for, and its nodes."""

    steps: int
    cell: list[RecurrentNode]
