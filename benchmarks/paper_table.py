"""A paper's table beside what placekit finds: values over the seeds, and for which rows each of the paper's orders holds.

    python benchmarks/paper_table.py [TABLE.txt] CSV ... [--cluster k80x{}] [--orders] [--over METHOD] [--by-seed] [--late]

TABLE.txt is the paper's table: a line of heads (`network GPUs METHOD ...`), then a line per network and number of GPUs with the
paper's seconds, OOM, or `-` for what the paper does not have. Each CSV is of benchmarks/seeds.py; its clusters are named by the
number of GPUs. A cell is the paper's value and ours: the mean over the seeds, with the t interval of 95% if they differ. Methods
of the CSVs that the paper lacks follow. Without TABLE.txt, all values of the CSVs; with `--over`, instead, by how much each other
method differs from METHOD, seed by seed. `--by-seed` shows the value of each seed, because a mean says little where runs end in
one of two places. With `--late`, a value is the mean over the last twentieth of a run's evaluations, not its best placement; one
that did not fit counts as the run's failing signal.

With `--orders`, for each two methods of the paper in how many rows its order holds here. The ratio of two methods is taken seed
by seed. An order *holds* if the mean of its logarithm is at least 1% on the paper's side and its 95% interval excludes 0; it is
*reversed* if so on the other side, and *open* else. What the paper has within 1% of each other holds if the interval is within
1%. OOM is slower than anything; a method counts as OOM if most of its seeds find nothing that fits.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import exp, inf, isnan, log
from pathlib import Path

from seeds import Seed, mean_and_half, read

EQUAL = 0.01
WIDE = 20  # percent: intervals that are written by their ends
CERTAIN = {
    "single_cpu",
    "single_gpu",
    "single_device",
    "expert",
    "data_parallel",
    "enumerative",
}  # draw no numbers
Place = tuple[str, str]
Found = Mapping[Place, Mapping[str, Mapping[int, float]]]
"""Seconds by (workload, cluster), method and seed; infinite for what does not fit."""


def rows(paths: Sequence[Path], late: bool) -> list[Seed]:
    """The rows of CSVs; if `late`, those that have values of the last evaluations, with them."""
    runs = read(paths)
    return [replace(s, value_s=s.late_s) for s in runs if not isnan(s.late_s)] if late else runs


def found(rows: Sequence[Seed]) -> dict[Place, dict[str, dict[int, float]]]:
    """The values of runs. Ends this program if a policy that draws numbers has only one."""
    values: dict[Place, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for s in rows:
        values[s.workload, s.cluster][s.method][s.seed] = s.value_s
    for place, methods in values.items():
        for method, seeds in methods.items():
            if len(seeds) == 1 and method.partition(" ")[0] not in CERTAIN:
                raise SystemExit(f"{' on '.join(place)}: {method!r} draws numbers, and has one seed: run it with six")
    return values


def cell(values: Mapping[int, float]) -> str:
    """The mean of seconds over the seeds, with its 95% interval; in brackets how many of them fit, if not all do."""
    fitting = [v for v in values.values() if v < inf]
    if not fitting:
        return "OOM"
    mean, half = mean_and_half(fitting)
    short = f" ({len(fitting)} of {len(values)})" if len(fitting) < len(values) else ""
    return f"{mean:.3g}" + (f" ± {half:.1g}" if half else "") + short


def ratio(a: Mapping[int, float], b: Mapping[int, float]) -> tuple[float, float]:
    """The 95% interval of the mean of log(a / b), seed by seed. A method with one value has it for all seeds of the other.

    It is infinite in one direction if most seeds of one method find nothing that fits and all of the other do, and in both
    directions if some seeds of either find nothing otherwise: those that do must not decide alone.
    """
    lost = [sum(v == inf for v in x.values()) for x in (a, b)]
    out = [n > len(x) / 2 for n, x in zip(lost, (a, b), strict=True)]
    if out[0] != out[1] and not lost[out.index(False)]:
        return (inf, inf) if out[0] else (-inf, -inf)
    if any(lost):
        return -inf, inf
    if len(a) == 1 or len(b) == 1:
        logs = [log(x / y) for x in a.values() for y in b.values()]
    else:
        logs = [log(a[k] / b[k]) for k in a.keys() & b.keys()]
    if len(logs) < 2 and not len(a) == len(b) == 1:
        return -inf, inf
    mean, half = mean_and_half(logs)
    return mean - half, mean + half


def change(*found: Mapping[int, float]) -> str:
    """By how much the first values differ from the second, seed by seed, with the 95% interval."""
    if all(min(f.values()) == inf for f in found):
        return "neither fits"
    low, high = ratio(*found)
    if inf in (abs(low), abs(high)):
        return "not known" if low != high else "only it fits" if low < 0 else "does not fit"
    middle, least, most = (100 * (exp(x) - 1) for x in ((low + high) / 2, low, high))
    half = (most - least) / 2
    if half >= WIDE:  # and far from symmetric
        return f"{least:+.0f} to {most:+.0f}%"
    if (low < 0 < high) != (abs(middle) < half):  # the same, near 0
        return f"{least:+.1f} to {most:+.1f}%"
    return f"{middle:+.1f}" + (f" ± {half:.1f}" if half >= 0.05 else "") + "%"


def order_said(said: Mapping[str, float], a: str, b: str) -> tuple[str, str, str]:
    """The paper's order of two methods, by its seconds: (faster, `<`, slower), or `=` if they are within 1%."""
    x, y = said[a], said[b]
    near = x < inf and y < inf and abs(log(x / y)) <= EQUAL
    return (a, "=", b) if near else (a, "<", b) if x < y else (b, "<", a)


