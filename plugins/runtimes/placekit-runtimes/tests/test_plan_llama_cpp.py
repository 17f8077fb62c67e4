"""Splits of `placekit plan` as llama.cpp itself loads them: its parser, the device of every tensor, the memory of each device,
and how it fits a model to the memory by itself.

Models have real tensors of small widths and no contents; GPUs are simulated, see `real_llama` in the tests of placekit-models.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from placekit_models.shape import Experts, Latent, Linear, Shape, Tensor
from placekit_runtimes.planning.fit import fitted
from placekit_runtimes.planning.lines import lines
from placekit_runtimes.planning.plan import strategies
from placekit_runtimes.planning.regular import SHIFTS
from placekit_runtimes.planning.split import EMBEDDINGS, Split
from placekit_runtimes.planning.strategies import Row, Strategies
from placekit_testing.speed import mostly_slow

sys.path.append(str(Path(__file__).parents[3] / "importers" / "placekit-models" / "tests"))
from made_gguf import one_type, write
from real_llama import Loaded, load, parse_llama_server

pytestmark = pytest.mark.slow
NEAR, GAPS = 0.02, 0.12
"""Of the bytes of a device. Products with weights in host memory, and the small values of recurrences, leave gaps that differ."""
EXPERTS = Experts(32, 4, 512)
MODELS = {
    "dense": Shape(12, 1024, 16, 4, 8192, ffn=3072, head=64),
    "tied": Shape(12, 1024, 16, 4, 8192, ffn=3072, head=64, tied=True, architecture="qwen3"),
    "window": Shape(
        12, 1024, 16, 4, 8192, ffn=3072, head=64, tied=True, window=512, pattern="wwwwwa", architecture="gemma3"
    ),
    "experts": Shape(12, 1024, 16, 4, 8192, head=64, experts=EXPERTS, architecture="qwen3moe"),
    "latent": Shape(
        8, 1024, 16, 16, 8192, latent=Latent(512, 256, 64, 64, 64), architecture="deepseek2",
        experts=Experts(32, 4, 512, shared_width=512, dense=1, dense_width=3072),
    ),
    "hybrid": Shape(
        12, 1024, 16, 4, 8192, head=64, gated=True, pattern="llla", linear=Linear(8, 16, 64), architecture="qwen3next",
        experts=Experts(32, 4, 512, shared_width=512),
    ),
}  # fmt: skip
# of 1 GB, 0.1 are usable: drivers and runtimes have the rest
FAST, SLOW = "fast(1.0GB 900GB/s 80TFLOPS)", "slow(0.98GB 300GB/s 20TFLOPS)"
THIRD, HOST = "third(1.1GB 200GB/s 10TFLOPS)", "64GB ddr5-5600"
MACHINES = {
    "1": FAST, "1 and host": f"{FAST} + {HOST}", "2": f"{SLOW} + {FAST}", "2 and host": f"{SLOW} + {FAST} + {HOST}",
    "3": f"{FAST} + {SLOW} + {THIRD}", "3 and host": f"{THIRD} + {SLOW} + {FAST} + {HOST}",
}  # fmt: skip
# the same with 1 GiB more, which llama.cpp leaves free
ROOMY = {
    "small and host": f"third(2.03GB 200GB/s 10TFLOPS) + {HOST}",
    "1 and host": f"fast(2.2GB 900GB/s 80TFLOPS) + {HOST}",
    "2 and host": f"slow(2.05GB 300GB/s 20TFLOPS) + fast(2.2GB 900GB/s 80TFLOPS) + {HOST}",
    "3 and host": f"third(2.03GB 200GB/s 10TFLOPS) + slow(2.1GB 300GB/s 20TFLOPS) + fast(2.2GB 900GB/s 80TFLOPS) + {HOST}",
}
USES: tuple[dict[str, Any], ...] = (
    {"context": 2048}, {"context": 2048, "users": 3}, {"context": 4096, "cache": "q8_0"},
    {"context": 1024, "users": 3, "cache": "q8_0", "ubatch": 256},
)  # fmt: skip
USE_OF = {key: USES[i % len(USES)] for i, key in enumerate(product([*MODELS, ""], MACHINES))}
"""Each model and each machine with several uses: there are seven times six pairs, and four uses."""


@pytest.fixture(scope="module", autouse=True)
def _runtime() -> None:
    pytest.importorskip("xllamacpp", reason="the wheel of xllamacpp carries llama.cpp")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("gguf")
    return {
        name: write(folder / f"{name}.gguf", shape, lambda t: one_type(t, "Q8_0"), fill=False)
        for name, shape in MODELS.items()
    }


def search(path: Path, machine: str, use: dict[str, Any]) -> Strategies:
    options = {"prompt": 600, "generate": 200, "runtime": "llamacpp"} | use
    return strategies(str(path), machine, **options)["llamacpp"]


def some_splits(own: Strategies, random: Random) -> Iterator[Split]:
    """What the plan compares, and random regular splits."""
    yield from (row.split for row in own.rows() if row.split is not None)
    starts = [start for chain in own.regulars.chains() for start in own.regulars.starts(chain)]
    for regular in random.sample(starts, min(2, len(starts))):
        for _ in range(random.randint(1, 4)):
            near = [other for k in SHIFTS for other in own.regulars.moves(regular, k)]
            regular = random.choice(near or [regular])
        yield own.regulars.split(regular)


def words(split: Split, own: Strategies) -> list[str]:
    """The arguments of llama-server."""
    return shlex.split(lines(Row("llamacpp", "", split), own.steps))[1:]


def gpus(own: Strategies) -> dict[int, str]:
    """llama.cpp's names of the GPUs."""
    return {d: f"CUDA{i}" for i, d in enumerate(sorted(own.question.gpus))}


