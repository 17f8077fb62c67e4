"""Options, and one clear error for each plain case; no Ray is started."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from placekit_testing import fakes

pytest.importorskip("ray")

import ray
from placekit_ray import asynchronous, cluster
from placekit_ray.asynchronous import Asynchronous
from placekit_ray.backend import RayBackend, RaySession, recipe_of
from placekit_ray.cluster import (
    check_alive,
    check_versions,
    connect,
    died,
    distributions_of,
    start_measuring,
    start_workers,
)
from placekit_ray.fleet import Fleet
from placekit_ray.options import AsynchronousOptions, ClusterOptions

from placekit_core import BackendError, Baseline, ConfigError, PlacekitError, PluginError, Task, place

HARMFUL = {"name": "harmful"}


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is not connected, and starts nothing."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda *args, **more: pytest.fail("Ray is started"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_the_inner_trainer_may_be_a_name() -> None:
    assert AsynchronousOptions(inner="ppo").inner == {"name": "ppo"}
    assert AsynchronousOptions(inner={"name": "ppo", "samples": 3}).inner == {"name": "ppo", "samples": 3}
    assert AsynchronousOptions().inner is None


def closed_port() -> int:
    """The number of a port where nobody listens."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_an_address_where_nobody_listens() -> None:
    address, began = f"127.0.0.1:{closed_port()}", time.monotonic()
    with pytest.raises(BackendError, match=f"no Ray cluster answers at {address}") as caught:
        connect(ClusterOptions(address=address))
    assert "ray start --head" in caught.value.hint
    assert time.monotonic() - began < 10


def test_a_connection_to_another_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has one connection: the option `address` must not be ignored because there is one already."""
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="10.0.0.1:6379"))
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.1")
    for address in (None, "auto", "10.0.0.1:6379", "127.0.0.1:6379", "localhost:6379"):
        connect(ClusterOptions(address=address))
    for address in ("10.0.0.2:6379", "10.0.0.1:6380", "no-such-host.invalid:6379"):
        with pytest.raises(BackendError, match=rf"at 10\.0\.0\.1:6379, not to the one at {address}") as caught:
            connect(ClusterOptions(address=address))
        assert "ray.shutdown()" in caught.value.hint
    with pytest.raises(BackendError, match="not the address of a Ray cluster"):
        connect(ClusterOptions(address="head"))


@pytest.mark.usefixtures("harmful")
def test_a_run_reports_that_nobody_answers() -> None:
    problem, address = fakes.diamond(), f"127.0.0.1:{closed_port()}"
    for options in (
        {"parallel": {"name": "ray", "address": address}},
        {"trainer": {"name": "asynchronous", "address": address}, "policy": "fake_learnable"},
    ):
        with pytest.raises(BackendError, match="no Ray cluster answers"):
            place(problem.graph, cluster=problem.cluster, backend="harmful", budget=10, baselines=[], **options)


@pytest.mark.parametrize("address", ["127.0.0.1", "head", "head:port", ":6379"])
def test_an_address_without_a_port(address: str) -> None:
    with pytest.raises(BackendError, match=f"'{address}' is not the address of a Ray cluster") as caught:
        connect(ClusterOptions(address=address))
    assert "HOST:PORT" in caught.value.hint


def test_the_message_of_ray_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **more: Any) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 1.0")

    monkeypatch.setattr(ray, "init", fails)
    with pytest.raises(BackendError, match="the Ray cluster auto cannot be used: Version mismatch") as caught:
        connect(ClusterOptions(address="auto"))
    assert "all machines need the same versions of Python and Ray" in caught.value.hint


class OneMachine:
    """A Ray of one machine, on which functions run at once; `found` changes what they find."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, found: Callable[[dict[str, str]], dict[str, str]]) -> None:
        def remote(**more: Any) -> Any:
            def wrapped(function: Callable[[], dict[str, str]]) -> Any:
                call = SimpleNamespace(remote=lambda: found(function()))
                return SimpleNamespace(options=lambda **more: call)

            return wrapped

        fake = SimpleNamespace(remote=remote, get=lambda answer, timeout: answer, exceptions=ray.exceptions)
        monkeypatch.setattr(cluster, "ray", fake)
        monkeypatch.setattr(cluster, "machines", lambda: [{"host": "far", "node": "0" * 56, "cpus": 4.0, "gpus": 0.0}])


