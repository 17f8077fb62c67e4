"""Placements as the texts that vLLM, torchtitan, Megatron-LM, exo and llama.cpp take.

Each function reads a placement by layers (`stages.py`) and returns a `Form`: the text, and the placement that the text means,
with embedding and head where that runtime puts them. Its docstring names the public source of the format; the code is our own.
"""

from __future__ import annotations

import json

import numpy as np

from placekit_core import PHASES, Placement, PlacementError, Problem
from placekit_torch.forms import Form
from placekit_torch.stages import Layers, Stages, device_names


def vllm(problem: Problem, placement: Placement) -> Form:
    """Environment variables: `VLLM_PP_LAYER_PARTITION=10,14`, the layers of each stage, for `--pipeline-parallel-size 2`.

    The embedding is on the first rank, norm and head on the last. Where the ranks are not the machine's first GPUs in order,
    a line before it sets `CUDA_VISIBLE_DEVICES`.

    Source: vllm-project/vllm, vllm/distributed/utils.py, `get_pp_indices`, commit 5a6541d;
    vllm/model_executor/models/llama.py, commit e06c9ba.
    """
    stages = Stages.of(problem, placement, "vLLM")
    order = [] if stages.visible is None else [f"CUDA_VISIBLE_DEVICES={stages.visible}"]
    return stages.form("vllm", "\n".join([*order, f"VLLM_PP_LAYER_PARTITION={','.join(map(str, stages.counts))}"]))


def megatron(problem: Problem, placement: Placement) -> Form:
    """`--pipeline-model-parallel-layout`: stages between `|`, of a `t` per layer; the embedding `E` is first, the loss `L` last.

    `t*3` is `ttt`. With p ranks, stage i of s is on rank i mod p; s / p stages on each rank are virtual stages.

    Source: NVIDIA/Megatron-LM, megatron/core/transformer/pipeline_parallel_layer_layout.py, commit 00caa53.
    """
    stages = Stages.of(problem, placement, "Megatron-LM", loops=True)
    parts = ["" if not count else "t" if count == 1 else f"t*{count}" for count in stages.counts]
    parts[0] = f"E{parts[0]}"
    parts[-1] = f"{parts[-1]}L"
    return stages.form("megatron", "|".join(parts), _ranks(stages))


def torchtitan(problem: Problem, placement: Placement) -> Form:
    """`parallelism.module_fqns_per_model_part`: for each stage the children of the model, and the elements of its lists.

    It is a list of lists, as JSON, TOML and Python write it. With p ranks, stage i of s is on rank i mod p.

    Source: pytorch/torchtitan, torchtitan/distributed/pipeline_parallel.py, `pipeline_module_split`, commit 02ef790.

    Raises PlacementError, besides the errors of `Stages.of`, for a module with parameters that is in several stages.
    """
    stages = Stages.of(problem, placement, "torchtitan", loops=True)
    parts: list[list[str]] = [[] for _ in stages.counts]
    for module, (where, has_parameters) in _parts(stages).items():
        if len(where) > 1 and has_parameters:
            raise PlacementError(
                f"torchtitan divides the children of the model and the elements of its lists, and {module!r} is in stages"
                f" {' and '.join(map(str, where))}",
                "give the importer the module whose child is the list of layers",
            )
        for s in where:
            parts[s].append(module)
    return stages.form("torchtitan", json.dumps(parts), _ranks(stages))


def exo(problem: Problem, placement: Placement) -> Form:
    """The shard of each node, in the order of the ranks: layers from `startLayer` up to, without, `endLayer`.

    Each node has a layer at least. In the simulation the first node has the embedding and the last one the head; exo loads
    both on every node. The model card and the identifiers of nodes and runners are exo's own (`/instance/previews`).

    Source: exo-explore/exo, src/exo/shared/types/worker/shards.py and runners.py at 05e3383,
    src/exo/worker/engines/mlx/auto_parallel.py at 00fc33f.
    """
    stages = Stages.of(problem, placement, "exo", empty=False)
    ends = np.cumsum(stages.counts).tolist()
    shards = [
        {
            "node": problem.cluster.device_names[device],
            "PipelineShardMetadata": {
                "deviceRank": rank,
                "worldSize": len(ends),
                "startLayer": ends[rank] - stages.counts[rank],
                "endLayer": ends[rank],
                "nLayers": ends[-1],
            },
        }
        for rank, device in enumerate(stages.devices)
    ]
    return stages.form("exo", "[\n" + ",\n".join(f" {json.dumps(s)}" for s in shards) + "\n]")


