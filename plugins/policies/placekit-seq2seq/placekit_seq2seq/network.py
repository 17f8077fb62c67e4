"""The attentional sequence-to-sequence network that chooses devices (Mirhoseini et al. 2017, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from placekit_seq2seq.attention import attend, exponential, weights


@dataclass(frozen=True, eq=False)
class Memory:
    """The output of the encoder for m sequences of T groups; m is 1 if all episodes have the same groups.

    Attributes:
        output: [m, T, H] outputs of the encoder.
        key: [m, A, T] exponentials of the attention's keys.
        start: [1, m, H] last hidden state and cell of the encoder, with which the decoder begins.
        empty: [m, T] places without a group, which get no device and no attention; None if there are none.
        forbidden: [T, D] devices that the group at each place may not run on.
    """

    output: Tensor
    key: Tensor
    start: tuple[Tensor, Tensor]
    empty: Tensor | None
    forbidden: Tensor


class Placer(nn.Module):
    """Encoder LSTM, decoder LSTM with attention, a softmax over D devices at each place of the sequence.

    Args:
        features: F, length of a group's embedding.
        devices: D.
        hidden: H, units of each LSTM.
        attention: A, units of the attention's scores.
        aligned: each step of the decoder reads the encoder's output of the same place, too.
    """

    def __init__(self, features: int, devices: int, hidden: int, attention: int, aligned: bool) -> None:
        super().__init__()
        self.encoder = nn.LSTM(features, hidden, batch_first=True)
        self.decoder = nn.LSTM(hidden, hidden, batch_first=True)
        self.device = nn.Parameter(0.1 * torch.randn(devices + 1, hidden))  # the last: no device yet
        self.aligned = aligned
        self.key = nn.Linear(hidden, attention, bias=False)
        self.query = nn.Linear(hidden, attention)
        self.score = nn.Parameter(torch.randn(attention) / attention**0.5)
        self.output = nn.Linear(2 * hidden, devices)
        self._initialise()

    def _initialise(self) -> None:
        """Initialise weights so large that the decisions differ between groups from the start.

        With torch's smaller weights all decisions are almost the same at first, and training ends with one device for all.
        """
        encoder: Any = self.encoder
        decoder: Any = self.decoder
        nn.init.normal_(encoder.weight_ih_l0, std=0.5)  # large, because most inputs are 0
        nn.init.normal_(decoder.weight_ih_l0, std=4.0 / decoder.hidden_size**0.5)
        for lstm in (encoder, decoder):
            for gate in lstm.weight_hh_l0.chunk(4):
                nn.init.orthogonal_(gate)

    def encode(self, embedded: Tensor, allowed: NDArray[np.bool_], empty: Tensor | None = None) -> Memory:
        """Read m sequences of embeddings [m, T, F]; `allowed` [T, d] for d devices, at most D."""
        output, start = self.encoder(embedded)
        forbidden = torch.ones(len(allowed), len(self.device) - 1, dtype=torch.bool)
        forbidden[:, : allowed.shape[1]] = torch.from_numpy(~allowed)
        return Memory(output, exponential(self.key(output).mT.contiguous()), start, empty, forbidden)

    def log_p(self, memory: Memory, devices: Tensor) -> Tensor:
        """[b, T, D] logarithms of the distributions from which devices [b, T] were drawn. With autograd; all steps at once."""
        b = len(devices)
        begin = torch.full((b, 1), len(self.device) - 1)
        chosen = devices if memory.empty is None else devices.masked_fill(memory.empty, len(self.device) - 1)
        read = self.device[torch.cat([begin, chosen[:, :-1]], dim=1)]
        if self.aligned:
            read = read + memory.output
        state, _ = self.decoder(read, _initial_state(memory, b))
        # if all episodes share one memory, their queries form one list
        listed = state.reshape(len(memory.output), -1, state.shape[2])
        context = attend(exponential(self.query(listed)), memory.key, self.score, memory.output, memory.empty)
        logits = self.output(torch.cat([state, context.reshape(state.shape)], dim=2))
        log_p: Tensor = logits.masked_fill(memory.forbidden, -torch.inf).log_softmax(dim=2)
        return log_p

    def draw(self, memory: Memory, b: int, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """Devices [b, T] of b episodes and their log-distributions [b, T, D]; without a generator, the most likely devices.

        Call it under `no_grad`. Operations are small, so their number decides how long sampling takes: each step has few.
        """
        m, steps = memory.output.shape[:2]
        d = len(self.device) - 1
        lstm: Any = self.decoder
        recurrent, query = lstm.weight_hh_l0.T.contiguous(), self.query.weight.T
        by_state, by_context = self.output.weight.T.chunk(2)
        # the gates' inputs from each previous device, [D + 1, 4H], and from each place, T times [m, 4H];
        # the logits' inputs from attention to each place, [m, T, D]
        by_device = self.device @ lstm.weight_ih_l0.T + (lstm.bias_ih_l0 + lstm.bias_hh_l0)
        by_place = (memory.output @ lstm.weight_ih_l0.T).unbind(1) if self.aligned else None
        attended = memory.output @ by_context
        forbidden = torch.zeros(steps, 1, d).masked_fill(memory.forbidden[:, None], -torch.inf)
        added = forbidden.expand(steps, b, d)
        if generator is not None:  # the Gumbel-max trick: the largest logit, with this noise added, is a draw
            added = forbidden - torch.empty(steps, b, d).exponential_(generator=generator).log_()
        h, c = (s[0].contiguous() for s in _initial_state(memory, b))
        previous = torch.full((b,), d)
        chosen, found = torch.empty(steps, b, dtype=torch.long), torch.empty(steps, b, d)
        for t, (added_t, chosen_t, found_t) in enumerate(zip(added, chosen, found, strict=True)):
            gates = by_device.index_select(0, previous)
            if by_place is not None:
                gates += by_place[t]
            i, f, candidate, o = gates.addmm_(h, recurrent).chunk(4, dim=1)
            c = torch.addcmul(f.sigmoid() * c, i.sigmoid(), candidate.tanh())
            h = o.sigmoid() * c.tanh()
            q = exponential(torch.addmm(self.query.bias, h, query)).view(m, -1, query.shape[1])
            context = (weights(q, memory.key, self.score, memory.empty) @ attended).view(b, d)
            torch.addmm(context.add_(self.output.bias), h, by_state, out=found_t)
            previous = torch.argmax(found_t + added_t, dim=1, out=chosen_t)
            if memory.empty is not None:
                previous = previous.masked_fill(memory.empty[:, t], d)
        return chosen.T, (found + forbidden).log_softmax(dim=2).transpose(0, 1)


def _initial_state(memory: Memory, b: int) -> tuple[Tensor, Tensor]:
    """The first hidden states and cells [1, b, H] of the decoders of b episodes."""
    h, c = memory.start
    return h.expand(1, b, -1).contiguous(), c.expand(1, b, -1).contiguous()


def chosen_log_prob(log_p: Tensor, device: Tensor) -> Tensor:
    """[b, T] log-probabilities of the devices [b, T] chosen from `log_p` [b, T, D]."""
    return log_p.gather(2, device[:, :, None])[:, :, 0]


def entropy(log_p: Tensor) -> Tensor:
    """[...] entropy of distributions `log_p` [..., D], nats."""
    return -(log_p.exp() * log_p.masked_fill(torch.isneginf(log_p), 0.0)).sum(dim=-1)
