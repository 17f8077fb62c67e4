"""How llama.cpp divides a model by itself (`--fit`, on by default).

Follows ggml-org/llama.cpp, common/fit.cpp, `common_params_fit_impl`, commit 08033df; the code is our own. A context is given, so
it does not shrink. One last partial layer on each GPU is not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placekit_runtimes.llamacpp import gpu_of_layers
from placekit_runtimes.planning.regular import Regular, Regulars
from placekit_runtimes.planning.split import Split

MARGIN = 2**30
"""Bytes that stay free on each GPU (`--fit-target`)."""


def fitted(regulars: Regulars, gpus: Sequence[int] | None = None) -> Split:
    """On these GPUs, by default all: in proportion to free memory if all of it fits with a margin.

    Else layers fill the GPUs from the last, those of mixtures of experts without their experts, and the first layers stay on
    the CPU. If all layers are on GPUs, they move with their experts to the first GPUs, as long as these have room.
    """
    question, layers = regulars.steps.question, regulars.layout.layers
    gpus = sorted(question.gpus) if gpus is None else list(gpus)
    on = gpu_of_layers(layers, question.cluster.memory_bytes[gpus].tolist(), layers + 1)
    plain = regulars.split(Regular.plain(gpus, [on[:-1].count(i) for i in range(len(gpus))], len(regulars.targets)))
    cpu = question.cpu
    if cpu is None or _free(regulars, plain, gpus):
        return plain
    chain, experts = [cpu, *gpus], bool(regulars.targets)
    counts, away = [layers, *[0] * len(gpus)], [0] * len(chain)

    def split() -> Split:
        """The experts of the last layers of a GPU are on the CPU."""
        home = np.repeat(chain, counts)
        at = home.copy()
        for end, number in zip(np.cumsum(counts), away, strict=True):
            at[end - number : end] = cpu
        return regulars.layout.split([*home, home[-1]], cpu, at.tolist())

    def shift(source: int, target: int, full: bool) -> bool:
        """Move a layer if there is room for it."""
        old = counts.copy(), away.copy()
        counts[source] -= 1
        counts[target] += 1
        away[source] -= experts and source > 0
        away[target] += experts and not full
        if _free(regulars, split(), gpus):
            return True
        counts[:], away[:] = old
        return False

    for i in reversed(range(1, len(chain))):
        while counts[0] and shift(0, i, full=False):
            pass
    if not experts or counts[0]:
        return split()
    for i in range(1, len(chain)):
        while (source := _first_partial(away)) >= i and shift(source, i, full=True):
            pass
    return split()


def _first_partial(away: list[int]) -> int:
    """The first device with layers whose experts are in host memory; 0: none."""
    return next((i for i, n in enumerate(away) if n), 0)


def _free(regulars: Regulars, split: Split, gpus: list[int]) -> bool:
    return bool((regulars.steps.memory(split).free[gpus] >= MARGIN).all())
