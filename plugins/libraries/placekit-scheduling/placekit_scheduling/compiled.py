"""The list scheduler for compiled loops of plugins: the arrays of a `ListScheduler`, and the functions that work on them.

A loop takes `Fixed` and `State` from `arrays`; `restart` begins again from a fresh state. All functions are compiled by
numba; importing this module imports numba.

- `starts(p, s, op, ready, start)` fills [D] when the inputs of a ready operation could be on each device, and when it could
  start there; inf where it may not run.
- `place(p, s, op, device)` places a ready operation.
- `restart(s, fresh)` copies the state `fresh` into the state `s`.

`UNCOUNTED` are the options of `njit` that all of them are compiled with, besides a cache; their callers are fastest with the
same options.
"""

from __future__ import annotations

from typing import Any

from placekit_scheduling.fields import copier_of
from placekit_scheduling.jit import UNCOUNTED
from placekit_scheduling.list_scheduling.kernel import place, starts
from placekit_scheduling.list_scheduling.scheduler import ListScheduler
from placekit_scheduling.list_scheduling.state import Fixed, State

__all__ = ["UNCOUNTED", "Fixed", "State", "arrays", "copied", "place", "restart", "starts"]

restart = copier_of(State)


def arrays(scheduler: ListScheduler) -> tuple[Fixed, State]:
    """The scheduler's problem, and a copy of its state with arrays of its own."""
    return scheduler._fixed, copied(scheduler._state)


def copied(state: State) -> State:
    """A copy of `state` with arrays of its own."""
    made: Any = [array.copy() for array in state]
    return State(*made)
