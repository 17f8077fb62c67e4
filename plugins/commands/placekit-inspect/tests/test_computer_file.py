"""`placekit cluster new auto` and `cluster=auto`: recorded output of nvidia-smi, folders of Linux, and this computer."""

from __future__ import annotations

import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from placekit_inspect.computer import Computer, Tool, read_computer
from placekit_inspect.computer_file import computer_file, this_computer

from placekit_core import Cluster, ClusterError, load_cluster, usable_cores
from placekit_core.contracts.files import parse_yaml

TWO_3090 = """\
0, NVIDIA GeForce RTX 3090, GPU-1a2b, 24576, 18, 3, 16, [N/A]
1, NVIDIA GeForce RTX 3090, GPU-3c4d, 24576, 18, 3, 8, [N/A]
"""
BRIDGE = """\
\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV4\t0-23\t0\t\tN/A
GPU1\tNV4\t X \t0-23\t0\t\tN/A

Legend:

  NV#  = Connection traversing a bonded set of # NVLinks
"""
UNLIKE = """\
0, NVIDIA GeForce RTX 4090, GPU-1a2b, 24564, 1305, 4, 8, [N/A]
1, NVIDIA GeForce RTX 3090, GPU-3c4d, 24576, 1, [N/A], [N/A], [N/A]
"""
NO_NVLINK = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-23\nGPU1\tPHB\t X \t0-23\n"
EIGHT_H100 = "".join(f"{i}, NVIDIA H100 80GB HBM3, GPU-{i}, 81559, 1, 5, 16, Disabled\n" for i in range(8))
SWITCH = "\t" + "\t".join(f"GPU{i}" for i in range(8)) + "\tNIC0\tCPU Affinity\n"
SWITCH += "".join(
    f"GPU{i}\t" + "\t".join(" X " if i == j else "NV18" for j in range(8)) + "\tPXB\t0-51\n" for i in range(8)
)
V100_MESH = """\
\tGPU0\tGPU1\tGPU2\tCPU Affinity
GPU0\t X \tNV1\tNV2\t0-19
GPU1\tNV1\t X \tNV1\t0-19
GPU2\tNV2\tNV1\t X \t0-19
"""
CPUINFO = """\
processor\t: {0}
model name\t: Fast CPU: 8-Core
cpu MHz\t\t: 3593.250
physical id\t: 0
core id\t\t: {1}
flags\t\t: fpu avx2 fma

"""


def tool(query: str, topology: str = "") -> Tool:
    answers = {"--query-gpu": query, "topo": topology}
    return lambda arguments: answers[arguments[0].partition("=")[0]]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A computer with 4 cores of two threads, 32 GiB of memory, and a card at 02:00.0."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("placekit_inspect.computer.usable_cores", lambda: 8)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("".join(CPUINFO.format(i, i // 2) for i in range(8)))
    (tmp_path / "proc/meminfo").write_text("MemTotal:       33554432 kB\nMemFree:  1 kB\n")
    card = tmp_path / "sys/bus/pci/devices/0000:02:00.0"
    card.mkdir(parents=True)
    (card / "class").write_text("0x030000\n")
    (card / "vendor").write_text("0x10de\n")
    return tmp_path


def cluster(computer: Computer) -> Cluster:
    return Cluster.parse(parse_yaml(computer_file(computer).encode()))


def channels(c: Cluster) -> dict[str, float]:
    return {channel.name: channel.bytes_per_s for channel in c.routes.channels}


def test_two_cards_on_a_bridge(root: Path) -> None:
    c = cluster(read_computer(tool(TWO_3090, BRIDGE), root))
    assert c.device_names == ("rtx3090:0", "rtx3090:1", "cpu:0")
    found = channels(c)
    assert found["rtx3090:0->rtx3090:1"] == 4 * 14.0625e9
    assert found["rtx3090:0<->host"] == 12e9  # PCIe 3.0 x16: three quarters of 16 GB/s
    assert found["rtx3090:1<->host"] == 6e9
    assert c.kinds["rtx3090"].memory_bytes == 24 * 2**30
    assert c.kinds["rtx3090"].reserve_bytes == 896 * 2**20


def test_the_cpu_is_a_device(root: Path) -> None:
    cpu = cluster(read_computer(tool(TWO_3090), root)).kinds["cpu"]
    assert cpu.type == "cpu"
    assert cpu.memory_bytes == 32 * 2**30
    assert cpu.usable_bytes == 28 * 2**30
    assert cpu.flops_per_s["float32"] == pytest.approx(4 * 3.6e9 * 32)  # 8 threads are 4 cores
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/memory.max").write_text(f"{8 * 2**30}\n")
    assert read_computer(tool(""), root).processor.memory_bytes == 8 * 2**30
    (root / "proc/self").mkdir()
    (root / "proc/self/cgroup").write_text("0::/user/job\n")
    (root / "sys/fs/cgroup/user/job").mkdir(parents=True)
    (root / "sys/fs/cgroup/user/memory.max").write_text(f"{4 * 2**30}\n")
    assert read_computer(tool(""), root).processor.memory_bytes == 4 * 2**30


