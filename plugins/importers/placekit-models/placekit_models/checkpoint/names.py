"""Names of models as people write them: with the format of the weights, as ollama's tags, as a file that is elsewhere."""

from __future__ import annotations

import os
import re

from placekit_models.checkpoint.recipes import GGUF
from placekit_models.shape import full_name

ALIASES = {"fp16": "f16", "mxfp4": "mxfp4_moe"}
"""Formats under other names."""
FORMATS = "|".join(sorted([*GGUF, *ALIASES, r"ud-\w+"], key=len, reverse=True))
_NAMED = re.compile(rf"(?P<name>.+?)([-_.]gguf)?[-._:](?P<weights>{FORMATS})(-\d{{5}}-of-\d{{5}})?", re.I)


def named(model: str, weights: str | None) -> tuple[str, str | None]:
    """The model without the format in its name, and the format; `weights`, if given, is the format.

    `user/X-GGUF:Q4_K_M` and a file `X-Q4_K_M.gguf` that is not on this computer are X in q4_k_m, and `llama3.3:70b` is
    Llama-3.3-70B. Other names, and models on this computer, stay as they are.
    """
    name = model.removeprefix("hf:")
    if "\0" in name or os.path.exists(os.path.expanduser(name)):
        return model, weights
    is_file = name.lower().endswith(".gguf")
    if not is_file and ":" not in name:
        return model, weights
    stem = re.split(r"[/\\]", name)[-1][: -len(".gguf")] if is_file else name
    match = _NAMED.fullmatch(stem)
    if match is not None:
        own = match["weights"].lower()
        stem, weights = match["name"], weights or ALIASES.get(own, own)
    elif is_file and weights is None:
        return model, None
    return (full_name(stem) or stem) if ":" in stem else stem, weights
