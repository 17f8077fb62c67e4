"""Compiles the kernel in two variants, one without code that most machines do not need. Importing this imports numba."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from placekit_scheduling import kernel_signature
from placekit_scheduling.fields import unpacked
from placekit_scheduling.jit import UNCOUNTED

from placekit_sim.kernel import simulate
from placekit_sim.layout import FIELDS

_PLAIN = dict.fromkeys(("multicast", "bulk", "noisy", "ahead", "arrival"), False)
_VARIANTS = {"any": {}, "plain": _PLAIN}


def variant(flags: Mapping[str, Any]) -> str:
    """The name of the variant that a machine and its rules need. `flags` has the flags among `layout.FIELDS`."""
    return "any" if any(flags[name] for name in _PLAIN) else "plain"


@cache
def compiled(variant: str) -> Any:
    """The function that evaluates a placement (see `placekit_scheduling.Kernel`), compiled or loaded from disk at the first call.

    Variant `any` is for all machines. `plain` compiles and runs faster, but only for machines without multicast, barriers,
    noise, prefetching and the order `arrival`.
    """
    options = {"cache": True, "nogil": True, **UNCOUNTED}
    name, known = f"simulate_{variant}", _VARIANTS[variant]
    return unpacked(FIELDS, simulate, kernel_signature(), name=name, known=known, **options)
