"""The network's parameters."""

from __future__ import annotations

import torch
from torch import nn

from placekit_placeto.arrays import Weights

FIRST = 0.1
"""Factor on the weights of the last layer: at first, the devices of a decision are about equally likely."""


class Network(nn.Module):
    """The parameters of `Weights`, initialised; `reference.py` and `kernel.py` say what is computed with them."""

    def __init__(self, size: int, devices: int) -> None:
        super().__init__()
        for name, shape in Weights.shapes(size, devices).items():
            if name.endswith("bias"):
                values = torch.zeros(shape)
            else:
                values = torch.randn(shape) * (FIRST if name == "head_out" else 1.0) / shape[-2] ** 0.5
            self.register_parameter(name, nn.Parameter(values))

    @property
    def devices(self) -> int:
        """Number of devices that there is room for."""
        return int(self.get_parameter("head_out_bias").shape[0])

    def weights(self) -> Weights:
        """The parameters as arrays, which share their memory."""
        return Weights(*(self.get_parameter(name).detach().numpy() for name in Weights._fields))
