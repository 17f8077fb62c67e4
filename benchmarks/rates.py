"""Derives efficiencies of devices from published measurements: fractions of peak and bandwidth in data sheets, launch overheads.

    PYTHONPATH=FOLDER python benchmarks/rates.py DATA [--write]

DATA has tables of public projects: aiconfigurator, vidur, llmservingsim and llm_speed.csv (sources and commits: SOURCES).
FOLDER has pyarrow, which placekit does not need: pip install --target FOLDER pyarrow. `--write` writes the tables to
benchmarks/results/rates.md; the fractions of its first table stand in parts.yaml.

Seconds of a kernel are launch_overhead_s + max(flops / (peak * compute), bytes / (bandwidth * memory)). The fractions of a table
are those with the smallest median-like error, the mean of |log(predicted / measured)|. Nothing is fitted to more than one device
of llm_speed.csv, nor to any model but Llama-3-8B, and rows with `suspicious` are left out; the rest is for testing predictions.
The CPU is the exception: its fractions come from rows with experts on the CPU, an empty context and at most two GPUs.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from placekit_inspect.data_sheets import parts
from placekit_inspect.machine_file import machine_file
from placekit_models.decoder import Use, decoder
from placekit_models.shape import Shape

from placekit_core import Cluster
from placekit_core.contracts.costs import launches_of, roofline
from placekit_core.contracts.files import parse_yaml

RESULTS = Path(__file__).parent / "results" / "rates.md"
SOURCES = {
    "aiconfigurator": "ai-dynamo/aiconfigurator 095f58a, systems/data: kernels of products and attention, bfloat16",
    "vidur": "microsoft/vidur 7d47513, data/profiling/compute: layers of Llama-2-7B, float16",
    "llmservingsim": "casys-kaist/LLMServingSim 5daddb2, profiler: kernels of Llama-3.1-8B, bfloat16",
    "llm_speed": "XiongjieDai/GPU-Benchmarks-on-LLM-Inference: llama.cpp of May 2024, Llama-3-8B on one device",
    "experts": "ikawrakow/ik_llama.cpp, discussions: experts on the CPU, tokens without context",
}
GEMM = {
    "l40s": "l40s/gemm/vllm/0.24.0", "a100": "a100_sxm/gemm/sglang/0.5.10", "h100": "h100_sxm/gemm/vllm/0.24.0",
    "rtxpro6000": "rtx_pro_6000_server/gemm/vllm/0.24.0",
}  # fmt: skip
ATTENTION = {
    "l40s": ("l40s/attention/vllm/0.24.0", "vllm_flash_attn_fa2"),
    "a100": ("a100_sxm/attention/sglang/0.5.10", "flash_attention"),
    "h100": ("h100_sxm/attention/vllm/0.24.0", "vllm_flash_attn_fa3"),
}
SPEED = {
    "rtx3070-8": "rtx3070", "rtx3080-10": "rtx3080", "rtx3080ti-12": "rtx3080ti", "rtx3090-24": "rtx3090", "a40-48": "a40",
    "rtxa6000-48": "a6000", "rtx4070ti-12": "rtx4070ti", "rtx4080-16": "rtx4080", "rtx4090-24": "rtx4090",
    "rtx4000ada-20": "rtx4000ada", "rtx5000ada-32": "rtx5000ada", "rtx6000ada-48": "rtx6000ada", "l40s-48": "l40s",
    "a100sxm-80": "a100", "a100pcie-80": "a100_pcie",
    "h100pcie-80": "h100_pcie", "m1max-32c-64": "m1_max", "m2ultra-76c-192": "m2_ultra",
    "m3max-40c-64": "m3_max",
}  # fmt: skip
# Second-level caches, bytes. A table that repeats one kernel finds its tensors there if they fit.
CACHE = {"l40s": 96e6, "rtx4090": 72e6, "rtxpro6000": 128e6, "h100": 50e6, "a100": 40e6, "a40": 6e6, "rtx3090": 6e6}
CACHED = 16e6  # bytes of attention's keys and values: 4,096 tokens in a layer of Llama-3-8B
ROWS = tuple(2**i for i in range(15))  # of products: as many rows of the tables for every size
HBM = ("ga100", "hopper")  # llama.cpp's products with 16 bits reach much less there than other libraries'
BY_PRODUCTS = ("a100", "h100")  # kinds whose launch overhead is that of the tables of products
LAUNCHES_OF = {"attention": 3}  # launches of one operation: the parts of the cache, their sum, and what prepares them
LAYERS, LAUNCHES, OUTSIDE = 32, 24, 3  # Llama-3-8B in llama.cpp: launches of a layer, and of the rest
FILE = {"Q4_K_M": 4_917_737_553, "F16": 16_063_177_687}  # bytes
READ = {
    q: n - 128_256 * 4096 * bits / 8 for (q, n), bits in zip(FILE.items(), (4.5, 16), strict=True)
}  # bytes of a token
LLAMA = Shape(layers=LAYERS, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128_256)
ARRAYS = ("rows", "flops", "bytes", "seconds")
Array = NDArray[np.float64]
ABOUT = """\
Seconds of a kernel are launches * launch_overhead_s + max(flops / (peak * compute), bytes / (bandwidth * memory)), with the peaks
of the data sheets. First the figures of each device, from the first source that has them; then how well they fit the tables:
|predicted / measured - 1|, median and 90th percentile, over all kernels and by number of rows (of products), sequences or tokens.
Large errors with few rows and large caches (L40S, RTX PRO 6000) are products that the tables find in the cache. Attention counts
as three launches. Fractions above 1 are written as 1.

