"""Compiles the kernel in three variants, each without what it does not need; importing this imports numba."""

from __future__ import annotations

from functools import cache
from typing import Any

from placekit_scheduling import kernel_signature
from placekit_scheduling.fields import unpacked
from placekit_scheduling.jit import UNCOUNTED

from placekit_sim.kernel import simulate
from placekit_sim.layout import FIELDS

_PLAIN = dict.fromkeys(("multicast", "bulk", "noisy", "ahead", "arrival"), False)
_VARIANTS = {"any": {}, "plain": {**_PLAIN, "record": False}, "recorded": {**_PLAIN, "record": True}}


@cache
def compiled(variant: str) -> Any:
    """The evaluation of a placement (`placekit_scheduling.Kernel`), compiled or loaded from disk at the first call.

    `plain` and `recorded`, which also records times and causes, are faster. They are for machines without multicast,
    barriers, noise, prefetching and the order `arrival`; `any` is for all machines.
    """
    options = {"cache": True, "nogil": True, **UNCOUNTED}
    name, known = f"simulate_{variant}", _VARIANTS[variant]
    return unpacked(FIELDS, simulate, kernel_signature(), name=name, known=known, **options)


def compile_default() -> None:
    """Compile the variants of a default run, the one that takes longer first."""
    for variant in ("recorded", "plain"):
        compiled(variant)
