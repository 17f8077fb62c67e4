"""`placekit profile`: the layers of a step, their bytes and seconds, and the file that it writes."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from placekit_torch import Step
from placekit_training import placekit_commands
from placekit_training.profiling import main, measure

from placekit_core import PHASES, ImporterError, PlacekitError, installed, place

NET = """
import torch
from placekit_torch import Step


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(torch.nn.Module):
    def __init__(self, width, depth, tied):
        super().__init__()
        self.words, self.place = torch.nn.Embedding(100, width), torch.nn.Parameter(torch.zeros(16, width))
        self.h = torch.nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.head = torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 100, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.place
        for block in self.h:
            x = block(x)
        return self.head(self.norm(x.flatten(0, 1)))


def make(batch=1, width=8, depth=2, tied=False, frozen=False):
    net, tokens = Net(width, depth, tied), torch.randint(0, 100, (batch, 16))
    if frozen:
        net.words.requires_grad_(False)
        net.place.requires_grad_(False)
        net.h[0].requires_grad_(False)
    return Step(net, tokens, torch.nn.functional.cross_entropy, tokens.flatten(), torch.optim.Adam)
"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def step(**arguments: Any) -> Step:
    code: dict[str, Any] = {}
    exec(NET, code)
    made: Step = code["make"](**arguments)
    return made


def columns(rows: list[dict[str, Any]], *names: str) -> dict[str, tuple[int, ...]]:
    """The bytes of each layer."""
    return {row["layer"]: tuple(row[f"{name}_bytes"] for name in names) for row in rows}


def test_bytes_of_each_layer() -> None:
    batch, width, tokens = 2, 8, 32
    rows = measure(step(batch=batch, width=width), "cpu", {})
    x = 4 * tokens * width
    block, counts = 4 * (8 * width * width + 4 * width), 4  # Adam counts its steps for each parameter
    assert columns(rows, "parameter", "gradient", "state") == {
        "before": (4 * 116 * width, 4 * 116 * width, 8 * 116 * width + 2 * counts),
        "h.0": (block, block, 2 * block + 3 * counts),
        "h.1": (block, block, 2 * block + 3 * counts),
        # scale, bias and two statistics of the norm, its counter; the head
        "after": (16 * width + 8 + 400 * width, 8 * width + 400 * width, 2 * (408 * width) + 3 * counts),
    }
    # tokens; a block's input and what relu has written; the norm's input, output, mean and deviation, the log-softmax,
    # and the weight of the mean loss
    after = 2 * x + 8 * width + 400 * tokens + 4
    assert columns(rows, "output", "saved") == {
        "before": (x, 8 * tokens), "h.0": (x, 5 * x), "h.1": (x, 5 * x), "after": (4, after),
    }  # fmt: skip


def test_shared_weights_count_for_the_first_layer() -> None:
    rows = measure(step(tied=True), "cpu", {})
    assert columns(rows, "gradient")["before"] == (4 * 116 * 8,)
    assert columns(rows, "gradient")["after"] == (8 * 8,)


def test_frozen_layers_have_no_backward_pass() -> None:
    rows = measure(step(frozen=True), "cpu", {})
    assert columns(rows, "gradient", "state", "saved")["h.0"] == (0, 0, 0)
    assert columns(rows, "parameter")["h.0"] == columns(rows, "parameter")["h.1"]
    assert [row["backward_s"] == 0 for row in rows] == [True, True, False, False]


CLOCK = SimpleNamespace(s=0.0)


