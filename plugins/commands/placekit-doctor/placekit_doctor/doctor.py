"""`placekit doctor`: checks this installation and prints what to do about each problem."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import operator
import os
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import placekit_core
from placekit_core import (
    BackendError,
    Cluster,
    PlacekitError,
    PluginError,
    Registry,
    __version__,
    units,
    usable_cores,
)
from placekit_core.cli.console import wrapped
from placekit_core.cli.parser import Parser
from placekit_core.cli.plugins import others
from placekit_core.run import imports
from placekit_core.run.entries import Entry, reason
from placekit_core.run.lifecycle import facts, loggers
from placekit_core.run.registry import CORE
from placekit_doctor.findings import Finding, fail, ok, warn, working
from placekit_doctor.self_test import self_test


def main(argv: list[str], registry: Registry) -> int:
    """Print what is wrong, and a line for each section; with `--all`, each check when it is done. Returns 1 if one failed.

    With `--json`, print all checks as one object: title of the section to findings. With `--clear-imports`, only remove kept
    imports.
    """
    parser = Parser("doctor", "Check this installation: versions, devices, plugins, and a self-test.")
    parser.add_argument("--all", action="store_true", help="print every check, also the ones that pass")
    parser.add_argument("--json", action="store_true", help="print all checks as JSON, for a bug report")
    parser.add_argument("--clear-imports", action="store_true", help="only remove the graphs that imports have kept")
    given = parser.read(argv)
    if given.clear_imports:
        print(wrapped(f"removed {clear_imports()} from {imports.folder()}"))
        return 0
    everything = given.all
    doctor = Doctor(registry)
    if given.json:
        report = {title: [asdict(f) for f in _isolated(section)] for title, section in doctor.sections().items()}
        working("")
        print(json.dumps(report, indent=1, ensure_ascii=False))
        return int(any(f["level"] == "fail" for found in report.values() for f in found))
    count = {"ok": 0, "warn": 0, "fail": 0}
    for title, section in doctor.sections().items():
        if everything:
            print(title, flush=True)
        fine, titled = 0, everything
        for f in _isolated(section):
            count[f.level] += 1
            working("")
            fine += f.level == "ok"
            if f.level == "ok" and not everything:
                continue
            if not titled:
                print(title, flush=True)
                titled = True
            print(wrapped(f.text, " " * 10, f"  {f.level:4}  "), flush=True)
            if f.hint:
                print(wrapped(f.hint, " " * 10, " " * 8), flush=True)
        if not titled:
            print(f"  ok    {title}: {fine} {'check' if fine == 1 else 'checks'}", flush=True)
    print(wrapped(f"{in_words(imports.kept())} in {imports.folder()}", " " * 10, "  ok    imports: "))
    advice = "nothing to do" if count["ok"] == sum(count.values()) else "see the hint below each line"
    print(f"{count['fail']} failed, {count['warn']} {'warning' if count['warn'] == 1 else 'warnings'}: {advice}")
    return int(count["fail"] > 0)


def in_words(kept: Mapping[Path, int]) -> str:
    """The number and the bytes of kept imports, in words."""
    return f"{len(kept)} kept {'import' if len(kept) == 1 else 'imports'}, {units.mebibytes(sum(kept.values()))}"


def clear_imports() -> str:
    """Remove all kept imports; returns their number and size. Raises PlacekitError if one stays."""
    kept = imports.kept()
    try:
        for file in kept:
            file.unlink(missing_ok=True)
    except OSError as e:
        raise PlacekitError(f"cannot remove {file}: {e.strerror}", "remove it yourself") from None
    return in_words(kept)


def _isolated(section: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of a section; an exception in the check becomes a finding."""
    try:
        yield from section()
    except Exception as e:
        message = e.message if isinstance(e, PlacekitError) else f"{type(e).__name__}: {' '.join(str(e).split())}"
        yield fail(f"this check failed to run: {message}", getattr(e, "hint", "") or "reinstall placekit, or report it")


def _requirements(distribution: str) -> Iterator[Finding]:
    """The requirements of a distribution, and whether they are met."""
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
            yield fail(f"{distribution} needs {needed}, but {version} is installed", f"pip install '{needed}'")


