"""Small networks and optimisers, whose steps are compared with eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from placekit_torch import Step
from torch import Tensor, nn

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


class RNNLM(nn.Module):
    """Language model from a loop of LSTM cells, with a projection per step."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(vocabulary, width)
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(layers))
        self.projection = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, steps = tokens.shape
        h = [torch.zeros(batch, self.width) for _ in self.cells]
        c = [torch.zeros(batch, self.width) for _ in self.cells]
        outputs = []
        for t in range(steps):
            x = self.embedding(tokens[:, t])
            for i, cell in enumerate(self.cells):
                h[i], c[i] = cell(x, (h[i], c[i]))
                x = h[i]
            outputs.append(self.projection(x))
        return torch.stack(outputs, 1)


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class LlamaBlock(nn.Module):
    """Grouped-query attention with rotary positions, written with plain operations, and SwiGLU."""

    def __init__(self, width: int, heads: int, kv_heads: int, inner: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, width // heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * self.head, bias=False)
        self.v = nn.Linear(width, kv_heads * self.head, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = self.norm1(x)
        q = self.q(y).view(batch, length, self.heads, self.head).transpose(1, 2)
        k = self.k(y).view(batch, length, self.kv_heads, self.head).transpose(1, 2)
        v = self.v(y).view(batch, length, self.kv_heads, self.head).transpose(1, 2)
        angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, self.head, 2) / self.head)
        angle = torch.cat([angle, angle], -1)
        q, k = self.rotate(q, angle.cos(), angle.sin()), self.rotate(k, angle.cos(), angle.sin())
        shape = (batch, self.kv_heads, self.heads // self.kv_heads, length, self.head)
        k = k[:, :, None].expand(shape).reshape(batch, self.heads, length, self.head)
        v = v[:, :, None].expand(shape).reshape(batch, self.heads, length, self.head)
        mask = torch.full((length, length), float("-inf")).triu(1)
        weight = torch.softmax(q @ k.transpose(2, 3) / self.head**0.5 + mask, -1, dtype=torch.float32)
        x = x + self.o((weight @ v).transpose(1, 2).reshape(batch, length, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, vocabulary: int, width: int, heads: int, kv_heads: int, inner: int, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.block = LlamaBlock(width, heads, kv_heads, inner)
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.block(self.embedding(tokens))))


class Odd(nn.Module):
    """Batch normalisation, pooling with indices, chunks, attention, a constant, buffers and attributes of all sorts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.bn = nn.BatchNorm1d(8)
        self.pool = nn.MaxPool1d(2, return_indices=True)
        self.norm = nn.LayerNorm(8)
        self.unused = nn.Linear(3, 3)
        self.frozen = nn.Parameter(torch.randn(8), requires_grad=False)
        self.register_buffer("last", torch.zeros(2, 8, 3))
        self.scale = torch.rand(8)  # neither parameter nor buffer

    def forward(self, x: Tensor) -> Tensor:
        x, indices = self.pool(F.relu(self.bn(self.conv(x))))
        self.last.copy_(x.detach())
        a, b, c, d = x.chunk(4, 1)
        x = torch.cat([a * b, c + a, d.unsafe_chunk(2, 1)[0].expand_as(d), a * indices[:, :2]], 1)
        x = self.norm(x.transpose(1, 2) * self.scale * torch.tensor([1.0, 2.0] * 4) + self.frozen)
        q = x.unsqueeze(1)
        return x + F.scaled_dot_product_attention(q, q, q, is_causal=True)[:, 0]


class Small(nn.Module):
    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(12, 16),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(16, 16),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(16, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def tokens_loss(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output.reshape(-1, output.shape[-1]).float(), labels.reshape(-1))


def language(model: nn.Module, vocabulary: int, batch: int, length: int) -> Step:
    tokens, labels = torch.randint(0, vocabulary, (batch, length)), torch.randint(0, vocabulary, (batch, length))
    return Step(model, tokens, tokens_loss, labels)


def odd() -> Step:
    return Step(Odd(), torch.randn(2, 8, 6), lambda y, t: ((y - t) ** 2).mean(), torch.randn(2, 3, 8))


def small(dropout: float = 0.5) -> Step:
    return Step(Small(dropout), torch.randn(6, 12), F.cross_entropy, torch.randint(0, 5, (6,)))


NETWORKS: dict[str, Callable[[], Step]] = {
    "mlp": lambda: small(0.0),
    "lstm": lambda: language(RNNLM(20, 16, 2), 20, 3, 5),
    "llama": lambda: language(Llama(40, 32, 4, 2, 48, tied=False), 40, 2, 6),
    "tied": lambda: language(Llama(40, 32, 4, 4, 48, tied=True), 40, 2, 6),
    "odd": odd,
    "dropout": small,
}
