"""Shared by the core's tests: small problems."""

from __future__ import annotations

import pytest
from placekit_testing import fakes
from placekit_testing.fakes import gpus

from placekit_core import Graph, Problem


@pytest.fixture
def diamond() -> Graph:
    r"""A weight and an input, then  a -> (b, c) -> d; b and c can run side by side."""
    return fakes.diamond_graph()


@pytest.fixture
def problem(diamond: Graph) -> Problem:
    """The diamond on two devices: 20 ms on one of them, critical path 12 ms."""
    return Problem.of(diamond, gpus())
