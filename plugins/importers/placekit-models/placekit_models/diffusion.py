"""Denoising networks of diffusers: `diffusers:NAME`, built from a configuration, with random weights."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from placekit_torch import Step

from placekit_core import ImporterError, unknown
from placekit_models import configurations
from placekit_models.extras import library
from placekit_models.network import Mode, Network
from placekit_models.options import Asked

_TOKENS = 77
"""Tokens of a prompt that CLIP's text encoder outputs."""


def network(asked: Asked, source: str) -> Network:
    """The network `diffusers:NAME`: a U-Net, which takes noisy samples and time steps. Raises ImporterError."""
    diffusers = library("diffusers", source)
    data = configurations.find(asked.name, source)
    kind = str(data.get("_class_name"))
    known = [n for n in dir(diffusers) if n.startswith("UNet2D") and n.endswith("Model")]
    if kind not in known:
        raise unknown("network of diffusers that placekit can feed", kind, known, ImporterError)
    if asked.mode in ("prefill", "decode"):
        raise ImporterError(f"{kind} generates no text, so it has no mode={asked.mode}", "use mode=inference or train")
    for option, value in (("context", asked.context), ("weights", asked.weights)):
        if value is not None:
            raise ImporterError(f"{kind} has no {option}", f"leave out {option}=")
    mode = asked.mode or "inference"
    cls = getattr(diffusers, kind)
    name = "-".join(asked.name.strip("/").split("/")[-2:])
    return Network(name, mode, lambda: _step(cls, data, asked, mode))


def _step(cls: Any, data: dict[str, Any], asked: Asked, mode: Mode) -> Step:
    """One evaluation of the network, or a training step in which it learns to predict noise (mean squared error, AdamW)."""
    dtype = getattr(torch, asked.dtype or "float32")
    model = cls.from_config(data)
    torch.nn.Module.to(model, dtype)  # the class's own method prints a needless warning
    config = model.config
    size = config.sample_size or 64
    height, width = size if isinstance(size, list | tuple) else (size, size)
    if asked.image is not None:
        height = width = asked.image
    sample = torch.randn(asked.batch, config.in_channels, height, width, dtype=dtype)
    inputs = {"sample": sample, "timestep": torch.randint(0, 1000, (asked.batch,))}
    if "encoder_hidden_states" in inspect.signature(cls.forward).parameters:
        inputs["encoder_hidden_states"] = torch.randn(asked.batch, _TOKENS, config.cross_attention_dim, dtype=dtype)
    if mode == "inference":
        return Step(model, inputs | {"return_dict": False})
    noise = torch.randn(asked.batch, config.out_channels, height, width, dtype=dtype)
    return Step(
        model, inputs | {"return_dict": False}, lambda output, target: torch.nn.functional.mse_loss(output[0], target),
        noise, lambda p: torch.optim.AdamW(p, lr=1e-4),
    )  # fmt: skip
