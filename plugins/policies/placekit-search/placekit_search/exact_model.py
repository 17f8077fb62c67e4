"""The constraint program of policy `exact`: docs/machine-model.md in OR-tools CP-SAT, in whole ticks of time.

Variables: a literal per group and allowed device; the start of every kernel, with an optional interval on each device that
it may run on; the start of every transfer (tensor, destination), with an optional interval from each device that its
producer may run on (Laborie et al. 2018 on scheduling with optional intervals). A stream or a channel carries no more
intervals at a time than its capacity. Persistent bytes fit. With multicast there is one transfer per tensor.

The optimum, and any bound on it, is a lower bound on the makespan of every placement whose persistent bytes fit.

Proof. (1) Relaxation. An execution by docs/machine-model.md, work conserving or bulk synchronous, starts every operation
after its inputs are on its device, every transfer after its tensor exists, holds streams and channels within their
capacities, and its placement respects what may run where. These are all the constraints, with the real durations; there
is no constraint against waiting by choice, nor one on the bytes of activations. So every execution is a solution, at its
makespan. (2) Rounding. Take starts S, durations p and the tick δ, and S' = floor(S / δ), p' = floor(p / δ). Where
S_j >= S_i + p_i we have S_j / δ >= S_i / δ + p'_i, and since p'_i is an integer, S'_j >= S'_i + p'_i. So precedences hold, and
disjoint intervals stay disjoint. The intervals on a resource of capacity k can be distributed over k lanes of disjoint
ones (interval graphs are perfect), so capacities hold too. Hence S' is a solution of the program in ticks, at no more than
floor(makespan / δ): δ times the bound is at most the makespan. (3) Of solutions that differ in the names of alike
devices one is kept; see `_break_symmetry`. ∎

Durations are divided in floating point, which may make them longer by a relative 1e-16: bounds are lowered by
`placekit_scheduling.ROUNDING`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, TimeoutError as StillRunning
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from placekit_core import UNLIMITED, Problem
from placekit_search.exact_machine import ALL, Timed, alike, op_ticks, route, transfer_ticks

POLL_S = 0.05  # interval between checks for signals while the solver works

Bool = Any  # a Boolean variable, or the negation of one
Interval = tuple[Any, Bool, int]  # an optional interval, the literal of its presence, and its ticks


@dataclass
class _Send:
    """A transfer of a tensor to a device, or to `ALL`: its start; for each source, the literal of its presence and its ticks."""

    tensor: int
    to: int
    start: Any
    origins: dict[int, tuple[Bool, int]] = field(default_factory=dict)


class Model:
    """The program for `problem`, with ticks of `tick_s` seconds and makespans of `least` to `most` ticks."""

    def __init__(self, problem: Problem, tick_s: float, least: int, most: int) -> None:
        self.problem, self.tick_s, self.most = problem, tick_s, most
        graph = problem.graph
        self.cp = cp = cp_model.CpModel()
        self.group = problem.grouping.group_of
        self.ticks = op_ticks(problem, tick_s)
        self.on: list[dict[int, Bool]] = []  # of each group, by device
        for row in problem.allowed:
            self.on.append({d: cp.new_bool_var("") for d in np.flatnonzero(row).tolist()})
            cp.add_exactly_one(self.on[-1].values())
        self.makespan = cp.new_int_var(least, most, "")
        self.start = {v: self._time() for v in np.flatnonzero(graph.kernel).tolist()}
        self.end = {v: self._time() for v in self.start}
        self.sends: list[_Send] = []
        self._needed: dict[tuple[frozenset[int], int, bool], Bool] = {}
        self._sent: dict[tuple[int, frozenset[int], int, int], Bool] = {}
        self._held: dict[int, list[Interval]] = defaultdict(list)  # by channel
        self._operations()
        for tensor in np.unique(graph.input_tensor).tolist():
            self._transfers(tensor)
        for c, held in self._held.items():
            self._capacity(held, int(problem.cluster.routes.capacity[c]))
        self._memory()
        self._break_symmetry()
        cp.minimize(self.makespan)

    def _time(self) -> Any:
        return self.cp.new_int_var(0, self.most, "")

    def _operations(self) -> None:
        """Operations on the streams of their devices, after the kernels that they read from."""
        graph, cp = self.problem.graph, self.cp
        running: dict[int, list[Interval]] = defaultdict(list)
        for v, start in self.start.items():
            on = self.on[self.group[v]]
            cp.add(self.end[v] == start + sum(int(self.ticks[v, d]) * here for d, here in on.items()))
            cp.add(self.makespan >= self.end[v])
            for d, here in on.items():
                ticks = int(self.ticks[v, d])
                running[d].append((cp.new_optional_fixed_size_interval_var(start, ticks, here, ""), here, ticks))
            for u in np.unique(graph.tensor_producer[graph.inputs(v)]).tolist():
                if u in self.end:
                    cp.add(start >= self.end[u])
        for d, intervals in running.items():
            self._capacity(intervals, int(self.problem.cluster.streams[d]))

    def _capacity(self, intervals: Sequence[Interval], capacity: int) -> None:
        """At most `capacity` at a time; and in all no more than fits into the makespan, which raises bounds."""
        some = [i for i in intervals if i[2] > 0]
        if capacity >= min(len(some), UNLIMITED):
            return
        if capacity == 1:
            self.cp.add_no_overlap([i for i, _, _ in some])
        else:
            self.cp.add_cumulative([i for i, _, _ in some], [1] * len(some), capacity)
        self.cp.add(sum(ticks * there for _, there, ticks in some) <= capacity * self.makespan)

    def _transfers(self, tensor: int) -> None:
        """The transfers of `tensor`, and the constraints that its readers elsewhere wait for them."""
        graph, cluster, cp = self.problem.graph, self.problem.cluster, self.cp
        producer = int(graph.tensor_producer[tensor])
        source = int(self.group[producer])
        readers = [v for v in graph.consumers(tensor).tolist() if self.group[v] != source]
        groups = frozenset(int(self.group[v]) for v in readers)
        targets = sorted({d for h in groups for d in self.on[h]})
        seconds = transfer_ticks(cluster, float(graph.tensor_bytes[tensor]), self.tick_s)
        for to in ([ALL] if targets else []) if cluster.multicast else targets:
            send = _Send(tensor, to, self._time())
            for s in self.on[source]:
                if targets == [s] or s == to:
                    continue
                there = self._is_sent(source, groups, s, to)
                d, channels = route(cluster, s, to)
                send.origins[s] = there, int(seconds[s, d])
                interval = cp.new_optional_fixed_size_interval_var(send.start, int(seconds[s, d]), there, "")
                for c in channels:
                    self._held[c].append((interval, there, int(seconds[s, d])))
            if producer in self.end:
                cp.add(send.start >= self.end[producer])
            self.sends.append(send)
            for v in readers:
                self._wait(v, send, source)

    def _wait(self, reader: int, send: _Send, source: int) -> None:
        """`reader` starts after the transfer if it is on another device than group `source`."""
        lengths = {ticks for _, ticks in send.origins.values()}
        for d, here in self.on[self.group[reader]].items():
            if send.to not in (ALL, d):
                continue
            if len(lengths) == 1:  # from wherever it comes
                away = [self.on[source][d].negated()] if d in self.on[source] else []
                self.cp.add(self.start[reader] >= send.start + min(lengths)).only_enforce_if([here, *away])
                continue
            for s, (_, ticks) in send.origins.items():
                if s != d:
                    self.cp.add(self.start[reader] >= send.start + ticks).only_enforce_if([here, self.on[source][s]])

    def _is_sent(self, source: int, groups: frozenset[int], s: int, to: int) -> Bool:
        """Literal: group `source` is on device `s`, and one of `groups` is on `to` (`ALL`: elsewhere than on `s`)."""
        key = source, groups, s, to
        if key not in self._sent:
            here, needed = self.on[source][s], self._is_needed(groups, s if to == ALL else to, to != ALL)
            both = self._sent[key] = self.cp.new_bool_var("")
            self.cp.add_implication(both, here)
            self.cp.add_implication(both, needed)
            self.cp.add_bool_or([both, here.negated(), needed.negated()])
        return self._sent[key]

    def _is_needed(self, groups: frozenset[int], d: int, there: bool) -> Bool:
        """Literal: one of `groups` is on device `d` or, if not `there`, elsewhere."""
        key = groups, d, there
        if key not in self._needed:
            one = self.cp.new_constant(1)
            some = [self.on[h][d] if there else self.on[h][d].negated() for h in sorted(groups) if d in self.on[h]]
            some += [one for h in groups if d not in self.on[h] and not there]
            self._needed[key] = self.cp.new_bool_var("")
            self.cp.add_max_equality(self._needed[key], some)
        return self._needed[key]

    def _memory(self) -> None:
        bytes_ = self.problem.group_persistent_bytes.astype(np.int64).tolist()
        for d, room in enumerate(self.problem.cluster.memory_bytes.tolist()):
            here = [(b, on[d]) for b, on in zip(bytes_, self.on, strict=True) if b > 0 and d in on]
            if sum(b for b, _ in here) > room:
                self.cp.add(sum(b * x for b, x in here) <= int(room))

    def _break_symmetry(self) -> None:
        """Value precedence within each class of alike devices (Law and Lee 2004).

        A group may be on the k-th device of the class only if a group before it, in the order of `_order`, is on the device
        before. Any solution satisfies that after renaming devices by their first groups, and stays a solution, of the
        same makespan, under any renaming within a class (`alike`). Classes share no device: each is renamed by itself.
        """
        order = self._order()
        for devices in alike(self.problem):
            for before, d in pairwise(devices):
                earlier: list[Bool] = []
                for g in order:
                    if d in self.on[g]:
                        self.cp.add_bool_or([*earlier, self.on[g][d].negated()])
                        earlier.append(self.on[g][before])  # alike: it may run there too

    def _order(self) -> list[int]:
        """Groups, the longest first."""
        longest = np.argsort(-self.problem.group_s.max(axis=1), kind="stable")
        return longest.tolist()  # type: ignore[no-any-return]

    def hint(self, timed: Timed) -> None:
        """Start the search from an execution: every variable gets its value there."""
        cp, graph, home = self.cp, self.problem.graph, np.zeros(self.problem.g, np.int64)
        home[self.group] = timed.device
        name = np.arange(self.problem.cluster.size)  # as `_break_symmetry` names alike devices
        order = home[self._order()].tolist()
        for devices in alike(self.problem):
            used = [d for d in dict.fromkeys(order) if d in devices]
            name[[*used, *(d for d in devices if d not in used)]] = devices
        home = name[home]
        sent = {(t, to if to == ALL else int(name[to])): start for (t, to), start in timed.sent.items()}
        for on, place in zip(self.on, home, strict=True):
            for d, here in on.items():
                cp.add_hint(here, bool(place == d))
        for v in self.start:
            cp.add_hint(self.start[v], int(timed.start[v]))
            cp.add_hint(self.end[v], int(timed.end[v]))
        for send in self.sends:
            unused = int(timed.end[graph.tensor_producer[send.tensor]])
            cp.add_hint(send.start, sent.get((send.tensor, send.to), unused))
        needed = {}
        for (groups, d, there), literal in self._needed.items():
            needed[groups, d, there] = any((home[h] == d) == there for h in groups)
            cp.add_hint(literal, needed[groups, d, there])
        for (source, groups, s, to), literal in self._sent.items():
            cp.add_hint(literal, bool(home[source] == s) and needed[groups, s if to == ALL else to, to != ALL])
        cp.add_hint(self.makespan, timed.makespan)

    def hint_all(self, values: NDArray[np.int64]) -> None:
        """Start the search from the values of all variables of a solution of the same problem."""
        for i, value in enumerate(values.tolist()):
            self.cp.add_hint(self.cp.get_int_var_from_proto_index(i), value)

    def solution(self, values: cp_model.CpSolverSolutionCallback) -> Solution:
        """The solution that a callback of the solver has."""
        device = [next(d for d, here in on.items() if values.boolean_value(here)) for on in self.on]
        start = np.zeros(self.problem.graph.n, np.int64)
        for v, variable in self.start.items():
            start[v] = values.value(variable)
        every = np.asarray(list(values.response_proto.solution), np.int64)
        return Solution(np.asarray(device, np.int16), start, int(values.value(self.makespan)), every)


@dataclass(frozen=True, eq=False)
class Solution:
    """A solution: `device` [g], `start` [n] ticks, the objective in ticks, and the values of all variables.

    For largest loads, `start` and `values` are empty.
    """

    device: NDArray[np.int16]
    start: NDArray[np.int64]
    makespan: int
    values: NDArray[np.int64]


class Program(Protocol):
    """A constraint program whose solutions are placements."""

    cp: cp_model.CpModel

    def solution(self, values: cp_model.CpSolverSolutionCallback) -> Solution: ...


@dataclass(frozen=True, eq=False)
class Outcome:
    """How a solve ended: `optimal` (the last solution is), `infeasible`, or `open`; its bound in ticks, and its work.

    `error` is the error that `improved` raised, if one ended the solve.
    """

    status: Literal["optimal", "infeasible", "open"]
    bound: int
    work: float
    error: BaseException | None


class _Listener(cp_model.CpSolverSolutionCallback):
    """Hands every solution on; if that fails, stops the solver and keeps the error."""

    def __init__(self, model: Program, improved: Callable[[Solution], None]) -> None:
        super().__init__()
        self.model, self.improved = model, improved
        self.error: BaseException | None = None

    def on_solution_callback(self) -> None:
        if self.error is None:
            try:
                self.improved(self.model.solution(self))
            except BaseException as e:
                self.error = e
                self.stop_search()


def solve(
    model: Program,
    parameters: Mapping[str, Any],
    improved: Callable[[Solution], None],
    working: Callable[[int], None] = lambda bound: None,
) -> Outcome:
    """Solve, handing each solution to `improved` (in another thread), and from time to time the bound so far to `working`.

    The strategies of CP-SAT take turns (`interleave_search`), which makes the search independent of the clock.
    """
    solver, listener = cp_model.CpSolver(), _Listener(model, improved)
    solver.parameters.interleave_search = True
    solver.parameters.catch_sigint_signal = False  # the run handles signals itself
    for name, value in parameters.items():
        setattr(solver.parameters, name, value)
    bounds = [0.0]
    solver.best_bound_callback = bounds.append
    with ThreadPoolExecutor(1) as pool:  # in a thread, so that signals are handled while it works
        solving = pool.submit(solver.solve, model.cp, listener)
        try:
            while True:
                try:
                    status = solving.result(POLL_S)
                    break
                except StillRunning:
                    working(int(np.floor(bounds[-1])))
        except BaseException:
            solver.stop_search()
            raise
    if status == cp_model.MODEL_INVALID:
        raise RuntimeError(f"CP-SAT takes the model for invalid: {model.cp.validate()}")
    ended: Literal["optimal", "infeasible", "open"] = "open"
    if status in (cp_model.OPTIMAL, cp_model.INFEASIBLE):
        ended = "optimal" if status == cp_model.OPTIMAL else "infeasible"
    bound = 0 if ended == "infeasible" else int(np.floor(solver.best_objective_bound))
    return Outcome(ended, bound, float(solver.deterministic_time), listener.error)
