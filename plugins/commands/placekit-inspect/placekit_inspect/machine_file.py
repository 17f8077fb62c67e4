"""`placekit cluster new`: a cluster file from a machine in words, from the figures in `parts.yaml`."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from placekit_core import Cluster, ClusterError, Registry
from placekit_core.cli.arguments import quoted
from placekit_core.cli.console import table, wrapped
from placekit_core.cli.parser import Parser
from placekit_core.contracts.cluster import DeviceKind
from placekit_core.contracts.files import parse_yaml, write_atomically
from placekit_core.contracts.units import count, mebibytes
from placekit_inspect.data_sheets import LinkPart, Parts, parts
from placekit_inspect.machine_words import HOW, Box, Machine, read_machine

HEAD = """\
Rates are peaks of data sheets: float16 and bfloat16 dense, with float32 accumulation; float32 is not TF32. Bandwidths
are per direction. Launch overheads and latencies are nominal, unless a comment says where they come from.
`placekit cluster profile` measures a machine that is at hand."""
WIDTH = 120  # of a line of the file


def main(argv: list[str], registry: Registry) -> int:
    """Print the file or write it to OUT; without a machine, list the parts."""
    what = (
        "A cluster file from a machine in words, to be edited: devices, then after commas their link, and for several boxes"
        " the network. Without a machine: the devices and links that are known."
    )
    parser = Parser("cluster new", what)
    parser.add_argument("machine", nargs="?", metavar="MACHINE", help=f"in quotes; {HOW}")
    parser.add_argument("out", nargs="?", type=Path, metavar="OUT.yaml", help="the file; without it, it is printed")
    arguments = parser.read(argv)
    if arguments.machine is None:
        show_parts(parts())
        return 0
    out: Path | None = arguments.out
    if out is not None and out.suffix not in (".yaml", ".yml"):
        raise ClusterError(
            f"{out} does not end in .yaml", "put the machine in quotes, and give the file a name in .yaml"
        )
    write_or_print(out, lambda: cluster_file(arguments.machine, out.stem if out else ""))
    return 0


def write_or_print(out: Path | None, content: Callable[[], str]) -> None:
    """Write the content of a cluster file to `out`, or print it. Raises ClusterError if `out` exists or cannot be written."""
    if out is not None and out.exists():
        raise ClusterError(f"{out} exists already", "remove it, or choose another name")
    text = content()
    if out is None:
        print(text, end="")
        return
    try:
        write_atomically(out, text.encode())
    except OSError as e:
        raise ClusterError(f"cannot write {out}: {e.strerror}") from None
    print(f"written to {out}; place on it with `placekit run cluster={quoted(str(out))}`")


def show_parts(known: Parts) -> None:
    """The tables of devices and links."""
    rows = [
        [
            name,
            p.title,
            f"{count(p.flops_per_s['float32'])}FLOP/s",
            mebibytes(p.memory_bytes),
            _rate(p.memory_bytes_per_s),
        ]
        for name, p in known.kinds.items()
    ]
    table(["kind", "device", "float32", "memory", "bandwidth"], rows, left=2)
    print()
    per = {"pcie": " per lane", "nvlink": "the GPU's", "nvswitch": "the GPU's", "shared": "half of the memory's"}
    rows = [
        [name, "boxes" if p.joins_boxes else "devices of a box",
         f"{_rate(p.bytes_per_s) if p.bytes_per_s else ''}{per.get(p.form, '')}"]
        for name, p in known.links.items()
    ]  # fmt: skip
    table(["link", "connects", "bandwidth per direction"], rows, left=2)
    print(wrapped(HOW))


def cluster_file(text: str, name: str = "") -> str:
    """The content of a cluster file, with comments, for a machine in words. Raises ClusterError."""
    known = parts()
    machine = read_machine(text, known)
    links = _Links(machine, known).lines()
    kinds = _numbers(machine)
    lines = [*comment(f"`placekit cluster new {quoted(' '.join(text.split()))}`.", ""), *comment(HEAD, "")]
    lines += withheld_lines(known.withheld_of(kind).source for kind in kinds)
    lines += [f"name: {name or _slug(machine)}", f"description: {_described(machine, known)}", "kinds:"]
    for kind in kinds:
        part = known.kinds[kind]
        nominal = f" Nominal: {part.nominal}." if part.nominal else ""
        lines += kind_lines(kind, known.kind(kind), f"{part.title}. {part.source}.{nominal}")
    lines.append("devices:")
    lines += [f"  - {{kind: {kind}{f', count: {number}' if number > 1 else ''}}}" for kind, number in kinds.items()]
    lines += ["links:", *links] if links else []
    content = "\n".join(lines) + "\n"
    Cluster.parse(parse_yaml(content.encode()), f"the file of {text!r}")
    return content


def _numbers(machine: Machine) -> dict[str, int]:
    """Number of devices of each kind."""
    numbers: dict[str, int] = {}
    for box in machine.each():
        for kind, number in box.devices:
            numbers[kind] = numbers.get(kind, 0) + number
    return numbers


def withheld_lines(sources: Iterable[str]) -> list[str]:
    """The sources of `reserve_bytes` and `headroom`, as a comment."""
    return comment(f"Not for placements (reserve_bytes, headroom): {'. '.join(dict.fromkeys(sources))}.", "")


def kind_lines(name: str, kind: DeviceKind, about: str) -> list[str]:
    """A kind as lines of a cluster file, with `about` above it."""
    rates = ", ".join(f"{dtype}: {figure(rate)}" for dtype, rate in kind.flops_per_s.items())
    written = {"type", "flops_per_s", "memory_bytes", "memory_bytes_per_s", "launch_overhead_s"}
    others = kind.model_dump(exclude=written | {"reserve_bytes", "headroom"}, exclude_defaults=True)
    kept = {key: getattr(kind, key) for key in ("reserve_bytes", "headroom") if getattr(kind, key)}
    return [
        *comment(about, "  "),
        f"  {name}:",
        *(["    type: cpu"] if kind.type == "cpu" else []),
        f"    flops_per_s: {{{rates}}}",
        f"    memory_bytes: {kind.memory_bytes}",
        *(f"    {key}: {value}" for key, value in kept.items()),
        f"    memory_bytes_per_s: {figure(kind.memory_bytes_per_s)}",
        f"    launch_overhead_s: {figure(kind.launch_overhead_s)}",
        *(f"    {key}: {json.dumps(value)}" for key, value in others.items()),
    ]


@dataclass(frozen=True)
class _Group:
    """The devices of one kind in one box: their numbers among all devices of the kind."""

    kind: str
    numbers: Sequence[int]


class _Links:
    """Writes the links of a machine.

    A box has at most two hubs: the one of its fabric, and `pcie`, or `host` where GPUs copy through host memory. Its gateway,
    to which a network is connected, is a hub, or its only device.
    """

    def __init__(self, machine: Machine, known: Parts) -> None:
        self.machine, self.known = machine, known
        self.total = _numbers(machine)
        self.number = len(machine.each())
        self.out: list[str] = []
        self.told: set[str] = set()

    def lines(self) -> list[str]:
        """The lines below `links:`."""
        begun = dict.fromkeys(self.total, 0)
        gateways: list[str | _Group] = []
        for i, box in enumerate(self.machine.each()):
            groups = [_Group(kind, range(begun[kind], begun[kind] + number)) for kind, number in box.devices]
            for group in groups:
                begun[group.kind] += len(group.numbers)
            gateways.append(self._box(box, groups, f"{i}" if self.number > 1 else ""))
        if self.machine.network is not None:
            self._network(self.known.links[self.machine.network], gateways)
        return self.out

    def _box(self, box: Box, groups: list[_Group], suffix: str) -> str | _Group:
        """The links inside a box; returns its gateway."""
        gpus = [g for g in groups if self.known.kinds[g.kind].type == "gpu"]
        cpus = sum(len(g.numbers) for g in groups if g not in gpus)
        if cpus > 1:
            raise ClusterError(f"{cpus} CPUs in a box", "give a box one CPU, or edit the file")
        fabric = self.known.links[box.fabric] if box.fabric else None
        whole = False  # whether the fabric connects everything
        if fabric is not None and fabric.form == "shared":
            return self._shared(fabric, groups, f"memory{suffix}")
        if fabric is not None and fabric.form == "nvswitch":
            self._nvswitch(fabric, gpus, f"nvswitch{suffix}")
            whole = not cpus
        if fabric is not None and fabric.form == "nvlink":
            whole = self._nvlink(fabric, gpus) and not cpus
        if box.pcie is None and ((whole and self.number == 1) or (box.size == 1 and not whole)):
            return groups[0]
        return self._pcie(box, groups, suffix)

    def _nvswitch(self, link: LinkPart, gpus: Sequence[_Group], hub: str) -> None:
        if sum(len(g.numbers) for g in gpus) < 2:
            raise ClusterError("an NVSwitch connects several GPUs, and a box has only one", "leave out nvswitch")
        for group in gpus:
            nvlink = self.known.kinds[group.kind].nvlink
            if nvlink is None or not nvlink.switch:
                raise ClusterError(
                    f"no machine has {group.kind} on an NVSwitch", f"with a switch: {self._with('switch')}"
                )
            self._note(f"{link.title}; {link.source}.")
            self._line(group, hub, nvlink.links * nvlink.bytes_per_s, link.latency_s)

    def _nvlink(self, link: LinkPart, gpus: Sequence[_Group]) -> bool:
        """Links between GPUs of a kind; returns whether they connect all GPUs of the box."""
        linked = 0
        for group in gpus:
            nvlink, n = self.known.kinds[group.kind].nvlink, len(group.numbers)
            if nvlink is None or n < 2:
                continue
            size = 2 if nvlink.bridge else n
            if nvlink.links % (size - 1):
                raise ClusterError(
                    f"the {nvlink.links} NVLinks of {group.kind} cannot be divided among {n - 1} others",
                    "write nvswitch, or edit the file",
                )
            self._note(f"{link.title}; {link.source}.")
            for i in range(0, n - size + 1, size):
                ends = self._patterns(_Group(group.kind, group.numbers[i : i + size]))
                mesh = f'"{ends[0]}"' if len(ends) == 1 else f"[{', '.join(f'{e!r}' for e in ends)}]".replace("'", '"')
                rate = nvlink.links // (size - 1) * nvlink.bytes_per_s
                self.out.append(f"  - {{mesh: {mesh}, {self._way(rate, link.latency_s)}}}")
                linked = max(linked, size)
        if not linked:
            raise ClusterError("no two GPUs of one kind with NVLink", f"with NVLink: {self._with('links')}")
        return linked == sum(len(g.numbers) for g in gpus)

    def _with(self, field: str) -> str:
        """The kinds whose NVLink has this."""
        return ", ".join(k for k, p in self.known.kinds.items() if p.nvlink is not None and getattr(p.nvlink, field))

    def _shared(self, link: LinkPart, groups: Sequence[_Group], hub: str) -> str:
        for group in groups:
            part = self.known.kinds[group.kind]
            if not part.shared_memory:
                shared = ", ".join(k for k, p in self.known.kinds.items() if p.shared_memory)
                raise ClusterError(f"{group.kind} has a memory of its own", f"on a shared memory: {shared}")
            self._note(f"{link.title[:1].upper()}{link.title[1:]}; {link.source}.")
            self._line(group, hub, part.memory_bytes_per_s / 2, link.latency_s, duplex="half")
        return hub

    def _pcie(self, box: Box, groups: Sequence[_Group], suffix: str) -> str:
        gpus = [g for g in groups if self.known.kinds[g.kind].type == "gpu"]
        number = sum(len(g.numbers) for g in gpus)
        staged = number > 1 and not all(self.known.kinds[g.kind].peer_to_peer for g in gpus)
        hub = f"host{suffix}" if staged else f"pcie{suffix}"
        for group in gpus:
            part = self.known.kinds[group.kind]
            if part.pcie is None:
                raise ClusterError(
                    f"{group.kind} has no PCIe slot", "connect it by a network, or by `shared` with its own CPU"
                )
            name = f"pcie{min(part.pcie, int(box.pcie[-1]) if box.pcie else part.pcie)}"
            link = self.known.links[name]
            assert link.bytes_per_s is not None
            self._note(f"{link.title} x{box.lanes}; {link.source}.")
            through_host = staged and not part.peer_to_peer
            if through_host:
                self._note(f"Hub `{hub}`: {self.known.staged.source}.", "host")
            latency = self.known.staged.latency_s if through_host else link.latency_s
            self._line(group, hub, link.bytes_per_s * box.lanes, latency, duplex="half" if through_host else "full")
        for group in groups:
            if group not in gpus:
                self._note("The CPU reads and writes its memory for all links at once.")
                self._line(group, hub, self.known.kinds[group.kind].memory_bytes_per_s, 0.0, concurrent=max(number, 1))
        return hub

    def _network(self, link: LinkPart, gateways: Sequence[str | _Group]) -> None:
        assert link.bytes_per_s is not None
        nics = f", {self.machine.nics} per box" if self.machine.nics > 1 else ""
        self._note(f"{link.title}{nics}; {link.source}.")
        ends: list[str] = []
        for kind in dict.fromkeys(g.kind for g in gateways if isinstance(g, _Group)):
            own = [i for g in gateways if isinstance(g, _Group) and g.kind == kind for i in g.numbers]
            ends += self._patterns(_Group(kind, own))
        ends += [g for g in gateways if isinstance(g, str)]
        if link.form == "cable":
            mesh = ", ".join(f'"{end}"' for end in ends)
            self.out.append(f"  - {{mesh: [{mesh}], {self._way(link.bytes_per_s, link.latency_s)}}}")
            return
        for end in ends:
            way = self._way(link.bytes_per_s, link.latency_s, concurrent=self.machine.nics)
            self.out.append(f"  - {{a: {self._quoted(end)}, b: network, {way}}}")

    def _line(
        self, group: _Group, hub: str, bytes_per_s: float, latency_s: float, duplex: str = "full", concurrent: int = 1
    ) -> None:
        way = self._way(bytes_per_s, latency_s, duplex, concurrent)
        self.out += [f'  - {{a: "{end}", b: {hub}, {way}}}' for end in self._patterns(group)]

    def _way(self, bytes_per_s: float, latency_s: float, duplex: str = "full", concurrent: int = 1) -> str:
        text = f"bytes_per_s: {figure(bytes_per_s)}"
        text += f", latency_s: {figure(latency_s)}" if latency_s else ""
        text += f", duplex: {duplex}" if duplex != "full" else ""
        return text + (f", concurrent: {concurrent}" if concurrent > 1 else "")

    def _note(self, text: str, key: str = "") -> None:
        """A comment above the next link, once."""
        if (key or text) not in self.told:
            self.told.add(key or text)
            self.out += comment(text, "  ")

    def _patterns(self, group: _Group) -> list[str]:
        """Patterns over device names that match this group and nothing else."""
        if len(group.numbers) == self.total[group.kind] > 1:
            return [f"{group.kind}:*"]
        tens: dict[int, list[int]] = {}
        for i in group.numbers:
            tens.setdefault(i // 10, []).append(i)
        found = []
        for ten, numbers in tens.items():
            first, last = numbers[0] % 10, numbers[-1] % 10
            digits = f"{first}-{last}" if last - first == len(numbers) - 1 else "".join(str(i % 10) for i in numbers)
            found.append(f"{group.kind}:{ten or ''}{first if first == last else f'[{digits}]'}")
        return found

    def _quoted(self, end: str) -> str:
        return f'"{end}"' if ":" in end else end


def comment(text: str, indent: str) -> list[str]:
    """`text` as lines of a comment; a line break stays one."""
    start = f"{indent}# "
    return [line for part in text.split("\n") for line in textwrap.wrap(
        part, WIDTH, initial_indent=start, subsequent_indent=start, break_long_words=False, break_on_hyphens=False
    )]  # fmt: skip


def figure(value: float) -> str:
    """A number in the engineering notation that YAML reads as a number: 1008.0e+9 as 1.008e+12."""
    exponent = 3 * math.floor(math.log10(value) / 3)
    mantissa = f"{value / 10.0**exponent:.10g}"
    return f"{mantissa}{'' if '.' in mantissa else '.0'}e{exponent:+d}"


def _rate(bytes_per_s: float) -> str:
    return f"{count(bytes_per_s)}B/s"


def _slug(machine: Machine) -> str:
    """A name from kinds and numbers: `rtx4090x2_rtx3090`."""
    return "_".join(f"{kind}x{number}" if number > 1 else kind for kind, number in _numbers(machine).items())


def _described(machine: Machine, known: Parts) -> str:
    boxes = [
        f"{number} x ({_described_box(box, known)})" if number > 1 else f"({_described_box(box, known)})"
        for number, box in machine.boxes
    ]
    if machine.network is None:
        return _described_box(machine.boxes[0][1], known)
    if all(box.size == 1 and box.pcie is None for _, box in machine.boxes):
        boxes = [f"{number} x {_described_box(box, known).removeprefix('1 x ')}" for number, box in machine.boxes]
    nics = f" x{machine.nics}" if machine.nics > 1 else ""
    return f"{' + '.join(boxes)}, {known.links[machine.network].title}{nics}"


def _described_box(box: Box, known: Parts) -> str:
    links = [known.links[box.fabric].title] if box.fabric else []
    links += [f"{known.links[box.pcie].title} x{box.lanes}"] if box.pcie else []
    devices = " + ".join(f"{number} x {re.sub(r'[,:]', '', known.kinds[kind].title)}" for kind, number in box.devices)
    return ", ".join([devices, *links])
