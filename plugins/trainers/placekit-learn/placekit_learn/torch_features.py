"""Features that several networks use: the types of a group's operations, and its position in a sequence."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn


def positional_encoding(steps: int, octaves: int) -> Tensor:
    """[T, 2 * octaves] sines and cosines of each position, with 1, 2, 4, ... periods in the whole sequence."""
    angle = 2 * np.pi / steps * torch.arange(steps)[:, None] * 2.0 ** torch.arange(octaves)
    return torch.cat([angle.sin(), angle.cos()], dim=1)


class TypeEmbedding(nn.Module):
    """A trainable vector for each bucket of types, plus one that all types share.

    The buckets' vectors start at zero: a type that did not occur in training has the shared vector alone, unless another type
    of its bucket did.
    """

    def __init__(self, buckets: int, size: int) -> None:
        super().__init__()
        self.unknown = nn.Parameter(0.1 * torch.randn(size))  # small, because all groups have it in common
        self.types = nn.Parameter(torch.zeros(buckets, size))

    def forward(self, bucket: Tensor, share: Tensor) -> Tensor:
        """[..., size] means over the types of `bucket` [V], weighted by `share` [..., V]."""
        mean: Tensor = share @ self.types[bucket] + self.unknown
        return mean
