"""Scripts of strategies, run by torchrun on CPUs: equal to one process with the whole batch. `peaks` measures their memory."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from placekit_torch import Step
from placekit_training.model import Model
from placekit_training.scripts import script
from placekit_training.steps import Steps
from placekit_training.strategy import Replica, Strategy

from placekit_core import Cluster, PlacekitError, Program, load_programs

NETWORKS = """
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, width, words, tied):
        super().__init__()
        self.embed, self.h = nn.Embedding(words, width), nn.ModuleList([Block(width) for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens, labels=None):
        x = self.embed(tokens)
        for layer in self.h:
            x = layer(x)
        y = self.head(self.norm(x))
        return y if labels is None else {"loss": F.cross_entropy(y.flatten(0, 1), labels.flatten()), "logits": y}


def gpt(batch, width=8, words=20, length=5):
    tokens, targets = torch.randint(0, words, (2, batch, length))
    loss = lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten())
    return SimpleNamespace(module=Decoder(width, words, False).double(), inputs=tokens, loss=loss, targets=targets,
                           optimizer=lambda p: torch.optim.AdamW(p, lr=0.01))


def tied(batch):
    tokens = torch.randint(0, 20, (batch, 5))
    return Decoder(8, 20, True).double(), {"labels": tokens.roll(1, 1), "tokens": tokens}


