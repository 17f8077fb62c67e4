"""Episodes per second of policy `placeto`, with a naive loop and with fast ones: `python benchmarks/placeto_speed.py`.

The naive loop is `policy.head=paper policy.engine=torch`: at each step it computes the whole network in torch-geometric, on one
thread. The compiled loops compute the same network; `per_device` is the other head, on one thread. All draw episodes of
the same problem, and compute their gradients, in turn in one process.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from placekit_placeto.placeto import Placeto

from placekit_core import LearnablePolicy, Problem, installed
from placekit_core.cli.compose import assembled

RUNS = 5
NAIVE, EPISODES = 1, 8


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def episodes(policy: LearnablePolicy, problem: Problem, n: int) -> tuple[float, float]:
    """Seconds for drawing n episodes, and for their gradients."""
    rng = np.random.default_rng(0)
    r = policy.rollout(problem, n, rng, 1.0)
    drawn = seconds(lambda: policy.rollout(problem, n, rng, 1.0))
    return drawn, seconds(lambda: policy.gradients(problem, r, np.ones(r.log_prob.shape), 0.01))


def main() -> None:
    """Print the table, and save it as benchmarks/results/placeto_speed.md."""
    assembly = assembled(
        ["workload=placeto_cifar10", "importer.only=0", "cluster=p100x4", "+policy=placeto"], installed()
    )
    problem = assembly.problem(assembly.programs[0])
    cores = os.cpu_count() or 1
    policies = {
        "naive, torch-geometric": (Placeto(head="paper", engine="torch"), NAIVE),
        "compiled, 1 thread": (Placeto(head="paper", episode_threads=1), EPISODES),
        f"compiled, {cores} threads": (Placeto(head="paper", episode_threads=cores), EPISODES),
        "per_device, 1 thread": (Placeto(), EPISODES),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in policies}
    for policy, _ in policies.values():
        policy.build([problem], np.random.default_rng(0))
    for _ in range(RUNS):
        for name, (policy, n) in policies.items():
            drawn, gradient = episodes(policy, problem, n)
            times[name].append((n / drawn, n / (drawn + gradient)))
    lines = ["| loop | episodes/s drawn | episodes/s drawn and learned from | ratio |", "|---|---:|---:|---:|"]
    base = statistics.median(both for _, both in times["naive, torch-geometric"])
    for name, rows in times.items():
        drawn, both = (statistics.median(x) for x in zip(*rows, strict=True))
        lines.append(f"| {name} | {drawn:.2f} | {both:.2f} | {both / base:.1f} |")
    text = "\n".join(
        [
            "# Speed of Placeto's episodes",
            "",
            f"`python benchmarks/placeto_speed.py`: {problem.g} groups on {problem.cluster.size} devices"
            f" ({problem.graph.name}), median of {RUNS} runs in turn, {cores} cores",
            "",
            *lines,
            "",
        ]
    )
    print(text)
    (Path(__file__).parent / "results" / "placeto_speed.md").write_text(text)


if __name__ == "__main__":
    main()
