"""Trained policies, as files that another run loads (`policy.checkpoint=RUN_DIR`).

policy.safetensors     the parameters: arrays by name
policy.json            the policy's name and options, what it was trained on and with

Reading them executes nothing: safetensors holds plain arrays. But a package named by `pkg://` is imported, as any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from placekit_core.contracts.errors import PlacekitError, RunError
from placekit_core.contracts.files import (
    FileModel,
    checked,
    parse_json,
    read_bytes,
    reading,
    write_atomically,
    write_json,
)
from placekit_core.contracts.interfaces import LearnablePolicy
from placekit_core.contracts.version import __version__

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

PARAMETERS, ABOUT = "policy.safetensors", "policy.json"
MAX_PARAMETER_BYTES = 2**31
PACKAGE = "pkg://"  # Hydra's prefix for folders that a package ships: pkg://PACKAGE/FOLDER


class About(FileModel):
    """`policy.json`; besides these fields, it holds the `about` of `save_policy`."""

    model_config = ConfigDict(extra="ignore")
    format: Literal["placekit-policy"]
    version: Literal[1]
    policy: str
    options: dict[str, Any]


def save_policy(policy: LearnablePolicy, folder: Path, about: Mapping[str, Any]) -> None:
    """Write the parameters of `policy` into `folder`; `about` says what they were trained on, for people to read."""
    from safetensors.numpy import save

    parameters = {name: np.ascontiguousarray(values) for name, values in policy.state_dict().items()}
    write_atomically(folder / PARAMETERS, save(parameters))
    options = policy.options.model_dump(mode="json", exclude={"checkpoint"})  # where training began
    data = {"format": "placekit-policy", "version": 1, "placekit-core": __version__, "policy": policy.name}
    write_json(folder / ABOUT, {**data, "options": options, **about})


def load_policy(policy: LearnablePolicy, path: str | Path, option: str = "policy.checkpoint") -> None:
    """Load a trained policy into `policy`, which is built already. `path` is its folder or one of its two files.

    For a trained policy that an installed package ships, `path` is `pkg://PACKAGE/FOLDER`. Errors name `option`.

    Raises RunError if there is nothing to load, if it is damaged, or if it was trained as another policy, with other
    options or sizes. An option that is null on one side (the problems decide) may differ.
    """
    if str(path).startswith(PACKAGE):
        folder: Traversable = _shipped(str(path), option)
    else:
        folder = Path(path)
        folder = folder.parent if folder.name in (PARAMETERS, ABOUT) else folder
    hint = "train it again, or give the run directory of another run that trained a policy"
    with reading(f"{option}={path}", RunError, hint=hint):
        missing = next((name for name in (ABOUT, PARAMETERS) if not (folder / name).is_file()), None)
        if missing is not None:
            raise RunError(
                f"{option}={path}: no {missing} there",
                "give a folder of that package that holds a trained policy"
                if str(path).startswith(PACKAGE)
                else "give the run directory of a run that trained a policy",
            )
        about = checked(parse_json(read_bytes(folder / ABOUT)), About)
        parameters = _parameters(read_bytes(folder / PARAMETERS, MAX_PARAMETER_BYTES))
    name, options = about.policy, about.options
    if name != policy.name:
        raise RunError(f"{option}={path} was trained as policy {name!r}, not {policy.name!r}", f"use policy={name}")
    here = policy.options.model_dump(mode="json").items()
    set_here = {k: v for k, v in here if k not in policy.free_options and None not in (v, options.get(k))}
    differ = [
        f"policy.{k}={json.dumps(options[k])} (here {json.dumps(v)})" for k, v in set_here.items() if options[k] != v
    ]
    if differ:
        trained = f"it was trained with {', '.join(differ)}"
        raise RunError(f"{option}={path} was trained with other options of policy {name!r}", trained)
    try:
        policy.load_state_dict(parameters)
    except PlacekitError as e:
        raise RunError(f"{option}={path} does not fit: {e.message}", e.hint) from None


def _parameters(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of policy.safetensors. Raises ValueError."""
    from safetensors.numpy import load

    try:
        parameters: dict[str, NDArray[Any]] = load(data)
    except Exception as e:  # errors of safetensors, and of types that numpy does not have
        raise ValueError(f"{PARAMETERS}: {e}") from None
    return parameters


def _shipped(path: str, option: str) -> Traversable:
    """The folder in an installed package that `pkg://PACKAGE/FOLDER` names."""
    package, _, folder = path.removeprefix(PACKAGE).partition("/")
    parts = [p for p in folder.split("/") if p]
    if not package or not parts or ".." in parts:
        raise RunError(f"{option}={path} names no folder of a package", "write pkg://PACKAGE/FOLDER")
    try:
        found = resources.files(package)
    except ImportError as e:
        raise RunError(
            f"{option}={path}: package {package!r} cannot be imported: {e}", "write pkg://PACKAGE/FOLDER"
        ) from None
    for part in parts:
        found = found.joinpath(part)
    return found
