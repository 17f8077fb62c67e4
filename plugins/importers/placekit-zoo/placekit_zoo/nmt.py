"""Neural machine translation with attention (Bahdanau et al. 2015, Luong et al. 2015, Wu et al. 2016).

The workload NMT of Mirhoseini et al. 2017 (section 4.1 and figure 4), Placeto and Post: an encoder of unidirectional LSTM
layers, and a decoder with attention after its top layer. B is the batch, S the length of the source sentences, T the length
of the target sentences, H the width of the layers.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from placekit_torch.step import Step
from torch import Tensor, nn

from placekit_zoo.base import ZooImporter
from placekit_zoo.lstm import LstmCell, Softmax, State, initialize, weight, zeros
from placekit_zoo.recurrent_options import NmtOptions


class Memory(nn.Module):
    """Makes the decoder's start values from the S outputs of the encoder, [B, H] each.

    Returns the outputs as one [B, S, H]; their projection, the keys of the attention; and zeros for the first input feeding.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = weight(hidden, hidden)

    def forward(self, *outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        memory = torch.stack(outputs, 1)
        return memory, F.linear(memory, self.weight), zeros(memory, memory.shape[2])


class Attention(nn.Module):
    """One attention step: the decoder's output, [B, H], to the attentional vector, [B, H].

    The scores are those of Bahdanau et al. 2015, v tanh(W query + keys). The attentional vector is that of Luong et al.
    2015, tanh(W [context; query]).
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query, self.score, self.output = weight(hidden, hidden), weight(1, hidden), weight(hidden, 2 * hidden)

    def forward(self, x: Tensor, memory: Tensor, keys: Tensor) -> Tensor:
        scores = F.linear(torch.tanh(F.linear(x, self.query).unsqueeze(1) + keys), self.score)  # [B, S, 1]
        context = torch.bmm(torch.softmax(scores, 1).transpose(1, 2), memory).squeeze(1)
        return torch.tanh(F.linear(torch.cat([context, x], 1), self.output))


def layers(inputs: int, hidden: int, count: int, dropout: float) -> nn.ModuleList:
    """LSTM layers; from the third on they are residual (Wu et al. 2016)."""
    return nn.ModuleList(LstmCell(hidden if i else inputs, hidden, dropout, residual=i >= 2) for i in range(count))


class Nmt(nn.Module):
    """[B, S] source and [B, T + 1] target pieces to the mean cross-entropy of the last T target pieces.

    The decoder starts from the final states of the encoder's layers. Its first layer reads the previous piece and the
    attentional vector of the previous step (input feeding, Luong et al. 2015), which is zeros at the first step.
    """

    def __init__(self, vocabulary: int, embedding: int, hidden: int, count: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.source_embedding = nn.Embedding(vocabulary, embedding)
        self.target_embedding = nn.Embedding(vocabulary, embedding)
        self.encoder = layers(embedding, hidden, count, dropout)
        self.memory = Memory(hidden)
        self.decoder = layers(embedding + hidden, hidden, count, dropout)
        self.attention = Attention(hidden)
        self.softmax = Softmax(hidden, vocabulary, dropout)
        initialize(self)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        states: list[State | None] = [None] * len(self.encoder)
        outputs = []
        for piece in source.unbind(1):
            x = self.source_embedding(piece)
            for i, cell in enumerate(self.encoder):
                x, states[i] = cell(states[i], x)
            outputs.append(x)
        memory, keys, fed = self.memory(*outputs)
        losses = []
        for piece, following in pairwise(target.unbind(1)):
            inputs: tuple[Tensor, ...] = (self.target_embedding(piece), fed)
            for i, cell in enumerate(self.decoder):
                x, states[i] = cell(states[i], *inputs)
                inputs = (x,)
            fed = self.attention(x, memory, keys)
            losses.append(self.softmax(fed, following))
        return torch.stack(losses).sum() / (len(losses) * len(source))


class NmtImporter(ZooImporter):
    """Importer `nmt`."""

    name = "nmt"
    options_class = NmtOptions

    def step(self) -> Step:
        """One step on pairs of random sentences."""
        o: NmtOptions = self.options
        network = Nmt(o.vocabulary, o.embedding or o.hidden, o.hidden, o.layers, o.dropout)
        source, target = (torch.randint(0, o.vocabulary, (o.batch, o.length + i)) for i in range(2))
        return Step(network, (source, target), optimizer=self.make_optimizer)
