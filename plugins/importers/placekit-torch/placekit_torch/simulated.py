"""What a form of a placement costs: its value and memory, simulated again, beside those of the placement."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placekit_core import Backend, Placement, PlacementError, Placements, Problem, units
from placekit_torch.forms import Form

_WORSE = 1e-3  # a form that is slower by a smaller share is as fast
_UNLIMITED_BYTES = 2**50  # a larger memory stands for one that is never full


@dataclass(frozen=True, eq=False)
class Cost:
    """A form and its placement, simulated.

    Attributes:
        objective: what the values are the seconds of.
        form_s, placed_s: values of the form and of the placement; `placed_s` is NaN if the placement has no value.
        bound_s: a proven lower bound on the objective; None if nothing is proven.
        peak_bytes: [D] highest memory in use on each device, of the form.
    """

    objective: str
    form_s: float
    placed_s: float
    bound_s: float | None
    peak_bytes: NDArray[np.float64]

    @property
    def worse(self) -> float | None:
        """By which share the form is slower than the placement; None if it is not."""
        share = self.form_s / self.placed_s - 1 if self.placed_s > 0 else math.nan
        return share if share > _WORSE else None


def cost(problem: Problem, backend: Backend, form: Form, placement: Placement, bound_s: float | None) -> Cost:
    """Evaluate a form and the placement that it was made from.

    Args:
        problem: what was placed.
        backend: a backend that simulates.
        form: the form.
        placement: the placement.
        bound_s: a bound on the backend's objective that is proven already; if None, the backend proves one, if it can.

    Raises PlacementError if the form has no value, and if it does not fit: with the bytes of each device that is full.
    """
    session = backend.open(problem)
    try:
        both = [form.placement, placement]
        priority = None if placement.priority is None else np.stack([placement.priority] * 2)
        measured = session.evaluate(Placements(np.stack([p.device for p in both]), priority))
        bound_s = session.lower_bound() if bound_s is None else bound_s
    finally:
        session.close()
    if measured.error[0] is not None:
        raise PlacementError(f"as {form.name} this placement does not run: {measured.error[0]}", _OTHER)
    _check_fits(problem, form.name, measured.peak_bytes[0])
    values = np.where([e is None for e in measured.error], measured.value_s, math.nan)
    return Cost(backend.objective, float(values[0]), float(values[1]), bound_s, measured.peak_bytes[0])


_OTHER = "place it for this form, e.g. policy=chain for stages; `--format json` prints the placement as it was found"


def _check_fits(problem: Problem, name: str, peak_bytes: NDArray[np.float64]) -> None:
    over = full(problem, peak_bytes)
    if over:
        raise PlacementError(f"as {name} this placement does not fit: {over}", _OTHER)


def full(problem: Problem, peak_bytes: NDArray[np.float64]) -> str:
    """The devices that have too little memory for their peaks, with the bytes; empty if there are none."""
    memory = problem.cluster.memory_bytes
    return "; ".join(
        f"{problem.cluster.device_names[d]} needs {peak_bytes[d]:,.0f} bytes and has {memory[d]:,.0f}"
        for d in np.flatnonzero(peak_bytes > memory).tolist()
    )


def lines(problem: Problem, name: str, found: Cost) -> list[str]:
    """A line with the values, and a line with the memory of the devices in use."""
    values = [f"{units.seconds(found.form_s)} as {name}", f"{units.seconds(found.placed_s)} as placed"]
    values += [] if found.bound_s is None else [f"proven bound {units.seconds(found.bound_s)}"]
    return [f"{found.objective}: {', '.join(values)}", f"peak memory: {memory_text(problem, found.peak_bytes)}"]


def memory_text(problem: Problem, peak_bytes: NDArray[np.float64]) -> str:
    """The peak memory of each device in use, and how much there is."""
    return ", ".join(
        f"{d} {units.mebibytes(used)}" + (f" of {units.mebibytes(room)}" if room < _UNLIMITED_BYTES else "")
        for d, used, room in zip(problem.cluster.device_names, peak_bytes, problem.cluster.memory_bytes, strict=True)
        if used > 0
    )
