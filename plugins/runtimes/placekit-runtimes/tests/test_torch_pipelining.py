"""Stages from `--format pipeline`, built by torch.distributed.pipelining and run on two processes: equal to the whole model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from placekit_runtimes import pipeline

from placekit_core import Cluster, Problem, load_programs

pytest.importorskip("torch.distributed.pipelining")

NETWORKS = """
import torch
from torch import nn

BATCH, PARTS = 8, 4


class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 32), nn.Linear(32, width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, dim=-1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers = nn.Embedding(20, 16), nn.ModuleList([Block() for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 20)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def mlp():
    layers = [nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(6)]
    return nn.Sequential(*layers), torch.randn(BATCH, 6), torch.randn(BATCH, 6), nn.functional.mse_loss


def decoder():
    tokens = torch.randint(0, 20, (BATCH, 5))
    loss = lambda y, t: nn.functional.cross_entropy(y.flatten(0, 1), t.flatten())
    return Decoder(), tokens, torch.randint(0, 20, (BATCH, 5)), loss


def made(name):
    torch.manual_seed(0)
    return {"mlp": mlp, "decoder": decoder}[name]()
"""

RANK = """
import json, sys, warnings
import torch
import torch.distributed as dist
from networks import PARTS, made
from torch.distributed import pipelining

warnings.simplefilter("ignore")
name, schedule, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[4], rank=rank, world_size=2)
network, x, y, loss = made(name)
whole, *_ = made(name)
with open("pipeline.json") as f:
    text = json.load(f)
spec = {module: pipelining.SplitPoint[point.partition(".")[2]] for module, point in text["split_spec"].items()}
pipe = pipelining.pipeline(network, (x[: len(x) // PARTS],), split_spec=spec)
stage = pipe.build_stage(rank, torch.device("cpu"))
run = getattr(pipelining, schedule)(stage, PARTS, loss_fn=None if schedule == "inference" else loss)
losses = []
out = run.step(*([x] if rank == 0 else []), **({"target": y, "losses": losses} if rank == 1 else {}))

expected, parts = whole(x), []
for a, b in zip(x.chunk(PARTS), y.chunk(PARTS)):
    parts.append(loss(whole(a), b))
(sum(parts) / PARTS).backward()
gradients = {key: p.grad for key, p in whole.named_parameters()}
own = dict(stage.submod.named_parameters())
torch.testing.assert_close({k: p.grad for k, p in own.items()}, {k: gradients[k] for k in own})
if rank == 1:
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(torch.stack(losses), torch.stack(parts))
print(json.dumps(sorted(own)))
"""

TWO = Cluster.parse(
    {
        "name": "two",
        "kinds": {"gpu": {"flops_per_s": {"float32": 1e12}, "memory_bytes": 10**9, "memory_bytes_per_s": 1e11}},
        "devices": [{"kind": "gpu", "count": 2}],
        "links": [{"mesh": "*", "bytes_per_s": 1e10}],
    }
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "first", "schedule"),
    [("decoder", ("embed", "layers.0", "layers.1"), "Schedule1F1B")],
)
def test_two_processes_run_the_stages(tmp_path: Path, name: str, first: tuple[str, ...], schedule: str) -> None:
    (tmp_path / "networks.py").write_text(NETWORKS)
    (tmp_path / "rank.py").write_text(RANK)
    space: dict[str, Any] = {}
    exec(NETWORKS, space)
    network, x, y, loss = space["made"](name)
    [program] = load_programs(network, inputs=x, targets=y, loss=loss, optimizer=torch.optim.SGD)
    problem = Problem.of(program.graph, TWO)
    module = program.graph.module.tolist()
    on = np.asarray([not any(m == f or m.startswith(f"{f}.") for f in first) for m in module])
    _, group = np.unique(problem.grouping.group_of, return_index=True)
    form = pipeline(problem, problem.placement(on[group].astype(np.int16)))
    (tmp_path / "pipeline.json").write_text(json.dumps({"split_spec": form.split_spec}))
    command = [sys.executable, "rank.py", name, schedule]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        parameters = [json.loads(rank.communicate(timeout=300)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0]
    placed = [[n for n, _ in network.named_parameters() if n.startswith(tuple(f"{f}." for f in first)) is own]
              for own in (True, False)]  # fmt: skip
    assert parameters == [sorted(names) for names in placed]
