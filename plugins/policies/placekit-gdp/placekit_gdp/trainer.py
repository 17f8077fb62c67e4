"""The trainer `ppo` with smaller steps, for GDP's network."""

from __future__ import annotations

from placekit_learn.ppo import PPO

from placekit_gdp import GDPTrainerOptions


class GDPTrainer(PPO):
    """Proximal policy optimisation, as `ppo` does it, with other defaults: smaller steps, rewards compared within a batch."""

    name = "ppo_gdp"
    options_class = GDPTrainerOptions
    options: GDPTrainerOptions
