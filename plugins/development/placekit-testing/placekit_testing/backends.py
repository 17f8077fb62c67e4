"""The contract of backends: their values can be trusted, and do not depend on how they are asked for."""

from __future__ import annotations

import json
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
from placekit_testing import schedules
from placekit_testing.children import in_children
from placekit_testing.contract import Contract, Make, hook, in_short, together
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
    too_large_for_one,
    values_digest,
)
from placekit_testing.observed import assert_unchanged, contents
from placekit_testing.strategies import machine

TIMES = ("makespan", "max_load", "blocking_latency", "step", "throughput", "token")
"""Objectives that are times; any other one may have another unit than seconds."""
_SUMS = ("makespan", "max_load", "blocking_latency")  # one device takes the sum of its operations
_LOADS = (*_SUMS, "step")  # no device takes less than the sum of its operations


class BackendContract(Contract, defines_checks=True):
    """The checks of a backend; its class attributes decide which checks apply to it.

    Simulators (`simulated`) must keep to the times of the problem; with objective `makespan`, values must be makespans;
    deterministic backends must repeat values to the bit. A backend that measures overrides `problems` with programs to run.
    """

    kind = "backend"
    interface = Backend
    seeds: ClassVar[range] = range(6)
    """Seeds of the random problems; use fewer for a slow backend."""
    clock_s: ClassVar[float] = 0.0
    """For a backend that measures: the largest difference between the clocks of its devices in a schedule, seconds."""

    @hook
    def problems(self, make: Make) -> Iterable[tuple[Problem, Executable | None]]:
        """The problems to open, each with its executable; by default random problems from `seeds`, without executables.

        A backend that runs programs overrides this with a small program, on the machine that the backend sees (`devices`).
        """
        return [(seeded_problem(seed), None) for seed in self.seeds]

    @hook
    def too_large(self, make: Make) -> tuple[Problem, Executable | None] | None:
        """A problem too large for device 0 alone, and its executable. None: the check that needs it is skipped.

        Simulations have a default. A backend that measures overrides this if its devices can run out of memory.
        """
        return (too_large_for_one(), None) if make().simulated else None

    def check_declares_what_it_is(self, make: Make) -> None:
        """Its flags are True or False; objective and unit have names; simulations are deterministic."""
        backend = make()
        for key in ("simulated", "deterministic", "parallel"):
            assert isinstance(getattr(backend, key, None), bool), f"{key} is {getattr(backend, key, None)!r}"
        for key in ("objective", "unit"):
            assert isinstance(getattr(backend, key), str), f"{key} is {getattr(backend, key)!r}"
            assert getattr(backend, key), f"{key} is empty"
        assert backend.unit == "s" or backend.objective not in TIMES, f"a {backend.objective} is in seconds"
        assert backend.deterministic or not backend.simulated, "a simulation, and not deterministic"

    def check_measurements_have_their_shapes(self, make: Make) -> None:
        """b placements on D devices, with and without priorities, give b values, b x D peaks, and b flags `fits`."""
        for problem, session in self._sessions(make):
            for priorities in (False, True):
                result = session.evaluate(seeded_placements(problem, 5, priorities=priorities))
                check_shapes(result, 5, problem.cluster.size)

    @in_short
    def check_values_are_seconds(self, make: Make) -> None:
        """A value is finite and not negative, or NaN with an error that says why; peaks, spreads are not negative."""
        for problem, session in self._sessions(make):
            result = session.evaluate(seeded_placements(problem, 8))
            failed = np.asarray([e is not None for e in result.error], np.bool_)
            assert np.all(np.isnan(result.value_s[failed])), "a failed measurement has a value"
            assert not np.any(result.fits[failed]), "a failed measurement fits"
            value = result.value_s[~failed]
            assert np.all(np.isfinite(value) & (value >= 0)), f"values {value} s"
            assert np.all(np.isfinite(result.peak_bytes[~failed]) & (result.peak_bytes[~failed] >= 0))
            if result.spread_s is not None:
                spread = result.spread_s[~failed]
                assert np.all(np.isfinite(spread) & (spread >= 0)), f"the spread of the values is {spread}"

    def check_empty_batch(self, make: Make) -> None:
        """No placements give no measurements, and no error."""
        for problem, session in self._sessions(make):
            check_shapes(session.evaluate(seeded_placements(problem, 3)[:0]), 0, problem.cluster.size)

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
        if backend.objective == "makespan":
            assert result.value_s[0] == 0, f"nothing takes {result.value_s[0]} s"

    @in_short
    def check_batch_equals_one_by_one(self, make: Make) -> None:
        """If deterministic: a placement has the same value alone, in a batch, and among other placements."""
        for problem, session in self._sessions(make, deterministic=True):
            placements = seeded_placements(problem, 12)
            alone = Measurements.join([session.evaluate(placements[i : i + 1]) for i in range(12)])
            check_same(session.evaluate(placements), alone)

    def check_evaluating_twice_gives_the_same(self, make: Make) -> None:
        """If deterministic: the same session, and another one, give the same bits again."""
        _deterministic(make())
        for problem, executable in self._problems(make):
            placements, session = seeded_placements(problem, 6), make().open(problem, executable)
            first = session.evaluate(placements)
            session.evaluate(seeded_placements(problem, 4, seed=2))
            check_same(session.evaluate(placements), first)
            session.close()
            check_same(evaluate_once(make(), problem, executable, placements), first)

    def check_placements_are_left_alone(self, make: Make) -> None:
        """Evaluating does not change the placements; their arrays may be read-only."""
        for problem, session in self._sessions(make):
            placements = seeded_placements(problem, 5)
            assert placements.priority is not None
            before = placements.device.copy(), placements.priority.copy()
            session.evaluate(placements)
            assert np.array_equal(placements.device, before[0]), "the devices were changed"
            assert np.array_equal(placements.priority, before[1]), "the priorities were changed"
            placements.device.setflags(write=False)
            placements.priority.setflags(write=False)
            session.evaluate(placements)

    def check_problem_is_left_alone(self, make: Make) -> None:
        """Evaluating does not change the arrays of graph, grouping, cluster, costs and problem."""
        for problem, session in self._sessions(make):
            before = contents(problem)
            session.evaluate(seeded_placements(problem, 5))
            assert_unchanged(problem, before)

    def check_sessions_are_independent(self, make: Make) -> None:
        """If deterministic: another problem opened, evaluated and closed on the same backend changes nothing."""
        _deterministic(make())
        found = self._problems(make)
        for (problem, executable), (other_problem, other_executable) in zip(found, [*found[1:], found[0]], strict=True):
            placements = seeded_placements(problem, 5)
            first = evaluate_once(make(), problem, executable, placements)
            backend = make()
            mine, other = backend.open(problem, executable), backend.open(other_problem, other_executable)
            other.evaluate(seeded_placements(other_problem, 3))
            check_same(mine.evaluate(placements), first)
            other.close()
            check_same(mine.evaluate(placements), first)
            mine.close()

    def check_closing_twice(self, make: Make) -> None:
        """`close` may be called twice, and before anything was evaluated."""
        problem, executable = self._problems(make)[0]
        for used in (False, True):
            session = make().open(problem, executable)
            if used:
                session.evaluate(seeded_placements(problem, 2))
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

    def check_options_rebuild_the_backend(self, make: Make) -> None:
        """If deterministic: a backend rebuilt from its options alone, as in another process, gives the same bits."""
        backend = make()
        _deterministic(backend)
        options = backend.options_class.model_validate(json.loads(backend.options.model_dump_json()))
        for problem, executable in self._problems(make):
            placements = seeded_placements(problem, 5)
            first = evaluate_once(backend, problem, executable, placements)
            check_same(evaluate_once(type(backend)(options), problem, executable, placements), first)

    @in_short
    def check_other_processes_give_the_same(self, make: Make) -> None:
        """If simulated: two new processes with other hash seeds give the same bits; both run at once if `parallel`."""
        backend = make()
        _deterministic(backend)
        if not backend.simulated:
            pytest.skip("the programs that it runs stay in this process")
        seeds = list(self.seeds)[:3]
        together = [(1, 2)] if backend.parallel else [(1,), (2,)]
        for at_once in together:
            found = in_children(backend, values_digest, seeds, hash_seeds=at_once)
            assert set(found) == {values_digest(backend, seeds)}, "other values in another process"

    @in_short
    def check_out_of_memory_is_a_value(self, make: Make) -> None:
        """A placement that needs more than a device's memory does not fit; in a simulation, its peak is above the memory."""
        found = self.too_large(make)
        if found is None:
            pytest.skip("`too_large` has nothing that is too large for this machine")
        problem, executable = found
        result = evaluate_once(make(), problem, executable, Placements.of(np.zeros((3, problem.g), np.int16)))
        check_shapes(result, 3, problem.cluster.size)
        assert not result.fits.any(), "what is too large for device 0 fits on it"
        if make().simulated:
            peak, memory = result.peak_bytes[:, 0], problem.cluster.memory_bytes[0]
            assert np.all(peak > memory), f"the peaks are {peak}, not above {memory}"

    @in_short
    def check_peaks_hold_what_is_persistent(self, make: Make) -> None:
        """If simulated: the peak of each device is at least the persistent bytes of the operations on it."""
        for problem, session in self._simulated(make, ()):
            placements = seeded_placements(problem, 8)
            result = session.evaluate(placements)
            for row, home in enumerate(placements.device):
                least = np.bincount(home, problem.group_persistent_bytes, minlength=problem.cluster.size)
                assert np.all(result.peak_bytes[row] >= least), f"peaks {result.peak_bytes[row]} are below {least}"

    def check_peaks_hold_the_largest_output(self, make: Make) -> None:
        """In a simulation of a makespan: peaks also include the outputs of the kernel with the most bytes that are read."""
        for problem, session in self._simulated(make):
            placements = seeded_placements(problem, 8)
            result = session.evaluate(placements)
            for row, home in enumerate(problem.expand(placements.device)):
                least = least_peaks(problem, home)
                assert np.all(result.peak_bytes[row] >= least), f"peaks {result.peak_bytes[row]} are below {least}"

    def check_fits_means_within_memory(self, make: Make) -> None:
        """If `fits` is True, no peak is above its device's memory; in a simulation, the reverse holds, too."""
        for problem, session in self._sessions(make):
            result = session.evaluate(seeded_placements(problem, 8))
            within = np.asarray((result.peak_bytes <= problem.cluster.memory_bytes).all(axis=1))
            assert np.all(within[result.fits]), "a placement fits, and its peak is above the memory"
            within &= np.asarray([e is None for e in result.error], np.bool_)
            if make().simulated:
                assert np.all(result.fits[within]), "a placement whose peaks are within the memory does not fit"

    @in_short
    def check_no_value_beats_the_bound(self, make: Make) -> None:
        """If a session proves a lower bound, no placement is below it, not even the only one on a single device."""
        found = list(self._problems(make))
        if make().simulated:
            found += [(on_one_device(problem), None) for problem, _ in found]
        for problem, executable in found:
            session = make().open(problem, executable)
            bound = session.lower_bound()
            if bound is None:
                pytest.skip("this backend proves no bound")
            values = session.evaluate(seeded_placements(problem, 30)).value_s
            session.close()
            least = float(np.nanmin(np.append(values, np.inf)))
            assert least >= bound, f"{least} s is below the bound of {bound} s"

    @in_short
    def check_no_value_is_below_the_load(self, make: Make) -> None:
        """If simulated: a value is at least the seconds of a device's operations, divided by its streams."""
        for problem, session in self._simulated(make, _LOADS):
            placements = seeded_placements(problem, 8)
            values = session.evaluate(placements).value_s
            for value, home in zip(values, placements.device, strict=True):
                if np.isnan(value):
                    continue
                seconds = problem.group_s[np.arange(problem.g), home]
                load = np.bincount(home, seconds, minlength=problem.cluster.size) / problem.cluster.streams
                assert value >= load.max() * (1 - ROUNDING), f"{value} s is below the load of a device, {load.max()} s"

    @in_short
    def check_one_device_takes_the_sum(self, make: Make) -> None:
        """If simulated: one device with one stream takes the sum of its operations' seconds, or at least that if blocking."""
        for problem, _ in self._simulated(make, _SUMS):
            alone = on_one_device(problem)
            value = evaluate_once(make(), alone, None, Placements.of(np.zeros((1, alone.g), np.int16))).value_s[0]
            blocking = make().objective == "blocking_latency" and value > alone.op_s.sum()
            assert blocking or value == alone.op_s.sum(), f"{value} s, not {alone.op_s.sum()} s"

    def check_idle_device_changes_nothing(self, make: Make) -> None:
        """In a simulation of a makespan: one more device, directly linked, that runs nothing changes no value."""
        for problem, _ in self._simulated(make):
            results = []
            for devices in (2, 3):
                cluster = machine(("gpu",), devices=devices)
                wider = Problem(problem.graph, problem.grouping, cluster, some_costs(problem.graph, cluster))
                device = np.random.default_rng(1).integers(0, 2, (6, wider.g))
                results.append(evaluate_once(make(), wider, None, Placements.of(device)))
            assert results[1].value_s.tolist() == results[0].value_s.tolist(), "an idle device changes the value"
            assert results[1].peak_bytes[:, :2].tolist() == results[0].peak_bytes.tolist()

    def check_schedule_has_every_operation(self, make: Make) -> None:
        """A schedule has every operation once, on the device of its group, with a start that is not after its end."""
        for problem, _, placement, schedule in self._schedules(make):
            schedules.check_columns(problem, placement, schedule, self._clock_s(make))
            schedules.check_rounds(problem, schedule)

    @in_short
    def check_operations_wait_for_their_inputs(self, make: Make) -> None:
        """No operation starts before its inputs are there: each producer, or the transfer to its device, has ended."""
        views = {p.fingerprint: e.views if e is not None else {} for p, e in self._problems(make)}
        for problem, _, _, schedule in self._schedules(make):
            schedules.check_inputs(problem, schedule, views[problem.fingerprint], self._clock_s(make))

    @in_short
    def check_transfers_wait_for_their_tensors(self, make: Make) -> None:
        """A transfer starts after its tensor was written, and goes from its producer's device to another device."""
        for problem, _, _, schedule in self._schedules(make):
            schedules.check_transfers(problem, schedule, self._clock_s(make))

    @in_short
    def check_streams_run_one_operation_at_a_time(self, make: Make) -> None:
        """Kernels on one stream do not overlap, and a device has no more streams than its cluster says."""
        for problem, _, _, schedule in self._schedules(make):
            schedules.check_streams(problem, schedule, self._clock_s(make))

    def check_operations_take_their_seconds(self, make: Make) -> None:
        """In a simulation of a makespan: an operation takes its seconds on its device, and a source takes no time."""
        _makespan(make())
        for problem, _, _, schedule in self._schedules(make):
            schedules.check_operation_seconds(problem, schedule)

    def check_transfers_take_their_seconds(self, make: Make) -> None:
        """In a simulation of a makespan: a tensor is sent to a device once, unless it is streamed, in the time of its route."""
        _makespan(make())
        for problem, session, _, schedule in self._schedules(make):
            schedules.check_transfer_seconds(problem, schedule, session.prefetch is not None)

    @in_short
    def check_schedule_agrees_with_the_value(self, make: Make) -> None:
        """If simulated and deterministic: the schedule has the value of `evaluate`; a makespan is the schedule's last end."""
        if not ((backend := make()).simulated and backend.deterministic):
            pytest.skip("runs of this backend differ")
        for problem, session, placement, schedule in self._schedules(make):
            value = session.evaluate(placement.batch()).value_s[0]
            assert schedule.value_s == value, f"{schedule.value_s} s in the schedule, {value} s from evaluate"
            if backend.objective == "makespan":
                end = schedule.op_end_s[problem.graph.kernel].max(initial=0.0)
                assert end == value, f"the last operation ends at {end} s, the makespan is {value} s"

    @in_short
    def check_priorities_matter_only_if_it_says_so(self, make: Make) -> None:
        """If deterministic: a session that says that priorities do not matter gives the same values with them and without."""
        for problem, session in self._sessions(make, deterministic=True):
            if session.priorities:
                pytest.skip("priorities may matter on this backend")
            check_unordered(problem, session)

    @in_short
    def check_kernel_equals_evaluate(self, make: Make) -> None:
        """If a session offers a compiled evaluation, it gives the same bits as `evaluate`."""
        for problem, session in self._sessions(make):
            if (kernel := session.kernel()) is None:
                pytest.skip("this backend offers no compiled evaluation")
            check_kernel(problem, session, kernel)

    @in_short
    def check_trace_says_why_everything_started(self, make: Make) -> None:
        """If a compiled evaluation leaves a trace: its times are the schedule's; tasks start when their causes end, or at 0."""
        traced = [check_trace(problem, session) for problem, session in self._sessions(make)]
        if not any(traced):
            pytest.skip("this backend offers no compiled evaluation that leaves a trace")

    def _problems(self, make: Make) -> Sequence[tuple[Problem, Executable | None]]:
        found = list(self.problems(make))
        assert found, "`seeds` or `problems` is empty: nothing would be checked"
        return found

    def _sessions(self, make: Make, deterministic: bool = False) -> Iterator[tuple[Problem, Session]]:
        backend = make()
        if deterministic:
            _deterministic(backend)
        for problem, executable in self._problems(make):
            with closing(backend.open(problem, executable)) as session:
                yield problem, session

    def _simulated(self, make: Make, objectives: Sequence[str] = ("makespan",)) -> Iterator[tuple[Problem, Session]]:
        if not (backend := make()).simulated or (objectives and backend.objective not in objectives):
            pytest.skip(f"for simulations of {' or '.join(objectives) or 'any objective'}")
        return self._sessions(make)

    def _schedules(self, make: Make) -> Iterator[tuple[Problem, Session, Placement, Schedule]]:
        for problem, session in self._sessions(make):
            placements = seeded_placements(problem, 3)
            failed = [e is not None for e in session.evaluate(placements).error]
            if all(failed):  # placements of this backend may have no value: one device for all that may run there does
                placements = Placements.of(problem.allowed.argmax(axis=1)[None].astype(np.int16))
                failed = [e is not None for e in session.evaluate(placements).error]
            for row in np.flatnonzero(~np.asarray(failed)).tolist():
                placement = problem.placement(*placements.one(row))
                yield problem, session, placement, session.schedule(placement)

    def _clock_s(self, make: Make) -> float:
        assert self.clock_s == 0 or not make().simulated, "a simulation has one clock: leave `clock_s` at 0"
        return self.clock_s

    test_measurements = together(
        "Measurements are well formed, and change nothing.",
        check_declares_what_it_is,
        check_measurements_have_their_shapes,
        check_values_are_seconds,
        check_empty_batch,
        check_sources_only,
        check_placements_are_left_alone,
        check_problem_is_left_alone,
        check_closing_twice,
        check_without_an_executable,
    )
    test_same_values = together(
        "Values depend only on problem, options and placement.",
        check_batch_equals_one_by_one,
        check_evaluating_twice_gives_the_same,
        check_sessions_are_independent,
        check_options_rebuild_the_backend,
        check_other_processes_give_the_same,
    )
    test_memory = together(
        "Peaks of memory are complete, and `fits` agrees with them.",
        check_out_of_memory_is_a_value,
        check_peaks_hold_what_is_persistent,
        check_peaks_hold_the_largest_output,
        check_fits_means_within_memory,
    )
    test_bounds = together(
        "Values are consistent with bounds and costs.",
        check_no_value_beats_the_bound,
        check_no_value_is_below_the_load,
        check_one_device_takes_the_sum,
        check_idle_device_changes_nothing,
    )
    test_schedule = together(
        "A schedule can be executed, and has the value of `evaluate`.",
        check_schedule_has_every_operation,
        check_operations_wait_for_their_inputs,
        check_transfers_wait_for_their_tensors,
        check_streams_run_one_operation_at_a_time,
        check_operations_take_their_seconds,
        check_transfers_take_their_seconds,
        check_schedule_agrees_with_the_value,
    )
    test_kernel = together(
        "The compiled evaluation agrees with `evaluate`.",
        check_priorities_matter_only_if_it_says_so,
        check_kernel_equals_evaluate,
        check_trace_says_why_everything_started,
    )


def _deterministic(backend: Backend) -> None:
    if not backend.deterministic:
        pytest.skip("this backend measures: values differ")


def _makespan(backend: Backend) -> None:
    if not backend.simulated or backend.objective != "makespan":
        pytest.skip("for simulations of makespan")