Of llm_speed, only Llama-3-8B on one device sets figures (F16 and Q4_K_M, tokens and prompts of 512 to 8,192); everything else
there is left for testing predictions. `quantized_matmul` and `inference_matmul` are llama.cpp's products with few bits and with
16. On an A100 and an H100, the latter are much slower than other libraries' products, which set the fractions of `matmul` there;
elsewhere tokens with 16 bits also set the bandwidth of `matmul`. GeForce cards would exceed their peak in prompts (by up to
half), because llama.cpp's products accumulate in float16, at twice the rate. The fractions of CPUs include the time to hand over
between CPU and GPU in every layer; the 20 us of the machine model's hosts are counted beside them."""


class Kernels(NamedTuple):
    """Kernels of one class on one kind, from one source: [n] rows or sequences, FLOPs, bytes and seconds."""

    kind: str
    op_class: str
    source: str
    rows: Array
    flops: Array
    bytes: Array
    seconds: Array


class Rate(NamedTuple):
    """Fractions of peak and bandwidth (None: not measured), and relative errors of the fit: rows, |error|."""

    kernels: Kernels
    compute: float | None
    memory: float | None
    launch_s: float
    rows: Array
    error: Array


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    tables = [*gemm(arguments.data), *attention(arguments.data), *vidur(arguments.data), *serving(arguments.data)]
    launches = launch_overheads(arguments.data, tables)
    rates = [fit(k, launches) for k in tables]
    chosen = choose(rates, launches, arguments.data)
    text = "\n".join([*figures_table(chosen, launches), "", *errors_table(rates), "", *cpu_table(arguments.data)])
    print(text)
    if arguments.write:
        head = "# Fractions of data sheets that were measured\n\n"
        head += f"    PYTHONPATH=FOLDER python benchmarks/rates.py DATA --write\n\n{ABOUT}\n\n{sources()}\n\n"
        RESULTS.write_text(head + text + "\n", encoding="utf-8")


# Kernel tables


def parquet(path: Path) -> dict[str, NDArray[Any]]:
    """Columns of a table."""
    import pyarrow.parquet as pq  # not needed by placekit

    return {key: np.asarray(values) for key, values in pq.read_table(path).to_pydict().items()}


