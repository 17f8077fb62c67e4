"""Calibration: figures are of the size of what kernels and copies take, and a run takes its files."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from placekit_cuda import calibration
from placekit_cuda.backend import CPUBackend
from placekit_cuda.calibration import Clock, Walk, fit_line
from placekit_cuda.efficiency import with_efficiency
from placekit_cuda.machine import CPUMachine

from placekit_core import (
    BackendError,
    Calibration,
    Cluster,
    CostFile,
    KindCosts,
    Program,
    RunError,
    installed,
    load_cluster,
    roofline,
    signatures_of,
)
from placekit_core.cli.compose import assembled
from placekit_core.contracts.costs import EFFICIENCY, with_measured

EinsumImporter = pytest.importorskip("placekit_einsum.importer").EinsumImporter
ratios = pytest.importorskip("placekit_inspect.calibration")

torch.set_num_threads(1)
QUICK = 2  # repeats
CLUSTER = Cluster.parse(
    {
        "name": "slow",
        "kinds": {
            "a": {"type": "cpu", "flops_per_s": {"float32": 1e9}, "memory_bytes": 2**27, "memory_bytes_per_s": 1e9}
        },
        "devices": [{"kind": "a", "count": 2}],
        "links": [
            {
                "a": "a:0", "b": "a:1", "bytes_per_s": 1e8, "latency_s": 5e-3,
                "reverse": {"bytes_per_s": 1e8, "latency_s": 15e-3},
            }
        ],
    }
)  # fmt: skip


def chain(n: int = 32) -> Program:
    program: Program = EinsumImporter(program="chainmm", sizes={"n": n}).load()[0]
    return program


class Sleeping:
    """An executable whose kernels sleep for seconds that their signature decides."""

    views: Mapping[int, int] = {}
    updates: Mapping[int, int] = {}
    results: Mapping[str, int] = {}
    recipe: Mapping[str, Any] = {}
    random_ops: frozenset[int] = frozenset()

    def __init__(self, program: Program) -> None:
        self.graph = program.graph
        self.signatures = signatures_of(self.graph)
        names = sorted({*self.signatures} - {""})
        self.seconds = {name: 4e-3 * (1 + i) for i, name in enumerate(names)}
        self.ran: list[int] = []

    def initial(self, seed: int | None = None) -> dict[int, torch.Tensor]:
        return {t: torch.zeros(1) for v in np.flatnonzero(~self.graph.kernel) for t in self.graph.outputs(int(v))}

    def compile(self, ops: Sequence[int], device: Any = None, keep: Any = None) -> Callable[..., Any]:
        def run(values: Mapping[int, torch.Tensor], step: int = 0) -> dict[int, torch.Tensor]:
            there = {*values}
            for op in ops:
                assert {*self.graph.inputs(op).tolist()} <= there, "every input is there"
                there |= {*self.graph.outputs(op)}
                self.ran.append(op)
                time.sleep(self.seconds[self.signatures[op]])
            return {t: torch.zeros(1) for op in ops for t in self.graph.outputs(op) if t in keep}

        return run

    def view(self, tensor: int) -> Callable[[Any], Any]:
        raise AssertionError("there are no views")

    def result(self, name: str, values: Any) -> Any:
        raise AssertionError("there are no results")


@pytest.fixture(scope="module")
def calibrated() -> tuple[Program, Calibration]:
    program = chain()
    return program, CPUBackend(devices=2).calibrate([program], repeats=QUICK)


def test_every_kernel_is_covered_by_fewer_figures(calibrated: tuple[Program, Calibration], tmp_path: Path) -> None:
    program, found = calibrated
    kernels = int(program.graph.kernel.sum())
    assert 0 < found.figures < kernels
    ratios.write(found, tmp_path)
    cluster = load_cluster(tmp_path / ratios.CLUSTER)
    assert cluster == found.cluster
    costs = with_measured(roofline(program.graph, cluster), program.graph, tmp_path / ratios.COSTS)
    assert costs.measured[program.graph.kernel].all()
    assert (costs.op_s[program.graph.kernel] > 0).all()
    assert "cores of" in found.cluster.description
    assert "medians of 2; on" in found.costs.description
    with pytest.raises(RunError, match="cannot write"):
        ratios.write(found, tmp_path / "nowhere")


def test_rates_are_positive_and_the_rest_of_the_machine_is_as_it_was(
    calibrated: tuple[Program, Calibration],
) -> None:
    program, found = calibrated
    given = CPUBackend(devices=2).devices()
    cluster, kind = found.cluster, found.cluster.kinds["cpu"]
    assert cluster.device_names == given.device_names
    assert cluster.memory_bytes.tolist() == given.memory_bytes.tolist()
    assert 1e8 < kind.flops_per_s["float32"] < 1e14
    assert 1e8 < kind.memory_bytes_per_s < 1e13
    assert 0 < kind.launch_overhead_s < 1e-2
    assert (cluster.routes.s_per_byte[~np.eye(2, dtype=bool)] > 0).all()
    assert (cluster.routes.latency_s[~np.eye(2, dtype=bool)] > 0).all()
    assert found.seconds > 0
    assert 0 < found.spread < found.largest_spread
    assert found.failures == ()
    assert all("copies from" in note for note in found.notes)  # on a busy machine, large copies may look no slower
    assert not found.interrupted
    rows = ratios.class_ratios([program.graph], given, found)
    assert {r.op_class for r in rows} == {"matmul", "elementwise"}
    assert sum(r.kernels for r in rows) == program.graph.kernel.sum()
    assert all(r.ratio > 0 for r in rows)


def test_a_line_is_fitted() -> None:
    latency, s_per_byte = fit_line([4, 1000, 10_000], [2e-6 + 1e-9 * x for x in (4, 1000, 10_000)])
    assert latency == pytest.approx(2e-6)
    assert s_per_byte == pytest.approx(1e-9)
    assert fit_line([4, 1000], [1e-6, 1e-6]) == pytest.approx((1e-6, 0)), "a copy that takes no longer with its size"
    assert fit_line([4, 1000], [2e-6, 1e-6]) == pytest.approx((1.2e-6, 0)), "1.5 / 1.25 us: 40% below, and 20% above"
    latency, s_per_byte = fit_line([10, 10_000], [1e-9, 1e-5])
    assert latency == 0
    assert s_per_byte == pytest.approx(1.1e10 / 1.01e20), "of lines without latency, the best by relative errors"


@pytest.mark.parametrize("seconds", [0.005, 0.021])
def test_a_bandwidth_that_is_not_seen_is_that_of_the_largest_copy(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies that take as long whatever their size, but for noise, also if they are slow."""
    noise = itertools.cycle([1.0, 1.02, 1.01])  # of a clock, it would be this computer's load that is tested
    monkeypatch.setattr(calibration, "_copy_s", lambda *_: seconds * next(noise))
    notes: list[str] = []
    machine = CPUMachine(2)
    found = calibration._link(CLUSTER, machine, 0, 1, Clock(machine, 3, 30.0), notes)
    machine.close()
    assert found["bytes_per_s"] == pytest.approx(2**24 / seconds, rel=0.03), "an eighth of the memory is the largest"
    assert found["latency_s"] >= seconds
    (note,) = notes
    assert note.startswith("larger copies from a:0 to a:1 take no longer: this link gets the")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_figures_are_what_the_gpu_takes() -> None:
    """Not the 200 us that the host takes to launch a kernel of a few microseconds."""
    from placekit_cuda.cuda import CUDAMachine

    machine = CUDAMachine([0])
    one = torch.ones(1, device=machine.torch_device(0))

    def slowly() -> None:
        begun = time.perf_counter()
        while time.perf_counter() - begun < 2e-4:
            pass
        torch.neg(one)

    clock = Clock(machine, 5, 30.0)
    held, free = clock.median(machine.compute(0), slowly, 2e-3), clock.once(machine.compute(0), slowly, 20)
    machine.close()
    assert held < 5e-5 < 1e-4 < free


