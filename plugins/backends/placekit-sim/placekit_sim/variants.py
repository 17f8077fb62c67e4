"""The variants in which the kernel is compiled; importing it imports numba."""

from __future__ import annotations

from functools import cache
from typing import Any

from placekit_scheduling import kernel_signature
from placekit_scheduling.fields import unpacked
from placekit_scheduling.jit import UNCOUNTED

from placekit_sim.kernel import simulate
from placekit_sim.machine import FIELDS

_PLAIN = dict.fromkeys(("multicast", "bulk", "noisy", "ahead", "arrival"), False)
_VARIANTS = {
    "any": {"resumes": False, "limited": False},
    "plain": {**_PLAIN, "record": False, "resumes": False, "limited": False},
    "recorded": {**_PLAIN, "record": True, "resumes": True, "limited": False},
    "trial": {**_PLAIN, "record": False, "resumes": True, "limited": True},
}


@cache
def compiled(variant: str) -> Any:
    """The compiled evaluation of a placement, see `placekit_scheduling.Kernel`; it is compiled, or read, when first asked for.

    `any` finds in its arrays whether there are multicast, barriers, noise, streaming, the order `arrival` or a recording; the
    others, which are for machines without the first five, take less time. `recorded` leaves marks to go on from, and can
    itself; so can `trial`, which also ends early.
    """
    options = {"cache": True, "nogil": True, **UNCOUNTED}
    name, known = f"simulate_{variant}", _VARIANTS[variant]
    return unpacked(FIELDS, simulate, kernel_signature(), name=name, known=known, **options)


def compile_default() -> None:
    """Compile the variants of a default run, the longer one first."""
    for variant in ("recorded", "plain"):
        compiled(variant)
