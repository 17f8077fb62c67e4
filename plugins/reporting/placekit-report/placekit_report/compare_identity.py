"""Keys of runs: runs with one row key share a row, runs with one contest key may be compared."""

from __future__ import annotations

import json

from placekit_core import Summary
from placekit_core.run.config import CHANGES_NO_RESULT


def backend(result: Summary) -> str:
    """The backend of a run, with its objective: values of different ones are not comparable."""
    known = result.objective in ("makespan", result.backend)
    return result.backend if known else f"{result.backend} ({result.objective})"


def table_key(result: Summary) -> tuple[str, str, str]:
    """Workload, machine and backend as the user named them; a table shows one combination."""
    return result.workload, result.cluster, backend(result)


def problems(result: Summary) -> dict[str, str]:
    """Hashes of machine, graphs, costs and code."""
    return {
        "cluster": result.cluster_fingerprint,
        "graph": " ".join(p.graph_fingerprint for p in result.programs),
        "costs": " ".join(p.costs_fingerprint for p in result.programs),
        "code": " ".join(f"{k}:{v}" for k, v in sorted(result.code.items())),
    }


def row_key(result: Summary) -> str:
    """The key of a row: everything but the seed, names, and options that change no result."""
    named = CHANGES_NO_RESULT | {"seed", "importer", "workload", "cluster"}
    config = {k: v for k, v in result.config.items() if k not in named}
    return json.dumps([result.workload, result.status, *problems(result).values(), config], sort_keys=True)


def contest_key(result: Summary) -> str:
    """The key of runs whose values may be compared: program, machine, costs and backend."""
    problem = problems(result)
    same = [*table_key(result), problem["cluster"], problem["graph"], problem["costs"]]
    return json.dumps([*same, result.config.get("backend")], sort_keys=True)
