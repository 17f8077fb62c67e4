"""`placekit cluster new`: writes a cluster file for a machine in words, or for this computer (`auto`)."""

from __future__ import annotations

from pathlib import Path

from placekit_core import ClusterError, Registry, write_atomically
from placekit_core.cli.arguments import quoted
from placekit_core.cli.parser import Parser
from placekit_inspect.computer import read_computer
from placekit_inspect.computer_file import computer_file
from placekit_inspect.machine_file import machine_file
from placekit_inspect.machine_words import HOW


def main(argv: list[str], registry: Registry) -> int:
    """Print the file, or write it to OUT."""
    what = (
        "Write a cluster file that you can edit: devices, then after commas their link, and the network if there are"
        " several boxes; or `auto`: this computer. `placekit cluster kinds` lists the devices and links."
    )
    parser = Parser("cluster new", what)
    parser.add_argument("machine", metavar="MACHINE", help=f"in quotes, or auto; {HOW}")
    parser.add_argument("out", nargs="?", type=Path, metavar="OUT.yaml", help="the file; without it, it is printed")
    arguments = parser.read(argv)
    machine, out = arguments.machine, arguments.out
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
        raise ClusterError(f"cannot write {out}: {e.strerror}", "choose another file") from None
    print(f"written to {out}; place on it with `placekit run cluster={quoted(str(out))}`")
    return 0
