"""Trained policies: what a run has learned, as files that another run loads (`policy.checkpoint=RUN_DIR`).

policy.safetensors     the parameters: arrays by name
policy.json            the policy's name and options, what it was trained on and with, and every parameter's shape

Neither is executed when it is read: safetensors holds plain arrays. What `pkg://` names is imported, as any installed package.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from placekit_core import __version__
from placekit_core.errors import PlacekitError, RunError
from placekit_core.graph_file import write_atomically
from placekit_core.interfaces import LearnablePolicy
from placekit_core.results import write_json

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

PARAMETERS, ABOUT = "policy.safetensors", "policy.json"
FORMAT, VERSION = "placekit-policy", 1
PACKAGE = "pkg://"  # Hydra's prefix of what a package ships: pkg://PACKAGE/FOLDER


def save_policy(policy: LearnablePolicy, folder: Path, about: Mapping[str, Any]) -> None:
    """Write the parameters of `policy` into `folder`; `about` says what they were trained on, for people to read."""
    from safetensors.numpy import save

    parameters = {name: np.ascontiguousarray(values) for name, values in policy.state_dict().items()}
    write_atomically(folder / PARAMETERS, save(parameters))
    options = policy.options.model_dump(mode="json")
    options.pop("checkpoint", None)  # where these parameters began is not what they are
    shapes = {name: [str(values.dtype), *values.shape] for name, values in sorted(parameters.items())}
    data = {"format": FORMAT, "version": VERSION, "placekit": __version__, "policy": policy.name, "options": options}
    write_json(folder / ABOUT, {**data, **about, "parameters": shapes})


def load_policy(policy: LearnablePolicy, path: str | Path) -> None:
    """Load what `save_policy` wrote into `policy`, which is built: from a folder, one of the two files, or a package's folder.

    A trained policy that an installed package ships is `pkg://PACKAGE/FOLDER`.

    Raises RunError if there is nothing to load, it is damaged, or it was trained as another policy or with other sizes;
    it then names what does not fit, and the options that differ. Where one side leaves an option to the problems (null),
    only the shapes count.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    if str(path).startswith(PACKAGE):
        folder: Traversable = _shipped(str(path))
    else:
        given = Path(path)
        folder = given.parent if given.name in (PARAMETERS, ABOUT) else given
    try:
        about = json.loads((folder / ABOUT).read_text())
        parameters: dict[str, NDArray[Any]] = load((folder / PARAMETERS).read_bytes())
        name, options = str(about["policy"]), dict(about["options"])
        if about["format"] != FORMAT or int(about["version"]) != VERSION:
            raise ValueError(f"format {about['format']} {about['version']}, this placekit reads {FORMAT} {VERSION}")
    except OSError as e:
        missing = Path(str(e.filename or folder)).name
        raise RunError(
            f"policy.checkpoint={path}: no {missing} there",
            "give a folder of that package that holds a trained policy"
            if str(path).startswith(PACKAGE)
            else "give the run directory of a run that trained a policy",
        ) from None
    except (ValueError, KeyError, TypeError, SafetensorError) as e:
        raise RunError(
            f"policy.checkpoint={path} is damaged: {' '.join(str(e).split())[:200]}",
            "train it again, or give the run directory of another run that trained a policy",
        ) from None
    if name != policy.name:
        raise RunError(
            f"policy.checkpoint={path} was trained as policy {name!r}, not {policy.name!r}", f"use policy={name}"
        )
    here = policy.options.model_dump(mode="json")
    free = policy.free_options
    differ = [f"{k}={options.get(k)} (here {v})" for k, v in here.items() if k not in free and options.get(k) != v]
    trained = f"it was trained with policy.{', policy.'.join(differ)}"
    if any(None not in (options.get(k), v) and k not in free and options.get(k) != v for k, v in here.items()):
        raise RunError(f"policy.checkpoint={path} belongs to other options of policy {name!r}", trained)
    unknown = sorted(parameters.keys() - policy.state_dict().keys())
    try:
        if unknown:
            raise PlacekitError(f"policy {policy.name!r} has no parameter {', '.join(map(repr, unknown))}")
        policy.load_state_dict(parameters)
    except PlacekitError as e:
        raise RunError(f"policy.checkpoint={path} does not fit: {e.message}", trained if differ else e.hint) from None


def _shipped(path: str) -> Traversable:
    """The folder of an installed package that `pkg://PACKAGE/FOLDER` names."""
    package, _, folder = path.removeprefix(PACKAGE).partition("/")
    parts = [p for p in folder.split("/") if p]
    if not package or not parts or ".." in parts:
        raise RunError(f"policy.checkpoint={path} names no folder of a package", "write pkg://PACKAGE/FOLDER")
    try:
        found = resources.files(package)
    except ImportError as e:
        raise RunError(
            f"policy.checkpoint={path}: package {package!r} cannot be imported: {e}", "write pkg://PACKAGE/FOLDER"
        ) from None
    for part in parts:
        found = found.joinpath(part)
    return found
