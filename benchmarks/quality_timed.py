"""The parts of quality.py with budgets of seconds: planted graphs, and training steps whose operations are placed singly."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import resource
import statistics
import time
import warnings
from typing import Any

from quality_runs import DEFAULT, OWN, SEARCHES, Instance, Run, Store, heuristics, number, percent, run, table

import placekit_core

BUDGET = "60 s"
SEEDS = (0, 1, 2)
TIMES_S = (1, 2, 5, 10, 20, 40)
NETWORKS = {
    "inception_v3": ("workload=inception_v3", "importer.optimizer=adam"),
    "nmt": ("workload=nmt",),
    "resnet200": ("workload=resnet200", "importer.optimizer=adam"),
    "nasnet": ("workload=nasnet", "importer.optimizer=adam"),
}
BETTER = 0.02  # a gain over every heuristic that counts as better
PLANTED = {  # (number of operations (approximate), devices): (layers, strands, width)
    (100, 4): (4, 2, 3), (100, 8): (4, 1, 3), (1_000, 4): (42, 2, 3), (1_000, 8): (12, 2, 5),
    (10_000, 4): (250, 2, 5), (10_000, 8): (125, 2, 5),
}  # fmt: skip
TARGETS = {100: 0.01, 1_000: 0.03, 10_000: 0.05}  # by number of operations: distance to the optimum
LARGE = "planted_50000x8"
LARGE_S, LARGE_MIB = 300, 4096


def _planted(size: int, devices: int, layers: int, strands: int, width: int) -> Instance:
    options = {"layers": layers, "devices": devices, "strands": strands, "width": width}
    arguments = ("importer=planted", *(f"importer.{k}={v}" for k, v in options.items()), "cluster=auto")
    return Instance(f"planted_{size}x{devices}", arguments, layers / 1024)  # a layer takes 1/1024 s


def planted() -> list[Instance]:
    """Planted graphs of several sizes, for 4 and 8 devices."""
    return [_planted(*about, *options) for about, options in PLANTED.items()]


def networks() -> list[Instance]:
    """Training steps on four P100, and a planted graph of 50,000 operations."""
    steps = [Instance(name, (*arguments, "cluster=p100x4")) for name, arguments in NETWORKS.items()]
    return [*steps, _planted(50_000, 8, 625, 2, 5)]


def plan(instance: str, policies: list[str], budgets: list[str], seeds: list[int]) -> list[tuple[str, str, int]]:
    """(policy, budget, seed) of every run of an instance. Empty lists mean all, but of the searches only the default."""
    own = [] if instance == LARGE else [*heuristics(), "expert inception=branches"]
    runs = [(p, OWN, 0) for p in own]
    searches = SEARCHES if policies else (DEFAULT,)
    runs += [(p, b, s) for p in searches for b in (budgets or [BUDGET]) for s in (seeds or SEEDS)]
    return [r for r in runs if not policies or r[0].split()[0] in policies]


def alone(instance: Instance, policy: str, budget: str, seed: int) -> tuple[Run, dict[str, Any]]:
    """Run in a new process, and record its seconds and memory. All loops are compiled before the clock starts."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_in_child, (instance, policy, budget, seed))


def _in_child(instance: Instance, policy: str, budget: str, seed: int) -> tuple[Run, dict[str, Any]]:
    warnings.simplefilter("ignore")
    placekit_core.place("planted", cluster="auto", policy=policy, budget={"seconds": 1})
    start = time.perf_counter()
    program, cluster = instance.load()
    made, found = run(instance, program, cluster, policy, budget, seed)
    found.pop("placement", None)
    took = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10  # kB on Linux
    return dataclasses.replace(made, process_s=round(took, 1), peak_mib=round(peak)), found


def planted_report(store: Store, budgets: list[str]) -> list[str]:
    """The tables of part `planted`, from the recorded runs."""
    instances = [i for i in planted() if i.name in store.instances]
    lines = ["Value over the optimum, which is known by construction: least, median and most over the seeds."]
    for budget in budgets:
        rows, missed = [], []
        for instance in instances:
            assert instance.best_known_s is not None
            size = int(instance.name.removeprefix("planted_").split("x")[0])
            for policy in store.policies(budget):
                runs = store.of(instance.name, policy, budget)
                values = sorted((math.inf if r.value_s is None else r.value_s) / instance.best_known_s for r in runs)
                median = store.median(instance.name, policy, budget)
                if median is None:
                    continue
                over = median / instance.best_known_s
                if policy == DEFAULT and over > 1 + TARGETS[size]:
                    missed.append(f"{instance.name} ({percent(over - 1)} over, target {percent(TARGETS[size])})")
                operations = f"{store.instances[instance.name]['operations']:,}"
                used = f"{min(r.evaluations for r in runs):,}"
                cells = [number(v) for v in (values[0], over, values[-1])]
                rows.append(
                    [instance.name, f"`{policy}`", operations, *cells, percent(TARGETS[size]), f"{len(runs)}", used]
                )
        head = ["graph", "policy", "operations", "least", "median", "most", "target", "seeds", "evaluations, at least"]
        lines += ["", f"## After {budget}", "", *table(head, rows, 2)]
        lines += ["", f"`{DEFAULT}` misses its target: {'; '.join(missed) or 'nowhere'}."]
        lines += ["", *_curves(store, instances, budget, {i.name: i.best_known_s or 0.0 for i in instances})]
    lines += ["", "## Policies with one value", "", "Value over the optimum.", ""]
    scale = {i.name: i.best_known_s or 0.0 for i in instances}
    lines += _heuristics(store, instances, scale)
    refusals = store.refusals([i.name for i in instances])
    return lines + (["", "Refused, or nothing found that fits:", "", *refusals] if refusals else [])


