"""Machines in words: `2x rtx4090 + 1x rtx3090, pcie4 x8`, or `2 nodes of (4x l40s, pcie4 x16), ib_hdr`.

    machine   one box, or boxes and their network: BOX | [N nodes of] (BOX) [+ ...], NETWORK [xNICS]
    BOX       DEVICES [+ DEVICES ...] [+ MEMORY] [, LINK [xLANES] ...]
    DEVICES   [N x] KIND [pcieN [xLANES]], with the slot of these devices if they differ; KIND may be NAME(24GB 900GB/s 80TFLOPS),
              which own_kinds.py reads
    MEMORY    that of the host, a CPU: 64gb ddr5-5600 [xCHANNELS], 2 channels unless they are given
    LINK      pcie3 .. pcie5 (with lanes), nvlink, nvswitch, shared
    NETWORK   thunderbolt4, 10gbe, ib_hdr, ...; after devices without brackets, each device is a box

Names ignore case, spaces, `-` and `_`, and `×` is `x`. `loose_words.py` turns looser descriptions into these words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from placekit_core import ClusterError, unknown
from placekit_core.contracts.cluster import MAX_DEVICES
from placekit_inspect.data_sheets import Part, Parts
from placekit_inspect.own_kinds import EXAMPLE

HOW = (
    "write for example `2x rtx4090 + 1x rtx3090, pcie4 x8`, `rtx4090 pcie4 x16 + rtx3060 pcie3 x4 + 64gb ddr5-5600` or"
    " `2 nodes of (4x l40s, pcie4 x16), ib_hdr`"
)
LANES = (1, 2, 4, 8, 16)
LISTING = "placekit cluster kinds"
_BOXES = re.compile(r"(?:([0-9]+)\s*(?:x|nodes?|boxes|box)?\s*(?:of)?\s*)?\(([^()]*)\)")
_DEVICES = re.compile(r"(?:([0-9]+)\s*x?\s*)?([a-z][\w .-]*?)(?:\s+(pcie ?[\d.]+)(?:\s*x\s*([0-9]{1,4}))?)?")
_MEMORY = re.compile(r"([1-9][0-9]{0,5})\s*gb\s+(ddr[45])-([1-9][0-9]{3,4})(?:\s*x\s*([1-9][0-9]?))?")
_LIKE_MEMORY = re.compile(r"(?:\d+ ?x ?)?\d+ ?gi?b\b.*|.*ddr.*")
_LANES = re.compile(r"(.*[^\s\d].*?)\s+(x\s*[0-9]{1,4})")
_LINK = re.compile(r"(\w[\w .-]*?)(?:\s*x\s*([1-9][0-9]{0,3}))?")


@dataclass(frozen=True)
class Devices:
    """Devices of one kind in a box. `pcie` and `lanes` describe their slots; None takes those of the box."""

    kind: str
    number: int = 1
    pcie: str | None = None
    lanes: int | None = None


@dataclass(frozen=True)
class HostMemory:
    """The memory of a CPU: its size in GiB, its type (`ddr5`), MT/s, and the number of channels, 8 bytes wide each."""

    gib: int
    type: str
    transfers: int
    channels: int

    @property
    def kind(self) -> str:
        """A name of the CPU, if there are others."""
        return f"cpu_{self.gib}gb_{self.type}_{self.transfers}x{self.channels}"

    def part(self, cpu: Part, known: Parts) -> Part:
        """The CPU with this memory."""
        name, channels = f"{self.type.upper()}-{self.transfers}", f"{self.channels} channel{'s' * (self.channels > 1)}"
        return cpu.model_copy(
            update={
                "title": f"CPU with {self.gib} GB of {name} ({channels})",
                "source": f"{cpu.source.partition(',')[0]}; {channels} of {name}, 8 bytes each",
                "nominal": "arithmetic of the CPU",
                "measured": known.host_fractions(self.channels),
                "memory_bytes": self.gib * 2**30,
                "memory_bytes_per_s": self.channels * self.transfers * 8e6,
            }
        )


@dataclass(frozen=True)
class Box:
    """One computer.

    Attributes:
        devices: in the order of the text.
        fabric: `nvlink`, `nvswitch` or `shared`, or None.
        pcie: name of the PCIe link, or None.
        lanes: PCIe lanes of each device.
    """

    devices: tuple[Devices, ...]
    fabric: str | None = None
    pcie: str | None = None
    lanes: int = 16
    memory: HostMemory | None = None

    @property
    def size(self) -> int:
        return sum(own.number for own in self.devices)


@dataclass(frozen=True)
class Machine:
    """Boxes with their counts, the network between them, and NICs per box."""

    boxes: tuple[tuple[int, Box], ...]
    network: str | None = None
    nics: int = 1

    def each(self) -> list[Box]:
        """Every box."""
        return [box for number, box in self.boxes for _ in range(number)]


def read_machine(text: str, known: Parts) -> Machine:
    """The machine that `text` describes. Raises ClusterError."""
    words = plain_words(text)
    machine = _with_boxes(words, known) if "(" in words else _one_box(words, known)
    boxes = sum(number for number, _ in machine.boxes)
    if sum(number * box.size for number, box in machine.boxes) > MAX_DEVICES:
        raise ClusterError(f"{text!r} has more than {MAX_DEVICES} devices", "describe fewer devices")
    if boxes > 1 and machine.network is None:
        raise ClusterError(f"nothing connects the {boxes} boxes", f"end with one of {_names(known, True)}")
    if boxes == 1 and machine.network is not None:
        raise ClusterError(
            f"{machine.network} connects boxes, but there is only one", "leave it out, or write more boxes"
        )
    return machine


def plain_words(text: str) -> str:
    """The text in lower case, with single spaces, `+` for `and`, and `4090 24gb` for `4090 (24gb)`."""
    text = re.sub(r",?\s*(?:&|\b(?:and|with)\b)", " + ", text.lower().replace("\u00d7", "x"))
    return " ".join(re.sub(r"(?<=\d) ?\((\d+ ?gi?b)\)", r" \1", text).split())


def _with_boxes(words: str, known: Parts) -> Machine:
    """`2 nodes of (4x l40s, pcie4 x16) + (1x m3_ultra), 10gbe`."""
    end = words.rfind(")") + 1
    items, rest = words[:end], words[end:].strip()
    boxes = []
    for item in re.split(r"\+(?![^()]*\))", items):
        found = _BOXES.fullmatch(item.strip())
        if not found:
            raise ClusterError(f"{item.strip()!r} is not a box", HOW)
        boxes.append((_number(found[1]), _box(found[2], known)))
    machine = Machine(tuple(boxes))
    if rest and not rest.startswith(","):
        raise ClusterError(f"{rest!r} after the boxes: a comma is missing", HOW)
    for name, count in _links(rest.split(",")[1:], known):
        if not known.links[name].joins_boxes or machine.network is not None:
            raise ClusterError(
                f"{name} follows the boxes, where only one network may follow", f"networks: {_names(known, True)}"
            )
        machine = _joined(machine, name, count, known)
    return machine


def _joined(machine: Machine, network: str, count: int | None, known: Parts) -> Machine:
    """`machine` with a network, of `count` NICs per box."""
    if count is not None and known.links[network].form == "cable":
        raise ClusterError(f"{network} x{count}: there is one cable between two boxes", f"write {network}")
    return replace(machine, network=network, nics=count or 1)


def _one_box(words: str, known: Parts) -> Machine:
    """`2x rtx4090, pcie4 x8`; or `2x m3_ultra, thunderbolt5`, where every device is a box."""
    first, *rest = words.split(",")
    links = _links(rest, known)
    networks = [(name, count) for name, count in links if known.links[name].joins_boxes]
    if not networks:
        return Machine(((1, _box(words, known)),))
    if len(links) > 1:
        raise ClusterError(f"{words!r} has {networks[0][0]} and other links", f"put each box in brackets: {HOW}")
    devices, memory = _devices(first, known)
    if memory:
        raise ClusterError(f"{words!r} does not say which box has the memory", f"put each box in brackets: {HOW}")
    boxes = [(own.number, Box((replace(own, number=1),))) for own in devices]
    return _joined(Machine(tuple(boxes)), *networks[0], known)


def _box(words: str, known: Parts) -> Box:
    """`2x rtx3090 + cpu, nvlink, pcie4 x8`."""
    first, *rest = words.split(",")
    devices, memory = _devices(first, known)
    box = Box(devices, memory=memory)
    for name, count in _links(rest, known):
        form = known.links[name].form
        if known.links[name].joins_boxes:
            raise ClusterError(f"{name} connects boxes, but is written inside one", f"put it after the brackets: {HOW}")
        if (box.pcie if form == "pcie" else box.fabric) is not None:
            raise ClusterError(f"{words!r} has two links of the same form", "give only one")
        if form != "pcie" and count is not None:
            raise ClusterError(f"{name} x{count}: only PCIe has a number of lanes", f"write {name}")
        if form == "pcie":
            _check_lanes(name, count)
        box = replace(box, pcie=name, lanes=count or 16) if form == "pcie" else replace(box, fabric=name)
    return box


def _check_lanes(name: str, lanes: int | None) -> None:
    if lanes is not None and lanes not in LANES:
        raise ClusterError(f"{name} x{lanes}: PCIe has no such width", f"lanes: {', '.join(map(str, LANES))}")


def _devices(words: str, known: Parts) -> tuple[tuple[Devices, ...], HostMemory | None]:
    """The devices, one entry for each kind and slot; and the memory of the host, whose CPU is among the devices."""
    numbers: dict[Devices, int] = {}
    memory = None
    for item in words.split("+"):
        if given := _MEMORY.fullmatch(item.strip()):
            if memory is not None:
                raise ClusterError(f"{words!r} has two memories of the host", "give their sum as one, with x CHANNELS")
            memory = HostMemory(int(given[1]), given[2], int(given[3]), int(given[4] or 2))
            own, number = Devices("cpu"), 1
        else:
            own, number = _device(item.strip(), known)
        numbers[own] = numbers.get(own, 0) + number
    if memory and sum(n for own, n in numbers.items() if known.kinds[own.kind].type == "cpu") > 1:
        raise ClusterError(
            f"{words!r} has a CPU and memory of the host, which stands for another CPU", "leave out the CPU"
        )
    return tuple(replace(own, number=number) for own, number in numbers.items()), memory


def _device(item: str, known: Parts) -> tuple[Devices, int]:
    """Read `2x rtx4090 pcie4 x8`: a kind with its slot, and the number of such devices."""
    found = _DEVICES.fullmatch(item)
    if _LIKE_MEMORY.fullmatch(item) and not (found and known_name(found[2], known.kinds)):
        how = "write its size, with its type, MT/s and channels if you know them: 64gb, or 64gb ddr5-5600 x2"
        raise ClusterError(f"{item!r} is not a memory of the host", how)
    if not found:
        raise ClusterError(f"{item!r} is not a device", f"`{LISTING}` lists the kinds; {HOW}")
    kind, pcie = known_name(found[2], known.kinds), known_name(found[3] or "", known.links)
    if kind is None:
        if (slot := _LANES.fullmatch(found[2])) and known_name(slot[1], known.kinds):
            how = f"say which PCIe: {slot[1]} pcie4 {slot[2]}"
            raise ClusterError(f"{slot[2]!r} of {slot[1]} are lanes of an unknown link", how)
        error = unknown("device kind", found[2], known.kinds, ClusterError, LISTING)
        raise ClusterError(
            error.message, f"{error.hint}; or give your own figures: {'_'.join(found[2].split())}{EXAMPLE}"
        )
    if found[3] and pcie is None:
        raise unknown("link", found[3], known.links, ClusterError, LISTING)
    lanes = int(found[4]) if found[4] else None
    _check_lanes(pcie or "", lanes)
    return Devices(kind, 1, pcie, lanes), _number(found[1])


def _links(items: Iterable[str], known: Parts) -> list[tuple[str, int | None]]:
    """The names of links, each with the number after it (lanes or NICs), if any."""
    links = []
    for item in items:
        found = _LINK.fullmatch(item.strip())
        name = known_name(found[1], known.links) if found else None
        if not found or name is None:
            raise unknown("link", item.strip(), known.links, ClusterError, LISTING)
        links.append((name, int(found[2]) if found[2] else None))
    return links


def known_name(word: str, names: Iterable[str]) -> str | None:
    """The name that matches `word`, ignoring spaces, `-`, `_` and a trailing `.0`."""
    return next((name for name in names if plain_name(name) == plain_name(word)), None)


def plain_name(word: str) -> str:
    """The word without spaces, `-`, `_` and a trailing `.0`."""
    return re.sub(r"[ _-]", "", word.strip().removesuffix(".0"))


def _number(digits: str | None) -> int:
    if digits is None:
        return 1
    if len(digits) > len(str(MAX_DEVICES)) or not 1 <= int(digits) <= MAX_DEVICES:
        raise ClusterError(f"{digits[:20]} is not a number of devices", f"a machine has 1 to {MAX_DEVICES}")
    return int(digits)


def _names(known: Parts, boxes: bool) -> str:
    return ", ".join(name for name, link in known.links.items() if link.joins_boxes == boxes)
