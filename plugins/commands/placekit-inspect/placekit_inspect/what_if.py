"""What a plan would be with more words for its machine: `placekit plan MODEL "2x rtx3090" --if nvlink`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from placekit_core import Cluster, ClusterError, Registry
from placekit_core.cli.console import table
from placekit_inspect.described import described_machine

SAME = 0.005
"""Speeds that differ by less are equal."""


class Recommended(NamedTuple):
    """What a plan recommends: the strategy in words, its speed for the columns of a table, and the seconds to compare."""

    strategy: str
    speed: Sequence[str]
    seconds: float


def changed_machine(machine: str, words: str, registry: Registry) -> Cluster:
    """The machine in words with a link (`nvlink`) or a device (`+ rtx3060`) more. Raises ClusterError for other machines."""
    named = {"auto": "this computer"} | {p.name: "a preset" for p in registry.presets() if p.group == "cluster"}
    what = "a file" if machine.endswith((".yaml", ".yml")) else named.get(machine)
    if what:
        raise ClusterError(
            f"--if {words!r} adds words to a machine in words, and {machine} is {what}",
            "describe the machine: '2x rtx3090' --if nvlink --if '+ rtx4090'; or plan again with another file",
        )
    return described_machine(_joined(machine, words.strip(" ,")), registry)


def _joined(machine: str, words: str) -> str:
    """A link at the end; devices at the end or, in brackets, before the network."""
    if not words.startswith("+"):
        return f"{machine}, {words}"
    network = machine.find(",", machine.rfind(")")) if ")" in machine else -1
    end = len(machine) if network < 0 else network
    return f"{machine[:end]} {words}{machine[end:]}"


def show_changes(columns: Sequence[str], plan: Recommended | None, changed: Mapping[str, Recommended | None]) -> None:
    """Print a row for each changed machine: the strategy recommended for it, and its gain over `plan`.

    None stands for a machine that the model does not fit on.
    """
    rows = [
        [words, "nothing fits", *[""] * len(columns), ""]
        if found is None
        else [words, found.strategy, *found.speed, _gain(plan, found)]
        for words, found in changed.items()
    ]
    print()
    table(["if", "recommended", *columns, "gain"], rows, left=2)


def _gain(plan: Recommended | None, found: Recommended) -> str:
    if plan is None:
        return "it fits"
    gain = plan.seconds / found.seconds - 1
    if abs(gain) < SAME:
        return "nothing changes" if plan.strategy == found.strategy else "as fast"
    return f"{gain:+.0%}"
