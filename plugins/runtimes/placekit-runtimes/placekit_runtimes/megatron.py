"""Megatron-LM: pipeline stages of whole layers, several on a rank with an interleaved schedule.

Follows NVIDIA/Megatron-LM, megatron/core/transformer/pipeline_parallel_layer_layout.py, commit 00caa53; the code is our own.
"""

from __future__ import annotations

from placekit_core import Placement, Problem
from placekit_runtimes.interface import Runtime, RuntimeMap
from placekit_runtimes.layers import Stages


class Megatron(Runtime):
    """Megatron-LM with `--pipeline-model-parallel-layout`."""

    name = "megatron"
    title = "Megatron-LM"
    versions = ("NVIDIA/Megatron-LM at 00caa53",)
    runs = ("training",)

    def write(self, problem: Problem, placement: Placement) -> RuntimeMap:
        """The layout: stages between `|`, with a `t` for each layer, the embedding `E` first and the loss `L` last.

        `t*3` is `ttt`. With p ranks, stage i of s is on rank i mod p; s / p stages on each rank are virtual stages.
        """
        stages = Stages.of(problem, placement, self.title, loops=True)
        parts = ["" if not count else "t" if count == 1 else f"t*{count}" for count in stages.counts]
        parts[0] = f"E{parts[0]}"
        parts[-1] = f"{parts[-1]}L"
        return stages.map("|".join(parts), stages.launch_notes, trains=True)


RUNTIME = Megatron()
