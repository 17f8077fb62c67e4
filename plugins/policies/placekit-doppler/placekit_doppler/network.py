"""The networks of SEL and PLC in torch (section 5.2), as far as their outputs are fixed within an episode."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from placekit_doppler.arrays import FEATURES, SLOPE, STATIC, WEIGHTS
from placekit_doppler.features import Features


class Inputs(NamedTuple):
    """`Features` as tensors."""

    static: Tensor  # [k, 5]
    edge: Tensor  # [2, 2 e]
    edge_s: Tensor  # [2 e]
    to_entry: Tensor  # [k, k] sparse: means over the paths
    to_exit: Tensor

    @classmethod
    def of(cls, features: Features, device: torch.device | str = "cpu") -> Inputs:
        """The features as tensors on a torch device."""
        tensors = (
            torch.from_numpy(features.static), torch.from_numpy(features.edge), torch.from_numpy(features.edge_s),
            _means(features.to_entry, len(features.op)), _means(features.to_exit, len(features.op)),
        )  # fmt: skip
        return cls(*(x.to(device) for x in tensors))


DYNAMIC = 3
"""Further features, if messages are passed anew for every decision: placed or not, start and finish over the makespan."""


class NetworkOutputs(NamedTuple):
    """The networks' outputs for k operations, see `arrays.OutputArrays`; given states, episodes are the first dimension."""

    score: Tensor  # [k]
    own: Tensor  # [k, h]
    sent: Tensor  # [k, h]


class MessagePassing(nn.Module):
    """Embeddings of operations: rounds of an edge-conditioned convolution and a GRU, with shared weights (Gilmer et al. 2017).

    A message is (W0 + w W1) times the sender's embedding, where w is the edge's feature; messages are summed.
    """

    def __init__(self, size: int, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds
        self.edge = nn.Linear(1, size * size)
        self.root = nn.Linear(size, size)
        self.update = nn.GRUCell(size, size)
        nn.init.normal_(self.edge.weight, std=0.1 * size**-0.5)
        nn.init.uniform_(self.edge.bias, -(size**-0.5), size**-0.5)

    def forward(self, h: Tensor, edge: Tensor, edge_s: Tensor) -> Tensor:
        """[..., k, size] embeddings, from initial ones of the same shape."""
        size = h.shape[-1]
        slope, plain = self.edge.weight.view(size, size), self.edge.bias.view(size, size)
        both = torch.cat([plain, slope], dim=1)
        sender, receiver = edge
        for _ in range(self.rounds):
            carried = (h @ both).index_select(-2, sender)
            message = carried[..., :size] + edge_s[:, None] * carried[..., size:]
            total = self.root(h).index_add(-2, receiver, message)
            h = self.update(_active(total).reshape(-1, size), h.reshape(-1, size)).view_as(h)
        return h


class Encoder(nn.Module):
    """A network's own view of the operations: features and embeddings, [..., k, size] each.

    The state of an episode enters only the embeddings: the operation of the next decision is itself not placed yet.
    """

    def __init__(self, size: int, rounds: int, dynamic: bool) -> None:
        super().__init__()
        self.features = nn.Linear(len(STATIC), size)
        self.entry = nn.Linear(len(STATIC) + (DYNAMIC if dynamic else 0), size)
        self.messages = MessagePassing(size, rounds)

    def forward(self, x: Inputs, state: Tensor | None) -> tuple[Tensor, Tensor]:
        node = x.static
        if state is not None:
            node = torch.cat([node.expand(len(state), *node.shape), state], dim=2)
        h = self.messages(_active(self.entry(node)), x.edge, x.edge_s)
        return _active(self.features(x.static)).expand_as(h), h


class Dual(nn.Module):
    """SEL and PLC.

    Args:
        size: of embeddings (128 in the paper's code).
        hidden: of the layer before the logits (64).
        rounds: of message passing (6).
        noisy: has the mean and log standard deviation of the weights that episodes draw, see `Doppler`.
        dynamic: operations are seen with the state of an episode, and messages are passed for every decision.
    """

    def __init__(self, size: int, hidden: int, rounds: int, noisy: bool = False, dynamic: bool = False) -> None:
        super().__init__()
        self.dynamic = dynamic
        self.sel, self.plc = Encoder(size, rounds, dynamic), Encoder(size, rounds, dynamic)
        self.sel_hidden, self.sel_out = nn.Linear(4 * size, hidden), nn.Linear(hidden, 1)
        self.plc_own = nn.Linear(2 * size, hidden)
        self.plc_sent = nn.Linear(size, hidden, bias=False)
        self.plc_device = nn.Linear(FEATURES, hidden, bias=False)
        self.plc_out = nn.Linear(hidden, 1)
        if noisy:
            self.weights_mean = nn.Parameter(torch.zeros(WEIGHTS))
            self.weights_log_std = nn.Parameter(torch.zeros(WEIGHTS))

    def forward(self, x: Inputs, state: Tensor | None = None) -> NetworkOutputs:
        """`state`: [n, k, DYNAMIC] of n episodes, if `dynamic`."""
        z, h = self.sel(x, state)
        seen = torch.cat([h, _along(x.to_exit, h), _along(x.to_entry, h), z], dim=-1)
        score = self.sel_out(_active(self.sel_hidden(seen))).squeeze(-1)
        z, h = self.plc(x, state)
        return NetworkOutputs(score, self.plc_own(torch.cat([z, h], dim=-1)), self.plc_sent(h))

    def place_logits(self, own: Tensor, total: Tensor, device: Tensor) -> Tensor:
        """[..., D] logits from [..., h] own, [..., D, h] sums of what was sent, and [..., D, FEATURES]."""
        hidden = own.unsqueeze(-2) + total + self.plc_device(device)
        logits: Tensor = self.plc_out(_active(hidden)).squeeze(-1)
        return logits


def _active(x: Tensor) -> Tensor:
    return F.leaky_relu(x, float(SLOPE))


def _along(means: Tensor, h: Tensor) -> Tensor:
    """[..., k, size] means over paths; a sparse matrix multiplies only matrices."""
    if h.dim() == 2:
        return means @ h
    n, k, size = h.shape
    return (means @ h.transpose(0, 1).reshape(k, n * size)).view(k, n, size).transpose(0, 1)


def _means(paths: tuple[object, object], k: int) -> Tensor:
    rows, members = (torch.as_tensor(x) for x in paths)
    share = 1.0 / torch.bincount(rows, minlength=k).clamp(min=1)[rows].float()
    return torch.sparse_coo_tensor(torch.stack([rows, members]), share, (k, k), check_invariants=False).coalesce()
