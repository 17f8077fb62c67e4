"""A model of the user's own: `FILE.py:FACTORY`."""

from __future__ import annotations

import inspect
from pathlib import Path

from placekit_torch.factory import find_factory, folder_of

from placekit_core import ImporterError
from placekit_models.network import Network
from placekit_models.options import Asked


def network(asked: Asked, source: str) -> Network:
    """The network that a factory builds. The factory gets the options for which it has parameters. Raises ImporterError."""
    file, _, attribute = asked.name.rpartition(":")
    path = Path(file).expanduser()
    if not path.is_file():
        raise ImporterError(f"there is no file {file}", "give your own model as FILE.py:FUNCTION")
    if asked.mode in ("prefill", "decode"):
        raise ImporterError(
            f"mode={asked.mode} is only for models of transformers", "leave out mode: the function builds its step"
        )
    folder = folder_of(str(path.parent))
    factory = find_factory(f"{path.stem}:{attribute}", folder)
    given = {k: getattr(asked, k) for k in ("batch", "context", "dtype", "weights", "image")}
    takes = inspect.signature(factory).parameters
    chosen = {k: v for k, v in given.items() if v is not None and not (k == "batch" and v == 1)}
    for key in (k for k in chosen if k not in takes):
        has = f"its parameters are {', '.join(takes)}" if takes else "it has no parameters"
        raise ImporterError(f"{asked.name} takes no {key!r}", f"{has}: leave {key}= out, or give it one named {key}")
    return Network(f"{path.stem}.{attribute}", asked.mode or "train", lambda: factory(**chosen), path=folder)
