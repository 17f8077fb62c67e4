"""What several networks see of a group: the types of its operations, and its place in a sequence."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn


def places(steps: int, octaves: int) -> Tensor:
    """[T, 2 * octaves] sines and cosines of the places of a sequence, which is one period of the lowest octave."""
    angle = 2 * np.pi / steps * torch.arange(steps)[:, None] * 2.0 ** torch.arange(octaves)
    return torch.cat([angle.sin(), angle.cos()], dim=1)


class TypeEmbedding(nn.Module):
    """A trainable vector per bucket of types, added to one that all types share.

    The buckets' vectors start at zero: a type that training never saw has the shared vector alone, unless its bucket was
    trained.
    """

    def __init__(self, buckets: int, size: int) -> None:
        super().__init__()
        self.unknown = nn.Parameter(0.1 * torch.randn(size))  # small, because all groups have it in common
        self.types = nn.Parameter(torch.zeros(buckets, size))

    def forward(self, bucket: Tensor, share: Tensor) -> Tensor:
        """[..., size] means over the types of `bucket` [V], weighted by `share` [..., V]."""
        mean: Tensor = share @ self.types[bucket] + self.unknown
        return mean
