"""Tables of papers, as text files: a line of heads (`network GPUs METHOD ...`), then a line per network and number of GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import inf
from pathlib import Path

from placekit_papers.runs import Run
from placekit_papers.statistics import Seconds, judge, mean_text, order_of_paper

TABLES = Path(__file__).parent / "tables"
Place = tuple[str, str]
"""A program and a machine."""
Found = Mapping[Place, Mapping[str, Seconds]]


def paper_table(name: str, cluster: str) -> tuple[list[str], dict[Place, dict[str, float]]]:
    """The methods of a table and the paper's seconds; infinite for OOM. `{}` in `cluster` is the number of GPUs."""
    lines = (TABLES / f"{name}.txt").read_text().splitlines()
    head, *rows = [line.split() for line in lines if line.strip() and line[0] != "#"]
    values = {}
    for network, gpus, *cells in rows:
        both = zip(head[2:], cells, strict=True)
        values[network, cluster.format(gpus)] = {m: inf if c == "OOM" else float(c) for m, c in both if c != "-"}
    return head[2:], values


def by_place(runs: Sequence[Run], name: str = "value_s") -> Found:
    """The seconds that an attribute of the runs has, by place, method and seed."""
    found: dict[Place, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        found[run.workload, run.cluster][run.method][run.seed] = getattr(run, name)
    return found


def lines(
    methods: Sequence[str], paper: Mapping[Place, Mapping[str, float]], ours: Found, bounds: Found
) -> Iterator[str]:
    """The paper's seconds and ours, side by side: a line per program and machine; methods the paper lacks come last."""
    places = list(dict.fromkeys([*paper, *ours]))
    more = sorted({m for p in places for m in ours.get(p, {})} - set(methods))
    yield f"{'paper | here, ' if methods else ''}seconds per step: mean ± 95% over the seeds, or the fastest to the slowest seed"
    rows = [["network", "cluster", *methods, *more]]
    for place in places:
        here = {m: mean_text(values, max(bounds[place][m].values())) for m, values in ours.get(place, {}).items()}
        theirs = paper.get(place, {})
        cells = [f"{_seconds(theirs.get(m))} | {here.get(m, '-')}" for m in methods]
        rows.append([*place, *cells, *(here.get(m, "-") for m in more)])
    width = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [c.rjust(w) if i > 1 else c.ljust(w) for i, (c, w) in enumerate(zip(row, width, strict=True))]
        yield "  ".join(cells).rstrip()


def _seconds(value: float | None) -> str:
    return "-" if value is None else "OOM" if value == inf else f"{value:.3g}"


def orders(methods: Sequence[str], paper: Mapping[Place, Mapping[str, float]], ours: Found) -> list[str]:
    """For every two methods in every row of the paper's table, whether the paper's order holds here."""
    verdicts = []
    for place, seconds in paper.items():
        here = ours.get(place, {})
        for a, b in combinations([m for m in methods if m in seconds and m in here], 2):
            if not seconds[a] == seconds[b] == inf:  # the paper does not say which would be slower
                first, sign, second = order_of_paper(seconds, a, b)
                verdicts.append(judge(sign, here[first], here[second]))
    return verdicts
