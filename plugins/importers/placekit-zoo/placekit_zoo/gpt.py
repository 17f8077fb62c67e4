"""A decoder of GPT-2's architecture (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners").

Layer normalisation before each half of a block and after the last block; learned positions; output weights tied to the token
embedding; module names as in the published weights. [B, S] tokens to [B, S, V] logits. The attention is written out with
matrix products and a softmax, so that its operations can be placed one by one; scale, mask and softmax may be one kernel,
as in Megatron-LM.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from placekit_torch.custom_kernels import causal_softmax
from placekit_torch.step import Step
from torch import Tensor, nn

from placekit_zoo.base import ZooImporter
from placekit_zoo.dense_options import GptOptions


class Attention(nn.Module):
    """Causal self-attention with several heads; one product gives queries, keys and values."""

    def __init__(self, embedding: int, heads: int, sequence: int, dropout: float, fused: bool = False) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.c_attn = nn.Linear(embedding, 3 * embedding)
        self.c_proj = nn.Linear(embedding, embedding)
        self.attn_dropout, self.resid_dropout = nn.Dropout(dropout), nn.Dropout(dropout)
        future = torch.ones(sequence, sequence, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        scores, scale = q @ k.transpose(-2, -1), math.sqrt(q.shape[-1])
        if self.fused:
            weights = causal_softmax(scores, 1 / scale)
        else:
            weights = torch.softmax((scores / scale).masked_fill(self.future, -math.inf), -1)
        weights = self.attn_dropout(weights)
        return self.resid_dropout(self.c_proj((weights @ v).transpose(1, 2).flatten(-2)))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """Two linear layers, four times as wide inside, with the tanh form of GELU."""

    def __init__(self, embedding: int, dropout: float) -> None:
        super().__init__()
        self.c_fc = nn.Linear(embedding, 4 * embedding)
        self.c_proj = nn.Linear(4 * embedding, embedding)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x), approximate="tanh")))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A transformer block: attention and feed-forward, each with a residual connection."""

    def __init__(self, embedding: int, heads: int, sequence: int, dropout: float, fused: bool = False) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(embedding)
        self.attn = Attention(embedding, heads, sequence, dropout, fused)
        self.ln_2 = nn.LayerNorm(embedding)
        self.mlp = FeedForward(embedding, dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """[B, S] tokens to [B, S, V] logits."""

    def __init__(
        self,
        layers: int,
        embedding: int,
        heads: int,
        sequence: int,
        vocabulary: int,
        dropout: float = 0.1,
        fused: bool = False,
        tied: bool = True,
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, embedding)
        self.wpe = nn.Embedding(sequence, embedding)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(Block(embedding, heads, sequence, dropout, fused) for _ in range(layers))
        self.ln_f = nn.LayerNorm(embedding)
        self.lm_head = nn.Linear(embedding, vocabulary, bias=False)
        if tied:
            self.lm_head.weight = self.wte.weight
        self.register_buffer("positions", torch.arange(sequence), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.wte(tokens) + self.wpe(self.positions))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))  # type: ignore[no-any-return]


def loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross-entropy over all positions."""
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class GptImporter(ZooImporter):
    """Importer `gpt`."""

    name = "gpt"
    options_class = GptOptions

    def step(self) -> Step:
        """One step on random tokens."""
        o: GptOptions = self.options
        tokens, following = (torch.randint(0, o.vocabulary, (o.batch, o.sequence)) for _ in range(2))
        sizes = (o.layers, o.embedding, o.heads, o.sequence, o.vocabulary)
        before = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, o.dtype))  # converting parameters afterwards would untie them
        try:
            network = Gpt(*sizes, o.dropout, o.fused_softmax, o.tied)
        finally:
            torch.set_default_dtype(before)
        return Step(network, tokens, loss, following, self.make_optimizer)
