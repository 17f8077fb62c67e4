"""The kinds of moves, and how often a search makes each of them."""

from __future__ import annotations

from collections.abc import Mapping

KINDS = ("single", "swap", "cluster", "region", "piece", "exchange", "critical", "transfer", "order", "shift", "level")
ORDERING = ("order", "level")  # the kinds that change priorities

# Relative weights; each kind is described at its function in `moves.py`. They were tuned together on the sharded programs and
# the networks of benchmarks/quality.py.
ANNEALING: Mapping[str, float] = {
    "single": 0.03,
    "swap": 0.02,
    "cluster": 0.02,
    "region": 0.05,
    "piece": 0.06,
    "exchange": 0.06,
    "critical": 0.3,
    "transfer": 0.3,
    "order": 0.4,
    "shift": 0.4,
    "level": 0.0,
}
PORTFOLIO: Mapping[str, float] = {**ANNEALING, "order": 0.2, "level": 0.05}


def used(weights: Mapping[str, float], makespan: bool = True, priorities: bool = True) -> dict[str, float]:
    """The weights of the kinds that make sense; the others get 0.

    Moves that keep stages contiguous (`shift`) are for other objectives than a makespan. Moves guided by a schedule are for
    makespans, and moves that change priorities for backends on which `priorities` matter.
    """
    if makespan:
        unused = ("shift", *(() if priorities else ORDERING))
    else:
        unused = ("critical", "transfer", *ORDERING)
    return {kind: 0.0 if kind in unused else weights[kind] for kind in KINDS}
