"""Several hosts, which `ray.cluster_utils.Cluster` makes on one machine."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from placekit_testing import fakes

pytest.importorskip("ray")

from placekit_ray.backend import RayBackend
from placekit_ray.cluster import machines

from placekit_core import BackendError, Grouping, Placements, Problem, place

pytestmark = pytest.mark.slow


@pytest.fixture
def hosts(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Starts a cluster whose hosts have these numbers of CPUs, in place of the Ray of the other tests."""
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with contextlib.ExitStack() as stack:

        def start(*cpus: int) -> tuple[Any, list[Any]]:
            cluster = Cluster(
                initialize_head=True,
                head_node_args={"num_cpus": cpus[0], "num_gpus": 0, "include_dashboard": False},
            )
            stack.callback(cluster.shutdown)
            ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
            stack.callback(ray.shutdown)
            nodes = [cluster.add_node(num_cpus=n, num_gpus=0) for n in cpus[1:]]
            cluster.wait_for_nodes()
            return cluster, nodes

        yield start


@pytest.mark.long
@pytest.mark.usefixtures("harmful")
def test_a_lost_host_loses_no_evaluation(hosts: Callable[..., Any], tmp_path: Path, processes: Any) -> None:
    """Its workers and controllers go on elsewhere, where there is room."""
    cluster, nodes = hosts(1, 2, 2)
    assert sorted(m["cpus"] for m in machines()) == [1, 2, 2]
    problem, lost = fakes.unequal(), []

    def lose() -> None:
        while len(processes("Controller")) < 2 or not any(p.name == "history.csv" for p in tmp_path.rglob("*.csv")):
            time.sleep(0.1)
        time.sleep(1)
        cluster.remove_node(nodes[0], allow_graceful=False)
        lost.append(nodes[0])

    thread = threading.Thread(target=lose, daemon=True)
    thread.start()
    inner = {"name": "reinforce", "samples": 6}
    trainer = {"name": "asynchronous", "inner": inner, "controllers": 2, "workers": 2, "least_s": 0.05}
    result = place(
        problem.graph, cluster=problem.cluster, policy="fake_learnable", backend="harmful", trainer=trainer,
        budget=600, seed=1, baselines=[], run_dir=tmp_path / "run",
    )  # fmt: skip
    thread.join(60)
    assert lost, "the run was too short"
    assert result.summary.evaluations == 600
    rows = (tmp_path / "run" / "history.csv").read_text().splitlines()[1:]
    assert int(rows[-1].split(",")[0]) == 600
    best = min(float(row.split(",")[2]) for row in rows)
    assert result.value_s == best


def _parents(pids: list[int]) -> set[int]:
    return {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in pids}


@pytest.mark.long
def test_one_that_measures_has_its_machine_to_itself(hosts: Callable[..., Any], processes: Any) -> None:
    pytest.importorskip("placekit_cuda.backend")
    importer = pytest.importorskip("placekit_einsum.importer").EinsumImporter
    hosts(2, 2)
    program = importer(program="chainmm", sizes={"n": 16}).load()[0]
    inner = {"name": "cpu", "devices": 2, "steps": 1}
    backend = RayBackend(inner=inner)
    assert (backend.simulated, backend.deterministic, backend.parallel) == (False, False, False)
    machine = backend.devices()
    assert machine is not None
    problem = Problem.of(program.graph, machine, Grouping.colocated(program.graph))
    placements = Placements.of(np.random.default_rng(0).integers(0, 2, (8, problem.g)))
    for _ in range(2):  # those of the first one have let go of their machines
        with contextlib.closing(backend.open(problem, program.executable)) as session:
            assert session.at_once == 2
            m = session.evaluate(placements)
            assert m.fits.all()
            assert np.isfinite(m.value_s).all()
            assert len(_parents(processes("Worker"))) == 2, "two machines"
            schedule = session.schedule(problem.placement(placements.device[0]))
            assert schedule.value_s > 0
            assert session.kernel() is None
            assert session.lower_bound() is None
    with pytest.raises(BackendError, match="3 measuring workers need as many machines, but only 2 of the 2 machines"):
        RayBackend(inner=inner, workers=3).open(problem, program.executable)
    with pytest.raises(BackendError, match="a worker cannot build"):
        backend.open(problem)
