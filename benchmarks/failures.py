"""What a placement that does not fit should count for a learner: four ways, with REINFORCE and PPO.

    python benchmarks/failures.py [--seeds N] [--evaluations N]

On a machine of three unequal devices; 60% of 40 operations prefer the same device. With room for 16 operations on each device
57% of random placements fit, with room for 14 it is 10%. The policy is a softmax over the devices per operation. Prints means
over the seeds: the best value, the mean value of the trained policy's draws that fit, and the share of draws that fit.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import Any

import numpy as np
from placekit_learn.policy_gradient import Reinforce
from placekit_learn.ppo import PPO
from placekit_testing import fakes

from placekit_core import BudgetExhausted, Cluster, CostTable, Problem, Trainer

WAYS: list[dict[str, Any]] = [{}, {"failing": "signal"}, {"normalise": True}, {"only_fitting_after": 100}]


def problem(room: int) -> Problem:
    """40 operations on three devices with room for this many each."""
    kind = {"flops_per_s": {"float32": 1e12}, "memory_bytes": room * 1000 + 500, "memory_bytes_per_s": 1e15}
    cluster = Cluster.parse({
        "name": "three", "kinds": dict.fromkeys("abc", kind), "devices": [{"kind": k} for k in "abc"],
        "links": [{"a": "*", "b": "hub", "bytes_per_s": 1e9}],
    })  # fmt: skip
    fast = np.random.default_rng(40).choice(3, 40, p=[0.6, 0.2, 0.2])
    op_s = np.where(fast[:, None] == np.arange(3), 1.0, 3.0) / 40
    costs = CostTable(cluster.kind_names, op_s, np.zeros(op_s.shape, bool))
    return Problem.of(fakes.independent_graph(40, persistent_bytes=1000), cluster, None, costs)


def trained(p: Problem, trainer: Trainer, evaluations: int, seed: int) -> tuple[float, float, float]:
    """The best value, the mean value of 200 draws that fit, and the share that fit."""
    policy, task = fakes.FakeLearnable(), fakes.fake_task(p, evaluations)
    policy.build([p], np.random.default_rng([seed, 1]))
    with suppress(BudgetExhausted):
        trainer.fit(policy, [task], np.random.default_rng(seed))
    found = fakes.session_of(task).evaluate(policy.rollout(p, 200, np.random.default_rng(5), 1.0).placements)
    best = task.evaluate.best
    assert best is not None
    return best.value_s, float(found.value_s[found.fits].mean()), float(found.fits.mean())


def main() -> None:
    """Print a row per room, trainer and way."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--evaluations", type=int, default=2400)
    arguments = parser.parse_args()
    print("room  trainer       best     mean  fits  options")
    for room in (16, 14):
        p = problem(room)
        for cls in (Reinforce, PPO):
            for way in WAYS:
                rows = [
                    trained(p, cls(learning_rate=0.1, **way), arguments.evaluations, seed)
                    for seed in range(arguments.seeds)
                ]
                best, mean, fits = np.mean(rows, 0)
                text = ", ".join(f"{k}={v}" for k, v in way.items()) or "defaults"
                print(f"{room:4}  {cls.name:9}  {best:.3f} s  {mean:.3f} s  {fits:.2f}  {text}")


if __name__ == "__main__":
    main()
