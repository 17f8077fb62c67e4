"""`placekit doctor`: whether this installation works, and what to do where it does not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from placekit_core import __version__, interfaces
from placekit_core.cli.caches import caches
from placekit_core.cli.completion import defaults_list
from placekit_core.cli.findings import Finding, fail, ok, warn
from placekit_core.cli.self_test import self_test
from placekit_core.cluster import Cluster, load_cluster
from placekit_core.config import conf_dir, validate
from placekit_core.cores import usable_cores
from placekit_core.errors import BackendError, ConfigError, PlacekitError, PluginError
from placekit_core.hookspecs import KINDS
from placekit_core.registry import Choice, Entry, installed
from placekit_core.units import mebibytes


def main(argv: list[str]) -> int:
    """Print every check. Returns 1 if one failed."""
    if argv:
        raise ConfigError(f"`placekit doctor` takes no argument {argv[0]!r}")
    count = {"ok": 0, "warn": 0, "fail": 0}
    for title, section in SECTIONS.items():
        print(title)
        for f in _isolated(section):
            count[f.level] += 1
            print(f"  {f.level:4}  {f.text}")
            if f.hint:
                print(f"        {f.hint}")
    advice = "nothing to do" if count["ok"] == sum(count.values()) else "what to do stands below each of them"
    print(f"{count['fail']} failed, {count['warn']} {'warning' if count['warn'] == 1 else 'warnings'}: {advice}")
    return int(count["fail"] > 0)


def _isolated(section: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of a section; what the check itself stumbles over is one more."""
    try:
        yield from section()
    except Exception as e:
        message, hint = _said(e)
        yield fail(f"this check broke off: {message}", hint or "reinstall placekit, or report it")


def _said(error: Exception) -> tuple[str, str]:
    """Message and hint of an error, in one line each."""
    if isinstance(error, PlacekitError):
        return error.message, error.hint
    return f"{type(error).__name__}: {' '.join(str(error).split())}", ""


@cache
def _loaded() -> list[tuple[Entry, type[Any] | PluginError]]:
    """Every component with its class, or why that does not load."""

    def load(entry: Entry) -> type[Any] | PluginError:
        try:
            return entry.load()
        except PluginError as e:
            return e

    return [(entry, load(entry)) for entry in installed().all()]


def _versions() -> Iterator[Finding]:
    yield ok(f"python {platform.python_version()}, {platform.system()} {platform.machine()}")
    yield ok(f"placekit {__version__}")
    yield from _requirements("placekit")
    _loaded()  # the core never imports torch; plugins that use it do
    torch = sys.modules.get("torch")
    if torch is not None:
        cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        yield ok(f"torch {torch.__version__}, {cuda}, {torch.get_num_threads()} threads")
    elif importlib.util.find_spec("torch"):
        yield ok("torch is installed; no plugin uses it")
    else:
        yield ok("torch is not installed; only importers of PyTorch programs need it")


def _requirements(distribution: str) -> Iterator[Finding]:
    """What a distribution requires, and what there is."""
    from packaging.requirements import Requirement

    for text in importlib.metadata.requires(distribution) or ():
        needed = Requirement(text)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(needed.name)
        except importlib.metadata.PackageNotFoundError:
            yield fail(f"{distribution} needs {needed.name}, which is not installed", f"pip install '{needed}'")
            continue
        if needed.specifier.contains(version, prereleases=True):
            yield ok(f"{needed.name} {version}")
        else:
            yield fail(f"{distribution} needs {needed}, and {version} is installed", f"pip install '{needed}'")


def _devices() -> Iterator[Finding]:
    cores = usable_cores()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield ok(f"{cores} CPU cores, {mebibytes(memory)} of memory")
    torch = sys.modules.get("torch")
    number = torch.cuda.device_count() if torch is not None else 0
    for i in range(number):
        found = torch.cuda.get_device_properties(i)  # type: ignore[union-attr]
        yield ok(f"cuda:{i} {found.name}, {mebibytes(found.total_memory)}")
    if not number:
        yield ok("no CUDA device")
    for entry, cls in _loaded():
        if entry.kind == "backend" and isinstance(cls, type) and not cls.simulated:
            yield _seen_by(entry)


def _seen_by(entry: Entry) -> Finding:
    """The devices that a measuring backend reports."""
    name = f"backend {entry.component.name}"
    try:
        cluster: Cluster | None = entry.build(entry.component.config()).devices()
    except BackendError as e:
        return ok(f"{name} cannot run here: {e.message}")
    except Exception as e:
        return fail(f"{name} cannot say what it sees: {type(e).__name__}: {e}", f"reinstall {entry.distribution}")
    if cluster is None:
        return warn(f"{name} sees no device", "name a machine for it: cluster=NAME")
    return ok(f"{name} sees {', '.join(cluster.device_names)}")