def gemm(data: Path) -> Iterator[Kernels]:
    """Products of aiconfigurator with at least 4 MB of weights, as in the layers of a model."""
    for kind, folder in GEMM.items():
        table = parquet(data / "aiconfigurator/data" / folder / "gemm_perf.parquet")
        weights = 2 * table["n"] * table["k"]
        here = (table["gemm_dtype"] == "bfloat16") & np.isin(table["m"], ROWS) & (weights >= 4e6) & (weights <= 1.2e9)
        m, n, k, ms = (table[c][here].astype(float) for c in ("m", "n", "k", "latency"))
        yield Kernels(kind, "matmul", "aiconfigurator", m, 2 * m * n * k, 2 * (m * n + n * k + m * k), ms * 1e-3)


def attention(data: Path) -> Iterator[Kernels]:
    """Attention of aiconfigurator with heads of 128: tokens with a cache; on the L40S also prompts."""
    for kind, (folder, kernel) in ATTENTION.items():
        parts_of = [np.empty((0, 4))]
        for path in sorted((data / "aiconfigurator/data" / folder).glob("*_attention_perf.parquet")):
            table = parquet(path)
            here = (
                (table["kernel_source"] == kernel)
                & (table["kv_cache_dtype"] == "bfloat16")
                & (table["head_dim"] == 128)
            )
            here &= table["batch_size"] <= 256
            here &= table.get("window_size", np.zeros(len(here))) == 0
            names = ("batch_size", "num_heads", "num_key_value_heads", "isl", "step", "latency")
            batch, heads, kv, queries, past, ms = (table[c][here].astype(float) for c in names)
            prompt = "context" in path.name
            keys = queries if prompt else past + 1
            products = 4 * batch * heads * 128 * queries * (keys / 2 if prompt else keys)
            traffic = 4 * batch * 128 * (kv * keys + heads * queries)
            parts_of.append(np.column_stack([batch * queries, products, traffic, ms * 1e-3]))
        rows, flops, traffic, seconds = np.concatenate(parts_of).T
        large = traffic >= CACHED
        yield Kernels(kind, "attention", "aiconfigurator", rows[large], flops[large], traffic[large], seconds[large])


def vidur(data: Path) -> Iterator[Kernels]:
    """Layers of Llama-2-7B, split over 1 to 8 devices."""
    for kind in ("a40", "a100", "h100"):
        with (data / f"vidur/data/profiling/compute/{kind}/meta-llama/Llama-2-7b-hf/mlp.csv").open() as f:
            rows = list(csv.DictReader(f))
        tokens, split = (np.asarray([float(r[c]) for r in rows]) for c in ("num_tokens", "num_tensor_parallel_workers"))
        seconds = {
            c: np.asarray([1e-3 * float(r[f"time_stats.{c}.median"]) for r in rows])
            for c in (
                "attn_pre_proj",
                "attn_post_proj",
                "mlp_up_proj",
                "mlp_down_proj",
                "mlp_act",
                "add",
                "input_layernorm",
            )
        }
        h, inner = 4096.0, 11008.0
        shapes: dict[str, tuple[Array | float, Array | float]] = {
            "attn_pre_proj": (3 * h / split, h), "attn_post_proj": (h, h / split), "mlp_up_proj": (2 * inner / split, h),
            "mlp_down_proj": (h, inner / split),
        }  # fmt: skip
        like = np.isin(tokens, ROWS) & (split <= 2)
        products = [
            np.stack([tokens, tokens * n * k * 2, 2 * (tokens * (n + k) + n * k), seconds[c]])[:, like]
            for c, (n, k) in shapes.items()
        ]
        yield Kernels(kind, "matmul", "vidur", *np.concatenate(products, axis=1))
        yield from in_memory(kind, "elementwise", "vidur", tokens, 6 * tokens * inner / split, seconds["mlp_act"])
        yield from in_memory(kind, "elementwise", "vidur", tokens, 6 * tokens * h, seconds["add"])
        yield from in_memory(kind, "normalization", "vidur", tokens, 4 * tokens * h, seconds["input_layernorm"])


