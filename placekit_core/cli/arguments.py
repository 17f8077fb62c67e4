"""Rewrites command-line arguments for Hydra: files stand for programs and machines, short forms for options."""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from placekit_core.cli.jobs import job_name
from placekit_core.contracts.cluster import load_cluster
from placekit_core.contracts.errors import ClusterError, ConfigError, listed, unknown
from placekit_core.run.config import AUTO, DEFAULT, NONE, default_groups, defaults_list
from placekit_core.run.detection import chosen_by, importer_of, known_files, names_file, shorthands
from placekit_core.run.registry import LISTING, Registry

FLAGS = ("-m", "--multirun", "--config-dir", "-cd", "--cfg", "--help", "-h")
OVERRIDE = re.compile(r"\+{0,2}(?P<key>[A-Za-z_][\w/\-.@:]*)=(?P<value>.*)", re.S)
_YAML = (".yaml", ".yml")
_BETWEEN_COMMAS = re.compile(r"""(?:'[^']*'|"[^"]*"|\([^()]*\)|\[[^\[\]]*\]|[^,])+""")
_FOR_HYDRA = re.compile(r"(?:choice|glob|shuffle|sort|tag)\(|.*\$\{")  # a value that Hydra computes
_NO_TEXT = re.compile(r"[\d.+\-]+|null|true|false", re.I)  # values that Hydra would not read as text


def normalise(argv: list[str], registry: Registry, folders: Sequence[Path] = (), sweep: bool = False) -> list[str]:
    """Rewrite options for Hydra.

    `+group=x` and `group=x` both choose from a group. Other options need no `+`: unknown ones are refused later, when the
    configuration is checked. A file, or the short form of an importer's option (its `shorthand`), names a program.
    `cluster=` takes a preset (looked up in `folders` first), a file, or words that a plugin reads as a machine; in a `sweep`,
    commas separate machines.
    """
    groups, out = default_groups(), []
    for token in _with_importer(argv, registry):
        match = OVERRIDE.fullmatch(token)
        if match is None:
            if token.startswith("~"):
                out.append(token)
                continue
            raise ConfigError(f"{token!r} is not OPTION=VALUE", "`placekit run --help` lists the options")
        key, value = match["key"], match["value"]
        if key == "cluster" and (own := _own_machines(value, registry, folders, sweep)):
            out += own
        elif key == "run_dir" and not value.startswith(("'", '"')):
            out.append(f"++run_dir={quoted(value)}")
        elif key in groups:
            out.append(f"{key}={quoted(value) if _NO_TEXT.fullmatch(value) else value}")
        elif key.startswith("hydra"):
            out.append(token)
        else:
            out.append(f"++{key}={value}")
    return out


def _with_importer(argv: list[str], registry: Registry) -> list[str]:
    """The arguments, with the importer of a file or of a short form written out. Raises PlacekitError."""
    owners = shorthands(registry)
    files = [a for a in argv if "=" not in a and not a.startswith("~")]
    values = {m["key"]: m["value"] for a in argv if (m := OVERRIDE.fullmatch(a))}
    given = {key: value for key, value in values.items() if key in owners}
    rest = [a for a in argv if a not in files and a.lstrip("+").partition("=")[0] not in given]
    component = chosen_by(given, registry)
    if component is not None and names_file(given[component.shorthand[0]], registry):
        files.append(os.path.expanduser(given.pop(component.shorthand[0])))
        component = None
    importer = component.name if component else importer_of(_file(files[0], registry), registry) if files else ""
    chosen = {key: values[key] for key in ("importer", "workload") if key in values}
    named = files + [f"{key}={given[key]}" for key in component.shorthand[:1]] if component else files
    own_importer = _importer_of_workload(chosen["workload"], registry) if len(chosen) > 1 else None
    if importer or own_importer not in (None, chosen.get("importer")):
        named = named + [f"{key}={value}" for key, value in chosen.items() if value not in (importer, NONE)]
    if len(named) > 1:
        raise ConfigError(f"{' and '.join(named)} both say what to place", "give only one of them")
    if given and not importer and not chosen and "experiment" not in values:
        key, value = next(iter(given.items()))
        first = [c.shorthand[0] for c in owners[key]]
        without, give = (" or ".join(f"{name}={what}" for name in first) for what in ("", "NAME"))
        raise ConfigError(f"{key}={value} needs {without}", f"give {give}, or importer.{key}={value}")
    own = [f"importer={importer}", *(f"importer.path={quoted(file)}" for file in files)] if importer else []
    if component is not None and not re.search("['\"()]", value := given[component.shorthand[0]]):
        # quote names, because Hydra would read characters as in hf:x; a sweep has several, between commas
        given[component.shorthand[0]] = ",".join(map(quoted, value.split(",")))
    own += [f"importer.{key}={value}" for key, value in given.items()]
    no_workload = ["workload=none"] if (importer or "importer" in chosen) and "workload" not in chosen else []
    return [*(take(rest, "importer")[1] if importer else rest), *own, *no_workload]


