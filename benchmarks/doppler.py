"""Speed of policy `doppler` in stage II: episodes per second of drawing, simulating, one gradient and one step.

    python benchmarks/doppler.py [--workloads A,B] [--updates 5] [--naive-episodes 3] [--json OUT.json] [policy.OPTION=VALUE ...]

Three ways of the same episodes, messages passed once per episode, in one process, one after the other:

- naive: `tests/doppler_reference.py` of placekit-doppler, decision by decision and episode by episode, in torch with autograd;
  what devices are like is computed in Python. Its updates have few episodes: nothing in it depends on how many there are.
- lock step: `placekit_doppler/lock_step.py`, one decision of every episode at a time in torch with autograd; the list
  schedulers, what devices are like, and the choices are compiled.
- compiled: `placekit_doppler/episodes.py`, all of it but the messages, with gradients by hand.

`--per-step` adds `message_passing=per_step`. Seconds are of the clock, the median over the updates, after one to warm up.
With `policy.size=128 policy.hidden=64 policy.rounds=6` the networks are those of the paper's code.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_doppler.arrays import Episode
from placekit_doppler.doppler import Doppler
from placekit_learn.optimisers import Adam

from placekit_core import Problem, Rollouts, Session, installed, usable_cores
from placekit_core.cli.compose import assembled

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins/policies/placekit-doppler/tests"))

from doppler_reference import Replayed, episode

EPISODES = 32  # of an update
ENTROPY_WEIGHT = 0.01
LEARNING_RATE = 1e-4


class LockStep(Doppler):
    """Messages once per episode, and yet in lock step."""

    in_lock_step = True


class Naive(Doppler):
    """The reference, as a policy; what is drawn keeps its graph of autograd until the gradient."""

    replayed: list[Replayed]

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        generator, ready = self.generator(rng), self.prepared(problem)
        e = ready.episodes(n)
        with self.fixed_threads():
            self.replayed = [episode(self.dual, problem, generator=generator) for _ in range(n)]
        group_of = problem.grouping.group_of
        e.group_device[:] = problem.allowed.argmax(
            axis=1
        )  # of sources that are groups by themselves: not timed closely
        for i, r in enumerate(self.replayed):
            e.op[i], e.device[i] = r.op, r.device
            e.log_prob[i], e.entropy[i] = r.log_prob.detach(), r.entropy.detach()
            e.group_device[i, group_of[e.op[i]]] = e.device[i]
        return self._rollouts(ready, e)

    def gradients(
        self,
        problem: Problem,
        rollouts: Rollouts,
        weight: NDArray[np.float64],
        entropy_weight: float = 0.0,
        kl_weight: float = 0.0,
    ) -> dict[str, NDArray[Any]]:
        steps = Episode(**rollouts.extra).op.shape[1]
        with self.fixed_threads():
            objective = sum(
                (torch.from_numpy(row[:steps]) * r.log_prob).sum() + entropy_weight * r.entropy.sum()
                for row, r in zip(weight, self.replayed, strict=True)
            )
            names, parameters = zip(*self.module.named_parameters(), strict=True)
            found = torch.autograd.grad(
                [torch.as_tensor(objective)], parameters, allow_unused=True, materialize_grads=True
            )
        return {name: x.numpy() for name, x in zip(names, found, strict=True)}


def opened(workload: str) -> tuple[Problem, Session]:
    """A workload as `placekit run workload=... cluster=p100x4` has it, with the simulator."""
    parts = assembled([f"workload={workload}", "cluster=p100x4"], installed())
    program = parts.programs[0]
    problem = parts.problem(program)
    return problem, parts.backend.open(problem, program.executable)


def update(policy: Doppler, problem: Problem, session: Session, optimiser: Adam, rng: Generator, n: int) -> None:
    """One of stage II."""
    drawn = policy.rollout(problem, n, rng, 1.0)
    value = session.evaluate(drawn.placements).value_s
    advantage = (value.mean() - value) / (value.std() + 1e-12)
    weight = np.repeat(advantage[:, None] / n, drawn.log_prob.shape[1], axis=1)
    policy.apply(optimiser.steps(policy.gradients(problem, drawn, weight, ENTROPY_WEIGHT / n), LEARNING_RATE))


def episode_s(policy: Doppler, problem: Problem, session: Session, n: int, updates: int) -> float:
    """Median seconds of an episode in updates of `n`."""
    policy.build([problem], np.random.default_rng(0))
    rng, optimiser, seconds = np.random.default_rng(1), Adam(), list[float]()
    for _ in range(updates + 1):
        begun = time.perf_counter()
        update(policy, problem, session, optimiser, rng, n)
        seconds.append((time.perf_counter() - begun) / n)
    return statistics.median(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workloads", default="chainmm,llama_layer_sharded")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--naive-episodes", type=int, default=3)
    parser.add_argument("--per-step", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("options", nargs="*", metavar="policy.OPTION=VALUE")
    given = parser.parse_intermixed_args()
    pairs = (option.removeprefix("policy.").split("=", 1) for option in given.options)
    options = {"noise": 0, **{name: yaml.safe_load(value) for name, value in pairs}}  # the reference draws no weights
    o = Doppler(**options).options
    sizes = {"size": o.size, "hidden": o.hidden, "rounds": o.rounds, "threads": o.episode_threads or usable_cores()}
    print(", ".join(f"{name} {value}" for name, value in sizes.items())
          + f", {EPISODES} episodes per update, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")  # fmt: skip
    print(f"{'workload':24}{'kernels':>8}  {'way':12}{'ms/episode':>12}{'episodes/s':>12}{'over naive':>12}")
    rows = []
    for workload in given.workloads.split(","):
        problem, session = opened(workload)
        kernels = int(problem.graph.kernel.sum())
        ways = {"naive": Naive(**options), "lock step": LockStep(**options), "compiled": Doppler(**options)}
        if given.per_step:
            ways["per step"] = Doppler(**{**options, "message_passing": "per_step"})
        base = 0.0
        for way, policy in ways.items():
            n = given.naive_episodes if way == "naive" else EPISODES
            seconds = episode_s(policy, problem, session, n, 1 if way == "naive" else given.updates)
            base = base or seconds
            rows.append(
                {"workload": workload, "kernels": kernels, "way": way, "episodes": n, "episodes_per_s": 1 / seconds,
                 "over_naive": base / seconds, **sizes}
            )  # fmt: skip
            print(f"{workload:24}{kernels:8}  {way:12}{seconds * 1e3:12.2f}{1 / seconds:12.1f}{base / seconds:12.1f}",
                  flush=True)  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
