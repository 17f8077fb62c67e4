"""Importer `torch`, a PyTorch module's training step or inference as one graph; and the way back into PyTorch's code.

From Python: `import_module` imports a module; `device_map` and `pipeline` convert a placement for other code. Importing this
package does not import torch; these functions are loaded at first use.
"""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placekit_core import Command, Component, hookimpl
from placekit_torch.given_options import GivenOptions
from placekit_torch.options import TorchOptions
from placekit_torch.pt2_options import Pt2Options
from placekit_torch.step import Step as Step

if TYPE_CHECKING:
    from placekit_core import Result
    from placekit_torch.dispatching import dispatch as dispatch
    from placekit_torch.export import device_map as device_map, pipeline as pipeline
    from placekit_torch.importer import import_module as import_module

_HOME = {"device_map": "export", "dispatch": "dispatching", "import_module": "importer", "pipeline": "export"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'placekit_torch' has no attribute {name!r}")
    return getattr(importlib.import_module(f"placekit_torch.{_HOME[name]}"), name)


def is_pt2(head: bytes) -> bool:
    """Whether a file that begins with `head` is a zip whose first file is part of a program of torch.export.

    Files of torch.save and torch.jit.save are claimed, too: the importer says what they are.
    """
    part = rb"PK\x03\x04.{26}([^/]{1,200}/)?(data/|models/|extra/|archive_|serialized_|data\.pkl|code/)"
    return re.match(part, head, re.DOTALL) is not None


@hookimpl
def placekit_importers() -> list[Component]:
    """Importers `torch` and `pt2`."""
    return [
        Component(
            name="torch",
            summary="any nn.Module with inputs, loss and optimiser: a training step or inference",
            config=TorchOptions,
            target="placekit_torch.importer:TorchImporter",
            objects=("torch.nn.modules.module.Module", "placekit_torch.step.Step"),
        ),
        Component(
            name="pt2",
            summary="inference of a program of torch.export; its weights are not read, and nothing is unpickled",
            config=Pt2Options,
            target="placekit_torch.pt2:Pt2Importer",
            files=(".pt2",),
            detect=is_pt2,
        ),
    ]


@hookimpl
def placekit_policies() -> list[Component]:
    """Policy `given`."""
    return [
        Component(
            name="given",
            summary="a placement of your own: a device map, or the placement.json of a run",
            config=GivenOptions,
            target="placekit_torch.given:Given",
        )
    ]


@hookimpl
def placekit_commands() -> list[Command]:
    """`apply` and `evaluate`."""
    return [
        Command(
            name="apply",
            usage="RUN_DIR [--format FORMAT] [--out FILE]",
            summary="a run's placement, in the form that other code needs",
            target="placekit_torch.apply:main",
            group="place",
        ),
        Command(
            name="evaluate",
            usage="MAP.json [OPTION=VALUE ...]",
            summary="what a device map or placement of your own costs",
            target="placekit_torch.evaluate:main",
            group="place",
        ),
    ]


@hookimpl
def placekit_next_steps(run_dir: Path, result: Result) -> list[str]:
    """`placekit apply` for one PyTorch module on several devices, except towers, which a device map cannot hold."""
    if len(result.programs) != 1 or "programs" in result.summary.config["python_objects"]:
        return []
    [program] = result.programs
    graph, placement = program.problem.graph, program.placement
    if placement is None or "torch" not in graph.attributes or "tower" in graph.columns:
        return []
    if len(set(placement.device.tolist())) == 1:
        return []
    device = program.problem.expand(placement.device).tolist()
    pairs = {(graph.module.codes[v], device[v]) for v in graph.kernel.nonzero()[0].tolist() if graph.phase[v] == 0}
    whole = len({module for module, _ in pairs}) == len(pairs)
    return [
        f"placekit apply {shlex.quote(str(run_dir))} # {'the placement as' if whole else 'whole modules, in'} a device_map"
    ]


@hookimpl
def placekit_facts() -> dict[str, str | int | None]:
    """Settings that decide the numbers that torch computes, if it was imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {"torch_cuda": torch.version.cuda, "torch_threads": torch.get_num_threads()}