def _own_machines(value: str, registry: Registry, folders: Sequence[Path], sweep: bool) -> list[str]:
    """The overrides for machines in files or in words, and presets beside them; empty for names alone, which Hydra finds.

    Raises PlacekitError for a mistake in one machine, which ends a sweep here, and not in each of its jobs.
    """
    names = {choice.name for choice in registry.choices() if choice.group == "cluster"}
    names |= {path.stem for folder in folders for path in (folder / "cluster").glob("*.yaml")}
    given = [part.strip().strip("'\"") for part in _BETWEEN_COMMAS.findall(value)]
    if _FOR_HYDRA.match(value) or names.issuperset(given):
        return []
    has_files = any(part.endswith(_YAML) for part in given)
    machines, words = _machines(given if sweep or has_files else [value.strip("'\"")], names, registry)
    if not words and not has_files:
        return []
    paths = {machine: _cluster_file(machine, registry, folders) for machine in machines if machine not in words}
    for path in paths.values():
        load_cluster(path)
    texts = [quoted(str(paths[machine].resolve()) if machine in paths else machine) for machine in machines]
    jobs = [job_name([f"cluster.words={text}"], []).removeprefix("cluster=") for text in texts]
    if twins := [name for name in jobs if jobs.count(name) > 1]:
        hint = "each needs a job folder of its own: leave one out, or rename its file"
        raise ConfigError(f"{value} has two machines called {twins[0]!r}", hint)
    return ["cluster=words" if words else "cluster=file", f"++cluster.{'words' if words else 'path'}={','.join(texts)}"]


def _machines(given: Sequence[str], names: set[str], registry: Registry) -> tuple[list[str], set[str]]:
    """The machines in parts between commas, and which of them are in words: `nvlink` belongs to the words before its comma.

    Raises ClusterError for words that cannot be read.
    """
    machines, words = list[str](), set[str]()
    for part in given:
        if part in names or part.endswith(_YAML):
            machines.append(part)
            continue
        joined = f"{machines[-1]}, {part}" if machines and machines[-1] not in names else part
        if not _is_machine(part, registry) and _is_machine(joined, registry):
            machines[-1] = part = joined
        else:
            machines.append(part)
        words.add(part)
    for i, machine in enumerate(machines):
        if machine in words and not _is_machine(machine, registry):
            words.remove(machine)
            last = machine.rpartition(",")[2].strip()
            is_preset = not re.search(r"[\s+(]", last) and difflib.get_close_matches(last, names, 1, 0.8)  # misspelled
            if not is_preset:  # say what is wrong with the words
                registry.machine(f"{machines[i - 1]}, {machine}" if i and machines[i - 1] in words else machine)
    return machines, words


