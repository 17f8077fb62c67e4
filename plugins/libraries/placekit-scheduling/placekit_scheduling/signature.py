"""The numba type of compiled evaluations; importing this module imports no numba."""

from __future__ import annotations

from typing import Any


def kernel_signature() -> Any:
    """The numba signature of `Kernel.function`: seven arrays to the objective in seconds. Imports numba."""
    from numba import types

    return types.float64(
        types.int16[::1], types.float32[::1], types.int32[::1], types.float64[::1],
        types.int32[::1], types.float64[::1], types.float64[::1],
    )  # fmt: skip
