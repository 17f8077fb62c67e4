"""`placekit paper [NAME [ITEM]]`: tables of papers beside ours, and which of their claims hold."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from placekit_core import ConfigError, Registry, write_atomically
from placekit_core.cli.console import table
from placekit_core.cli.parser import Parser
from placekit_papers import pages
from placekit_papers.claims import NAMES, TF2017, VERDICTS, Item, Judged, count, judged, load_paper
from placekit_papers.experiments import run_item
from placekit_papers.paper_tables import by_place, lines, orders, paper_table
from placekit_papers.parts import Placed, parts_svg, parts_table, read_parts
from placekit_papers.runs import DATA, Run, read_runs


def main(argv: list[str], registry: Registry) -> int:
    """List papers, a paper's items, or an item's table and claims; with `--run`, run the item first."""
    arguments = _parser().read(argv)
    if arguments.write:
        print("\n".join(str(path) for path in pages.write_pages(arguments.write)) or "the pages are up to date")
    elif arguments.svg and arguments.item is None:
        raise ConfigError("--svg needs an item to draw", "name a paper and an item before it")
    elif arguments.name is None:
        _list_papers()
    elif arguments.item is None:
        _list_items(arguments.name)
    else:
        _show_item(arguments, registry)
    return 0


def _parser() -> Parser:
    parser = Parser(
        "paper",
        "Tables of papers on learned placement beside ours, from recorded runs, and which of their claims hold.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"a paper: {', '.join(NAMES)}; without it, a list")
    parser.add_argument("item", nargs="?", metavar="ITEM", help="a table or figure; without it, a list with minutes")
    parser.add_argument(
        "options", nargs="*", metavar="OPTION=VALUE", help="with --run: change the runs, such as seed=0,1"
    )
    parser.add_argument(
        "--run", metavar="DIR", type=Path, help="run the item in this folder, or continue an interrupted run"
    )
    parser.add_argument("--svg", metavar="FILE", type=Path, help="draw where the parts of the networks are placed")
    parser.add_argument("--write", metavar="DIR", type=Path, help="update the pages of the papers in this folder")
    return parser


def _list_papers() -> None:
    rows = [
        ["" if i else name, machine or "other", *map(str, found)]
        for name in NAMES
        for i, (machine, found) in enumerate(count(name).items())
    ]
    table(["paper", "machines", *VERDICTS], rows, left=2)
    print("\n`placekit paper NAME` lists a paper's tables and figures.")


def _list_items(name: str) -> None:
    paper, found = load_paper(name), judged(name)
    rows = []
    for key, item in paper.items.items():
        verdicts = [v.verdict for j in found if j.claim.item == key for v in j.verdicts.values()]
        text = ", ".join(f"{verdicts.count(v)} {v}" for v in VERDICTS if v in verdicts)
        rows.append([key, item.title, text, f"{item.expected_minutes:.0f}"])
    table(["item", "shows", "claims", "minutes"], rows, left=3, title=paper.title)
    print(
        f"\n`placekit paper {name} ITEM` shows the recorded runs of an item. --run DIR runs it, in about as many minutes."
    )


def _show_item(arguments: argparse.Namespace, registry: Registry) -> None:
    paper = load_paper(arguments.name)
    if arguments.item not in paper.items:
        raise ConfigError(
            f"paper {arguments.name} has no item {arguments.item!r}", f"there are {', '.join(paper.items)}"
        )
    item = paper.items[arguments.item]
    if arguments.options and not arguments.run:
        raise ConfigError("OPTION=VALUE changes runs, and without --run nothing is run", "give --run DIR, too")
    if arguments.svg and not item.parts:
        shown = [key for key, other in paper.items.items() if other.parts]
        raise ConfigError(
            f"item {arguments.item} shows no placements", f"items with a picture: {', '.join(shown) or 'no item'}"
        )
    if arguments.options and item.study:
        raise ConfigError(f"item {arguments.item} is not a sweep, and takes no options", "leave them out")
    print(f"{paper.title}, {arguments.item}: {item.title}")
    if arguments.run:
        _announce(item, arguments.run)
    if item.study:
        study = importlib.import_module(item.study)
        print("\n".join(study.run(arguments.run, registry) if arguments.run else study.show()))
    else:
        found = run_item(item, arguments.run, arguments.options) if arguments.run else _recorded(item)
        print("\n".join(item_table(item, found)) if found else "\nno runs are recorded: --run DIR makes them")
        if item.parts:
            _show_parts(read_parts(arguments.run / "parts.csv" if arguments.run else _parts_csv(item)), arguments.svg)
    print("\nClaims, judged by the recorded runs:")
    for j in judged(arguments.name):
        if j.claim.item == arguments.item:
            _print_claim(j)


def _parts_csv(item: Item) -> Path:
    return DATA / f"{item.runs[0]}_parts.csv"


def _show_parts(found: Sequence[Placed], svg: Path | None) -> None:
    print("\n".join(parts_table(found)))
    if svg:
        write_atomically(svg, parts_svg(found).encode())
        print(f"\npicture: {svg}")


def _announce(item: Item, folder: Path) -> None:
    """Print how long the runs take, before they start."""
    minutes = item.expected_minutes
    text = f"{max(minutes, 1):.0f} min" if minutes < 120 else f"{minutes / 60:.0f} hours"
    print(f"This takes about {text} on two CPU cores. Results go to {folder}.", file=sys.stderr, flush=True)
    folder.mkdir(parents=True, exist_ok=True)


def _recorded(item: Item) -> dict[str, list[Run]]:
    return {name: read_runs(DATA / f"{name}.csv") for name in item.runs}


def item_table(item: Item, found: Mapping[str, Sequence[Run]]) -> list[str]:
    """The lines of an item's tables: the paper's seconds beside ours, and how often the paper's order of two methods holds."""
    text = list[str]()
    for i, (name, runs) in enumerate(found.items()):
        places, bounds = by_place(runs, "late_s" if item.late else "value_s"), by_place(runs, "bound_s")
        tables = [paper_table(item.tables[i], c) for c in (item.cluster, item.cluster + TF2017)] if item.tables else []
        known = {place for _, paper in tables for place in paper}
        tables.append(([], {place: {} for place in places if place not in known}))  # runs that options have changed
        for methods, paper in tables:
            ours = {place: places[place] for place in places if place in paper}
            if not ours:
                continue
            text += [
                "",
                f"{name}:" if len(found) > 1 else "",
                *lines(methods, {p: paper[p] for p in paper if p in ours}, ours, bounds),
            ]
            if verdicts := orders(methods, paper, ours):
                text.append(
                    f"the paper's order of two methods holds in {verdicts.count('holds')} of {len(verdicts)} cases"
                )
    return text


def _print_claim(j: Judged) -> None:
    print(f"- {j.claim.where}: {j.claim.paper}")
    for machine, verdict in j.verdicts.items():
        print(f"    {machine + ': ' if machine else ''}{verdict.text()}")
        for line in [*verdict.figures, *(f"not judged: {x}" for x in verdict.beside)]:
            print("\n".join(f"        {part}" for part in line.split("<br>")))
    if j.claim.why:
        print(f"    {j.claim.why}")
