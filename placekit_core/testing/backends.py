"""The contract of backends: values that can be trusted, and that say the same however they are asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from placekit_core.cluster import Cluster
from placekit_core.costs import CostTable
from placekit_core.graph import Graph, GraphBuilder
from placekit_core.interfaces import Backend, Session
from placekit_core.measurement import Measurements, Schedule
from placekit_core.placement import Placement, Placements
from placekit_core.problem import Problem
from placekit_core.testing.contract import Contract, Make
from placekit_core.testing.strategies import TICK_S, machine, random_placements, random_problem

_OBJECTIVES = ("makespan", "max_load", "blocking_latency")


class BackendContract(Contract, defines_checks=True):
    """What every backend does, on random problems; what it declares of itself decides which checks apply to it.

    Simulators (`simulated`) must keep to the times of the problem, those of objective `makespan` to the meaning of a
    makespan, deterministic ones to the bit.
    """

    kind = "backend"
    interface = Backend
    seeds: ClassVar[range] = range(6)
    """Seeds of the random problems; fewer for a backend that takes long."""

    def test_declares_what_it_is(self, make: Make) -> None:
        """`simulated`, `deterministic` and `parallel` are True or False, and the objective is one that exists."""
        backend = make()
        for key in ("simulated", "deterministic", "parallel"):
            assert isinstance(getattr(backend, key, None), bool), f"{key} is {getattr(backend, key, None)!r}"
        assert backend.objective in _OBJECTIVES

    def test_measurements_have_their_shapes(self, make: Make) -> None:
        """b placements on D devices, with and without priorities: b values, b x D peaks, b answers whether it fits."""
        for problem, session in self._sessions(make):
            for priorities in (False, True):
                result = session.evaluate(_placements(problem, 5, priorities=priorities))
                _check_shapes(result, 5, problem.cluster.size)

    def test_values_are_seconds(self, make: Make) -> None:
        """A value is finite and not negative, or NaN with an error that says why; peaks are not negative."""
        for problem, session in self._sessions(make):
            result = session.evaluate(_placements(problem, 8))
            failed = np.asarray([e is not None for e in result.error], np.bool_)
            assert np.all(np.isnan(result.value_s[failed])), "a failed measurement has a value"
            assert not np.any(result.fits[failed]), "a failed measurement fits"
            assert np.all(np.isfinite(result.value_s[~failed]) & (result.value_s[~failed] >= 0)), result.value_s
            assert np.all(np.isfinite(result.peak_bytes[~failed]) & (result.peak_bytes[~failed] >= 0))

    def test_empty_batch(self, make: Make) -> None:
        """No placements give no measurements, and no error."""
        for problem, session in self._sessions(make):
            _check_shapes(session.evaluate(_placements(problem, 3)[:0]), 0, problem.cluster.size)

    def test_sources_only(self, make: Make) -> None:
        """A graph without kernels is measured; in a simulation of a makespan it takes no time."""
        b = GraphBuilder("sources")
        for i in range(3):
            b.source(f"w{i}", 100)
        backend, problem = make(), Problem.of(b.build(), machine(("gpu",), devices=2))
        result = _evaluate(backend, problem, Placements.of([[0, 1, 1]]))
        _check_shapes(result, 1, 2)
        if backend.simulated and backend.objective == "makespan":
            assert result.value_s[0] == 0, f"nothing takes {result.value_s[0]} s"

    def test_batch_equals_one_by_one(self, make: Make) -> None:
        """If deterministic: a placement is worth the same in a batch, alone, and among others."""
        for problem, session in self._sessions(make, deterministic=True):
            placements = _placements(problem, 12)
            alone = Measurements.join([session.evaluate(placements[i : i + 1]) for i in range(12)])
            _check_same(session.evaluate(placements), alone)

    def test_evaluating_twice_gives_the_same(self, make: Make) -> None:
        """If deterministic: the same session, and another one, give the same bits again."""
        for problem, session in self._sessions(make, deterministic=True):
            placements = _placements(problem, 6)
            first = session.evaluate(placements)
            session.evaluate(_placements(problem, 4, seed=2))
            _check_same(session.evaluate(placements), first)
            _check_same(_evaluate(make(), problem, placements), first)

    def test_placements_are_left_alone(self, make: Make) -> None:
        """Placements are the same afterwards; their arrays may be read-only."""
        for problem, session in self._sessions(make):
            placements = _placements(problem, 5)
            assert placements.priority is not None
            before = placements.device.copy(), placements.priority.copy()
            session.evaluate(placements)
            assert np.array_equal(placements.device, before[0]), "the devices were changed"
            assert np.array_equal(placements.priority, before[1]), "the priorities were changed"
            placements.device.setflags(write=False)
            placements.priority.setflags(write=False)
            session.evaluate(placements)

    def test_problem_is_left_alone(self, make: Make) -> None:
        """Graph, groups, machine and costs are the same after evaluating."""
        for problem, session in self._sessions(make):
            before = _contents(problem)
            session.evaluate(_placements(problem, 5))
            assert _contents(problem) == before, "the problem was changed"

    def test_sessions_are_independent(self, make: Make) -> None:
        """If deterministic: another problem opened, evaluated and closed on the same backend changes nothing."""
        for seed, (problem, session) in enumerate(self._sessions(make, deterministic=True)):
            placements = _placements(problem, 5)
            first = session.evaluate(placements)
            backend = make()
            mine, other_problem = backend.open(problem), _problem(seed + 100)
            other = backend.open(other_problem)
            other.evaluate(_placements(other_problem, 3))
            _check_same(mine.evaluate(placements), first)
            other.close()
            _check_same(mine.evaluate(placements), first)
            mine.close()

    def test_closing_twice(self, make: Make) -> None:
        """`close` may be called again, and before anything was evaluated."""
        problem = _problem(0)
        for used in (False, True):
            session = make().open(problem)
            if used:
                session.evaluate(_placements(problem, 2))
            session.close()
            session.close()

    def test_options_rebuild_the_backend(self, make: Make) -> None:
        """If deterministic: a backend made from the options alone, as another process makes it, gives the same bits."""
        backend = make()
        options = backend.options_class.model_validate(json.loads(backend.options.model_dump_json()))
        for problem, session in self._sessions(make, deterministic=True):
            placements = _placements(problem, 5)
            _check_same(_evaluate(type(backend)(options), problem, placements), session.evaluate(placements))

    def test_out_of_memory_is_a_value(self, make: Make) -> None:
        """What goes over a device's memory is measured: `fits` is False, its peak is above the memory, nothing raises."""
        b = GraphBuilder("too large for one device")
        for i in range(4):
            b.add(f"use{i}", inputs=[b.source(f"w{i}", 100)], outputs=[4])
        problem = Problem.of(b.build(), machine(("gpu",), devices=2, memory_bytes=200))
        result = _evaluate(make(), problem, Placements.of(np.zeros((3, problem.g), np.int16)))
        assert not result.fits.any(), "400 bytes fit into 200"
        assert np.all(result.peak_bytes[:, 0] > 200), f"the peaks are {result.peak_bytes[:, 0]}, not above 200"

    def test_peaks_hold_what_is_persistent(self, make: Make) -> None:
        """The peak of each device is at least the persistent bytes of the operations on it."""
        for problem, session in self._sessions(make):
            placements = _placements(problem, 8)
            result = session.evaluate(placements)
            for row in range(8):
                home = placements.device[row]
                least = np.bincount(home, problem.group_persistent_bytes, minlength=problem.cluster.size)
                assert np.all(result.peak_bytes[row] >= least), f"peaks {result.peak_bytes[row]} are below {least}"

    def test_fits_means_within_memory(self, make: Make) -> None:
        """Where `fits` is True, no peak is above its device's memory; in a simulation, where no peak is above, it fits."""
        for problem, session in self._sessions(make):
            result = session.evaluate(_placements(problem, 8))
            within = np.asarray((result.peak_bytes <= problem.cluster.memory_bytes).all(axis=1))
            assert np.all(within[result.fits]), "a placement fits, and its peak is above the memory"
            if make().simulated:
                assert np.all(result.fits[within]), "a placement whose peaks are within the memory does not fit"

    def test_no_value_beats_the_bound(self, make: Make) -> None:
        """Where a session proves a lower bound, no placement is below it."""
        for problem, session in self._sessions(make):
            bound = session.lower_bound()
            if bound is None:
                pytest.skip("this backend proves no bound")
            values = session.evaluate(_placements(problem, 30)).value_s
            assert np.nanmin(values) >= bound, f"{np.nanmin(values)} s is below the bound of {bound} s"

    def test_one_device_takes_the_sum(self, make: Make) -> None:
        """In a simulation of a makespan: one device with one stream takes the sum of its operations' seconds."""
        for problem in self._simulated(make):
            cluster = machine(("gpu",))
            alone = Problem(problem.graph, problem.grouping, cluster, _costs(problem.graph, cluster))
            value = _evaluate(make(), alone, Placements.of(np.zeros((1, alone.g), np.int16))).value_s[0]
            assert value == alone.op_s.sum(), f"{value} s, not {alone.op_s.sum()} s"

    def test_idle_device_changes_nothing(self, make: Make) -> None:
        """In a simulation of a makespan: a further device that runs nothing, directly linked, changes no value."""
        for problem in self._simulated(make):
            results = []
            for devices in (2, 3):
                cluster = machine(("gpu",), devices=devices)
                wider = Problem(problem.graph, problem.grouping, cluster, _costs(problem.graph, cluster))
                device = np.random.default_rng(1).integers(0, 2, (6, wider.g))
                results.append(_evaluate(make(), wider, Placements.of(device)))
            assert results[1].value_s.tolist() == results[0].value_s.tolist(), "an idle device changes the value"
            assert results[1].peak_bytes[:, :2].tolist() == results[0].peak_bytes.tolist()

    def test_schedule_has_every_operation(self, make: Make) -> None:
        """A schedule has every operation once, on the device of its group, with a start that is not after its end."""
        for problem, _, placement, schedule in self._schedules(make):
            n, x = problem.graph.n, len(schedule.transfer_tensor)
            for column in (schedule.op_device, schedule.op_stream, schedule.op_start_s, schedule.op_end_s):
                assert column.shape == (n,), f"a column of operations has shape {column.shape}, not {(n,)}"
            assert np.array_equal(schedule.op_device, problem.expand(placement.device)), "an operation ran elsewhere"
            assert np.all((schedule.op_start_s >= 0) & (schedule.op_start_s <= schedule.op_end_s))
            for column in (schedule.transfer_src, schedule.transfer_dst, schedule.transfer_start_s):
                assert column.shape == (x,), f"a column of transfers has shape {column.shape}, not {(x,)}"
            assert np.all((schedule.transfer_start_s >= 0) & (schedule.transfer_start_s <= schedule.transfer_end_s))

    def test_operations_wait_for_their_inputs(self, make: Make) -> None:
        """Nothing starts before all that it reads is there: its producer has ended, or the transfer to its device has."""
        for problem, _, _, schedule in self._schedules(make):
            graph, home = problem.graph, schedule.op_device
            arrived = {
                (t, d): end
                for t, d, end in zip(
                    schedule.transfer_tensor.tolist(), schedule.transfer_dst.tolist(),
                    schedule.transfer_end_s.tolist(), strict=True,
                )
            }  # fmt: skip
            for v, t in zip(graph.edge_op.tolist(), graph.input_tensor.tolist(), strict=True):
                producer = int(graph.tensor_producer[t])
                away = home[producer] != home[v]
                there = arrived.get((t, int(home[v]))) if away else schedule.op_end_s[producer]
                assert there is not None, f"{graph.op_name[v]!r} reads tensor {t} of another device: no transfer"
                assert schedule.op_start_s[v] >= there, f"{graph.op_name[v]!r} starts before tensor {t} is there"

    def test_transfers_wait_for_their_tensors(self, make: Make) -> None:
        """A transfer starts after its tensor was written, on the device of its producer, and leads to another device."""
        for problem, _, _, schedule in self._schedules(make):
            producer = problem.graph.tensor_producer[schedule.transfer_tensor]
            assert np.array_equal(schedule.transfer_src, schedule.op_device[producer]), "a transfer from elsewhere"
            assert np.all(schedule.transfer_src != schedule.transfer_dst), "a transfer to where the tensor is"
            early = np.flatnonzero(schedule.transfer_start_s < schedule.op_end_s[producer])
            assert not len(early), f"tensor {schedule.transfer_tensor[early[0]]} is sent before it is written"

    def test_streams_run_one_operation_at_a_time(self, make: Make) -> None:
        """Kernels of one stream do not overlap, and a device has no more streams than the machine says."""
        for problem, _, _, schedule in self._schedules(make):
            kernel = np.flatnonzero(problem.graph.kernel)
            device, stream = schedule.op_device[kernel], schedule.op_stream[kernel]
            start, end = schedule.op_start_s[kernel], schedule.op_end_s[kernel]
            assert np.all((stream >= 0) & (stream < problem.cluster.streams[device])), "a stream that does not exist"
            order = np.lexsort((end, start, stream, device))
            a, b = order[:-1], order[1:]
            overlap = (device[a] == device[b]) & (stream[a] == stream[b]) & (start[b] < end[a])
            names = [problem.graph.op_name[kernel[i]] for i in b[overlap]]
            assert not names, f"{names[0]!r} starts while its stream is busy"

    def test_schedule_agrees_with_the_value(self, make: Make) -> None:
        """If simulated and deterministic: the schedule's value is what `evaluate` says; a makespan is its last end."""
        backend = make()
        if not (backend.simulated and backend.deterministic):
            pytest.skip("runs of this backend differ")
        for problem, session, placement, schedule in self._schedules(make):
            value = session.evaluate(placement.batch()).value_s[0]
            assert schedule.value_s == value, f"{schedule.value_s} s in the schedule, {value} s from evaluate"
            if backend.objective == "makespan":
                end = schedule.op_end_s[problem.graph.kernel].max(initial=0.0)
                assert end == value, f"the last operation ends at {end} s, the makespan is {value} s"

    def test_kernel_equals_evaluate(self, make: Make) -> None:
        """Where a session offers a compiled evaluation, it gives the same bits as `evaluate`."""
        for problem, session in self._sessions(make):
            kernel = session.kernel()
            if kernel is None:
                pytest.skip("this backend offers no compiled evaluation")
            ints, floats = np.empty(kernel.scratch_ints, np.int32), np.empty(kernel.scratch_floats)
            for priorities in (False, True):
                placements = _placements(problem, 5, priorities=priorities)
                expected = session.evaluate(placements)
                for row in range(5):
                    device, priority = placements.one(row)
                    order = np.empty(0, np.float32) if priority is None else priority
                    peak = np.empty(problem.cluster.size)
                    value = kernel.function(device, order, kernel.ints, kernel.floats, ints, floats, peak)
                    assert value == expected.value_s[row], f"{value} s, and {expected.value_s[row]} s from evaluate"
                    assert np.array_equal(peak, expected.peak_bytes[row]), "other peaks than from evaluate"

    def _sessions(self, make: Make, deterministic: bool = False) -> Iterator[tuple[Problem, Session]]:
        backend = make()
        if deterministic and not backend.deterministic:
            pytest.skip("this backend measures: values differ")
        for seed in self.seeds:
            problem = _problem(seed)
            session = backend.open(problem)
            try:
                yield problem, session
            finally:
                session.close()

    def _simulated(self, make: Make) -> list[Problem]:
        backend = make()
        if not backend.simulated or backend.objective != "makespan":
            pytest.skip("for simulations of a makespan")
        return [_problem(seed) for seed in self.seeds]

    def _schedules(self, make: Make) -> Iterator[tuple[Problem, Session, Placement, Schedule]]:
        for problem, session in self._sessions(make):
            placements = _placements(problem, 3)
            for row in range(3):
                placement = problem.placement(*placements.one(row))
                yield problem, session, placement, session.schedule(placement)


