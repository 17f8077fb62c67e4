"""What the modules that know a library hand to the importer."""

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
        name: what reports call it.
        mode: the mode asked for, or the network's default.
        make: returns a `placekit_torch.Step`.
        routing: number of experts, and of those that a token chooses, for a mixture of experts.
        path: folder of the code that it runs, if that is the user's.
    """

    name: str
    mode: Mode
    make: Callable[[], Any]
    routing: tuple[int, int] | None = None
    path: Path | None = None
