"""Doppler's feed-forward network (Yao et al. 2026, appendix C.2): softmax(ReLU(X W1 + b1) W2 + b2)."""

from __future__ import annotations

import torch
from placekit_torch.step import Step
from torch import nn

from placekit_zoo.base import ZooImporter
from placekit_zoo.dense_options import FfnnOptions


def ffnn(features: int, hidden: int, classes: int) -> nn.Sequential:
    """[B, features] to [B, classes] probabilities."""
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes), nn.Softmax(-1))


class FfnnImporter(ZooImporter):
    """Importer `ffnn`."""

    name = "ffnn"
    options_class = FfnnOptions

    def step(self) -> Step:
        """The forward pass on random rows; for training, the mean squared error against random probabilities."""
        o: FfnnOptions = self.options
        inputs, targets = torch.randn(o.batch, o.features), torch.rand(o.batch, o.classes)
        return Step(ffnn(o.features, o.hidden, o.classes), inputs, nn.functional.mse_loss, targets, self.make_optimizer)