def _problem(seed: int) -> Problem:
    """A random problem of 10 to 60 operations."""
    return random_problem(np.random.default_rng(seed), 10 + 10 * (seed % 6))


def _placements(problem: Problem, b: int, seed: int = 1, priorities: bool = True) -> Placements:
    return random_placements(np.random.default_rng(seed), problem, b, priorities)


def _evaluate(backend: Backend, problem: Problem, placements: Placements) -> Measurements:
    """In a session of its own."""
    session = backend.open(problem)
    result = session.evaluate(placements)
    session.close()
    return result


def _costs(graph: Graph, cluster: Cluster) -> CostTable:
    """1 to 4 ticks for each kernel."""
    ticks = np.random.default_rng(3).integers(1, 5, (graph.n, len(cluster.kind_names)))
    op_s = np.where(graph.kernel[:, None], ticks * TICK_S, 0.0)
    return CostTable(cluster.kind_names, op_s, np.zeros(op_s.shape, np.bool_))


def _check_shapes(result: Measurements, b: int, size: int) -> None:
    expected: list[tuple[str, NDArray[np.generic], tuple[int, ...], type]] = [
        ("value_s", result.value_s, (b,), np.float64),
        ("peak_bytes", result.peak_bytes, (b, size), np.float64),
        ("fits", result.fits, (b,), np.bool_),
    ]
    if result.spread_s is not None:
        expected.append(("spread_s", result.spread_s, (b,), np.float64))
    for name, column, shape, dtype in expected:
        assert column.shape == shape, f"{name} has shape {column.shape}, not {shape}"
        assert column.dtype == dtype, f"{name} holds {column.dtype}, not {np.dtype(dtype)}"
    assert len(result.error) == b, f"{len(result.error)} errors, not {b}"


def _check_same(one: Measurements, other: Measurements) -> None:
    assert one.value_s.tobytes() == other.value_s.tobytes(), f"values {one.value_s} and {other.value_s}"
    assert one.peak_bytes.tobytes() == other.peak_bytes.tobytes(), "the peaks differ"
    assert one.fits.tolist() == other.fits.tolist(), "whether it fits differs"
    assert one.error == other.error, "the errors differ"


def _contents(problem: Problem) -> tuple[object, ...]:
    """All that a problem is made of; the graph is copied, because it keeps its fingerprint."""
    costs = problem.op_s.tobytes(), problem.costs.op_s.tobytes(), problem.group_s.tobytes()
    return problem.graph.replace().fingerprint, problem.grouping.group_of.tobytes(), problem.cluster.fingerprint, *costs
