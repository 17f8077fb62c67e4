"""Checkpoints: `checkpoint.npz`, a state with a checksum, so that a run never continues from a damaged one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from placekit_core.contracts.errors import RunError
from placekit_core.contracts.files import FileModel, checked, read_bytes, reading, write_atomically
from placekit_core.contracts.state_file import MAX_STATE_BYTES, pack_state, unpack_state
from placekit_core.run.evaluator import EvaluatorState

CHECKPOINT = "checkpoint.npz"
_HINT = "remove it to start this run again"


class CheckpointTooLargeError(RunError):
    """A checkpoint would be too large to be read again."""


class Saved(FileModel):
    """The content of a checkpoint: `done` stages are complete, and `state` is the state of the next one.

    `identity` tells which run it belongs to; `parameters` are the parameters of a learnable policy.
    """

    done: int = Field(ge=0)
    identity: list[str]
    streams: dict[str, dict[str, Any]]
    evaluators: list[EvaluatorState]
    proxies: list[EvaluatorState | None]
    state: dict[str, Any] | None = None
    parameters: dict[str, Any] | None = None


def save_checkpoint(run_dir: Path, state: Mapping[str, Any]) -> None:
    """Write the nested `state` as checkpoint.npz, atomically.

    Raises CheckpointTooLargeError, and leaves the previous checkpoint, if `load_checkpoint` would refuse it.
    """
    try:
        data = pack_state(state)
    except ValueError as e:
        raise CheckpointTooLargeError(f"a checkpoint of this run could not be read again: {e}") from None
    write_atomically(run_dir / CHECKPOINT, data)


def load_saved(run_dir: Path) -> Saved | None:
    """The checkpoint in `run_dir`, or None if there is none. Raises RunError if it is damaged."""
    state = load_checkpoint(run_dir)
    with reading(run_dir / CHECKPOINT, RunError, hint=_HINT):
        return None if state is None else checked(state, Saved)


def load_checkpoint(run_dir: Path) -> dict[str, Any] | None:
    """The state that `save_checkpoint` wrote, or None if there is none. Raises RunError if it is damaged."""
    path = run_dir / CHECKPOINT
    if not path.is_file():
        return None
    with reading(path, RunError, hint=_HINT):
        return unpack_state(read_bytes(path, MAX_STATE_BYTES))
