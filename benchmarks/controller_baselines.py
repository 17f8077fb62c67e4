"""A baseline for each controller, or one for all, where their machines differ: Mirhoseini et al. 2017, section 3.4.

    python benchmarks/controller_baselines.py [--seeds 6] --csv docs/research/runs/mirhoseini_controllers.csv

The paper: "due to the discrepancies between machines, it is more stable to let each controller have its own baseline". `seq2seq`
learns with `CONTROLLERS` controllers, in the paper's groups on simulated `k80x4`. They take turns in one process, as controllers
of equal speed would: each draws its placements with the parameters that it got at its last update, so that its gradient is three
updates late, and one Adam serves all. On controller i every placement takes `1 + spread * (i / (CONTROLLERS - 1) - 1 / 2)` times
its seconds; the table has the seconds without this factor. In trainer `asynchronous` each controller has its own baseline.
Columns are those of benchmarks/seeds.py.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from placekit_learn.optimisers import Adam
from placekit_learn.options import ReinforceOptions
from placekit_learn.rewards import Rewards
from placekit_seq2seq.seq2seq import Seq2Seq
from placekit_sim.simulator import Simulator
from seeds import LATE, Seed, write

from placekit_core import Problem, installed
from placekit_core.cli.compose import assembled
from placekit_core.run.evaluator import default_failing_signal_s

WORKLOADS, CLUSTER = ("rnnlm", "inception_v3"), "k80x4"
CONTROLLERS, EVALUATIONS, SAMPLES = 4, 2400, 10
SPREADS = (0.0, 0.1, 0.3)
OWN, SHARED = "own", "shared"


def method(baseline: str, spread: float) -> str:
    """The name of a way to learn."""
    return f"{baseline}, {spread:.0%}"


def learned(workload: str, problem: Problem, baseline: str, spread: float, seed: int) -> Seed:
    """One training. As in benchmarks/seeds.py, late placements that do not fit count as the failing signal."""
    began, session = time.perf_counter(), Simulator(ready_order="fifo").open(problem)
    options = ReinforceOptions.model_validate({"reward": "sqrt", "samples": SAMPLES})
    policy, optimiser, rng = Seq2Seq(), Adam(), np.random.default_rng(seed)
    policy.build([problem], rng)
    server = policy.state_dict()
    has = [server] * CONTROLLERS  # the parameters of each controller
    one = Rewards(options, default_failing_signal_s(problem))
    rewards = [one if baseline == SHARED else Rewards(options, one.failing_signal_s) for _ in has]
    values: list[float] = []
    for update in range(EVALUATIONS // SAMPLES):
        i = update % CONTROLLERS
        policy.load_state_dict(has[i])
        r = policy.rollout(problem, SAMPLES, rng, 1.0)
        m = session.evaluate(r.placements)
        values += np.where(m.fits, m.value_s, np.inf).tolist()
        factor = 1 + spread * (i - (CONTROLLERS - 1) / 2) / max(CONTROLLERS - 1, 1)
        each = rewards[i].weights(replace(m, value_s=factor * m.value_s))
        gradients = policy.gradients(problem, r, np.where(r.group >= 0, each[:, None], 0.0))
        steps = optimiser.steps(gradients, options.learning_rate)
        has[i] = server = {name: value + steps[name] for name, value in server.items()}
    late = np.array(values)[-round(LATE * EVALUATIONS) :]
    late[np.isinf(late)] = one.failing_signal_s
    return Seed(
        workload, CLUSTER, method(baseline, spread), seed, min(values), float("nan"), EVALUATIONS, -1,
        time.perf_counter() - began, late_s=float(late.mean()),
    )  # fmt: skip


def main() -> None:
    """Train, and write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--csv", type=Path, required=True)
    given = parser.parse_args()
    rows = []
    for workload in WORKLOADS:
        assembly = assembled([f"workload={workload}", f"cluster={CLUSTER}", "grouper=manual"], installed())
        problem = assembly.problem(assembly.programs[0])
        for seed in range(given.seeds):
            for spread in SPREADS:
                for baseline in (OWN, SHARED):
                    s = learned(workload, problem, baseline, spread, seed)
                    rows.append(s)
                    print(
                        f"{workload}, {s.method}, seed {seed}: {s.value_s:.4f} s, late {s.late_s:.4f} s, {s.seconds:.0f} s",
                        flush=True,
                    )
            write(rows, given.csv)
    rows.sort(key=lambda s: (s.cluster, s.workload, s.method, s.seed))
    write(rows, given.csv)


if __name__ == "__main__":
    main()