def networks_report(store: Store, budgets: list[str]) -> list[str]:
    """The tables of part `networks`, from the recorded runs."""
    instances = [i for i in networks() if i.name in store.instances]
    steps = [i for i in instances if i.name != LARGE]
    scale = {i.name: i.best_known_s or float(store.instances[i.name]["bound_s"]) for i in instances}
    lines = ["Training steps on 4 x P100 over PCIe, every operation placed on its own."]
    for budget in budgets:
        rows, better, worse = [], [], []
        for instance in steps:
            median = store.median(instance.name, DEFAULT, budget)
            found = [(store.median(instance.name, p, OWN), p) for p in store.policies(OWN)]
            values = [(v, p) for v, p in found if v is not None]
            if median is None or not values:
                continue
            bound = scale[instance.name]
            best_s, best = min(values)
            gain, possible = 1 - median / best_s, 1 - bound / best_s
            better += [instance.name] if gain >= BETTER else []
            worst = max(r.value_s or math.inf for r in store.of(instance.name, DEFAULT, budget))
            worse += [instance.name] if worst > best_s else []
            ms = [number(1e3 * x, 2) for x in (bound, median)]
            operations = f"{store.instances[instance.name]['operations']:,}"
            rows.append([instance.name, operations, *ms, number(median / bound), f"`{best}`", number(1e3 * best_s, 2),
                         percent(gain), percent(possible)])  # fmt: skip
        head = ["network", "operations", "bound, ms", f"`{DEFAULT}`, ms", "over the bound", "best heuristic", "its ms", "less",
                "at most possible"]  # fmt: skip
        lines += ["", f"## `{DEFAULT}` after {budget}", ""]
        lines += [
            "Median over the seeds. *Less*: how much shorter the step is than with the best of the list schedules,"
        ]
        lines += ["partitioners and experts (seed 0); *at most possible*: what the bound leaves of that."]
        lines += ["", *table(head, rows), ""]
        lines += [f"A seed is worse than a heuristic: {', '.join(worse) or 'nowhere'}.", ""]
        lines += [f"Better by {percent(BETTER)} or more: {', '.join(better) or 'nowhere'}."]
        lines += ["", *_curves(store, steps, budget, scale)]
        lines += _large(store, budget, scale)
    lines += ["", "## Policies with one value", "", "Value over the bound.", ""]
    lines += _heuristics(store, steps, scale)
    refusals = store.refusals([i.name for i in instances])
    return lines + (["", "Refused, or nothing found that fits:", "", *refusals] if refusals else [])


def _curves(store: Store, instances: list[Instance], budget: str, scale: dict[str, float]) -> list[str]:
    """A table of the best value after some seconds: median over the seeds, divided by `scale`."""
    times = [t for t in TIMES_S if t < float(budget.removesuffix(" s"))]
    rows = []
    for instance in instances:
        for policy in store.policies(budget):
            runs = [r for r in store.of(instance.name, policy, budget) if r.curve]
            if not runs:
                continue
            cells = []
            for limit in (*times, math.inf):
                value = statistics.median(min((v for s, v in r.curve if s <= limit), default=math.inf) for r in runs)
                cells.append("-" if math.isinf(value) else number(value / scale[instance.name]))
            rows.append([instance.name, f"`{policy}`", *cells, f"{max(r.seconds for r in runs):.1f}"])
    head = ["graph", "policy", *(f"{t} s" for t in times), "end", "end, s"]
    return ["Best so far after some seconds; `-`: nothing yet that fits.", "", *table(head, rows, 2)]


def _large(store: Store, budget: str, scale: dict[str, float]) -> list[str]:
    """The table of seconds and memory for the largest graph."""
    rows, late = [], []
    for r in store.of(LARGE, DEFAULT, budget):
        if r.value_s is None or r.process_s is None or r.peak_mib is None:
            continue
        late += [f"seed {r.seed}"] if r.process_s > LARGE_S or r.peak_mib > LARGE_MIB else []
        over = number(r.value_s / scale[LARGE])
        rows.append(
            [str(r.seed), over, f"{r.evaluations:,}", f"{r.seconds:.1f}", f"{r.process_s:.0f}", f"{r.peak_mib:,.0f}"]
        )
    if not rows:
        return []
    head = ["seed", "over the optimum", "evaluations", "search, s", "process, s", "peak MiB"]
    said = f"Over {LARGE_S} s or {LARGE_MIB:,} MiB for the process, with import, bound and report: {', '.join(late) or 'never'}."
    operations = f"{store.instances[LARGE]['operations']:,}"
    title = f"## `{DEFAULT}` after {budget} on a planted graph of {operations} operations, 8 devices"
    curves = _curves(store, [i for i in networks() if i.name == LARGE], budget, scale)
    return ["", title, "", *table(head, rows), "", said, "", *curves]


def _heuristics(store: Store, instances: list[Instance], scale: dict[str, float]) -> list[str]:
    """A table of the policies without a search: their value divided by `scale`."""
    rows = []
    for policy in store.policies(OWN):
        values = [store.median(i.name, policy, OWN) for i in instances]
        if any(v is not None for v in values):
            cells = [number(v and v / scale[i.name]) for v, i in zip(values, instances, strict=True)]
            rows.append([f"`{policy}`", *cells])
    return table(["policy", *(i.name for i in instances)], rows)
