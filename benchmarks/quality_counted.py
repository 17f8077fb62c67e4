"""The parts of quality.py with budgets of evaluations: sharded programs, and graphs that others published."""

from __future__ import annotations

import math
import os
from pathlib import Path

from quality_runs import DEFAULT, OWN, SEARCHES, Instance, Store, heuristics, number, percent, table

BUDGETS = ("2000", "10000", "100000")
SEEDS = (0, 1, 2, 3, 4)
REFERENCE_BUDGET = "1000000"
REFERENCE_SEEDS = {DEFAULT: (0, 1), "annealing": (0, 1)}
TARGETS = {"2000": 0.06, "10000": 0.03, "100000": 0.01}  # by budget: distance of the default policy to the reference
BEHIND = 0.01  # by how much another policy may be better before the report names it
MACHINES = {"p100x4": ("4 x P100 over PCIe", ""), "v100x8": ("8 x V100 over NVLink", "_8")}
PROGRAMS = ("chainmm", "ffnn_sharded", "llama_block_sharded", "llama_layer_sharded")
PUBLISHED = {"gdp_chain_mm_112nodes": 1200.08, "gdp_ffnn_192nodes": 56.696}
PUBLISHED_TARGET = 0.001


def sharded() -> list[Instance]:
    """ChainMM, FFNN, Llama-block and Llama-layer, on both machines."""
    return [
        Instance(program + suffix, (f"workload={program}{suffix}", f"cluster={cluster}"))
        for cluster, (_, suffix) in MACHINES.items()
        for program in PROGRAMS
    ]


def published() -> list[Instance]:
    """The graphs that Doppler's authors published, on their simulator."""
    folder = Path(os.environ.get("PLACEKIT_SAMPLES", ""), "doppler")
    return [
        Instance(name, ("importer=doppler", f"importer.path={folder / name}.txt", "cluster=doppler_sim"), best)
        for name, best in PUBLISHED.items()
    ]


def plan(
    part: str, reference: bool, policies: list[str], budgets: list[str], seeds: list[int]
) -> list[tuple[str, str, int]]:
    """(policy, budget, seed) of every run of an instance. Empty lists mean all."""
    if reference:
        chosen = {p: s for p, s in REFERENCE_SEEDS.items() if p in (policies or REFERENCE_SEEDS)}
        return [(p, REFERENCE_BUDGET, s) for p, all_seeds in chosen.items() for s in (seeds or all_seeds)]
    own = [f"{p} meta_operations=recovered" if (part, p) == ("published", "enumerative") else p for p in heuristics()]
    runs = [(p, OWN, s) for p in own for s in (seeds or SEEDS)]
    runs += [(p, b, s) for b in (budgets or BUDGETS) for p in SEARCHES for s in (seeds or SEEDS)]
    return [r for r in runs if not policies or r[0].split()[0] in policies]


def sharded_report(store: Store, budgets: list[str]) -> list[str]:
    """The tables of part `sharded`, from the recorded runs."""
    lines = [
        "Value over the proven bound, median over the seeds. A policy without a search has the evaluations that it makes.",
        "The reference is the best value that any run kept here has ever found; the bound is the highest that any of these",
        "runs has proven (later arguments prove more: [bounds](bounds.md)).",
        "",
        *_unmeasured(store),
        *_references(store),
        "",
        *_default(store, budgets),
    ]
    for title, suffix in MACHINES.values():
        names = [p + suffix for p in PROGRAMS if p + suffix in store.instances]
        if names:
            lines += ["", f"## {title}", "", *_machine(store, names, budgets)]
    refusals = store.refusals([i.name for i in sharded()])
    return lines + (["", "Refused, or nothing found that fits:", "", *refusals] if refusals else [])


def _unmeasured(store: Store) -> list[str]:
    """Lists the instances and budgets without a recorded run of the default policy."""
    lines = []
    for budget in (*BUDGETS, REFERENCE_BUDGET):
        missing = [f"`{i.name}`" for i in sharded() if store.median(i.name, DEFAULT, budget) is None]
        lines += [f"- {int(budget):,} evaluations: {', '.join(missing)}"] if missing else []
    weak = [
        "Without runs of a million evaluations a reference is weak: the default policy is compared with its own best."
    ]
    return ["Not measured yet:", "", *lines, "", *weak, ""] if lines else []


def _references(store: Store) -> list[str]:
    rows = []
    for instance in sharded():
        about = store.instances.get(instance.name)
        if about is not None:
            best, bound = about["best"], about["bound_s"]
            [found] = [r for r in store.of(instance.name, best["policy"], best["budget"]) if r.seed == best["seed"]]
            how = f"`{found.policy}`, {found.evaluations:,} evaluations, seed {found.seed}"
            how += "" if found.value_s == best["value_s"] else ", before its code changed"
            ms = [number(1e3 * x, 3) for x in (bound, best["value_s"])]
            rows.append([instance.name, f"{about['operations']}", *ms, number(best["value_s"] / bound), how])
    head = ["graph", "operations", "bound, ms", "reference, ms", "over the bound", "found by"]
    return ["## References", "", *table(head, rows)]