def serving(data: Path) -> Iterator[Kernels]:
    """Layers of Llama-3.1-8B: on an RTX 4090 as vLLM runs them, on an RTX 3090 as transformers does (norms in many kernels)."""
    h, inner, cached = 4096.0, 14336.0, 1024.0
    shapes = {
        "qkv_proj": (h + 2 * cached, h), "o_proj": (h, h), "gate_up_proj": (2 * inner, h), "down_proj": (h, inner),
        "q_proj": (h, h), "k_proj": (cached, h), "v_proj": (cached, h), "gate_proj": (inner, h), "up_proj": (inner, h),
    }  # fmt: skip
    base = data / "llmservingsim/profiler"
    folders = {
        "rtx4090": (base / "perf/RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1/dense.csv", ("layer", "tokens", "time_us"), 1e-6, 6),
        "rtx3090": (base / "v0/perf_models/RTX3090/meta-llama/Llama-3.1-8B/tp1/layers.csv",
                    ("layer_name", "input", "latency(ns)"), 1e-9, 10),
    }  # fmt: skip
    for kind, (path, (layer, size, time), unit, act) in folders.items():
        found: dict[str, list[tuple[float, float]]] = defaultdict(list)
        with path.open() as f:
            for row in csv.DictReader(f):
                if row.get("kv_cache", "0") == "0":
                    found[row[layer]].append((float(row[size]), unit * float(row[time])))
        products = []
        for name, (n, k) in shapes.items():
            if name in found:
                m, seconds = np.asarray([r for r in found[name] if r[0] in ROWS]).T
                products.append((m, 2 * m * n * k, 2 * (m * (n + k) + n * k), seconds))
        yield Kernels(kind, "matmul", "llmservingsim", *np.concatenate(products, axis=1))
        m, seconds = np.asarray(found["act_fn"]).T
        yield from in_memory(kind, "elementwise", "llmservingsim", m, act * m * inner, seconds)
    with folders["rtx4090"][0].with_name("attention.csv").open() as f:
        rows = np.asarray([[float(x) for x in row] for row in list(csv.reader(f))[1:]])
    chunk, past, sequences, keys, us = rows[(rows[:, 0] == 0) | (rows[:, 2] == 0)].T
    flops = 4 * h * (chunk * (past + chunk / 2) + sequences * keys)
    traffic = 4 * (cached * (sequences * keys + past + chunk) + h * (chunk + sequences))
    large = traffic >= CACHED
    yield Kernels(
        "rtx4090", "attention", "llmservingsim", *np.stack([chunk + sequences, flops, traffic, us * 1e-6])[:, large]
    )


def in_memory(kind: str, op_class: str, source: str, rows: Array, size: Array, seconds: Array) -> Iterator[Kernels]:
    """Kernels whose tensors do not fit in the cache, and whose arithmetic does not count; nothing if these are few."""
    large = size > CACHE[kind]
    if large.sum() >= 20:
        yield Kernels(kind, op_class, source, *np.stack([rows, 0 * rows, size, seconds])[:, large])


def predicted(k: Kernels, compute: float, memory: float, launch_s: float) -> Array:
    """[n] seconds of the model."""
    part = parts().kinds[k.kind]
    peak = part.flops_per_s.get("float16", part.flops_per_s["float32"])
    return LAUNCHES_OF.get(k.op_class, 1) * launch_s + np.maximum(
        k.flops / (peak * compute), k.bytes / (part.memory_bytes_per_s * memory)
    )


def log_error(k: Kernels, compute: float, memory: float, launch_s: float) -> float:
    """Mean |log(predicted / measured)|: half of the kernels are above and half below, as with medians."""
    return float(np.abs(np.log(predicted(k, compute, memory, launch_s) / k.seconds)).mean())


def fractions(k: Kernels, launch_s: float) -> tuple[float, float]:
    """The best fractions with this launch overhead, at most 1: cards run faster than the clock of their data sheet."""
    grid = np.arange(2, 101) / 100
    compute = memory = 0.7
    for _ in range(5):
        compute = float(min(grid, key=lambda x: log_error(k, x, memory, launch_s)))
        memory = float(min(grid, key=lambda x: log_error(k, compute, x, launch_s)))
    return compute, memory


