"""The base class of this package's importers, which define a method `step` that builds the network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from placekit_torch.custom_kernels import FusedAdam
from placekit_torch.factory import Made
from placekit_torch.importer import import_program
from placekit_torch.options import Kernels
from placekit_torch.step import Step

from placekit_core import Importer, Program

OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "fused_adam": FusedAdam,
}

KERNELS = Kernels(optimizer_kernels="single")  # type: ignore[call-arg]
"""Options of importer `torch`: updates run one kernel per operation and parameter, as in the papers' frameworks."""


class ZooImporter(Importer):
    """A network with options; a subclass defines how one step of it is built."""

    optimizer_settings: Mapping[str, Mapping[str, Any]] = {"sgd": {"lr": 0.01, "momentum": 0.9}}
    """Keyword arguments by name of the optimiser; others have torch's defaults."""

    @abstractmethod
    def step(self) -> Step:
        """Build the network with inputs, targets and loss; called for tracing (with fake parameters) and for execution."""

    def make_optimizer(self, parameters: Iterable[Any]) -> torch.optim.Optimizer:
        """The optimiser named in the options."""
        name = self.options.optimizer
        return OPTIMIZERS[name](parameters, **self.optimizer_settings.get(name, {}))

    def load(self) -> list[Program]:
        """One program, named after the network."""
        options = self.options
        recipe = {"importer": self.name, "options": options.model_dump(mode="json")}
        builder = Made(self.step, self.name)
        return [
            import_program(
                builder, name=self.name, mode=options.mode, seed=options.seed, recipe=recipe, kernels=KERNELS
            )
        ]
