"""Finds the configuration of a model on disk, in this package or in Hugging Face's local cache; never on the network."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from textwrap import wrap
from typing import Any

from placekit_core import ImporterError, parse_json, read_bytes, reading
from placekit_models.extras import library
from placekit_models.shipped import shipped

_NOTE = "_note"  # member of the files in this package: which model the configuration is of


def find(name: str, prefix: str) -> dict[str, Any]:
    """The configuration of a model, from the first place that has one. Raises ImporterError if none has.

    `name` is a folder with a `config.json`, such a file, or the model's name: `ORGANISATION/MODEL`, with `/PART` for a part
    that has its own folder. `MODEL` alone is enough for the configurations in this package.
    """
    path = Path(name).expanduser()
    file = path / "config.json" if os.path.isdir(path) else path
    if os.path.isfile(file) and _is_a_models(data := _read(file)):
        return data
    if os.path.isfile(path / "model_index.json"):
        parts = sorted(p.parent.name for p in path.glob("*/config.json"))
        raise ImporterError(
            f"{name} is a pipeline of several models", f"name one of them: {name}/{' or /'.join(parts)}"
        )
    own = shipped()
    for full, shape in own.items():
        if name.lower() in (full.lower(), full.partition("/")[2].lower()):
            return _read(shape)
    cached = _cached(name, prefix)
    if cached is not None:
        return _read(cached)
    if os.path.isfile(file):
        raise ImporterError(
            f"{file} has no `model_type`, so it is not the configuration of a model",
            f"give {prefix}:FOLDER or {prefix}:NAME",
        )
    names = {n: full for full in own for n in (full.lower(), full.lower().partition("/")[2])}
    close = difflib.get_close_matches(name.lower(), names, 1, 0.75)
    guess = f"did you mean {prefix}:{names[close[0]]}? " if close else ""
    listed = "\n  ".join(wrap(", ".join(own), 78, break_on_hyphens=False))
    raise ImporterError(
        f"no configuration of {name!r} on this computer, and none is downloaded",
        f"{guess}put its config.json into a folder, and give {prefix}:FOLDER; in the package:\n  {listed}",
    )


def beside(name: str, prefix: str, file: str) -> dict[str, Any]:
    """Another file of the model `name`, beside its configuration; {} without one. Raises ImporterError."""
    folder = Path(name.removesuffix("config.json")).expanduser()
    found = folder / file if os.path.isfile(folder / file) else _cached(name, prefix, file)
    return {} if found is None else _read(found)


def _cached(name: str, prefix: str, file: str = "config.json") -> Path | None:
    """The file in Hugging Face's local cache of earlier downloads, or None."""
    organisation, _, rest = name.partition("/")
    model, _, part = rest.partition("/")
    if not model:
        return None
    hub = library("huggingface_hub", prefix)
    try:
        found = hub.try_to_load_from_cache(f"{organisation}/{model}", "/".join(filter(None, [part, file])))
    except ValueError:  # not the name of a repository
        return None
    return Path(found) if isinstance(found, str) else None


def _is_a_models(data: dict[str, Any]) -> bool:
    """Whether a `config.json` belongs to a model; a run directory of placekit has one, too."""
    return "model_type" in data or "_class_name" in data


def _read(path: Path) -> dict[str, Any]:
    with reading(path, ImporterError, "configuration", "a configuration is the config.json of a model"):
        data = parse_json(read_bytes(path))
        if not isinstance(data, dict):
            raise ValueError(f"it holds a {type(data).__name__}, not a mapping")
    data.pop(_NOTE, None)
    plain: dict[str, Any] = _with_floats(data)
    return plain


def _with_floats(value: Any) -> Any:
    """Replace `{"__float__": "Infinity"}`, as transformers writes floats that JSON lacks, by the float."""
    if isinstance(value, list):
        return [_with_floats(v) for v in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"__float__"} and value["__float__"] in ("Infinity", "-Infinity", "NaN"):
        return float(value["__float__"])
    return {k: _with_floats(v) for k, v in value.items()}
