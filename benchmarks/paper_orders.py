"""A paper's table beside simulated runs, and for which rows the paper's order of two policies holds in simulation.

    python benchmarks/paper_orders.py TABLE FOLDER ...

TABLE is text: a line of heads (`network GPUs POLICY ...`), then a line per network and number of GPUs with the paper's
seconds, or OOM. The runs in the folders are of the same workloads and policies on the clusters `k80xN`. Simulated values
that differ by less than 1% count as equal, OOM as slower than anything. `bound`: no placement is faster in simulation.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from math import inf
from pathlib import Path

from placekit_core import Summary
from placekit_core.run.run_directory import find_runs, load_summary

Order = tuple[list[str], list[str]]  # rows where an order of the paper holds, and rows where it does not


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("folders", nargs="+", type=Path)
    arguments = parser.parse_args()
    head, *rows = [line.split() for line in arguments.table.read_text().splitlines() if line.strip()]
    policies = head[2:]
    runs = {(r.workload, r.cluster, r.policy): r for r in map(load_summary, find_runs(arguments.folders))}
    orders: dict[str, Order] = {}
    print("paper | simulated, in seconds")
    print(f"{'network':14}{'GPUs':>4}" + "".join(f"{p:>16}" for p in policies) + f"{'bound':>9}")
    for network, gpus, *cells in rows:
        found = [runs[network, f"k80x{gpus}", p] for p in policies]
        paper = {p: inf if cell == "OOM" else float(cell) for p, cell in zip(policies, cells, strict=True)}
        ours = {p: _value_s(r) for p, r in zip(policies, found, strict=True)}
        both = "".join(f"{_text(paper[p]) + ' | ' + _text(ours[p]):>16}" for p in policies)
        print(f"{network:14}{gpus:>4}{both}{_text(found[0].bound_s or 0.0):>9}")
        for a, b in combinations(policies, 2):
            said = _sign(paper[a], paper[b], 0.0)
            holds = said == _sign(ours[a], ours[b], 0.01)
            name = f"{b} < {a}" if said == ">" else f"{a} {said} {b}"
            orders.setdefault(name, ([], []))[not holds].append(f"{network}({gpus})")
    print("\norder in the paper            holds for")
    for name, (yes, no) in orders.items():
        print(f"{name:30}{len(yes)} of {len(yes) + len(no)}" + (f", not {', '.join(no)}" if no else ""))


def _value_s(run: Summary) -> float:
    """Seconds per step; infinite if nothing fits."""
    return run.value_s if run.fits and run.value_s is not None else inf


def _text(seconds: float) -> str:
    return "OOM" if seconds == inf else f"{seconds:.3g}"


def _sign(a: float, b: float, tolerance: float) -> str:
    """`<`, `=` or `>`; values are equal if they differ by less than this fraction of the smaller one."""
    equal = a == b or abs(a - b) < tolerance * min(a, b)
    return "=" if equal else "<" if a < b else ">"


if __name__ == "__main__":
    main()