def _plugins() -> Iterator[Finding]:
    registry = installed()
    for b in registry.broken:
        yield fail(f"{b.distribution} {b.version} is set aside: {b.reason}", b.hint)
    for (group, name), choices in registry.duplicates().items():
        owners = " and ".join(c.owner for c in choices)
        yield fail(f"{group}={name} is defined {len(choices)} times: {owners}", "uninstall one of them")
    for entry, cls in _loaded():
        if isinstance(cls, PluginError):
            yield fail(cls.message, cls.hint)
        elif not issubclass(cls, getattr(interfaces, entry.kind.capitalize())) or inspect.isabstract(cls):
            yield fail(
                f"{entry.kind} {entry.component.name} of {entry.distribution} {entry.version} implements no"
                f" placekit_core.interfaces.{entry.kind.capitalize()}",
                f"report it to the authors of {entry.distribution}",
            )
    for distribution in sorted({p.distribution for p in registry.packages}):
        unmet = [f for f in _requirements(distribution) if f.level != "ok"]
        yield from unmet
        if not unmet:
            own = [f"{e.kind} {e.component.name}" for e in registry.all() if e.distribution == distribution]
            yield ok(f"{distribution}: {', '.join(own) or 'lifecycle hooks'}")
    missing = [k for k in ("importer", "grouper", "policy", "backend") if not registry.names(k)]
    if missing:
        yield warn(f"nothing can be placed: no {', no '.join(missing)} is installed", "pip install 'placekit[all]'")


def _configuration() -> Iterator[Finding]:
    """Every preset is composed and validated; clusters are parsed too."""
    duplicates = installed().duplicates()
    presets = [p for p in installed().presets() if p.group and (p.group, p.name) not in duplicates]
    fine = []
    stand_ins = _stand_ins()
    for preset in presets:
        what = preset.owner if preset.distribution != "placekit" else f"conf/{preset.group}/{preset.name}.yaml"
        try:
            if preset.group == "cluster" and preset.path:
                load_cluster(preset.path)
            if stand_ins is not None:
                _compose(preset, stand_ins)
        except Exception as e:
            message, hint = _said(e)
            if any(message.startswith(f"no {kind} named") for kind in KINDS):
                yield warn(f"{what} needs what is not installed: {message}", hint)
            else:
                yield fail(f"{what}: {message}", hint or "correct the file, or reinstall its distribution")
        else:
            fine.append(preset)
    names = ", ".join(f"{g} {sum(p.group == g for p in fine)}" for g in sorted({p.group for p in fine}))
    if stand_ins is None:
        yield warn(f"presets are only read, not composed: {names}", "install a policy, a grouper and a backend")
    else:
        yield ok(f"presets that compose and validate: {names}")


def _compose(preset: Choice, stand_ins: dict[str, str]) -> None:
    from placekit_core.cli.hydra_app import compose

    own = {preset.group} | set(defaults_list(preset.path) if preset.path else ())
    own |= {"importer"} if "workload" in own else set()
    chosen = {**{g: n for g, n in stand_ins.items() if g not in own}, preset.group: preset.name}
    config = validate(compose([f"{group}={name}" for group, name in chosen.items()]))
    if "devices" in config.cluster:
        Cluster.parse(config.cluster, preset.owner)


def _stand_ins() -> dict[str, str] | None:
    """Choices in place of defaults of conf/config.yaml that are not installed; None if a kind has no component at all."""
    chosen = {}
    for group, name in defaults_list(conf_dir() / "config.yaml").items():
        kind = group.partition("@")[0]
        if kind in KINDS and kind != "trainer" and (kind, name) not in installed().entries:
            names = installed().names(kind)
            if not names:
                return None
            chosen[group] = names[0]
    return {**chosen, "workload": "none"} if "importer" in chosen else chosen


def _folder() -> Iterator[Finding]:
    try:
        with tempfile.TemporaryFile(dir=Path.cwd()):
            yield ok(f"{Path.cwd()} can be written to")
    except OSError as e:
        yield fail(f"cannot write to {Path.cwd()}: {e.strerror}", "choose another folder for runs: run_dir=PATH")


SECTIONS: dict[str, Callable[[], Iterator[Finding]]] = {
    "versions": _versions,
    "devices": _devices,
    "plugins": _plugins,
    "configuration": _configuration,
    "current folder": _folder,
    "self-test": lambda: self_test(_loaded()),
    "caches": lambda: caches([cls for _, cls in _loaded() if isinstance(cls, type)]),
}
