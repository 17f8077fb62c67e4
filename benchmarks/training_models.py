"""Training steps of GPT-2 medium, ViT-L/16 and a U-Net for `placekit plan benchmarks/training_models.py:NAME`.

`python benchmarks/training_models.py` plans each of them on three machines, and prints how many times as fast as one device each
family of strategies is.
"""

from __future__ import annotations

from typing import Any

import torch
from placekit_torch import Step
from placekit_training.plan import plan
from torch.nn import functional

MACHINES = {"rtx4090_3090": 32, "rtx5090_3080x2": 32, "two_nodes": 128}
"""Presets of machines, and the rows of a step on each."""
FAMILIES = {
    "copies": "equal replicas", "copies by speed": "replicas by speed", "equal stages": "equal stages", "stages": "stages",
    "copies of stages": "replicas of stages", "operations": "single operations",
}  # fmt: skip


def gpt2_medium(batch: int, context: int = 512) -> Step:
    """GPT-2 medium on sequences of 512 tokens, with an output layer of its own."""
    from transformers.models.gpt2 import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=24, n_embd=1024, n_head=16, use_cache=False, tie_word_embeddings=False)
    tokens = torch.randint(0, config.vocab_size, (batch, context))

    def loss(output: Any, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output.logits.flatten(0, 1), targets.flatten())

    return Step(GPT2LMHeadModel(config), {"input_ids": tokens}, loss, tokens.clone(), torch.optim.AdamW)


def vit_large(batch: int) -> Step:
    """ViT-L/16 on images of 224 x 224 pixels."""
    from torchvision.models import vit_l_16

    images, labels = torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))
    return Step(vit_l_16(), images, functional.cross_entropy, labels, torch.optim.AdamW)


class Double(torch.nn.Module):
    """Two convolutions, as in Ronneberger et al. 2015."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(inside, outside, 3, padding=1)
        self.second = torch.nn.Conv2d(outside, outside, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        after: torch.Tensor = functional.relu(self.second(functional.relu(self.first(x))))
        return after


class UNet(torch.nn.Module):
    """The U-Net of Ronneberger et al. 2015, with padding: five levels of 64 to 1,024 channels."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [64, 128, 256, 512, 1024]
        self.down = torch.nn.ModuleList(Double(a, b) for a, b in zip([1, *sizes[:-1]], sizes, strict=True))
        self.up = torch.nn.ModuleList(torch.nn.ConvTranspose2d(2 * s, s, 2, 2) for s in reversed(sizes[:-1]))
        self.join = torch.nn.ModuleList(Double(2 * s, s) for s in reversed(sizes[:-1]))
        self.head = torch.nn.Conv2d(64, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skipped = []
        for i, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if i else x)
            skipped.append(x)
        for up, join, other in zip(self.up, self.join, reversed(skipped[:-1]), strict=True):
            x = join(torch.cat([other, up(x)], 1))
        scores: torch.Tensor = self.head(x)
        return scores


def unet(batch: int) -> Step:
    """The U-Net on images of 512 x 512 pixels."""
    images, labels = torch.randn(batch, 1, 512, 512), torch.randint(0, 2, (batch, 512, 512))
    return Step(UNet(), images, functional.cross_entropy, labels, torch.optim.AdamW)


def main() -> None:
    """Print the table."""
    print(f"| model, machine, batch | one device | {' | '.join(FAMILIES.values())} |")
    print(f"|---|{'---:|' * (len(FAMILIES) + 1)}")
    for make in (gpt2_medium, vit_large, unet):
        for machine, batch in MACHINES.items():
            found = plan(f"{__file__}:{make.__name__}", machine, batch=batch)
            step_s = {row.family: row.outcome.step_s for row in found.rows if row.outcome is not None}
            best = min(step_s.values())
            cells = [
                ("**{:.2f}**" if step_s[name] == best else "{:.2f}").format(step_s["one"] / step_s[name])
                if name in step_s
                else "-"
                for name in FAMILIES
            ]
            print(f"| {make.__name__}, {machine}, {batch} | {step_s['one']:.3f} s | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