class Work(torch.autograd.Function):
    """Takes `s` seconds forward and ten times as many backward, by a clock of the test."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, s: float) -> torch.Tensor:
        CLOCK.s += s
        ctx.s = s
        return x * weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        CLOCK.s += 10 * ctx.s
        return gradients[0], gradients[0].sum(), None


class Busy(torch.nn.Module):
    def __init__(self, s: float) -> None:
        super().__init__()
        self.s, self.weight = s, torch.nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = Work.apply(x, self.weight, self.s)
        return found


class BusyNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.h = Busy(7), Busy(4), torch.nn.ModuleList([Busy(1), Busy(2), Busy(3)])

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x)
        for layer in self.h:
            x = layer(x)
        return self.last(x)


class BusyOptimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        CLOCK.s += 100


def test_seconds_of_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placekit_training.profiling.time", SimpleNamespace(perf_counter=lambda: CLOCK.s))
    loss = Busy(5)
    rows = measure(Step(BusyNet(), torch.ones(3), lambda y: loss(y).sum(), (), BusyOptimizer), "cpu", {"kind": "mine"})
    assert [tuple(row[f"{phase}_s"] for phase in PHASES) for row in rows] == [
        (7, 70, 100), (1, 10, 100), (2, 20, 100), (3, 30, 100), (4 + 5, 40 + 50, 100),
    ]  # fmt: skip
    assert {row["kind"] for row in rows} == {"mine"}


def test_what_is_no_chain_of_layers() -> None:
    x = torch.zeros(4, 8)
    shared = torch.nn.Linear(8, 8)
    twice = torch.nn.Sequential(shared, torch.nn.ReLU(), shared)
    with pytest.raises(ImporterError, match="0 is called twice"):
        measure(Step(twice, x, torch.Tensor.sum), "cpu", {})
    with pytest.raises(ImporterError, match="Linear calls no module that is in a list"):
        measure(Step(shared, x, torch.Tensor.sum), "cpu", {})
    rows = measure(Step(torch.nn.Sequential(shared, torch.nn.ReLU()), x, torch.Tensor.sum), "cpu", {})  # no optimiser
    assert [row["layer"] for row in rows] == ["before", "0", "1", "after"]
    assert {row["state_bytes"] for row in rows} == {0}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The rows of `profile.csv`, which `placekit profile` has written into the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    assert main(["net.py:make", "batch=1,4", "width=64", "--kind", "mine"], installed()) == 0
    with open("profile.csv") as file:
        return list(csv.DictReader(file))


def test_importer_profile_reads_the_file(written: list[dict[str, str]]) -> None:
    assert [(row["layer"], row["microbatch"]) for row in written[3:5]] == [("after", "1"), ("before", "4")]
    importer = pytest.importorskip("placekit_formats.profile").ProfileImporter
    [program] = importer(path="profile.csv", microbatch=4).load()
    assert program.costs.kinds == ("mine",)
    seconds = [float(row[f"{phase}_s"]) for row in written[4:] for phase in PHASES]
    assert sorted(program.costs.op_s[program.graph.kernel, 0]) == sorted(seconds)


@pytest.mark.slow  # compiles backend pipeline, where it is not compiled yet
def test_stages_of_a_profile(written: list[dict[str, str]]) -> None:
    pytest.importorskip("placekit_formats")
    kind = {"type": "cpu", "flops_per_s": {"float32": 1e11}, "memory_bytes": 2**30, "memory_bytes_per_s": 1e10}
    machine = {"kinds": {"mine": kind}, "devices": [{"kind": "mine", "count": 2}]}
    machine["links"] = [{"mesh": "*", "bytes_per_s": 1e12}]
    backend = {"name": "pipeline", "microbatches": 16}
    result = place("profile.csv", microbatch=4, cluster=machine, policy="chain", backend=backend)
    once, step_s = (
        sum(float(row[f"{phase}_s"]) for row in written[4:] for phase in phases) for phases in (PHASES[2:], PHASES[:2])
    )
    assert 8 * step_s < result.value_s <= 16 * step_s + once  # two devices at best, one at worst


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    Path("bad.py").write_text(NET.replace("self.norm(x.flatten(0, 1))", "x[:, :, 0]"))
    for words, said in (
        (["net.py:make"], "the micro-batches to measure are not given"),
        (["net.py:make", "batch=0"], "the micro-batches to measure are not given"),
        (["net.py:make", "batch=1", "length=3"], "net.py:make takes no 'length'"),
        (["net.py:make", "batch=[1"], "batch=\\[1 is not a readable argument"),
        (["net.py:make", "batch=1", "width=a"], "net.make failed"),
        (["net.py:Net", "depth=1"], "the micro-batches to measure are not given"),
        (["bad.py:make", "batch=1"], "a step of bad.make failed: "),
        (["other.py:make", "batch=1"], "no file other.py"),
        (["make", "batch=1"], "no file make"),
    ):
        with pytest.raises(PlacekitError, match=said):
            main(words, installed())
    Path("profile.csv").write_text("")
    with pytest.raises(PlacekitError, match=r"profile\.csv exists"):
        main(["net.py:make", "batch=1"], installed())


def test_the_command() -> None:
    [command] = placekit_commands()
    assert (command.name, command.target) == ("profile", "placekit_training.profiling:main")
