"""Speed of learned policies: placements per second that are drawn, and drawn and trained on.

    python benchmarks/learning.py [--policy seq2seq] [--groups 280] [--batch 16] [--repeats 9] [policy.OPTION=VALUE ...]

A synthetic problem of `groups` operations in layers on five devices; no placement is evaluated. The median of the repeats,
by the clock, and by the seconds of the processors (which other programs on the machine disturb less).
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
import yaml
from placekit_seq2seq.hierarchical import Hierarchical
from placekit_seq2seq.seq2seq import Seq2Seq
from placekit_testing.fakes import gpus

from placekit_core import GraphBuilder, Problem

POLICIES = {cls.name: cls for cls in (Seq2Seq, Hierarchical)}


def layers(groups: int, width: int = 8, devices: int = 5) -> Problem:
    """Operations of twenty types in layers; each reads two of the layer before."""
    rng, b = np.random.default_rng(0), GraphBuilder(f"layers{groups}")
    before: list[int] = []
    now: list[int] = []
    for i in range(groups):
        reads = [before[j] for j in rng.choice(len(before), 2, replace=False)] if before else []
        size = int(rng.integers(1_000, 1_000_000))
        now += b.add(f"op{i}", op_type=f"type{i % 20}", inputs=reads, outputs=[size], flops=1e9)
        if len(now) == width:
            before, now = now, []
    return Problem.of(b.build(), gpus(devices - 1, cpus=1))


def median_s(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median seconds of `work` by the clock, and of the processors; once before to warm up."""
    work()
    clock, used = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        clock.append(time.perf_counter() - wall)
        used.append(time.process_time() - cpu)
    return statistics.median(clock), statistics.median(used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--policy", choices=POLICIES, default="seq2seq")
    parser.add_argument("--groups", type=int, default=280)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("options", nargs="*", metavar="policy.OPTION=VALUE")
    given = parser.parse_args()
    options = dict(option.removeprefix("policy.").split("=", 1) for option in given.options)
    policy = POLICIES[given.policy](**{name: yaml.safe_load(value) for name, value in options.items()})
    problem = layers(given.groups)
    policy.build([problem], np.random.default_rng(0))
    drawn = policy.rollout(problem, given.batch, np.random.default_rng(0), 1.0)
    weight = np.random.default_rng(1).standard_normal(drawn.log_prob.shape)
    stages = {
        "draw": lambda: policy.rollout(problem, given.batch, np.random.default_rng(0), 1.0),
        "gradients": lambda: policy.gradients(problem, drawn, weight, 0.01),
    }
    seconds = {name: median_s(work, given.repeats) for name, work in stages.items()}
    wall_s, cpu_s = (sum(s) for s in zip(*seconds.values(), strict=True))
    seconds["both"] = wall_s, cpu_s
    print(f"{given.policy}: {given.groups} groups, batches of {given.batch}, {policy.options.threads} threads of torch,"
          f" load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")  # fmt: skip
    print(f"{'':10}{'ms/batch':>10}{'placements/s':>14}{'CPU ms/batch':>14}{'placements/CPU s':>18}")
    for name, (wall, cpu) in seconds.items():
        print(f"{name:10}{wall * 1e3:10.1f}{given.batch / wall:14.0f}{cpu * 1e3:14.1f}{given.batch / cpu:18.0f}")


if __name__ == "__main__":
    main()
