"""The list scheduler, which places operations one by one. Heuristics, searches and Doppler's teacher share it.

Placing an operation binds its whole group to the device. The times are an estimate of the machine model of
docs/machine-model.md: a transfer starts when its tensor exists and its channels are free, a tensor is sent once per
destination, and operations run in the order in which they are placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from placekit_core import Placement, PlacementError, Problem, Task
from placekit_scheduling.compile_example import warm_up_problem
from placekit_scheduling.list_scheduling.levels import (
    b_level,
    critical_path,
    critical_path_device,
    group_priority,
    mean_optimistic_cost,
    optimistic_cost,
    t_level,
)
from placekit_scheduling.list_scheduling.state import INSERTION, Fixed, State

Rule = Literal["critical_path", "earliest_finish", "etf", "heft", "cpop", "peft"]
RULES: tuple[Rule, ...] = get_args(Rule)


class ListScheduler:
    """A schedule under construction: place ready operations one by one, or let a rule place all remaining ones.

    Sources exist from time 0 and are never placed by themselves. The first consumer that is placed binds a free group of
    sources to its device, where reading them then costs nothing.

    Memory is estimated as in docs/machine-model.md, but in the order of placing: outputs and received copies are live until
    their last reader is placed. A free group goes to a device only if there is room for its persistent bytes, and for the
    outputs, the received copies and the free sources of the operation that is placed. If no allowed device has this room, the
    persistent bytes must fit; if they fit nowhere, the group may go anywhere.

    >>> scheduler = ListScheduler(problem)
    >>> while not scheduler.done:
    ...     op = scheduler.ready[0]
    ...     scheduler.place(op, int(scheduler.earliest_start(op).argmin()))
    >>> placement = scheduler.placement()

    Args:
        problem: the problem.
        allowed: [g, D] restricts the devices of groups further; every group must keep at least one.
        few: only a few schedules are made. For a small problem, Python then runs the compiled loops
            (`jit.by_size`): the schedules are the same, and nothing is compiled.

    Attributes:
        problem: the problem.
        start_s, finish_s: [n] seconds; 0 for sources and operations that are not placed.
        group_device: [g] device of each group; -1 if it has none yet.
        arrival_s: [t, D] when a copy of each tensor arrives on each device; -1 if none was sent.
        used_bytes: [D] persistent bytes of the groups on each device.
        peak_bytes: [D] estimated peak of the bytes in use on each device.
        level: [n] levels of the last `run`; before the first one, b-levels.
    """

    def __init__(self, problem: Problem, allowed: NDArray[np.bool_] | None = None, few: bool = False) -> None:
        from placekit_scheduling.list_scheduling import kernel  # numba: at first use

        self.problem = problem
        self._kernel, self._few = kernel, few
        self._devices = problem.cluster.size
        self._fixed = Fixed.of(problem, problem.allowed if allowed is None else problem.allowed & allowed)
        self._levels: dict[float, NDArray[np.float64]] = {}
        self._level: NDArray[np.float64] | None = None
        self.reset()

    def reset(self, insertion: bool = False) -> None:
        """Start again with nothing placed. With `insertion`, an operation may fill a gap before others (HEFT)."""
        self._state = State.of(self.problem, self._fixed, insertion)

    @property
    def start_s(self) -> NDArray[np.float64]:
        return self._state.start

    @property
    def finish_s(self) -> NDArray[np.float64]:
        return self._state.finish

    @property
    def group_device(self) -> NDArray[np.int64]:
        return self._state.group_device

    @property
    def arrival_s(self) -> NDArray[np.float64]:
        return self._state.arrival

    @property
    def used_bytes(self) -> NDArray[np.float64]:
        return self._state.used

    @property
    def peak_bytes(self) -> NDArray[np.float64]:
        return self._state.used + self._state.peak

    @property
    def ready(self) -> NDArray[np.int64]:
        """The kernels that can be placed next, ascending: all kernels that they read from are placed."""
        return np.flatnonzero(self._state.missing == 0)

    @property
    def done(self) -> bool:
        """Whether every kernel is placed."""
        return bool((self._state.missing < 0).all())

    @property
    def makespan_s(self) -> float:
        """When the last operation placed so far ends, seconds."""
        return float(self._state.finish.max(initial=0.0))

    @property
    def level(self) -> NDArray[np.float64]:
        return self._b_level(1.0) if self._level is None else self._level

    def _b_level(self, communication: float) -> NDArray[np.float64]:
        if communication not in self._levels:
            self._levels[communication] = b_level(self.problem, communication=communication)
        return self._levels[communication]

    def earliest_start(self, op: int) -> NDArray[np.float64]:
        """[D] when ready operation `op` could start on each device, seconds.

        inf where it may not run: its group is elsewhere, is not allowed, or does not fit (see the class).
        """
        self._check_ready(op)
        ready, start = np.empty(self._devices), np.empty(self._devices)
        self._loop(self._kernel.starts)(self._fixed, self._state, int(op), ready, start)
        return start

    def place(self, op: int, device: int) -> float:
        """Place ready operation `op` on `device`. Returns its start, seconds.

        Raises PlacementError if it is not ready, or if its group is elsewhere or not allowed there. Memory is not checked:
        use `earliest_start` to see where there is room.
        """
        self._check_ready(op)
        self._check_device(int(self.problem.grouping.group_of[op]), device)
        self._loop(self._kernel.place)(self._fixed, self._state, int(op), int(device))
        return float(self._state.start[op])

    def run(
        self,
        rule: Rule = "critical_path",
        level: NDArray[np.float64] | None = None,
        seed: int | None = None,
        favourite: NDArray[np.int64] | None = None,
    ) -> ListScheduler:
        """Place all remaining operations by a rule. Returns self.

        Args:
            rule: `critical_path`: the ready operation of highest level, on the device of earliest start (ties: of
                earliest finish). `earliest_finish`: the same, on the device of earliest finish. `etf`: the (ready
                operation, device) pair of earliest start, ties by higher level (Hwang et al. 1989). `heft`:
                `earliest_finish`, which may also fill gaps (Topcuoglu et al. 2002); start it from a fresh `reset`.
                `cpop`: `heft` by b-level plus t-level, with a critical path on the device that is fastest for all of it
                (same paper; `critical_path`). `peft`: `heft` by the mean of `optimistic_cost`, whose entry is
                added to the finish on each device (Arabnejad and Barbosa 2014).
            level: [n]; default: b-levels with communication (`etf`: without), or as described for `cpop` and `peft`.
            seed: seed for random ties; None: the lower index wins.
            favourite: [n] favourite child of each operation, or -1. The operation's device waits for the child if it is
                ready, no device can start it earlier, and no urgent operation comes before it, which could start on any
                device at once. Only for `etf`: SCT's scheduling (Hanen and Munier 1995; Baechi, Jeon et al. 2020, section 3).
        """
        if rule not in RULES:
            raise PlacementError(f"no list scheduling rule {rule!r}", f"rules: {', '.join(RULES)}")
        n = self.problem.graph.n
        if favourite is not None and rule != "etf":
            raise PlacementError(f"rule {rule!r} does not support favourite children", "use rule 'etf'")
        if favourite is not None and (len(favourite) != n or not np.isin(favourite, np.arange(-1, n)).all()):
            raise PlacementError(f"favourite must hold {n} operations, or -1 where there is none")
        chosen = self.default_level(rule) if level is None else np.asarray(level, np.float64)
        if chosen.shape != (n,):
            raise PlacementError(f"levels have shape {chosen.shape}, the graph has {n} operations")
        self._level = chosen
        # sums in another order differ in the last bits: they must still be ties
        rounded = np.round(chosen / max(float(np.abs(chosen).max(initial=0.0)), 1e-300) * 2.0**40)
        tie = np.arange(n) if seed is None else np.random.default_rng(seed).permutation(n)
        by_rank = np.lexsort((tie, -rounded))
        rank = np.empty(n, np.int64)
        rank[by_rank] = np.arange(n)
        number = -1 if seed is None else seed % 2**62
        if favourite is not None:
            from placekit_scheduling.list_scheduling.favourite import Favourites, run_favourites

            favourites = Favourites.of(np.array(favourite, np.int64), self._devices)
            self._loop(run_favourites)(self._fixed, self._state, favourites, rank, number)
        elif rule == "etf":
            from placekit_scheduling.list_scheduling.earliest import Pairs, run_earliest

            pairs = Pairs.none(n, self._devices)
            self._loop(run_earliest)(self._fixed, self._state, pairs, rank, by_rank, number)
        else:
            home = self._on_critical_path if rule == "cpop" else np.full(n, -1, np.int64)
            ahead = self._optimistic if rule == "peft" else np.zeros((n, self._devices))
            self._state.counts[INSERTION] |= rule in ("heft", "cpop", "peft")
            by_finish = rule != "critical_path"
            self._loop(self._kernel.run_level)(self._fixed, self._state, rank, by_rank, number, by_finish, home, ahead)
        return self

    def _loop(self, function: Any) -> Any:
        """A compiled loop, as this scheduler runs it."""
        from placekit_scheduling.jit import by_size

        return by_size(function, self.problem.graph.n * self._devices) if self._few else function

    def default_level(self, rule: Rule) -> NDArray[np.float64]:
        """[n] the default levels of `run`."""
        if rule == "cpop":
            return self._b_level(1.0) + self._t_level
        if rule == "peft":
            return mean_optimistic_cost(self.problem, self._optimistic)
        return self._b_level(0.0 if rule == "etf" else 1.0)

    @cached_property
    def _t_level(self) -> NDArray[np.float64]:
        return t_level(self.problem)

    @cached_property
    def _optimistic(self) -> NDArray[np.float64]:
        return optimistic_cost(self.problem)

    @cached_property
    def _on_critical_path(self) -> NDArray[np.int64]:
        """[n] device of the critical path for its operations; -1 for all others."""
        home, path = np.full(self.problem.graph.n, -1, np.int64), critical_path(self.problem)
        home[path] = critical_path_device(self.problem, path)
        return home

    def devices(self) -> NDArray[np.int16]:
        """[g] device of every group; groups of unread sources go to the allowed device with most free memory."""
        device, used = self._state.group_device.astype(np.int16), self._state.used.copy()
        for group in np.flatnonzero(device < 0):
            room = np.where(self._fixed.allowed[group], self._fixed.memory - used, -np.inf)
            device[group] = int(room.argmax())
            used[device[group]] += self._fixed.group_bytes[group]
        return device

    def placement(self, value: NDArray[np.float64] | None = None) -> Placement:
        """The placement, with priorities from `value` [n] (default: `level`) by `group_priority`.

        Raises PlacementError if operations are not placed yet.
        """
        if not self.done:
            raise PlacementError(
                f"{int((self._state.missing >= 0).sum())} operations of {self.problem.graph.name!r} are not placed yet",
                "call `run`, or `place` until `done`",
            )
        return self.problem.placement(
            self.devices(), group_priority(self.problem, self.level if value is None else value)
        )

    def _check_ready(self, op: int) -> None:
        if not 0 <= op < self.problem.graph.n or self._state.missing[op] != 0:
            names, n = self.problem.graph.op_name, self.problem.graph.n
            what = f"operation {names[op]!r}" if 0 <= op < n else f"operation {op}"
            raise PlacementError(
                f"{what} is not ready", "it is a source, is placed already, or reads from one that is not placed"
            )

    def _check_device(self, group: int, device: int) -> None:
        names, bound = self.problem.cluster.device_names, int(self._state.group_device[group])
        if not 0 <= device < len(names):
            raise PlacementError(f"there is no device {device}", f"devices are 0..{len(names) - 1}")
        if bound not in (-1, device):
            raise PlacementError(
                f"group {self.problem.grouping.name(group)!r} is on {names[bound]}, not on {names[device]}"
            )
        if not self._fixed.allowed[group, device]:
            can = [n for n, ok in zip(names, self._fixed.allowed[group], strict=True) if ok]
            raise PlacementError(
                f"group {self.problem.grouping.name(group)!r} may not run on {names[device]}",
                f"it may run on: {', '.join(can)}",
            )


def warm_up(task: Task, rules: Sequence[Rule] = RULES, favourites: bool = False) -> None:
    """Compile the loops that a few schedules of a problem by `rules` need, or load them from disk, while no clock runs.

    Use `favourites` for `etf` with favourite children. For a small problem, see `ListScheduler`, there is nothing to compile.
    """
    from placekit_scheduling.jit import SMALL

    if task.problem.graph.n * task.problem.cluster.size > SMALL:
        with task.evaluate.ledger.paused():
            _compile(tuple(rules), favourites)


@cache
def _compile(rules: tuple[Rule, ...], favourites: bool) -> None:
    scheduler = ListScheduler(warm_up_problem())
    for rule in rules:
        scheduler.reset()
        scheduler.run(rule)
    if favourites:
        scheduler.reset()
        scheduler.run("etf", favourite=np.full(scheduler.problem.graph.n, -1))
