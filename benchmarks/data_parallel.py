"""Data parallelism on unequal GPUs beside a single device and model parallelism.

`python benchmarks/data_parallel.py [CLUSTER] [MODEL ...]`: for each model, milliseconds of a training step with the whole batch
on the fastest device, with the best placement that the default policy finds, and with towers of equal and unequal parts of the
batch, one per device, in the order of the cluster. The last columns are the memory that each device needs at most.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from placekit_core import PlacekitError, load_programs, place
from placekit_core.cli.console import table
from placekit_core.contracts.units import mebibytes

MODELS: dict[str, dict[str, Any]] = {  # options; a batch that all parts divide
    "gpt2": {"model": "hf:openai-community/gpt2", "batch": 24, "context": 512},
    "gpt2_half_batch": {"model": "hf:openai-community/gpt2", "batch": 12, "context": 512},
    "resnet50": {"model": "torchvision:resnet50", "batch": 96},
    "vgg16": {"model": "torchvision:vgg16", "batch": 48},
}
SHARES = ([1, 1], [2, 1], [3, 1])


def main(arguments: list[str]) -> None:
    """Print a table per model."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it warns of entries of configurations
    cluster = arguments[0] if arguments else "rtx4090_3090"
    for name in arguments[1:] or MODELS:
        options = {**MODELS[name], "mode": "train"}
        batch, rows = options["batch"], list[list[str]]()
        for policy in ("single_device", "portfolio"):
            rows.append(_row(policy, batch, cluster, policy, options))
        for shares in SHARES:
            label = f"towers {':'.join(map(str, shares))}"
            rows.append(_row(label, batch, cluster, "data_parallel", {**options, "towers": shares}))
        print(f"{name}, batch {batch}, on {cluster}", flush=True)
        table(["placement", "step", "samples/s", "peak memory"], rows)
        print(flush=True)


def _row(label: str, batch: int, cluster: str, policy: str, options: dict[str, Any]) -> list[str]:
    try:
        [program] = place(load_programs("model", **options), cluster=cluster, policy=policy).programs
    except PlacekitError as e:
        return [label, e.message, "", ""]
    step_s = program.summary.value_s
    assert step_s is not None
    assert program.measurements is not None
    peak = ", ".join(mebibytes(b) for b in program.measurements.peak_bytes[0])
    return [label, f"{1e3 * step_s:.1f} ms", f"{batch / step_s:.0f}", peak]


if __name__ == "__main__":
    main(sys.argv[1:])
