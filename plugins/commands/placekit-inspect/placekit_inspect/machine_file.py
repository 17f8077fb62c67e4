"""Writes the cluster file of a machine described in words, from the figures in `parts.yaml`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from placekit_core import ClusterError
from placekit_core.cli.arguments import quoted
from placekit_inspect.cluster_file import KindEntry, cluster_text, comment, host, link, withheld_note
from placekit_inspect.data_sheets import LinkPart, Parts, parts
from placekit_inspect.loose_words import exact_words
from placekit_inspect.machine_words import Box, Machine, plain_words, read_machine
from placekit_inspect.own_kinds import with_own_kinds

HEAD = """\
Rates are peaks of data sheets: float16 and bfloat16 dense, with float32 accumulation; float32 is not TF32. Bandwidths
are per direction. Latencies are nominal, unless a comment says where they come from. `efficiency` has the fractions
of these peaks that operations reach, where they were measured; classes without a row have the nominal ones.
`placekit cluster profile` measures a machine that is at hand."""


def machine_file(text: str, name: str = "") -> str:
    """The content of a cluster file, with comments, for the machine that `text` describes. Raises ClusterError."""
    words, known = with_own_kinds(plain_words(text), parts())
    words, known, assumed = exact_words(words, known)
    machine, known = _with_memory(read_machine(words, known), known)
    for note in assumed:
        warnings.warn(note.removesuffix("."), stacklevel=2)
    writer = _Links(machine, known)
    links = writer.lines()
    numbers = _numbers(machine)
    kinds = {}
    for kind, number in numbers.items():
        part = known.kinds[kind]
        nominal = f" Nominal: {part.nominal}." if part.nominal else ""
        kinds[kind] = KindEntry(
            known.kind(kind), number, f"{part.title}. {part.source}.{nominal}\n{known.origin(kind)}"
        )
    withheld = withheld_note(known.withheld_of(kind).source for kind in kinds)
    head = [f"`placekit cluster new {quoted(' '.join(text.split()))}`.", *assumed, HEAD, withheld]
    about = known.host.source
    hosts = [*comment(f"{about[:1].upper()}{about[1:]}."), *writer.hosts]
    return cluster_text(head, name or _slug(numbers), _described(machine, known), kinds, links, hosts)


def _with_memory(machine: Machine, known: Parts) -> tuple[Machine, Parts]:
    """The machine and its parts, where every CPU has the memory of its box. CPUs that differ are several kinds."""
    of_cpus = {box.memory for _, box in machine.boxes if any(own.kind == "cpu" for own in box.devices)}
    names = {memory: memory.kind if len(of_cpus) > 1 else "cpu" for memory in of_cpus if memory}
    kinds = {name: memory.part(known.kinds["cpu"], known) for memory, name in names.items()}
    boxes = []
    for number, box in machine.boxes:
        name = names[box.memory] if box.memory else "cpu"
        devices = tuple(replace(own, kind=name) if own.kind == "cpu" else own for own in box.devices)
        boxes.append((number, replace(box, devices=devices)))
    return replace(machine, boxes=tuple(boxes)), known.model_copy(update={"kinds": known.kinds | kinds})


def _numbers(machine: Machine) -> dict[str, int]:
    """Number of devices of each kind."""
    numbers: dict[str, int] = {}
    for box in machine.each():
        for own in box.devices:
            numbers[own.kind] = numbers.get(own.kind, 0) + own.number
    return numbers


@dataclass(frozen=True)
class _Group:
    """Devices of one kind and slot in one box, with their numbers among all devices of that kind."""

    kind: str
    numbers: Sequence[int]
    pcie: str | None = None
    lanes: int | None = None


class _Links:
    """Writes the links and hosts of a machine.

    A box has at most two hubs: one for its fabric, and `pcie` (`host` if GPUs copy through host memory). The network is
    connected to the box's *gateway*: a hub, or its only device.
    """

    def __init__(self, machine: Machine, known: Parts) -> None:
        self.machine, self.known = machine, known
        self.total = _numbers(machine)
        self.number = len(machine.each())
        self.out: list[str] = []
        self.hosts: list[str] = []
        self.noted: set[str] = set()

    def lines(self) -> list[str]:
        """The lines below `links:`; those below `hosts:` are in `hosts` then."""
        begun = dict.fromkeys(self.total, 0)
        gateways: list[str | _Group] = []
        for i, box in enumerate(self.machine.each()):
            groups = []
            for own in box.devices:
                numbers = range(begun[own.kind], begun[own.kind] + own.number)
                groups.append(_Group(own.kind, numbers, own.pcie, own.lanes))
                begun[own.kind] += own.number
            patterns = [pattern for group in groups for pattern in self._patterns(group)]
            self.hosts.append(host(self.known.host, patterns if self.number > 1 else ()))
            gateways.append(self._box(box, groups, f"{i}" if self.number > 1 else ""))
        if self.machine.network is not None:
            self._network(self.known.links[self.machine.network], gateways)
        return self.out

    def _box(self, box: Box, groups: list[_Group], suffix: str) -> str | _Group:
        """Write the links inside a box; returns its gateway."""
        gpus = [g for g in groups if self.known.kinds[g.kind].type == "gpu"]
        cpus = sum(len(g.numbers) for g in groups if g not in gpus)
        if cpus > 1:
            raise ClusterError(f"{cpus} CPUs in a box", "give each box one CPU, or edit the file")
        fabric = self.known.links[box.fabric] if box.fabric else None
        whole = False  # whether the fabric connects all devices of the box
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

    def _nvswitch(self, fabric: LinkPart, gpus: Sequence[_Group], hub: str) -> None:
        if sum(len(g.numbers) for g in gpus) < 2:
            raise ClusterError("an NVSwitch connects several GPUs, but a box has only one", "leave out nvswitch")
        for group in gpus:
            nvlink = self.known.kinds[group.kind].nvlink
            if nvlink is None or not nvlink.switch:
                raise ClusterError(
                    f"no machine has {group.kind} on an NVSwitch", f"with a switch: {self._with('switch')}"
                )
            self._note(f"{fabric.title}; {fabric.source}.")
            self._line(group, hub, nvlink.links * nvlink.bytes_per_s, fabric.latency_s)

    def _nvlink(self, fabric: LinkPart, gpus: Sequence[_Group]) -> bool:
        """Write the links between GPUs of a kind; returns whether they connect all GPUs of the box."""
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
            self._note(f"{fabric.title}; {fabric.source}.")
            for i in range(0, n - size + 1, size):
                ends = self._patterns(_Group(group.kind, group.numbers[i : i + size]))
                mesh = f'"{ends[0]}"' if len(ends) == 1 else f"[{', '.join(f'{e!r}' for e in ends)}]".replace("'", '"')
                rate = nvlink.links // (size - 1) * nvlink.bytes_per_s
                self.out.append(link(f"mesh: {mesh}", rate, fabric.latency_s))
                linked = max(linked, size)
        if not linked:
            raise ClusterError("no two GPUs of one kind with NVLink", f"with NVLink: {self._with('links')}")
        return linked == sum(len(g.numbers) for g in gpus)

    def _with(self, field: str) -> str:
        """The kinds whose NVLink has this field set."""
        return ", ".join(k for k, p in self.known.kinds.items() if p.nvlink is not None and getattr(p.nvlink, field))

    def _shared(self, fabric: LinkPart, groups: Sequence[_Group], hub: str) -> str:
        for group in groups:
            part = self.known.kinds[group.kind]
            if not part.shared_memory:
                shared = ", ".join(k for k, p in self.known.kinds.items() if p.shared_memory)
                raise ClusterError(f"{group.kind} has a memory of its own", f"on a shared memory: {shared}")
            self._note(f"{fabric.title[:1].upper()}{fabric.title[1:]}; {fabric.source}.")
            self._line(group, hub, part.memory_bytes_per_s / 2, fabric.latency_s, duplex="half")
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
            given, lanes = group.pcie or box.pcie, min(group.lanes or box.lanes, part.lanes)
            slot = self.known.links[f"pcie{min(part.pcie, int(given[-1]) if given else part.pcie)}"]
            assert slot.bytes_per_s is not None
            self._note(f"{slot.title} x{lanes}; {slot.source}.")
            through_host = staged and not part.peer_to_peer
            if through_host:
                self._note(f"Hub `{hub}`: {self.known.staged.source}.", "host")
            latency = self.known.staged.latency_s if through_host else slot.latency_s
            self._line(group, hub, slot.bytes_per_s * lanes, latency, duplex="half" if through_host else "full")
        for group in groups:
            if group not in gpus:
                self._note("The CPU reads and writes its memory for all links at once.")
                self._line(group, hub, self.known.kinds[group.kind].memory_bytes_per_s, 0.0, concurrent=max(number, 1))
        return hub

    def _network(self, network: LinkPart, gateways: Sequence[str | _Group]) -> None:
        assert network.bytes_per_s is not None
        nics = f", {self.machine.nics} per box" if self.machine.nics > 1 else ""
        self._note(f"{network.title}{nics}; {network.source}.")
        ends: list[str] = []
        for kind in dict.fromkeys(g.kind for g in gateways if isinstance(g, _Group)):
            own = [i for g in gateways if isinstance(g, _Group) and g.kind == kind for i in g.numbers]
            ends += self._patterns(_Group(kind, own))
        ends += [g for g in gateways if isinstance(g, str)]
        if network.form == "cable":
            mesh = ", ".join(f'"{end}"' for end in ends)
            self.out.append(link(f"mesh: [{mesh}]", network.bytes_per_s, network.latency_s))
            return
        for end in ends:
            box = f'"{end}"' if ":" in end else end
            self.out.append(
                link(f"a: {box}, b: network", network.bytes_per_s, network.latency_s, concurrent=self.machine.nics)
            )

    def _line(
        self, group: _Group, hub: str, bytes_per_s: float, latency_s: float, duplex: str = "full", concurrent: int = 1
    ) -> None:
        self.out += [
            link(f'a: "{end}", b: {hub}', bytes_per_s, latency_s, duplex, concurrent) for end in self._patterns(group)
        ]

    def _note(self, text: str, key: str = "") -> None:
        """Write a comment above the next link, once."""
        if (key or text) not in self.noted:
            self.noted.add(key or text)
            self.out += comment(text)

    def _patterns(self, group: _Group) -> list[str]:
        """Patterns that match the device names of this group only."""
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


def _slug(numbers: dict[str, int]) -> str:
    """A name from kinds and numbers: `rtx4090x2_rtx3090`."""
    return "_".join(f"{kind}x{number}" if number > 1 else kind for kind, number in numbers.items())


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
    devices = []
    for own in box.devices:
        slot = f" at {known.links[own.pcie].title} x{own.lanes or box.lanes}" if own.pcie else ""
        devices.append(f"{own.number} x {re.sub(r'[,:]', '', known.kinds[own.kind].title)}{slot}")
    return ", ".join([" + ".join(devices), *links])