def test_rates_of_all_types_that_the_device_has_are_measured() -> None:
    """Also where no program computes in them; what torch cannot multiply keeps its rate, and is named."""
    data = CLUSTER.model_dump()
    data["kinds"]["a"]["flops_per_s"] = {"float32": 1.0, "bfloat16": 1.0, "float8_e8m0fnu": 3.0, "int8": 5.0}
    found = CPUBackend().calibrate([], Cluster.parse(data), repeats=1)
    rates = found.cluster.kinds["a"].flops_per_s
    assert rates["float32"] > 1e8
    assert rates["bfloat16"] > 1e6
    assert (rates["float8_e8m0fnu"], rates["int8"]) == (3.0, 5.0)
    assert sum("float8_e8m0fnu" in note for note in found.notes) == 1  # a busy machine may add a note of its own
    assert found.figures == 0
    assert np.isnan(found.spread)


def test_what_rates_are_measured_by_reaches_them() -> None:
    """Nominal fractions are of a peak; beside measured rates a product reaches all, and others what they are beside it."""
    found = with_efficiency(CLUSTER, [], CostFile(kinds={})).kinds["a"].efficiency
    assert found["matmul"].compute == found["elementwise"].memory == 1
    assert found["convolution"].compute == pytest.approx(EFFICIENCY["convolution"].compute / 0.75)
    assert found["embedding"].memory == pytest.approx(EFFICIENCY["embedding"].memory / 0.8)


def test_fractions_of_classes_are_of_operations_that_are_large_enough() -> None:
    """The matmuls of the chain at full rates take 2 n^3 / 1 GFLOP/s each; these took twice that."""
    program = chain(64)
    graph = program.graph
    full = 2 * 64**3 / 1e9
    names = [graph.op_name[v] for v in np.flatnonzero(graph.kernel & graph.op_class.is_value("matmul"))]
    seconds = roofline(graph, bare(0.0)).op_s[:, 0]
    measured = {n: 2 * seconds[graph.op_name.index(n)] for n in names}
    assert max(measured.values()) < 2 * full
    for launch, fraction in ((0.0, 0.5), (1.0, 1.0)):
        found = with_efficiency(bare(launch), [graph], CostFile(kinds={"a": KindCosts(operations=measured)}))
        assert found.kinds["a"].efficiency["matmul"].compute == fraction


