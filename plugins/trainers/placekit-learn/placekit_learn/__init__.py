"""Trainers of learned policies, REINFORCE and PPO, and a base class of policies in torch."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from placekit_core import Component, hookimpl
from placekit_learn.options import PPOOptions, ReinforceOptions

if TYPE_CHECKING:
    from placekit_learn.torch_options import TorchOptions as TorchOptions, TorchPolicyOptions as TorchPolicyOptions
    from placekit_learn.torch_policy import (
        Decisions as Decisions,
        TorchParameters as TorchParameters,
        TorchPolicy as TorchPolicy,
    )

_HOME = {
    "Decisions": "torch_policy",
    "TorchOptions": "torch_options",
    "TorchParameters": "torch_policy",
    "TorchPolicy": "torch_policy",
    "TorchPolicyOptions": "torch_options",
}
VECTORS = ("avx512f", "avx2", "avx", "sve", "neon")  # LLVM's names, the widest first


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'placekit_learn' has no attribute {name!r}")
    return getattr(importlib.import_module(f"placekit_learn.{_HOME[name]}"), name)


@hookimpl
def placekit_facts() -> dict[str, str]:
    """The vector instructions of torch and numba: they decide the order of additions, and so the last bits of results."""
    found, torch, numba = dict[str, str](), sys.modules.get("torch"), sys.modules.get("numba")
    if torch is not None:
        found["torch_cpu"] = str(torch.backends.cpu.get_cpu_capability())
    if numba is not None:
        from llvmlite.binding import get_host_cpu_features, get_host_cpu_name

        features = get_host_cpu_features()
        widest = next((name for name in VECTORS if features.get(name)), "no vectors")
        found["numba_cpu"] = str(numba.config.CPU_NAME or f"{get_host_cpu_name()}, {widest}")
    return found


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
