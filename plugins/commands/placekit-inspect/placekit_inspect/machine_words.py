"""Machines in words: `2x rtx4090 + 1x rtx3090, pcie4 x8`, or `2 nodes of (4x l40s, pcie4 x16), ib_hdr`.

    machine   one box, or boxes and their network: BOX | [N nodes of] (BOX) [+ ...], NETWORK [xNICS]
    BOX       [N x] KIND [+ [N x] KIND ...] [, LINK [xLANES] ...]
    LINK      pcie3 .. pcie5 (with lanes), nvlink, nvswitch, shared
    NETWORK   thunderbolt4, 10gbe, ib_hdr, ...; after devices without brackets, each device is a box

Names ignore case, spaces, `-` and `_`, and `×` is `x`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from placekit_core import ClusterError, unknown
from placekit_core.contracts.cluster import MAX_DEVICES
from placekit_inspect.data_sheets import Parts

HOW = "write for example `2x rtx4090 + 1x rtx3090, pcie4 x8` or `2 nodes of (4x l40s, pcie4 x16), ib_hdr`"
LANES = (1, 2, 4, 8, 16)
LISTING = "placekit cluster kinds"
_BOXES = re.compile(r"(?:([0-9]+)\s*(?:x|nodes?|boxes|box)?\s*(?:of)?\s*)?\(([^()]*)\)")
_DEVICES = re.compile(r"(?:([0-9]+)\s*x?\s*)?([a-z][\w .-]+)")
_LINK = re.compile(r"(\w[\w .-]*?)(?:\s*x\s*([1-9][0-9]{0,3}))?")


@dataclass(frozen=True)
class Box:
    """One computer.

    Attributes:
        devices: kinds and their numbers, in the order of the text.
        fabric: `nvlink`, `nvswitch` or `shared`, or None.
        pcie: name of the PCIe link, or None.
        lanes: PCIe lanes of each device.
    """

    devices: tuple[tuple[str, int], ...]
    fabric: str | None = None
    pcie: str | None = None
    lanes: int = 16

    @property
    def size(self) -> int:
        return sum(number for _, number in self.devices)


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
    words = " ".join(text.lower().replace("\u00d7", "x").split())
    machine = _with_boxes(words, known) if "(" in words else _one_box(words, known)
    boxes = sum(number for number, _ in machine.boxes)
    if sum(number * box.size for number, box in machine.boxes) > MAX_DEVICES:
        raise ClusterError(f"{text!r} has more than {MAX_DEVICES} devices")
    if boxes > 1 and machine.network is None:
        raise ClusterError(f"{boxes} boxes, and nothing connects them", f"end with one of {_names(known, True)}")
    if boxes == 1 and machine.network is not None:
        raise ClusterError(
            f"{machine.network} connects boxes, and there is only one", "leave it out, or write more boxes"
        )
    return machine


def _with_boxes(words: str, known: Parts) -> Machine:
    """`2 nodes of (4x l40s, pcie4 x16) + (1x m3_ultra), 10gbe`."""
    end = words.rfind(")") + 1
    items, rest = words[:end], words[end:].strip()
    boxes = []
    for item in re.split(r"\+(?![^()]*\))", items):
        found = _BOXES.fullmatch(item.strip())
        if not found:
            raise ClusterError(f"{item.strip()!r} is no box", HOW)
        boxes.append((_number(found[1]), _box(found[2], known)))
    machine = Machine(tuple(boxes))
    if rest and not rest.startswith(","):
        raise ClusterError(f"{rest!r} after the boxes: a comma is missing", HOW)
    for name, count in _links(rest.split(",")[1:], known):
        if not known.links[name].joins_boxes or machine.network is not None:
            raise ClusterError(
                f"{name} stands after the boxes, where only one network may stand", f"networks: {_names(known, True)}"
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
    boxes = [(number, Box(((kind, 1),))) for kind, number in _devices(first, known)]
    return _joined(Machine(tuple(boxes)), *networks[0], known)


def _box(words: str, known: Parts) -> Box:
    """`2x rtx3090 + cpu, nvlink, pcie4 x8`."""
    first, *rest = words.split(",")
    box = Box(_devices(first, known))
    for name, count in _links(rest, known):
        form = known.links[name].form
        if known.links[name].joins_boxes:
            raise ClusterError(f"{name} connects boxes, and stands in one", f"put it after the brackets: {HOW}")
        if (box.pcie if form == "pcie" else box.fabric) is not None:
            raise ClusterError(f"{words!r} has two links of one form", "give one")
        if form != "pcie" and count is not None:
            raise ClusterError(f"{name} x{count}: only PCIe has a number of lanes", f"write {name}")
        if form == "pcie" and count is not None and count not in LANES:
            raise ClusterError(f"{name} x{count}: PCIe has no such width", f"lanes: {', '.join(map(str, LANES))}")
        box = replace(box, pcie=name, lanes=count or 16) if form == "pcie" else replace(box, fabric=name)
    return box


def _devices(words: str, known: Parts) -> tuple[tuple[str, int], ...]:
    """Kinds and numbers; numbers of a repeated kind are added."""
    numbers: dict[str, int] = {}
    for item in words.split("+"):
        found = _DEVICES.fullmatch(item.strip())
        if not found:
            raise ClusterError(f"{item.strip()!r} is no device", f"a device is [N x] KIND; {HOW}")
        kind = _known(found[2], known.kinds)
        if kind is None:
            raise unknown("device kind", found[2], known.kinds, ClusterError, LISTING)
        numbers[kind] = numbers.get(kind, 0) + _number(found[1])
    return tuple(numbers.items())


def _links(items: Iterable[str], known: Parts) -> list[tuple[str, int | None]]:
    """The names of links, each with the number after it (lanes or NICs), if any."""
    links = []
    for item in items:
        found = _LINK.fullmatch(item.strip())
        name = _known(found[1], known.links) if found else None
        if not found or name is None:
            raise unknown("link", item.strip(), known.links, ClusterError, LISTING)
        links.append((name, int(found[2]) if found[2] else None))
    return links


def _known(word: str, names: Iterable[str]) -> str | None:
    """The name that matches `word`, ignoring spaces, `-`, `_` and a trailing `.0`."""
    return next((name for name in names if _plain(name) == _plain(word)), None)


def _plain(word: str) -> str:
    return re.sub(r"[ _-]", "", word.strip().removesuffix(".0"))


def _number(digits: str | None) -> int:
    if digits is None:
        return 1
    if len(digits) > len(str(MAX_DEVICES)) or not 1 <= int(digits) <= MAX_DEVICES:
        raise ClusterError(f"a machine has 1 to {MAX_DEVICES} devices, not {digits[:20]}")
    return int(digits)


def _names(known: Parts, boxes: bool) -> str:
    return ", ".join(name for name, link in known.links.items() if link.joins_boxes == boxes)
