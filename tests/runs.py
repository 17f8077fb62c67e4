"""Runs in the process of a test, with the registry of the process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placekit_core import Result
from placekit_core.run import assembly, pipeline, registry
from placekit_core.run.config import RunConfig
from placekit_core.run.request import Request


def validate(data: Mapping[str, Any]) -> RunConfig:
    """A checked configuration."""
    return assembly.assemble(Request.of(data), registry.installed()).config


def run(config: RunConfig, run_dir: Path, objects: assembly.PythonObjects | None = None, **more: Any) -> Result:
    """The pipeline."""
    return pipeline.run(assembly.Assembly(config, registry.installed(), objects), run_dir, **more)


def minimal(**changes: object) -> dict[str, Any]:
    """A complete configuration of a small run."""
    data: dict[str, Any] = {
        "importer": {"name": "mlp"},
        "grouper": {"name": "none"},
        "policy": {"name": "annealing"},
        "trainer": {"name": "auto"},
        "backend": {"name": "simulator"},
        "proxy": {"name": "simulator"},
        "cluster": {"name": "default"},
    }
    return data | changes
