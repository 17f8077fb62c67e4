"""Turns problems, placements and measurements into plain arrays, strings and numbers for other processes, and back."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from placekit_core import (
    BackendError,
    Cluster,
    CostTable,
    Grouping,
    Measurements,
    Placements,
    Problem,
    load_graph,
    save_graph,
)

Plain = Mapping[str, Any]


def packed(problem: Problem) -> dict[str, Any]:
    """A problem as plain data: the bytes of a graph file, arrays, and a cluster as in its YAML file."""
    with tempfile.TemporaryDirectory() as folder:
        graph = save_graph(problem.graph, Path(folder) / "x.graph.npz").read_bytes()
    return {
        "graph": graph,
        "group_of": problem.grouping.group_of,
        "names": list(problem.grouping.names),
        "cluster": problem.cluster.model_dump(mode="json"),
        "kinds": list(problem.costs.kinds),
        "op_s": problem.costs.op_s,
        "measured": problem.costs.measured,
        "fingerprint": problem.fingerprint,
    }


def unpacked(data: Plain) -> Problem:
    """The problem from the data of `packed`. Raises BackendError if it differs here, as with other versions of the code."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.graph.npz"
        path.write_bytes(data["graph"])
        graph = load_graph(path)
    grouping = Grouping(np.array(data["group_of"]), tuple(data["names"]))
    costs = CostTable(tuple(data["kinds"]), np.array(data["op_s"]), np.array(data["measured"]))
    problem = Problem(graph, grouping, Cluster.parse(data["cluster"]), costs)
    if problem.fingerprint != data["fingerprint"]:
        raise BackendError(
            f"{problem.graph.name!r} is a different problem on this machine",
            "install the same version of placekit on all machines",
        )
    return problem


def placements_as(placements: Placements) -> dict[str, Any]:
    """Placements as plain data."""
    return {"device": placements.device, "priority": placements.priority}


def placements_from(data: Plain) -> Placements:
    """The placements from the data of `placements_as`, with writable copies of Ray's read-only arrays."""
    priority = data["priority"]
    return Placements(np.array(data["device"]), None if priority is None else np.array(priority))


def measurements_as(m: Measurements) -> dict[str, Any]:
    """Measurements as plain data."""
    return {
        "value_s": m.value_s, "peak_bytes": m.peak_bytes, "fits": m.fits, "error": list(m.error), "spread_s": m.spread_s,
    }  # fmt: skip


def measurements_from(data: Plain) -> Measurements:
    """The measurements from the data of `measurements_as`, with writable copies of the arrays."""
    spread = data["spread_s"]
    return Measurements(
        np.array(data["value_s"]),
        np.array(data["peak_bytes"]),
        np.array(data["fits"]),
        tuple(data["error"]),
        None if spread is None else np.array(spread),
    )
