"""The lines to paste: a split as the command line of its runtime."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping
from itertools import groupby

import numpy as np

from placekit_runtimes.exo import RUNTIME as EXO
from placekit_runtimes.interface import DeviceName
from placekit_runtimes.layers import device_numbers
from placekit_runtimes.llamacpp import RPC_PORT, arguments, buffer_name, main_device, remote_devices
from placekit_runtimes.planning.question import RuntimeName
from placekit_runtimes.planning.split import Split
from placekit_runtimes.planning.steps import Steps
from placekit_runtimes.planning.strategies import Row
from placekit_runtimes.vllm import stage_layers


def lines(row: Row, steps: Steps) -> str:
    """The lines to paste for a row."""
    write: dict[RuntimeName, Callable[[Row, Steps], str]] = {
        "llamacpp": llama_server, "vllm": vllm_serve, "accelerate": from_pretrained, "exo": shards,
    }  # fmt: skip
    return write[row.runtime](row, steps)


def _split(row: Row) -> Split:
    assert row.split is not None
    return row.split


def llama_server(row: Row, steps: Steps) -> str:
    """The command line of llama-server; before it, those of rpc-server for devices in other boxes."""
    q, o, problem = steps.question, steps.question.options, steps.decode.problem
    split = _split(row)
    # without -np, llama-server has 4 slots that share a cache
    words = ["llama-server", *(q.named_by or ("-m", q.file)), "-c", str(o.context * o.users), "-np", str(o.users)]
    words += ["--mmproj", tower.file] if (tower := q.checkpoint.tower) else []
    if steps.draft is not None and row.memory is not None:
        words += ["-md", steps.draft.question.file, "--spec-type", "draft-simple"]
        words += ["--spec-draft-n-max", str(o.draft_tokens)]
        words += ["-devd", buffer_name(problem, row.memory.draft, row.memory.draft)] if q.gpus else []
    words += arguments(problem, steps.layout, split)
    words += ["-fa", "on"] + (["-ctk", o.cache, "-ctv", o.cache] if o.cache != "f16" else [])
    words += ["-ub", str(o.ubatch)] if o.ubatch != 512 else []
    names, used = q.cluster.device_names, split.used(steps.layout)
    main = main_device(problem, used)
    away = remote_devices(problem, main)
    servers = [  # also for devices that are not used: the names of the others count them
        f"rpc-server --host 0.0.0.0 --port {RPC_PORT + i} --device {own} # in the box of {names[d]}"
        for i, (d, own) in enumerate(away.items()) if {*away} & {*used}
    ]  # fmt: skip
    words += ["--rpc", ",".join(f"BOX:{RPC_PORT + i}" for i in range(len(servers)))] if servers else []
    words += q.kept
    where = f" # in the box of {names[main]}" if away else ""
    # llama.cpp has the tower on the first GPU of the machine, used or not, unless this variable names another
    own = tower is not None and main in q.gpus and main != min(q.gpus)
    before = f"MTMD_BACKEND_DEVICE={buffer_name(problem, main, main)} " if own else ""
    return "\n".join([*servers, before + shlex.join(words) + where])


def vllm_serve(row: Row, steps: Steps) -> str:
    """The command line of vLLM, with the variables that it needs."""
    q, o, split, layout = steps.question, steps.question.options, _split(row), steps.layout
    numbers = device_numbers(steps.decode.problem)
    used = list(dict.fromkeys(split.home.tolist()))
    counts = [int(np.count_nonzero(split.home[:-1] == d)) for d in used]
    kinds = [q.cluster.kinds[q.cluster.device_kind[d]] for d in used]
    share = min(math.floor(100 * kind.usable_bytes / kind.memory_bytes) / 100 for kind in kinds)
    model, packed = _repository(q.file, q.name.rpartition(" ")[2])
    words = ["vllm", "serve", model, *packed, "--max-model-len", str(o.context), "--max-num-seqs", str(o.users)]
    words += ["--gpu-memory-utilization", f"{share:.2f}"]
    before, boxes = [], len(set(q.cluster.launchers.host.tolist())) > 1
    if boxes:
        words += ["--distributed-executor-backend", "ray"]
    elif [numbers[d] for d in used] != list(range(len(used))) or len(used) < len(q.gpus):
        before.append(f"CUDA_VISIBLE_DEVICES={','.join(str(numbers[d]) for d in used)}")
    if len(used) > 1:
        words += ["--pipeline-parallel-size", str(len(used))]
        if counts != stage_layers(layout.layers, len(used)):
            before.append(f"VLLM_PP_LAYER_PARTITION={','.join(map(str, counts))}")
    if split.streams:
        held = np.bincount(split.home[layout.layer], layout.bytes * (split.held == q.cpu), minlength=q.cluster.size)
        words += [
            "--cpu-offload-gb",
            str(math.floor(100 * held.max() / 2**30) / 100),
        ]  # vLLM stops at the first tensor beyond it
    words += ["--max-num-batched-tokens", str(o.ubatch)] if o.ubatch != 2048 else []
    words += ["--kv-cache-dtype", "fp8"] if o.cache == "fp8" else []
    return " ".join([*before, shlex.join(words)])


def _repository(file: str, weights: str) -> tuple[str, list[str]]:
    """The repository or folder of a model for vLLM and transformers, and vLLM's flags for weights that are not in it."""
    known = file.startswith((".", "/", "~")) or "/" in file
    name = file if known else f"ORGANISATION/{file}"
    if weights in ("bf16", "f16", "f32", "mxfp4") or weights in file.lower() or file.startswith((".", "/", "~")):
        return name, []
    if weights == "fp8":
        return name, ["--quantization", "fp8"]
    return f"{name}-{weights.upper()}", []


def from_pretrained(row: Row, steps: Steps) -> str:
    """Python for transformers."""
    q = steps.question
    assert row.map is not None
    devices = shortened_map(row.map.devices)
    return (
        f"device_map = {devices}\n"
        f'model = AutoModelForCausalLM.from_pretrained({json.dumps(q.file)}, dtype="auto", device_map=device_map)'
    )


def shards(row: Row, steps: Steps) -> str:
    """exo's shards, as JSON."""
    problem = steps.decode.problem
    device = steps.decode.operations.devices([_split(row)])[0].astype(np.int16)
    return EXO.write(problem, problem.placement(device)).text


def shortened_map(devices: Mapping[str, DeviceName]) -> str:
    """A device map as a Python expression, with a range for modules that differ in their numbers."""
    parts = []
    for (prefix, device), own in groupby(devices.items(), lambda x: (_numbered(x[0])[0], x[1])):
        keys = [key for key, _ in own]
        numbers = [_numbered(key)[1] for key in keys]
        if len(keys) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
            parts.append(f'**{{f"{prefix}{{i}}": {device!r} for i in range({numbers[0]}, {numbers[-1] + 1})}}')
        else:
            parts += [f'"{key}": {device!r}' for key in keys]
    return "{" + ", ".join(parts) + "}"


def _numbered(key: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.*\.)(\d+)", key)
    return (match[1], int(match[2])) if match else (key, -1)
