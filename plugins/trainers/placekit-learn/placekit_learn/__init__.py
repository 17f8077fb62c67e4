"""Trainers of learned policies, REINFORCE and PPO, and a base class of policies in torch."""

from __future__ import annotations

import os
import sys

from placekit_core import Component, hookimpl
from placekit_learn.options import PPOOptions, ReinforceOptions


@hookimpl
def placekit_facts() -> dict[str, str]:
    """The processor that compiled networks are compiled for: its vectors decide the order of sums, and so their last bits."""
    if "numba" not in sys.modules:
        return {}
    from llvmlite.binding import get_host_cpu_name

    return {"numba_cpu": os.environ.get("NUMBA_CPU_NAME") or get_host_cpu_name()}


@hookimpl
def placekit_trainers() -> list[Component]:
    return [
        Component(
            name="reinforce",
            summary="policy gradient with a moving-average baseline",
            config=ReinforceOptions,
            target="placekit_learn.policy_gradient:Reinforce",
            paper="Williams 1992; Mirhoseini et al. 2017, Device Placement Optimization with Reinforcement Learning",
        ),
        Component(
            name="ppo",
            summary="policy gradient with several steps per batch, kept close by clipping or a KL penalty",
            config=PPOOptions,
            target="placekit_learn.ppo:PPO",
            paper="Schulman et al. 2017, Proximal Policy Optimization Algorithms",
        ),
    ]
