"""Data of reports, made at random in the form of a real one: a decoder in layers, on devices that send to the next."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

NAMES = ("rtx4090:0", "rtx3090:0", "rtx3090:1", "a100:0", "a100:1", "h100:0", "h100:1", "cpu:0")
KERNELS = (
    "aten.mm",
    "aten.native_layer_norm",
    "aten.bmm",
    "aten.softmax",
    "aten.mul",
    "aten.add",
    "aten.gelu",
    "aten.t",
)
DEVICE_MAP = "{\n" + ",\n".join(f' "model.layers.{i}": {i // 20}' for i in range(40)) + "\n}"
HOSTILE = "</script><img src=x onerror=alert(1)>&\"'"
"""The name of a layer in every report: it must be shown as it is."""


def report(events: int = 400, devices: int = 2, programs: int = 1, seed: int = 0) -> dict[str, Any]:
    """`events` is the number of events of each program, transfers among them."""
    names = [f"branch_{i}" for i in range(programs)]
    run = {
        "name": "outputs/a", "summary": summary(0), "truth": "simulated", "notes": [],
        "truth_text": "The step is simulated, with costs from a model of the devices' speed; nothing was measured.",
        "programs": [program(name, events, devices, default_rng([seed, 0, i])) for i, name in enumerate(names)],
    }  # fmt: skip
    return {
        "format": "placekit-report", "version": 1, "title": "llama_32 on rtx4090_3090", "placekit": "0.1.0", "run": run,
    }  # fmt: skip


def summary(run: int) -> dict[str, Any]:
    return {
        "policy": ("portfolio", "etf")[run], "trainer": None, "grouper": "auto", "backend": "simulated", "seed": run,
        "cluster": "rtx4090_3090", "workload": "llama_32", "objective": "makespan", "importer": "torch",
        "budget": {"evaluations": 2000.0, "seconds": None}, "versions": {"placekit-core": "0.1.0"},
    }  # fmt: skip


def program(name: str, events: int, devices: int, rng: Generator) -> dict[str, Any]:
    """One program: layers in a row, each on one device; a transfer where the device changes."""
    names = [NAMES[d % len(NAMES)] for d in range(devices)]
    time = timeline(events, names, rng)
    layers = len(time["colours"]["module"]) - 1
    end = time["end_s"]
    e = time["events"]
    track, duration = np.array(e["track"]), np.array(e["duration_s"])
    compute = [float(duration[track == d].sum()) for d in range(devices)]
    capacity = [(24 if "4090" in n or "3090" in n else 40) * 2**30 for n in names]
    peaks = [float(c * rng.uniform(0.5, 0.95)) for c in capacity]
    spare = min(range(devices), key=lambda d: (capacity[d] - peaks[d]) / capacity[d])
    left = capacity[spare] - peaks[spare]
    return {
        "program": name, "objective": "makespan", "unit": "s", "value_s": end, "bound_s": end * 0.93, "gap": 1 / 0.93 - 1,
        "spread_s": None, "fits": True, "rate": "40 samples/s", "error": None, "evaluations": 2000, "seconds": 31.25,
        "notes": ["grouper auto: 32 layers, h.0 to h.31, are groups"],
        "headroom": {"device": names[spare], "bytes": left, "share": left / capacity[spare]},
        "baselines": {"name": [f"single {names[0]}", "layers in equal parts", "data parallelism"],
                      "value_s": [end * 1.41, end * 1.12, None], "fits": [True, True, False],
                      "spread_s": [None, end * 0.01, None],
                      "this_run": ["41.0% faster than it", "12.0% faster than it", ""],
                      "note": ["the best single device", "", "each device holds the whole network"]},
        "devices": {"name": names, "kind": [n.partition(":")[0] for n in names], "memory_bytes": capacity, "peak_bytes": peaks,
                    "cache_bytes": [2**30] * devices,
                    "compute_s": compute, "busy": [c / end for c in compute], "operations": [int((track == d).sum())
                    for d in range(devices)], "bytes_in": [7 * 2**20] * devices, "bytes_out": [7 * 2**20] * devices},
        "exports": [{"title": "accelerate", "name": "device_map", "text": DEVICE_MAP, "note": "as fast as the placement"},
                    {"title": "vLLM", "name": "vllm", "text": "VLLM_PP_LAYER_PARTITION=15,33", "note": HOSTILE}],
        "timeline": time, "modules": modules(layers, devices, end, rng), "cut": cut(names, layers),
        "search": curve(0, end, rng), "change": change(names, end),
    }  # fmt: skip


def timeline(events: int, names: list[str], rng: Generator) -> dict[str, Any]:
    """Every device runs kernels one after the other; each kernel is caused by the one before, or by a message."""
    devices = len(names)
    modules = ["embed", *(f"layers.{i}" for i in range(7)), HOSTILE, "other"]
    texts = [
        *modules,
        *KERNELS,
        "",
        "transfer",
        "waited for the input from",
        "started when the stream was free, after",
        "waited for nothing",
    ]
    at = {t: i for i, t in enumerate(texts)}
    per = max(events // (devices + max(devices - 1, 0)), 1)
    rows: list[tuple[int, float, float, int, int, int, int, int, int, int, int]] = []
    now, before = 0.0, -1
    for d in range(devices):
        now *= 0.5  # a device begins before the last one has ended
        for k in range(per):
            length = float(rng.choice([2e-6, 1e-5, 4e-5, 2e-4], p=[0.4, 0.3, 0.2, 0.1]) * rng.uniform(0.5, 1.5))
            colour = min(int(k / per * len(modules)), len(modules) - 1)
            kernel = KERNELS[int(rng.integers(len(KERNELS)))]
            why = at["waited for nothing"] if before < 0 else at["started when the stream was free, after"]
            name = len(texts)
            texts.append(f"{kernel}_{d}_{k}")
            rows.append((d, now, length, name, colour, at[kernel], colour, int(k > per * 0.66), 2**20, why, before))
            now, before = now + length + float(rng.uniform(0, 4e-6)), len(rows) - 1
    for d in range(devices - 1):
        start = 0.0
        for k in range(per):
            sender = d * per + k
            start = max(start, rows[sender][1] + rows[sender][2])
            length = float(rng.uniform(2e-6, 3e-5))
            rows.append((devices + d, start, length, rows[sender][3], -1, at["transfer"], -1, 0, 2**18,
                         at["waited for the input from"], sender))  # fmt: skip
            start += length
    keys = ("track", "start_s", "duration_s", "name", "module", "type", "colour", "phase", "bytes", "why", "cause")
    columns = {key: list(column) for key, column in zip(keys, zip(*rows, strict=True), strict=True)}
    links = [f"{names[d]} -> {names[d + 1]}" for d in range(devices - 1)]
    end = max(r[1] + r[2] for r in rows)
    chain = [i for i in range(per * devices) if i % per < per // 2 or i >= per * (devices - 1)]
    return {
        "end_s": end, "micro_batches": False, "texts": texts, "colours": {"module": modules}, "events": columns,
        "tracks": {"name": [*names, *links], "kind": ["device"] * devices + ["link"] * len(links),
                   "device": [*range(devices), *[-1] * len(links)]},
        "critical": chain,
        "critical_parts": {"name": [f"computing on {n}" for n in names] + links + ["launch overhead"],
                           "seconds": [end * 0.8 / devices] * devices + [end * 0.05] * len(links) + [end * 0.05]},
        "complete": True, "left_out": 0,
    }  # fmt: skip


def modules(layers: int, devices: int, end: float, rng: Generator) -> dict[str, Any]:
    """A tree of two levels below the root, the layers in runs on the devices."""
    found: dict[str, Any] = {
        "name": [],
        "parent": [],
        "depth": [],
        "seconds": [],
        "bytes": [],
        "operations": [],
        "device_seconds": [],
    }

    def add(name: str, parent: int, on: Any) -> int:
        depth = 0 if parent < 0 else found["depth"][parent] + 1
        on = [float(x) for x in on]
        row = (name, parent, depth, sum(on), 2**22 * (4 - depth), 10 * (4 - depth), on)
        for key, value in zip(found, row, strict=True):
            found[key].append(value)
        return len(found["name"]) - 1

    root = add("", -1, np.full(devices, end / devices))
    for i in range(layers):
        on = np.zeros(devices)
        on[min(int((i + rng.random()) / layers * devices), devices - 1)] = end / layers
        layer = add(f"layers.{i}" if i != 3 else HOSTILE, root, on)
        for part, share in (("self_attn", 0.4), ("mlp", 0.55), ("input_layernorm", 0.05)):
            add(f"{found['name'][layer]}.{part}", layer, on * share)
    return found


def cut(names: list[str], layers: int) -> dict[str, Any]:
    pairs = [(names[d], names[d + 1]) for d in range(len(names) - 1)]
    return {
        "source": [f"layers.{i}.mlp" for i in range(len(pairs))],
        "destination": [f"layers.{i + 1}.self_attn" for i in range(len(pairs))],
        "from": [p[0] for p in pairs], "to": [p[1] for p in pairs], "bytes": [2**25] * len(pairs), "transfers": [64] * len(pairs),
        "left_out_bytes": 0, "micro_batch": False,
    }  # fmt: skip


def curve(seed: int, end: float, rng: Generator) -> dict[str, Any]:
    best = end * (1 + np.minimum.accumulate(rng.exponential(0.5, 60) / np.arange(1, 61) ** 0.5))
    best[-1] = end * (1 + 0.01 * seed)
    mean = best * rng.uniform(1.1, 1.6, 60)
    return {
        "seed": seed, "evaluations": list(range(32, 32 * 61, 32)), "seconds": np.linspace(0.5, 31, 60).tolist(),
        "best_s": best.tolist(), "mean_s": mean.tolist(), "label": f"seed {seed}" + (" (this run)" if seed == 0 else ""),
    }  # fmt: skip


def change(names: list[str], end: float) -> dict[str, Any]:
    moves = [(f"layers.{i}", names[0], names[-1], end * f) for i, f in enumerate((0.97, 0.985, 0.99, 1.02, 1.1))]
    twice = [(f"{n} computes 2x as fast", end * 0.8) for n in names] + [("all links 2x as fast", end * 0.92)]
    return {
        "utilisation": {"name": [*names, "rtx4090:0 -> rtx3090:0", "rtx3090:0 -> rtx4090:0"],
                        "share": [*(0.9 - 0.1 * i for i in range(len(names))), 0.2, 1e-5]},
        "binds": f"{names[0]} computes during 90.0% of the step; computing on it takes 61.0% of the critical path",
        "moves": {"group": [m[0] for m in moves], "from": [m[1] for m in moves], "to": [m[2] for m in moves],
                  "value_s": [m[3] for m in moves]},
        "resources": {"name": [t[0] for t in twice], "value_s": [t[1] for t in twice]},
        "now_s": end, "reason": "",
    }  # fmt: skip
