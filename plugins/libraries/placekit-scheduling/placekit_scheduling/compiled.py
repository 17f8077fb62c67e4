"""The list scheduler for compiled loops of plugins. Importing this imports numba.

`arrays` returns the arrays of a `ListScheduler`. Compiled functions that use them:

- `starts(p, s, op, ready, start)` fills `ready` [D] and `start` [D] for a ready operation: when its inputs could be on each
  device, and when it could start there; inf where it may not run.
- `place(p, s, op, device)` places a ready operation.
- `restart(s, fresh)` copies the state `fresh` into the state `s`.

They are compiled with the options `UNCOUNTED`; callers are fastest with the same options.
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
    """The scheduler's problem, and a copy of its state."""
    return scheduler._fixed, copied(scheduler._state)


def copied(state: State) -> State:
    """A copy of `state` that shares no arrays with it."""
    copies: Any = [array.copy() for array in state]
    return State(*copies)
