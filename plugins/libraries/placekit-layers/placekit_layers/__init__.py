"""Library: the layers of a network, and contiguous splits of them over devices."""

from __future__ import annotations

from placekit_layers.blocks import Blocks as Blocks, sequence as sequence
from placekit_layers.fallback import on_one_device as on_one_device, or_single_device as or_single_device
