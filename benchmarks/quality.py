"""Measures how good the placements of all policies are, in four parts; the runs are recorded, and shown as tables.

    python benchmarks/quality.py sharded|published|planted|networks [--instances A,B] [--policies A,B] [--budgets A,B]
        [--seeds 0,1] [--reference] [--again] [--report] [--quick] [--write]

- `sharded`: ChainMM, FFNN, Llama-block and Llama-layer on `p100x4` and `v100x8`, at 2,000, 10,000 and 100,000 evaluations,
  seeds 0 to 4, with every policy that does not learn. Policies without a search run once for each seed.
  `--reference` makes runs of a million evaluations instead.
- `published`: the graphs of Doppler's authors, in the folder `doppler` of $PLACEKIT_SAMPLES, on their simulator.
- `planted`: graphs with a known optimum, three seeds of 60 s each; the default policy, or the searches in `--policies`.
- `networks`: training steps operation by operation, and a graph of 50,000 operations, likewise.

Every run does the same as `placekit run` with the simulator. A run with a budget of seconds has its own process, which has
compiled its loops before; nothing else should run on the machine. With `--write`, each run is recorded in
benchmarks/results/quality_PART.json as soon as it ends, and the report in quality_PART.md. Recorded runs are measured again only
with `--again`, so a part can be measured in pieces (`--instances`, `--policies`), also two pieces at once. `--report` measures
nothing. `--quick` takes small budgets, and ignores recorded runs.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import quality_counted as counted
import quality_timed as timed
from quality_runs import OWN, RESULTS, Instance, Run, Store, run

QUICK_INSTANCES = 2


@dataclass(frozen=True)
class Part:
    """One part: its instances, the budgets of its searches, and its report."""

    title: str
    instances: Callable[[], list[Instance]]
    budgets: tuple[str, ...]
    quick: tuple[str, ...]
    report: Callable[[Store, list[str]], list[str]]


PARTS = {
    "sharded": Part("Sharded programs", counted.sharded, counted.BUDGETS, ("100", "400"), counted.sharded_report),
    "published": Part("Published graphs", counted.published, counted.BUDGETS, ("100", "400"), counted.published_report),
    "planted": Part("Planted graphs", timed.planted, (timed.BUDGET,), ("2 s",), timed.planted_report),
    "networks": Part("Networks", timed.networks, (timed.BUDGET,), ("2 s",), timed.networks_report),
}
TIMED = ("planted", "networks")


def main() -> None:
    """Measure what is missing, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    for name, what in (("instances", "graphs"), ("policies", "policies"), ("budgets", "budgets"), ("seeds", "seeds")):
        parser.add_argument(f"--{name}", default="", help=f"only these {what}, with commas between")
    parser.add_argument("--reference", action="store_true", help="the runs of a million evaluations")
    parser.add_argument("--again", action="store_true", help="measure what is kept once more")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--quick", action="store_true", help="small budgets, and nothing that is kept")
    parser.add_argument("--write", action="store_true", help="keep runs and report in benchmarks/results")
    arguments = parser.parse_args()
    if arguments.quick and arguments.write:
        parser.error("--quick measures too little to be kept")
    if arguments.part == "published" and not arguments.report and "PLACEKIT_SAMPLES" not in os.environ:
        parser.error(
            "set PLACEKIT_SAMPLES to a folder with a folder `doppler`, which has the files of its compute_graph"
        )
    warnings.simplefilter("ignore")
    part, name = PARTS[arguments.part], arguments.part
    instances = part.instances()
    known = [i.name for i in instances]
    wanted = chosen(arguments.instances) or (known[:QUICK_INSTANCES] if arguments.quick else known)
    if not set(wanted) <= set(known):
        parser.error(f"--instances: {', '.join(known)}")
    store = Store(name, arguments.write)
    if arguments.quick:
        store.runs.clear()
        store.instances.clear()
    budgets = chosen(arguments.budgets) or list(part.quick if arguments.quick else part.budgets)
    seeds = [int(s) for s in chosen(arguments.seeds)] or ([0, 1] if arguments.quick else [])
    policies = chosen(arguments.policies)
    for instance in [] if arguments.report else instances:
        if instance.name not in wanted:
            continue
        if name in TIMED:
            runs = timed.plan(instance.name, policies, budgets, seeds)
        else:
            runs = counted.plan(name, arguments.reference, policies, budgets, seeds)
        measure(name, instance, runs, store, arguments.again)
    kept = {r.budget for r in store.runs.values()} - {OWN, counted.REFERENCE_BUDGET}
    lines = part.report(store, [b for b in part.quick + part.budgets if b in kept] or budgets)
    command = f"`python benchmarks/quality.py {name} --write`"
    if any(r.budget == counted.REFERENCE_BUDGET for r in store.runs.values()):
        command += f", and `python benchmarks/quality.py {name} --reference --write`"
    text = "\n".join([f"# {part.title}", "", command, "", *lines, "", f"machine: {'; '.join(store.machines())}", ""])
    print("\n" + text)
    if arguments.write:
        (RESULTS / f"quality_{name}.md").write_text(text)


def chosen(text: str) -> list[str]:
    """Split a list with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def measure(part: str, instance: Instance, runs: list[tuple[str, str, int]], store: Store, again: bool) -> None:
    """Make the runs of an instance that are not recorded; with `again`, all."""
    missing = [r for r in runs if again or (instance.name, *r) not in store.runs]
    if not missing:
        return
    program, cluster = instance.load()
    store.check(instance, program, cluster)
    for policy, budget, seed in missing:
        if part in TIMED and budget != OWN:
            made, found = timed.alone(instance, policy, budget, seed)
        else:
            made, found = run(instance, program, cluster, policy, budget, seed)
        store.add(made, found)
        print(line(made), flush=True)


def line(made: Run) -> str:
    """A run in one line."""
    said = made.why if made.value_s is None else f"{made.value_s * 1e3:.4f} ms"
    return f"{made.instance} {made.policy} {made.budget} seed {made.seed}: {said}, {made.seconds:.1f} s"


if __name__ == "__main__":
    main()
