"""The network of Mirhoseini et al. 2017, section 3.2 and figure 2, which is π(P | G; θ).

Training uses its twin in `fast.py`, which computes the same in less time, unless `policy.engine=plain`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn


@dataclass(frozen=True, eq=False)
class Memory:
    """The encoder's memory of its input: m sequences of T groups; m is 1 if all episodes have the same groups.

    Attributes:
        output: [m, T, H] outputs of the encoder.
        key: [m, T, A] their keys, U h in the attention's scores.
        state: [1, m, H] last hidden state and cell of the encoder, with which the decoder begins.
        empty: [m, T] places without a group, which get no device and no attention; None if there are none.
        forbidden: [T, D] devices that the group at each place may not run on.
    """

    output: Tensor
    key: Tensor
    state: tuple[Tensor, Tensor]
    empty: Tensor | None
    forbidden: Tensor


class Placer(nn.Module):
    """Encoder LSTM, decoder LSTM with attention, a softmax over D devices at each of the T time steps.

    Args:
        features: F, length of a group's embedding.
        devices: D.
        hidden: H, units of each LSTM.
        attention: A, units of the attention's scores.
        aligned: each step of the decoder also reads the encoder's output of the same step (not in the paper).
    """

    def __init__(self, features: int, devices: int, hidden: int, attention: int, aligned: bool) -> None:
        super().__init__()
        self.encoder: Any = nn.LSTM(features, hidden, batch_first=True)
        self.decoder: Any = nn.LSTM(hidden, hidden, batch_first=True)
        self.device = nn.Parameter(0.1 * torch.randn(devices + 1, hidden))  # embeddings; the last: no device yet
        self.aligned = aligned
        self.key = nn.Linear(hidden, attention, bias=False)  # U
        self.query = nn.Linear(hidden, attention)  # W
        self.score = nn.Parameter(torch.randn(attention) / attention**0.5)  # v
        self.output = nn.Linear(2 * hidden, devices)
        self._initialise()

    def _initialise(self) -> None:
        """Initialize weights so large that the decisions differ between groups from the start.

        With torch's smaller weights all decisions are almost the same at first, and training ends with one device for all.
        """
        nn.init.normal_(self.encoder.weight_ih_l0, std=0.5)  # large, because most inputs are 0
        nn.init.normal_(self.decoder.weight_ih_l0, std=4.0 / self.decoder.hidden_size**0.5)
        for lstm in (self.encoder, self.decoder):
            for gate in lstm.weight_hh_l0.chunk(4):
                nn.init.orthogonal_(gate)

    def encode(self, embedded: Tensor, allowed: NDArray[np.bool_], empty: Tensor | None = None) -> Memory:
        """The encoder RNN reads m sequences of embeddings [m, T, F]; `allowed` [T, d] for d devices, at most D."""
        output, state = self.encoder(embedded)
        forbidden = torch.ones(len(allowed), len(self.device) - 1, dtype=torch.bool)
        forbidden[:, : allowed.shape[1]] = torch.as_tensor(~allowed)
        return Memory(output, self.key(output), state, empty, forbidden)

    def draw(self, memory: Memory, b: int, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """Devices [b, T] of b placements P ~ π(· | G; θ), and the log-distributions [b, T, D] that they were drawn from.

        Without a generator, the most likely devices. Call it under `no_grad`.
        """
        return self._decode(memory, b, generator)

    def log_p(self, memory: Memory, devices: Tensor) -> Tensor:
        """[b, T, D] log-distributions that devices [b, T] were drawn from, with autograd: log p(P | G; θ) of Eq. 2."""
        return self._decode(memory, len(devices), None, devices)[1]

    def _decode(
        self, memory: Memory, b: int, generator: Generator | None, given: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The decoder outputs, at each time step, the device of the group at the same encoder time step."""
        no_device = len(self.device) - 1
        previous, state = torch.full((b,), no_device), initial_state(memory, b)
        devices, log_p = [], []
        for t, forbidden in enumerate(memory.forbidden):
            read = self.device[previous]
            if self.aligned:
                read = read + memory.output[:, t]
            output, state = self.decoder(read[:, None], state)
            h = output[:, 0]
            logits = self.output(torch.cat([h, self._attend(h, memory)], dim=1))
            log_p.append(logits.masked_fill(forbidden, -torch.inf).log_softmax(dim=1))
            if given is not None:
                devices.append(given[:, t])
            elif generator is not None:
                devices.append(torch.multinomial(log_p[t].exp(), 1, generator=generator)[:, 0])
            else:
                devices.append(log_p[t].argmax(dim=1))
            previous = devices[t] if memory.empty is None else devices[t].masked_fill(memory.empty[:, t], no_device)
        return torch.stack(devices, dim=1), torch.stack(log_p, dim=1)

    def _attend(self, h: Tensor, memory: Memory) -> Tensor:
        """[b, H] means of the encoder's outputs, weighted by softmax(v · tanh(W h + U h_j)) (Bahdanau et al. 2015, A.1.2)."""
        scores = torch.tanh(self.query(h)[:, None] + memory.key) @ self.score
        if memory.empty is not None:
            scores = scores.masked_fill(memory.empty, -torch.inf)
        return (scores.softmax(dim=1)[:, None] @ memory.output)[:, 0]


def initial_state(memory: Memory, b: int) -> tuple[Tensor, Tensor]:
    """The first hidden states and cells [1, b, H] of the decoders of b episodes."""
    h, c = memory.state
    return h.expand(1, b, -1).contiguous(), c.expand(1, b, -1).contiguous()


def chosen_log_prob(log_p: Tensor, device: Tensor) -> Tensor:
    """[b, T] log-probabilities of the devices [b, T] chosen from `log_p` [b, T, D]."""
    return log_p.gather(2, device[:, :, None])[:, :, 0]


def entropy(log_p: Tensor) -> Tensor:
    """[...] entropy of distributions `log_p` [..., D], nats."""
    return -(log_p.exp() * log_p.masked_fill(torch.isneginf(log_p), 0.0)).sum(dim=-1)
