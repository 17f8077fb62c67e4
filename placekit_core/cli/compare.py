"""`placekit compare DIR ...`: a table over runs, read from their directories; mean and spread over seeds."""

from __future__ import annotations

import statistics
from pathlib import Path

from placekit_core.cli.console import percent, seconds, table
from placekit_core.errors import ConfigError
from placekit_core.results import Result, find_results, load_result


def main(argv: list[str]) -> int:
    """One row per workload, machine, backend and policy; runs that differ only in their seed share a row."""
    if not argv or argv[0].startswith("-"):
        raise ConfigError("usage: placekit compare DIR ...")
    runs = [(path, load_result(path)) for path in find_results(argv)]
    show(runs)
    return 0


def _key(result: Result) -> tuple[object, ...]:
    """What runs must share to be averaged: everything but the seed and where they were written."""
    config = {k: v for k, v in result.config.items() if k not in ("seed", "run_dir", "checkpoint_s")}
    problems = tuple(p.problem_fingerprint for p in result.programs)
    return (
        result.workload,
        result.cluster_fingerprint,
        result.backend,
        result.policy,
        result.status,
        problems,
        repr(config),
    )


def show(runs: list[tuple[Path, Result]]) -> None:
    """Print the table, best value first within each workload, machine and backend."""
    groups: dict[tuple[object, ...], list[Result]] = {}
    for _, result in runs:
        group = groups.setdefault(_key(result), [])
        if result.seed not in {r.seed for r in group}:  # the same run again, or a copy of it, is no further evidence
            group.append(result)
    order = sorted(groups.values(), key=lambda g: (g[0].workload, g[0].cluster, g[0].backend, _mean(g)))
    labels = _labels([g[0] for g in order])
    rows = []
    for group, label in zip(order, labels, strict=True):
        first = group[0]
        values = [r.value_s for r in group if r.value_s is not None and r.fits]
        lost = len(group) - len(values)
        gaps = [r.gap for r in group if r.gap is not None]
        value = seconds(statistics.fmean(values)) if values else "none fits"
        spread = seconds(statistics.stdev(values)) if len(values) > 1 else "-"
        partial = f" ({first.status})" if first.status != "finished" else ""
        rows.append(
            [
                first.workload,
                first.cluster,
                first.backend + ("" if first.simulated else " (measured)"),
                label + partial,
                value + (f" ({lost} do not fit)" if lost and values else ""),
                spread,
                seconds(first.bound_s),
                percent(statistics.fmean(gaps)) if gaps else "-",
                f"{statistics.fmean([r.evaluations for r in group]):.0f}",
                f"{statistics.fmean([r.seconds for r in group]):.1f}",
                f"{len(group)}",
            ]
        )
    table(
        [
            "workload",
            "cluster",
            "backend",
            "policy",
            "value",
            "spread",
            "bound",
            "gap",
            "evaluations",
            "seconds",
            "seeds",
        ],
        rows,
        left=4,
    )


def _problem(result: Result) -> str:
    return " ".join(p.problem_fingerprint for p in result.programs)


def _mean(group: list[Result]) -> float:
    values = [r.value_s for r in group if r.value_s is not None and r.fits]
    return statistics.fmean(values) if values else float("inf")


def _labels(results: list[Result]) -> list[str]:
    """Policy names; where rows would look alike, with the options in which they differ."""

    def flat(data: object, prefix: str = "") -> dict[str, object]:
        if not isinstance(data, dict):
            return {prefix: data}
        return {
            k: v for key, value in data.items() for k, v in flat(value, f"{prefix}.{key}" if prefix else key).items()
        }

    labels = []
    for r in results:
        twins = [
            x
            for x in results
            if (x.workload, x.cluster, x.backend, x.policy) == (r.workload, r.cluster, r.backend, r.policy)
        ]
        options = [flat(x.config) for x in twins]
        own = flat(r.config)
        exact = {
            "cluster": (r.cluster_fingerprint, {x.cluster_fingerprint for x in twins}),
            "problem": (_problem(r), {_problem(x) for x in twins}),
        }  # the same names, and yet another machine, model, grouping or cost file
        differ = sorted(
            k for k in own
            if k not in ("seed", "run_dir", "checkpoint_s", "workload") and any(o.get(k) != own[k] for o in options)
        )  # fmt: skip
        marks = [] if differ else [f" {k}:{mine[:8]}" for k, (mine, others) in exact.items() if len(others) > 1][:1]
        labels.append(r.policy + "".join([*(f" {k}={own[k]}" for k in differ), *marks]))
    return labels
