"""The placement network (sections 3.2 and 3.3): attention over segments of the graph, and superposition."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad, scaled_dot_product_attention

SCALED = 0.1
"""Factor on the weights of the conditioning layers: at first, they scale their inputs by about 1."""


class Dense(nn.Module):
    """A dense layer with superposition: W (c(x0) * x) + b, where c is a dense layer of the graph's embedding x0.

    Args:
        inputs, outputs: lengths of x and of the result.
        graph: length of x0; 0: no superposition, c is 1.
    """

    def __init__(self, inputs: int, outputs: int, graph: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)
        self.condition = nn.Linear(graph, inputs) if graph else None
        if self.condition is not None:
            with torch.no_grad():
                self.condition.weight.mul_(SCALED)
                self.condition.bias.fill_(1.0)

    def forward(self, x: Tensor, x0: Tensor) -> Tensor:
        """[..., outputs] from x [..., inputs] and x0 [graph]."""
        found: Tensor = self.dense(x if self.condition is None else self.condition(x0) * x)
        return found


class Attention(nn.Module):
    """Attention of the groups of each segment to those of their own and of the previous segment.

    As in Transformer-XL (Dai et al. 2019), no gradient goes back into the previous segment. Unlike there, positions are
    not encoded, since the embeddings depend on the graph, and groups also attend to later groups.
    """

    def __init__(self, hidden: int, heads: int, graph: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (Dense(hidden, hidden, graph) for _ in range(4))

    def forward(self, x: Tensor, x0: Tensor, closed: Tensor) -> Tensor:
        """[S, L, H] from the groups of S segments of length L; `closed` [S, 2L]: keys that no group may attend to.

        The first L keys of a segment are the groups of the segment before.
        """
        before = pad(x.detach()[:-1], (0, 0, 0, 0, 1, 0))  # the first segment has none before it: zeros, closed
        seen = torch.cat([before, x], dim=1)
        query, key, value = (
            layer(y, x0).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer, y in ((self.query, x), (self.key, seen), (self.value, seen))
        )
        found = scaled_dot_product_attention(query, key, value, attn_mask=~closed[:, None, None])
        mixed: Tensor = self.output(found.transpose(1, 2).flatten(2), x0)
        return mixed


class Layer(nn.Module):
    """Attention and a feed-forward network, each with a layer norm before it and the input added to it."""

    def __init__(self, hidden: int, heads: int, graph: int, attends: bool) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads, graph) if attends else None
        self.norm = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(1 + attends))
        self.wide, self.narrow = Dense(hidden, 2 * hidden, graph), Dense(2 * hidden, hidden, graph)

    def forward(self, x: Tensor, x0: Tensor, closed: Tensor) -> Tensor:
        """[S, L, H]; arguments as in `Attention`."""
        if self.attention is not None:
            x = x + self.attention(self.norm[1](x), x0, closed)
        y: Tensor = gelu(self.wide(self.norm[0](x), x0))
        found: Tensor = x + self.narrow(y, x0)
        return found


class Placer(nn.Module):
    """From the embeddings of all groups to a softmax over D devices for each.

    Args:
        hidden: H, length of an embedding.
        devices: D.
        layers, heads: of attention and feed-forward networks.
        segment: L, length of a segment.
        attends: False leaves attention out.
        superposition: whether the graph's embedding scales the inputs of the dense layers.
    """

    def __init__(
        self, hidden: int, devices: int, layers: int, heads: int, segment: int, attends: bool, superposition: bool
    ) -> None:
        super().__init__()
        graph = hidden if superposition else 0
        self.segment = segment
        self.layers = nn.ModuleList(Layer(hidden, heads, graph, attends) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.output = Dense(hidden, devices, graph)

    def forward(self, h: Tensor) -> Tensor:
        """[g, D] logits from embeddings [g, H] in topological order. Takes g * L steps, not g * g."""
        g = len(h)
        length = min(self.segment, g)
        empty = -g % length
        x0 = h.mean(dim=0)
        x = pad(h, (0, 0, 0, empty)).view(-1, length, h.shape[1])
        own = (torch.arange(g + empty) >= g).view(-1, length)
        closed = torch.cat([pad(own[:-1], (0, 0, 1, 0), value=True), own], dim=1)
        for layer in self.layers:
            x = layer(x, x0, closed)
        logits: Tensor = self.output(self.norm(x.flatten(0, 1)[:g]), x0)
        return logits
