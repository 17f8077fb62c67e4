"""The command `placekit cluster kinds`: lists the devices and links for machines in words, with their data sheets."""

from __future__ import annotations

from placekit_core import ClusterError, Registry, unknown
from placekit_core.cli.console import table, wrapped
from placekit_core.cli.parser import Parser
from placekit_core.contracts.units import count, mebibytes
from placekit_inspect.data_sheets import Parts, parts
from placekit_inspect.machine_words import HOW
from placekit_inspect.own_kinds import EXAMPLE

FEW = 5  # kinds whose sources are shown
OWN = f"a kind that is not listed: give its figures, NAME{EXAMPLE}; `placekit cluster new` writes them into a file to edit"


def main(argv: list[str], registry: Registry) -> int:
    """Print the devices whose name or title has WORD, with sources if they are few. Without WORD, print all and the links."""
    parser = Parser("cluster kinds", "List the devices and links that machines in words are made of.")
    parser.add_argument("word", nargs="?", default="", metavar="WORD", help="only devices with this in their name")
    word, known = parser.read(argv).word, parts()
    found = [name for name, part in known.kinds.items() if _plain(word) in _plain(name + part.title)]
    if not found:
        error = unknown("device kind", word, known.kinds, ClusterError, "placekit cluster kinds")
        raise ClusterError(error.message, f"{error.hint}; {OWN}")
    show_kinds(known, found)
    for name in found if len(found) <= FEW else ():
        part = known.kinds[name]
        nominal = f" Nominal, not of a data sheet: {part.nominal}." if part.nominal else ""
        print(wrapped(f"{name}: {part.source}.{nominal} {known.origin(name)}"))
    if not word:
        print()
        show_links(known)
        print(wrapped(HOW))
    print(wrapped(OWN))
    return 0


def _plain(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum())


def show_kinds(known: Parts, names: list[str]) -> None:
    """Print a table of devices."""
    rows = [
        [name, p.title, f"{count(p.flops_per_s['float32'])}FLOP/s", mebibytes(p.memory_bytes), _rate(p.memory_bytes_per_s)]
        for name in names for p in [known.kinds[name]]
    ]  # fmt: skip
    table(["kind", "device", "float32", "memory", "bandwidth"], rows, left=2)


def show_links(known: Parts) -> None:
    """Print a table of links."""
    per = {"pcie": " per lane", "nvlink": "the GPU's", "nvswitch": "the GPU's", "shared": "half of the memory's"}
    rows = [
        [name, "boxes" if p.joins_boxes else "devices of a box",
         f"{_rate(p.bytes_per_s) if p.bytes_per_s else ''}{per.get(p.form, '')}"]
        for name, p in known.links.items()
    ]  # fmt: skip
    table(["link", "connects", "bandwidth per direction"], rows, left=2)


def _rate(bytes_per_s: float) -> str:
    return f"{count(bytes_per_s)}B/s"
