"""Runs placements on a GPU: checks their results, measures their costs, and compares them with the simulator.

    python benchmarks/gpu/run_all.py [--backend cuda|cpu] [--only A,B] [--workloads A,B] [--repeats N] [--out FILE.json]

One machine with one GPU is enough: several devices are then streams of it, with memory budgets of their own. Prints a line for
each figure, and at the end a JSON object of all; `--out` also writes that to a file after each part, so that measurements
before a failure are kept. With `--backend cpu` the same runs on threads of the processor, to try the script out.

    correctness   each workload under random placements on 1, 2, 4 devices, three schedules, beside one device: equal bits,
                  or the largest difference over the largest value; and one device beside the processor, where nothing is random
    overhead      one and two devices, static and dynamic, fused and single, beside eager PyTorch and a CUDA graph of the step
    virtual       a chain of products of matrices on 1, 2, 4 devices
    calibration   measured seconds of the default workload's operations over the roofline's, by class
    steps         whole steps of `--workloads` on one device: simulated seconds after calibration, and measured ones
    fidelity      simulated and measured seconds of random and good placements on two GPUs, after calibration; with one GPU it is
                  left out, because the simulator does not know that devices share it
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from placekit_cuda.backend import CPUBackend, CUDABackend, MeasuringBackend
from placekit_inspect.agreement import RANDOM, SEARCH, compare
from placekit_inspect.calibration import class_ratios, measured_costs
from placekit_sim.simulator import Simulator
from placekit_testing.sequential import run_sequential

from placekit_core import BackendError, Placements, Problem, Program, installed
from placekit_core.cli.compose import assembled

sys.path.insert(0, str(Path(__file__).parents[1]))
from executor import Way, eager, medians, ways

TRAINED = ["rnnlm", "nmt", "inception_v3", "resnet", "llama_layer", "nasnet"]
STEPS = ["rnnlm", "resnet50", "inception_v3", "llama_layer", "chainmm", "ffnn_sharded", "llama_layer_sharded"]
SHARDED = ["chainmm", "ffnn_sharded", "llama_block_sharded", "llama_layer_sharded"]


def importer(workload: str, *options: str) -> Any:
    """The importer of a workload preset."""
    return assembled([f"workload={workload}", *options], installed()).build("importer")


def difference(one: Any, other: Any) -> float:
    """0 for equal bits, else the largest difference over the largest value."""
    a, b = one.detach().cpu(), other.detach().cpu()
    if torch.equal(a, b):
        return 0.0
    a, b = a.double(), b.double()
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))


def norm_difference(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> float:
    """Euclidean norm of the difference of all values together, over that of `other`."""
    a, b = ([v.detach().cpu().double().flatten() for _, v in sorted(x.items())] for x in (one, other))
    return float((torch.cat(a) - torch.cat(b)).norm() / torch.cat(b).norm().clamp_min(1e-30))


def correctness(make: Callable[..., MeasuringBackend], repeats: int) -> list[dict[str, Any]]:
    """Largest differences of results and new values from one device; and the norms of those from the processor."""
    rows = []
    for name in TRAINED + SHARDED:
        options = ["importer.mode=train"] if name in TRAINED else []
        program = importer(f"{name}_small", *options).load()[0]
        executable: Any = program.executable
        values = executable.initial()
        on_cpu, cpu_results = run_sequential(program, values)
        again = run_sequential(program, values, 1)[
            1
        ]  # another step draws other random numbers, and a GPU others than these
        random = any(not torch.equal(again[k], v) for k, v in cpu_results.items())
        for devices, schedule in product((1, 2, 4), ("static", "dynamic", "bulk_synchronous")):
            backend = make(devices=devices, schedule=schedule)
            cluster = backend.devices()
            assert cluster is not None
            session: Any = backend.open(Problem.of(program.graph, cluster), executable)
            device = np.random.default_rng(devices).integers(0, devices, session.problem.g)
            engine = session.engine(session.problem.placement(device))
            step = engine.run(engine.place(values), 0, schedule, 120)
            reference_device = session.machine.torch_device(0)
            local = {t: v.to(reference_device) for t, v in values.items()}
            after, results = run_sequential(program, local, 0, reference_device)
            kept = {**values, **step.kept}
            new = {k: executable.result(k, kept) for k in results}
            row = {
                "workload": name,
                "devices": devices,
                "schedule": schedule,
                "from_one_device": max(
                    [difference(new[k], results[k]) for k in results]
                    + [difference(step.kept[t], after[old]) for old, t in executable.updates.items()]
                ),
                "results_from_processor": None if random else norm_difference(results, cpu_results),
                "values_from_processor": None if random else norm_difference(after, on_cpu),
            }
            rows.append(row)
            print(row, flush=True)
            session.close()
    return rows


def overhead(make: Callable[..., MeasuringBackend], repeats: int) -> list[dict[str, Any]]:
    """Milliseconds a step and microseconds an operation of the small Inception-V3 and RNNLM."""
    rows: list[dict[str, Any]] = []
    where = "cuda" if make is CUDABackend else "cpu"
    synchronize = torch.cuda.synchronize if where == "cuda" else lambda: None
    for name in ("inception_v3", "rnnlm"):
        source = importer(f"{name}_small", "importer.mode=train")
        program = source.load()[0]
        kernels = int(program.graph.kernel.sum())
        runs: dict[Way, Callable[[], object]] = {Way(1, "one", "eager", "", kernels): eager(source, where)}
        if where == "cuda":
            try:
                runs[Way(1, "one", "CUDA graph", "", 1)] = replay(program)
            except RuntimeError as e:  # the other ways are measured all the same
                rows.append({"workload": name, "way": "CUDA graph", "error": str(e)})
                print(rows[-1], flush=True)
        runs |= ways(program, make)
        found = medians(runs, repeats, synchronize)
        for way, seconds in found.items():
            row = {
                "workload": name,
                "way": " ".join(map(str, way)),
                "ms": 1e3 * seconds,
                "us_per_operation": 1e6 * seconds / kernels,
                "of_eager": seconds / next(iter(found.values())),
            }
            rows.append(row)
            print(row, flush=True)
    return rows


def replay(program: Program) -> Callable[[], object]:
    """One step as a CUDA graph."""
    executable: Any = program.executable
    graph, device = program.graph, torch.device("cuda", 0)
    order = [int(v) for v in graph.topological_order if graph.kernel[v]]
    run = executable.compile(order, device, set(executable.updates.values()))
    values = {t: v.to(device) for t, v in executable.initial().items()}
    side: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):
            run(values)
    side.synchronize()
    captured: Any = torch.cuda.CUDAGraph()
    for value in run.__globals__.values():  # generators of random operations
        if isinstance(value, torch.Generator):
            captured.register_generator_state(value)
    with torch.no_grad(), torch.cuda.graph(captured):
        kept = run(values)

    def once() -> object:
        captured.replay()
        return kept

    return once


def virtual(make: Callable[..., MeasuringBackend], repeats: int) -> list[dict[str, Any]]:
    """ChainMM on 1, 2 and 4 devices, operation i on device i modulo their number."""
    n = 4096 if make is CUDABackend else 512
    rows = []
    program = importer("chainmm", f"importer.sizes.n={n}").load()[0]
    for devices in (1, 2, 4):
        for schedule in ("static", "dynamic", "bulk_synchronous"):
            backend = make(devices=devices, schedule=schedule, steps=repeats, warm_up=2)
            cluster = backend.devices()
            assert cluster is not None
            problem = Problem.of(program.graph, cluster)
            session = backend.open(problem, program.executable)
            device = np.arange(problem.g) % devices
            measured = session.evaluate(Placements.of(device[None]))
            row = {
                "n": n,
                "devices": devices,
                "schedule": schedule,
                "seconds": float(measured.value_s[0]),
                "spread_s": float(measured.spread_s[0]) if measured.spread_s is not None else None,
                "error": measured.error[0],
            }
            rows.append(row)
            print(row, flush=True)
            session.close()
    return rows


def calibration(make: Callable[..., MeasuringBackend], repeats: int) -> dict[str, Any]:
    """The default workload (the small one on a processor): measured over roofline, by class of operations."""
    name = "inception_v3" if make is CUDABackend else "inception_v3_small"
    program = importer(name).load()[0]
    backend = make(devices=1)
    cluster = backend.devices()
    assert cluster is not None
    found = backend.calibrate([program], cluster, repeats=9)
    rows = [vars(r) for r in class_ratios([program.graph], cluster, found)]
    for row in rows:
        print(row, flush=True)
    whole = float(measured_costs(program.graph, found).op_s.sum())
    return {
        "workload": name,
        "cluster": found.cluster.model_dump(mode="json"),
        "figures": found.figures,
        "repeats": found.repeats,
        "spread": found.spread,
        "seconds": found.seconds,
        "operations_s": whole,
        "classes": rows,
    }


def steps(
    make: Callable[..., MeasuringBackend], repeats: int, names: Sequence[str] = tuple(STEPS)
) -> list[dict[str, Any]]:
    """Seconds of whole steps on one device, simulated with the figures of a calibration, and measured in each schedule."""
    rows, small = [], "" if make is CUDABackend else "_small"
    for name in names:
        mode = ["importer.mode=train"] if name in TRAINED else []
        program = importer(f"{name}{small}", *mode).load()[0]
        backend = make(devices=1)
        cluster = backend.devices()
        assert cluster is not None
        found = backend.calibrate([program], cluster, repeats=5)
        problem = Problem.of(program.graph, found.cluster, costs=measured_costs(program.graph, found))
        one = Placements.of(np.zeros((1, problem.g), np.int64))
        roofline_s = float(Simulator().open(Problem.of(program.graph, found.cluster)).evaluate(one).value_s[0])
        row = {
            "workload": name + small,
            "kernels": int(program.graph.kernel.sum()),
            "simulated_s": float(Simulator().open(problem).evaluate(one).value_s[0]),
            "roofline_s": roofline_s,
            "failures": list(found.failures),
        }
        options: dict[str, dict[str, Any]] = {
            "static": {},
            "static_single": {"fuse": False},
            "dynamic": {},
            "dynamic_ahead_0": {"ahead": 0},
            "dynamic_single": {"fuse": False},
        }
        for way, given in options.items():
            schedule = way.partition("_")[0]
            session = make(devices=1, schedule=schedule, steps=repeats, warm_up=3, **given).open(
                problem, program.executable
            )
            measured = session.evaluate(one)
            assert measured.spread_s is not None
            row |= {
                f"{way}_s": float(measured.value_s[0]),
                f"{way}_spread_s": float(measured.spread_s[0]),
                f"{way}_error": measured.error[0],
            }
            session.close()
        rows.append(row)
        print(row, flush=True)
    return rows


def fidelity(make: Callable[..., MeasuringBackend], repeats: int) -> dict[str, Any]:
    """ChainMM on two devices: 30 placements, simulated after calibration and measured in passes."""
    if make is CUDABackend and torch.cuda.device_count() < 2:
        return {"left_out": "two devices would share the only GPU, and the simulator does not know that"}
    n = 8192 if make is CUDABackend else 1024
    program = importer("chainmm", f"importer.sizes.n={n}").load()[0]
    backend = make(devices=2)
    cluster = backend.devices()
    assert cluster is not None
    found = backend.calibrate([program], cluster, repeats=9)
    problem = Problem.of(program.graph, found.cluster, costs=measured_costs(program.graph, found))
    session, simulator = backend.open(problem, program.executable), Simulator().open(problem)
    compared = compare(problem, simulator, session, 30, max(3, repeats // 4), np.random.default_rng(0))
    session.close()
    agreement = {
        name: vars(compared.agreement(made)) for name, made in (("all", None), ("random", RANDOM), ("search", SEARCH))
    }
    for name, row in agreement.items():
        print(name, row, flush=True)
    return {"n": n, **agreement, "rows": compared.rows()}


PARTS: dict[str, Callable[[Callable[..., MeasuringBackend], int], Any]] = {
    "correctness": correctness,
    "overhead": overhead,
    "virtual": virtual,
    "calibration": calibration,
    "steps": steps,
    "fidelity": fidelity,
}


def machine(backend: str) -> dict[str, Any]:
    """The machine that was measured."""
    found: dict[str, Any] = {"backend": backend, "python": platform.python_version(), "torch": torch.__version__}
    if backend == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {"gpu": properties.name, "gpus": torch.cuda.device_count(), "cuda": torch.version.cuda}
    return found


def main() -> int:
    """Run the parts; if one fails, report it and go on with the others."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--workloads", default=",".join(STEPS))
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if strange := [name for name in arguments.only.split(",") if name not in PARTS]:
        parser.error(f"--only: no part {strange[0]!r}; there are {', '.join(PARTS)}")
    if strange := [name for name in arguments.workloads.split(",") if name not in STEPS]:
        parser.error(f"--workloads: no workload {strange[0]!r} here; there are {', '.join(STEPS)}")
    torch.set_num_threads(1)
    make = {"cuda": CUDABackend, "cpu": CPUBackend}[arguments.backend]
    try:
        make()
    except BackendError as e:
        parser.error(f"{e.message}; `--backend cpu` runs it on threads of this machine's processor")
    result: dict[str, Any] = {"machine": machine(arguments.backend), "command": " ".join(sys.argv)}
    failed = 0
    parts = PARTS | {"steps": partial(steps, names=arguments.workloads.split(","))}
    for part in arguments.only.split(","):
        start = time.perf_counter()
        print(f"--- {part}", flush=True)
        try:
            result[part] = parts[part](make, arguments.repeats)
        except Exception as e:
            traceback.print_exc()
            result[part], failed = {"error": f"{type(e).__name__}: {e}"}, failed + 1
        result[f"{part}_seconds"] = time.perf_counter() - start
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(result, indent=1))
    print(json.dumps(result))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
