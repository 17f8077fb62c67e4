"""Processor seconds of an update of learned methods: in plain torch, and by the faster code that is the default.

    python benchmarks/placer.py [--write]

An update draws 10 placements and computes the gradients of their log-probabilities, on one thread. `seq2seq` and `doppler` have
the same parameters with both engines. `placeto` has two networks: the paper's, which passes messages at each step, and ours,
which passes them once and sums them by compiled loops. The variants of a method take turns in one process; each figure is the
least of several. `--write` writes the table to benchmarks/results/placer.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from placekit_doppler.doppler import Doppler
from placekit_placeto.placeto import Placeto
from placekit_seq2seq.seq2seq import Seq2Seq

from placekit_core import LearnablePolicy, Problem, installed
from placekit_core.cli.compose import assembled

RESULT = Path(__file__).resolve().parent / "results" / "placer.md"
TURNS, SAMPLES = 3, 10
PAPER = {"head": "paper", "sums": "plain", "residual": False}  # preset placeto_paper
MANUAL = [f"workload={name} cluster=k80x4 grouper=manual" for name in ("rnnlm", "inception_v3")]
METHODS: dict[str, tuple[list[str], Callable[[], dict[str, LearnablePolicy]]]] = {
    "seq2seq": (MANUAL, lambda: {"plain": Seq2Seq(engine="plain"), "fast": Seq2Seq()}),
    "placeto": (MANUAL, lambda: {"head=paper": Placeto(**PAPER), "head=per_device": Placeto()}),
    "doppler": (
        ["workload=chainmm cluster=p100x4"],
        lambda: {
            "message_passing=per_step": Doppler(message_passing="per_step"),
            "plain": Doppler(engine="plain"),
            "fast": Doppler(episode_threads=1),
        },
    ),
}
"""Of each method: the problems, and policies; the last one is the default."""


def seconds(problem: Problem, policies: list[LearnablePolicy]) -> list[list[float]]:
    """Least CPU seconds of drawing and of the gradients, of each policy."""
    measured = []
    for policy in policies:
        policy.build([problem], np.random.default_rng(0))
    for _ in range(TURNS):
        for policy in policies:
            began = time.process_time()
            drawn = policy.rollout(problem, SAMPLES, np.random.default_rng(0), 1.0)
            after = time.process_time()
            policy.gradients(problem, drawn, np.ones(drawn.log_prob.shape))
            measured.append((after - began, time.process_time() - after))
    least: list[list[float]] = np.reshape(measured, (TURNS, len(policies), 2)).min(axis=0).tolist()
    return least


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="keep the table in benchmarks/results")
    lines = [
        "| policy | workload | groups | | draw | gradients | update | ratio |",
        "|---|---|---:|---|---:|---:|---:|---:|",
    ]
    arguments = parser.parse_args()
    for method, (workloads, begin) in METHODS.items():
        for overrides in workloads:
            assembly, policies = assembled(overrides.split(), installed()), begin()
            problem = assembly.problem(assembly.programs[0])
            found = seconds(problem, list(policies.values()))
            for name, (draw, gradients) in zip(policies, found, strict=True):
                cells = f"{1e3 * draw:.0f} ms | {1e3 * gradients:.0f} ms | {1e3 * (draw + gradients):.0f} ms"
                ratio = (draw + gradients) / sum(found[-1])
                lines.append(f"| {method} | {problem.graph.name} | {problem.g} | {name} | {cells} | {ratio:.1f} |")
    print("\n".join(lines))
    if arguments.write:
        head = ["# Learned methods in plain torch, and by faster code", "", "`python benchmarks/placer.py --write`", ""]
        RESULT.write_text("\n".join([*head, *lines, ""]))


if __name__ == "__main__":
    main()
