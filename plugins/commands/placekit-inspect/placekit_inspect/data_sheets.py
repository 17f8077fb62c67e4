"""The devices and links in `parts.yaml`: figures with their sources."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from placekit_core import ClusterError
from placekit_core.contracts.cluster import DeviceKind, Efficiency, NonNegative, OperationClass, Positive
from placekit_core.contracts.costs import EFFICIENCY
from placekit_core.contracts.files import FileModel, checked, parse_yaml, read_bytes

Fraction = Annotated[float, Field(gt=0, le=1)]


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


class Fractions(FileModel):
    """Fractions of the peak rates that a class of operations reached; None: not measured."""

    compute: Fraction | None = None
    memory: Fraction | None = None


class Part(DeviceKind):
    """A kind of device, with facts that a cluster file lacks.

    Attributes:
        title: full name with the memory size.
        source: the data sheet.
        generation: its architecture.
        measured: fractions that were measured on this kind.
        measured_launch_s: launch overhead that was measured, seconds.
        measured_by: keys in `Parts.measurements`.
        nominal: names of the figures that no data sheet states.
        driver: names of the device in `nvidia-smi`.
        withheld: key in `Parts.withheld`; default: the type (`gpu` or `cpu`).
        pcie: generation of its PCIe slot; None without a slot.
        lanes: PCIe lanes that it has, whatever the slot.
        peer_to_peer: whether the driver copies between GPUs over PCIe, without host memory.
        shared_memory: whether the devices of its board share one memory.
    """

    title: str
    source: str
    generation: str
    measured: dict[OperationClass, Fractions] = Field(default={})
    measured_launch_s: Positive | None = None
    measured_by: Sequence[str] = ()
    nominal: str = ""
    driver: Sequence[str] = ()
    withheld: str = ""
    pcie: int | None = None
    lanes: int = 16
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
    """The seconds that a computer takes to launch operations and to hand over between devices, as in a cluster file."""

    source: str
    launch_s: NonNegative
    handover_s: NonNegative
    graph_handover_s: NonNegative


class Rates(NamedTuple):
    """Launch overhead and fractions of a kind; which of them were measured, and which are medians, by name (`matmul.memory`)."""

    launch_s: float
    efficiency: dict[OperationClass, Efficiency]
    measured: tuple[str, ...]
    median: tuple[str, ...]


class Parts(FileModel):
    """Everything in `parts.yaml`.

    Attributes:
        measurements: sources of measured fractions.
        stand_in: generations without measurements, and the similar one whose medians they get.
        host_memory: channels of a host's memory, and the fraction of their bandwidth that products reach.
    """

    kinds: dict[str, Part]
    measurements: dict[str, str]
    stand_in: dict[str, str]
    host_memory: dict[int, Fraction]
    links: dict[str, LinkPart]
    staged: Staged
    host: HostPart
    withheld: dict[str, Withheld]

    def withheld_of(self, kind: str) -> Withheld:
        """The memory of a device kind that placements cannot use."""
        part = self.kinds[kind]
        return self.withheld[part.withheld or part.type]

    def host_fractions(self, channels: int) -> dict[OperationClass, Fractions]:
        """Fractions of the memory bandwidth of a CPU with this many channels, or the nearest known number."""
        memory = self.host_memory[min(self.host_memory, key=lambda n: abs(n - channels))]
        classes: tuple[OperationClass, ...] = ("matmul", "quantized_matmul", "inference_matmul")
        return {c: Fractions(memory=memory) for c in classes}

    def host_efficiency(self, channels: int) -> dict[OperationClass, Efficiency]:
        """The same as rows of a device kind."""
        found = self.host_fractions(channels)
        return {c: EFFICIENCY[c].model_copy(update={"memory": f.memory}) for c, f in found.items()}

    def kind(self, name: str) -> DeviceKind:
        """The part as a device kind of a cluster file, with the fractions that are known of it."""
        part, withheld, rates = self.kinds[name], self.withheld_of(name), self.rates(name)
        own = {key: getattr(part, key) for key in DeviceKind.model_fields}
        own |= {"reserve_bytes": withheld.reserve_bytes, "headroom": withheld.headroom}
        if part.memory_bytes <= withheld.reserve_bytes:
            reserve = f"{withheld.reserve_bytes / 2**30:.3g} GB that the system takes"
            raise ClusterError(f"{part.title}: its memory is not more than the {reserve}", "give it more memory")
        return DeviceKind(**own | {"launch_overhead_s": rates.launch_s, "efficiency": rates.efficiency})

    def _like(self, part: Part) -> list[Part]:
        """The shipped kinds that were measured, of its generation or of the one in `stand_in`."""
        own, other = (
            [p for p in parts().kinds.values() if p.generation == generation and p.measured_by]
            for generation in (part.generation, self.stand_in.get(part.generation))
        )
        return own or other

    def rates(self, name: str) -> Rates:
        """Launch overhead and efficiency of a kind: measured, else the median of its generation, else nominal."""
        part = self.kinds[name]
        like = self._like(part)
        launches = [p.measured_launch_s for p in like if p.measured_launch_s]
        launch_s = part.measured_launch_s or (median(launches) if launches else part.launch_overhead_s)
        origin: dict[str, list[str]] = {"measured": [], "median": []}
        if launches:
            origin["measured" if part.measured_launch_s else "median"].append("launch_overhead_s")
        efficiency: dict[OperationClass, Efficiency] = {}
        for op_class, nominal in EFFICIENCY.items():
            found = {}
            for half in ("compute", "memory"):
                values = [v for p in like if op_class in p.measured and (v := getattr(p.measured[op_class], half))]
                own = getattr(part.measured.get(op_class), half, None)
                if values:
                    # products and attention were measured in 16 bits; quantised weights are always expanded to them
                    always = op_class in ("quantized_matmul", "inference_matmul")
                    field = "compute_16bit" if half == "compute" and not always else half
                    found[field] = own or round(median(values), 2)
                    origin["measured" if own else "median"].append(f"{op_class}.{half}")
            if found:
                efficiency[op_class] = nominal.model_copy(update=found)
        return Rates(launch_s, efficiency, tuple(origin["measured"]), tuple(origin["median"]))

    def origin(self, name: str) -> str:
        """Sentences that say which rates of a kind are measured and which are medians of its generation."""
        part, rates = self.kinds[name], self.rates(name)
        by = "; ".join(self.measurements[key] for key in part.measured_by)
        text = f"Measured ({by}): {_short(rates.measured)}. " if rates.measured else ""
        if rates.median:
            text += f"Medians of {self._like(part)[0].generation}: {_short(rates.median)}. "
        launch = "" if "launch_overhead_s" in (*rates.measured, *rates.median) else " and launch overhead"
        return f"{text}{'Other efficiencies' if text else 'Efficiencies'}{launch} are nominal."


def _short(names: Sequence[str]) -> str:
    """`matmul.compute, matmul.memory, copy.memory` as `matmul, copy.memory`."""
    classes = dict.fromkeys(name.partition(".")[0] for name in names)
    whole = {c for c in classes if {f"{c}.compute", f"{c}.memory"} <= {*names}}
    return ", ".join(dict.fromkeys(c if (c := name.partition(".")[0]) in whole else name for name in names))


@cache
def parts() -> Parts:
    """The contents of `parts.yaml`."""
    return checked(parse_yaml(read_bytes(Path(__file__).with_name("parts.yaml"))), Parts)
