"""Optional libraries: if one is missing, the error says what to install. None of them may use the network."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from placekit_torch.vision import declare_torchvision

from placekit_core import ImporterError

_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Keep Hugging Face's libraries off the network, whatever the environment says; restore the environment afterwards."""
    before = {name: os.environ.get(name) for name in _OFFLINE}
    os.environ.update(_OFFLINE)
    _read_environment()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _read_environment()


def _read_environment() -> None:
    """Have huggingface_hub, if it is imported, read again whether it may use the network: it does so at its import only."""
    constants: Any = sys.modules.get("huggingface_hub.constants")
    if constants is not None:
        text = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
        constants.HF_HUB_OFFLINE = text.upper() in ("1", "ON", "YES", "TRUE")


def library(name: str, prefix: str) -> Any:
    """The library `name`, which models `prefix:...` need. Raises ImporterError with the command that installs it."""
    try:
        declare_torchvision()  # transformers and timm import it, too
        return importlib.import_module(name)
    except ImportError as e:
        if isinstance(e, ModuleNotFoundError) and e.name and name.startswith(e.name):
            raise ImporterError(
                f"models {prefix}:... need {name}, which is not installed", f"pip install 'placekit-models[{name}]'"
            ) from None
        raise ImporterError(f"{name} cannot be imported: {str(e).splitlines()[0]}", "models need a working one") from e
