"""Importer `onnx`: inference of a model in an ONNX file. Importing this package does not import onnx."""

from __future__ import annotations

import re

from placekit_core import ImporterComponent, hookimpl
from placekit_onnx.options import OnnxOptions


def is_onnx(head: bytes) -> bool:
    """Whether a file beginning with `head` may be an ONNX model: it starts with the format's version and another field."""
    return re.match(rb'\x08[\x01-\x1f](\Z|[\x12\x1a"\x28\x32\x3aBr]|\xa2\x01|\xca\x01|\xd2\x01)', head) is not None


@hookimpl
def placekit_importers() -> list[ImporterComponent]:
    """Importer `onnx`."""
    return [
        ImporterComponent(
            name="onnx",
            summary="inference of a model in an ONNX file; its weights are not read",
            config=OnnxOptions,
            target="placekit_onnx.importer:OnnxImporter",
            files=(".onnx",),
            detect=is_onnx,
        )
    ]
