"""The list scheduler for compiled loops of plugins: the arrays of a `ListScheduler`, and the functions that work on them.

A loop takes `Fixed` and `State` from `arrays`; `restart` begins again from a state that nothing has touched. All functions
are numba's; importing this module imports it.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

from placekit_core._list_scheduling_heaps import UNCOUNTED, compiled
from placekit_core._list_scheduling_kernel import place, starts
from placekit_core._list_scheduling_state import Fixed, State
from placekit_core.list_scheduling import ListScheduler

__all__ = ["UNCOUNTED", "Fixed", "State", "arrays", "copied", "place", "restart", "starts"]


def arrays(scheduler: ListScheduler) -> tuple[Fixed, State]:
    """The problem, and a state that nothing has touched, with arrays of its own."""
    return scheduler._fixed, copied(scheduler._state)


def copied(state: State) -> State:
    """The same in arrays of its own."""
    made: Any = [array.copy() for array in state]
    return State(*made)


@compiled
def _copy(into: Any, values: Any) -> None:
    for i in range(into.shape[0]):
        into[i] = values[i]


@compiled
def _copy_rows(into: Any, values: Any) -> None:
    for i in range(into.shape[0]):
        for j in range(into.shape[1]):
            into[i, j] = values[i, j]


@compiled
def restart(s: Any, fresh: Any) -> None:
    """Make `s` what `fresh` is, as far as what has been decided."""
    _copy(s.missing, fresh.missing)
    _copy(s.start, fresh.start)
    _copy(s.finish, fresh.finish)
    _copy(s.group_device, fresh.group_device)
    _copy(s.used, fresh.used)
    _copy(s.live, fresh.live)
    _copy(s.peak, fresh.peak)
    _copy(s.readers, fresh.readers)
    _copy(s.storage_readers, fresh.storage_readers)
    _copy_rows(s.held, fresh.held)
    _copy_rows(s.arrival, fresh.arrival)
    _copy(s.lane_free, fresh.lane_free)
    _copy(s.tail, fresh.tail)
    _copy(s.before, fresh.before)
    _copy(s.counts, fresh.counts)
