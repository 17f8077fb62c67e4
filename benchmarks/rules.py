"""Compares the rules of runtimes with the best known split: tables of sweeps of experiment `rules`.

    placekit run experiment=rules run_dir=many
    placekit run experiment=rules backend.objective=token run_dir=one
    python benchmarks/rules.py one many

There is a table for each objective and workload, with a row for each policy. A cell has milliseconds, and how far they are above
the best value of the column. The line `proven` is a lower bound. `no room`: the rule's placement does not fit in
memory. `host memory`: the tool would keep weights in a host's memory, which the machine does not describe. `refused`: the tool
would not place this model on this machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from placekit_core.run.run_directory import CONFIG, FAILED, find_runs, load_summary

_WORDS = {"HostMemory": "host memory", "NotApplicable": "refused", "NothingFits": "no room"}
Key = tuple[str, str, str, str]  # objective, workload, machine, policy


def read(folders: Iterable[Path]) -> tuple[dict[Key, float | str], dict[Key, float]]:
    """The seconds of each run, or why it has none; and the highest bound of each column, under policy `proven`."""
    values: dict[Key, float | str] = {}
    bounds: dict[Key, float] = {}
    for folder in folders:
        for path in sorted(folder.glob(f"*/{FAILED}")):
            config = json.loads((path.parent / CONFIG).read_text())
            kind, message = (json.loads(path.read_text())[key] for key in ("type", "message"))
            kind = "HostMemory" if "in host memory" in message else kind
            key = (
                config["backend"]["objective"],
                config["workload"],
                config["cluster"]["name"],
                config["policy"]["name"],
            )
            values[key] = _WORDS.get(kind, kind)
    for run_dir in find_runs(list(folders)):
        r = load_summary(run_dir)
        column = (r.objective, r.workload, r.cluster)
        bounds[(*column, "proven")] = max(bounds.get((*column, "proven"), 0.0), r.bound_s or 0.0)
        if r.fits and r.value_s is not None:
            values[(*column, r.policy)] = r.value_s
    return values, bounds


def cell(value: float | str | None, best: float) -> str:
    """Milliseconds and the distance to the best, or a word."""
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{1e3 * value:.2f} {100 * (value / best - 1):+6.1f}%"


def table(objective: str, workload: str, values: dict[Key, float | str], bounds: dict[Key, float]) -> None:
    """Print the table of one workload; rows in the order of their mean distance, machines in the order of their names."""
    own = {key[2:]: v for key, v in values.items() if key[:2] == (objective, workload)}
    machines = sorted({machine for machine, _ in own})
    best = {m: min(v for (machine, _), v in own.items() if machine == m and not isinstance(v, str)) for m in machines}
    rows = sorted({policy for _, policy in own}, key=lambda p: (-sum(isinstance(own.get((m, p)), float) for m in machines),
        sum(v / best[m] for m in machines if isinstance(v := own.get((m, p)), float)), p))  # fmt: skip
    print(f"\n{workload}, {objective}, ms")
    print("policy".ljust(22) + "".join(m.rjust(18) for m in machines))
    for policy in rows:
        print(policy.ljust(22) + "".join(cell(own.get((m, policy)), best[m]).rjust(18) for m in machines))
    proven = [bounds[objective, workload, m, "proven"] for m in machines]
    print("proven".ljust(22) + "".join(f"{1e3 * b:.2f}        ".rjust(18) for b in proven))


def main(folders: list[str]) -> None:
    """Print all tables of the sweeps in `folders`."""
    values, bounds = read([Path(f) for f in folders])
    for objective, workload in sorted(
        {key[:2] for key in values}, key=lambda k: (k[0] == "throughput", len(k[1]), k[1])
    ):
        table(objective, workload, values, bounds)


if __name__ == "__main__":
    main(sys.argv[1:])
