"""Tables of learned placements, from the CSV files that `benchmarks/curves.py` writes.

    python benchmarks/learning_table.py [--orders] CSV ...

A row per network and machine. Prints `best | average of the last part` per policy, medians over seeds, in seconds. With
`--orders`: the averages of Post and its ablations, and whether Post's claim holds, Post <= cross-entropy <= PPO <= policy
gradient; differences below 1% count as equal.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

NAMES = {
    "random": "random",
    "post policy.update=policy_gradient": "PG",
    "post policy.update=ppo": "PPO",
    "post policy.update=cross_entropy": "CE",
    "post policy.update=post": "Post",
    "seq2seq": "seq2seq",
    "hierarchical": "hierarchical",
    "portfolio": "portfolio",
}
CLAIM = ("Post", "CE", "PPO", "PG")  # from best to worst
Cells = dict[tuple[str, str], dict[str, tuple[float, float]]]
"""Best and average in seconds, by (network, machine) and method."""


def read(paths: list[Path]) -> Cells:
    """The last point of every curve."""
    cells: Cells = defaultdict(dict)
    for path in paths:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                values = float(row["best_s"]), float(row["average_s"])
                cells[row["workload"], row["cluster"]][NAMES[row["policy"]]] = values  # the last point stays
    return cells


def main() -> None:
    """Print one of the two tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--orders", action="store_true", help="whether Post's claim about its ablations holds")
    parser.add_argument("files", nargs="+", type=Path)
    arguments = parser.parse_args()
    cells = read(arguments.files)
    if arguments.orders:
        print_orders(cells)
        return
    names = [n for n in NAMES.values() if any(n in found for found in cells.values())]
    print(f"{'network':13}{'machine':8}" + "".join(f"{name:>15}" for name in names))
    for (network, machine), found in sorted(cells.items()):
        texts = [f"{found[n][0]:.3f} | {found[n][1]:.3f}" if n in found else "-" for n in names]
        print(f"{network:13}{machine:8}" + "".join(f"{text:>15}" for text in texts))


def print_orders(cells: Cells) -> None:
    """A row per network and machine: the averages, and which neighbours are in the other order."""
    print(f"{'network':14}{'machine':9}" + "".join(f"{name:>8}" for name in CLAIM) + "  holds")
    for (network, machine), found in sorted(cells.items()):
        average = {name: found[name][1] for name in CLAIM}
        broken = [f"{b} < {a}" for a, b in pairwise(CLAIM) if average[b] < 0.99 * average[a]]
        text = "no: " + ", ".join(broken) if broken else "yes"
        print(f"{network:14}{machine:9}" + "".join(f"{x:8.3f}" for x in average.values()) + f"  {text}")


if __name__ == "__main__":
    main()
