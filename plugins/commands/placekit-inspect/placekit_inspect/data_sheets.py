"""The devices and links in `parts.yaml`: figures with their sources."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from placekit_core.contracts.cluster import DeviceKind, NonNegative, Positive
from placekit_core.contracts.files import FileModel, checked, parse_yaml, read_bytes


class NvLink(FileModel):
    """The NVLinks of one GPU.

    Attributes:
        links: number of links.
        bytes_per_s: bandwidth of a link, per direction.
        switch: whether there are machines that connect the links to an NVSwitch.
        bridge: whether all links end in one connector, which a bridge joins with that of one other GPU.
    """

    links: int
    bytes_per_s: Positive
    switch: bool = False
    bridge: bool = False


class Part(DeviceKind):
    """A kind of device, with facts that a cluster file lacks.

    Attributes:
        title: full name with the memory size.
        source: the data sheet.
        nominal: names of the figures that no data sheet states.
        driver: names of the device in `nvidia-smi`.
        withheld: key in `Parts.withheld`; default: the type (`gpu` or `cpu`).
        pcie: generation of its PCIe x16 slot; None without a slot.
        peer_to_peer: whether the driver copies between GPUs over PCIe, without host memory.
        shared_memory: whether the devices of its board share one memory.
    """

    title: str
    source: str
    nominal: str = ""
    driver: Sequence[str] = ()
    withheld: str = ""
    pcie: int | None = None
    peer_to_peer: bool = True
    shared_memory: bool = False
    nvlink: NvLink | None = None


class Withheld(FileModel):
    """Memory that placements cannot use: `reserve_bytes` and `headroom` of a cluster file, with the source."""

    reserve_bytes: int
    headroom: float
    source: str


class LinkPart(FileModel):
    """A way to connect devices of a box, or boxes.

    Attributes:
        form: `pcie`, `nvlink`, `nvswitch`, `shared` connect devices of a box; `cable` (one between any two boxes) and `switch`
            connect boxes.
        bytes_per_s: per direction (for `pcie`, per lane); None if it depends on the devices.
    """

    title: str
    form: Literal["pcie", "nvlink", "nvswitch", "shared", "cable", "switch"]
    source: str
    bytes_per_s: Positive | None = None
    latency_s: NonNegative

    @property
    def joins_boxes(self) -> bool:
        return self.form in ("cable", "switch")


class Staged(FileModel):
    """A copy from GPU to GPU through host memory."""

    source: str
    latency_s: NonNegative


class HostPart(FileModel):
    """What a computer takes to launch operations and to hand over between devices, as in a cluster file."""

    source: str
    launch_s: NonNegative
    handover_s: NonNegative
    graph_handover_s: NonNegative


class Parts(FileModel):
    """Everything in `parts.yaml`."""

    kinds: dict[str, Part]
    links: dict[str, LinkPart]
    staged: Staged
    host: HostPart
    withheld: dict[str, Withheld]

    def withheld_of(self, kind: str) -> Withheld:
        """The memory of a device kind that placements cannot use."""
        part = self.kinds[kind]
        return self.withheld[part.withheld or part.type]

    def kind(self, name: str) -> DeviceKind:
        """The part as a device kind of a cluster file."""
        part, withheld = self.kinds[name], self.withheld_of(name)
        own = {key: getattr(part, key) for key in DeviceKind.model_fields}
        return DeviceKind(**own | {"reserve_bytes": withheld.reserve_bytes, "headroom": withheld.headroom})


@cache
def parts() -> Parts:
    """The contents of `parts.yaml`."""
    return checked(parse_yaml(read_bytes(Path(__file__).with_name("parts.yaml"))), Parts)
