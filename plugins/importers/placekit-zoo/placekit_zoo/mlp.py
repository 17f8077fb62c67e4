"""A multi-layer perceptron: linear layers with ReLU between them."""

from __future__ import annotations

from itertools import pairwise

import torch
from placekit_torch.step import Step
from torch import nn

from placekit_zoo.base import ZooImporter
from placekit_zoo.dense_options import MlpOptions


def mlp(features: int, hidden: list[int], classes: int) -> nn.Sequential:
    """Linear layers of the widths `features`, `hidden`, `classes`, with ReLU between them."""
    layers: list[nn.Module] = []
    for a, b in pairwise([features, *hidden, classes]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class MlpImporter(ZooImporter):
    """Importer `mlp`."""

    name = "mlp"
    options_class = MlpOptions

    def step(self) -> Step:
        """Cross-entropy of random features against random classes."""
        o: MlpOptions = self.options
        inputs, targets = torch.randn(o.batch, o.features), torch.randint(0, o.classes, (o.batch,))
        return Step(
            mlp(o.features, o.hidden, o.classes), inputs, nn.functional.cross_entropy, targets, self.make_optimizer
        )
