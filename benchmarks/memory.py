"""Searches where memory is tight: every GPU has a share of what one device alone would need.

    python benchmarks/memory.py [--policies A,B] [--workloads A,B] [--evaluations N] [--seeds N] [--write]

A room of 1.2 means that all GPUs together hold 1.2 times what the whole program needs on one of them. Prints how far
the median over the seeds is above the best value that any run here found, and how many seeds found nothing that fits.
"""

from __future__ import annotations

import argparse
import math
import statistics
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

from quality_runs import Instance
from simulator import processor

from placekit_core import Cluster, RunError, place

RESULT = Path(__file__).parent / "results" / "memory.md"
ROOMS = (1.2, 1.6, 2.4)
WORKLOADS = "ffnn_sharded,chainmm,llama_block_sharded,inception_v3_small,nmt_small,rnnlm_small,gpt_small,resnet_small"
Job = tuple[str, float, str, int, int]


def with_memory(cluster: Cluster, memory_bytes: int) -> Cluster:
    """The same machine with another memory capacity on every GPU."""
    data = cluster.model_dump(mode="json")
    for kind in data["kinds"].values():
        if kind["type"] == "gpu":
            kind["memory_bytes"] = memory_bytes
    return Cluster.parse(data)


def value_s(job: Job) -> float:
    """Seconds of the best placement found; infinite if none fits."""
    warnings.simplefilter("ignore")
    workload, room, policy, evaluations, seed = job
    program, cluster = Instance(workload, (f"workload={workload}", "cluster=p100x4")).load()
    alone = place(program, cluster=with_memory(cluster, 2**50), policy="single_gpu")
    needed = max(alone.summary.peak_bytes.values())
    small = with_memory(cluster, int(room * needed / cluster.size))
    try:
        found = place(program, cluster=small, policy=policy, budget=evaluations, seed=seed).value_s
    except RunError:
        return math.inf
    return math.inf if found is None else found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--policies", default="portfolio,annealing")
    parser.add_argument("--workloads", default=WORKLOADS)
    parser.add_argument("--evaluations", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"into {RESULT.name}")
    arguments = parser.parse_args()
    policies, workloads = arguments.policies.split(","), arguments.workloads.split(",")
    seeds = range(arguments.seeds)
    jobs = list(product(workloads, ROOMS, policies, [arguments.evaluations], seeds))
    with ProcessPoolExecutor(2) as pool:
        values = dict(zip(jobs, pool.map(value_s, jobs), strict=True))
    lines = [
        f"# Searches where memory is tight\n\n`python benchmarks/memory.py --write`, {arguments.evaluations:,} evaluations,"
        f" median of {arguments.seeds} seeds over the best value that any run here found; *n none*: seeds that found nothing"
        f" that fits. 4 x P100, with less memory.\n\n| workload | room | best, ms | {' | '.join(policies)} |",
        f"| --- | ---: | ---: |{' ---: |' * len(policies)}",
    ]
    for workload, room in product(workloads, ROOMS):
        found = {p: [values[workload, room, p, arguments.evaluations, s] for s in seeds] for p in policies}
        best = min(min(row) for row in found.values())
        cells = [_cell(row, best) for row in found.values()]
        lines.append(
            f"| {workload} | {room} | {'-' if math.isinf(best) else f'{best * 1e3:.4g}'} | {' | '.join(cells)} |"
        )
    text = "\n".join([*lines, "", f"machine: {processor()}", ""])
    print(text)
    if arguments.write:
        RESULT.write_text(text)


def _cell(row: list[float], best: float) -> str:
    none = sum(map(math.isinf, row))
    median = statistics.median(row)
    shown = "-" if math.isinf(median) else f"{100 * (median / best - 1):.1f} %"
    return f"{shown} ({none} none)" if none else shown


if __name__ == "__main__":
    main()
