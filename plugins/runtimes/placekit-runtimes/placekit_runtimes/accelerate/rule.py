"""accelerate's device maps for a problem: `device_map="auto"` and `"sequential"`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from placekit_core import ConfigError, NotApplicable, Placement, Problem, units
from placekit_runtimes.accelerate.auto_map import Modules, balanced_memory, infer_device_map
from placekit_runtimes.interface import Rule, cpu_of
from placekit_runtimes.layers import Network
from placekit_runtimes.options import AccelerateOptions, RuleOptions


class AccelerateSequential(Rule):
    """The first GPU is filled with weights, then the next one, then the CPU: `device_map="sequential"`."""

    name = "accelerate_sequential"
    options_class: ClassVar[type[RuleOptions]] = AccelerateOptions

    def rule(self, problem: Problem, note: Callable[[str], None]) -> Placement:
        """The placement. Raises NotApplicable if weights are left that accelerate would keep in memory the machine lacks.

        That is the host's memory, which every computer of accelerate has, or else the disk.
        """
        network, devices = Network.of(problem), self.ranks(problem)
        tensors, ties = tensors_of(network)
        modules = Modules(tensors, [network.blocks.names[b] for b in network.of_layer])
        cpu = cpu_of(problem)
        names = problem.cluster.device_names
        gpus = [names[d] for d in devices if problem.device_type(d) == "gpu"]
        memory = self._memory(network, gpus, [*gpus, *([names[cpu]] if cpu is not None else [])])
        memory = self.balanced(modules, memory, gpus)
        reserving = {*gpus[:1], *([names[cpu]] if cpu is not None else [])}
        device_map = infer_device_map(modules, list(memory.items()), reserving, ties)
        _refuse_disk(modules, device_map, memory, "" if cpu is None else names[cpu])
        moved = [path for path, device in device_map.items() if gpus and device not in gpus]
        if moved:
            size = units.mebibytes(sum(modules.size[p] for p in moved))
            note(
                f"{len(moved)} modules, {size}, do not fit on the GPUs: accelerate would keep them in host memory and compute"
                " them on the first GPU; in this placement the CPU computes them"
            )
        return network.placed_groups(
            devices_of_groups(network, {p: names.index(d) for p, d in device_map.items()}, devices[0])
        )

    def balanced(self, modules: Modules, memory: dict[str, int], gpus: list[str]) -> dict[str, int]:
        """The bytes that weights may take on each device; `sequential` may use all."""
        return memory

    def _memory(self, network: Network, gpus: list[str], names: list[str]) -> dict[str, int]:
        """Bytes for weights on the devices `names` (the GPUs, then perhaps a CPU): all their memory, or `max_memory`.

        A CPU that `max_memory` lacks gets 80% of its memory. Raises ConfigError for other keys of `max_memory`.
        """
        cluster, limits = network.problem.cluster, self.options.max_memory
        if limits is None:
            return {name: int(cluster.memory_bytes[cluster.device_index(name)]) for name in names}
        by_key = dict(zip(names, names, strict=True)) | {str(i): name for i, name in enumerate(gpus)}
        if len(names) > len(gpus):
            by_key["cpu"] = names[-1]
        unknown = [key for key in limits if key not in by_key]
        if unknown:
            raise ConfigError(
                f"max_memory names {unknown[0]!r}, which accelerate would not use here", f"devices: {', '.join(by_key)}"
            )
        given = {by_key[key]: size for key, size in limits.items()}
        if "cpu" in by_key and by_key["cpu"] not in given:
            given[names[-1]] = int(0.8 * cluster.memory_bytes[cluster.device_index(names[-1])])
        return {name: given[name] for name in names if name in given}


class AccelerateAuto(AccelerateSequential):
    """The weights evenly over all GPUs, in order: `device_map="auto"` (`"balanced"`)."""

    name = "accelerate_auto"

    def balanced(self, modules: Modules, memory: dict[str, int], gpus: list[str]) -> dict[str, int]:
        """An even share of the weights and a margin on each device; the last GPU may use all its memory."""
        limited = self.options.max_memory is not None
        return balanced_memory(modules, memory, gpus, limited)


def tensors_of(network: Network) -> tuple[dict[str, int], list[frozenset[str]]]:
    """Bytes of parameters and buffers by name, in the order of their blocks, and the sets of names that share a tensor.

    A name begins with its block's name. A parameter that other blocks read, too (an output tied to the embedding), is listed
    in those blocks with 0 bytes, because accelerate counts it once.
    """
    graph, blocks = network.problem.graph, network.blocks
    of_op = blocks.of_group[network.problem.grouping.group_of]
    source = np.isin(
        graph.op_type.codes, [i for i, t in enumerate(graph.op_type.vocabulary) if t in ("parameter", "buffer")]
    )
    reads = (
        graph.kernel[graph.edge_op]
        & (graph.phase[graph.edge_op] == 0)
        & source[graph.tensor_producer[graph.input_tensor]]
    )
    readers: defaultdict[int, set[int]] = defaultdict(set)
    for tensor, op in zip(graph.input_tensor[reads].tolist(), graph.edge_op[reads].tolist(), strict=True):
        readers[int(graph.tensor_producer[tensor])].add(int(of_op[op]))
    named: list[tuple[int, str, int]] = []
    ties = []
    for v in np.flatnonzero(source).tolist():
        own = int(of_op[v])
        paths = [_path(blocks.names[own], graph.op_name[v])]
        named.append((own, paths[0], int(graph.persistent_bytes[v])))
        if graph.op_type[v] == "parameter":
            for other in sorted(readers[v] - {own}):
                paths.append(f"{blocks.names[other]}.{graph.op_name[v].rpartition('.')[2]}")
                named.append((other, paths[-1], 0))
        if len(paths) > 1:
            ties.append(frozenset(paths))
    return {path: size for _, path, size in sorted(named, key=lambda item: item[0])}, ties


def devices_of_groups(network: Network, device_map: dict[str, int], first: int) -> NDArray[np.int64]:
    """[g] device of each group: its module's in the map, else its block's; `first` if the map is empty.

    A block without weights is on the device of the block before it, as activations stay where they are.
    """
    blocks, graph = network.blocks, network.problem.graph
    of_block = [_device_of_block(name, device_map) for name in blocks.names]
    known = next((d for d in of_block if d is not None), first)
    for b, device in enumerate(of_block):
        known = known if device is None else device
        of_block[b] = known
    result = np.asarray(of_block)[blocks.of_group]
    inside = {key for key in device_map if any(key.startswith(f"{name}.") for name in blocks.names)}
    if inside:
        _, first_op = np.unique(network.problem.grouping.group_of, return_index=True)
        for g, v in enumerate(first_op.tolist()):
            path = graph.module[v] if graph.kernel[v] else graph.op_name[v]
            key = max((k for k in inside if f"{path}.".startswith(f"{k}.")), key=len, default=None)
            result[g] = result[g] if key is None else device_map[key]
    return result


def _device_of_block(name: str, device_map: dict[str, int]) -> int | None:
    """A block's device: the entry of the block or of a module around it, else the first entry inside it, else None."""
    over = [d for key, d in device_map.items() if f"{name}.".startswith(f"{key}.")]
    return next(iter(over or [d for key, d in device_map.items() if key.startswith(f"{name}.")]), None)


def _path(block: str, name: str) -> str:
    return name if name.startswith(f"{block}.") else f"{block}.{name}"


def _refuse_disk(modules: Modules, device_map: dict[str, str], memory: dict[str, int], cpu: str) -> None:
    """Raise NotApplicable for modules on the disk; on a machine without a CPU, `cpu` is empty, and they are in host memory."""
    rest = [path for path, device in device_map.items() if device == "disk"]
    if not rest:
        return
    left = f"{len(rest)} modules, {units.mebibytes(sum(modules.size[p] for p in rest))}"
    room = ", ".join(f"{name} {units.mebibytes(size)}" for name, size in memory.items())
    room = f"beginning with {rest[0]!r}: the room for weights is {room}, less the largest module on the first"
    if cpu:
        raise NotApplicable(
            f"accelerate would leave {left}, on disk, {room}, and on {cpu}",
            "use a machine with more memory, a smaller model, or a higher policy.max_memory",
        )
    raise NotApplicable(
        f"accelerate would keep {left}, in host memory and copy them to the first GPU in every pass, {room}; the machine does not"
        " describe the host, so this has no simulated time",
        "give the machine its host, as in `placekit cluster new 'rtx4090 + 64gb ddr5-5600'`, or use a smaller model",
    )
