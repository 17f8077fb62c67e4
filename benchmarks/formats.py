"""What reading large files costs: seconds and peak memory of importers `msr`, `pipedream` and `onnx`.

    python benchmarks/formats.py [--formats FORMAT ...] [--operations N ...] [--write]

A generated graph of N operations is written in each format, its nodes in a random order: every node reads the one before it
and one of the hundred before that. PipeDream's nodes are N / 2, since each becomes two operations. ONNX's nodes are additions in
order, and weights of 4 MiB for every 1,000 of them, which are not read. Each file is read in a
process of its own that has read a file of a few nodes before. Seconds are processor time; memory is the peak of the whole
process, and its peak before the file. `--write` keeps the table in benchmarks/results/formats.md. Needs Linux.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from simulator import processor

from placekit_core import installed

RESULT = Path(__file__).parent / "results" / "formats.md"


def edges(n: int, seed: int = 0) -> Iterator[tuple[int, int]]:
    """Edges among nodes 0 to n - 1: from the node before, and from one of the last hundred."""
    rng = random.Random(seed)
    for v in range(1, n):
        yield v - 1, v
        if v > 1:
            yield rng.randrange(max(v - 100, 0), v - 1), v


def shuffled(n: int, seed: int = 0) -> list[int]:
    """0 to n - 1 in a random order."""
    order = list(range(n))
    random.Random(seed).shuffle(order)
    return order


def write_msr(path: Path, operations: int) -> None:
    """A file of dnn-partitioning with this number of nodes."""
    with path.open("w") as file:
        file.write('{"maxSizePerFPGA": 1e12, "maxFPGAs": 6, "maxCPUs": 1, "nodes": [')
        for i, v in enumerate(shuffled(operations)):
            file.write(
                f'{", " if i else ""}{{"name": "layer{v // 100}.MatMul{v}", "id": {v}, "supportedOnFpga": true, "cpuLatency":'
                f' {v % 97 * 2.3}, "fpgaLatency": {v % 97 / 10}, "isBackwardNode": false, "colorClass": {v // 2}, "size":'
                f" {v % 89}.0}}"
            )
        file.write('], "edges": [')
        for i, (u, v) in enumerate(edges(operations)):
            row = f'{{"sourceId": {u}, "destId": {v}, "cost": {u % 83 / 7}, "size": {u % 83 * 4096}.0}}'
            file.write(f"{', ' if i else ''}{row}")
        file.write("]}")


def write_pipedream(path: Path, operations: int) -> None:
    """A profile of PipeDream with half as many nodes."""
    n = max(operations // 2, 1)
    with path.open("w") as file:
        for v in shuffled(n):
            file.write(
                f"node{v} -- Conv2d({v % 512}, 512, kernel_size=(1, 1)) -- forward_compute_time={v % 97 / 10:.3f},"
                f" backward_compute_time={v % 89 / 5 + 0.1:.3f}, activation_size={v % 83 * 4096}.000,"
                f" parameter_size={v % 79}.000\n"
            )
        for u, v in edges(n):
            file.write(f"\tnode{u} -- node{v}\n")


def write_onnx(path: Path, operations: int) -> None:
    """An ONNX model with this number of nodes."""
    from onnx import GraphProto, ModelProto, TensorProto, helper

    def value(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1024, 1024])

    graph = GraphProto(name="large", input=[value("v0")], output=[value(f"v{operations}")])
    previous = dict[int, int]()
    for u, v in edges(operations):
        previous[v] = min(u, previous.get(v, u))
    for v in range(operations):
        first, second = f"v{v}", f"v{previous.get(v, 0)}" if v % 1000 else f"layer{v // 1000}.weight"
        graph.node.append(helper.make_node("Add", [first, second], [f"v{v + 1}"], f"/layer{v // 1000}/Add_{v}"))
    weights = [f"layer{i}.weight" for i in range((operations + 999) // 1000)]
    head = ModelProto(ir_version=10, opset_import=[helper.make_opsetid("", 21)]).SerializeToString()
    with path.open("wb") as file:  # piece by piece, because protobuf writes at most 2 GB
        body = graph.SerializeToString()
        parts = [
            TensorProto(name=w, data_type=TensorProto.FLOAT, dims=[1024, 1024]).SerializeToString() for w in weights
        ]
        data = _field(9, 2**22)
        total = len(body) + sum(len(_field(5, len(p) + len(data) + 2**22)) + len(p) + len(data) + 2**22 for p in parts)
        file.write(head + _field(7, total) + body)
        for part in parts:
            file.write(_field(5, len(part) + len(data) + 2**22) + part + data)
            file.write(b"\0" * 2**22)


def _field(number: int, size: int) -> bytes:
    """The beginning of a field of protobuf with `size` bytes."""
    made = bytearray([number << 3 | 2])
    while size > 127:
        made.append(size & 127 | 128)
        size >>= 7
    return bytes([*made, size])


FORMATS: dict[str, tuple[str, Callable[[Path, int], None]]] = {
    "msr": (".json", write_msr),
    "pipedream": (".txt", write_pipedream),
    "onnx": (".onnx", write_onnx),
}
LARGEST = {"onnx": 300_000}
"""Most operations that an importer reads."""


def read(name: str, path: Path, small: Path, out: Connection) -> None:
    """Read a file in this process, and send what it cost."""
    entry = installed().get("importer", name)

    def load(file: Path) -> object:
        return entry.build(entry.component.config.model_validate({"path": str(file)})).load()[0].graph

    load(small)
    before, start = peak_mib(), time.process_time()
    graph = load(path)
    out.send((time.process_time() - start, before, peak_mib(), repr(graph)))


def peak_mib() -> float:
    """Most memory that this process has had."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024


def row(name: str, operations: int, folder: Path) -> str:
    """One row of the table."""
    ending, write = FORMATS[name]
    path, small = folder / f"large{ending}", folder / f"small{ending}"
    write(path, operations)
    write(small, 4)
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=read, args=(name, path, small, send))
    child.start()
    seconds, before, peak, graph = receive.recv()
    child.join()
    print(f"{name}: {graph}")
    mb = path.stat().st_size / 1e6
    return f"| {name} | {operations:,} | {mb:.0f} | {seconds:.1f} | {before:.0f} | {peak:.0f} |"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=list(FORMATS))
    parser.add_argument("--operations", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--write", action="store_true", help=f"into {RESULT.name}")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.formats:
        for operations in (n for n in arguments.operations if n <= LARGEST.get(name, n)):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(row(name, operations, Path(folder)))
    text = "\n".join(
        [
            "# Reading large files\n\n`python benchmarks/formats.py --write`\n",
            "| format | operations | MB | s | MiB before | peak MiB |\n|---|---:|---:|---:|---:|---:|",
            *rows,
            f"\nmachine: {processor()}\n",
        ]
    )
    print(text)
    if arguments.write:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
