"""From an imported program to one that can be placed: grouped, costed on its machine, and open on the backend."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from placekit_core.cluster import Cluster, load_cluster
from placekit_core.config import AUTO, NONE, RunConfig, Streams, conf_dir
from placekit_core.costs import CostTable, roofline, with_measured
from placekit_core.evaluator import Evaluator, Ledger
from placekit_core.grouping import Grouping
from placekit_core.interfaces import Backend, Grouper, Session
from placekit_core.problem import Problem, Program, Task

DEFAULT_CLUSTER = "p100x4"
DEFAULT_EVALUATIONS, DEFAULT_SECONDS = 10_000, 600.0


@dataclass(eq=False)
class OpenProgram:
    """One program on its way through the pipeline."""

    program: Program
    problem: Problem
    session: Session
    task: Task
    directory: Path

    @property
    def name(self) -> str:
        return self.program.graph.name


def choose_cluster(config: RunConfig, program: Program, backend: Backend | None) -> Cluster:
    """The cluster that `config` names; `auto` is the program's own, else what the backend sees, if any, else p100x4."""
    data = dict(config.cluster)
    if data.get("name") == "file":
        return load_cluster(data.get("path", ""))
    if data != {"name": AUTO}:
        return Cluster.parse(data, f"cluster {data.get('name', '')!r}")
    own = program.cluster or (backend and backend.devices())
    return own or load_cluster(conf_dir() / "cluster" / f"{DEFAULT_CLUSTER}.yaml")


def make_problem(
    config: RunConfig, program: Program, cluster: Cluster, grouper: Grouper, level: str, streams: Streams
) -> Problem:
    """Group the program and cost it on `cluster`."""
    graph = program.graph
    grouping = Grouping.colocated(graph) if level == "operation" else grouper.group(graph, streams("grouper"))
    return Problem(graph, grouping, cluster, make_costs(config, program, cluster))


def make_costs(config: RunConfig, program: Program, cluster: Cluster) -> CostTable:
    """The program's own costs, else the roofline; measured ones in their place where `config` names a file."""
    costs = program.costs or roofline(program.graph, cluster)
    if config.costs.file is not None:
        costs = with_measured(costs, program.graph, config.costs.file)
    return costs


def fingerprints(config: RunConfig, programs: Sequence[Program]) -> list[str]:
    """What a run of `config` on these programs would place, as `ProgramSummary.problem_fingerprint`."""
    grouper, backend, streams = config.build("grouper"), config.build("backend"), Streams(config.seed)
    level = config.component("policy")[0].load().level
    return [
        make_problem(config, p, choose_cluster(config, p, backend), grouper, level, streams).fingerprint
        for p in programs
    ]


def _ledger(config: RunConfig, backend: Backend) -> Ledger:
    evaluations, seconds = config.budget.evaluations, config.budget.seconds
    if evaluations is None and seconds is None:
        return Ledger(DEFAULT_EVALUATIONS) if backend.simulated else Ledger(seconds=DEFAULT_SECONDS)
    return Ledger(evaluations, seconds)


def open_programs(
    config: RunConfig,
    programs: Sequence[Program],
    grouper: Grouper,
    level: str,
    backend: Backend,
    learns: bool,
    streams: Streams,
    run_dir: Path,
    stack: contextlib.ExitStack,
    on_row: Callable[[OpenProgram, Mapping[str, float]], None],
    proxy: Backend | None = None,
) -> list[OpenProgram]:
    """Group and cost every program, and open the backend on it; `stack` closes the sessions.

    The programs that a learnable policy is trained on share one budget, also on the proxy; every other one has its own.
    `on_row` is called for each new row of a history.
    """
    shared, shared_proxy = _ledger(config, backend), Ledger(config.budget.proxy_evaluations)
    searches = []
    for i, program in enumerate(programs):
        cluster = choose_cluster(config, program, backend)
        problem = make_problem(config, program, cluster, grouper, level, streams)
        name = re.sub(r"[^\w.\-]+", "_", program.graph.name).lstrip(".")
        directory = run_dir if len(programs) == 1 else run_dir / "programs" / f"{i:03d}-{name}"
        trained = learns and program.split != "test"
        ledger = shared if trained else _ledger(config, backend)
        proxy_ledger = shared_proxy if trained else Ledger(config.budget.proxy_evaluations)
        search = _open(config, program, problem, backend, proxy, ledger, proxy_ledger, directory, stack, on_row)
        if level == "operation" and grouper.name != NONE:
            search.task.evaluate.note(
                f"grouper {grouper.name!r} is not used: the policy groups the operations by itself"
            )
        searches.append(search)
    return searches


def _open(
    config: RunConfig,
    program: Program,
    problem: Problem,
    backend: Backend,
    given_proxy: Backend | None,
    ledger: Ledger,
    proxy_ledger: Ledger,
    directory: Path,
    stack: contextlib.ExitStack,
    on_row: Callable[[OpenProgram, Mapping[str, float]], None],
) -> OpenProgram:
    """Open the backend on one problem, with the evaluators that count."""

    def open_on(chosen: Backend) -> Session:
        session = chosen.open(problem, program.executable)
        stack.callback(session.close)
        return session

    def open_proxy() -> Evaluator:
        proxy: Backend = given_proxy or config.build("proxy")
        return Evaluator(
            problem,
            open_on(proxy),
            proxy_ledger,
            deterministic=proxy.deterministic,
            failing_signal_s=config.failing_signal_s,
            objective=proxy.objective,
        )

    session = open_on(backend)
    evaluator = Evaluator(
        problem,
        session,
        ledger,
        deterministic=backend.deterministic,
        failing_signal_s=config.failing_signal_s,
        on_row=lambda row: on_row(search, row),
        objective=backend.objective,
    )
    proxy = None if given_proxy is None and config.proxy == config.backend else open_proxy
    task = Task(
        problem, evaluator, proxy, program.executable, config.budget.proxy_evaluations, measures=not backend.simulated
    )
    search = OpenProgram(program, problem, session, task, directory)
    return search
