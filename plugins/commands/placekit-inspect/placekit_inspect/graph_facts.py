"""The facts about graphs that `placekit graph show` prints, and its table of several programs."""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from placekit_scheduling import critical_path_bound

from placekit_core import PHASES, Problem
from placekit_core.cli.console import table
from placekit_core.contracts.units import count, mebibytes, seconds


@dataclass(frozen=True)
class Facts:
    """A graph in numbers.

    Attributes:
        cluster: the machine on which the seconds were estimated.
        phases: number of kernels by phase.
        flops, bytes_accessed: of one step.
        persistent_bytes: by type of source; `kernels` for those of all kernels.
        activation_bytes: bytes that kernels write, without views.
        levels: number of kernels on the longest path.
        work_s, critical_path_s: with every operation on its fastest device, without transfers.
    """

    name: str
    cluster: str
    operations: int
    kernels: int
    tensors: int
    edges: int
    groups: int
    phases: Mapping[str, int]
    flops: float
    bytes_accessed: float
    persistent_bytes: Mapping[str, int]
    activation_bytes: int
    levels: int
    work_s: float
    critical_path_s: float
    fingerprint: str

    @property
    def parallelism(self) -> float:
        """Work over critical path; 0 for a graph without kernels."""
        return self.work_s / self.critical_path_s if self.critical_path_s else 0.0

    @classmethod
    def of(cls, problem: Problem) -> Facts:
        """The facts of `problem`."""
        g = problem.graph
        fastest = np.where(problem.op_allowed, problem.op_s, np.inf).min(axis=1)
        held = {k: int(g.persistent_bytes[~g.kernel & g.op_type.is_value(k)].sum()) for k in g.op_type.vocabulary}
        held["kernels"] = held.get("kernels", 0) + int(g.persistent_bytes[g.kernel].sum())
        return cls(
            name=g.name,
            cluster=problem.cluster.name,
            operations=g.n,
            kernels=int(g.kernel.sum()),
            tensors=g.t,
            edges=g.e,
            groups=problem.g,
            phases={p: int((g.kernel & (g.phase == i)).sum()) for i, p in enumerate(PHASES)},
            flops=float(g.flops.sum()),
            bytes_accessed=float(g.bytes_accessed.sum()),
            persistent_bytes={k: b for k, b in held.items() if b},
            activation_bytes=int(g.owned_bytes.sum()),
            levels=int(g.depth.max(initial=0)) + 1,
            work_s=float(fastest.sum()),
            critical_path_s=critical_path_bound(problem),
            fingerprint=g.fingerprint,
        )

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values to print."""
        held = ", ".join(f"{kind} {mebibytes(b)}" for kind, b in self.persistent_bytes.items())
        return [
            ("operations", f"{self.operations} ({self.kernels} kernels, {self.operations - self.kernels} sources)"),
            ("tensors, edges", f"{self.tensors}, {self.edges}"),
            ("groups", f"{self.groups}"),
            ("phases", ", ".join(f"{p} {n}" for p, n in self.phases.items())),
            ("arithmetic", f"{count(self.flops)}FLOP"),
            ("memory traffic", f"{count(self.bytes_accessed)}B"),
            ("persistent", held or "nothing"),
            ("outputs of kernels", mebibytes(self.activation_bytes)),
            ("depth", f"{self.levels} levels"),
            ("work", f"{seconds(self.work_s)}, every operation on its fastest device of {self.cluster}"),
            ("critical path", seconds(self.critical_path_s)),
            ("parallelism", f"{self.parallelism:.2f} (work / critical path)" if self.parallelism else "-"),
            ("fingerprint", self.fingerprint),
        ]


@dataclass(frozen=True)
class Imported:
    """The facts of all programs of an import, and the time and memory of the import.

    Attributes:
        import_s: seconds of `Importer.load`, including the import of libraries.
        peak_bytes: peak memory of this process, or of its largest child if that is more.
    """

    programs: Sequence[Facts]
    import_s: float
    peak_bytes: int


def peak_bytes() -> int:
    """Peak memory of this process, or of its largest child if that is more."""
    unit = 1 if sys.platform == "darwin" else 1024
    own, children = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    # on Linux, ru_maxrss includes the process that this one was forked from, even after exec
    with contextlib.suppress(OSError, IndexError, ValueError):
        status = Path("/proc/self/status").read_text()
        own = int(status.partition("VmHWM:")[2].split()[0])
    return unit * max(own, children)


def as_json(imported: Imported) -> str:
    """One JSON object: the fields of Imported."""
    return json.dumps(asdict(imported), indent=1)


def show_table(jobs: Sequence[Sequence[str]], shared: Sequence[str]) -> int:
    """One row per job (arguments of `graph show`), each imported in a process of its own. Returns the exit code.

    A row is named by its options that are not `shared` by all jobs, else by the workload, else by all options. A family has
    one row, with medians over its graphs.
    """
    rows, failed = [], []
    for job in jobs:  # one after the other: seconds and memory are measured
        own = [o for o in job if o not in shared] or [o for o in job if o.startswith("workload=")] or job
        name = ", ".join(o.removeprefix("workload=") for o in own) or "default"
        imported = _in_a_process(job)
        if isinstance(imported, str):
            failed.append(f"failed: {name}: {imported}")
        else:
            rows.append([name, *_row(imported)])
    columns = ["workload", "operations", "kernels", "edges", "groups", "depth", "parallelism", "arithmetic", "parameters",
               "activations", "import", "peak memory"]  # fmt: skip
    table(columns, rows)
    for line in failed:
        print(line)
    return 1 if failed else 0


def _in_a_process(job: Sequence[str]) -> dict[str, Any] | str:
    """The output of `graph show --json` for `job`, or its error on one line."""
    command = [sys.executable, "-m", "placekit_core", "graph", "show", "--json", *job]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        _, prefix, error = f"\n{done.stderr}".rpartition("\nplacekit: ")
        return "; ".join(filter(None, map(str.strip, error.splitlines()))) if prefix else f"exit code {done.returncode}"
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _row(imported: Mapping[str, Any]) -> list[str]:
    facts = [Facts(**p) for p in imported["programs"]]

    def middle(values: Iterable[float]) -> float:
        return float(median(values))

    graphs = f"{len(facts)} x " if len(facts) > 1 else ""
    return [
        f"{graphs}{middle(f.operations for f in facts):.0f}",
        *(f"{middle(getattr(f, key) for f in facts):.0f}" for key in ("kernels", "edges", "groups")),
        f"{middle(f.levels for f in facts):.0f}",
        f"{middle(f.parallelism for f in facts):.2f}",
        f"{count(middle(f.flops for f in facts))}FLOP",
        mebibytes(middle(f.persistent_bytes.get("parameter", 0) for f in facts)),
        mebibytes(middle(f.activation_bytes for f in facts)),
        f"{imported['import_s']:.1f} s",
        mebibytes(imported["peak_bytes"]),
    ]
