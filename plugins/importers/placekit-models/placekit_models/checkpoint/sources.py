"""Finds a model: a GGUF file, a folder, a known shape, or a configuration on this computer. Nothing is downloaded."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Any

from placekit_core import ImporterError, parse_json, read_bytes, reading
from placekit_models.checkpoint.config import shape_of
from placekit_models.checkpoint.metadata import from_gguf
from placekit_models.checkpoint.modules import with_modules
from placekit_models.checkpoint.names import named
from placekit_models.checkpoint.recipes import PACKED, stored
from placekit_models.checkpoint.safetensors_header import files_of, from_safetensors
from placekit_models.shape import Checkpoint, known, shapes
from placekit_models.shipped import shipped

METHODS = {"fp8": "fp8", "fbgemm_fp8": "fp8", "awq": "awq", "gptq": "gptq", "mxfp4": "mxfp4", "modelopt": "nvfp4"}
"""Formats by the `quant_method` of a configuration."""

NATIVE = {"gpt-oss": "mxfp4"}
"""Formats in which models are published, by architecture, if that is not bf16."""


def find(model: str, weights: str | None) -> Checkpoint:
    """The tensors of a model. Raises ImporterError that says which file is missing, and where."""
    given, (model, weights) = model, named(model, weights)
    name = model.removeprefix("hf:")
    if not name or "\0" in name:
        raise ImporterError("no model is named", "give checkpoint=hf:NAME, a folder with config.json, or a GGUF file")
    path = Path(os.path.expanduser(name))
    if name.endswith(".gguf"):
        if not path.is_file():
            raise ImporterError(f"no file {name}", "give a GGUF file, a folder with config.json, or hf:NAME")
        return with_modules(_own(from_gguf(path), weights, name))
    if path.is_dir():
        return with_modules(_of_folder(path, weights))
    shape = known(name)
    title = name.rpartition("/")[2]
    if shape is None:
        config, where = _configuration(name, given)
        shape, weights = shape_of(config, where), weights or _method(config)
    own = next((word for word in title.lower().split("-") if word in PACKED), NATIVE.get(shape.architecture, "bf16"))
    return with_modules(stored(shape.whole(title), weights or own))


def _own(checkpoint: Checkpoint, weights: str | None, name: str) -> Checkpoint:
    """The checkpoint as its file has it. Raises ImporterError if another format is asked for."""
    if weights is not None:
        raise ImporterError(f"weights={weights} is given, but {name} has its own weights", "leave out weights=")
    return checkpoint


def _of_folder(folder: Path, weights: str | None) -> Checkpoint:
    files = sorted(folder.glob("*.gguf"))
    models = [f for f in files if not re.search(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", f.name) and "mmproj" not in f.name]
    config = folder / "config.json"
    if len(models) == 1 and not config.is_file():
        return _own(from_gguf(models[0]), weights, str(folder))
    if not config.is_file():
        several = f"has {len(models)} GGUF files" if models else "has no config.json and no GGUF file"
        raise ImporterError(f"{folder} {several}", "put the model's config.json into it, or name one file")
    data = _read(config)
    shape, tensors = shape_of(data, str(config)), files_of(folder)
    if tensors and weights is None:
        return from_safetensors(tensors, shape, folder)
    return stored(shape.whole(folder.resolve().name), weights or _method(data) or "bf16")


def _method(config: dict[str, Any]) -> str | None:
    """The format in a configuration's `quantization_config`; None without one. Raises ImporterError."""
    own = config.get("quantization_config")
    if not isinstance(own, dict):
        return None
    method, bits = own.get("quant_method"), own.get("bits") or (8 if own.get("load_in_8bit") else 4)
    if method == "bitsandbytes":
        return "int8" if bits == 8 else "nf4"
    if method == "gptq" and bits == 8:
        return "int8"
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]
    raise ImporterError(
        f"weights quantised by {method!r:.40} have no known format", "say one: weights=fp8, weights=int4, ..."
    )


def _configuration(name: str, given: str) -> tuple[dict[str, Any], str]:
    """The configuration of a model by its name, and where it is: in this package or in Hugging Face's cache.

    Raises ImporterError about the model as it was `given`.
    """
    for full, path in shipped().items():
        if name.lower() in (full.lower(), full.lower().rpartition("/")[2]):
            return _read(path), full
    home = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME", "~/.cache/huggingface"), "hub")
    folder = Path(home).expanduser() / f"models--{name.replace('/', '--')}" / "snapshots"
    cached = sorted(folder.glob("*/config.json")) if re.fullmatch(r"[\w.-]+/[\w.-]+", name) else []
    if cached:
        return _read(cached[-1]), str(cached[-1])
    file = f"no file {given}, and " if given.endswith(".gguf") else ""
    raise ImporterError(
        f"{file}no model {name!r} on this computer; none is downloaded",
        f"the closest names are {', '.join(_closest(name))}; `placekit plan --help` lists the {len(shapes())} models that need no"
        " files; for another one, give a GGUF file, or a folder with the model's config.json",
    )


def _closest(name: str) -> list[str]:
    """The five known names that are most similar."""
    known_names = {n.lower(): n for n in shapes()}
    title = name.lower().rpartition("/")[2].replace(":", "-").replace("_", "-")
    return [known_names[n] for n in difflib.get_close_matches(title, known_names, 5, 0)]


def _read(path: Path) -> dict[str, Any]:
    with reading(path, ImporterError, "configuration", "a configuration is the config.json of a model"):
        data = parse_json(read_bytes(path, 2**22))
        if not isinstance(data, dict):
            raise ValueError(f"it holds a {type(data).__name__}, not a mapping")
    return data
