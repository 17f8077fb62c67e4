"""Importers `model` and `checkpoint`: networks by name, `model=hf:NAME mode=decode`, and decoders as runtimes run them,
`checkpoint=hf:NAME weights=q4_k_m`. Importing this package imports no torch."""

from __future__ import annotations

from placekit_core import ImporterComponent, hookimpl
from placekit_models.checkpoint import options as checkpoint
from placekit_models.options import SHORTHAND, ModelOptions


def is_gguf(head: bytes) -> bool:
    """Whether a file that begins with `head` is a GGUF file."""
    return head.startswith(b"GGUF")


@hookimpl
def placekit_importers() -> list[ImporterComponent]:
    """Importers `model` and `checkpoint`."""
    return [
        ImporterComponent(
            name="model",
            summary="a network by its name: hf:, timm:, torchvision:, diffusers:, or FILE.py:FACTORY",
            config=ModelOptions,
            target="placekit_models.importer:ModelImporter",
            shorthand=SHORTHAND,
        ),
        ImporterComponent(
            name="checkpoint",
            summary="a language model as llama.cpp and vLLM run it, quantised or not: hf:NAME, a folder, or a GGUF file",
            config=checkpoint.CheckpointOptions,
            target="placekit_models.checkpoint.importer:CheckpointImporter",
            files=(".gguf",),
            detect=is_gguf,
            shorthand=checkpoint.SHORTHAND,
        ),
    ]
