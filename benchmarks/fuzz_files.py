"""Damages every kind of file that placekit reads, and counts how the readers end.

    python benchmarks/fuzz_files.py [--cases 5000] [--seed 0] [--kind NAME ...]

Each kind starts from a good file that placekit wrote. What is tried (`fuzz_damage.py`): every value replaced by wrong ones;
fields that are missing, new, renamed or there twice; bytes that are cut off, flipped, inserted, removed or copied; nesting of
1,100 and 100,000 levels; a million digits; halves of characters (`\\ud800`); YAML tags and nested aliases; NaN; too many
bytes, values and arrays; arrays of other types and shapes, pickles and zip bombs; graphs with a wrong column and its right
fingerprint, checkpoints with wrong content and its right seal; the file of every other kind. `resume` continues an
interrupted run after one of its files was damaged.

While a case is read, Python's audit events are watched: starting a process, loading a library, unpickling, opening a connection,
removing files, and writing outside of the case's folder are errors, whatever comes of the case.

The table has a row per kind: cases; how many were accepted, ended in an error of ours, or in another exception; the longest
time of one case (CPU seconds), and the most memory (MiB above what the process had). The exit code is 1 if there was another
exception, or if a case took more than 10 s or 500 MiB; these cases are printed. Each kind has a process of its own. Needs Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from fuzz_damage import WRONG, cases, other_bytes, paths, replaced
from fuzz_watch import Watch
from numpy.random import Generator
from placekit_formats.json_program import JsonImporter
from placekit_formats.msr import placed_text
from placekit_report.compare_rows import rows
from placekit_report.compare_text import show
from placekit_scheduling import Certificate, CertificateError, certify, proven_s
from placekit_testing import fakes
from placekit_testing.small import chain, machine

from placekit_core import (
    Cluster,
    ClusterError,
    PlacekitError,
    Problem,
    Program,
    load_assignment,
    load_cluster,
    load_graph,
    load_placement,
    place,
    read_json,
    roofline,
    save_graph,
    save_placement,
)
from placekit_core.cli import sweep
from placekit_core.cli.compose import compose
from placekit_core.cli.run import main as run_command
from placekit_core.contracts.costs import with_measured
from placekit_core.run import csv_log
from placekit_core.run.assembly import validate
from placekit_core.run.checkpoint import load_saved
from placekit_core.run.config import load_preset
from placekit_core.run.pipeline import Observer, run
from placekit_core.run.registry import installed
from placekit_core.run.run_directory import check_same, load_config, load_summary
from placekit_core.run.trained import load_policy, save_policy

MAX_S, MAX_MIB = 10.0, 500.0  # a list of ten million numbers takes 3 s, and twice that on a busy machine
SHOWN = 40  # cases of one kind that went wrong


@dataclass
class Kind:
    """One kind of file.

    Attributes:
        file: its name, in a folder with the files `beside` it.
        good: what is in it.
        form: how it is damaged; see `fuzz_damage.cases`. Empty: any of the files `beside` it is damaged.
        read: everything that placekit does with it; the folder is its argument.
    """

    name: str
    file: str
    good: bytes
    form: str
    read: Callable[[Path], object]
    beside: Mapping[str, bytes] = field(default_factory=dict)


@dataclass
class Count:
    """How cases ended."""

    cases: int = 0
    accepted: int = 0
    ours: int = 0
    other: int = 0
    longest_s: float = 0.0
    most_mib: float = 0.0
    wrong: list[str] = field(default_factory=list)


def kinds(folder: Path) -> list[Kind]:
    """Every kind, with good files made in `folder`."""
    graph, cluster = chain(6), machine(2)
    problem = Problem.of(graph, cluster)
    save_graph(graph, folder / "g.graph.npz")
    place(graph, cluster=cluster, policy="etf", run_dir=folder / "done", seed=1)
    diamond = Problem.of(fakes.diamond_graph(), cluster)
    policy = fakes.FakeLearnable()
    policy.build([problem], np.random.default_rng(0))
    save_policy(policy, folder, {"seed": 1})
    placement = problem.placement(np.arange(problem.g) % 2, np.arange(problem.g))
    save_placement(placement, problem, folder / "placement.json")
    JsonImporter.write(Program(graph, roofline(graph, cluster), cluster), folder / "p.json")
    sweep.begin(folder, ["-m", "policy=etf,heft", "run_dir=x"], ["policy=etf", "policy=heft"])
    stopped = _interrupted(folder)
    machine_data = cluster.model_dump(mode="json")
    costs = {"format": "placekit-costs", "version": 1, "kinds": {"gpu": {"operations": {"op0": 1.0, "op1": 0.5}}}}
    failed = {"type": "ValueError", "message": "no", "hint": "", "traceback": "Traceback ..."}
    params = {"mode": "MULTIRUN", "sweeper": {"params": {"seed": "1,2"}}}
    preset = {"defaults": ["annealing", {"override /workload": "mlp"}], "starts": 5, "hydra": params}
    costed = json.loads(placed_text(Program(graph, roofline(graph, cluster), cluster)))
    node = "node%d -- Conv2d(3, 64) -- forward_compute_time=1.5, backward_compute_time=2, activation_size=[8; 4], "
    profile = (
        "".join(f"{node % v}parameter_size=9 -- stage_id={v}\n" for v in range(3))
        + "\tnode0 -- node1\n\tnode1 -- node2\n"
    )
    good = {p.name: p.read_bytes() for at in (folder, folder / "done") for p in at.iterdir() if p.is_file()}

    def kind(
        name: str, file: str, form: str, read: Callable[[Path], object], content: Any = None, *beside: str
    ) -> Kind:
        text = None if content is None else (yaml.safe_dump if form == "yaml" else json.dumps)(content).encode()
        return Kind(name, file, good[file] if text is None else text, form, read, {b: good[b] for b in beside})

    return [
        kind("graph", "g.graph.npz", "npz", partial(_graph, cluster)),
        kind("costs", "c.json", "json", lambda at: with_measured(roofline(graph, cluster), graph, at / "c.json"), costs),
        kind("cluster", "c.yaml", "yaml", lambda at: load_cluster(at / "c.yaml").routes, machine_data),
        kind("machine cache", "cuda.json", "json",
             lambda at: read_json(at / "cuda.json", Cluster, error=ClusterError).routes, machine_data),
        kind("placement", "placement.json", "json", partial(_place, problem)),
        kind("result", "result.json", "json", _result),
        kind("certificate", "b.json", "json", partial(_certificate, diamond), certify(diamond).model_dump()),
        Kind("config", "config.json", stopped["config.json"], "json", _config),
        kind("sweep", "sweep.json", "json", _sweep),
        kind("failed", "failed.json", "json", _sweep, failed),
        Kind("checkpoint", "checkpoint.npz", stopped["checkpoint.npz"], "npz", load_saved),
        kind("policy.json", "policy.json", "json", partial(_trained, problem), None, "policy.safetensors"),
        kind("parameters", "policy.safetensors", "bytes", partial(_trained, problem), None, "policy.json"),
        kind("preset", "p.yaml", "yaml", lambda at: load_preset(at / "p.yaml"), preset),
        kind("program", "p.json", "json", partial(_import, "json", "p.json")),
        Kind("doppler", "p.txt", b"5\n0, 3,\n0, 0, 1,\n1, 2, 2,\n10,4,add\n5.5,4\n0,16,mul\n", "text",
             partial(_import, "doppler", "p.txt")),
        kind("msr", "m.json", "json", partial(_import, "msr", "m.json"), costed),
        Kind("pipedream", "q.txt", profile.encode(), "text", partial(_import, "pipedream", "q.txt")),
        kind("history", "history.csv", "text", lambda at: csv_log._begin(at / "history.csv", 50).close()),
        Kind("resume", "", b"", "", _resume, stopped),
    ]  # fmt: skip


class _Stop(Observer):
    """Ends a run after some rows, as Ctrl-C does."""

    def __init__(self) -> None:
        self.rows = 0

    def row(self, program: str, row: Mapping[str, float], ledger: object) -> None:
        """Count, and stop."""
        self.rows += 1
        if self.rows == 4:
            raise KeyboardInterrupt


def _interrupted(folder: Path) -> dict[str, bytes]:
    """The files of a run that was interrupted after it had written a checkpoint."""
    registry, run_dir = installed(), folder / "stopped"
    options = ["importer=file", f"importer.path={folder / 'g.graph.npz'}", "policy=annealing", "cluster=p100x4",
               "budget.evaluations=20000", "checkpoint_s=0", "seed=3"]  # fmt: skip
    config = validate({**compose(options, registry), "run_dir": str(run_dir)}, registry)
    with contextlib.suppress(KeyboardInterrupt):
        run(config, run_dir, registry, observer=_Stop())
    return {p.name: p.read_bytes() for p in run_dir.iterdir() if p.is_file()}


def _graph(cluster: Cluster, folder: Path) -> object:
    graph = load_graph(folder / "g.graph.npz")
    return Problem.of(graph, cluster, costs=roofline(graph, cluster))


def _place(problem: Problem, folder: Path) -> object:
    load_assignment(folder / "placement.json", problem.graph)
    return load_placement(folder / "placement.json", problem)


def _certificate(problem: Problem, folder: Path) -> object:
    return proven_s(problem, read_json(folder / "b.json", Certificate, error=CertificateError))


def _result(folder: Path) -> object:
    summary = load_summary(folder)
    show(rows([summary, summary.model_copy(update={"seed": 9, "config": {}})], installed()))
    return [(folder / p.directory / "x").exists() for p in summary.programs]


def _config(folder: Path) -> object:
    config = validate(load_config(folder).model_dump(mode="json"), installed())
    check_same(folder, config)
    return config


def _sweep(folder: Path) -> object:
    sweep.show_troubles(*sweep.troubles(folder))
    sweep.reason(folder)
    return sweep.arguments(folder) if (folder / "sweep.json").exists() else None


def _trained(problem: Problem, folder: Path) -> object:
    policy = fakes.FakeLearnable()
    policy.build([problem], np.random.default_rng(1))
    load_policy(policy, folder)
    return policy.rollout(problem, 2, np.random.default_rng(0))


def _import(importer: str, name: str, folder: Path) -> object:
    entry = installed().get("importer", importer)
    [program] = entry.build(entry.component.config.model_validate({"path": str(folder / name)})).load()
    return Problem.of(program.graph, program.cluster or machine(2), costs=program.costs)


def _resume(folder: Path) -> object:
    return run_command([f"resume={folder}"], installed())


def try_kind(kind: Kind, others: Mapping[str, bytes], seed: int, count: int) -> Count:
    """All cases of a kind."""
    rng, found = np.random.default_rng(seed), Count()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "work"
        whole = {**kind.beside, kind.file: kind.good} if kind.file else kind.beside
        watch = Watch()
        _try(Count(), kind, "", _filled(folder, whole), watch)  # imports what is imported late
        tried: Iterator[tuple[str, str, bytes]]
        if kind.form:
            foreign = ((f"the file of {other}", content) for other, content in others.items())
            own = cases(kind.form, kind.good, kind.name == "checkpoint", rng, count)
            tried = ((what, kind.file, content) for part in (foreign, own) for what, content in part)
        else:
            tried = _any_file(kind.beside, rng, count // 10)
        for what, file, content in tried:
            _try(
                found, kind, f"{kind.name}: {file}: {what:.90}", _filled(folder, {**kind.beside, file: content}), watch
            )
    return found


def _any_file(files: Mapping[str, bytes], rng: Generator, count: int) -> Iterator[tuple[str, str, bytes]]:
    """Cases in which any file of a folder is damaged."""
    for _ in range(count):
        file = sorted(files)[int(rng.integers(0, len(files)))]
        if not file.endswith(".json") or rng.random() < 0.4:
            what, content = other_bytes(files[file], rng)
            yield what, file, content
            continue
        data = json.loads(files[file])
        places = list(paths(data))
        path, value = places[int(rng.integers(0, len(places)))], WRONG[int(rng.integers(0, len(WRONG)))]
        changed = replaced(data, path, lambda parent, key, v=value: v)
        yield f"{'.'.join(map(str, path))} is {value!r:.30}", file, json.dumps(changed).encode()


def _filled(folder: Path, files: Mapping[str, bytes]) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def _try(found: Count, kind: Kind, what: str, folder: Path, watch: Watch) -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak is what it is now
    before, start, problem = _mib("VmRSS"), time.process_time(), ""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), watch.on(folder):
            kind.read(folder)
        found.accepted += 1
    except PlacekitError:
        found.ours += 1
    except (Exception, SystemExit) as e:
        found.other += 1
        frame = traceback.extract_tb(e.__traceback__)[-1]
        problem = f" {type(e).__name__}: {str(e)[:100]!r} ({Path(frame.filename).name}:{frame.lineno})"
    took_s, mib = time.process_time() - start, _mib("VmHWM") - before
    found.cases += 1
    found.longest_s, found.most_mib = max(found.longest_s, took_s), max(found.most_mib, mib)
    if done := watch.taken():
        problem += f" it did {done}"
    if took_s > MAX_S or mib > MAX_MIB:
        problem += f" {took_s:.1f} s, {mib:.0f} MiB"
    if problem:
        found.wrong.append(f"{what}:{problem}")


def _mib(key: str) -> float:
    return int(Path("/proc/self/status").read_text().partition(f"{key}:")[2].split()[0]) / 1024


def _in_a_process(work: Callable[[], Count]) -> Count:
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=lambda: send.send(work()))
    child.start()
    send.close()
    try:
        found: Count = receive.recv()
    except EOFError:
        found = Count(other=1, wrong=["the process ended"])
    child.join()
    return found


def _show(name: str, c: Count) -> None:
    print(f"{name:15}{c.cases:8}{c.accepted:10}{c.ours:11}{c.other:7}{c.longest_s:11.2f}{c.most_mib:10.0f}", flush=True)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=5000, help="of each kind, besides the famous ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", help="only this kind")
    given = parser.parse_args()
    total = Count()
    print(f"{'kind':15}{'cases':>8}{'accepted':>10}{'our error':>11}{'other':>7}{'longest s':>11}{'most MiB':>10}")
    with tempfile.TemporaryDirectory() as name:
        every = kinds(Path(name))
        for kind in every:
            if given.kind and kind.name not in given.kind:
                continue
            others = {k.name: k.good for k in every if k.form and k is not kind}
            found = _in_a_process(partial(try_kind, kind, others, given.seed, given.cases))
            _show(kind.name, found)
            print("".join(f"    {line}\n" for line in found.wrong[:SHOWN]), end="", flush=True)
            for key in ("cases", "accepted", "ours", "other", "wrong"):
                setattr(total, key, getattr(total, key) + getattr(found, key))
            total.longest_s, total.most_mib = max(total.longest_s, found.longest_s), max(total.most_mib, found.most_mib)
    _show("all", total)
    return 1 if total.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
