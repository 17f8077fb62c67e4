"""How far the best placements known are above the proven bounds on the papers' networks.

    python benchmarks/bounds.py [--workloads A,B] [--evaluations 10000] [--write]

For each network this prints:

- the value of the default policy after `--evaluations`, without its search over the devices of roles and, of networks that
  call their cells step by step, with it; the best value that benchmarks/results/quality_sharded.json has for the same graph, of
  up to a million evaluations, counts as well;
- every bound by its argument, and the processor seconds that they take;
- the gap without the search over roles, and with the best placement.

With `--write` the tables go to benchmarks/results/bounds.md.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import dataclass, field

from placekit_scheduling import all_bounds, binding_argument
from placekit_search.roles import roles
from quality_runs import RESULTS, Instance, machine, number, percent, table

import placekit_core
from placekit_core import Cluster, Problem, Program

NETWORKS = (
    "rnnlm", "rnnlm_4layer", "rnnlm_large", "nmt", "nmt_4layer", "nmt_large", "inception_v3", "inception_v3_b128", "resnet50",
    "nasnet", "llama_block_sharded", "llama_layer_sharded",
)  # fmt: skip
MORE = ("llama_block_sharded_8", "llama_layer_sharded_8")
WITHOUT, WITH, KEPT = "without roles", "portfolio", "quality.py"

TRIED = """
## What proves no more

Tried on some of these networks, by hand, and left out:

- Energetic reasoning over intervals, with the parts of operations that must lie in them: never above `window`, on seven
  networks.
- The work between two operations over all devices, less the time in which other devices wait for the first transfer and
  the last one is under way: never on a longest path.
- All placements between the ends of two modules of Inception-V3, by branch and bound with the loads of all devices and
  links: 3.37 and 3.73 ms; `detour` says 3.37 and 3.67. What is missing there is between modules, or the placement's.
- Refuting makespans (destructive improvement, Klein and Scholl 1999): 0.7 points of the gap of `nasnet`, less elsewhere; of
  8 smaller programs it raised only the bound of `mlp` on the default machine by 2% or more (by 20%).
- Transfers that must go over one channel, because no kind of device may run both ends: none on these networks.
- CP-SAT (policy `exact`, 150 s) on `llama_block_sharded`: no bound above the one that it began with.
"""


@dataclass
class Row:
    """What is known of one network; values and bounds in seconds.

    Attributes:
        values: by what found them.
        bounds: by argument.
        seconds: processor time that the bounds took.
    """

    name: str
    operations: int
    groups: int
    values: dict[str, float] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def best(self) -> tuple[str, float]:
        """How the best value was found, and that value."""
        return min(self.values.items(), key=lambda item: item[1])

    @property
    def binding(self) -> str:
        """The argument that proves the highest bound."""
        return binding_argument(self.bounds)

    @property
    def gaps(self) -> tuple[float, float]:
        """With the default policy's value without roles, and with the best value."""
        bound = max(self.bounds.values())
        return self.values[WITHOUT] / bound - 1, self.best[1] / bound - 1


def measure(name: str, evaluations: int) -> Row:
    """Search and prove, for one network on four P100 or, with the suffix `_8`, on eight V100."""
    program, cluster = Instance(
        name, (f"workload={name}", f"cluster={'v100x8' if name.endswith('_8') else 'p100x4'}")
    ).load()
    problem, value_s = _search(program, cluster, evaluations, 0.0)
    row = Row(name, problem.graph.n, problem.g, {WITHOUT: value_s})
    if roles(problem) is not None:
        row.values[WITH] = _search(program, cluster, evaluations)[1]
    kept = _kept(name, problem)
    if kept is not None:
        row.values[KEPT] = kept
    all_bounds(problem)  # compiles
    begin = time.process_time()
    row.bounds = all_bounds(problem)
    row.seconds = time.process_time() - begin
    return row


def _search(
    program: Program, cluster: Cluster, evaluations: int, role_share: float | None = None
) -> tuple[Problem, float]:
    """The problem, and the default policy's value, seconds."""
    policy = {"name": "portfolio"} if role_share is None else {"name": "portfolio", "role_share": role_share}
    result = placekit_core.place(
        program, cluster=cluster, policy=policy, budget=evaluations, baselines=[],
        backend={"name": "simulator", "threads": 1},
    )  # fmt: skip
    assert result.summary.value_s is not None
    return result.problem, result.summary.value_s


def _kept(name: str, problem: Problem) -> float | None:
    """The best value that quality.py keeps for a graph of this name with as many operations."""
    data = json.loads((RESULTS / "quality_sharded.json").read_text())
    found = [r["best"]["value_s"] for r in data["instances"] if (r["name"], r["operations"]) == (name, problem.graph.n)]
    return float(found[0]) if found else None


def report(rows: list[Row], evaluations: int) -> list[str]:
    """The tables."""
    return [
        "Training steps and tensor programs on 4 x P100 over PCIe; `_8`: on 8 x V100. The default grouper.",
        f"*Without roles*: the default policy with `policy.role_share=0` after {evaluations:,} evaluations. *Best*: the best of",
        "this value, of the default policy's where it has roles, and of what `benchmarks/quality.py` keeps.",
        "",
        *_gaps(rows),
        "",
        "## By argument",
        "",
        "Milliseconds.",
        "",
        *_arguments(rows),
        *TRIED.rstrip().split("\n"),
    ]


def _gaps(rows: list[Row]) -> list[str]:
    cells = []
    for r in rows:
        (without, with_best), (found, best) = r.gaps, r.best
        cells.append([
            r.name, f"{r.operations:,}", number(1e3 * r.values[WITHOUT], 2), percent(without), number(1e3 * best, 2),
            f"`{found}`", number(1e3 * max(r.bounds.values()), 2), percent(with_best), f"`{r.binding}`",
        ])  # fmt: skip
    head = [
        "network",
        "operations",
        "without roles, ms",
        "gap",
        "best, ms",
        "by",
        "bound, ms",
        "gap of the best",
        "binds",
    ]
    return table(head, cells)


def _arguments(rows: list[Row]) -> list[str]:
    names = ("critical_path", "group", "work", "communication", "detour", "tree", "window")
    cells = [[r.name, *(number(1e3 * r.bounds[k], 2) for k in names), number(r.seconds, 2)] for r in rows]
    return table(["network", *names, "CPU s"], cells)


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join((*NETWORKS, *MORE)), help="with commas between")
    parser.add_argument("--evaluations", type=int, default=10_000, help="budget of the default policy")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/bounds.md")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for name in arguments.workloads.split(","):
        rows.append(measure(name, arguments.evaluations))
        row = rows[-1]
        values = ", ".join(f"{found} {1e3 * value:.2f} ms" for found, value in row.values.items())
        gaps = " -> ".join(percent(g) for g in row.gaps)
        print(f"{name}: {values}; gap {gaps}, binds {row.binding}, bounds in {row.seconds:.2f} s", flush=True)
    lines = report(rows, arguments.evaluations)
    text = "\n".join(
        ["# Bounds", "", "`python benchmarks/bounds.py --write`", "", *lines, "", f"machine: {machine()}", ""]
    )
    print("\n" + text)
    if arguments.write:
        (RESULTS / "bounds.md").write_text(text)


if __name__ == "__main__":
    main()
