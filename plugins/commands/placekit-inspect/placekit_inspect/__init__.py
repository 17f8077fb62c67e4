"""Commands that show graphs, bounds and machines, and that measure how far the machine model is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placekit_core import Command, hookimpl

if TYPE_CHECKING:
    from placekit_core import Cluster


@hookimpl
def placekit_this_computer() -> Cluster:
    """What nvidia-smi and Linux say of it; see `placekit cluster detect`."""
    from placekit_inspect.cluster_detect import this_computer

    return this_computer()


@hookimpl
def placekit_commands() -> list[Command]:
    """Commands about graphs, bounds and machines."""
    return [
        Command(
            name="graph show",
            usage="[FILE] [OPTION=VALUE ...]",
            summary="a program's graph in numbers; -m: a table of several",
            target="placekit_inspect.graph:show_command",
            group="look",
        ),
        Command(
            name="graph export",
            usage="OUT [OPTION=VALUE ...]",
            summary="write a program's graph to a file",
            target="placekit_inspect.graph:export_command",
            group="look",
        ),
        Command(
            name="graph import",
            usage="FILE [OUT]",
            summary="read a graph file, check it, and write it as OUT",
            target="placekit_inspect.graph:import_command",
            group="look",
        ),
        Command(
            name="bounds",
            usage="[OPTION=VALUE ...]",
            summary="proven lower bounds of the makespan, by argument",
            target="placekit_inspect.bounds:main",
            group="look",
        ),
        Command(
            name="cluster show",
            usage="[NAME|FILE.yaml]",
            summary="the machines that ship, or one of them in detail",
            target="placekit_inspect.cluster:main",
            group="look",
        ),
        Command(
            name="cluster new",
            usage="[MACHINE [OUT.yaml]]",
            summary="a cluster file from a machine in words, to edit",
            target="placekit_inspect.cluster_new:main",
            group="look",
        ),
        Command(
            name="cluster detect",
            usage="[OUT.yaml]",
            summary="a cluster file of this computer: GPUs, links, CPU",
            target="placekit_inspect.cluster_detect:main",
            group="look",
        ),
        Command(
            name="cluster profile",
            usage="OUT_DIR [OPTION=VALUE ...]",
            summary="measure this machine and a program's operations",
            target="placekit_inspect.cluster_profile:main",
            group="measure",
        ),
        Command(
            name="fidelity",
            usage="OUT_DIR [OPTION=VALUE ...]",
            summary="simulated beside measured seconds of placements",
            target="placekit_inspect.fidelity:main",
            group="measure",
        ),
    ]
