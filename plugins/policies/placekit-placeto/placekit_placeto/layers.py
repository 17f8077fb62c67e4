"""Dense layers in compiled loops, forwards and backwards. `x @ w + b`; vectors are contiguous float32."""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from placekit_scheduling.jit import inlined

from placekit_placeto.arrays import SLOPE, Floats


@inlined
def dense(x: Floats, w: Floats, b: Floats, y: Floats) -> None:
    """y = x @ w + b."""
    for j in range(y.shape[0]):
        y[j] = b[j]
    for i in range(x.shape[0]):
        a = x[i]
        for j in range(y.shape[0]):
            y[j] += a * w[i, j]


@inlined
def activate(y: Floats) -> None:
    """LeakyReLU, in place."""
    for j in range(y.shape[0]):
        y[j] = y[j] if y[j] > 0 else SLOPE * y[j]


@inlined
def dense_back(x: Floats, y_back: Floats, transposed: Floats, w_back: Floats, b_back: Floats, x_back: Floats) -> None:
    """Add the gradients by w and b, and fill `x_back`. `transposed` is w's transpose."""
    for i in range(x.shape[0]):
        a = x[i]
        for j in range(y_back.shape[0]):
            w_back[i, j] += a * y_back[j]
        x_back[i] = 0.0
    for j in range(y_back.shape[0]):
        a = y_back[j]
        b_back[j] += a
        for i in range(x.shape[0]):
            x_back[i] += a * transposed[j, i]


@inlined
def activate_back(y: Floats, y_back: Floats) -> None:
    """Gradient by the input of LeakyReLU, in place; `y` is its output, of the same sign."""
    for j in range(y.shape[0]):
        if y[j] <= 0:
            y_back[j] *= SLOPE
