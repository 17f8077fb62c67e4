"""The devices and links that `placekit cluster new` knows, from `parts.yaml`: figures, and where they come from."""

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
        links: their number; bytes_per_s: bandwidth of each, per direction.
        switch: there are machines that connect them to an NVSwitch.
        bridge: they end in one connector, which a bridge joins with that of one other GPU.
    """

    links: int
    bytes_per_s: Positive
    switch: bool = False
    bridge: bool = False


class Part(DeviceKind):
    """A kind of device, and what is known of it beyond a cluster file.

    Attributes:
        title: its name for people, with the memory; source: the data sheet; nominal: figures that no data sheet states.
        driver: its names in `nvidia-smi`.
        withheld: the entry of `Parts.withheld` that says what it keeps of its memory; by default that of its type.
        pcie: generation of its PCIe x16; None for a device that is in no slot.
        peer_to_peer: the driver copies from GPU to GPU over PCIe without host memory.
        shared_memory: it shares the memory of other devices of its board.
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
    """What devices do not give to placements: `reserve_bytes` and `headroom` of a cluster file, and why."""

    reserve_bytes: int
    headroom: float
    source: str


class LinkPart(FileModel):
    """A way to connect devices of a box, or boxes.

    Attributes:
        form: `pcie`, `nvlink`, `nvswitch`, `shared` connect devices of a box; `cable` (one between any two boxes) and `switch`
            connect boxes.
        bytes_per_s: per direction; of one lane for `pcie`; None where the devices decide.
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


class Parts(FileModel):
    """Everything in `parts.yaml`."""

    kinds: dict[str, Part]
    links: dict[str, LinkPart]
    staged: Staged
    withheld: dict[str, Withheld]

    def withheld_of(self, kind: str) -> Withheld:
        """What devices of this kind do not give to placements."""
        part = self.kinds[kind]
        return self.withheld[part.withheld or part.type]

    def kind(self, name: str) -> DeviceKind:
        """The part as it stands in a cluster file."""
        part, withheld = self.kinds[name], self.withheld_of(name)
        own = {key: getattr(part, key) for key in DeviceKind.model_fields}
        return DeviceKind(**own | {"reserve_bytes": withheld.reserve_bytes, "headroom": withheld.headroom})


@cache
def parts() -> Parts:
    """The parts that ship."""
    return checked(parse_yaml(read_bytes(Path(__file__).with_name("parts.yaml"))), Parts)
