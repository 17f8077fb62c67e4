"""Parts of the recurrent networks. Each call of a part is one step of one layer, so steps and layers form a grid.

B is the batch. A module holds its weights itself, without submodules, so all operations of a step have the module's path and
the number of the call.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = tuple[Tensor, Tensor]


def weight(*shape: int) -> nn.Parameter:
    """A parameter of this shape, not initialised yet; see `initialize`."""
    return nn.Parameter(torch.empty(*shape))


def initialize(network: nn.Module) -> None:
    """All parameters uniform in [-0.04, 0.04], as in Zaremba et al. 2014 and Wu et al. 2016."""
    for parameter in network.parameters():
        nn.init.uniform_(parameter, -0.04, 0.04)


def zeros(x: Tensor, width: int) -> Tensor:
    """[B, width] zeros for `x`, [B, ...]; unlike `x.new_zeros`, they do not wait for `x`."""
    return torch.zeros(len(x), width, dtype=x.dtype, device=x.device)


def dropped(x: Tensor, probability: float, training: bool) -> Tensor:
    """`x` with dropout; `x` itself, not a copy, if nothing can be dropped."""
    return F.dropout(x, probability) if probability and training else x


class LstmCell(nn.Module):
    """One step of an LSTM layer (Zaremba et al. 2014), with one matrix product for its four gates.

    It takes the state (h, c), each [B, hidden] or None for zeros, and inputs [B, ...] with widths that sum to `inputs`. It
    returns the output [B, hidden] and the new state. Dropout applies to the inputs, not to the state. With `residual`, the
    first input, [B, hidden], is added to the output (Wu et al. 2016).
    """

    def __init__(self, inputs: int, hidden: int, dropout: float, residual: bool = False) -> None:
        super().__init__()
        self.hidden, self.dropout, self.residual = hidden, dropout, residual
        self.weight, self.bias = weight(4 * hidden, inputs + hidden), weight(4 * hidden)

    def forward(self, state: State | None, *inputs: Tensor) -> tuple[Tensor, State]:
        if state is None:
            state = (zeros(inputs[0], self.hidden),) * 2
        h, c = state
        x = torch.cat([*(dropped(x, self.dropout, self.training) for x in inputs), h], 1)
        i, f, o, g = F.linear(x, self.weight, self.bias).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return (inputs[0] + h if self.residual else h), (h, c)


class Softmax(nn.Module):
    """One prediction step: [B, hidden] features and the next words, [B], to the sum of their cross-entropies."""

    def __init__(self, hidden: int, vocabulary: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.weight, self.bias = weight(vocabulary, hidden), weight(vocabulary)

    def forward(self, x: Tensor, following: Tensor) -> Tensor:
        logits = F.linear(dropped(x, self.dropout, self.training), self.weight, self.bias)
        return F.cross_entropy(logits, following, reduction="sum")
