"""What the options of importer `torch` about kernels change: a training step of GPT-2 on one A100.

    python benchmarks/step_kernels.py [--quick] [--write]

GPT-2 (124 million parameters) of transformers, 8 sequences of 1,024 tokens, AdamW, autocast in bfloat16; nothing is
allocated. Seconds and peak bytes are simulated on one device of cluster `a100x8`. `--quick` takes two layers; `--write` keeps
the table in benchmarks/results/step_kernels.md.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from placekit_torch import Step
from placekit_torch.factory import Made
from placekit_torch.importer import import_program
from placekit_torch.options import Kernels
from placekit_torch.vision import declare_torchvision
from torch import Tensor

declare_torchvision()
from transformers import GPT2Config, GPT2LMHeadModel  # noqa: E402

from placekit_core import Program, place  # noqa: E402

BEFORE: dict[str, Any] = {"attention": "math", "optimizer_kernels": "single"}
FUSED: dict[str, Any] = {"optimizer_kernels": "fused"}
ROWS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("attention of plain products, one kernel per update operation", BEFORE, {}),
    ("fused attention", {"optimizer_kernels": "single"}, {}),
    ("fused attention, foreach updates: the default", {}, {}),
    ("fused attention, fused updates", FUSED, {}),
    ("also pointwise chains fused", {**FUSED, "fusion": "pointwise"}, {}),
    ("fused, with checkpointing", FUSED, {"saved": True}),
    ("fused, in 4 micro-batches", {**FUSED, "accumulate": 4}, {}),
    ("fused, in float32 without autocast", {**FUSED, "autocast": "none"}, {}),
]


def step(layers: int, saved: bool = False, batch: int = 8, length: int = 1024) -> Step:
    """One training step of GPT-2."""
    config = GPT2Config(n_layer=layers, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    module: Any = GPT2LMHeadModel(config)
    if saved:
        module.gradient_checkpointing_enable({"use_reentrant": False})
    tokens = torch.zeros(batch, length, dtype=torch.int64)

    def loss(output: Any, labels: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten())

    return Step(module, {"input_ids": tokens}, loss, torch.zeros_like(tokens), torch.optim.AdamW)


def imported(layers: int, kernels: dict[str, Any], options: dict[str, Any]) -> Program:
    """The program of one row of the table."""
    chosen = Kernels.model_validate({"autocast": "bfloat16", **kernels})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_program(Made(lambda: step(layers, **options), "gpt2"), name="gpt2", kernels=chosen)


def row(label: str, program: Program, seconds: float) -> list[str]:
    """One row of the table."""
    graph = program.graph
    launches = np.asarray(graph.columns.get("launches", graph.kernel))[graph.kernel].sum()
    found = place(program, policy="single_device", cluster="a100x8")
    figures = [f"{graph.kernel.sum():,}", f"{launches:,.0f}", f"{graph.flops.sum() / 1e12:.2f}"]
    assert found.measurements is not None
    assert found.value_s is not None
    peak = float(found.measurements.peak_bytes.max())
    return [label, *figures, f"{1e3 * found.value_s:.1f}", f"{peak / 1e9:.2f}", f"{seconds:.1f}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    head = ["step", "kernels", "launches", "TFLOP", "ms", "peak GB", "import s"]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    print("\n".join(lines))
    for label, kernels, options in ROWS:
        start = time.process_time()
        program = imported(2 if arguments.quick else 12, kernels, options)
        lines.append("| " + " | ".join(row(label, program, time.process_time() - start)) + " |")
        print(lines[-1], flush=True)
    if arguments.write:
        about = "GPT-2 on one A100, simulated; by `python benchmarks/step_kernels.py --write`. Import seconds are processor time."
        path = Path(__file__).parent / "results" / "step_kernels.md"
        path.write_text("\n".join(["# Kernels of a training step", "", about, "", *lines, ""]))


if __name__ == "__main__":
    main()