def device_of(tensor: Tensor, split: Split, own: Strategies) -> str:
    """Where a split has a tensor; norms and biases are at the home of their layer."""
    layout, name = own.steps.layout, tensor.name.removesuffix(".weight")
    if name in EMBEDDINGS:
        return "CPU"
    held = split.held[layout.index[name]] if name in layout.index else split.home[tensor.layer]
    return gpus(own).get(int(held), "CPU")


def same_devices(loaded: Loaded, split: Split, own: Strategies) -> None:
    tensors = own.question.checkpoint.tensors
    tied = all(t.key != "output" for t in tensors)
    for t in tensors:
        if not (tied and t.key == "token_embd"):  # it has two copies, whose bytes are compared
            assert loaded.tensors[t.name].partition("_")[0] == device_of(t, split, own), t.name


def same_memory(loaded: Loaded, split: Split, own: Strategies) -> None:
    memory, names, q = own.steps.memory(split), gpus(own), own.question
    copied = q.cpu in split.held[own.steps.layout.layer >= 0]
    for d, name in names.items():
        weights, cache, compute = loaded.memory.get(name, [0, 0, 0])
        assert memory.weights[d] == pytest.approx(weights, rel=0.001, abs=2**12), name
        assert memory.cache[d] == cache, name
        near = GAPS if copied or q.checkpoint.state else NEAR
        assert memory.used[d] == pytest.approx(weights + cache + compute, rel=near, abs=2**16), name
    if q.cpu is not None:
        host = [bytes_ for name, bytes_ in loaded.memory.items() if name not in names.values()]
        weights = sum(t.bytes for t in q.checkpoint.tensors if device_of(t, split, own) == "CPU")  # no gaps in the file
        cache, compute = (sum(bytes_[i] for bytes_ in host) for i in (1, 2))
        assert memory.used[q.cpu] == pytest.approx(weights + cache + compute, rel=NEAR)


@pytest.mark.parametrize(
    "machine", mostly_slow(MACHINES, ["2", "3 and host"], [m for m in MACHINES if m not in ("2", "3 and host")])
)
@pytest.mark.parametrize(
    "model", mostly_slow(MODELS, ["dense", "experts"], [m for m in MODELS if m not in ("dense", "experts")])
)
def test_lines_load_as_planned(model: str, machine: str, files: dict[str, Path]) -> None:
    own = search(files[model], MACHINES[machine], USE_OF[model, machine])
    splits = {split.key: split for split in some_splits(own, Random(model + machine))}.values()
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda split: load(words(split, own), [*gpus(own).values()], hollow=True), splits)
        for split, loaded in zip(splits, found, strict=True):
            same_devices(loaded, split, own)
            same_memory(loaded, split, own)


FITTED = [("dense", "small and host"), *product(["experts", "latent", "hybrid"], [*ROOMY][1:])]


def counts(devices: Sequence[str]) -> dict[str, int]:
    return {name: devices.count(name) for name in devices if name not in ("CPU", "")}


@pytest.mark.parametrize(
    ("model", "machine"),
    mostly_slow(FITTED, [FITTED[0], FITTED[3], FITTED[-1]], [f for i, f in enumerate(FITTED) if i not in (0, 3, 9)]),
)
def test_it_fits_by_itself_as_planned(model: str, machine: str, files: dict[str, Path]) -> None:
    """But for one layer of each GPU, of which llama.cpp may place a part."""
    own = search(files[model], ROOMY[machine], {"context": 2048})
    split, q = fitted(own.regulars), own.question
    free = [int(q.cluster.memory_bytes[d]) for d in gpus(own)]
    args = ["-m", str(files[model]), "-c", "2048", "-np", "1", "-fa", "on"]
    loaded = load(args, [*gpus(own).values()], hollow=True, free=free)
    for end in ("attn_norm", "ffn_down_exps"):
        tensors = [t for t in q.checkpoint.tensors if t.key == end]
        real = counts([loaded.tensors[t.name].partition("_")[0] for t in tensors])
        plan = counts([device_of(t, split, own) for t in tensors])
        assert all(abs(real.get(name, 0) - plan.get(name, 0)) <= 1 for name in gpus(own).values()), (real, plan)


def test_a_slot_for_each_user(files: dict[str, Path]) -> None:
    """Without `-np`, llama-server divides the context among four slots."""
    for users in (1, 3):
        own = search(files["dense"], MACHINES["1"], {"context": 2048, "users": users})
        split = next(some_splits(own, Random(0)))
        parsed = parse_llama_server(words(split, own), ["CUDA0"])
        assert (parsed["n_parallel"], parsed["n_ctx"]) == (users, users * 2048)
