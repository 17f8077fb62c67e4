"""One layer of Llama (Touvron et al. 2023, arXiv 2302.13971 and 2307.09288), and its attention block alone.

The attention is written out with matrix products and a softmax, so that its operations can be placed one by one. [B, S, E] to
[B, S, E]; Llama-7B has E = 4096 with 32 heads and a feed-forward width of 11008, and Doppler uses S = 4096.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from placekit_torch.step import Step
from torch import Tensor, nn

from placekit_core import Options
from placekit_zoo.base import ZooImporter
from placekit_zoo.dense_options import LlamaBlockOptions, LlamaLayerOptions


class RMSNorm(nn.Module):
    """Division by the root mean square of the last dimension (Zhang and Sennrich 2019), without a mean or a bias."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Rotary(nn.Module):
    """Rotary position embedding (Su et al. 2021) of [B, H, S, D] queries or keys, D even.

    Features i and i + D/2 are the real and imaginary parts of a number that is rotated, all on real tensors. (In the
    published weights the two are side by side.)
    """

    def __init__(self, sequence: int, width: int, base: float = 10_000.0) -> None:
        super().__init__()
        frequency = base ** (-torch.arange(0, width, 2) / width)
        angle = torch.outer(torch.arange(sequence), frequency).repeat(1, 2)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        low, high = x.chunk(2, -1)
        return x * self.cos + torch.cat([-high, low], -1) * self.sin  # type: ignore[operator]


class Attention(nn.Module):
    """Causal self-attention with rotary position embedding, no biases."""

    def __init__(self, embedding: int, heads: int, sequence: int) -> None:
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(embedding, embedding, bias=False) for _ in range(4))
        self.rotary = Rotary(sequence, embedding // heads)
        future = torch.ones(sequence, sequence, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        scores = self.rotary(q) @ self.rotary(k).transpose(-2, -1) / math.sqrt(q.shape[-1])
        weights = torch.softmax(scores.masked_fill(self.future, -math.inf), -1)
        return self.wo((weights @ v).transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020): w2(silu(w1 x) * w3 x), no biases."""

    def __init__(self, embedding: int, width: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(embedding, width, bias=False) for _ in range(2))
        self.w2 = nn.Linear(width, embedding, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """The first half of a layer: x + attention(norm(x))."""

    def __init__(self, embedding: int, heads: int, sequence: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(embedding)
        self.attention = Attention(embedding, heads, sequence)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(self.attention_norm(x))  # type: ignore[no-any-return]


class Layer(Block):
    """The block, then x + feed_forward(norm(x))."""

    def __init__(self, embedding: int, heads: int, sequence: int, feed_forward: int) -> None:
        super().__init__(embedding, heads, sequence)
        self.ffn_norm = RMSNorm(embedding)
        self.feed_forward = FeedForward(embedding, feed_forward)

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return x + self.feed_forward(self.ffn_norm(x))  # type: ignore[no-any-return]


class LlamaBlockImporter(ZooImporter):
    """Importer `llama_block`."""

    name = "llama_block"
    options_class: ClassVar[type[Options]] = LlamaBlockOptions

    def network(self) -> nn.Module:
        """The module."""
        o: LlamaBlockOptions = self.options
        return Block(o.embedding, o.heads, o.sequence)

    def step(self) -> Step:
        """The forward pass of random embeddings; for training, with the mean squared error to other random embeddings."""
        o: LlamaBlockOptions = self.options
        inputs, targets = (torch.randn(o.batch, o.sequence, o.embedding) for _ in range(2))
        return Step(self.network(), inputs, F.mse_loss, targets, self.make_optimizer)


class LlamaLayerImporter(LlamaBlockImporter):
    """Importer `llama_layer`."""

    name = "llama_layer"
    options_class = LlamaLayerOptions

    def network(self) -> nn.Module:
        """The module."""
        o: LlamaLayerOptions = self.options
        return Layer(o.embedding, o.heads, o.sequence, o.feed_forward)
