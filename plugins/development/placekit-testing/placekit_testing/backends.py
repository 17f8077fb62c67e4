"""The contract of backends: their values can be trusted, and do not depend on how a caller asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import ClassVar

import numpy as np
import pytest
from placekit_scheduling import ROUNDING

from placekit_core import (
    Backend,
    BackendError,
    Executable,
    GraphBuilder,
    Measurements,
    Placement,
    Placements,
    Problem,
    Schedule,
    Session,
)
from placekit_testing.children import in_children
from placekit_testing.contract import Contract, Make, in_short, together
from placekit_testing.evaluations import (
    check_kernel,
    check_same,
    check_shapes,
    check_trace,
    check_unordered,
    evaluate_once,
    least_peaks,
    on_one_device,
    seeded_placements,
    seeded_problem,
    some_costs,
    values_digest,
)
from placekit_testing.observed import assert_unchanged, contents
from placekit_testing.schedules import check_costs, check_events
from placekit_testing.strategies import machine

TIMES = ("makespan", "max_load", "blocking_latency", "step", "throughput", "token")
"""Objectives that are times; any other one may have another unit than seconds."""
_SUMS = ("makespan", "max_load", "blocking_latency")  # one device takes the sum of its operations
_LOADS = (*_SUMS, "step")  # no device takes less than the sum of its operations


class BackendContract(Contract):
    """The checks of a backend.

    Simulators (`simulated`) must keep to the times of the problem; with objective `makespan`, values must be makespans;
    deterministic backends must repeat values to the bit. A backend that measures overrides `problems` with programs to run.
    """

    kind = "backend"
    interface = Backend
    seeds: ClassVar[Sequence[int]] = range(6)
    """Seeds of the random problems; use fewer for a slow backend."""
    clock_s: ClassVar[float] = 0.0
    """For a backend that measures: the largest difference between the clocks of its devices in a schedule, seconds."""

    def problems(self, make: Make) -> Iterable[tuple[Problem, Executable | None]]:
        """The problems to open, each with its executable; by default random problems from `seeds`, without executables.

        A backend that runs programs overrides this with a small program, on the machine that the backend sees (`devices`).
        """
        return [(seeded_problem(seed), None) for seed in self.seeds]

    def too_large(self, make: Make) -> tuple[Problem, Executable | None] | None:
        """A problem too large for device 0 alone, and its executable. None: the check that needs it is skipped.

        Simulations have a default. A backend that measures overrides this if its devices can run out of memory.
        """
        if not make().simulated:
            return None
        b = GraphBuilder("too large for one device")
        for i in range(4):
            b.add(f"use{i}", inputs=[b.source(f"w{i}", 100)], outputs=[4])
        return Problem.of(b.build(), machine(("gpu",), devices=2, memory_bytes=200)), None

    def check_declares_what_it_is(self, make: Make) -> None:
        """Its flags are True or False; objective and unit have names; simulations are deterministic and have one clock."""
        backend = make()
        for key in ("simulated", "deterministic", "parallel"):
            assert isinstance(getattr(backend, key, None), bool), f"{key} is {getattr(backend, key, None)!r}"
        for key in ("objective", "unit"):
            assert isinstance(getattr(backend, key), str), f"{key} is {getattr(backend, key)!r}"
            assert getattr(backend, key), f"{key} is empty"
        assert backend.unit == "s" or backend.objective not in TIMES, f"a {backend.objective} is in seconds"
        assert backend.deterministic or not backend.simulated, "a simulation must be deterministic"
        assert self.clock_s == 0 or not backend.simulated, "a simulation has one clock: leave `clock_s` at 0"

    @in_short
    def check_measurements(self, make: Make) -> None:
        """Each placement has a finite value or an error, peaks, and `fits` if its peaks allow it; empty batches work."""
        for problem, session in self._sessions(make):
            for placements in (
                seeded_placements(problem, 8),
                seeded_placements(problem, 5, priorities=False),
                seeded_placements(problem, 3)[:0],
            ):
                result = session.evaluate(placements)
                check_shapes(result, len(placements), problem.cluster.size)
                ran = np.asarray([e is None for e in result.error], np.bool_)
                assert np.all(np.isnan(result.value_s[~ran])), "a failed measurement has a value"
                for name, column in (
                    ("values", result.value_s),
                    ("peaks", result.peak_bytes),
                    ("spread", result.spread_s),
                ):
                    found = np.zeros(0) if column is None else column[ran]
                    assert np.all(np.isfinite(found) & (found >= 0)), f"{name} {found} are negative or not finite"
                within = np.asarray((result.peak_bytes <= problem.cluster.memory_bytes).all(axis=1)) & ran
                assert np.all(within[result.fits]), "a placement fits, but it failed or its peak is above the memory"
                if make().simulated:
                    assert np.all(result.fits[within]), "a placement whose peaks are within the memory does not fit"

    def check_sources_only(self, make: Make) -> None:
        """If simulated: a graph without kernels is measured, and its makespan is 0."""
        b = GraphBuilder("sources")
        for i in range(3):
            b.source(f"w{i}", 100)
        backend, problem = make(), Problem.of(b.build(), machine(("gpu",), devices=2))
        if not backend.simulated:
            pytest.skip("there is nothing to measure")
        result = evaluate_once(backend, problem, None, Placements.of([[0, 1, 1]]))
        check_shapes(result, 1, 2)
        assert backend.objective != "makespan" or result.value_s[0] == 0, (
            f"a graph without kernels takes {result.value_s[0]} s"
        )

    def check_inputs_are_unchanged(self, make: Make) -> None:
        """Evaluating changes neither the problem nor the placements, whose arrays may be read-only."""
        for problem, session in self._sessions(make):
            placements, before = seeded_placements(problem, 5), contents(problem)
            assert placements.priority is not None
            arrays = placements.device.copy(), placements.priority.copy()
            session.evaluate(placements)
            assert_unchanged(problem, before)
            assert np.array_equal(placements.device, arrays[0]), "the devices were changed"
            assert np.array_equal(placements.priority, arrays[1]), "the priorities were changed"
            placements.device.setflags(write=False)
            placements.priority.setflags(write=False)
            session.evaluate(placements)

    def check_closing_twice(self, make: Make) -> None:
        """`close` may be called twice, and before anything was evaluated."""
        problem, executable = self._problems(make)[0]
        session = make().open(problem, executable)
        session.close()
        session.close()

    def check_without_an_executable(self, make: Make) -> None:
        """A problem of a program that can be run is opened without its executable, or refused by a BackendError."""
        found = [problem for problem, executable in self._problems(make) if executable is not None]
        if not found:
            pytest.skip("this backend is tested without executables")
        for problem in found:
            try:
                make().open(problem).close()
            except BackendError:
                continue

    @in_short
    def check_batch_equals_one_by_one(self, make: Make) -> None:
        """If deterministic: a placement has the same value alone, in a batch, and among other placements."""
        _deterministic(make())
        for problem, session in self._sessions(make):
            placements = seeded_placements(problem, 12)
            alone = Measurements.join([session.evaluate(placements[i : i + 1]) for i in range(12)])
            check_same(session.evaluate(placements), alone)

    def check_values_repeat(self, make: Make) -> None:
        """If deterministic: a session gives the same bits again, whatever else was evaluated; so does a rebuilt backend."""
        backend = make()
        _deterministic(backend)
        rebuilt = type(backend)(backend.options_class.model_validate_json(backend.options.model_dump_json()))
        found = self._problems(make)
        for (problem, executable), (other_problem, other_executable) in zip(found, [*found[1:], found[0]], strict=True):
            placements, session = seeded_placements(problem, 5), backend.open(problem, executable)
            first = session.evaluate(placements)
            other = backend.open(other_problem, other_executable)
            other.evaluate(seeded_placements(other_problem, 3))
            check_same(session.evaluate(placements), first)
            other.close()
            check_same(session.evaluate(placements), first)
            session.close()
            check_same(evaluate_once(rebuilt, problem, executable, placements), first)

    @in_short
    def check_other_processes_give_the_same(self, make: Make) -> None:
        """If simulated: two new processes with other hash seeds give the same bits; both run at once if `parallel`."""
        backend = make()
        if not backend.simulated:
            pytest.skip("the programs that it runs stay in this process")
        seeds = list(self.seeds)[:3]
        for at_once in [(1, 2)] if backend.parallel else [(1,), (2,)]:
            found = in_children(backend, values_digest, seeds, hash_seeds=at_once)
            assert set(found) == {values_digest(backend, seeds)}, "other values in another process"

    @in_short
    def check_out_of_memory_is_a_value(self, make: Make) -> None:
        """A placement that needs more than a device's memory does not fit; in a simulation, its peak is above the memory."""
        found = self.too_large(make)
        if found is None:
            pytest.skip("`too_large` returns no problem for this machine")
        problem, executable = found
        result = evaluate_once(make(), problem, executable, Placements.of(np.zeros((3, problem.g), np.int16)))
        check_shapes(result, 3, problem.cluster.size)
        assert not result.fits.any(), "the problem from `too_large` fits on device 0"
        if make().simulated:
            peak, memory = result.peak_bytes[:, 0], problem.cluster.memory_bytes[0]
            assert np.all(peak > memory), f"the peaks are {peak}, not above {memory}"

    @in_short
    def check_peaks_are_complete(self, make: Make) -> None:
        """If simulated: a device's peak holds its persistent bytes; for a makespan, also the largest outputs of one kernel."""
        for problem, session in self._simulated(make):
            placements = seeded_placements(problem, 8)
            result = session.evaluate(placements)
            for peak, home in zip(result.peak_bytes, problem.expand(placements.device), strict=True):
                least = least_peaks(problem, home, outputs=make().objective == "makespan")
                assert np.all(peak >= least), f"peaks {peak} are below {least}"

    @in_short
    def check_no_value_beats_the_bound(self, make: Make) -> None:
        """If a session proves a lower bound, no placement is below it, not even the only one on a single device."""
        found = list(self._problems(make))
        if make().simulated:
            found += [(on_one_device(problem), None) for problem, _ in found]
        for problem, executable in found:
            with closing(make().open(problem, executable)) as session:
                bound = session.lower_bound()
                if bound is None:
                    pytest.skip("this backend proves no bound")
                values = session.evaluate(seeded_placements(problem, 30)).value_s
            least = float(np.nanmin(np.append(values, np.inf)))
            assert least >= bound, f"{least} s is below the bound of {bound} s"

    @in_short
    def check_values_hold_the_seconds_of_operations(self, make: Make) -> None:
        """If simulated: no value is below a device's load; one device with one stream takes the sum of its operations."""
        for problem, session in self._simulated(make, _LOADS):
            placements = seeded_placements(problem, 8)
            values = session.evaluate(placements).value_s
            for value, home in zip(values, placements.device, strict=True):
                seconds = problem.group_s[np.arange(problem.g), home]
                load = np.bincount(home, seconds, minlength=problem.cluster.size) / problem.cluster.streams
                low = value < load.max() * (1 - ROUNDING)
                assert not low, f"{value} s is below the load of a device, {load.max()} s"
        for problem, _ in self._simulated(make, _SUMS):
            alone = on_one_device(problem)
            total = alone.op_s.sum()
            value = evaluate_once(make(), alone, None, Placements.of(np.zeros((1, alone.g), np.int16))).value_s[0]
            blocking = make().objective == "blocking_latency" and value > total
            assert blocking or value == total, f"{value} s, not {total} s"

    def check_idle_device_changes_nothing(self, make: Make) -> None:
        """In a simulation of a makespan: one more device, directly linked, that runs nothing changes no value."""
        for problem, _ in self._simulated(make, ("makespan",)):
            results = []
            for devices in (2, 3):
                cluster = machine(("gpu",), devices=devices)
                wider = Problem(problem.graph, problem.grouping, cluster, some_costs(problem.graph, cluster))
                device = np.random.default_rng(1).integers(0, 2, (6, wider.g))
                results.append(evaluate_once(make(), wider, None, Placements.of(device)))
            assert results[1].value_s.tolist() == results[0].value_s.tolist(), "an idle device changes the value"
            assert results[1].peak_bytes[:, :2].tolist() == results[0].peak_bytes.tolist()

    @in_short
    def check_schedule_is_possible(self, make: Make) -> None:
        """A schedule has all operations, each after its inputs arrived, and one at a time per stream; makespans keep to costs."""
        backend, views = make(), {p.fingerprint: e.views if e is not None else {} for p, e in self._problems(make)}
        for problem, session, placement, schedule in self._schedules(make):
            check_events(problem, placement, schedule, views[problem.fingerprint], self.clock_s)
            if backend.simulated and backend.objective == "makespan":
                check_costs(problem, schedule, session.prefetch is not None)

    @in_short
    def check_schedule_agrees_with_the_value(self, make: Make) -> None:
        """If simulated: the schedule has the value of `evaluate`; a makespan is the schedule's last end."""
        if not (backend := make()).simulated:
            pytest.skip("runs of this backend differ")
        for problem, session, placement, schedule in self._schedules(make):
            value = session.evaluate(placement.batch()).value_s[0]
            assert schedule.value_s == value, f"{schedule.value_s} s in the schedule, {value} s from evaluate"
            if backend.objective == "makespan":
                end = schedule.op_end_s[problem.graph.kernel].max(initial=0.0)
                assert end == value, f"the last operation ends at {end} s, the makespan is {value} s"

    @in_short
    def check_priorities_matter_only_if_it_says_so(self, make: Make) -> None:
        """If deterministic: a session whose `priorities` is False gives the same values with and without priorities."""
        _deterministic(make())
        for problem, session in self._sessions(make):
            if session.priorities:
                pytest.skip("priorities may matter on this backend")
            check_unordered(problem, session)

    @in_short
    def check_kernel_equals_evaluate(self, make: Make) -> None:
        """A compiled evaluation gives the bits of `evaluate`; its trace, if any, has the schedule's times and their causes."""
        for problem, session in self._sessions(make):
            if (kernel := session.kernel()) is None:
                pytest.skip("this backend offers no compiled evaluation")
            check_kernel(problem, session, kernel)
            check_trace(problem, session, kernel)

    def _problems(self, make: Make) -> Sequence[tuple[Problem, Executable | None]]:
        found = list(self.problems(make))
        assert found, "`seeds` or `problems` is empty: nothing would be checked"
        return found

    def _sessions(self, make: Make) -> Iterator[tuple[Problem, Session]]:
        for problem, executable in self._problems(make):
            with closing(make().open(problem, executable)) as session:
                yield problem, session

    def _simulated(self, make: Make, objectives: Sequence[str] = ()) -> Iterator[tuple[Problem, Session]]:
        """Sessions of a simulation with one of these objectives (empty: any); nothing for other backends."""
        backend = make()
        return (
            self._sessions(make)
            if backend.simulated and (backend.objective in objectives or not objectives)
            else iter(())
        )

    def _schedules(self, make: Make) -> Iterator[tuple[Problem, Session, Placement, Schedule]]:
        for problem, session in self._sessions(make):
            placements = seeded_placements(problem, 3)
            failed = [e is not None for e in session.evaluate(placements).error]
            if all(failed):  # try one device for all operations that may run there
                placements = Placements.of(problem.allowed.argmax(axis=1)[None].astype(np.int16))
                failed = [e is not None for e in session.evaluate(placements).error]
            for row in np.flatnonzero(~np.asarray(failed)).tolist():
                placement = problem.placement(*placements.one(row))
                yield problem, session, placement, session.schedule(placement)

    test_measurements = together(
        "Measurements are well formed, and change nothing.",
        check_declares_what_it_is,
        check_measurements,
        check_sources_only,
        check_inputs_are_unchanged,
        check_closing_twice,
        check_without_an_executable,
        check_out_of_memory_is_a_value,
        check_peaks_are_complete,
    )
    test_values = together(
        "Values depend only on problem, options and placement, and agree with bounds and costs.",
        check_batch_equals_one_by_one,
        check_values_repeat,
        check_other_processes_give_the_same,
        check_no_value_beats_the_bound,
        check_values_hold_the_seconds_of_operations,
        check_idle_device_changes_nothing,
    )
    test_schedule = together(
        "A schedule can be executed, and agrees with `evaluate`; so does a compiled evaluation.",
        check_schedule_is_possible,
        check_schedule_agrees_with_the_value,
        check_priorities_matter_only_if_it_says_so,
        check_kernel_equals_evaluate,
    )


def _deterministic(backend: Backend) -> None:
    if not backend.deterministic:
        pytest.skip("this backend measures: values differ")
