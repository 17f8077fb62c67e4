"""Reads this computer: GPUs and their links from nvidia-smi, the rest from Linux. Measures nothing."""

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
"""Runs nvidia-smi with arguments and returns its output; None if it is not installed."""
FIELDS = ("index", "name", "uuid", "memory.total", "memory.used", "pcie.link.gen.max",
          "pcie.link.width.current", "mig.mode.current")  # fmt: skip
"""`gen.max` is the highest generation of both card and slot; an idle card uses a lower one."""
_PCIE = (3, 16)  # generation and lanes if nvidia-smi does not know them
NVIDIA, AMD, INTEL = "0x10de", "0x1002", "0x8086"
_TIMEOUT_S = 30  # timeout of nvidia-smi, which waits until the driver has started
_GHZ = 2.0  # clock of a CPU that does not state it


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU. `used_bytes`: memory of other programs; `generation`, `lanes`: of its PCIe link."""

    index: int
    name: str
    memory_bytes: int
    used_bytes: int
    generation: int
    lanes: int


@dataclass(frozen=True)
class Processor:
    """The CPU: physical cores that this process may use, their clock, and nominal float32 FLOP per cycle and core."""

    name: str
    cores: int
    hertz: float
    flops_per_cycle: int
    memory_bytes: int


@dataclass(frozen=True)
class Computer:
    """A computer.

    Attributes:
        nvlinks: number of NVLinks between two GPUs, by their positions in `gpus`, in both orders.
        notes: sentences about devices that were not read.
    """

    processor: Processor
    gpus: Sequence[Gpu] = ()
    nvlinks: Mapping[tuple[int, int], int] = field(default_factory=dict)
    notes: Sequence[str] = ()


def nvidia_smi(arguments: Sequence[str]) -> str | None:
    """The output of nvidia-smi; None if it is not installed. Raises ClusterError if it fails."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        done = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as e:
        raise ClusterError(f"nvidia-smi does not answer: {e}", "name a machine: cluster=NAME") from None
    if done.returncode:
        error = (done.stdout + done.stderr).strip().partition("\n")[0]
        raise ClusterError(f"nvidia-smi fails: {error}", "repair the driver, or name a machine: cluster=NAME")
    return done.stdout


def read_computer(tool: Tool = nvidia_smi, root: Path = Path("/")) -> Computer:
    """Read this computer. Raises ClusterError if nvidia-smi fails, or its output cannot be read.

    `root` is the folder that holds `proc` and `sys`.
    """
    processor = _processor(root)
    query = tool([f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"])
    gpus = [] if query is None else _visible([_gpu(line) for line in query.splitlines() if line.strip()])
    notes = list(_notes(root, query is None))
    positions = {gpu.index: position for position, (_, gpu) in enumerate(gpus)}
    nvlinks = _topology(tool(["topo", "-m"]) or "", positions) if len(gpus) > 1 else {}
    return Computer(processor, [g for _, g in gpus], nvlinks, notes)


def _gpu(line: str) -> tuple[str, Gpu]:
    """The uuid and the GPU of one line of the query."""
    values = [v.strip() for v in line.split(",")]
    try:
        index, name, uuid, total, used, generation, lanes, mig = values
        gpu = Gpu(
            int(index), name, int(total) * 2**20, int(used) * 2**20,
            int(generation) if generation.isdecimal() else _PCIE[0], int(lanes) if lanes.isdecimal() else _PCIE[1],
        )  # fmt: skip
    except ValueError:
        raise ClusterError(
            f"nvidia-smi prints {line.strip()!r} instead of {len(FIELDS)} known values", "name a machine: cluster=NAME"
        ) from None
    if mig == "Enabled":
        raise ClusterError(
            f"GPU {gpu.index}, {name}, is divided into instances (MIG), which placekit cannot read",
            "write a cluster file for them; `placekit cluster new` writes the figures of the whole GPU",
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
        if not found:  # CUDA ignores everything after an unknown name
            break
        chosen += found[:1]
    return chosen


def _topology(text: str, positions: Mapping[int, int]) -> dict[tuple[int, int], int]:
    """The NVLinks in the matrix of `nvidia-smi topo -m`; `NV4` in row GPU0 and column GPU1 means four."""
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]
    head = next((re.findall(r"GPU(\d+)", line) for line in plain if re.match(r"\s+GPU\d+", line)), [])
    found = {}
    for line in plain:
        row = re.match(r"GPU(\d+)\s", line)
        if row is None:
            continue
        for column, cell in zip(head, line.split()[1:], strict=False):
            link, a, b = re.fullmatch(r"NV(\d+)", cell), positions.get(int(row[1])), positions.get(int(column))
            if link is not None and a is not None and b is not None:
                found[a, b] = int(link[1])
    return found


def _notes(root: Path, no_tool: bool) -> Iterator[str]:
    """Notes on GPUs that were not read."""
    cards = [c for c in (root / "sys/bus/pci/devices").glob("*") if _text(c, "class").startswith(("0x03", "0x12"))]
    vendors = {_text(card, "vendor") for card in cards}
    if no_tool and NVIDIA in vendors:
        yield "left out an NVIDIA GPU, because nvidia-smi is not installed"
    for vendor, name in ((AMD, "AMD"), (INTEL, "Intel")):
        if vendor in vendors:
            yield f"left out a GPU of {name}, which placekit cannot read"
    if os.uname().sysname == "Darwin":
        yield "left out Apple's GPU, which placekit cannot read: `placekit cluster new` knows m2_ultra and m3_ultra"


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
    """The clock in Hz: the base frequency, else the highest one, else that in /proc/cpuinfo (rounded), else nominal."""
    for name in ("base_frequency", "cpuinfo_max_freq"):
        kilohertz = _text(root, f"sys/devices/system/cpu/cpu0/cpufreq/{name}")
        if kilohertz.isdecimal():
            return 1e3 * int(kilohertz)
    shown = re.search(r"^cpu MHz\s*: ([\d.]+)$", info, re.M)
    return 1e8 * max(round(float(shown[1]) / 100), 1) if shown else _GHZ * 1e9


def _memory(root: Path) -> int:
    """Memory that this process may use (control groups limit it), in bytes, rounded down to whole MiB."""
    total = re.search(r"^MemTotal:\s+(\d+) kB$", _text(root, "proc/meminfo"), re.M)
    bytes_ = int(total[1]) * 2**10 if total else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (_text(group, name) for group in _control_groups(root) for name in ("memory.max", "memory.limit_in_bytes"))
    return min([bytes_, *(int(limit) for limit in limits if limit.isdecimal())]) // 2**20 * 2**20


def _control_groups(root: Path) -> list[Path]:
    """Folders of this process's control group and its parents (version 1 and 2)."""
    folders = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/memory"]
    for line in _text(root, "proc/self/cgroup").splitlines():
        kinds, _, path = line.partition(":")[2].partition(":")
        if not kinds or "memory" in kinds.split(","):
            inner = folders[bool(kinds)] / path.lstrip("/")
            folders += [f for f in (inner, *inner.parents) if f.is_relative_to(folders[bool(kinds)])]
    return folders


def _text(folder: Path, name: str) -> str:
    """The content of a file, stripped; empty if it cannot be read."""
    try:
        return (folder / name).read_text(errors="replace").strip()
    except OSError:
        return ""
