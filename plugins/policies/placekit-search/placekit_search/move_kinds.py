"""The kinds of moves, and how often a search makes each kind."""

from __future__ import annotations

from collections.abc import Mapping

KINDS = ("single", "swap", "cluster", "region", "piece", "exchange", "critical", "transfer", "order", "shift", "level")
ORDERING = ("order", "level")  # the kinds that change priorities

# Relative weights, tuned together on the sharded programs and the networks of benchmarks/quality.py. The functions in
# `moves.py` describe the kinds.
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


def applicable(weights: Mapping[str, float], makespan: bool = True, priorities: bool = True) -> dict[str, float]:
    """`weights`, with 0 for the kinds that do not apply.

    `shift` keeps pipeline stages contiguous, and is for objectives other than the makespan. Guided moves are for makespans.
    Moves that change priorities are for backends where `priorities` matter.
    """
    if makespan:
        unused = ("shift", *(() if priorities else ORDERING))
    else:
        unused = ("critical", "transfer", *ORDERING)
    return {kind: 0.0 if kind in unused else weights[kind] for kind in KINDS}
