"""`placekit_runtimes.dispatch`: on this computer's CPU, on machines that are not here, and with measurements that are faked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from placekit_runtimes.accelerate import dispatch as dispatching
from placekit_runtimes.accelerate.dispatch import dispatch

from placekit_core import Cluster, PlacekitError


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(self.norm(x))  # type: ignore[no-any-return]


class Net(torch.nn.Module):
    _no_split_modules = ("Block",)

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = torch.nn.Linear(4, 8), torch.nn.ModuleList([Block() for _ in range(6)])
        self.head = torch.nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


def machine(gpus: int, cpus: int = 0, memory_bytes: int = 2000) -> Cluster:
    """GPUs that are so small that the network, 3.5 KB, does not fit on one."""
    kind = {"flops_per_s": {"float32": 1e9}, "memory_bytes_per_s": 1e9}
    kinds: dict[str, Any] = {
        "gpu": {**kind, "memory_bytes": memory_bytes},
        "cpu": {"type": "cpu", **kind, "memory_bytes": 10**9},
    }
    devices = [{"kind": k, "count": n} for k, n in (("gpu", gpus), ("cpu", cpus)) if n]
    links = [{"mesh": "*", "bytes_per_s": 1e9}] if gpus + cpus > 1 else []
    return Cluster.parse({"name": "machine", "kinds": kinds, "devices": devices, "links": links})


X = torch.ones(3, 4)


def test_a_single_device_is_said() -> None:
    net = Net()
    expected = net(X)
    model, report = dispatch(net, X, cluster=machine(0, 1), turns=1, calls=1)
    assert model is net
    assert torch.equal(model(X), expected)
    assert report.dispatched
    assert "the whole model is on cpu:0, the only device" in str(report)
    [only] = report.candidates.values()
    assert len(only.measured_s) == 1
    assert 0 < only.measured_s[0] < 10
    assert only.simulated_s is not None


def test_gpus_that_are_not_here_are_simulated_only() -> None:
    net = Net()
    model, report = dispatch(net, X, cluster=machine(2))
    assert model is net
    assert not hasattr(net, "hf_device_map")
    assert not report.dispatched
    assert "not dispatched: this computer has no GPU 0" in report.note
    ours, default = report.candidates["placekit"], report.candidates["accelerate"]
    assert ours.simulated_s is not None
    assert default.simulated_s is not None
    assert ours.measured_s == default.measured_s == ()
    assert report.chosen == min(report.candidates, key=lambda n: report.candidates[n].simulated_s or 0)
    assert not any(key.count(".") > 1 for key in ours.devices), "blocks are whole"
    _, one = dispatch(net, X, cluster=machine(1, memory_bytes=10**6))
    assert "this computer lacks gpu:0" in one.note


class Fake(dispatching.Here):
    """Two GPUs that take the seconds in `takes`, the default map first in every turn's order of calls."""

    takes: ClassVar[Mapping[str, Any]] = {}
    turns: ClassVar[list[str]] = []

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.gpus = 2
        self.turns.clear()
        self.now = ""

    def put(self, devices: Mapping[str, Any]) -> None:
        self.now = "placekit" if devices == MAPS["placekit"] else "accelerate"

    def seconds(self) -> float:
        self.turns.append(self.now)
        value = self.takes[self.now]
        if isinstance(value, Exception):
            raise value
        return float(value)


MAPS = {"placekit": {"": 0}, "accelerate": {"embed": 0, "layers": 1, "head": 1}}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    pytest.importorskip("accelerate")
    monkeypatch.setattr(dispatching, "Here", Fake)
    simulate = dispatching._simulated
    monkeypatch.setattr(dispatching, "_default", lambda _s, _o, _h, problem: simulate(problem, MAPS["accelerate"]))
    return Fake


@pytest.mark.parametrize(("ours", "default", "chosen"), [(1.0, 2.0, "placekit"), (2.0, 1.0, "accelerate")])
def test_the_faster_map_stays(fake: type[Fake], ours: float, default: float, chosen: str) -> None:
    fake.takes = {"placekit": ours, "accelerate": default}
    _, report = dispatch(Net(), X, cluster=machine(2, memory_bytes=10**6), policy="single_gpu", turns=3)
    assert fake.turns == ["placekit", "accelerate"] * 3, "in turns"
    assert (report.chosen, report.dispatched) == (chosen, True)
    assert report.candidates[chosen].measured_s == (1.0,) * 3
    assert f"dispatched by the map of {chosen}: " in str(report)


def test_a_map_that_fails_is_not_measured_again(fake: type[Fake]) -> None:
    fake.takes = {"placekit": torch.cuda.OutOfMemoryError("CUDA out of memory\nmore"), "accelerate": 1.0}
    _, report = dispatch(Net(), X, cluster=machine(2, memory_bytes=10**6), policy="single_gpu")
    assert fake.turns == ["placekit", *["accelerate"] * 3]
    assert report.chosen == "accelerate"
    assert report.candidates["placekit"].why == "failed: CUDA out of memory"
    fake.takes = dict.fromkeys(fake.takes, RuntimeError("broken"))
    with pytest.raises(PlacekitError, match="the map of placekit failed: broken; the map of accelerate failed: broken"):
        dispatch(Net(), X, cluster=machine(2, memory_bytes=10**6), policy="single_gpu")


def test_a_model_goes_from_map_to_map(tmp_path: Any) -> None:
    pytest.importorskip("accelerate")
    net = Net()
    expected = net(X)
    here = dispatching.Here(net, X, 1)
    for devices in ({"": "cpu"}, {"embed": "cpu", "layers": "cpu", "head": "cpu"}, {"": "cpu"}):
        here.put(devices)
        assert here.seconds() > 0
        assert torch.equal(net(X), expected)
        assert net.hf_device_map == devices
