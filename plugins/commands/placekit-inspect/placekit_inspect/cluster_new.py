"""`placekit cluster new`: writes a cluster file for a machine in words, or for this computer (`auto`)."""

from __future__ import annotations

from pathlib import Path

from placekit_core import ClusterError, Registry, write_atomically
from placekit_core.cli.arguments import quoted
from placekit_core.cli.console import table, wrapped
from placekit_core.cli.parser import Parser
from placekit_core.contracts.units import count, mebibytes
from placekit_inspect.computer import read_computer
from placekit_inspect.computer_file import computer_file
from placekit_inspect.data_sheets import Parts, parts
from placekit_inspect.machine_file import machine_file
from placekit_inspect.machine_words import HOW


def main(argv: list[str], registry: Registry) -> int:
    """Print the file or write it to OUT; without a machine, list the parts."""
    what = (
        "Write a cluster file that you can edit: devices, then after commas their link, and the network if there are"
        " several boxes; or `auto`: this computer. Without a machine: list the known devices and links."
    )
    parser = Parser("cluster new", what)
    parser.add_argument("machine", nargs="?", metavar="MACHINE", help=f"in quotes, or auto; {HOW}")
    parser.add_argument("out", nargs="?", type=Path, metavar="OUT.yaml", help="the file; without it, it is printed")
    arguments = parser.read(argv)
    machine, out = arguments.machine, arguments.out
    if machine is None:
        show_parts(parts())
        return 0
    if out is not None and out.suffix not in (".yaml", ".yml"):
        raise ClusterError(
            f"{out} does not end in .yaml", "put the machine in quotes, and give the file a name in .yaml"
        )
    if out is not None and out.exists():
        raise ClusterError(f"{out} exists already", "remove it, or choose another name")
    name = out.stem if out else ""
    text = computer_file(read_computer(), name or "here") if machine == "auto" else machine_file(machine, name)
    if out is None:
        print(text, end="")
        return 0
    try:
        write_atomically(out, text.encode())
    except OSError as e:
        raise ClusterError(f"cannot write {out}: {e.strerror}") from None
    print(f"written to {out}; place on it with `placekit run cluster={quoted(str(out))}`")
    return 0


def show_parts(known: Parts) -> None:
    """Print the tables of devices and links."""
    rows = [
        [name, p.title, f"{count(p.flops_per_s['float32'])}FLOP/s", mebibytes(p.memory_bytes), _rate(p.memory_bytes_per_s)]
        for name, p in known.kinds.items()
    ]  # fmt: skip
    table(["kind", "device", "float32", "memory", "bandwidth"], rows, left=2)
    print()
    per = {"pcie": " per lane", "nvlink": "the GPU's", "nvswitch": "the GPU's", "shared": "half of the memory's"}
    rows = [
        [name, "boxes" if p.joins_boxes else "devices of a box",
         f"{_rate(p.bytes_per_s) if p.bytes_per_s else ''}{per.get(p.form, '')}"]
        for name, p in known.links.items()
    ]  # fmt: skip
    table(["link", "connects", "bandwidth per direction"], rows, left=2)
    print(wrapped(HOW))


def _rate(bytes_per_s: float) -> str:
    return f"{count(bytes_per_s)}B/s"
