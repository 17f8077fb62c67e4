"""The default policy with and without its search over the devices of roles, on networks that call their cells step by step.

    python benchmarks/role_search.py [--workloads A,B] [--budgets "2000,10 s"] [--seeds 6] [--write]

For each network and budget (evaluations, or seconds with ` s`): the median over the seeds of the simulated step with
`policy.role_share=0` and with the default, and the mean of the differences seed by seed with the t interval of 95%. Other
workloads of the papers are named: there the two are one search. Runs with a budget of evaluations share the cores; nothing
else runs beside one with a budget of seconds. `--write` keeps the table in benchmarks/results/role_search.md.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from placekit_search.roles import roles
from quality_runs import RESULTS, Instance, machine, number, percent, table
from scipy import stats

import placekit_core
from placekit_core import Cluster, Problem, Program

RECURRENT = ("rnnlm", "rnnlm_4layer", "nmt", "nmt_large")
OTHERS = (
    "chainmm", "ffnn_sharded", "llama_block_sharded", "llama_layer_sharded", "inception_v3", "resnet50", "nasnet",
)  # fmt: skip


@functools.lru_cache(maxsize=2)
def loaded(name: str) -> tuple[Program, Cluster]:
    """A workload on four P100."""
    return Instance(name, (f"workload={name}", "cluster=p100x4")).load()


def value_s(name: str, budget: str, seed: int, role_share: float | None) -> float:
    """The value of one run, seconds."""
    warnings.simplefilter("ignore")
    program, cluster = loaded(name)
    policy = {"name": "portfolio"} if role_share is None else {"name": "portfolio", "role_share": role_share}
    limit = {"seconds": float(budget[:-2])} if budget.endswith(" s") else {"evaluations": int(budget)}
    result = placekit_core.place(program, cluster=cluster, policy=policy, budget=limit, seed=seed, baselines=[])
    assert result.summary.value_s is not None
    return result.summary.value_s


def rows(names: list[str], budgets: list[str], seeds: int) -> Iterator[list[str]]:
    """A row of the table for each network and budget."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name in names:
            for budget in budgets:
                runs = [(name, budget, seed, share) for seed in range(seeds) for share in (0.0, None)]
                if budget.endswith(" s"):
                    value_s(name, "1 s", 0, None)  # compiles
                    values = [value_s(*run) for run in runs]
                else:
                    values = list(pool.map(value_s, *zip(*runs, strict=True), chunksize=len(runs) // 2))
                without, with_ = values[::2], values[1::2]
                change = [b / a - 1 for a, b in zip(without, with_, strict=True)]
                half = stats.t.ppf(0.975, seeds - 1) * statistics.stdev(change) / seeds**0.5
                mean = statistics.fmean(change)
                medians = [number(1e3 * statistics.median(v), 2) for v in (without, with_)]
                sure = "shorter" if mean + half < 0 else "longer" if mean - half > 0 else "not distinguishable"
                about = budget if budget.endswith(" s") else f"{int(budget):,} evaluations"
                yield [name, about, f"{seeds}", *medians, f"{percent(mean)} ± {percent(half)}", sure]
                print(" | ".join([name, about, *medians, percent(mean), percent(half)]), flush=True)


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(RECURRENT), help="with commas between")
    parser.add_argument("--budgets", default="2000,10 s", help="with commas between")
    parser.add_argument("--seeds", type=int, default=6, help="number of seeds")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/role_search.md")
    arguments = parser.parse_args()
    head = ["network", "budget", "seeds", "without, ms", "with roles, ms", "mean change, 95%", "with roles"]
    names = arguments.workloads.split(",")
    lines = table(head, list(rows(names, arguments.budgets.split(","), arguments.seeds)), 2)
    same = [n for n in OTHERS if roles(Problem.of(loaded(n)[0].graph, loaded(n)[1])) is None]
    given = "".join(
        f" --{key} {value!r}" for key, value in vars(arguments).items()
        if key != "write" and value != parser.get_default(key)
    )  # fmt: skip
    text = "\n".join(
        [
            "# Search over the devices of roles", "", f"`python benchmarks/role_search.py{given} --write`", "",
            "One training step on 4 x P100 over PCIe, simulated; medians over the seeds.", "", *lines, "",
            f"Without roles, so the same search either way: {', '.join(same)}.", "", f"machine: {machine()}", "",
        ]
    )  # fmt: skip
    print("\n" + text)
    if arguments.write:
        (RESULTS / "role_search.md").write_text(text)


if __name__ == "__main__":
    main()
