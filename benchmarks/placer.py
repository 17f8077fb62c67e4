"""Processor seconds of an update of `seq2seq` with the network of `network.py` and with its faster twin of `fast.py`.

    python benchmarks/placer.py [--write]

An update draws 10 placements and computes the gradients of their log-probabilities, on one thread: rnnlm and Inception-V3 with
manual groups, four K80s. The two networks have the same parameters and take turns in one process; each figure is the least of
several. `--write` writes the table to benchmarks/results/placer.md.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from placekit_seq2seq import fast, network
from placekit_seq2seq.seq2seq import Seq2Seq

from placekit_core import Problem, installed
from placekit_core.cli.compose import assembled

RESULT = Path(__file__).resolve().parent / "results" / "placer.md"
TURNS, SAMPLES = 5, 10


def seconds(problem: Problem) -> tuple[int, list[list[float]]]:
    """The number of groups; least CPU seconds of drawing and of the gradients, for the plain network and for its twin."""
    policy = Seq2Seq()
    policy.build([problem], np.random.default_rng(0))
    measured = []
    for _ in range(TURNS):
        for kind in (network.Placer, fast.FastPlacer):
            policy.module.placer.__class__ = kind
            began = time.process_time()
            drawn = policy.rollout(problem, SAMPLES, np.random.default_rng(0), 1.0)
            after = time.process_time()
            policy.gradients(problem, drawn, np.ones(drawn.log_prob.shape))
            measured.append((after - began, time.process_time() - after))
    return problem.g, np.reshape(measured, (TURNS, 2, 2)).min(axis=0).tolist()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="keep the table in benchmarks/results")
    lines = ["| workload | groups | | draw | gradients | update |", "|---|---:|---|---:|---:|---:|"]
    arguments = parser.parse_args()
    for workload in ("rnnlm", "inception_v3"):
        assembly = assembled([f"workload={workload}", "cluster=k80x4", "grouper=manual"], installed())
        groups, (plain, twin) = seconds(assembly.problem(assembly.programs[0]))
        for name, (draw, gradients) in (("plain", plain), ("fast", twin)):
            cells = f"{1e3 * draw:.0f} ms | {1e3 * gradients:.0f} ms | {1e3 * (draw + gradients):.0f} ms"
            lines.append(f"| {workload} | {groups} | {name} | {cells} |")
        lines.append(f"| {workload} | {groups} | ratio | | | {sum(plain) / sum(twin):.1f} |")
    print("\n".join(lines))
    if arguments.write:
        head = ["# The plain network of seq2seq and its faster twin", "", "`python benchmarks/placer.py --write`", ""]
        RESULT.write_text("\n".join([*head, *lines, ""]))


if __name__ == "__main__":
    main()