def test_unlike_cards_one_with_a_screen_and_one_whose_driver_says_less(root: Path) -> None:
    c = cluster(read_computer(tool(UNLIKE, NO_NVLINK), root))
    assert channels(c) == {
        "rtx4090:0<->host": 12e9,  # PCIe 4.0 x8
        "rtx3090:0<->host": 12e9,  # PCIe 3.0 x16 is assumed
        "cpu:0->host": 51.2e9,
        "host->cpu:0": 51.2e9,
    }
    assert c.kinds["rtx4090"].memory_bytes == 24564 * 2**20
    assert c.kinds["rtx4090"].reserve_bytes == (896 + 1024) * 2**20  # 905 MiB beyond the driver's, in steps of 256
    text = computer_file(read_computer(tool(UNLIKE, NO_NVLINK), root))
    assert "Other programs hold 1.00 GiB, rounded up." in text.replace("\n  # ", " ")


def test_more_neighbours_than_links_are_a_switch(root: Path) -> None:
    c = cluster(read_computer(tool(EIGHT_H100, SWITCH), root))
    assert c.size == 9
    assert 1 / c.routes.s_per_byte[0, 7] == pytest.approx(450e9)
    assert channels(c)["h100:3->nvswitch"] == 450e9
    assert channels(c)["h100:3->pcie"] == 48e9  # peer-to-peer: both directions at once


def test_a_mesh_of_unlike_bundles(root: Path) -> None:
    query = "".join(f"{i}, Tesla V100-SXM2-32GB, GPU-{i}, 32510, 1, 3, 16, [N/A]\n" for i in range(3))
    found = channels(cluster(read_computer(tool(query, V100_MESH), root)))
    assert found["v100:0->v100:2"] == 50e9
    assert found["v100:1->v100:2"] == 25e9
    assert not any("nvswitch" in name for name in found)


def test_cards_that_cuda_may_see(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for visible, indices in (("1", [1]), ("1,0", [1, 0]), ("GPU-1", [0]), ("", []), ("7,0", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert [gpu.index for gpu in read_computer(tool(TWO_3090, BRIDGE), root).gpus] == indices


def test_same_cards_with_unlike_memory_are_two_kinds(root: Path) -> None:
    screen = TWO_3090.replace("24576, 18, 3, 8", "24576, 2000, 3, 8")
    c = cluster(read_computer(tool(screen, BRIDGE), root))
    assert c.device_names == ("rtx3090:0", "rtx3090_2:0", "cpu:0")
    assert c.kinds["rtx3090_2"].usable_bytes < c.kinds["rtx3090"].usable_bytes
    assert channels(c)["rtx3090:0->rtx3090_2:0"] == 4 * 14.0625e9


@pytest.mark.parametrize(
    ("query", "said", "hint"),
    [
        (TWO_3090.replace("RTX 3090", "GT 1030"), "no data sheet for GPU 0, 'NVIDIA GeForce GT 1030'", "cluster profile"),
        (EIGHT_H100.replace("Disabled", "Enabled"), "GPU 0, NVIDIA H100 80GB HBM3, is divided into instances", "cluster new"),
        ("No devices were found\n", "nvidia-smi prints 'No devices were found' instead of 8 known values", "cluster=NAME"),
        (TWO_3090.replace("24576, 18", "24576, 24500"), "GPU 0, NVIDIA GeForce RTX 3090, is full", "CUDA_VISIBLE"),
    ],
)  # fmt: skip
def test_what_cannot_be_read(root: Path, query: str, said: str, hint: str) -> None:
    with pytest.raises(ClusterError) as e:
        computer_file(read_computer(tool(query), root))
    assert said in e.value.message
    assert hint in e.value.hint


def test_cards_that_are_not_read_are_named(root: Path) -> None:
    nothing: Callable[[Sequence[str]], None] = lambda _: None  # noqa: E731
    assert read_computer(nothing, root).notes == ["left out an NVIDIA GPU, because nvidia-smi is not installed"]
    (root / "sys/bus/pci/devices/0000:02:00.0/vendor").write_text("0x1002\n")
    computer = read_computer(nothing, root)
    assert computer.notes == ["left out a GPU of AMD, which placekit cannot read"]
    assert "# Left out a GPU of AMD, which placekit cannot read.\n" in computer_file(computer)
    assert cluster(computer).device_names == ("cpu:0",)


def test_nvidia_smi_is_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a script of that name on the path, and one that fails as with a driver of another version."""
    script = root / "nvidia-smi"
    monkeypatch.setenv("PATH", str(root), prepend=":")
    script.write_text(
        f"#!/bin/sh\ncase $1 in --query-gpu=*) printf '{TWO_3090.splitlines()[0]}\\n';; *) exit 1;; esac\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    assert [gpu.name for gpu in read_computer(root=root).gpus] == ["NVIDIA GeForce RTX 3090"]
    script.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    with pytest.raises(ClusterError, match="nvidia-smi fails: Failed to initialize NVML: Driver/library version"):
        read_computer(root=root)


def test_this_computer(placekit: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # a card without a data sheet would be an error
    assert "cpu:0" in this_computer().device_names
    assert read_computer().processor.cores <= usable_cores()
    assert this_computer().fingerprint == this_computer().fingerprint
    code, out, _ = placekit("cluster", "new", "auto", "here.yaml")
    assert (code, out) == (0, "written to here.yaml; place on it with `placekit run cluster='here.yaml'`\n")
    assert load_cluster("here.yaml").fingerprint == this_computer().fingerprint
    assert placekit("cluster", "new", "auto").out == Path("here.yaml").read_text()
    code, _, err = placekit("cluster", "new", "auto", "here.yaml")
    assert code == 1
    assert "here.yaml exists already" in err
    assert "here.txt does not end in .yaml" in placekit("cluster", "new", "auto", "here.txt").err
