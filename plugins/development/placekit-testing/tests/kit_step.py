"""A small training step in numpy, and how to run it: for the conformance kit's own tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from placekit_core import Graph, GraphBuilder

W, X, Y, HEAD, Z, LOSS, NEW = range(7)  # tensors of the step below
SCALE, NOISE, SUM, UPDATE = range(2, 6)  # its kernels


def a_step() -> Graph:
    """y = w * x; z = y[:2] + noise; loss = sum(z) + sum(y); w = w - y."""
    b = GraphBuilder("step")
    w = b.source("w", 32, colocate=0)
    x = b.source("x", 32, op_type="input")
    (y,) = b.add("scale", inputs=[w, x], outputs=[32], flops=4)
    head = b.output(SCALE, 16, storage=y)
    (z,) = b.add("noise", inputs=[head], outputs=[16], flops=2)
    b.add("sum", inputs=[z, y], outputs=[8], flops=6)
    b.add("update", inputs=[w, y], colocate=0, phase="update")
    b.output(UPDATE, 32, storage=w)
    b.attributes = {"batch": 4}
    return b.build()


class Execution:
    """Runs the step on numpy arrays."""

    views: Mapping[int, int] = {HEAD: Y}
    updates: Mapping[int, int] = {W: NEW}
    results: Mapping[str, int] = {"loss": LOSS, "head": HEAD}
    random_ops = frozenset({NOISE})

    def __init__(self, path: str) -> None:
        self.recipe: dict[str, Any] = {"importer": "file", "options": {"path": path}}

    def initial(self, seed: int | None = None) -> dict[int, Any]:
        return {W: np.arange(4.0), X: np.full(4, 0.1)}

    def compute(self, op: int, values: Mapping[int, Any], step: int) -> tuple[int, Any]:
        """The tensor that the kernel writes, and its value."""
        if op == SCALE:
            return Y, values[W] * values[X]
        if op == NOISE:
            return Z, self.head(values) + np.random.default_rng([step, op]).random(2)
        if op == SUM:
            return LOSS, values[Z].sum() + values[Y].sum()
        return NEW, values[W] - values[Y]

    def head(self, values: Mapping[int, Any]) -> Any:
        return values[HEAD] if HEAD in values else self.view(HEAD)(values[Y])

    def compile(
        self, ops: Sequence[int], device: Any = None, keep: Collection[int] | None = None
    ) -> Callable[..., dict[int, Any]]:
        def run(values: Mapping[int, Any], step: int = 0) -> dict[int, Any]:
            made: dict[int, Any] = {}
            for op in ops:
                tensor, value = self.compute(op, {**values, **made}, step)
                made[tensor] = value
            return made if keep is None else {t: made[t] for t in keep}

        return run

    def view(self, tensor: int) -> Callable[[Any], Any]:
        return lambda base: base[:2]

    def result(self, name: str, values: Mapping[int, Any]) -> Any:
        return self.head(values) if name == "head" else values[LOSS]