def verdict(said: str, low: float, high: float) -> str:
    """Whether an order of two methods, `<` or `=`, holds where log(first / second) is in an interval."""
    if said == "=":
        return "holds" if low >= -EQUAL and high <= EQUAL else "reversed" if low > EQUAL or high < -EQUAL else "open"
    middle = low if low == high else (low + high) / 2
    return "holds" if high < 0 and middle <= -EQUAL else "reversed" if low > 0 and middle >= EQUAL else "open"


def table(path: Path, cluster: str) -> tuple[list[str], dict[Place, dict[str, float]]]:
    """The methods of a paper's table, and its values in seconds by network and cluster; infinite for OOM."""
    head, *lines = [line.split() for line in path.read_text().splitlines() if line.strip() and line[0] != "#"]
    values = {}
    for network, gpus, *cells in lines:
        both = zip(head[2:], cells, strict=True)
        place = network, cluster.format(gpus)
        if place in values:
            raise SystemExit(
                f"{place[1]} stands for several rows of {network} in {path.name}: write {{}} for the number of GPUs"
            )
        values[place] = {m: inf if c == "OOM" else float(c) for m, c in both if c != "-"}
    return head[2:], values


def by_seed(values: Mapping[int, float]) -> str:
    """Seconds of every seed, in their order."""
    return " ".join("OOM" if v == inf else f"{v:.3g}" for _, v in sorted(values.items()))


def show(methods: Sequence[str], paper: Mapping[Place, Mapping[str, float]], ours: Found, each: bool = False) -> None:
    """Print the values, of `each` seed or their means."""
    cell_of = by_seed if each else cell
    more = sorted({m for p in paper for m in ours.get(p, {})} - set(methods))
    print(f"{'paper | here, ' if methods else ''}seconds: {'by seed' if each else 'mean ± 95% over the seeds'}")
    rows = [["network", "cluster", *methods, *more]]
    for place, said in paper.items():
        here = ours.get(place, {})
        cells = [f"{_paper(said.get(m))} | {cell_of(here[m]) if m in here else '-'}" for m in methods] + [
            cell_of(here[m]) if m in here else "-" for m in more
        ]
        rows.append([*place, *cells])
    _print(rows)