def fit(k: Kernels, launches: dict[str, float]) -> Rate:
    """Fractions of a class with the launch overhead of the kind. A fraction that hardly any kernel is bound by is left out."""
    launch_s = launches.get(k.kind, 3e-6)
    compute, memory = fractions(k, launch_s)
    part = parts().kinds[k.kind]
    bound = k.flops / (part.flops_per_s["float16"] * compute) > k.bytes / (part.memory_bytes_per_s * memory)
    error = np.abs(predicted(k, compute, memory, launch_s) / k.seconds - 1)
    return Rate(
        k, compute if bound.mean() > 0.1 else None, memory if bound.mean() < 0.9 else None, launch_s, k.rows, error
    )


# Tokens and prompts of llama.cpp


def speeds(data: Path) -> dict[tuple[str, str], dict[str, list[float]]]:
    """Tokens/s by (kind, quantisation) and test: rows that may set figures."""
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with (data / "llm_speed.csv").open(encoding="utf-8") as f:
        for r in csv.DictReader(f):
            fits = (
                "XiongjieDai" in r["source"]
                and r["n_dev"] == "1"
                and r["model"] == "Llama-3-8B"
                and not r["suspicious"]
            )
            if fits and r["devices"] in SPEED and re.fullmatch("(tg|pp)[0-9]+", r["test"]):
                found[SPEED[r["devices"]], r["quantisation"]][r["test"]].append(float(r["tokens_per_s"]))
    return found


def token_seconds(tests: dict[str, list[float]]) -> float:
    """Seconds of a token without context: the line through tests of 512 to 8,192 tokens, with the median of all slopes."""
    points = [(int(t[2:]) / 2, 1 / statistics.median(v)) for t, v in tests.items() if t.startswith("tg")]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a in points for b in points if b[0] > a[0]]
    slope = statistics.median(slopes)
    return statistics.median(s - slope * n for n, s in points)


def launch_overheads(data: Path, tables: list[Kernels]) -> dict[str, float]:
    """Seconds per launch of the kinds where they can be separated from the bandwidth.

    HBM: the products of the tables, as far as a token with 4 bits then uses no more of the bandwidth than products, because
    llama.cpp reaches unlike fractions with 16 and 4 bits there. Else the tokens with 16 and 4 bits, with one fraction for both;
    with 16 bits only, the fraction of products with few rows. Apple: one overhead and fraction for all.
    """
    count = LAYERS * LAUNCHES + OUTSIDE
    found: dict[str, float] = {}
    grid = np.arange(5, 100) / 10 * 1e-6
    products = {k.kind: k for k in reversed(tables) if k.op_class == "matmul"}
    tokens = {key: token_seconds(tests) for key, tests in speeds(data).items()}
    bandwidth = {kind: part.memory_bytes_per_s for kind, part in parts().kinds.items()}
    for kind in BY_PRODUCTS:
        memory = {s: fractions(products[kind], s) for s in grid}
        token = tokens.get((kind, "Q4_K_M"), np.inf)
        fits = [s for s in grid if READ["Q4_K_M"] <= (token - s * count) * bandwidth[kind] * memory[s][1]]
        found[kind] = float(min(fits, key=lambda s: log_error(products[kind], *memory[s], s)))
    for kind in dict.fromkeys(k for k, _ in tokens):
        if kind in found or (kind, "F16") not in tokens:
            continue
        f16 = tokens[kind, "F16"]
        if (kind, "Q4_K_M") in tokens:
            rate = (READ["F16"] - READ["Q4_K_M"]) / (f16 - tokens[kind, "Q4_K_M"])
            found[kind] = (f16 - READ["F16"] / rate) / count
        elif kind in products:
            few = products[kind]._replace(**{c: getattr(products[kind], c)[products[kind].rows <= 4] for c in ARRAYS})
            found[kind] = (f16 - READ["F16"] / (bandwidth[kind] * fractions(few, 2.5e-6)[1])) / count
    apple = {key: s for key, s in tokens.items() if parts().kinds[key[0]].generation == "apple"}
    size = np.asarray([READ[q] / bandwidth[k] for k, q in apple])
    errors = {
        (s, f): float(np.abs(np.log((s * count + size / f) / np.asarray([*apple.values()]))).mean())
        for s in grid for f in np.arange(40, 100) / 100
    }  # fmt: skip
    return {k: round(s, 7) for k, s in (found | {k: min(errors, key=errors.__getitem__)[0] for k, _ in apple}).items()}


