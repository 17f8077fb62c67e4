"""Levels, list scheduling, proven bounds, and the interface of compiled evaluations (`Kernel`).

Each name is loaded at first use, and importing this package does not import numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placekit_scheduling.abi import (
        BY_HOST as BY_HOST,
        Kernel as Kernel,
        Trace as Trace,
        kernel_signature as kernel_signature,
    )
    from placekit_scheduling.bounds.makespan import (
        ROUNDING as ROUNDING,
        all_bounds as all_bounds,
        binding_argument as binding_argument,
        critical_path_bound as critical_path_bound,
        makespan_bound as makespan_bound,
    )
    from placekit_scheduling.bounds.offload import offload_bound as offload_bound
    from placekit_scheduling.list_scheduling.levels import (
        b_level as b_level,
        critical_path as critical_path,
        critical_path_device as critical_path_device,
        group_priority as group_priority,
        mean_optimistic_cost as mean_optimistic_cost,
        op_cost as op_cost,
        optimistic_cost as optimistic_cost,
        t_level as t_level,
        transfer_cost as transfer_cost,
    )
    from placekit_scheduling.list_scheduling.scheduler import (
        RULES as RULES,
        ListScheduler as ListScheduler,
        Rule as Rule,
        warm_up as warm_up,
    )
    from placekit_scheduling.symmetry import device_classes as device_classes

_HOME = {
    "abi": "BY_HOST Kernel Trace kernel_signature",
    "bounds.makespan": "ROUNDING all_bounds binding_argument critical_path_bound makespan_bound",
    "bounds.offload": "offload_bound",
    "list_scheduling.levels": (
        "b_level critical_path critical_path_device group_priority mean_optimistic_cost op_cost optimistic_cost t_level"
        " transfer_cost"
    ),
    "list_scheduling.scheduler": "RULES ListScheduler Rule warm_up",
    "symmetry": "device_classes",
}
"""The names of each module that this package exports."""

_MODULE = {name: module for module, names in _HOME.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'placekit_scheduling' has no attribute {name!r}")
    return getattr(importlib.import_module(f"placekit_scheduling.{_MODULE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_MODULE)