def test_versions_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    names = distributions_of([("backend", "simulator"), ("trainer", "reinforce")])
    assert names == ["placekit-core", "placekit-learn", "placekit-ray", "placekit-sim"]
    OneMachine(monkeypatch, lambda found: found)
    check_versions(names)

    OneMachine(monkeypatch, lambda found: {**found, "placekit-sim": "0.0.9"})
    with pytest.raises(BackendError, match=r"machine far of the Ray cluster has placekit-sim 0\.0\.9; placekit-sim is"):
        check_versions(names)
    OneMachine(monkeypatch, lambda found: {k: v for k, v in found.items() if k != "placekit-learn"})
    with pytest.raises(BackendError, match="machine far of the Ray cluster has no placekit-learn") as caught:
        check_versions(names)
    assert "install the same versions" in caught.value.hint
    OneMachine(monkeypatch, lambda found: {**found, "Python": "3.9.1"})
    with pytest.raises(BackendError, match=r"has Python 3\.9\.1; Python is 3\."):
        check_versions(names)


def test_too_few_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [{"host": "a", "node": "1", "cpus": 4.0, "gpus": 1.0}, {"host": "b", "node": "2", "cpus": 4.0, "gpus": 0.0}]
    monkeypatch.setattr(cluster, "machines", lambda: found)
    with pytest.raises(BackendError, match="9 workers of 1 CPUs do not fit on the Ray cluster, which has room for 8"):
        start_workers(9, ClusterOptions())
    with pytest.raises(BackendError, match=r"5 workers of 1\.5 CPUs .* room for 4"):
        start_workers(5, ClusterOptions(worker_cpus=1.5))
    with pytest.raises(BackendError, match="3 measuring workers need as many machines, but only 2 of the 2 machines"):
        start_measuring(3, gpus=0)
    with pytest.raises(
        BackendError, match=r"2 measuring workers need as many machines with 1 GPUs, but only 1 of the 2 machines"
    ):
        start_measuring(2, gpus=1)
    with pytest.raises(
        BackendError, match=r"1 measuring workers need as many machines with 4 GPUs, but only 0 of the 2 machines"
    ):
        start_measuring(None, gpus=4)


def test_the_backend_evaluates_on_another_one() -> None:
    with pytest.raises(ConfigError, match="on another backend, not on itself"):
        RayBackend(inner={"name": "ray"})
    with pytest.raises(PluginError, match="no backend named 'simulater'"):
        RayBackend(inner={"name": "simulater"})
    with pytest.raises(ConfigError, match=r"backend\.inner\.colour"):
        RayBackend(inner={"name": "simulator", "colour": 1})


@pytest.mark.usefixtures("harmful")
def test_a_backend_for_one_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import placekit_harmful

    monkeypatch.setattr(placekit_harmful.Harmful, "parallel", False)
    with pytest.raises(ConfigError, match="backend 'harmful' cannot evaluate in several processes at once"):
        RayBackend(inner=HARMFUL)


def test_a_program_that_no_worker_can_build() -> None:
    problem = fakes.diamond()
    assert recipe_of(problem, None, RayBackend(inner={"name": "simulator"}).inner) is None
    inner: Any = SimpleNamespace(simulated=False)
    for executable in (None, SimpleNamespace(recipe={})):
        with pytest.raises(BackendError, match="a worker cannot build 'diamond'"):
            recipe_of(problem, executable, inner)  # type: ignore[arg-type]
    recipe = {"importer": "einsum", "options": {"program": "chainmm"}}
    assert recipe_of(problem, SimpleNamespace(recipe=recipe), inner) == recipe  # type: ignore[arg-type]


@pytest.fixture
def task(harmful: None) -> Task:
    return replace(fakes.fake_task(fakes.diamond()), backend=HARMFUL)


def about_run(task: Task, policy: Any = None, **options: Any) -> dict[str, Any]:
    """The data for controllers. Raises ConfigError if the trainer refuses the task."""
    trainer, policy = Asynchronous(**options), policy or fakes.FakeLearnable()
    trainer._refuse_backend(task)
    return trainer._data_for_controllers(policy, trainer._inner(policy, [task]), [task], [1, 2])


def test_data_for_controllers(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "put", lambda value: value)
    about = about_run(task, inner={"name": "ppo", "samples": 3}, least_s=2.5, timeout_s=9.0)
    assert about["policy"]["name"] == "fake_learnable"
    assert (about["trainer"]["name"], about["trainer"]["samples"]) == ("ppo", 3)
    assert about["timeout_s"] == 9
    assert about["failing_signal_s"] == [task.evaluate.failing_signal_s]
    [opened] = about["opened"]
    assert (opened["backend"]["name"], opened["recipe"], opened["least_s"]) == ("harmful", None, 2.5)
    assert opened["problem"]["fingerprint"] == about["problems"][0]["fingerprint"] == task.problem.fingerprint
    assert about_run(task)["trainer"]["name"] == "reinforce", "the policy's own trainer"


