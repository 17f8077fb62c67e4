"""The trainer `ppo` with settings for GDP."""

from __future__ import annotations

from placekit_learn.ppo import PPO

from placekit_gdp import GDPTrainerOptions


class GDPTrainer(PPO):
    """Proximal policy optimisation, as `ppo` does it; only the defaults differ."""

    name = "ppo_gdp"
    options_class = GDPTrainerOptions
    options: GDPTrainerOptions