def changes(ours: Found, over: str) -> None:
    """Print by how much the other methods differ from one."""
    methods = sorted({m for found in ours.values() for m in found} - {over})
    if not any(over in found for found in ours.values()):
        raise SystemExit(f"the CSVs have no {over!r}: they have {', '.join(methods)}")
    print(f"change over {over}: mean of the seeds ± 95%")
    rows = [["network", "cluster", *methods]]
    for place, here in ours.items():
        both = over in here
        rows.append([*place, *(change(here[m], here[over]) if both and m in here else "-" for m in methods)])
    _print(rows)


def _print(rows: list[list[str]]) -> None:
    """Print a table, numbers to the right."""
    width = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    for r in rows:
        print(
            "  ".join(
                c.rjust(w) if i > 1 else c.ljust(w) for i, (c, w) in enumerate(zip(r, width, strict=True))
            ).rstrip()
        )


def _paper(value: float | None) -> str:
    return "-" if value is None else "OOM" if value == inf else f"{value:.3g}"


def judged(
    methods: Sequence[str], paper: Mapping[Place, Mapping[str, float]], ours: Found
) -> Iterator[tuple[Place, str, str]]:
    """Each order of two methods in the paper's table: its row, the order, and its verdict here."""
    for place, said in paper.items():
        here = ours.get(place, {})
        for a, b in combinations([m for m in methods if m in said and m in here], 2):
            if said[a] == said[b] == inf:
                continue  # the paper does not say which would be slower
            first, sign, second = order_said(said, a, b)
            yield place, f"{first} {sign} {second}", verdict(sign, *ratio(here[first], here[second]))


def orders(methods: Sequence[str], paper: Mapping[Place, Mapping[str, float]], ours: Found) -> None:
    """Print in how many rows each order of the paper holds."""
    told: dict[str, dict[str, list[str]]] = {}
    for place, order, name in judged(methods, paper, ours):
        told.setdefault(order, defaultdict(list))[name].append("/".join(place))
    count = {v: sum(len(t.get(v, [])) for t in told.values()) for v in ("holds", "open", "reversed")}
    print(
        f"\nthe paper's order of two methods: {count['holds']} hold, {count['open']} open, {count['reversed']} reversed"
    )
    for name, by in told.items():
        rest = [f"{v}: {', '.join(by[v])}" for v in ("open", "reversed") if by.get(v)]
        print(
            f"  {name:30} {len(by.get('holds', []))} of {sum(map(len, by.values()))}"
            + (f"; {'; '.join(rest)}" if rest else "")
        )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--cluster", default="k80x{}", help="cluster of the runs; {} is the number of GPUs")
    parser.add_argument("--over", metavar="METHOD", help="without TABLE.txt: changes over this method")
    parser.add_argument(
        "--by-seed", action="store_true", help="the value of each seed, in their order, instead of the mean"
    )
    parser.add_argument("--late", action="store_true", help="the mean of the last evaluations instead of the best one")
    parser.add_argument("--orders", action="store_true", help="also print in how many rows the paper's orders hold")
    given = parser.parse_args()
    if given.by_seed and given.over:
        parser.error("--by-seed shows values, --over changes")
    head, *rest = given.files
    if head.suffix == ".csv":
        if given.orders:
            parser.error("orders are those of a TABLE.txt")
        ours = found(rows(given.files, given.late))
        if given.over:
            changes(ours, given.over)
        else:
            show([], {place: {} for place in ours}, ours, given.by_seed)
        return
    if given.over:
        parser.error("--over is for CSVs alone")
    methods, paper = table(head, given.cluster)
    ours = found(rows(rest, given.late))
    if not any(m in ours.get(p, {}) for p in paper for m in methods):
        there = ", ".join(sorted({m for x in ours.values() for m in x}))
        raise SystemExit(f"no {', '.join(methods)} on --cluster {given.cluster} in the CSVs: they have {there}")
    show(methods, paper, ours, given.by_seed)
    if given.orders:
        orders(methods, paper, ours)


if __name__ == "__main__":
    main()
