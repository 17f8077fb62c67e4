"""The result of the modules that know one library each (`language`, `images`, `diffusion`, `files`), for the importer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Mode = Literal["train", "inference", "prefill", "decode"]


@dataclass(frozen=True)
class Network:
    """A network that can be built.

    Attributes:
        name: its name in reports.
        mode: the mode that the user asked for, or the network's default.
        make: builds it as a `placekit_torch.Step`.
        routing: for a mixture of experts, the number of experts, and how many of them a token chooses.
        path: folder of the user's code that `make` runs, if any.
        context: tokens per sequence; 0 without text.
    """

    name: str
    mode: Mode
    make: Callable[[], Any]
    routing: tuple[int, int] | None = None
    path: Path | None = None
    context: int = 0
