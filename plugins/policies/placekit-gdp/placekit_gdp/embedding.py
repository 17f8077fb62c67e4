"""The graph network (section 3.1): each group's embedding from its features and, layer by layer, its neighbours'."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu


def pooled(values: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """[g, H] for each group, the maximum over its neighbours of `values` [g, H], which are not negative.

    Groups without neighbours have zeros. `source`, `target`: [e] the ends of each edge.
    """
    at = target[:, None].expand(-1, values.shape[1])
    return torch.zeros_like(values).scatter_reduce(0, at, values[source], "amax")


class GraphEmbedding(nn.Module):
    """GraphSAGE (Hamilton et al. 2017) with max pooling, trained with the rest.

    h_N(v) = max over neighbours u of sigmoid(W h_u + b); h_v' = f(concat(h_v, h_N(v))), with f a dense layer, GELU
    and a layer norm.

    Args:
        features: F, length of a group's features.
        hidden: H, length of an embedding.
        rounds: number of layers.
    """

    def __init__(self, features: int, hidden: int, rounds: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.message = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(rounds))
        self.update = nn.ModuleList(nn.Linear(2 * hidden, hidden) for _ in range(rounds))
        self.norm = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(rounds + 1))

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """[g, H] embeddings from features [g, F] and edges (`source`, `target` [e])."""
        h: Tensor = self.norm[0](gelu(self.first(x)))
        for message, update, norm in zip(self.message, self.update, self.norm[1:], strict=True):
            near = pooled(message(h).sigmoid(), source, target)
            h = norm(gelu(update(torch.cat([h, near], dim=1))))
        return h
