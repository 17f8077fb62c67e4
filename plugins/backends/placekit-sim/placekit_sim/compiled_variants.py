"""Compiles the kernel in four variants, each without what it does not need; importing this imports numba."""

from __future__ import annotations

from functools import cache
from typing import Any

from placekit_scheduling import kernel_signature
from placekit_scheduling.fields import unpacked
from placekit_scheduling.jit import UNCOUNTED

from placekit_sim.kernel import simulate
from placekit_sim.layout import FIELDS

_PLAIN = dict.fromkeys(("multicast", "bulk", "noisy", "ahead", "arrival"), False)
_VARIANTS = {
    "any": {"resumes": False, "limited": False},
    "plain": {**_PLAIN, "record": False, "resumes": False, "limited": False},
    "recorded": {**_PLAIN, "record": True, "resumes": True, "limited": False},
    "trial": {**_PLAIN, "record": False, "resumes": True, "limited": True},
}


@cache
def compiled(variant: str) -> Any:
    """The evaluation of a placement (`placekit_scheduling.Kernel`), compiled or loaded from disk at the first call.

    `plain`, `recorded` and `trial` are faster, and for machines without multicast, barriers, noise, prefetching and the order
    `arrival`; `any` is for all machines. `recorded` saves snapshots and can start from one. `trial` can start from one, and
    ends early.
    """
    options = {"cache": True, "nogil": True, **UNCOUNTED}
    name, known = f"simulate_{variant}", _VARIANTS[variant]
    return unpacked(FIELDS, simulate, kernel_signature(), name=name, known=known, **options)


def compile_default() -> None:
    """Compile the variants of a default run, the one that takes longer first."""
    for variant in ("recorded", "plain"):
        compiled(variant)