Chosen = dict[str, dict[str, tuple[float | None, float | None, str]]]


def choose(rates: list[Rate], launches: dict[str, float], data: Path) -> Chosen:
    """Compute and memory by kind and class, and their source. The first source of a kind is the best: it has most sizes."""
    chosen: Chosen = defaultdict(dict)
    for r in rates:
        k = r.kernels
        if k.op_class not in chosen[k.kind]:
            same = [x for x in rates if x.kernels[:3] == k[:3]]
            values = [[v for x in same if (v := getattr(x, name)) is not None] for name in ("compute", "memory")]
            compute, memory = (at_most_1(statistics.median(v)) if v else None for v in values)
            chosen[k.kind][k.op_class] = (compute, memory, k.source)
    count, known = LAYERS * LAUNCHES + OUTSIDE, parts()
    by_generation = defaultdict(list)
    for kind, s in launches.items():
        by_generation[known.kinds[kind].generation].append(s)
    for (kind, quantisation), tests in speeds(data).items():
        part = known.kinds[kind]
        launch_s = launches.get(kind, statistics.median(by_generation[part.generation])) * count
        memory = READ[quantisation] / ((token_seconds(tests) - launch_s) * part.memory_bytes_per_s)
        compute = prompt_compute(kind, quantisation, tests)
        op_class = "quantized_matmul" if quantisation == "Q4_K_M" else "inference_matmul"
        chosen[kind][op_class] = (at_most_1(compute), at_most_1(memory), "llm_speed")
        if quantisation == "F16" and "matmul" not in chosen[kind] and part.generation not in HBM:
            chosen[kind]["matmul"] = (None, at_most_1(memory), "llm_speed")
    return chosen


def prompt_compute(kind: str, quantisation: str, tests: dict[str, list[float]]) -> float | None:
    """The fraction of the peak that products of prompts reach: the median of all lengths.

    A prompt's seconds are those of its program; what is not in products is estimated with the rates in parts.yaml.
    """
    cluster = Cluster.parse(parse_yaml(machine_file(kind).encode()), kind)
    device = cluster.kinds[cluster.device_kind[0]]
    found = []
    for test, speeds_ in tests.items():
        if not test.startswith("pp"):
            continue
        bits = 8 * FILE[quantisation] / LLAMA.weights
        graph = decoder("prompt", LLAMA, Use("prompt", tokens=int(test[2:]), bits=bits, flash=False))
        product = graph.op_class.is_value("quantized_matmul") | graph.op_class.is_value("inference_matmul")
        launch_s = launches_of(graph)[product].sum() * device.launch_overhead_s
        others = roofline(graph, cluster).op_s[~product, 0].sum()
        seconds = int(test[2:]) / statistics.median(speeds_) - others - launch_s
        found.append(graph.flops[product].sum() / (seconds * device.flops_per_s["float16"]))
    return statistics.median(found) if found else None


def at_most_1(value: float | None) -> float | None:
    """Rounded to two digits."""
    return None if value is None else min(round(value, 2), 1.0)


# Experts on the CPU

EXPERTS = {
    "Qwen3-235B-A22B": (94, 8 / 128, 7.8e9),
    "DeepSeek-V3/R1 671B": (61, 8 / 256, 16.5e9),
}  # layers, active, others


