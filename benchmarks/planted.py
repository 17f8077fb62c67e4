"""Planted graphs: the optimum, and, as multiples of it, the longest path without transfers and what two policies find.

    python benchmarks/planted.py

`path`: no schedule is shorter. Annealing has the default budget, 10,000 evaluations.
"""

from __future__ import annotations

import argparse
from typing import Any

from placekit_scheduling import critical_path_bound

from placekit_core import Problem, load_programs, place

ROWS: list[dict[str, Any]] = [
    {"devices": 2, "width": 5},
    {"devices": 2, "width": 5, "communication": 1.5},
    {},
    {"speeds": [1, 2]},
    {"devices": 8},
    {"devices": 8, "layers": 50},
    {"devices": 16, "strands": 4},
    {"layers": 125, "devices": 8, "width": 5},
]
"""Options of importer `planted`."""


def main() -> None:
    """Print a row per graph."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    print("operations  devices   optimum  path   etf  annealing")
    for options in ROWS:
        [program] = load_programs("planted", **options)
        graph, machine = program.graph, program.cluster
        assert machine is not None
        optimum = float(graph.attributes["optimal_makespan_s"])
        path = critical_path_bound(Problem.of(graph, machine)) / optimum
        etf, annealing = ((place(program, policy=p).value_s or 0.0) / optimum for p in ("etf", "annealing"))
        print(
            f"{graph.n:10}{machine.size:9}{1e3 * optimum:7.2f} ms{path:6.2f}{etf:6.2f}{annealing:11.2f}  "
            + (", ".join(f"{k}={v}" for k, v in options.items()) or "defaults")
        )


if __name__ == "__main__":
    main()
