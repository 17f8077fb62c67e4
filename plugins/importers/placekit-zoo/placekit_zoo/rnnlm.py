"""A recurrent language model (Zaremba et al. 2014, "Recurrent Neural Network Regularization", arXiv 1409.2329).

The workload RNNLM of Mirhoseini et al. 2017 (section 4.1) and Post. Dependencies for 2 layers:

    softmax      0     1     2
                 ↑     ↑     ↑
    cells.1      0 ──▶ 1 ──▶ 2 ──▶
                 ↑     ↑     ↑
    cells.0      0 ──▶ 1 ──▶ 2 ──▶
                 ↑     ↑     ↑
    embedding    0     1     2        number of the call = time step
"""

from __future__ import annotations

from itertools import pairwise

import torch
from placekit_torch.step import Step
from torch import Tensor, nn

from placekit_zoo.base import ZooImporter
from placekit_zoo.lstm import LstmCell, Softmax, State, initialize
from placekit_zoo.recurrent_options import RnnlmOptions


class Rnnlm(nn.Module):
    """[B, T + 1] words to the mean cross-entropy of the last T words, each given the words before it."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.cells = nn.ModuleList(LstmCell(hidden if i else embedding, hidden, dropout) for i in range(layers))
        self.softmax = Softmax(hidden, vocabulary, dropout)
        initialize(self)

    def forward(self, words: Tensor) -> Tensor:
        states: list[State | None] = [None] * len(self.cells)
        losses = []
        for word, following in pairwise(words.unbind(1)):
            x = self.embedding(word)
            for i, cell in enumerate(self.cells):
                x, states[i] = cell(states[i], x)
            losses.append(self.softmax(x, following))
        return torch.stack(losses).sum() / (len(losses) * len(words))


class RnnlmImporter(ZooImporter):
    """Importer `rnnlm`."""

    name = "rnnlm"
    options_class = RnnlmOptions

    def step(self) -> Step:
        """One step on random words."""
        o: RnnlmOptions = self.options
        network = Rnnlm(o.vocabulary, o.embedding or o.hidden, o.hidden, o.layers, o.dropout)
        return Step(network, torch.randint(0, o.vocabulary, (o.batch, o.steps + 1)), optimizer=self.make_optimizer)
