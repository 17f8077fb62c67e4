"""Optional libraries: a missing one is one clear error, and none of them may use the network."""

from __future__ import annotations

import importlib
import os
from typing import Any

from placekit_torch.vision import declare_torchvision

from placekit_core import ImporterError

_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def library(name: str, prefix: str) -> Any:
    """The library `name`, which models `prefix:...` need. Raises ImporterError with the command that installs it."""
    for key, value in _OFFLINE.items():
        os.environ.setdefault(key, value)
    try:
        declare_torchvision()  # transformers and timm import it, too
        return importlib.import_module(name)
    except ImportError as e:
        if isinstance(e, ModuleNotFoundError) and e.name and name.startswith(e.name):
            raise ImporterError(
                f"models {prefix}:... need {name}, which is not installed", f"pip install 'placekit-models[{name}]'"
            ) from None
        raise ImporterError(f"{name} cannot be imported: {str(e).splitlines()[0]}", "models need a working one") from e
