"""How far the best placements known are above the proven bounds on the papers' networks, and which bound is the highest.

    python benchmarks/bounds.py [--workloads A,B] [--evaluations 10000] [--write]

For each network: the value of the default policy after `--evaluations`, or a better one that
benchmarks/results/quality_sharded.json has for the same graph; every bound by its argument, and the processor seconds of all of
them; and the gap. With `--write` the tables go to benchmarks/results/bounds.md.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import dataclass

from placekit_scheduling import all_bounds, binding_argument
from quality_runs import RESULTS, Instance, machine, number, percent, table

import placekit_core

NETWORKS = (
    "rnnlm", "rnnlm_4layer", "rnnlm_large", "nmt", "nmt_4layer", "nmt_large", "inception_v3", "inception_v3_b128", "resnet50",
    "nasnet", "llama_block_sharded", "llama_layer_sharded", "llama_block_sharded_8", "llama_layer_sharded_8",
)  # fmt: skip


@dataclass
class Row:
    """The results for one network: the best value, what found it, the bounds by argument, and the seconds of the bounds."""

    name: str
    operations: int
    value_s: float
    by: str
    bounds: dict[str, float]
    bound_seconds: float

    @property
    def bound_s(self) -> float:
        """The highest bound."""
        return max(self.bounds.values())


def measure(name: str, evaluations: int) -> Row:
    """Search and prove, for one network on four P100 or, with the suffix `_8`, on eight V100."""
    cluster = "v100x8" if name.endswith("_8") else "p100x4"
    program, machine_model = Instance(name, (f"workload={name}", f"cluster={cluster}")).load()
    result = placekit_core.place(
        program, cluster=machine_model, policy="portfolio", budget=evaluations, baselines=[],
        backend={"name": "simulator", "threads": 1},
    )  # fmt: skip
    assert result.summary.value_s is not None
    found = [(result.summary.value_s, "portfolio"), *kept(name, result.problem.graph.n)]
    all_bounds(result.problem)  # compiles
    begin = time.process_time()
    bounds = all_bounds(result.problem)
    return Row(name, result.problem.graph.n, *min(found), bounds, time.process_time() - begin)


def kept(name: str, operations: int) -> list[tuple[float, str]]:
    """The best value that quality.py keeps for a graph of this name and number of operations."""
    data = json.loads((RESULTS / "quality_sharded.json").read_text())
    same = [r for r in data["instances"] if (r["name"], r["operations"]) == (name, operations)]
    return [(r["best"]["value_s"], "quality.py") for r in same]


def report(rows: list[Row], evaluations: int) -> list[str]:
    """The tables."""
    gaps = [
        [
            r.name, f"{r.operations:,}", number(1e3 * r.value_s, 2), f"`{r.by}`", number(1e3 * r.bound_s, 2),
            percent(r.value_s / r.bound_s - 1), f"`{binding_argument(r.bounds)}`",
        ]
        for r in rows
    ]  # fmt: skip
    arguments = list(dict.fromkeys(name for r in rows for name in r.bounds))
    by_argument = [
        [
            r.name,
            *(number(1e3 * r.bounds[a], 2) if a in r.bounds else "-" for a in arguments),
            number(r.bound_seconds, 2),
        ]
        for r in rows
    ]
    return [
        "Training steps and tensor programs on 4 x P100 over PCIe; `_8`: on 8 x V100. The default grouper.",
        f"*Best*: the default policy after {evaluations:,} evaluations, or the best that `benchmarks/quality.py` keeps.",
        "",
        *table(["network", "operations", "best, ms", "by", "bound, ms", "gap", "binds"], gaps),
        "",
        "## By argument",
        "",
        "Milliseconds.",
        "",
        *table(["network", *arguments, "CPU s"], by_argument),
    ]


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(NETWORKS), help="with commas between")
    parser.add_argument("--evaluations", type=int, default=10_000, help="budget of the default policy")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/bounds.md")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for name in arguments.workloads.split(","):
        row = measure(name, arguments.evaluations)
        rows.append(row)
        gap = percent(row.value_s / row.bound_s - 1)
        print(f"{name}: {1e3 * row.value_s:.2f} ms, gap {gap}, bounds in {row.bound_seconds:.2f} s", flush=True)
    lines = report(rows, arguments.evaluations)
    text = "\n".join(
        ["# Bounds", "", "`python benchmarks/bounds.py --write`", "", *lines, "", f"machine: {machine()}", ""]
    )
    print("\n" + text)
    if arguments.write:
        (RESULTS / "bounds.md").write_text(text)


if __name__ == "__main__":
    main()
