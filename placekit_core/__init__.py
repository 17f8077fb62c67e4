"""placekit: which device runs which operation. The core: contracts, data flow, command line.

Importing this package imports neither torch nor numba nor hydra; the names below are loaded at first use.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placekit_core.api import Search, load_programs, place, search
    from placekit_core.cluster import Cluster
    from placekit_core.errors import PlacekitError
    from placekit_core.graph import Graph, GraphBuilder
    from placekit_core.placement import Placement, Placements
    from placekit_core.problem import Problem, Program, Task
    from placekit_core.report import Result

try:
    __version__ = version("placekit")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

_HOME = {
    "Cluster": "cluster",
    "Graph": "graph",
    "GraphBuilder": "graph",
    "PlacekitError": "errors",
    "Placement": "placement",
    "Placements": "placement",
    "Problem": "problem",
    "Program": "problem",
    "Result": "report",
    "Search": "api",
    "Task": "problem",
    "load_programs": "api",
    "place": "api",
    "search": "api",
}

__all__ = [
    "Cluster",
    "Graph",
    "GraphBuilder",
    "PlacekitError",
    "Placement",
    "Placements",
    "Problem",
    "Program",
    "Result",
    "Search",
    "Task",
    "__version__",
    "load_programs",
    "place",
    "search",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'placekit_core' has no attribute {name!r}")
    return getattr(importlib.import_module(f"placekit_core.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
