"""Dense layers of many rows at once, forwards and backwards: `x @ w + b`. Arrays are contiguous float32, [m, in] and [m, out].

The products are numba's `np.dot`, which calls BLAS: loops that numba compiles take some twenty times as long.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from placekit_scheduling.jit import COUNTED, compiled, njit

from placekit_placeto.arrays import SLOPE, Floats

counted: Any = njit(cache=True, **COUNTED)  # np.dot returns an array


@counted
def dense(x: Floats, w: Floats, b: Floats, y: Floats) -> None:
    """y = x @ w + b."""
    np.dot(x, w, y)
    for r in range(y.shape[0]):
        for j in range(y.shape[1]):
            y[r, j] += b[j]


@counted
def dense_active(x: Floats, w: Floats, b: Floats, y: Floats) -> None:
    """y = LeakyReLU(x @ w + b)."""
    np.dot(x, w, y)
    for r in range(y.shape[0]):
        for j in range(y.shape[1]):
            total = y[r, j] + b[j]
            y[r, j] = total if total > 0 else SLOPE * total


@counted
def dense_back(x: Floats, y_back: Floats, w: Floats, w_back: Floats, b_back: Floats, x_back: Floats, flat: Any) -> None:
    """Add the gradients by w and b, and fill `x_back`. `flat` is working memory of at least w's size."""
    product = flat[: w.size].reshape(w.shape)
    np.dot(x.T, y_back, product)
    for i in range(w.shape[0]):
        for j in range(w.shape[1]):
            w_back[i, j] += product[i, j]
    for r in range(y_back.shape[0]):
        for j in range(y_back.shape[1]):
            b_back[j] += y_back[r, j]
    np.dot(y_back, w.T, x_back)


@compiled
def activate_back(y: Floats, y_back: Floats) -> None:
    """Gradient by the input of LeakyReLU, in place; `y` is its output, of the same sign."""
    for r in range(y.shape[0]):
        for j in range(y.shape[1]):
            if y[r, j] <= 0:
                y_back[r, j] *= SLOPE


@compiled
def copy(into: Any, values: Any) -> None:
    """Copy a vector."""
    for j in range(into.shape[0]):
        into[j] = values[j]
