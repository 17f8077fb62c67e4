"""Additive attention (Bahdanau et al. 2015): scores v · tanh(query + key), softmax over the places of a sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_CHUNK = 2**19  # numbers in one chunk of the scores' inputs, so that they fit in a core's cache
_LARGEST = 20.0  # beyond it tanh is 1 in float32; exp of twice the sum of two such numbers is still finite


def exponential(values: Tensor) -> Tensor:
    """exp(2 x) of queries or keys x: the form that `weights` and `attend` take.

    tanh(q + k) = 1 - 2 / (1 + exp(2 q) exp(2 k)): one exponential per query and per key, instead of a tanh per pair.
    """
    return values.clamp(-_LARGEST, _LARGEST).mul_(2.0).exp_()


def weights(query: Tensor, key: Tensor, score: Tensor, masked: Tensor | None = None) -> Tensor:
    """[m, s, T] attention weights; each row adds up to 1.

    Args:
        query: [m, s, A] exponentials of s queries to each of m memories.
        key: [m, A, T] exponentials of the keys of the T places of each memory.
        score: [A] the vector v.
        masked: [m, T] places that get no weight (padding), or None.
    """
    # the constant sum of v in the scores does not change their softmax
    scores = ((-2.0 * score) @ _logistic(query, key).flatten(2)).view(*query.shape[:2], -1)
    if masked is not None:
        scores = scores.masked_fill(masked[:, None], -torch.inf)
    return scores.softmax(dim=2)


def attend(query: Tensor, key: Tensor, score: Tensor, memory: Tensor, masked: Tensor | None = None) -> Tensor:
    """[m, s, H] the weighted means of `memory` [m, T, H]; arguments as in `weights`."""
    context: Tensor = _Attention.apply(query, key, score, memory, masked)  # type: ignore[no-untyped-call]
    return context


def _logistic(query: Tensor, key: Tensor) -> Tensor:
    """[m, A, s, T] (1 - tanh(q + k)) / 2 = 1 / (1 + exp(2 q) exp(2 k)); the longest dimension is last, for fast loops."""
    # contiguous, or the product takes the strides of the transposed queries and `flatten` copies it
    return (query.mT.contiguous()[..., None] * key[:, :, None]).add_(1.0).reciprocal_()


class _Attention(torch.autograd.Function):
    """`attend` with its gradient. Autograd would keep several [m, A, s, T] arrays; this computes them again, in chunks."""

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