def _default(store: Store, budgets: list[str]) -> list[str]:
    """The default policy's distance to the reference, and to the best of the others."""
    rows, missed, behind = [], [], []
    for instance in (i.name for i in sharded()):
        for budget in budgets:
            value_s = store.median(instance, DEFAULT, budget)
            if value_s is None:
                continue
            over = value_s / store.instances[instance]["best"]["value_s"] - 1
            target = TARGETS.get(budget, math.inf)
            name, other_s = _best_other(store, instance, budget)
            less = value_s / other_s - 1
            where = f"{instance} at {int(budget):,}"
            missed += [f"{where} ({percent(over)})"] if over > target else []
            behind += [f"{where} ({percent(less)} behind `{name}`)"] if less > BEHIND else []
            goal = percent(target) if budget in TARGETS else "-"
            rows.append([instance, f"{int(budget):,}", percent(over), goal, f"`{name}`", percent(less)])
    head = ["graph", "evaluations", "over the reference", "target", "best other", "behind it"]
    return [
        f"## The default policy, `{DEFAULT}`",
        "",
        "The best other policy has the lowest median at no more evaluations; `exact`, which rarely evaluates, does not count.",
        "A negative share: the default is better.",
        "",
        *table(head, rows),
        "",
        f"Over its target: {'; '.join(missed) or 'nowhere'}.",
        "",
        f"With these budgets more than {percent(BEHIND)} behind another policy: {'; '.join(behind) or 'nowhere'}.",
    ]


def _best_other(store: Store, instance: str, budget: str) -> tuple[str, float]:
    """The policy other than the default with the best median at no more than `budget` evaluations."""
    found = [
        (store.median(instance, policy, b), policy)
        for b in (budget, OWN)
        for policy in store.policies(b)
        if policy not in (DEFAULT, "exact")
        and max((r.evaluations for r in store.of(instance, policy, b)), default=0) <= int(budget)
    ]
    value_s, policy = min(((v, p) for v, p in found if v is not None), default=(math.inf, "-"))
    return policy, value_s


def _machine(store: Store, names: list[str], budgets: list[str]) -> list[str]:
    best = [store.instances[n]["best"]["value_s"] / store.instances[n]["bound_s"] for n in names]
    rows = [["reference", "", *map(number, best)]]
    for budget in [REFERENCE_BUDGET, *sorted(budgets, key=int, reverse=True)]:
        seeds = {p: max(len(store.of(n, p, budget)) for n in names) for p in store.policies(budget)}
        for policy, count in seeds.items():
            cells = [number(store.ratio(n, policy, budget)) for n in names]
            of = f" ({count} seed{'s' * (count > 1)})" if budget == REFERENCE_BUDGET else ""
            rows.append([f"`{policy}`{of}", f"{int(budget):,}", *cells])
    for policy in store.policies(OWN):
        ratios = [store.ratio(n, policy, OWN) for n in names]
        if any(r is not None for r in ratios):
            runs = [r for n in names for r in store.of(n, policy, OWN) if r.value_s is not None]
            least, most = (f(r.evaluations for r in runs) for f in (min, max))
            cells = [number(r) for r in ratios]
            if policy == "exact":
                took = [next(iter(store.of(n, policy, OWN)), None) for n in names]
                cells = [f"{c} ({t.seconds:.0f} s)" if t and t.value_s else c for c, t in zip(cells, took, strict=True)]
            rows.append([f"`{policy}`", f"{most:,}" if least == most else f"{least:,} to {most:,}", *cells])
    return table(["policy", "evaluations", *names], rows)


def published_report(store: Store, budgets: list[str]) -> list[str]:
    """The tables of part `published`, from the recorded runs."""
    lines = [
        "Values in the authors' unit of time: least, median and most over the seeds. A policy without a search has the number"
        " of evaluations that it makes.",
    ]
    for instance in published():
        runs = [r for r in store.runs.values() if r.instance == instance.name]
        if not runs or instance.best_known_s is None:
            continue
        rows = []
        for budget in [REFERENCE_BUDGET, *sorted(budgets, key=int, reverse=True), OWN]:
            for policy in store.policies(budget):
                values = [r.value_s for r in store.of(instance.name, policy, budget) if r.value_s is not None]
                median = store.median(instance.name, policy, budget)
                if median is None:
                    continue
                used = max(r.evaluations for r in store.of(instance.name, policy, budget))
                over = percent(median / instance.best_known_s - 1)
                rows.append(
                    [f"`{policy}`", f"{used:,}", *(number(v, 3) for v in (min(values), median, max(values))), over]
                )
        title = f"## {instance.name}: {number(instance.best_known_s, 3)} is known"
        lines += ["", title, "", *table(["policy", "evaluations", "least", "median", "most", "median over it"], rows)]
        goal = store.of(instance.name, DEFAULT, "100000")
        if goal:
            least = min(r.value_s or math.inf for r in goal) / instance.best_known_s - 1
            worst = max(r.value_s or math.inf for r in goal) / instance.best_known_s - 1
            said = "reached by every seed" if worst <= PUBLISHED_TARGET else "missed by some seeds"
            said = said if least <= PUBLISHED_TARGET else "missed by every seed"
            lines += ["", f"`{DEFAULT}` at 100,000 evaluations: the target of {percent(PUBLISHED_TARGET)} is {said}."]
    refusals = store.refusals(list(PUBLISHED))
    return lines + (["", "Refused, or nothing found that fits:", "", *refusals] if refusals else [])
