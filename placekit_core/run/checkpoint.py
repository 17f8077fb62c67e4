"""Checkpoints: `checkpoint.npz`, a state with a checksum, so that a run never continues from a damaged one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placekit_core.contracts.errors import RunError
from placekit_core.contracts.files import reading, write_atomically
from placekit_core.contracts.state_file import pack_state, unpack_state

CHECKPOINT = "checkpoint.npz"


def save_checkpoint(run_dir: Path, state: Mapping[str, Any]) -> None:
    """Write the nested `state` as checkpoint.npz, atomically. Raises WriteError."""
    write_atomically(run_dir / CHECKPOINT, pack_state(state))


def load_checkpoint(run_dir: Path) -> dict[str, Any] | None:
    """The state that `save_checkpoint` wrote, or None if there is none. Raises RunError if it is damaged."""
    path = run_dir / CHECKPOINT
    if not path.is_file():
        return None
    with reading(path, RunError, hint="remove it to start this run again"):
        return unpack_state(path.read_bytes())