def test_a_policy_that_other_processes_cannot_build(task: Task) -> None:
    class Own(fakes.FakeLearnable):
        pass

    class Unknown(fakes.FakeLearnable):
        name = "unknown"

    for policy in (Own(), Unknown()):
        with pytest.raises(ConfigError, match=f"other processes cannot build policy '{policy.name}'"):
            about_run(task, policy)


def test_a_backend_that_other_processes_cannot_build(task: Task) -> None:
    with pytest.raises(ConfigError, match="other processes cannot build the backend"):
        about_run(replace(task, backend={}))


def test_the_baselines_are_those_of_the_inner_backend() -> None:
    class Inner(fakes.FakeSession):
        def baselines(self) -> list[Baseline]:
            return [Baseline(policy="equal_stages", value_s=1.0, fits=True)]

    session = object.__new__(RaySession)
    session.local = Inner(fakes.diamond())
    assert [b.policy for b in session.baselines()] == ["equal_stages"]
    session.local = None  # the inner backend measures
    assert session.baselines() == ()


def test_backends_that_controllers_cannot_use_are_refused(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    import placekit_harmful

    task.evaluate.session = object.__new__(RaySession)
    with pytest.raises(ConfigError, match="starts its own workers"):
        about_run(replace(task, backend={"name": "ray", "inner": HARMFUL}))
    monkeypatch.setattr(placekit_harmful.Harmful, "parallel", False)
    with pytest.raises(ConfigError, match="in several processes"):
        about_run(replace(task, evaluate=fakes.fake_task(fakes.diamond()).evaluate))
    monkeypatch.setattr(placekit_harmful.Harmful, "simulated", False)
    with pytest.raises(ConfigError, match="backend 'harmful' measures") as caught:
        about_run(task)
    assert "parallel=ray" in caught.value.hint


def test_a_proxy_is_refused(task: Task) -> None:
    proxied = replace(task, open_proxy=lambda: fakes.fake_task(fakes.diamond()).evaluate, proxy_evaluations=5)
    with pytest.raises(ConfigError, match="does not train on a proxy first"):
        about_run(proxied)


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        ("asynchronous", "cannot share the updates of trainer 'asynchronous'"),
        ("reinforse", "no trainer named 'reinforse'"),
        ({"name": "reinforce", "colour": 1}, r"trainer\.inner\.colour"),
        ({"samples": 3}, "trainer"),
    ],
)
def test_an_inner_trainer_that_will_not_do(task: Task, inner: Any, message: str) -> None:
    with pytest.raises(PlacekitError, match=message):
        about_run(task, inner=inner)


@pytest.mark.parametrize(("gone", "message"), [(0, r"its head \(gcs_server\)"), (1, "Ray's daemon")])
def test_a_cluster_that_dies(monkeypatch: pytest.MonkeyPatch, gone: int, message: str) -> None:
    """Waiting raises an error in time: Ray ends the process soon afterwards, and the result would not be written."""
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(cluster, "_LOOK_S", -1.0)
    with socket.create_server(("127.0.0.1", 0)) as head, socket.create_server(("127.0.0.1", 0)) as daemon:
        address, port = f"127.0.0.1:{head.getsockname()[1]}", daemon.getsockname()[1]
        context = SimpleNamespace(gcs_address=address, get_node_id=lambda: "own")
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        own = {"NodeID": "own", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port}
        monkeypatch.setattr(ray, "nodes", lambda: [own, {**own, "NodeID": "other", "NodeManagerPort": 1}])
        check_alive()
        (head, daemon)[gone].close()
        monkeypatch.setattr(ray, "nodes", lambda: pytest.fail("it waits a minute for an answer"))
        for _ in range(2):
            with pytest.raises(BackendError, match=f"the Ray cluster at {address} died: {message}"):
                check_alive()
        assert cluster.description() == ""
        ended: list[bool] = []
        monkeypatch.setattr(ray, "shutdown", lambda: ended.append(True))
        cluster.end([object()])
        assert not ended, "a run has still to write its results"
        cluster.leave_dead()
        assert ended
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    assert died() == ""


def test_whoever_waits_asks_whether_the_cluster_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "died", lambda: "the Ray cluster died")
    for wait in (lambda: asynchronous._unfinished([]), lambda: Fleet([])._collect_ready(block=False)):
        with pytest.raises(BackendError, match=r"^the Ray cluster died$"):
            wait()
