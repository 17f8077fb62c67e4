"""Reaches a Ray cluster, compares what is installed on its machines, and starts workers there."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from placekit_core import BackendError, installed, report_progress, usable_cores
from placekit_ray.options import ClusterOptions
from placekit_ray.worker import Worker

_groups: dict[Any, PlacementGroup] = {}  # by the first of several workers that measure: the machines reserved for them
_addresses: dict[str, list[tuple[str, str, int]]] = {}  # by cluster: its head, and Ray's daemon here: name, host, port
_dead: dict[str, str] = {}  # by cluster: why
_looked_s = 0.0  # when `died` last looked, by `time.monotonic`
_LOOK_S = 1.0
_REACH_S = 5.0  # timeout of a connection
_START_S = 60.0
"""Seconds to wait for free machines."""


def connect(options: ClusterOptions, cpus: float = 0.0) -> None:
    """Connect this process to the cluster of `options`, or start one on this computer with at least `cpus`.

    A process that is connected already keeps its connection. Raises BackendError if it is connected to another cluster than
    `options.address`, or if the cluster cannot be reached.
    """
    if ray.is_initialized():
        if options.address not in (None, "auto"):
            _refuse_other(str(options.address), ray.get_runtime_context().gcs_address)
        return
    address = options.address or os.environ.get("RAY_ADDRESS") or None
    handler = signal.getsignal(signal.SIGTERM)
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    try:
        if address is None:
            ray.init("local", num_cpus=max(usable_cores(), math.ceil(cpus)), include_dashboard=False, **common)
        else:
            _refuse_unreachable(address)
            ray.init(address=address, **common)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as e:
        raise BackendError(
            f"the Ray cluster {address or 'of this computer'} cannot be used: {_first_line(e)}",
            "run `ray status` on its head to see whether it runs; all machines need the same versions of Python and Ray, and the"
            " same RAY_AUTH_MODE (`ray start` uses `token` if it is not set)",
        ) from e
    finally:  # Ray's handler would end the process at once, but a run has to write its results first
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def check_alive() -> None:
    """Raise BackendError if the cluster died. Call this while waiting for answers: Ray ends this process some time later."""
    if why := died():
        raise BackendError(why)


def died() -> str:
    """Why this process cannot use its cluster any more: its head or this computer's daemon is gone. Else an empty string."""
    global _looked_s
    if not ray.is_initialized():
        return ""
    context = ray.get_runtime_context()
    cluster: str = context.gcs_address
    if cluster not in _addresses:
        [own] = [node for node in _nodes() if node["NodeID"] == context.get_node_id()]
        daemon = "Ray's daemon (raylet) on this computer", own["NodeManagerAddress"], own["NodeManagerPort"]
        _addresses[cluster] = [("its head (gcs_server)", *_host_and_port(cluster)), daemon]
    if cluster not in _dead and time.monotonic() - _looked_s > _LOOK_S:
        _looked_s = time.monotonic()
        for what, host, port in _addresses[cluster]:
            try:
                socket.create_connection((host, port), timeout=_REACH_S).close()
            except ConnectionRefusedError:
                _dead[cluster] = f"the Ray cluster at {cluster} died: {what} is gone"
            except OSError:  # a slow network: Ray itself waits a minute for it
                pass
    return _dead.get(cluster, "")


def _refuse_other(address: str, connected: str) -> None:
    """Raise BackendError if `address` is not the cluster at `connected`, which this process uses."""

    def resolved(address: str) -> tuple[str, int]:
        host, port = _host_and_port(address)
        try:
            found = socket.gethostbyname(host)
        except OSError:
            return host, port
        own: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return own if found.startswith("127.") else found, port

    if resolved(address) != resolved(connected):
        raise BackendError(
            f"this process is connected to the Ray cluster at {connected}, not to the one at {address}",
            "leave the address out to use the connected cluster, or call ray.shutdown() first",
        )


