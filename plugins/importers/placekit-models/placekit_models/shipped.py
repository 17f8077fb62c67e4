"""The configurations in this package; imports no torch."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent / "configurations"
SHAPES = Path(__file__).parent / "shapes.yaml"
"""Hyperparameters of decoders."""


def shipped() -> dict[str, Path]:
    """The configuration files by name of the model."""
    return {path.stem.replace("--", "/"): path for path in sorted(_FOLDER.glob("*.json"))}


def full_names() -> list[str]:
    """The values of option `model` that use these files."""
    return [f"{'diffusers' if name.endswith('/unet') else 'hf'}:{name}" for name in shipped()]
