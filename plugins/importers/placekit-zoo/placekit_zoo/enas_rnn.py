"""Language models of ENAS's recurrent search space (Pham et al. 2018, arXiv 1802.03268, sections 2.1 and 3.1).

The search is for the nodes of the cell: for each node, the earlier node that it reads, and its activation f. From the value h
of that node and two products of h, c and t, a node computes h + sigmoid(c) * (f(t) - h), a highway connection (Zilly et al.
2017). The first node's h is the cell's output in the step before; its products are of that output and the word. The cell's
output is the mean of the nodes that no other node reads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce

import torch
import torch.nn.functional as F
from placekit_torch.step import Step
from torch import Tensor, nn

from placekit_zoo.base import OPTIMIZERS
from placekit_zoo.enas import RecurrentNode, SampledRnn
from placekit_zoo.family_options import PlacetoPtbOptions
from placekit_zoo.lstm import initialize, weight

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}


class EnasCell(nn.Module):
    """One step: word x and previous output h, both [B, H], to the output [B, H]; one product per node gives c and t."""

    def __init__(self, nodes: list[RecurrentNode], hidden: int) -> None:
        super().__init__()
        self.reads = [i for i, _ in nodes]
        self.activations = [ACTIVATIONS[kind] for _, kind in nodes]
        self.loose = sorted({*range(len(nodes))} - {*self.reads})
        self.weights = nn.ParameterList(weight(2 * hidden, hidden if i else 2 * hidden) for i in range(len(nodes)))

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        values: list[Tensor] = []
        for read, f, w in zip(self.reads, self.activations, self.weights, strict=True):
            before = h if read < 0 else values[read]
            c, t = F.linear(torch.cat([x, h], 1) if read < 0 else before, w).chunk(2, 1)
            values.append(before + torch.sigmoid(c) * (f(t) - before))
        loose = [values[i] for i in self.loose]
        mean: Tensor = reduce(torch.add, loose) / len(loose)
        return mean


class EnasRnn(nn.Module):
    """[B, T + 1] words to the mean cross-entropy of the last T; embedding and softmax share their weights."""

    def __init__(self, nodes: list[RecurrentNode], vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.cell = EnasCell(nodes, hidden)
        initialize(self)

    def forward(self, words: Tensor) -> Tensor:
        h = self.embedding.weight.new_zeros(len(words), self.embedding.embedding_dim)
        outputs = []
        for word in words[:, :-1].unbind(1):
            h = self.cell(self.embedding(word), h)
            outputs.append(h)
        logits = F.linear(torch.cat(outputs), self.embedding.weight)
        return F.cross_entropy(logits, words[:, 1:].t().flatten())


def step(o: PlacetoPtbOptions, sampled: SampledRnn) -> Step:
    """One step on random words."""
    words = torch.randint(0, o.vocabulary, (o.batch, sampled["steps"] + 1))
    settings = {"sgd": {"lr": 0.1}}.get(o.optimizer, {})
    network = EnasRnn(sampled["cell"], o.vocabulary, o.hidden)
    return Step(network, words, optimizer=partial(OPTIMIZERS[o.optimizer], **settings))
