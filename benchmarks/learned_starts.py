"""The default search with and without a trained policy's placement as a start, at equal evaluations, on unseen graphs.

    python benchmarks/learned_starts.py [--family cifar10 ...] [--seeds 6] [--csv OUT.csv]
    python benchmarks/learned_starts.py --table IN.csv

The policies are those that placekit-placeto ships, which were trained on the other graphs of the family, and the graphs are
the 16 to test on, on simulated `k80x4` in the family's groups. *learned start* is the default search with
`policy.starts.placeto` besides, *policy alone* the one placement that the policy makes. The table has the ratio of each to the
search without, a geometric mean over the graphs for each seed, with its 95% interval over the seeds.
"""

from __future__ import annotations

import argparse
import time
from math import exp, log
from pathlib import Path

import numpy as np
from claims_placeto import ALONE, FAMILIES, SEARCH, START, over_search
from placekit_placeto.placeto import Placeto
from placekit_search.options import PortfolioOptions
from placekit_search.portfolio import Portfolio
from placekit_sim.simulator import Simulator
from placeto_rows import Row, read, write
from seeds import mean_and_half

from placekit_core import Ledger, Problem, Session, Task, installed, load_policy
from placekit_core.cli.compose import assembled
from placekit_core.run.evaluator import BudgetedEvaluator

CLUSTER = "k80x4"
BUDGETS = (10, 30, 100, 300, 1000)


def measure(family: str, seeds: int) -> list[Row]:
    """A row per graph, budget, method and seed."""
    assembly = assembled([f"workload=placeto_{family}", f"cluster={CLUSTER}"], installed())
    learned = {"checkpoint": f"pkg://placekit_placeto/pretrained/{family}", "start": "one_device"}
    starts = dict(PortfolioOptions.model_fields["starts"].default)
    policies = {SEARCH: Portfolio(), START: Portfolio(starts={**starts, "placeto": learned})}
    rows = []
    for program in (p for p in assembly.programs if p.split == "test"):
        problem, began = assembly.problem(program), time.perf_counter()
        session, name = Simulator().open(problem), program.graph.name
        policy = Placeto(**learned)
        policy.build([problem], np.random.default_rng(0))
        load_policy(policy, learned["checkpoint"])
        one = policy.place(_task(problem, session, 1), np.random.default_rng(0))
        rows.append(_row(family, name, 1, ALONE, 0, float(session.evaluate(one.batch()).value_s[0])))
        for seed in range(seeds):
            for budget in BUDGETS:
                for method, search in policies.items():
                    task = _task(problem, session, budget)
                    search.place(task, np.random.default_rng(seed))
                    assert task.evaluate.best is not None
                    rows.append(_row(family, name, budget, method, seed, task.evaluate.best.value_s))
        print(f"{name}: {len(rows)} rows, {time.perf_counter() - began:.1f} s", flush=True)
    return rows


def _task(problem: Problem, session: Session, budget: int) -> Task:
    return Task(problem, BudgetedEvaluator(problem, session, Ledger(budget, None)))


def _row(family: str, graph: str, evaluations: int, method: str, seed: int, value_s: float) -> Row:
    return {
        "family": family, "graph": graph, "evaluations": str(evaluations), "method": method, "seed": str(seed),
        "value_s": f"{value_s:.9g}",
    }  # fmt: skip


def table(rows: list[Row]) -> None:
    """Print the ratios."""
    ratios = over_search(rows)
    families = [f for f in FAMILIES if (START, f, BUDGETS[0]) in ratios]
    print(f"{'':22}{'evaluations':>13}" + "".join(f"{f:>20}" for f in families))
    for method in (START, ALONE):
        for budget in BUDGETS:
            cells = []
            for family in families:
                mean, half = mean_and_half([log(x) for x in ratios[method, family, budget].values()])
                cells.append(f"{exp(mean):.3f} ± {exp(mean) * half:.3f}")
            print(f"{method + ' / search':22}{budget:>13}" + "".join(f"{c:>20}" for c in cells))


def main() -> None:
    """Measure, or print a table that was written before."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--family", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    if given.table:
        rows = read(given.table)
    else:
        rows = [row for family in given.family for row in measure(family, given.seeds)]
    if given.csv:
        write(rows, given.csv)
    table(rows)


if __name__ == "__main__":
    main()
