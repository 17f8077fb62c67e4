"""Plans of training steps: one GPU, replicas, pipelines or both, and the script that runs each."""

from __future__ import annotations

from placekit_core import Command, hookimpl


@hookimpl
def placekit_commands() -> list[Command]:
    """The command `profile`."""
    return [
        Command(
            "profile",
            "FILE.py:FUNCTION batch=1,2,4 [KEY=VALUE ...]",
            "seconds and bytes of each layer of a training step",
            "placekit_training.profiling:main",
            "measure",
        )
    ]
