"""Reads the computer that this process runs on: GPUs and their links from nvidia-smi, the rest from Linux. Measures nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from placekit_core import ClusterError, usable_cores

Tool = Callable[[Sequence[str]], str | None]
"""Runs nvidia-smi with some arguments; None if it is not installed."""
FIELDS = ("index", "name", "uuid", "pci.bus_id", "memory.total", "memory.used", "pcie.link.gen.max",
          "pcie.link.width.current", "mig.mode.current")  # fmt: skip
"""The generation is the highest that card and slot share: an idle card uses an older one. The width is what the slot gives."""
GENERATION = {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "8": 3, "16.0": 4, "16": 4, "32.0": 5, "32": 5, "64.0": 6, "64": 6}
"""PCIe generation by gigatransfers per second and lane, as in `max_link_speed`."""
NVIDIA, AMD, INTEL = "0x10de", "0x1002", "0x8086"
_SECONDS = 30  # nvidia-smi waits for a driver that starts
_GHZ = 2.0


@dataclass(frozen=True)
class Gpu:
    """A GPU of NVIDIA. `used_bytes`: held by other programs; `generation`, `lanes`: of its PCIe link."""

    index: int
    name: str
    memory_bytes: int
    used_bytes: int
    generation: int
    lanes: int


@dataclass(frozen=True)
class Processor:
    """The CPU: physical cores that this process may use, and what one computes in a cycle (float32 FLOP, nominal)."""

    name: str
    cores: int
    hertz: float
    flops_per_cycle: int
    memory_bytes: int


@dataclass(frozen=True)
class Computer:
    """What was found.

    Attributes:
        nvlinks: number of NVLinks between two GPUs, by their places in `gpus`, both ways.
        nvlink_bytes_per_s: bandwidth of one NVLink per direction, by place in `gpus`, where the driver states it; and
            nvlink_count: how many of a GPU's links are up.
        notes: devices that were not read, and why.
    """

    processor: Processor
    gpus: Sequence[Gpu] = ()
    nvlinks: Mapping[tuple[int, int], int] = field(default_factory=dict)
    nvlink_bytes_per_s: Mapping[int, float] = field(default_factory=dict)
    nvlink_count: Mapping[int, int] = field(default_factory=dict)
    notes: Sequence[str] = ()


def nvidia_smi(arguments: Sequence[str]) -> str | None:
    """What nvidia-smi prints; None if it is not installed. Raises ClusterError if it fails."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        done = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=_SECONDS, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as e:
        raise ClusterError(f"nvidia-smi does not answer: {e}", "name a machine: cluster=NAME") from None
    if done.returncode:
        said = (done.stdout + done.stderr).strip().partition("\n")[0]
        raise ClusterError(f"nvidia-smi fails: {said}", "repair the driver, or name a machine: cluster=NAME")
    return done.stdout


