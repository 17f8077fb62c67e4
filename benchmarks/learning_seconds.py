"""Where learners spend their time: policy, simulator, and the evaluator between them, seconds per 1,000 evaluations.

    python benchmarks/learning_seconds.py [--workloads A,B] [--evaluations N] [--repeats N] [--write]

At the papers' manual groups on four simulated K80 GPUs and the CPU. The median of the repeats; every method runs in this
process, after one short run to load and compile what it needs. Policies use one thread of torch.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from placekit_sim.simulator import SimulatorSession
from simulator import processor

from placekit_core import Summary, installed
from placekit_core.cli.compose import assembled
from placekit_core.cli.sweep import programs
from placekit_core.run import pipeline
from placekit_core.run.assembly import Assembly, PythonObjects
from placekit_core.run.evaluator import BudgetedEvaluator

RESULT = Path(__file__).parent / "results" / "learning_seconds.md"
METHODS = [
    "random_search", "post_policy_gradient", "post_ppo_only", "post_cross_entropy", "post", "seq2seq", "hierarchical",
]  # fmt: skip


class Clock:
    """Seconds spent in a method that it replaces."""

    def __init__(self, owner: type, name: str) -> None:
        self.spent_s = 0.0
        original: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.spent_s += time.perf_counter() - start

        setattr(owner, name, timed)


def run(workload: str, policy: str, evaluations: int) -> Summary:
    """As `placekit run` does it."""
    registry = installed()
    arguments = [f"workload={workload}", "grouper=manual", "cluster=k80x4", f"policy={policy}", "log=[]"]
    config = assembled([*arguments, f"budget.evaluations={evaluations}"], registry).config
    with tempfile.TemporaryDirectory() as folder:
        return pipeline.run(Assembly(config, registry, PythonObjects(programs(config, registry))), folder).summary


def parts(clocks: tuple[Clock, Clock], *what: Any) -> list[float]:
    """Seconds per 1,000 evaluations of policy, simulator and evaluator, in one `run`."""
    for clock in clocks:
        clock.spent_s = 0.0
    found = run(*what)
    evaluator, simulator = (clock.spent_s for clock in clocks)
    made = found.evaluations / 1000
    return [(found.seconds - evaluator) / made, simulator / made, (evaluator - simulator) / made]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workloads", default="inception_v3,rnnlm,nmt")
    parser.add_argument("--evaluations", type=int, default=2400)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"into {RESULT.name}")
    arguments = parser.parse_args()
    clocks = Clock(BudgetedEvaluator, "__call__"), Clock(SimulatorSession, "evaluate")
    lines = [
        "# Where learners spend their time\n\n`python benchmarks/learning_seconds.py"
        f" --evaluations {arguments.evaluations} --repeats {arguments.repeats} --write`, seconds per 1,000 evaluations, median"
        " over the repeats; k80x4, manual groups, one thread of torch.\n",
        "| workload | groups | method | policy | simulator | evaluator | all |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for workload in arguments.workloads.split(","):
        for name in METHODS:
            groups = run(workload, name, 40).programs[0].groups  # to warm up
            runs = [parts(clocks, workload, name, arguments.evaluations) for _ in range(arguments.repeats)]
            median = [statistics.median(column) for column in zip(*runs, strict=True)]
            cells = " | ".join(f"{s:.2f}" for s in (*median, sum(median)))
            lines.append(f"| {workload} | {groups} | {name} | {cells} |")
            print(lines[-1], flush=True)
    text = "\n".join([*lines, "", f"machine: {processor()}, load {os.getloadavg()[0]:.1f} at the end", ""])
    print(text)
    if arguments.write:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
