"""Writes the cluster file of this computer (`placekit cluster new auto`), and builds the machine for `cluster=auto`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from placekit_core import Cluster, ClusterError
from placekit_core.contracts.cluster import DeviceKind
from placekit_core.contracts.files import parse_yaml
from placekit_core.contracts.units import count, mebibytes
from placekit_inspect.cluster_file import KindEntry, cluster_text, comment, host, link, withheld_note
from placekit_inspect.computer import Computer, Gpu, Processor, read_computer
from placekit_inspect.data_sheets import NvLink, Parts, parts

HEAD = (
    "This computer, written by `placekit cluster new auto`. From nvidia-smi and Linux: names, memory, PCIe generations and"
    " lanes, NVLinks, cores. Rates of GPUs are peaks of data sheets: float16 and bfloat16 dense, with float32"
    " accumulation; float32 is not TF32. Rates of the CPU are estimated. Nothing is measured: `placekit cluster profile`"
    " does that."
)
_STEP = 256 * 2**20  # memory of other programs is rounded up to this, so that the next run finds the same machine
_DRIVER = 400 * 2**20  # old drivers count their own memory as used, but the reserve includes it already
_CPU_LAUNCH_S = 2e-6
_CHANNELS = {16: 2, 1024: 8}  # of DDR4-3200, by largest number of cores
_CHANNEL_BYTES_PER_S = 25.6e9


@dataclass(frozen=True)
class _Gpus:
    """The GPUs of one kind: entry of `parts.yaml`, positions in `Computer.gpus`, bytes that other programs hold on each."""

    part: str
    kind: DeviceKind
    positions: Sequence[int]
    used_bytes: int


def this_computer() -> Cluster:
    """The machine of `cluster=auto`. Raises ClusterError if the computer cannot be read."""
    return Cluster.parse(parse_yaml(computer_file(read_computer()).encode()), "this computer")


def computer_file(computer: Computer, name: str = "here") -> str:
    """The content of a cluster file, with comments. Raises ClusterError for a GPU without a data sheet."""
    known = parts()
    gpus = _gpu_kinds(computer, known)
    processor = _processor_kind(computer.processor, known)
    names = {position: f"{kind}:{i}" for kind, own in gpus.items() for i, position in enumerate(own.positions)}
    kinds = {
        kind: KindEntry(own.kind, len(own.positions), _comment_on_gpus(own, computer, known))
        for kind, own in gpus.items()
    }
    kinds["cpu"] = KindEntry(processor, 1, _comment_on_cpu(computer.processor))
    sources = [known.withheld_of(own.part).source for own in gpus.values()] + [known.withheld["cpu"].source]
    links: list[str] = []
    if gpus:
        links = [*_nvlinks(computer, gpus, names, known), *_pcie(computer, gpus, names, known, processor)]
    found = [f"{len(own.positions)} x {known.kinds[own.part].title}" for own in gpus.values()]
    described = " + ".join([*found, f"{computer.processor.name}, {computer.processor.cores} cores"])
    head = [HEAD, withheld_note(sources), *(f"{note[:1].upper()}{note[1:]}." for note in computer.notes)]
    about = known.host.source
    hosts = [*comment(f"{about[:1].upper()}{about[1:]}."), host(known.host)]
    return cluster_text(head, name, json.dumps(described), kinds, links, hosts)


def _gpu_kinds(computer: Computer, known: Parts) -> dict[str, _Gpus]:
    """The GPUs by kind. Equal cards with different memory, or different use by other programs, are separate kinds."""
    found = dict[tuple[str, int, int], list[int]]()
    for position, gpu in enumerate(computer.gpus):
        used = -(-max(gpu.used_bytes - _DRIVER, 0) // _STEP) * _STEP
        found.setdefault((_part(gpu, known), gpu.memory_bytes, used), []).append(position)
    kinds, seen = dict[str, _Gpus](), Counter[str]()
    for (part, memory, used), positions in found.items():
        seen[part] += 1
        base = known.kind(part)
        reserve = {"memory_bytes": memory, "reserve_bytes": base.reserve_bytes + used}
        if reserve["reserve_bytes"] >= memory:
            raise ClusterError(
                f"GPU {computer.gpus[positions[0]].index}, {computer.gpus[positions[0]].name}, is full: other programs hold"
                f" {mebibytes(used)}",
                "end them, or leave it out: CUDA_VISIBLE_DEVICES",
            )
        name = part if seen[part] == 1 else f"{part}_{seen[part]}"
        kinds[name] = _Gpus(part, base.model_copy(update=reserve), positions, used)
    return kinds


def _part(gpu: Gpu, known: Parts) -> str:
    found = [name for name, part in known.kinds.items() if gpu.name in part.driver]
    if not found:
        raise ClusterError(
            f"there is no data sheet for GPU {gpu.index}, {gpu.name!r}",
            "measure it: `placekit cluster profile +backend=cuda`; or write a cluster file from the figures of a kind that"
            " `placekit cluster kinds` lists",
        )
    return found[0]


def _comment_on_gpus(own: _Gpus, computer: Computer, known: Parts) -> str:
    part, numbers = known.kinds[own.part], ", ".join(str(computer.gpus[p].index) for p in own.positions)
    held = f" Other programs hold {mebibytes(own.used_bytes)}, rounded up." if own.used_bytes else ""
    which = f"{'GPUs' if len(own.positions) > 1 else 'GPU'} {numbers} of nvidia-smi"
    return f"{part.title}: {which}. {part.source}.{held}\n{known.origin(own.part)}"


def _processor_kind(processor: Processor, known: Parts) -> DeviceKind:
    """The CPU as a device: FLOP/s are cores x clock x FLOP per cycle, and half of that in float64."""
    flops = processor.cores * processor.hertz * processor.flops_per_cycle
    withheld = known.withheld["cpu"]
    channels = next(n for cores, n in _CHANNELS.items() if processor.cores <= cores)
    return DeviceKind(
        type="cpu",
        flops_per_s={"float32": flops, "float64": flops / 2},
        memory_bytes=processor.memory_bytes,
        reserve_bytes=min(withheld.reserve_bytes, processor.memory_bytes // 4),
        headroom=withheld.headroom,
        memory_bytes_per_s=channels * _CHANNEL_BYTES_PER_S,
        launch_overhead_s=_CPU_LAUNCH_S,
        efficiency=known.host_efficiency(channels),
    )


def _comment_on_cpu(processor: Processor) -> str:
    return (
        f"{processor.name}. Estimated: {processor.cores} cores x {processor.hertz / 1e9:.2f} GHz x {processor.flops_per_cycle}"
        " float32 FLOP per cycle. Nominal: bandwidth of the memory (two channels of DDR4-3200; eight, if there are more than 16"
        " cores), launch overhead. Measured on other CPUs: efficiency."
    )


def _nvlinks(computer: Computer, gpus: dict[str, _Gpus], names: dict[int, str], known: Parts) -> list[str]:
    """The NVLinks: to an NVSwitch if a GPU has more NVLinks to others than the card has, else between pairs."""
    sheets: dict[int, NvLink] = {}
    for own in gpus.values():
        for position in own.positions:
            sheet = known.kinds[own.part].nvlink
            if sheet is not None:
                sheets[position] = sheet
            elif any(position in pair for pair in computer.nvlinks):
                raise ClusterError(
                    f"the bandwidth of the NVLinks of GPU {computer.gpus[position].index},"
                    f" {computer.gpus[position].name}, is not known",
                    "write a cluster file: `placekit cluster new`",
                )
    lines, latency = list[str](), {form: known.links[form].latency_s for form in ("nvlink", "nvswitch")}
    number: Counter[int] = Counter()
    for (a, _), n in computer.nvlinks.items():
        number[a] += n
    switched = {a for a, n in number.items() if n > sheets[a].links}
    for a in sorted(switched):
        rate = sheets[a].links * sheets[a].bytes_per_s
        lines.append(link(f'a: "{names[a]}", b: nvswitch', rate, latency["nvswitch"]))
    for (a, b), n in sorted(computer.nvlinks.items()):
        if a < b and not {a, b} <= switched:
            lines.append(link(f'a: "{names[a]}", b: "{names[b]}"', n * sheets[a].bytes_per_s, latency["nvlink"]))
    return [*comment("NVLinks according to `nvidia-smi topo -m`."), *lines] if lines else []


def _pcie(
    computer: Computer, gpus: dict[str, _Gpus], names: dict[int, str], known: Parts, processor: DeviceKind
) -> list[str]:
    """The PCIe link of each GPU, and the CPU's memory, on one hub."""
    number = len(computer.gpus)
    apart = {position: not known.kinds[own.part].peer_to_peer for own in gpus.values() for position in own.positions}
    staged = number > 1 and any(apart.values())
    hub, driver = ("host", " With a peer-to-peer driver: write `duplex: full`.") if staged else ("pcie", "")
    lines = comment(f"PCIe: three quarters of the raw bandwidth, nominal.{driver}")
    if staged:
        lines += comment(f"Hub `host`: {known.staged.source}.")
    for position, gpu in enumerate(computer.gpus):
        through_host = staged and apart[position]
        lane = known.links["pcie3"].bytes_per_s
        assert lane is not None
        rate = lane * 2.0 ** (gpu.generation - 3) * gpu.lanes
        latency = known.staged.latency_s if through_host else known.links["pcie3"].latency_s
        lines += comment(f"GPU {gpu.index}: PCIe {gpu.generation}.0 x{gpu.lanes}, {count(rate)}B/s.")
        lines.append(link(f'a: "{names[position]}", b: {hub}', rate, latency, "half" if through_host else "full"))
    lines += comment("The CPU reads and writes its memory for all links at once.")
    lines.append(link(f'a: "cpu:0", b: {hub}', processor.memory_bytes_per_s, concurrent=number))
    return lines
