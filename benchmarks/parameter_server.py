"""What an update costs the parameter server of trainer `asynchronous`, and how many controllers one server can serve.

    python benchmarks/parameter_server.py [--workloads rnnlm,inception_v3] [--updates 20] [--gigabits 10]

The server runs in this process, without Ray. An update is what a controller does with it: it reserves evaluations, records
them, sends gradients, gets the parameters after a step of Adam, and has its state kept. Every call is also written to the log.
*problem* are the bytes that a machine gets once, *evaluation* those of a placement and its measurement, *sent* and *received*
those of the calls of one update, to the server and back, all as pickle writes them; Ray's own headers come on top. *step* is the
least of `--updates` updates, because other programs may use the processor, too. *processor* and *network* are limits in updates
per second: what this processor does, and what an interface of `--gigabits` in each direction carries. A controller that makes an
update every T seconds asks for 1/T of the lower one; *controllers* says for how many there is room at T of 1, 10 and 60 s.
"""

from __future__ import annotations

import argparse
import asyncio
import pickle
import tempfile
import time
from typing import Any

import numpy as np
from placekit_ray.server import ParameterServer
from placekit_ray.wire import measurements_as, packed, placements_as

from placekit_core import Measurements, Placements, Problem, installed
from placekit_core.cli.compose import assembled

PERIODS_S = (1, 10, 60)
SAMPLES = 10


def main() -> None:
    """Print a row per workload."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workloads", default="rnnlm,inception_v3")
    parser.add_argument("--policy", default="seq2seq")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--gigabits", type=float, default=10.0)
    o = parser.parse_args()
    periods = ", ".join(f"{t} s" for t in PERIODS_S)
    print("workload       problem  evaluation  parameters     sent  received    step  processor  network  controllers")
    print(f"{'':<99}  at {periods}")
    for workload in o.workloads.split(","):
        problem, arrays = built(workload, o.policy)
        each = size(evaluations(problem)) // SAMPLES
        seconds, sent, received = asyncio.run(measured(problem, arrays, o.updates))
        by_processor, by_network = 1 / seconds, o.gigabits * 1e9 / 8 / max(sent, received)
        most = min(by_processor, by_network)
        counts = ", ".join(f"{int(most * t):,}" for t in PERIODS_S)
        print(
            f"{workload:<12}  {size([packed(problem)]) / 1e3:>5.0f} kB  {each / 1e3:>7.1f} kB"
            f"  {sum(a.size for a in arrays.values()):>10,}  {sent / 1e6:.2f} MB   {received / 1e6:.2f} MB"
            f"  {seconds * 1e3:>3.1f} ms  {by_processor:>7.0f}/s  {by_network:>5.0f}/s  {counts}"
        )


def built(workload: str, policy: str) -> tuple[Problem, dict[str, np.ndarray]]:
    """A workload on four devices with the papers' groups, and the parameters of a policy for it."""
    parts = assembled([f"workload={workload}", "cluster=k80x4", "grouper=manual"], installed())
    problem = parts.problem(parts.programs[0])
    made = installed().build("policy", policy, {})
    made.build([problem], np.random.default_rng(0))
    return problem, {name: np.array(values) for name, values in made.state_dict().items()}


async def measured(problem: Problem, arrays: dict[str, np.ndarray], updates: int) -> tuple[float, int, int]:
    """Seconds that the server needs for an update, the least of `updates`; bytes sent to it and received from it."""
    rng = np.random.default_rng(0)
    gradients = {name: rng.standard_normal(values.shape).astype(values.dtype) for name, values in arrays.items()}
    recorded = evaluations(problem)
    kept = {"trainer": {"updates": 0}, "rng": rng.bit_generator.state}
    about = {
        "parameters": arrays, "optimiser": "adam", "controllers": 1, "synchronous": False, "limit": None, "progress": 0.0,
    }  # fmt: skip
    seconds: list[float] = []
    calls: Any = ()
    answers: Any = ()
    with tempfile.TemporaryDirectory() as folder:
        server: Any = ParameterServer(folder)
        await server.begin(about)
        life = (await server.fetch(0))["life"]
        for step in range(updates):
            push = (0, life, step, "policy", gradients, 1e-3, step)
            calls = (0, life, SAMPLES), (0, life, step, 0, *recorded), push, (0, life, kept)
            began = time.perf_counter()
            answers = [
                await server.reserve(*calls[0]), await server.record(*calls[1]), await server.push(*calls[2]),
                await server.keep(*calls[3]),
            ]  # fmt: skip
            seconds.append(time.perf_counter() - began)
            await server.collect(step + 1)
    return min(seconds), size(calls), size(answers)


def evaluations(problem: Problem) -> tuple[dict[str, Any], ...]:
    """What is told of `SAMPLES` evaluations: placements, measurements, faults."""
    batch = Placements.of(np.tile(problem.allowed.argmax(axis=1), (SAMPLES, 1)))
    none = np.full(SAMPLES, np.nan)
    found = Measurements(
        none, np.full((SAMPLES, problem.cluster.size), np.nan), np.isfinite(none), ("",) * SAMPLES, none
    )
    return placements_as(batch), measurements_as(found), {"lost": 0, "repeated": 0, "hung": 0}


def size(values: Any) -> int:
    """Bytes of values, as pickle writes them."""
    return sum(len(pickle.dumps(value, protocol=5)) for value in values)


if __name__ == "__main__":
    main()
