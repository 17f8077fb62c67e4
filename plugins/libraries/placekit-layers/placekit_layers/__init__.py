"""Library: the layers of a network, and contiguous splits of them over devices. Importing this package imports no numpy."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placekit_layers.blocks import Blocks as Blocks, sequence as sequence
    from placekit_layers.fallback import on_one_device as on_one_device, or_single_device as or_single_device

_HOME = {"Blocks": "blocks", "sequence": "blocks", "on_one_device": "fallback", "or_single_device": "fallback"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'placekit_layers' has no attribute {name!r}")
    return getattr(importlib.import_module(f"placekit_layers.{_HOME[name]}"), name)
