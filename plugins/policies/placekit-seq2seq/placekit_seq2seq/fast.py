"""The twin of `Placer` in `network.py`: an update takes 4.5 times fewer CPU seconds (benchmarks/results/placer.md)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor
from torch.autograd.function import once_differentiable

from placekit_seq2seq.network import Memory, Placer, initial_state

_CHUNK = 2**19  # numbers in one chunk of the scores' inputs, so that they fit in a core's cache
_LARGEST = 20.0  # beyond it tanh is 1 in float32; exp of twice the sum of two such numbers is still finite


class FastPlacer(Placer):
    """`Placer`, with the same parameters; results differ by rounding. Queries and keys beyond 20 count as 20."""

    def log_p(self, memory: Memory, devices: Tensor) -> Tensor:
        """`Placer.log_p`: the decoder reads no context, so it can read all devices at once, and attend from all steps."""
        b = len(devices)
        begin = torch.full((b, 1), len(self.device) - 1)
        chosen = devices if memory.empty is None else devices.masked_fill(memory.empty, len(self.device) - 1)
        read = self.device[torch.cat([begin, chosen[:, :-1]], dim=1)]
        if self.aligned:
            read = read + memory.output
        state, _ = self.decoder(read, initial_state(memory, b))
        # if all episodes share one memory, their queries form one list
        listed = state.reshape(len(memory.output), -1, state.shape[2])
        queries, keys = exponential(self.query(listed)), exponential(memory.key.mT.contiguous())
        context = _Attention.apply(queries, keys, self.score, memory.output, memory.empty)  # type: ignore[no-untyped-call]
        logits = self.output(torch.cat([state, context.reshape(state.shape)], dim=2))
        log_p: Tensor = logits.masked_fill(memory.forbidden, -torch.inf).log_softmax(dim=2)
        return log_p

    def draw(self, memory: Memory, b: int, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """`Placer.draw`: tensors are small, so the number of operations decides how long it takes. Each step has few."""
        m, steps = memory.output.shape[:2]
        d = len(self.device) - 1
        lstm, key = self.decoder, exponential(memory.key.mT.contiguous())
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
        h, c = (s[0] for s in initial_state(memory, b))
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
            context = (weights(q, key, self.score, memory.empty) @ attended).view(b, d)
            torch.addmm(context.add_(self.output.bias), h, by_state, out=found_t)
            previous = torch.argmax(found_t + added_t, dim=1, out=chosen_t)
            if memory.empty is not None:
                previous = previous.masked_fill(memory.empty[:, t], d)
        return chosen.T, (found + forbidden).log_softmax(dim=2).transpose(0, 1)


def exponential(values: Tensor) -> Tensor:
    """exp(2 x) of queries or keys x: the form that attention takes.

    tanh(q + k) = 1 - 2 / (1 + exp(2 q) exp(2 k)): one exponential per query and per key, instead of a tanh per pair.
    """
    return values.clamp(-_LARGEST, _LARGEST).mul_(2.0).exp_()


def weights(query: Tensor, key: Tensor, score: Tensor, masked: Tensor | None = None) -> Tensor:
    """[m, s, T] attention weights of s queries to each of m memories; each row adds up to 1.

    `query` [m, s, A] and `key` [m, A, T] are exponentials, `score` [A] is v; places in `masked` [m, T] get no weight.
    """
    # the constant sum of v in the scores does not change their softmax
    scores = ((-2.0 * score) @ _logistic(query, key).flatten(2)).view(*query.shape[:2], -1)
    if masked is not None:
        scores = scores.masked_fill(masked[:, None], -torch.inf)
    return scores.softmax(dim=2)


def _logistic(query: Tensor, key: Tensor) -> Tensor:
    """[m, A, s, T] (1 - tanh(q + k)) / 2 = 1 / (1 + exp(2 q) exp(2 k)); the longest dimension is last, for fast loops."""
    # contiguous, or the product takes the strides of the transposed queries and `flatten` copies it
    return (query.mT.contiguous()[..., None] * key[:, :, None]).add_(1.0).reciprocal_()


class _Attention(torch.autograd.Function):
    """[m, s, H] means of `memory`. Autograd would keep several [m, A, s, T] arrays; this computes them again, in chunks."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, score: Tensor, memory: Tensor, masked: Tensor | None) -> Tensor:
        w = torch.cat([weights(q, key, score, masked) for q in torch.split(query, _chunk_rows(key), dim=1)], dim=1)
        ctx.save_for_backward(query, key, score, memory, w)
        return w @ memory

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, score, memory, w = ctx.saved_tensors
        grad_w = grad @ memory.mT
        grad_scores = w * (grad_w - (grad_w * w).sum(dim=2, keepdim=True))
        v = -2.0 * score
        grad_query, grad_key, grad_v = [], torch.zeros_like(key), torch.zeros_like(v)
        for q, d in zip(*(torch.split(x, _chunk_rows(key), dim=1) for x in (query, grad_scores)), strict=True):
            h = _logistic(q, key)
            grad_v += (h.flatten(2) @ d.flatten(1)[..., None]).sum(dim=(0, 2))
            h.square_().mul_(d[:, None])  # the derivative of 1 / (1 + q k) by q k is minus its square
            grad_key -= torch.einsum("msa,mast->mat", q, h)
            grad_query.append(-torch.einsum("mast,mat->msa", h, key))
        return torch.cat(grad_query, dim=1) * v, grad_key * v[:, None], -2.0 * grad_v, w.mT @ grad, None


def _chunk_rows(key: Tensor) -> int:
    """The number of queries in one chunk."""
    return max(1, _CHUNK // max(key.numel(), 1))
