"""The command that makes a run again, from its configuration."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from placekit_core import Cluster, PlacekitError, Registry, load_cluster, parse_text, read_bytes

KINDS = {k: k for k in ("importer", "grouper", "policy", "trainer", "backend")} | {"proxy": "backend"}
DEFAULTS = {"grouper": "auto", "policy": "portfolio", "trainer": "auto", "backend": "simulator", "proxy": "simulator"}
"""What `placekit run` takes for a section that its command line does not name."""
OWN = "CLUSTER.yaml"
"""Stands for a machine that is none of the presets."""
_PLAIN = re.compile(r"[\w\-.:/@+*%]+")
_WORDS = ("null", "true", "false", "nan", "inf")


def command(config: Mapping[str, Any], registry: Registry) -> str:
    """`placekit run ...`, with the options that are not the defaults.

    A run with Python objects has none; the text is then a comment, which says so.
    """
    if config["python_objects"]:
        return f"# placed by a Python program, with objects of its own: {', '.join(config['python_objects'])}"
    words = [*_program(config, registry)]
    for section in DEFAULTS:
        words += _section(config, section, registry, DEFAULTS[section])
    words += _cluster(config["cluster"], registry)
    for name, value in {"seed": config["seed"], **_flat("budget", config["budget"])}.items():
        words += [f"{name}={_value(value)}"] * (value not in (None, 0))
    for name, value in {**_flat("costs", config["costs"]), "failing_signal_s": config["failing_signal_s"]}.items():
        words += [f"{name}={_value(value)}"] * (value is not None)
    text = " ".join(["placekit run", *map(shlex.quote, words)])
    return f"{text}  # its machine is the section `cluster` of config.json" if f"cluster={OWN}" in words else text


def _flat(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{section}.{key}": value for key, value in values.items()}


def _program(config: Mapping[str, Any], registry: Registry) -> Iterator[str]:
    """What is placed: a preset workload and the options that differ from it, else an importer with its options."""
    name, options = config["importer"]["name"], config["importer"]
    defaults = _defaults("importer", name, registry)
    preset = _workload(config["workload"], name, registry)
    if preset is not None:
        yield f"workload={config['workload']}"
        yield from _options("importer", options, {**defaults, **preset})
        return
    short = next((c.shorthand for c in registry.importers() if c.name == name), ())
    if short and options.get(short[0]) != defaults.get(short[0]):
        for word in _options("importer", options, defaults):
            yield word.removeprefix("importer.") if word.partition("=")[0].removeprefix("importer.") in short else word
        return
    yield f"importer={name}"
    yield from _options("importer", options, defaults)


def _section(config: Mapping[str, Any], section: str, registry: Registry, usual: str) -> Iterator[str]:
    """The choice of a component and its options, as far as they are not the defaults."""
    options, kind = config[section], KINDS[section]
    name = options["name"]
    if name != usual:
        yield f"{kind}@proxy={name}" if section == "proxy" else f"{section}={name}"
    yield from _options(section, options, _defaults(kind, name, registry))


def _options(section: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[str]:
    for key, value in options.items():
        if key == "name" or (key in defaults and defaults[key] == value):
            continue
        added = "" if key in defaults else "+"
        yield f"{added}{section}.{key}={_value(value)}"


def _cluster(data: Mapping[str, Any], registry: Registry) -> Iterator[str]:
    """The machine: a file, a preset that still is this machine, or else where its description is."""
    name = str(data.get("name", ""))
    if data == {"name": "default"}:
        return
    if set(data) == {"name", "path"} or set(data) == {"name"}:
        yield f"cluster={data.get('path', name)}"
        return
    for choice in registry.presets():
        if (choice.group, choice.name) == ("cluster", name) and choice.path is not None:
            try:
                if load_cluster(choice.path).fingerprint == Cluster.parse(dict(data)).fingerprint:
                    yield f"cluster={name}"
                    return
            except PlacekitError:
                pass
    yield f"cluster={OWN}"


def _defaults(kind: str, name: str, registry: Registry) -> dict[str, Any]:
    """The default options of a component; none if it is not installed."""
    entries = registry.entries.get((kind, name), [])
    model: type[BaseModel] | None = entries[0].component.config if entries else None
    return {} if model is None else model().model_dump(mode="json")


def _workload(name: str, importer: str, registry: Registry) -> dict[str, Any] | None:
    """The options of the importer in the preset of this workload; None if there is none for this importer.

    Presets that choose more than an importer and its options do not count.
    """
    paths = [c.path for c in registry.presets() if (c.group, c.name) == ("workload", name) and c.path is not None]
    data = _yaml(paths[0]) if len(paths) == 1 else None
    if data is None or not set(data) <= {"defaults", "workload", "importer"}:
        return None
    chosen = [entry for entry in data.get("defaults") or [] if entry != "_self_"]
    own = data.get("importer") or {}
    return own if chosen == [{"override /importer": importer}] and isinstance(own, dict) else None


def _yaml(path: Path) -> dict[str, Any] | None:
    """The content of a preset; None if it cannot be read."""
    try:
        data = yaml.safe_load(parse_text(read_bytes(path)))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return data if isinstance(data, dict) else None


def _value(value: Any) -> str:
    """A value as Hydra reads it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{','.join(map(_value, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_value(str(k))}:{_value(v)}" for k, v in value.items()) + "}"
    text = str(value)
    if isinstance(value, str) and (not _PLAIN.fullmatch(text) or text.lower() in _WORDS or _is_number(text)):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
