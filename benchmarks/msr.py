"""Compares placekit with the published optima of the graphs of Tarnawski et al. (NeurIPS 2020).

    PLACEKIT_SAMPLES=FOLDER python benchmarks/msr.py

For each graph: the published optimum, the value found, and whether that took less than a minute.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from placekit_core import place

CASES = [
    ("throughput/layer_bert24_inference", "max_load", "chain", 17.790),
    ("throughput/layer_bert24_training", "max_load", "chain", 41.746),
    ("throughput/operator_bert3_inference", "max_load", "chain", 27.919),
    ("throughput/layer_bert24_inference", "max_load", "portfolio", 17.715),
    ("throughput/layer_bert24_training", "max_load", "portfolio", 39.790),
    ("throughput/operator_bert3_inference", "max_load", "portfolio", 21.908),
    ("latency/layer_bert24_inference", "blocking_latency", "chain", 100.219),
    ("latency/layer_bert24_inference", "blocking_latency", "portfolio", 100.219),
]
"""Graph, backend, policy, published milliseconds: the optimum of contiguous splits (`chain` with `max_load`), the optimum of all
placements (`portfolio`), or the best known latency."""


def main() -> None:
    folder = os.environ.get("PLACEKIT_SAMPLES")
    if not folder:
        raise SystemExit("PLACEKIT_SAMPLES is not set: give the folder with msr/throughput and msr/latency")
    print("| graph | backend | policy | published | found | above | under a minute |")
    print("|---|---|---|---:|---:|---:|---|")
    for graph, backend, policy, published in CASES:
        began = time.perf_counter()
        result = place(str(Path(folder) / "msr" / f"{graph}.json"), backend=backend, policy=policy)
        assert result.value_s is not None
        found = 1e3 * result.value_s
        fast = "yes" if time.perf_counter() - began < 60 else "no"
        print(
            f"| {graph} | {backend} | {policy} | {published:.3f} | {found:.3f} | {found / published - 1:+.2%} | {fast} |"
        )


if __name__ == "__main__":
    main()