def _is_machine(text: str, registry: Registry) -> bool:
    """Whether `text` alone is a machine in words. Its warnings come when the machine is built."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return registry.machine(text) is not None
        except ClusterError:
            return False


def _cluster_file(word: str, registry: Registry, folders: Sequence[Path]) -> Path:
    """The file of a machine in a list: a file, or the preset of this name. Raises PlacekitError."""
    if word.endswith(_YAML):
        return Path(word).expanduser()
    presets = {p.name: p.path for p in registry.presets() if p.group == "cluster" and p.path}
    presets |= {path.stem: path for folder in reversed(folders) for path in (folder / "cluster").glob("*.yaml")}
    if word in (AUTO, DEFAULT):
        hint = f"sweep over it without them; presets: {listed(presets)}"
        raise ConfigError(f"cluster={word} beside a file or a machine in words", hint)
    if word not in presets:
        raise unknown("cluster", word, presets, ConfigError, LISTING)
    return presets[word]


def _importer_of_workload(name: str, registry: Registry) -> str | None:
    """The importer that a workload chooses; None if there is no such workload."""
    paths = [p.path for p in registry.presets() if (p.group, p.name) == ("workload", name)]
    return defaults_list(paths[0]).get("importer") if paths and paths[0] else None


def _file(word: str, registry: Registry) -> str:
    """A word that is neither OPTION=VALUE nor a flag: a file. Raises ConfigError for the name of an option or a choice."""
    if not os.path.exists(word) and "/" not in word:
        if word.partition(".")[0] in {*default_groups(), *shorthands(registry), "resume"}:
            raise ConfigError(f"option {word!r} has no value", f"write {word}=VALUE, without spaces")
        if groups := {choice.group for choice in registry.choices() if choice.name == word}:
            group = "workload" if "workload" in groups else min(groups)
            raise ConfigError(f"no file {word!r}", f"did you mean {group}={word}?")
        if "." not in word and ":" not in word[2:]:
            raise ConfigError(f"no file {word!r}", f"{known_files(registry)}; an option is OPTION=VALUE")
    if ":" in word[2:] and not os.path.exists(word):
        named = sorted({f"{c.shorthand[0]}={word}" for c in registry.importers() if c.shorthand})
        raise ConfigError(
            f"no file {word!r}", f"did you mean {' or '.join(named)}?" if named else known_files(registry)
        )
    if word.endswith(".py"):
        if not os.path.exists(word):
            raise ConfigError(f"no file {word!r}", "a function of a Python file is FILE.py:FUNCTION")
        names = [c.name for c in registry.importers() if "module" in c.config.model_fields]
        folder, file = os.path.split(word.removesuffix(".py"))
        where = f"importer.module={file}:FUNCTION" + (f" importer.path={folder}" if folder else "")
        hint = " or ".join(f"importer={name} {where}" for name in names)
        raise ConfigError(f"{word} is Python code: name the function that returns the program to place", hint)
    return word


def preset_folders(argv: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The folders of presets that `--config-dir DIR` names, and the other arguments. Raises ConfigError for other flags."""
    folders, rest, words = [], [], iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in ("--config-dir", "-cd"):
            folder = value if equals else next(words, "")
            if not os.path.isdir(folder):
                raise ConfigError(f"no folder {folder!r}", f"{flag} takes the folder of your own presets")
            folders.append(Path(folder))
        elif word.startswith("-") and word not in FLAGS:
            hint = f"did you mean {word.lstrip('-')}?" if equals else "options are OPTION=VALUE, without dashes;"
            raise ConfigError(f"no flag {flag}", f"{hint} flags: {', '.join(FLAGS)}")
        else:
            rest.append(word)
    return folders, rest


def quoted(text: str) -> str:
    """`text` as a value that Hydra takes literally."""
    trailing = len(text) - len(text.rstrip("\\"))
    return "'" + text.replace("'", "\\'") + "\\" * trailing + "'"


def take(argv: list[str], key: str) -> tuple[str | None, list[str]]:
    """Value of `key=VALUE` if it is there, and the other arguments."""
    values = [a.partition("=")[2] for a in argv if a.partition("=")[0].lstrip("+") == key]
    rest = [a for a in argv if a.partition("=")[0].lstrip("+") != key]
    return (values[-1] if values else None), rest
