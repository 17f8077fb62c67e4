"""A machine as people name it on a command line."""

from __future__ import annotations

from pathlib import Path

from placekit_core import Cluster, ClusterError, Registry, load_cluster, parse_yaml
from placekit_inspect.machine_file import machine_file


def described_machine(machine: str | Path | Cluster, registry: Registry) -> Cluster:
    """The machine in words, of a preset or a YAML file; `auto` is this computer. Raises ClusterError."""
    if isinstance(machine, Cluster):
        return machine
    text = str(machine)
    if text.endswith((".yaml", ".yml")):
        return load_cluster(text)
    presets = {p.name: p.path for p in registry.presets() if p.group == "cluster" and p.path}
    if text in presets:
        return load_cluster(presets[text])
    if text == "auto":
        found = registry.this_computer()
        if found is None:
            raise ClusterError("this computer is not described", "describe the machine: 'rtx4090 + 64GB ddr5-5600'")
        return found
    return Cluster.parse(parse_yaml(machine_file(text).encode()), text)


def in_words(words: str) -> Cluster:
    """The machine that `words` describe, named by them, so that tables of runs tell machines apart. Raises ClusterError."""
    data = parse_yaml(machine_file(words).encode())
    return Cluster.parse({**data, "name": " ".join(words.split())}, words)