def bare(launch_overhead_s: float) -> Cluster:
    """`CLUSTER` with all fractions 1."""
    data = CLUSTER.model_dump()
    one = {"compute": 1.0, "memory": 1.0}
    data["kinds"]["a"] |= {"launch_overhead_s": launch_overhead_s, "efficiency": dict.fromkeys(EFFICIENCY, one)}
    return Cluster.parse(data)


def test_only_what_is_needed_is_run_and_values_are_dropped() -> None:
    """Up to the last operation that is timed; what no later one reads is not kept."""
    program = chain()
    sleeping: Any = Sleeping(program)
    sleeping.seconds = dict.fromkeys(sleeping.seconds, 0.0)
    order = program.graph.topological_order[program.graph.kernel[program.graph.topological_order]].tolist()
    walk = Walk(Program(program.graph, executable=sleeping), {order[3]: ("operations", "x")}, torch.device("cpu"))
    machine = CPUMachine(1)
    assert {*walk.run(Clock(machine, 1, 30.0), machine.compute(0))} == {("operations", "x")}
    machine.close()
    assert {*sleeping.ran} == {*order[:4]}
    whole = Walk(Program(program.graph, executable=sleeping), dict.fromkeys(order, ("operations", "x")), walk.device)
    live: set[int] = set()
    for piece in whole.pieces:
        live = (live - piece.drops) | piece.keeps
    assert not live


def unnamed() -> Program:
    """A program whose operations have no signatures."""
    program = chain()
    return Program(program.graph.replace(columns={}), executable=program.executable)


@pytest.mark.slow
def test_networks_with_views_and_random_numbers() -> None:
    pytest.importorskip("placekit_zoo")
    [program] = assembled(["workload=nmt_small"], installed()).build("importer").load()
    found = CPUBackend(devices=1).calibrate([program], repeats=1)
    assert found.figures < program.graph.kernel.sum()
    assert ratios.measured_costs(program.graph, found).measured[program.graph.kernel].all()


def test_what_cannot_be_run_is_refused() -> None:
    with pytest.raises(BackendError, match="is only a graph: there is nothing to run and measure"):
        CPUBackend(devices=1).calibrate([Program(chain().graph)], repeats=1)

    with pytest.raises(BackendError, match="have no signatures, and several programs share the names of operations"):
        CPUBackend(devices=1).calibrate([unnamed(), chain()], repeats=1)
    with pytest.raises(BackendError, match="calibration measures in this process"):
        CPUBackend(devices=1, isolation="process").calibrate([chain()], repeats=1)


def breaking(does: Callable[[], None]) -> tuple[Any, list[int]]:
    """An executable of the chain whose third kind of kernel calls `does`, and kernels of which others come before."""
    program = chain()
    broken: Any = Sleeping(program)
    order = program.graph.topological_order[program.graph.kernel[program.graph.topological_order]].tolist()
    kinds = list(dict.fromkeys(broken.signatures[v] for v in order))
    broken.seconds = dict.fromkeys(broken.seconds, 1e-4)
    compiled = broken.compile

    def compile(ops: Sequence[int], device: Any = None, keep: Any = None) -> Callable[..., Any]:
        run = compiled(ops, device, keep)

        def checked(values: Any, step: int = 0) -> Any:
            if any(broken.signatures[op] == kinds[2] for op in ops):
                does()
            return run(values, step)

        return checked

    broken.compile = compile
    return Program(program.graph, executable=broken), kinds


def test_an_operation_that_fails_ends_what_follows_it_and_costs_no_figure() -> None:
    def fails() -> None:
        raise ValueError("no such kernel")

    program, kinds = breaking(fails)
    found = CPUBackend(devices=1).calibrate([program], repeats=3)
    assert {*found.costs.kinds["cpu"].signatures} == {*kinds[:2]}
    [failure] = found.failures
    assert re.match(r"operation '.*' of 'chainmm' failed when it was measured: ValueError: no such kernel", failure)


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured() -> None:
    calls = []

    def interrupts() -> None:
        calls.append(0)
        if len(calls) > 10:
            raise KeyboardInterrupt

    program, kinds = breaking(interrupts)
    executable: Any = program.executable
    found = CPUBackend(devices=1).calibrate([program], repeats=100)
    assert found.interrupted
    assert {*found.costs.kinds["cpu"].signatures} == {*kinds}
    assert len(executable.ran) < 100 * len(kinds)
    assert "medians of 100 at most" in found.costs.description


@pytest.mark.slow
def test_a_device_that_hangs_ends_it_and_the_operation_is_named() -> None:
    program, _ = breaking(lambda: time.sleep(3))
    found = CPUBackend(devices=1, timeout_s=1.0).calibrate([program], repeats=3)
    [failure] = found.failures
    assert re.match(r"operation '.*' of 'chainmm'.*did not end within 1 s", failure)