def read_computer(tool: Tool = nvidia_smi, root: Path = Path("/")) -> Computer:
    """This computer. Raises ClusterError if nvidia-smi fails, or prints what cannot be read.

    `root` is the folder that holds `proc` and `sys`.
    """
    processor, cards = _processor(root), dict(_cards(root))
    query = tool([f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"])
    gpus = [] if query is None else _visible([_gpu(line, cards, root) for line in query.splitlines() if line.strip()])
    notes = list(_notes(cards, query is None))
    if len(gpus) < 2:
        return Computer(processor, [g for _, g in gpus], notes=notes)
    places = {gpu.index: place for place, (_, gpu) in enumerate(gpus)}
    nvlinks = _topology(tool(["topo", "-m"]) or "", places)
    rates, count = _nvlink_status(tool(["nvlink", "--status"]) or "", places) if nvlinks else ({}, {})
    return Computer(processor, [g for _, g in gpus], nvlinks, rates, count, notes)


def _gpu(line: str, cards: Mapping[str, Path], root: Path) -> tuple[str, Gpu]:
    """The uuid, and the GPU of one line of the query."""
    values = [v.strip() for v in line.split(",")]
    try:
        index, name, uuid, bus, total, used, generation, lanes, mig = values
        card = cards.get(bus[-12:].lower())
        gpu = Gpu(
            int(index), name, int(total) * 2**20, int(used) * 2**20,
            int(generation) if generation.isdecimal() else _generation(card),
            int(lanes) if lanes.isdecimal() else int(_text(card, "current_link_width") or 16),
        )  # fmt: skip
    except ValueError:
        raise ClusterError(
            f"nvidia-smi prints {line.strip()!r}, and not {len(FIELDS)} known values", "name a machine: cluster=NAME"
        ) from None
    if mig == "Enabled":
        raise ClusterError(
            f"GPU {gpu.index}, {name}, is divided into instances (MIG), which are not read",
            "write a cluster file for them: `placekit cluster new` has the figures of the whole GPU",
        )
    return uuid, gpu


def _visible(gpus: list[tuple[str, Gpu]]) -> list[tuple[str, Gpu]]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves to this process, in its order."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpus
    chosen = []
    for word in (w.strip() for w in visible.split(",")):
        found = [g for g in gpus if word == str(g[1].index) or (word.startswith("GPU-") and g[0].startswith(word))]
        if not found:  # as CUDA: what stands behind an unknown name does not count
            break
        chosen += found[:1]
    return chosen


def _topology(text: str, places: Mapping[int, int]) -> dict[tuple[int, int], int]:
    """The NVLinks in the matrix of `nvidia-smi topo -m`: `NV4` in row GPU0 and column GPU1 are four."""
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]
    head = next((re.findall(r"GPU(\d+)", line) for line in plain if re.match(r"\s+GPU\d+", line)), [])
    found = {}
    for line in plain:
        row = re.match(r"GPU(\d+)\s", line)
        if row is None:
            continue
        for column, cell in zip(head, line.split()[1:], strict=False):
            link, a, b = re.fullmatch(r"NV(\d+)", cell), places.get(int(row[1])), places.get(int(column))
            if link is not None and a is not None and b is not None:
                found[a, b] = int(link[1])
    return found


def _nvlink_status(text: str, places: Mapping[int, int]) -> tuple[dict[int, float], dict[int, int]]:
    """Bytes per second of one link, and the number of links, of each GPU in `nvidia-smi nvlink --status`."""
    rates, count, place = dict[int, float](), dict[int, int](), None
    for line in text.splitlines():
        gpu = re.match(r"GPU (\d+):", line)
        link = re.match(r"\s+Link \d+: ([\d.]+) GB/s", line)
        if gpu is not None:
            place = places.get(int(gpu[1]))
        elif link is not None and place is not None:
            rates[place] = float(link[1]) * 1e9
            count[place] = count.get(place, 0) + 1
    return rates, count


def _cards(root: Path) -> Iterator[tuple[str, Path]]:
    """The display controllers and accelerators on PCI, by address."""
    for card in sorted((root / "sys/bus/pci/devices").glob("*")):
        if _text(card, "class").startswith(("0x03", "0x12")):
            yield card.name.lower(), card


def _generation(card: Path | None) -> int:
    """The PCIe generation that a card and its slot share; 3 if Linux does not say."""
    speeds = [_text(place, "max_link_speed").split(" ")[0] for place in (card, card and card.resolve().parent)]
    return min((GENERATION[s] for s in speeds if s in GENERATION), default=3)


def _notes(cards: Mapping[str, Path], no_tool: bool) -> Iterator[str]:
    vendors = [_text(card, "vendor") for card in cards.values()]
    if no_tool and NVIDIA in vendors:
        yield "a GPU of NVIDIA is not read, because nvidia-smi is not installed"
    for vendor, name in ((AMD, "AMD"), (INTEL, "Intel")):
        if vendor in vendors:
            yield f"a GPU of {name} is not read"
    if os.uname().sysname == "Darwin":
        yield "Apple's GPU is not read: `placekit cluster new` knows m2_ultra and m3_ultra"


def _processor(root: Path) -> Processor:
    info = _text(root, "proc/cpuinfo")
    names = re.findall(r"^(?:model name|Processor)\s*:\s*(.+)$", info, re.M)
    physical = len(set(re.findall(r"^physical id\s*: (\d+)$[\s\S]*?^core id\s*: (\d+)$", info, re.M)))
    logical = len(re.findall(r"^processor\s*:", info, re.M))
    cores = usable_cores()
    if 0 < physical < logical:  # two threads of a core share its arithmetic units
        cores = max(1, round(cores * physical / logical))
    flags = set(re.findall(r"\w+", " ".join(re.findall(r"^(?:flags|Features)\s*:(.*)$", info, re.M)[:1])))
    per_cycle = 32 if "fma" in flags else 16 if "asimd" in flags else 8
    return Processor(names[0].strip() if names else "CPU", cores, _hertz(root, info), per_cycle, _memory(root))


def _hertz(root: Path, info: str) -> float:
    """The clock: the base frequency, or else the highest one, or else what /proc/cpuinfo shows, rounded; or nominal."""
    for name in ("base_frequency", "cpuinfo_max_freq"):
        kilohertz = _text(root, f"sys/devices/system/cpu/cpu0/cpufreq/{name}")
        if kilohertz.isdecimal():
            return 1e3 * int(kilohertz)
    shown = re.search(r"^cpu MHz\s*: ([\d.]+)$", info, re.M)
    return 1e8 * max(round(float(shown[1]) / 100), 1) if shown else _GHZ * 1e9


def _memory(root: Path) -> int:
    """Memory in bytes, or the least limit of this process's control group and the groups around it, in whole MiB."""
    total = re.search(r"^MemTotal:\s+(\d+) kB$", _text(root, "proc/meminfo"), re.M)
    bytes_ = int(total[1]) * 2**10 if total else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (_text(group, name) for group in _control_groups(root) for name in ("memory.max", "memory.limit_in_bytes"))
    return min([bytes_, *(int(limit) for limit in limits if limit.isdecimal())]) // 2**20 * 2**20


def _control_groups(root: Path) -> list[Path]:
    """Folders of this process's control group and of all groups around it (version 1 and 2)."""
    folders = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/memory"]
    for line in _text(root, "proc/self/cgroup").splitlines():
        kinds, _, path = line.partition(":")[2].partition(":")
        if not kinds or "memory" in kinds.split(","):
            inner = folders[bool(kinds)] / path.lstrip("/")
            folders += [f for f in (inner, *inner.parents) if f.is_relative_to(folders[bool(kinds)])]
    return folders


def _text(folder: Path | None, name: str) -> str:
    """The content of a file of Linux, stripped; empty if it cannot be read."""
    try:
        return "" if folder is None else (folder / name).read_text(errors="replace").strip()
    except OSError:
        return ""
