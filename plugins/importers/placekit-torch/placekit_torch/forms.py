"""A form of a placement: the text that other code takes, and the placement that the text means."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placekit_core import Placement, PlacementError, Problem

Name = int | str
"""A device in a `device_map`: the number of a GPU, or `cpu`."""
_NO_WORK = 1e-15  # seconds that an operation without work counts, so that it decides where nothing else does


@dataclass(frozen=True)
class Conflict:
    """A module that a placement spreads over several devices.

    Attributes:
        module: its path.
        device: device that the whole module goes to.
        elsewhere: share, in (0, 1], of the seconds of its operations that the placement has on other devices.
    """

    module: str
    device: Name
    elsewhere: float


@dataclass(frozen=True, eq=False)
class Form:
    """A placement in the form that other code takes.

    Attributes:
        name: the format.
        text: what the other code takes, without a newline at the end.
        placement: the placement that the text means. Priorities are those of the original.
        conflicts: modules with operations that the form puts elsewhere than the original, the most seconds first.
        elsewhere: share of the seconds of all operations that the form puts elsewhere.
        notes: sentences about things that the text alone does not say.
    """

    name: str
    text: str
    placement: Placement
    conflicts: tuple[Conflict, ...] = ()
    elsewhere: float = 0.0
    notes: tuple[str, ...] = ()


def devices_of(problem: Problem, placement: Placement) -> NDArray[np.int16]:
    """[n] device of each operation. Raises PlacementError if the placement is for another graph or machine."""
    if placement.graph != problem.graph.fingerprint or placement.cluster != problem.cluster.fingerprint:
        raise PlacementError(f"the placement is not one of {problem.graph.name!r} on {problem.cluster.name!r}")
    return problem.expand(placement.device)


def seconds_by_device(problem: Problem, part: NDArray[np.integer], device: NDArray[np.integer]) -> NDArray[np.float64]:
    """[p, D] seconds that operations of each part (`part` [n]) take, each on its device (`device` [n])."""
    graph = problem.graph
    seconds = problem.op_s[np.arange(graph.n), device] * graph.kernel + _NO_WORK
    total = np.zeros((int(part.max(initial=-1)) + 1, problem.cluster.size))
    np.add.at(total, (part, device), seconds)
    return total


def nearest(problem: Problem, placement: Placement, device: ArrayLike) -> Placement:
    """The placement with each group on the allowed device that has most of its seconds by `device` [n].

    A group stays where `placement` has it if none of these devices may run it.
    """
    total = seconds_by_device(problem, problem.grouping.group_of, np.asarray(device))
    total[~problem.allowed] = 0.0
    chosen = np.where(total.max(axis=1) > 0, total.argmax(axis=1), placement.device)
    return problem.placement(chosen.astype(np.int16), placement.priority)
