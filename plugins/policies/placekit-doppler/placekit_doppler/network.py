"""The networks of SEL and PLC in plain torch (Yao et al. 2026, sections 5.2 and 5.3).

Both pass messages over the graph with networks of their own. Shapes: k operations, e edges, D devices; `size` numbers of an
embedding. LeakyReLU is between all layers.
"""

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
    def of(cls, features: Features) -> Inputs:
        """The features as tensors."""
        return cls(
            torch.from_numpy(features.static), torch.from_numpy(features.edge), torch.from_numpy(features.edge_s),
            _means(features.to_entry, len(features.op)), _means(features.to_exit, len(features.op)),
        )  # fmt: skip


DYNAMIC = 3
"""Further features, if messages are passed anew for every decision: placed or not, start and finish over the makespan."""


class MessagePassing(nn.Module):
    """Embeddings of operations: rounds of an edge-conditioned convolution and a GRU, with shared weights (Gilmer et al. 2017).

    The message of u to v is A(w) h_u, where w is the feature of the edge and A(w) = W0 + w W1; messages are summed.
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
        """[k, size] embeddings, from initial ones of the same shape."""
        size = h.shape[1]
        # W0 h_u and W1 h_u for all u at once: there are more edges than operations
        both = torch.cat([self.edge.bias.view(size, size), self.edge.weight.view(size, size)], dim=1)
        sender, receiver = edge
        for _ in range(self.rounds):
            carried = (h @ both).index_select(0, sender)
            message = carried[:, :size] + edge_s[:, None] * carried[:, size:]
            total = self.root(h).index_add(0, receiver, message)
            h = self.update(_active(total), h)
        return h


class Encoder(nn.Module):
    """A network's own view of the operations: Z, their features after a layer, and H, their embeddings, [k, size] each.

    The state of an episode enters only the embeddings: the operation of the next decision is itself not placed yet.
    """

    def __init__(self, size: int, rounds: int, dynamic: bool) -> None:
        super().__init__()
        self.features = nn.Linear(len(STATIC), size)
        self.entry = nn.Linear(len(STATIC) + (DYNAMIC if dynamic else 0), size)
        self.messages = MessagePassing(size, rounds)

    def forward(self, x: Inputs, state: Tensor | None) -> tuple[Tensor, Tensor]:
        node = x.static if state is None else torch.cat([x.static, state], dim=1)
        h = self.messages(_active(self.entry(node)), x.edge, x.edge_s)
        return _active(self.features(x.static)), h


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
        # PLC's first layer, by the parts of its input
        self.plc_own = nn.Linear(2 * size, hidden)
        self.plc_sent = nn.Linear(size, hidden, bias=False)
        self.plc_device = nn.Linear(FEATURES, hidden, bias=False)
        self.plc_out = nn.Linear(hidden, 1)
        if noisy:
            self.weights_mean = nn.Parameter(torch.zeros(WEIGHTS))
            self.weights_log_std = nn.Parameter(torch.zeros(WEIGHTS))

    def forward(self, x: Inputs, state: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """[k] logits of SEL, and PLC's view of the operations: [k, 2 size] Z and H, and [k, size] H alone.

        SEL reads the means of the embeddings on an operation's longest paths to an exit and to an entry, H, and Z.
        `state`: [k, DYNAMIC], if `dynamic`.
        """
        z, h = self.sel(x, state)
        seen = torch.cat([h, x.to_exit @ h, x.to_entry @ h, z], dim=1)
        score = self.sel_out(_active(self.sel_hidden(seen))).squeeze(1)
        z, h = self.plc(x, state)
        return score, torch.cat([z, h], dim=1), h

    def place_logits(self, own: Tensor, placed: Tensor, device: Tensor) -> Tensor:
        """[D] logits of PLC.

        Args:
            own: [2 size] Z and H of the operation.
            placed: [D, size] sums of H over the operations on each device.
            device: [D, FEATURES] features of the devices.
        """
        hidden = self.plc_own(own) + self.plc_sent(placed) + self.plc_device(device)
        logits: Tensor = self.plc_out(_active(hidden)).squeeze(1)
        return logits


def _active(x: Tensor) -> Tensor:
    return F.leaky_relu(x, float(SLOPE))


def _means(paths: tuple[object, object], k: int) -> Tensor:
    rows, members = (torch.as_tensor(x) for x in paths)
    share = 1.0 / torch.bincount(rows, minlength=k).clamp(min=1)[rows].float()
    return torch.sparse_coo_tensor(torch.stack([rows, members]), share, (k, k), check_invariants=False).coalesce()
