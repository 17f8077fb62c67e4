"""A baseline for each controller, or one for all, where their machines differ (Mirhoseini et al. 2017, section 3.4).

The paper: "due to the discrepancies between machines, it is more stable to let each controller have its own baseline". `seq2seq`
learns with four controllers, in the paper's groups on simulated `k80x4`. They take turns in one process, as controllers of equal
speed would: each draws its placements with the parameters that it got at its last update, so that its gradient is three updates
late, and one Adam serves all. On controller i every placement takes `1 + spread * (i / 3 - 1 / 2)` times its seconds; recorded
seconds are without this factor. In trainer `asynchronous` each controller has its own baseline.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from placekit_learn.optimisers import Adam
from placekit_learn.options import ReinforceOptions
from placekit_learn.rewards import Advantages

from placekit_core import Problem, Registry
from placekit_core.cli.compose import assembled
from placekit_core.run.evaluator import default_failing_signal_s
from placekit_papers.paper_tables import by_place, lines
from placekit_papers.runs import DATA, Run, read_runs, write_runs

_WORKLOADS, _CLUSTER, _SEEDS = ("rnnlm", "inception_v3"), "k80x4", 6
_CONTROLLERS, _EVALUATIONS, _SAMPLES, _LATE = 4, 2400, 10, 0.05
_SPREADS = (0.0, 0.1, 0.3)


def run(folder: Path, registry: Registry) -> list[str]:
    """Train; the rows are in `folder`/runs.csv."""
    runs = []
    for workload in _WORKLOADS:
        assembly = assembled([f"workload={workload}", f"cluster={_CLUSTER}", "grouper=manual"], registry)
        problem = assembly.problem(assembly.programs[0])
        runs += [
            learn(workload, problem, baseline, spread, seed, registry)
            for seed in range(_SEEDS)
            for spread in _SPREADS
            for baseline in ("own", "shared")
        ]
        write_runs(runs, folder / "runs.csv")
    return _table(runs)


def show() -> list[str]:
    """The mean of the last placements of the recorded runs."""
    return _table(read_runs(DATA / "mirhoseini_controllers.csv"))


def _table(runs: list[Run]) -> list[str]:
    return list(lines([], {}, by_place(runs, "late_s"), by_place(runs, "bound_s")))


def learn(
    workload: str, problem: Problem, baseline: str, spread: float, seed: int, registry: Registry, updates: int = 0
) -> Run:
    """One training. Late placements that do not fit count as the failing signal."""
    began, session = time.perf_counter(), registry.build("backend", "simulator", {"ready_order": "fifo"}).open(problem)
    options = ReinforceOptions.model_validate({"reward": "sqrt", "samples": _SAMPLES})
    policy, optimiser, rng = registry.build("policy", "seq2seq", {}), Adam(), np.random.default_rng(seed)
    policy.build([problem], rng)
    server = policy.state_dict()
    parameters = [server] * _CONTROLLERS
    one = Advantages(options, default_failing_signal_s(problem))
    rewards = [one if baseline == "shared" else Advantages(options, one.failing_signal_s) for _ in parameters]
    values: list[float] = []
    for update in range(updates or _EVALUATIONS // _SAMPLES):
        i = update % _CONTROLLERS
        policy.load_state_dict(parameters[i])
        rollout = policy.rollout(problem, _SAMPLES, rng, 1.0)
        measured = session.evaluate(rollout.placements)
        values += np.where(measured.fits, measured.value_s, np.inf).tolist()
        factor = 1 + spread * (i / (_CONTROLLERS - 1) - 1 / 2)
        weights = rewards[i].weights(replace(measured, value_s=factor * measured.value_s))
        gradients = policy.gradients(problem, rollout, np.where(rollout.group >= 0, weights[:, None], 0.0))
        steps = optimiser.steps(gradients, options.learning_rate)
        parameters[i] = server = {name: value + steps[name] for name, value in server.items()}
    late = np.array(values)[-max(round(_LATE * len(values)), 1) :]
    late[np.isinf(late)] = one.failing_signal_s
    return Run(
        workload, _CLUSTER, f"{baseline}, {spread:.0%}", seed, min(values), evaluations=len(values),
        seconds=time.perf_counter() - began, late_s=float(late.mean()),
    )  # fmt: skip
