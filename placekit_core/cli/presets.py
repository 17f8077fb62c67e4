"""Checks the presets that a command line names; an error that comes from a preset names its file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placekit_core.cli.arguments import OVERRIDE, several_programs, without_folders
from placekit_core.cli.choices import DEFAULT_GROUPS
from placekit_core.contracts.cluster import load_cluster
from placekit_core.contracts.errors import ConfigError, PluginError
from placekit_core.contracts.files import parse_text, parse_yaml, read_bytes
from placekit_core.contracts.hookspecs import KINDS
from placekit_core.run.config import defaults_list, load_preset
from placekit_core.run.registry import Registry

_GLOBAL = re.compile(r"^#\s*@package\s+_global_\s*$", re.M)


@dataclass(frozen=True)
class PresetFile:
    """The file of a preset in a plugin or in a folder that `--config-dir` names."""

    group: str
    name: str
    path: Path

    def keys(self) -> dict[str, Any]:
        """The options that the preset sets or sweeps over, by their full names, with their values."""
        text = parse_text(read_bytes(self.path))
        data = dict(parse_yaml(text.encode()) or {})
        data.pop("defaults", None)
        swept = ((data.pop("hydra", None) or {}).get("sweeper") or {}).get("params") or {}
        return {**_flat("" if _GLOBAL.search(text) else f"{self.group}.", data), **swept}


def named_presets(argv: Sequence[str], registry: Registry) -> list[PresetFile]:
    """The presets of plugins and of `--config-dir` that `argv` names, and the presets that these name. Raises ConfigError."""
    own, argv = without_folders(list(argv))
    folders = [*own, *(folder for _, folder in registry.conf_folders())]
    words = [(m["key"], n) for m in map(OVERRIDE.match, argv) if m for n in re.findall(r"[\w\-]+|\*", m["value"])]
    found = [PresetFile(g, p.stem, p) for g, n in words for folder in folders for p in (folder / g).glob(f"{n}.yaml")]
    for preset in found:  # the list grows
        for key, name in defaults_list(preset.path).items():
            group = key.partition("@")[0] or preset.group
            inner = [PresetFile(group, name, folder / group / f"{name}.yaml") for folder in folders]
            found += [p for p in inner if os.path.isfile(p.path) and p not in found]
    return list(dict.fromkeys(found))


def check_presets(argv: Sequence[str], registry: Registry) -> None:
    """Raise an error that names the file if one of `named_presets` cannot work."""
    own, _ = without_folders(list(argv))
    presets = named_presets(argv, registry)
    for preset in presets:
        if any(preset.path.is_relative_to(folder) for folder in own):
            _check_name(preset, presets, registry)
        if preset.group == "experiment" and not _GLOBAL.search(parse_text(read_bytes(preset.path))):
            raise ConfigError(
                f"{preset.path} has no line `# @package _global_`, so its options would be those of a section `experiment`",
                "make it the first line",
            )
        _check_defaults(preset)


def check_program(found: Sequence[str], own: Sequence[Path], registry: Registry) -> None:
    """Raise ConfigError if the options name a workload, and an importer that is not the workload's."""
    given = {m["key"]: m["value"] for m in map(OVERRIDE.match, found) if m}
    importer, workload = given.get("importer"), given.get("workload")
    if importer is None or workload is None:
        return
    for preset in named_presets([f"workload={workload}", *(f"--config-dir={folder}" for folder in own)], registry):
        fitting = defaults_list(preset.path).get("importer") if preset.group == "workload" else None
        if fitting and {fitting} != {*re.findall(r"[\w\-]+", importer.removeprefix("choice("))}:
            raise several_programs(f"workload={preset.name}", f"importer={importer}")


def _check_name(preset: PresetFile, presets: Sequence[PresetFile], registry: Registry) -> None:
    """Raise PluginError if a preset of the user's own has the name of something else; Hydra would silently take one."""
    others = [c.owner for c in registry.choices() if (c.group, c.name) == (preset.group, preset.name)]
    others += [str(p.path) for p in presets if p != preset and (p.group, p.name) == (preset.group, preset.name)]
    if others:
        raise PluginError(
            f"{preset.group}={preset.name} is defined {len(others) + 1} times: {' and '.join([str(preset.path), *others])}",
            f"rename {preset.path}",
        )


def _check_defaults(preset: PresetFile) -> None:
    loaded = load_preset(preset.path)
    for entry in loaded.defaults or ():
        for key, name in entry.items() if isinstance(entry, dict) else ():
            if key.startswith("/") and key[1:] in DEFAULT_GROUPS:
                raise ConfigError(
                    f"{preset.path}: {key} has a default, which `{key}: {name}` cannot replace",
                    f"write `override {key}: {name}`",
                )
    if preset.group in KINDS and loaded.name is None and "" not in defaults_list(preset.path):
        raise ConfigError(
            f"{preset.path} does not say which {preset.group} its options are for",
            f"begin it with `defaults: [NAME]`; `placekit plugins` lists each {preset.group}",
        )
    if preset.group == "cluster" and not loaded.defaults:
        load_cluster(preset.path)


@contextmanager
def naming_presets(argv: Sequence[str], registry: Registry) -> Iterator[None]:
    """Put the file in front of an error about an option that a preset sets, and the command line does not."""
    try:
        yield
    except ConfigError as e:
        given = {m["key"] for m in map(OVERRIDE.match, argv) if m}
        for preset in named_presets(argv, registry):
            for key, value in preset.keys().items():
                name = re.escape(key)
                if key not in given and re.search(rf"(^|; ){name}(: | is a section)|'{name}'", e.message):
                    raise ConfigError(f"{preset.path}: {e.message}", e.hint) from None
                if below := re.search(rf"'({name}\.[\w.]+)'", e.message):
                    raise ConfigError(
                        f"{preset.path} sets {key} to {value!r}, but {key} is a section of options",
                        f"write `{key}:`, and below it options such as `{below[1].removeprefix(key + '.')}: ...`",
                    ) from None
        raise


def located(message: str, argv: Sequence[str], registry: Registry) -> str:
    """Hydra's `message`, with the file of the preset in place of Hydra's name for it."""
    found = re.match(r"In '(?P<name>[^']+)': (?P<said>.*)", message, re.S)
    if found is None:
        return message
    paths = {f"{p.group}/{p.name}": p.path for p in named_presets(argv, registry)}
    return f"{paths[found['name']]}: {found['said']}" if found["name"] in paths else found["said"]


def naming(group: str, name: str, argv: Sequence[str], registry: Registry) -> str:
    """`FILE: ` if a preset chooses `group`=`name`; empty if only the command line does."""
    for preset in named_presets(argv, registry):
        for key, chosen in defaults_list(preset.path).items():
            if (key.partition("@")[0] or preset.group, chosen) == (group, name):
                return f"{preset.path}: "
    return ""


def _flat(prefix: str, data: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in data.items():
        found |= _flat(f"{prefix}{key}.", value) if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return found