def _host_and_port(address: str) -> tuple[str, int]:
    """Split HOST:PORT. Raises BackendError for anything else."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise BackendError(
            f"{address!r} is not the address of a Ray cluster", "give HOST:PORT, as `ray start` prints it, or auto"
        )
    return host, int(port)


def _refuse_unreachable(address: str) -> None:
    """Raise BackendError if nobody listens at HOST:PORT: Ray itself would try for a minute."""
    if address == "auto":
        return
    try:
        socket.create_connection(_host_and_port(address), timeout=_REACH_S).close()
    except OSError as e:
        raise BackendError(
            f"no Ray cluster answers at {address}: {e.strerror or e}",
            "start one with `ray start --head`, or leave the address out for this computer alone",
        ) from None


def _nodes() -> list[Any]:
    nodes: list[Any] = ray.nodes()  # type: ignore[no-untyped-call]
    return nodes


def machines() -> list[dict[str, Any]]:
    """The live machines of the cluster: `host`, `node` (Ray's id), `cpus` and `gpus`."""
    return [
        {
            "host": node["NodeManagerHostname"], "node": node["NodeID"],
            "cpus": node["Resources"].get("CPU", 0.0), "gpus": node["Resources"].get("GPU", 0.0),
        }
        for node in _nodes() if node["Alive"]
    ]  # fmt: skip


def description() -> str:
    """How many machines, CPUs and GPUs the cluster of this process or of RAY_ADDRESS has; empty without a live cluster."""
    if not ray.is_initialized():
        if not os.environ.get("RAY_ADDRESS"):
            return ""
        connect(ClusterOptions.model_validate({}))
    found = [] if died() else machines()
    if not found:
        return ""
    cpus, gpus = (sum(m[what] for m in found) for what in ("cpus", "gpus"))
    return f"{len(found)} machine{'' if len(found) == 1 else 's'}, {cpus:g} CPUs, {gpus:g} GPUs"


def check_versions(distributions: Sequence[str]) -> None:
    """Raise BackendError unless all machines have this Python and these versions of `distributions`."""

    def versions() -> dict[str, str]:  # nested, so that Ray sends its code: other machines may lack placekit
        import platform
        from importlib.metadata import distributions as all_distributions

        found = {d.metadata["Name"]: d.version for d in all_distributions()}
        return {"Python": platform.python_version(), **{name: found[name] for name in distributions if name in found}}

    here, probe = versions(), ray.remote(num_cpus=0)(versions)
    asked = [
        (m["host"], probe.options(scheduling_strategy=NodeAffinitySchedulingStrategy(m["node"], soft=False)).remote())
        for m in machines()
    ]
    for host, reference in asked:
        try:
            there = ray.get(reference, timeout=_START_S)
        except ray.exceptions.RayError as e:
            raise BackendError(
                f"machine {host} of the Ray cluster does not answer: {_first_line(e)}",
                "`ray status` on the cluster's head shows its machines",
            ) from None
        for name, version in here.items():
            if there.get(name) != version:
                what = f"has {name} {there[name]}" if name in there else f"has no {name}"
                raise BackendError(
                    f"machine {host} of the Ray cluster {what}; {name} is {version} here",
                    "install the same versions of placekit and its plugins on all machines",
                )


def distributions_of(components: Sequence[tuple[str, str]]) -> list[str]:
    """The distributions that provide the components (kind, name), and placekit-core and placekit-ray."""
    registry = installed()
    return sorted(
        {"placekit-core", "placekit-ray", *(registry.get(kind, name).distribution for kind, name in components)}
    )


_RESTARTS: dict[str, Any] = {"max_restarts": -1, "max_task_retries": 0}  # `Fleet` repeats the calls of a dead worker


def start_workers(count: int | None, options: ClusterOptions) -> list[Any]:
    """Start `count` workers that simulate, on any CPUs; None: as many as fit. Raises BackendError if they do not fit."""
    room = int(sum(m["cpus"] // options.worker_cpus for m in machines()))
    count = count or max(room, 1)
    if count > room:
        raise BackendError(
            f"{count} workers of {options.worker_cpus:g} CPUs do not fit on the Ray cluster, which has room for {room}",
            "use fewer workers, or a lower worker_cpus",
        )
    make = ray.remote(Worker).options(num_cpus=options.worker_cpus, **_RESTARTS)
    return [make.remote() for _ in range(count)]


def start_measuring(count: int | None, gpus: int) -> list[Any]:
    """Start `count` workers that measure, one per machine; None: on every machine that has `gpus` GPUs.

    Each reserves `gpus` GPUs of its machine, or all CPUs if `gpus` is 0. Raises BackendError if there are too few machines.
    """
    found = machines()
    able = [m for m in found if m["gpus"] >= gpus and m["cpus"]]
    count = count or len(able)
    if not count or count > len(able):
        needs = f"with {gpus} GPUs" if gpus else ""
        raise BackendError(
            f"{count or 1} measuring workers need as many machines {needs}".rstrip()
            + f", but only {len(able)} of the {len(found)} machines of the Ray cluster qualify",
            "use fewer workers, or add machines with `ray start --address=HEAD`",
        )
    cpus = min(m["cpus"] for m in able)
    bundle = {"CPU": 1.0, "GPU": float(gpus)} if gpus else {"CPU": cpus}
    group = placement_group([bundle] * count, strategy="STRICT_SPREAD")
    if not group.wait(_START_S):
        remove_placement_group(group)
        raise BackendError(
            f"fewer than {count} machines of the Ray cluster are free", "`ray status` shows what is in use"
        )
    workers = [
        ray.remote(Worker).options(
            num_cpus=bundle["CPU"], num_gpus=gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=i), **_RESTARTS,
        ).remote()
        for i in range(count)
    ]  # fmt: skip
    _groups[workers[0]] = group
    return workers


def end(actors: Sequence[Any]) -> None:
    """End actors; Ray does not restart them."""
    for actor in () if died() else actors:
        with contextlib.suppress(Exception):  # Ray may be gone itself
            ray.kill(actor, no_restart=True)
            if actor in _groups:
                remove_placement_group(_groups.pop(actor))


def leave_dead() -> None:
    """Disconnect this process from a cluster that died, so that it can use another one. That takes Ray up to half a minute."""
    if died():
        report_progress("waiting for Ray to end")
        ray.shutdown()


def _first_line(error: BaseException) -> str:
    """The first line of an exception's message."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
