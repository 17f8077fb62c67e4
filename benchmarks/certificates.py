"""How much of the proven bounds a certificate proves, and what it takes to make and to check one.

    python benchmarks/certificates.py [--workloads A,B] [--write]

For the networks of `benchmarks/bounds.py` (the papers', on 4 x P100 over PCIe; `_8`: on 8 x V100) it prints the highest bound
of all arguments, the one that the certificate proves and by what, and how many heads and tails the checker follows. With
`--write` the table goes to benchmarks/results/certificates.md.
"""

from __future__ import annotations

import argparse
import time
import warnings

from bounds import MORE, NETWORKS
from placekit_scheduling import Certificate, all_bounds, certify, proven_s
from quality_runs import RESULTS, Instance, machine, table

from placekit_core import Problem, installed
from placekit_core.cli.compose import assembled

HEAD = ["network", "operations", "all arguments, ms", "certified, ms", "share", "by", "heads and tails", "MB", "made in, s",
        "checked in, s"]  # fmt: skip


def problem_of(name: str) -> Problem:
    """A network on its machine, grouped as by default."""
    instance = Instance(name, (f"workload={name}", f"cluster={'v100x8' if name.endswith('_8') else 'p100x4'}"))
    parts = assembled(list(instance.arguments), installed())
    return parts.problem(parts.programs[0])


def measured(name: str) -> list[str]:
    """The row of one network."""
    problem = problem_of(name)
    start = time.process_time()
    made = certify(problem)
    text = made.model_dump_json()
    between = time.process_time()
    proven = proven_s(problem, Certificate.model_validate_json(text))
    end = time.process_time()
    best = max(all_bounds(problem).values())
    steps = sum(x > 0 for level in (made.heads, made.tails) for row in level for x in row)
    return [
        name, f"{problem.graph.n:,}", f"{1e3 * best:,.2f}", f"{1e3 * proven:,.2f}", f"{100 * proven / best:.1f} %",
        f"`{made.argument.by}`", f"{steps:,}", f"{len(text) / 1e6:.1f}", f"{between - start:.1f}", f"{end - between:.1f}",
    ]  # fmt: skip


def main() -> None:
    """Measure; print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workloads", default=",".join([*NETWORKS, *MORE]))
    parser.add_argument("--write", action="store_true", help="into benchmarks/results/certificates.md")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = table(HEAD, [measured(name) for name in arguments.workloads.split(",")])
    text = "\n".join([
        "# Certificates of bounds", "", "`python benchmarks/certificates.py --write`", "",
        "Seconds are processor time; `placekit bounds --check` does the same. Certificates hold the arguments `critical_path`,",
        "`group`, `work`, `communication` and `window` (with the heads and tails of `communication`); what `detour`,",
        "`tree`, `channel` and `forced` prove above them has no certificate.", "", *lines, "", machine(), "",
    ])  # fmt: skip
    print(text)
    if arguments.write:
        (RESULTS / "certificates.md").write_text(text)


if __name__ == "__main__":
    main()