def cpu_fractions(data: Path) -> list[tuple[int, float, str]]:
    """Memory channels, the fraction of their bandwidth that a token reaches after its time on the GPU, and its row."""
    found = []
    with (data / "llm_speed.csv").open(encoding="utf-8") as f:
        for r in csv.DictReader(f):
            match = re.search(r"-(\d+)ch-ddr5(?:-(\d{4}))?", r["devices"])
            sizes = json.loads(r["device_bytes"] or "{}")
            fits = r["kind"] == "moe_offload" and r["test"].startswith("tg") and r["context_depth"] == "0"
            model = EXPERTS.get(r["model"].strip()) or (
                EXPERTS["DeepSeek-V3/R1 671B"] if "671B" in r["params"] else None
            )
            if (
                not (match and fits and "CPU" in sizes and model)
                or r["suspicious"]
                or 2**21 * sizes["CPU"] < float(r["model_bytes"] or "inf")
            ):
                continue
            layers, active, others = model
            gpu = sum(v for k, v in sizes.items() if k.startswith("CUDA") and k != "CUDA_Host") * 2**20
            read = others + max(0, gpu - others) * active
            seconds = 1 / float(r["tokens_per_s"]) - read / 0.85e12 - layers * LAUNCHES * 3e-6
            bandwidth = int(match[1]) * 8e6 * int(match[2] or 6000)
            found.append((int(match[1]), sizes["CPU"] * 2**20 * active / (seconds * bandwidth), r["id"]))
    return found


# Tables


def sources() -> str:
    return "\n".join(f"- {name}: {text}" for name, text in SOURCES.items())


def two(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def figures_table(chosen: Chosen, launches: dict[str, float]) -> list[str]:
    """The figures in parts.yaml."""
    lines = ["| kind | class | compute | memory | source |", "|---|---|---:|---:|---|"]
    for kind in (k for k in parts().kinds if k in chosen or k in launches):
        if kind in launches:
            source = "aiconfigurator" if kind in BY_PRODUCTS else "llm_speed"
            lines.append(f"| {kind} | launch_overhead_s | {launches[kind] * 1e6:.1f} us |  | {source} |")
        lines += [f"| {kind} | {c} | {two(x)} | {two(y)} | {s} |" for c, (x, y, s) in chosen.get(kind, {}).items()]
    lines += ["", "| median of all kinds | compute | memory | kinds |", "|---|---:|---:|---:|"]
    for op_class in dict.fromkeys(c for rows in chosen.values() for c in rows):
        own = [rows[op_class] for rows in chosen.values() if op_class in rows]
        compute, memory = ([v for v in half if v] for half in ([r[0] for r in own], [r[1] for r in own]))
        medians = [two(statistics.median(half)) if half else "" for half in (compute, memory)]
        lines.append(f"| {op_class} | {' | '.join(medians)} | {len(own)} |")
    return lines


def errors_table(rates: list[Rate]) -> list[str]:
    """Errors of all fits: median and 90th percentile, over all sizes and by rows."""
    bands = {"all": (0, 1e18), "to 7 rows": (0, 7), "8 to 64": (8, 64), "65 to 512": (65, 512), "more": (513, 1e18)}
    lines = [
        f"| kind | class | source | kernels | compute | memory | {' | '.join(bands)} |",
        f"|---|---|---|---:|---:|---:|{'---:|' * len(bands)}",
    ]
    for r in rates:
        cells = []
        for low, high in bands.values():
            e = r.error[(r.rows >= low) & (r.rows <= high)]
            cells.append(f"{100 * np.median(e):.0f}%, {100 * np.quantile(e, 0.9):.0f}%" if len(e) else "")
        k = r.kernels
        figures = [k.kind, k.op_class, k.source, f"{len(k.rows):,}", two(r.compute), two(r.memory), *cells]
        lines.append(f"| {' | '.join(figures)} |")
    return lines


def cpu_table(data: Path) -> list[str]:
    """Fractions of CPUs' memory bandwidth by channels."""
    lines = ["| channels of DDR5 | rows | memory, median | lowest | highest |", "|---:|---:|---:|---:|---:|"]
    found = cpu_fractions(data)
    for channels in sorted({c for c, _, _ in found}):
        own = [f for c, f, _ in found if c == channels]
        lines.append(f"| {channels} | {len(own)} | {statistics.median(own):.2f} | {min(own):.2f} | {max(own):.2f} |")
    return lines


if __name__ == "__main__":
    main()