class Doctor:
    """The checks of an installation."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    @cached_property
    def loaded(self) -> list[tuple[Entry, type[Any] | PluginError]]:
        """Every component with its class, or with the error from loading it."""

        def load(entry: Entry) -> type[Any] | PluginError:
            working(f"importing {entry.kind} {entry.component.name} ...")
            try:
                return entry.load()
            except PluginError as e:
                return e

        return [(entry, load(entry)) for entry in self.registry.all()]

    @cached_property
    def distributions(self) -> list[str]:
        """The distributions of working plugins."""
        return sorted({p.distribution for p in self.registry.packages})

    def sections(self) -> dict[str, Callable[[], Iterator[Finding]]]:
        """The checks, by title."""
        return {
            "versions": self.versions,
            "devices": self.devices,
            "plugins": self.plugins,
            "self-test": lambda: self_test(self.loaded),
        }

    def versions(self) -> Iterator[Finding]:
        """Python, placekit, the requirements of core and plugins, and facts that plugins report."""
        yield ok(f"python {platform.python_version()}, {platform.system()} {platform.machine()}")
        yield ok(f"placekit {__version__}")
        yield from _requirements(CORE)
        own = {f.text for f in _requirements(CORE)}
        needed = {f.text for d in self.distributions for f in _requirements(d) if f.level == "ok"}
        yield from (ok(text) for text in sorted(needed - own) if not text.startswith("placekit-"))
        _ = self.loaded  # this imports the libraries of plugins
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = facts(self.registry)
        yield from (warn(str(w.message), "everything else works; results lack these facts") for w in caught)
        for name, value in found.items():
            yield ok(f"{name.replace('_', ' ')}: {'none' if value is None else value}")

    def devices(self) -> Iterator[Finding]:
        """CPU cores, memory, and the devices that each measuring backend finds."""
        cores = usable_cores()
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        yield ok(f"{cores} CPU cores, {units.mebibytes(memory)} of memory")
        for entry, cls in self.loaded:
            if entry.kind == "backend" and isinstance(cls, type) and not cls.simulated:
                yield _detected(entry)

    def plugins(self) -> Iterator[Finding]:
        """Broken plugins, names defined twice, components that do not load, and what each plugin contributes."""
        registry = self.registry
        for b in registry.broken:
            yield fail(f"{b.distribution} {b.version} is not used: {b.reason}", b.hint)
        for (group, name), choices in registry.duplicates().items():
            owners = " and ".join(c.owner for c in choices)
            yield fail(f"{group}={name} is defined {len(choices)} times: {owners}", "uninstall one of them")
        for entry, cls in self.loaded:
            if isinstance(cls, PluginError):
                yield fail(cls.message, cls.hint)
            elif not issubclass(cls, getattr(placekit_core, entry.kind.capitalize())) or inspect.isabstract(cls):
                yield fail(
                    f"{entry.kind} {entry.component.name} of {entry.distribution} {entry.version} does not implement"
                    f" placekit_core.{entry.kind.capitalize()}",
                    f"report it to the authors of {entry.distribution}",
                )
        yield from self._commands()
        key = operator.attrgetter("group", "name")
        for point in (points := others()):
            name, twins = point.group.partition(".")[2].rstrip("s"), [p for p in points if key(p) == key(point)]
            owner = point.dist.name if point.dist else "?"
            if len(twins) > 1:
                yield fail(f"{name} {point.name!r} of {owner} is defined {len(twins)} times", "uninstall all but one")
            try:
                point.load()
            except Exception as e:
                yield fail(f"{name} {point.name!r} of {owner} is broken: {reason(e)}", f"reinstall or remove {owner}")
        for distribution in self.distributions:
            unmet = [f for f in _requirements(distribution) if f.level != "ok"]
            yield from unmet
            if not unmet:
                yield ok(f"{distribution}: {', '.join(self._contributed(distribution)) or 'a library'}")
        missing = [k for k in ("importer", "grouper", "policy", "backend") if not registry.names(k)]
        if missing:
            yield warn(f"nothing can be placed: no {', no '.join(missing)} is installed", "pip install placekit")

    def _commands(self) -> Iterator[Finding]:
        """Commands that do not load or are defined twice."""
        for name, found in sorted(self.registry.commands.items()):
            if len(found) > 1:
                owners = " and ".join(f"{c.distribution} {c.version}" for c in found)
                yield fail(f"command {name!r} is defined {len(found)} times: {owners}", "uninstall one of them")
            for entry in found:
                try:
                    entry.load()
                except PluginError as e:
                    yield fail(e.message, e.hint)

    def _contributed(self, distribution: str) -> list[str]:
        """The components, commands and loggers of a distribution."""
        registry = self.registry
        own = [f"{e.kind} {e.component.name}" for e in registry.all() if e.distribution == distribution]
        commands = [n for n, found in sorted(registry.commands.items()) if found[0].distribution == distribution]
        logs = {p.plugin for p in registry.packages if p.distribution == distribution} & set(loggers(registry))
        return [*own, *(f"command {name}" for name in commands), *(f"logger {name}" for name in sorted(logs))]


def _detected(entry: Entry) -> Finding:
    """The devices that a measuring backend reports."""
    name = f"backend {entry.component.name}"
    try:
        cluster: Cluster | None = entry.build(entry.component.config()).devices()
    except BackendError as e:
        return ok(f"{name} cannot run here: {e.message}")
    except Exception as e:
        return fail(f"{name} cannot report its devices: {type(e).__name__}: {e}", f"reinstall {entry.distribution}")
    if cluster is None:
        return warn(f"{name} finds no device", "describe a machine: cluster=NAME")
    memory = [units.mebibytes(m) for m in cluster.memory_bytes]
    found = [f"{device} ({size})" for device, size in zip(cluster.device_names, memory, strict=True)]
    return ok(f"{name} finds {', '.join(found)}")
