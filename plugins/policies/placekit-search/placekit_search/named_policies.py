"""Builds the policies in option `starts` of `portfolio`, whose placements its searches start from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from placekit_core import ConfigError, LearnablePolicy, NotApplicable, Policy, Task, installed, load_policy
from placekit_search.options import PortfolioOptions


def build_starts(starts: Mapping[str, Mapping[str, Any]], by: str) -> dict[str, Policy]:
    """Build the policies of option `starts` of policy `by`. Default ones that are not installed are skipped.

    Raises PluginError for any other policy that is not installed or broken; ConfigError for unknown options.
    """
    policies: dict[str, Policy] = {}
    default = PortfolioOptions.model_fields["starts"].default
    for name, values in starts.items():
        if name == by:
            raise ConfigError("policy.starts: the portfolio cannot start from itself", "name other policies")
        if name in default and name not in installed().names("policy"):
            continue
        entry = installed().get("policy", name)
        options = entry.options(values, f"policy.starts.{name}.")
        try:
            policies[name] = entry.build(options)
        except NotApplicable:  # its library has no wheel for this platform
            if name not in default:
                raise
    for name, policy in policies.items():
        if isinstance(policy, LearnablePolicy) and policy.options.checkpoint is None:
            raise ConfigError(
                f"policy.starts: {name!r} learns, so it needs trained parameters to start a search",
                f"set policy.starts.{name}.checkpoint to a run directory, or to pkg://PACKAGE/FOLDER in an installed package",
            )
    return policies


def load_trained(policies: Mapping[str, Policy], task: Task) -> None:
    """Load the parameters of the policies that learn. Raises RunError if they do not fit."""
    with task.evaluate.ledger.paused():  # loading does not count in a run of that policy alone either
        for name, policy in policies.items():
            if isinstance(policy, LearnablePolicy):
                policy.build([task.problem], np.random.default_rng(0))
                load_policy(policy, policy.options.checkpoint, f"policy.starts.{name}.checkpoint")