def llamacpp(problem: Problem, placement: Placement) -> Form:
    """Arguments: `--n-gpu-layers 25 --tensor-split 10,15`, how many of the last layers GPUs have, and the layers of each GPU.

    The output counts as a layer, the last one. The embedding is always on the CPU; if the machine has none, it is counted
    where the first layer is. `--device` names the GPUs where they are not in the machine's order, as the CUDA backend does.

    Source: ggml-org/llama.cpp, docs/multi-gpu.md at 5815cb8, and `load_tensors` in src/llama-model.cpp since pull request
    18148: before it, the output was on a GPU only if all layers were.

    Raises PlacementError for layers that go back to a GPU, or from a GPU to the CPU; and if there are no layers.
    """
    layers = Layers.of(problem, placement, "llama.cpp")
    is_gpu = [problem.device_type(d) == "gpu" for d in range(problem.cluster.size)]
    devices = [*layers.devices, layers.devices[-1] if layers.after is None else layers.after]
    on_cpu = next((i for i, d in enumerate(devices) if is_gpu[d]), len(devices))
    used = devices[on_cpu:-1]
    if devices[-1] in used or (used and not is_gpu[devices[-1]]):
        devices[-1] = used[-1]  # the output is on the last GPU, with the last layers or alone
    gpus = list(dict.fromkeys(devices[on_cpu:]))
    _check_order(layers, devices, on_cpu, is_gpu)
    counts = {d: devices.count(d) for d in gpus}
    cpu = next((d for d, gpu in enumerate(is_gpu) if not gpu), devices[0])
    text = [f"--n-gpu-layers {len(devices) - on_cpu}"]
    if gpus == sorted(gpus):
        shares = [str(counts.get(d, 0)) for d in range(gpus[-1] + 1) if is_gpu[d]] if gpus else []
    else:
        shares = [str(counts[d]) for d in gpus]
        text.insert(0, f"--device {','.join(f'CUDA{device_names(problem)[d]}' for d in gpus)}")
    text += [f"--tensor-split {','.join(shares)}"] if shares else []
    return layers.form("llamacpp", " ".join(text), devices[:-1], cpu, devices[-1], ())


def _check_order(layers: Layers, devices: list[int], on_cpu: int, is_gpu: list[bool]) -> None:
    """Raise PlacementError that names a layer on a device that llama.cpp cannot give it."""
    names = layers.problem.cluster.device_names
    for i in range(on_cpu + 1, len(devices)):
        here, before = devices[i], devices[i - 1]
        if not is_gpu[here]:
            why = f"layer {layers.name(i)!r} is on {names[here]}, after {layers.name(i - 1)!r} on {names[before]}"
            raise PlacementError(f"llama.cpp has the first layers on the CPU, and {why}", _ANY)
        if here != before and here in devices[on_cpu : i - 1]:
            why = f"layer {layers.name(i)!r} goes back to {names[here]} after {layers.name(i - 1)!r} on {names[before]}"
            raise PlacementError(f"llama.cpp takes consecutive layers, and {why}", _ANY)


_ANY = "`--format device_map` holds any placement; policy=chain finds the best one with consecutive layers"


def _ranks(stages: Stages) -> list[str]:
    """What launches have to know besides the stages: which GPU each rank has, and that ranks have several stages."""
    found, ranks = [], len(stages.ranks)
    if stages.visible is not None:
        found.append(f"the order of the ranks is another than the machine's: CUDA_VISIBLE_DEVICES={stages.visible}")
    if len(stages.devices) > ranks:
        found.append(f"{len(stages.devices)} stages on {ranks} ranks need an interleaved schedule")
    return found


def _parts(stages: Stages) -> dict[str, tuple[list[int], bool]]:
    """The children of the model, with elements for lists: stages in which each works, and whether it has parameters."""
    blocks, graph = stages.layers.blocks, stages.layers.problem.graph
    stage_of_layer = np.repeat(np.arange(len(stages.counts)), stages.counts)
    position = np.searchsorted(stages.layers.of_layer, np.arange(len(blocks)), side="right") - 1
    stage = np.append(stage_of_layer, 0)[position]
    stage[int(stages.layers.of_layer[-1]) + 1 :] = len(stages.counts) - 1
    works = graph.kernel & (graph.phase == PHASES.index("forward"))
    owns = graph.op_type.is_value("parameter") | graph.op_type.is_value("buffer")
    found: dict[str, tuple[set[int], bool]] = {}
    order = graph.topological_order
    for v in [*order[works[order]].tolist(), *np.flatnonzero(owns).tolist()]:
        child, _, rest = graph.module[v].partition(".")
        if child not in ("", "loss"):
            index = rest.partition(".")[0]
            name = f"{child}.{index}" if index.isdigit() else child
            where, has = found.get(name, (set(), False))
            if works[v] or not where:
                where = where | {int(stage[blocks.of_op[v]])}
            found[name] = where, has or bool(owns[v])
    return {name: (sorted(where), has) for name, (where, has) in found.items()}
