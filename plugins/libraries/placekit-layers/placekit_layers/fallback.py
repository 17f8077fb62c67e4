"""Everything on one device: for policies that do not apply to every problem."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from placekit_core import NotApplicable, Placement, Problem, Task


def or_single_device(task: Task, otherwise: str, place: Callable[[], Placement]) -> Placement:
    """The result of `place()`. If it is not applicable and `otherwise` is `single_device`: everything on one device, with a note.

    Raises NotApplicable.
    """
    try:
        return place()
    except NotApplicable as e:
        if otherwise == "error":
            raise
        task.evaluate.note(f"{e.message}: everything was placed on one device")
        return on_one_device(task.problem)


def on_one_device(problem: Problem) -> Placement:
    """Everything on the device with the least total time; a group that may not run there goes to its fastest device."""
    device = int(np.where(problem.allowed, problem.group_s, 0.0).sum(axis=0).argmin())
    fastest = np.where(problem.allowed, problem.group_s, np.inf).argmin(axis=1)
    return problem.placement(np.where(problem.allowed[:, device], device, fastest))
