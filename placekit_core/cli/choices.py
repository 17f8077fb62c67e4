"""The possible names of each group, and the choices of presets, from the registry and preset folders, without Hydra."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel

from placekit_core.contracts.hookspecs import KINDS
from placekit_core.run.assembly import SECTIONS, kind_of
from placekit_core.run.config import conf_dir, defaults_list
from placekit_core.run.registry import BUILT_IN, Registry

DEFAULT_GROUPS = frozenset({*KINDS, "parallel", "cluster", "workload", "experiment"})
"""The groups of the defaults list of conf/config.yaml; a test compares the two."""
GROUPS = ("workload", *KINDS, "backend@proxy", "parallel", "cluster", "experiment")
"""The groups in the order in which help lists them."""


def choices(group: str, registry: Registry, own: Iterable[Path] = ()) -> list[str]:
    """Names that `group=` takes: components, presets (also those in the user's `own` folders), and what is built in."""
    presets = [p.name for p in registry.presets() if p.group == group]
    presets += [path.stem for folder in own for path in (folder / group).glob("*.yaml")]
    built_in = [name for g, name in BUILT_IN if g == group and name != "file"]
    return sorted({*registry.names(group), *presets, *built_in})


def chosen_models(options: Mapping[str, list[str]], section: str, registry: Registry) -> dict[str, type[BaseModel]]:
    """Option models of the components chosen for `section`, by the component's name.

    `options` are the names that a command line gives for groups; a section without one has the default.
    """
    kind, group = kind_of(section), "backend@proxy" if section == "proxy" else section
    assert section in SECTIONS
    defaults = defaults_list(conf_dir() / "config.yaml")
    names = options.get(group)
    if names is None:
        workloads = options.get("workload", [defaults.get("workload", "")])
        found = [_preset("workload", w, registry).get(kind) for w in workloads]
        names = [n or defaults.get(group, "") for n in found]
    # a preset of a component's options names the component in its own defaults
    names = [_preset(kind, n, registry).get("", n) for n in names]
    return {n: e.component.config for n in names for e in registry.entries.get((kind, n), ())}


def own_trainers(policies: Iterable[str], registry: Registry) -> list[str]:
    """The trainers that `trainer=auto` takes for policies of these names, presets included."""
    names = [_preset("policy", n, registry).get("", n) for n in policies]
    return sorted({registry.own_trainer(n) for n in names} - {""})


def _preset(group: str, name: str, registry: Registry) -> dict[str, str]:
    found = [p.path for p in registry.presets() if (p.group, p.name) == (group, name)]
    return defaults_list(found[0]) if found and found[0] else {}
