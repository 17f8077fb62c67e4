"""`placekit cluster detect`, and the machine of `cluster=auto`: a cluster file for the computer that this process runs on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from placekit_core import Cluster, ClusterError, Registry
from placekit_core.cli.parser import Parser
from placekit_core.contracts.cluster import DeviceKind
from placekit_core.contracts.files import parse_yaml
from placekit_core.contracts.units import count, mebibytes
from placekit_inspect.cluster_new import comment, figure, kind_lines, withheld_lines, write_or_print
from placekit_inspect.computer import Computer, Gpu, Processor, read_computer
from placekit_inspect.data_sheets import Parts, parts

HEAD = (
    "This computer, as `placekit cluster detect` reads it. From nvidia-smi and Linux: names, memory, PCIe generations and"
    " lanes, NVLinks, cores. Rates of GPUs are peaks of data sheets: float16 and bfloat16 dense, with float32"
    " accumulation; float32 is not TF32. Rates of the CPU are estimated. Nothing is measured: `placekit cluster profile`"
    " does that."
)
_STEP = 256 * 2**20  # what other programs hold is rounded up to this, so that a run finds the same machine again
_DRIVER = 400 * 2**20  # old drivers count their own memory as used; the reserve has it already
_CPU_LAUNCH_S = 2e-6
_BYTES_PER_S = {16: 51.2e9, 1024: 204.8e9}  # of a CPU with up to so many cores: two or eight channels of DDR4-3200


@dataclass(frozen=True)
class _Devices:
    """The GPUs of one kind: places in `Computer.gpus`, the part, and the memory that other programs hold."""

    part: str
    kind: DeviceKind
    places: Sequence[int]
    used_bytes: int


def main(argv: list[str], registry: Registry) -> int:
    """Print the file, or write it to OUT."""
    what = (
        "A cluster file of this computer, to be edited: its GPUs, their links, and the CPU. `cluster=auto` is the same"
        " machine. Nothing is measured."
    )
    parser = Parser("cluster detect", what)
    parser.add_argument("out", nargs="?", type=Path, metavar="OUT.yaml", help="the file; without it, it is printed")
    out: Path | None = parser.read(argv).out
    if out is not None and out.suffix not in (".yaml", ".yml"):
        raise ClusterError(f"{out} does not end in .yaml", "give the file a name in .yaml")
    write_or_print(out, lambda: computer_file(read_computer(), out.stem if out else "here"))
    return 0


def this_computer() -> Cluster:
    """The machine of `cluster=auto`. Raises ClusterError if it cannot be read."""
    return _parsed(computer_file(read_computer()))


def computer_file(computer: Computer, name: str = "here") -> str:
    """The content of a cluster file, with comments. Raises ClusterError for a GPU without a data sheet."""
    known = parts()
    kinds = _kinds(computer, known)
    processor = _processor_kind(computer.processor, known)
    names = {place: f"{kind}:{i}" for kind, own in kinds.items() for i, place in enumerate(own.places)}
    sources = [known.withheld_of(own.part).source for own in kinds.values()] + [known.withheld["cpu"].source]
    lines = [*comment(HEAD, ""), *withheld_lines(sources)]
    lines += [line for note in computer.notes for line in comment(f"{note[:1].upper()}{note[1:]}.", "")]
    lines += [f"name: {name}", f"description: {json.dumps(_described(computer, kinds, known))}", "kinds:"]
    for kind, own in kinds.items():
        held = f" Other programs hold {mebibytes(own.used_bytes)}, rounded up." if own.used_bytes else ""
        about = f"{known.kinds[own.part].title}. {known.kinds[own.part].source}.{held}"
        lines += kind_lines(kind, own.kind, about)
    lines += kind_lines("cpu", processor, _about_processor(computer.processor))
    lines.append("devices:")
    for kind, own in kinds.items():
        indices = ", ".join(str(computer.gpus[place].index) for place in own.places)
        lines += comment(f"{'GPUs' if len(own.places) > 1 else 'GPU'} {indices} of nvidia-smi.", "  ")
        lines.append(f"  - {{kind: {kind}{f', count: {len(own.places)}' if len(own.places) > 1 else ''}}}")
    lines.append("  - {kind: cpu}")
    if computer.gpus:
        lines += ["links:", *_nvlinks(computer, kinds, names, known), *_pcie(computer, kinds, names, known, processor)]
    content = "\n".join(lines) + "\n"
    _parsed(content)
    return content


def _parsed(content: str) -> Cluster:
    return Cluster.parse(parse_yaml(content.encode()), "this computer")


def _kinds(computer: Computer, known: Parts) -> dict[str, _Devices]:
    """The GPUs by kind; cards of one name with other memory, or with other programs on them, are kinds of their own."""
    found = dict[tuple[str, int, int], list[int]]()
    for place, gpu in enumerate(computer.gpus):
        used = -(-max(gpu.used_bytes - _DRIVER, 0) // _STEP) * _STEP
        found.setdefault((_part(gpu, known), gpu.memory_bytes, used), []).append(place)
    kinds, seen = dict[str, _Devices](), Counter[str]()
    for (part, memory, used), places in found.items():
        seen[part] += 1
        base = known.kind(part)
        reserve = {"memory_bytes": memory, "reserve_bytes": base.reserve_bytes + used}
        if reserve["reserve_bytes"] >= memory:
            raise ClusterError(
                f"GPU {computer.gpus[places[0]].index}, {computer.gpus[places[0]].name}, is full: other programs hold"
                f" {mebibytes(used)}",
                "end them, or leave it out: CUDA_VISIBLE_DEVICES",
            )
        name = part if seen[part] == 1 else f"{part}_{seen[part]}"
        kinds[name] = _Devices(part, base.model_copy(update=reserve), places, used)
    return kinds


def _part(gpu: Gpu, known: Parts) -> str:
    found = [name for name, part in known.kinds.items() if gpu.name in part.driver]
    if not found:
        raise ClusterError(
            f"there is no data sheet for GPU {gpu.index}, {gpu.name!r}",
            "measure it: `placekit cluster profile +backend=cuda`; or write a cluster file from the figures of a kind that"
            " `placekit cluster new` lists",
        )
    return found[0]


def _processor_kind(processor: Processor, known: Parts) -> DeviceKind:
    """The CPU: cores x clock x FLOP per cycle, half of it in float64."""
    flops = processor.cores * processor.hertz * processor.flops_per_cycle
    withheld = known.withheld["cpu"]
    return DeviceKind(
        type="cpu",
        flops_per_s={"float32": flops, "float64": flops / 2},
        memory_bytes=processor.memory_bytes,
        reserve_bytes=min(withheld.reserve_bytes, processor.memory_bytes // 4),
        headroom=withheld.headroom,
        memory_bytes_per_s=next(rate for cores, rate in _BYTES_PER_S.items() if processor.cores <= cores),
        launch_overhead_s=_CPU_LAUNCH_S,
    )


def _about_processor(processor: Processor) -> str:
    return (
        f"{processor.name}. Estimated: {processor.cores} cores x {processor.hertz / 1e9:.2f} GHz x {processor.flops_per_cycle}"
        " float32 FLOP per cycle. Nominal: bandwidth of the memory (two channels of DDR4-3200; eight, if there are more than 16"
        " cores), launch overhead."
    )


def _nvlinks(computer: Computer, kinds: dict[str, _Devices], names: dict[int, str], known: Parts) -> list[str]:
    """NVLinks: of each GPU to an NVSwitch where it has more neighbours than links, else between pairs."""
    lines, latency = list[str](), {form: figure(known.links[form].latency_s) for form in ("nvlink", "nvswitch")}
    switched = set[int]()
    for kind, own in kinds.items():
        sheet = known.kinds[own.part].nvlink
        for place in own.places:
            each = [n for (a, _), n in computer.nvlinks.items() if a == place]
            links = computer.nvlink_count.get(place, sheet.links if sheet else max(each, default=0))
            if sum(each) > links:
                switched.add(place)
                rate = figure(links * _nvlink_bytes_per_s(computer, place, kind, known, kinds))
                lines.append(
                    f'  - {{a: "{names[place]}", b: nvswitch, bytes_per_s: {rate}, latency_s: {latency["nvswitch"]}}}'
                )
    for (a, b), n in sorted(computer.nvlinks.items()):
        if a < b and not {a, b} <= switched:
            kind = names[a].rpartition(":")[0]
            rate = figure(n * _nvlink_bytes_per_s(computer, a, kind, known, kinds))
            lines.append(
                f'  - {{a: "{names[a]}", b: "{names[b]}", bytes_per_s: {rate}, latency_s: {latency["nvlink"]}}}'
            )
    return (
        [*comment("NVLink, as `nvidia-smi topo -m` and `nvidia-smi nvlink --status` say.", "  "), *lines]
        if lines
        else []
    )


def _nvlink_bytes_per_s(computer: Computer, place: int, kind: str, known: Parts, kinds: dict[str, _Devices]) -> float:
    """Bandwidth of one NVLink of a GPU: the driver's figure, else that of the data sheet. Raises ClusterError."""
    sheet = known.kinds[kinds[kind].part].nvlink
    if place not in computer.nvlink_bytes_per_s and sheet is None:
        raise ClusterError(
            f"the bandwidth of the NVLinks of GPU {computer.gpus[place].index}, {computer.gpus[place].name}, is not known",
            "write a cluster file: `placekit cluster new`",
        )
    return computer.nvlink_bytes_per_s.get(place, sheet.bytes_per_s if sheet else 0.0)


