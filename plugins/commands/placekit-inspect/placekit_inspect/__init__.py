"""Commands that show graphs, bounds and machines, measure a machine, and compare simulation with measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placekit_core import Command, hookimpl

if TYPE_CHECKING:
    from placekit_core import Cluster


@hookimpl(trylast=True)  # it raises for words that it cannot read
def placekit_machine(words: str) -> Cluster:
    """The machine of `cluster='rtx4090 + rtx3090'`."""
    from placekit_inspect.described import in_words

    return in_words(words)


@hookimpl
def placekit_this_computer() -> Cluster:
    """The machine of `cluster=auto`, read from nvidia-smi and Linux."""
    from placekit_inspect.computer_file import this_computer

    return this_computer()


COMMANDS = [
    (
        "graph show",
        "[FILE] [OPTION=VALUE ...]",
        "a program's graph in numbers; -m: a table of several",
        "placekit_inspect.graph:show_command",
        "look",
    ),
    (
        "graph export",
        "OUT [FILE] [OPTION=VALUE ...]",
        "write a program's graph to a file",
        "placekit_inspect.graph:export_command",
        "look",
    ),
    (
        "bounds",
        "[OPTION=VALUE ...]",
        "proven lower bounds of the makespan, by argument",
        "placekit_inspect.bounds:main",
        "look",
    ),
    (
        "cluster show",
        "[NAME|FILE.yaml|WORDS]",
        "the machines that ship, or one of them in detail",
        "placekit_inspect.cluster_show:main",
        "look",
    ),
    (
        "cluster kinds",
        "[WORD]",
        "the devices and links that machines are made of",
        "placekit_inspect.cluster_kinds:main",
        "look",
    ),
    (
        "cluster new",
        "MACHINE|auto [OUT.yaml]",
        "a cluster file for a machine in words, or this one",
        "placekit_inspect.cluster_new:main",
        "look",
    ),
    (
        "cluster profile",
        "OUT_DIR [OPTION=VALUE ...]",
        "measure this machine and a program's operations",
        "placekit_inspect.cluster_profile:main",
        "measure",
    ),
    (
        "fidelity",
        "OUT_DIR [OPTION=VALUE ...]",
        "simulated beside measured seconds of placements",
        "placekit_inspect.fidelity:main",
        "measure",
    ),
]
"""Name, arguments, summary, function and heading of each command."""


@hookimpl
def placekit_commands() -> list[Command]:
    """Commands about graphs, bounds and machines."""
    return [Command(name, usage, summary, target, group) for name, usage, summary, target, group in COMMANDS]