class Conv(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.conv, self.norm, self.time = nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(2, after), nn.Linear(4, after)

    def forward(self, x, t):
        return F.silu(self.norm(self.conv(x)) + self.time(t)[:, :, None, None])


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.times = nn.Embedding(10, 4)
        self.down, self.middle = nn.ModuleList([Conv(3, 8), Conv(8, 8)]), Conv(8, 8)
        self.up, self.out = nn.ModuleList([Conv(16, 8), Conv(16, 8)]), nn.Conv2d(8, 3, 1)

    def forward(self, image, step, noise, scale):
        t, x, skips = self.times(step), image + scale * noise, []
        for layer in self.down:
            skips.append(layer(x, t))
            x = F.avg_pool2d(skips[-1], 2)
        x = self.middle(x, t)
        for layer in self.up:
            x = layer(torch.cat([F.interpolate(x, scale_factor=2.0), skips.pop()], 1), t)
        return self.out(x), noise


def cnn(batch):
    image, noise, wanted = torch.randn(3, batch, 3, 8, 8, dtype=torch.float64)
    loss = lambda y, wanted, weight: (weight[:, None, None, None] * (y[0] - y[1] - wanted) ** 2).mean()
    return SimpleNamespace(module=UNet().double(), inputs=(image, torch.randint(0, 10, (batch,)), noise, 0.5), loss=loss,
                           targets=(wanted, torch.rand(batch, dtype=torch.float64)),
                           optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
"""

RUN = """
import gc, json, os, runpy, sys, weakref
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    \"\"\"Counts the bytes of live tensors, from the end of the first step on: it makes the optimizer's state.\"\"\"

    storages, bytes, peak = {}, 0, 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        self.add(tree_leaves(result))
        return result

    def add(self, values):
        for storage in [v.untyped_storage() for v in values if type(v) in (torch.Tensor, torch.nn.Parameter)]:
            if storage.device.type == "cpu" and storage._cdata not in self.storages:
                self.storages[storage._cdata] = storage.nbytes()
                self.bytes += storage.nbytes()
                weakref.finalize(storage, self.free, storage._cdata)
        self.peak = max(self.peak, self.bytes)

    def free(self, key):
        self.bytes -= self.storages.pop(key)

    def begin(self, *args):
        if not self.storages:
            self.add(gc.get_objects())
            self.__enter__()


live = Live()
register_optimizer_step_post_hook(live.begin)
space = runpy.run_path(sys.argv[1])
live.__exit__(None, None, None)
rank = os.environ.get("RANK", "0")
with open(f"bytes{rank}.json", "w") as f:
    json.dump({"peak": live.peak, "kept": live.bytes}, f)
named = space["parameters"] if "stages" in space else dict(space["module"].named_parameters())
torch.save({name: parameter.detach() for name, parameter in named.items()}, f"weights{rank}.pt")
"""


def run(folder: Path, strategy: Strategy, factory: str, **arguments: Any) -> tuple[list[float], list[dict[str, Any]]]:
    """Run a strategy's script with torchrun: the loss of each step, and the weights of each rank by name.

    The folder gets `bytes{rank}.json` for every rank; see `peaks`.
    """
    (folder / "networks.py").write_text(NETWORKS)
    (folder / "run.py").write_text(RUN)
    (folder / "train.py").write_text(script(strategy, f"networks.py:{factory}", NAMES, arguments))
    ranks = len(strategy.devices)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    done = subprocess.run(
        [sys.executable, *torchrun, "run.py", "train.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"^step \d+: loss (\S+),", done.stdout, re.MULTILINE)]
    return losses, [torch.load(folder / f"weights{rank}.pt") for rank in range(ranks)]


def peaks(folder: Path, strategy: Strategy, factory: str, **arguments: Any) -> list[int]:
    """[ranks] most bytes of live tensors on each rank in the steps after the first, which makes the optimizer's state.

    Memory that a kernel or gloo uses for itself is not counted.
    """
    run(folder, strategy, factory, **arguments)
    return [json.loads((folder / f"bytes{rank}.json").read_text())["peak"] for rank in range(len(strategy.devices))]


def whole_batch(factory: str, batch: int) -> tuple[list[float], dict[str, Any]]:
    """Losses of three steps of one process with the whole batch, and its weights after them."""
    space: dict[str, Any] = {}
    exec(NETWORKS, space)
    torch.manual_seed(0)
    step = space[factory](batch=batch)
    module, inputs = step if isinstance(step, tuple) else (step.module, step.inputs)
    optimizer = getattr(step, "optimizer", torch.optim.AdamW)(list(module.parameters()))
    losses = []
    for _ in range(3):
        if factory == "tied":
            loss = module(**inputs)["loss"]
        elif factory == "cnn":
            loss = step.loss(module(*inputs), *step.targets)
        else:
            loss = step.loss(module(inputs), step.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, dict(module.named_parameters())


NAMES = ["a100", "t4", "v100", "l4"]
ONE = Strategy((Replica((1,), (), 2, 3),), recompute=True)
UNEQUAL = Strategy((Replica((0,), (), 1, 2), Replica((1,), (), 2, 3)))
THREE = Strategy((Replica((0,), (), 3, 1), Replica((1,), (), 2, 1), Replica((2,), (), 2, 1)), "1f1b", True, True)
ONE_F_ONE_B = Strategy((Replica((0, 1), ("h.2",), 2, 4),))
GPIPE = Strategy((Replica((0, 1, 2), ("down.1", "up.0"), 2, 3),), "gpipe", recompute=True)
INTERLEAVED = Strategy((Replica((0, 1, 0, 1), ("down.1", "middle", "up.1"), 1, 4),), "interleaved")
ZERO_BUBBLE = Strategy((Replica((0, 1, 2), ("h.1", "h.3"), 1, 6),), "zero_bubble")
ZERO_BUBBLE_SKIPS = Strategy((Replica((0, 1), ("middle",), 2, 2),), "zero_bubble", recompute=True)
TWO_BY_TWO = Strategy((Replica((0, 1), ("h.2",), 1, 2), Replica((2, 3), ("h.2",), 2, 3)), shard_optimizer=True)
ASYMMETRIC = Strategy((Replica((0, 1, 2), ("h.1", "h.3"), 1, 2), Replica((3,), (), 2, 2)), shard_optimizer=True)
UNLIKE_CUTS = Strategy((Replica((0, 1), ("h.1",), 2, 2), Replica((2, 3), ("h.3",), 1, 4)), "gpipe", recompute=True)
EVERY = {name: value for name, value in list(globals().items()) if isinstance(value, Strategy)}


@pytest.mark.parametrize("name", EVERY)
def test_scripts_are_formatted(tmp_path: Path, name: str) -> None:
    text = script(EVERY[name], "nets/model.py:make", NAMES, {"width": 8})
    ast.parse(text)
    assert "make(batch=BATCH, width=8)" in text
    assert ("checkpoint" in text, "ZeroRedundancyOptimizer" in text) == (
        EVERY[name].recompute,
        EVERY[name].shard_optimizer,
    )
    (tmp_path / "train.py").write_text(text)
    settings = ["--config", str(Path(__file__).parents[4] / "pyproject.toml")]
    for command in (["format", "--check", *settings], ["check", "--ignore=E402", *settings]):
        done = subprocess.run([sys.executable, "-m", "ruff", *command, "train.py"], cwd=tmp_path, capture_output=True)
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        (Strategy((Replica((0, 1), ("h.1",), 1, 2),), "inference"), "no script for schedule 'inference'"),
        (Strategy((Replica((0, 1, 0, 1), ("h.1", "h.2", "h.3"), 1, 4),)), "one stage on each device"),
        (Strategy((Replica((0, 1, 1, 0), ("h.1", "h.2", "h.3"), 1, 4),), "interleaved"), "in turn"),
        (Strategy((Replica((0, 1), ("h.1",), 1, 5),), "zero_bubble"), "2 equal rounds, but there are 5 micro-batches"),
    ],
)
def test_what_torch_cannot_run_is_an_error(strategy: Strategy, says: str) -> None:
    with pytest.raises(PlacekitError, match=re.escape(says)):
        script(strategy, "model.py:make", NAMES)


@pytest.mark.parametrize("target", ["model:make", "model.py", "my-model.py:make"])
def test_a_target_is_a_function_in_a_file(target: str) -> None:
    with pytest.raises(PlacekitError, match=r"is not FILE\.py:FUNCTION"):
        script(ONE, target, NAMES)


@pytest.mark.parametrize(
    ("strategy", "processes", "says"),
    [
        (UNEQUAL, "1", "2 processes: torchrun --nproc-per-node 2 SCRIPT.py"),
        (UNEQUAL, "3", "2 processes: torchrun --nproc-per-node 2 SCRIPT.py"),
        (ONE, "2", "one process: python SCRIPT.py"),
    ],
)
def test_another_number_of_processes_is_an_error(strategy: Strategy, processes: str, says: str, tmp_path: Path) -> None:
    """`torchrun` tells the number in `WORLD_SIZE`."""
    (tmp_path / "networks.py").write_text(NETWORKS)
    (tmp_path / "train.py").write_text(script(strategy, "networks.py:cnn", NAMES))
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "WORLD_SIZE": processes},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (1, f"This script needs {says}\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "factory"),
    [
        ("INTERLEAVED", "cnn"),
        ("ASYMMETRIC", "tied"),
        *(
            pytest.param(name, factory, marks=pytest.mark.long)
            for name, factory in [
                ("ONE", "gpt"),
                ("THREE", "gpt"),
                ("ONE_F_ONE_B", "tied"),
                ("GPIPE", "cnn"),
                ("UNEQUAL", "cnn"),
                ("ZERO_BUBBLE", "gpt"),
                ("ZERO_BUBBLE_SKIPS", "cnn"),
                ("TWO_BY_TWO", "gpt"),
                ("UNLIKE_CUTS", "gpt"),
            ]
        ),
    ],
)
def test_a_step_equals_that_of_one_process(tmp_path: Path, name: str, factory: str) -> None:
    strategy = EVERY[name]
    losses, weights = run(tmp_path, strategy, factory)
    expected, whole = whole_batch(factory, strategy.batch)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert {*whole} == {name for rank in weights for name in rank}
    for rank in weights:
        torch.testing.assert_close(rank, {name: whole[name].detach() for name in rank}, rtol=1e-5, atol=1e-8)


@pytest.mark.slow
@pytest.mark.long
def test_a_rank_keeps_its_own_stages(tmp_path: Path) -> None:
    """Weights, the two states of AdamW, and a buffer for what each micro-batch receives."""
    _, weights = run(tmp_path, ONE_F_ONE_B, "gpt", width=64)
    [replica] = ONE_F_ONE_B.replicas
    received = replica.batch * 5 * 64 * 8
    for rank, own in enumerate(weights):
        kept = json.loads((tmp_path / f"bytes{rank}.json").read_text())["kept"]
        assert kept == pytest.approx(3 * sum(w.nbytes for w in own.values()) + received, rel=0.01)


SIZES = {"width": 64, "words": 256, "length": 64}
HALF = Replica((0, 1), ("h.2",), 4, 4)
MEMORY = {
    "one device": Strategy((Replica((0,), (), 4, 4),)),
    "replicas": Strategy((Replica((0,), (), 8, 1), Replica((1,), (), 8, 1)), shard_optimizer=True),
    "1f1b": Strategy((HALF,)),
    "1f1b, recomputed": Strategy((HALF,), recompute=True),
    "gpipe": Strategy((HALF,), "gpipe"),
    "zero bubble": Strategy((HALF,), "zero_bubble"),
    "interleaved": Strategy((Replica((0, 1, 0, 1), ("h.1", "h.2", "h.3"), 4, 4),), "interleaved"),
    "copies of stages": Strategy((Replica((0, 1), ("h.2",), 2, 4), Replica((2, 3), ("h.2",), 2, 4))),
}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", MEMORY)
def test_memory_is_within_a_tenth_of_the_prediction(name: str, tmp_path: Path) -> None:
    strategy = MEMORY[name]
    predicted = Steps(Model("gpt", imported), four_devices()).outcome(strategy).peak_bytes
    measured = peaks(tmp_path, strategy, "gpt", **SIZES)
    share = predicted[list(strategy.devices)] / measured
    assert ((share > 0.9) & (share < 1.1)).all(), share


def imported(batches: Sequence[int]) -> list[Program]:
    space: dict[str, Any] = {}
    exec(NETWORKS, space)
    made = [space["gpt"](rows, **SIZES) for rows in batches]
    return [load_programs(Step(s.module, s.inputs, s.loss, s.targets, s.optimizer))[0] for s in made]


def four_devices() -> Cluster:
    kind = {"flops_per_s": {"float32": 1e11}, "memory_bytes": 10**10, "memory_bytes_per_s": 1e10}
    link = {"mesh": "*", "bytes_per_s": 1e10}
    return Cluster.parse({"kinds": {"k": kind}, "devices": [{"kind": "k", "count": 4}], "links": [link]})