def _pcie(
    computer: Computer, kinds: dict[str, _Devices], names: dict[int, str], known: Parts, processor: DeviceKind
) -> list[str]:
    """The PCIe link of each GPU, and the CPU's memory, on one hub."""
    number = len(computer.gpus)
    apart = {place: not known.kinds[own.part].peer_to_peer for own in kinds.values() for place in own.places}
    staged = number > 1 and any(apart.values())
    hub = "host" if staged else "pcie"
    lines = comment(f"PCIe: three quarters of the raw bandwidth, nominal. {_HUB if staged else ''}".strip(), "  ")
    if staged:
        lines += comment(f"Hub `host`: {known.staged.source}.", "  ")
    for place, gpu in enumerate(computer.gpus):
        through_host = staged and apart[place]
        lane = known.links["pcie3"].bytes_per_s
        assert lane is not None
        rate = figure(lane * 2.0 ** (gpu.generation - 3) * gpu.lanes)
        latency = figure(known.staged.latency_s if through_host else known.links["pcie3"].latency_s)
        lines += comment(f"GPU {gpu.index}: PCIe {gpu.generation}.0 x{gpu.lanes}, {count(float(rate))}B/s.", "  ")
        half = ", duplex: half" if through_host else ""
        lines.append(f'  - {{a: "{names[place]}", b: {hub}, bytes_per_s: {rate}, latency_s: {latency}{half}}}')
    lines += comment("The CPU reads and writes its memory for all links at once.", "  ")
    each = f", concurrent: {number}" if number > 1 else ""
    lines.append(f'  - {{a: "cpu:0", b: {hub}, bytes_per_s: {figure(processor.memory_bytes_per_s)}{each}}}')
    return lines


_HUB = "A driver with peer-to-peer: write `duplex: full`."


def _described(computer: Computer, kinds: dict[str, _Devices], known: Parts) -> str:
    found = [f"{len(own.places)} x {known.kinds[own.part].title}" for own in kinds.values()]
    found.append(f"{computer.processor.name}, {computer.processor.cores} cores")
    return " + ".join(found)
