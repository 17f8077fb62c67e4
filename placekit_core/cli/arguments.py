"""Rewrites command-line arguments for Hydra: files stand for programs and clusters, short forms for options."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

from placekit_core.cli.choices import DEFAULT_GROUPS, GROUPS, choices
from placekit_core.contracts.cluster import load_cluster
from placekit_core.contracts.errors import ConfigError
from placekit_core.contracts.hookspecs import KINDS
from placekit_core.run.config import NONE, RunConfig, conf_dir, load_preset
from placekit_core.run.detection import chosen_by, endings, importer_of, known_files, names_file, shorthands
from placekit_core.run.registry import Registry

_NO_NAME = re.compile(r"[\d.+\-]+|null|true|false", re.I)
_NO_QUOTES = re.compile(r"[^'\"()]*$")
OVERRIDE = re.compile(r"^(?P<add>\+{0,2})(?P<key>[A-Za-z_][\w/\-.]*)(?P<package>@[\w.:]*)?=(?P<value>.*)$", re.S)


def normalise(argv: list[str], registry: Registry, swept: Set[str] = frozenset()) -> list[str]:
    """Arguments in the form that Hydra takes; `swept` are the options that an experiment sweeps over.

    `+group=x` becomes `group=x` if the group has a default (Hydra refuses the first form). A program's file chooses its
    importer, as does the option that an importer takes in short (its `shorthand`). `cluster=FILE.yaml` loads the file.
    An importer that is chosen without a workload replaces the default workload. In a sweep over a group, options of that
    group are given to each job (`policy=a,b policy.samples=3`); Hydra alone would first apply them to the default choice.
    """
    out = []
    _check_flags(argv, registry)
    multirun = "-m" in argv or "--multirun" in argv or bool(swept)
    argv = _with_file(_in_full(argv, registry, multirun), registry)
    keys = {m["key"] for m in map(OVERRIDE.match, argv) if m and not m["package"]}
    swept = swept | {m["key"] for m in map(OVERRIDE.match, argv) if multirun and m and re.search("[,(]", m["value"])}
    for token in argv:
        match = OVERRIDE.match(token)
        if match is None and "=" in token and token[0] not in "-~":
            raise ConfigError(f"{token!r} is not OPTION=VALUE", "`placekit run --help` lists the options")
        if match is None or match["package"]:
            out.append(token.removeprefix("+") if match and token.startswith("+backend@proxy=") else token)
            continue
        key, value = match["key"], match["value"]
        if key == "cluster" and value.endswith((".yaml", ".yml")):
            paths = [Path(v).expanduser() for v in (value.split(",") if multirun else [value])]
            for path in paths:  # so that a mistake ends a sweep here, and not in each of its jobs
                if len(paths) > 1 and not os.path.isfile(path):
                    raise ConfigError(f"no cluster file {path}", "a sweep takes either presets or files")
                load_cluster(path)
            out += ["cluster=file", "cluster.path=" + ",".join(quoted(str(p.resolve())) for p in paths)]
        elif key == "run_dir":
            if not value.strip("'\""):
                raise ConfigError("option 'run_dir' has no value", "write run_dir=PATH")
            if multirun and re.search(r"[,(]", value) and not value.startswith(("'", '"')):
                raise ConfigError(
                    f"a sweep has one run_dir, not {value!r}",
                    "each of its jobs gets a folder in it; quote a name with commas or brackets",
                )
            out.append("run_dir=" + (value if value.startswith(("'", '"')) else quoted(value)))
        elif key in DEFAULT_GROUPS:  # a name is text, also if it looks like a number
            out.append(f"{key}={quoted(value) if _NO_NAME.fullmatch(value) else value}")
        elif key.partition(".")[0] in swept & DEFAULT_GROUPS and not re.search("[,(]", value):
            out.append(f"{match['add']}{key}=choice({value})")
        else:
            out.append(token)
    if "importer" in keys and "workload" not in keys:
        out.append("workload=none")
    # overrides first: Hydra accepts them only as one block, and flags may have values
    return sorted(out, key=lambda token: OVERRIDE.match(token) is None and not token.startswith("~"))


def swept_by_experiment(argv: list[str], registry: Registry) -> dict[str, str]:
    """The options that the experiment named in `argv` sweeps over, and their values; none if it is not a sweep.

    The preset may be placekit's, a plugin's, or in a `--config-dir`.
    """
    name, _ = take(argv, "experiment")
    if name is None or {"--cfg", "-c", "--info", "-i", "--help", "-h", "--hydra-help"} & set(argv):
        return {}
    if "," in name and not {"-m", "--multirun"} & set(argv):  # Hydra reports it
        return {}
    own, _ = without_folders(argv)
    folders = [*own, conf_dir(), *(folder for _, folder in registry.conf_folders())]
    swept: dict[str, str] = {}
    for path in (folder / "experiment" / f"{n}.yaml" for n in name.split(",") for folder in folders):
        with suppress(ConfigError):  # Hydra reads it next, and says what is wrong
            hydra = load_preset(path).hydra
            if hydra is not None and hydra.mode == "MULTIRUN" and hydra.sweeper is not None:
                swept |= {key: str(values) for key, values in (hydra.sweeper.params or {}).items()}
    return swept


def _check_flags(argv: list[str], registry: Registry) -> None:
    """Raise ConfigError for an unknown flag, which Hydra would never see: the run would ignore what the user asked for."""
    for i, token in enumerate(argv):
        flag = token.partition("=")[0]
        if not flag.startswith("-") or flag in (*FLAGS, *VALUED) or (i and argv[i - 1] in VALUED):
            continue
        options = {f.replace("_", "-"): f for f in (*RunConfig.model_fields, *DEFAULT_GROUPS, *shorthands(registry))}
        [close] = difflib.get_close_matches(flag.lstrip("-"), options, 1) or [""]
        hint = f"did you mean {options[close]}=VALUE?" if close else "options are OPTION=VALUE, without dashes;"
        raise ConfigError(f"no flag {flag}", f"{hint} flags: {', '.join((*FLAGS, *VALUED))}")


def _in_full(argv: list[str], registry: Registry, multirun: bool) -> list[str]:
    """The arguments, with the options that importers take in short in their full form. Raises PlacekitError."""
    owners = shorthands(registry)
    given = {m["key"]: a for a in argv if (m := OVERRIDE.match(a)) and not m["package"] and m["key"] in owners}
    if not given:
        return argv
    rest = [a for a in argv if not (m := OVERRIDE.match(a)) or m["package"] or m["key"] not in given]
    component = chosen_by(given, registry)
    if component is None:
        named = take(argv, "importer")[0] or words(argv) or any(take(argv, k)[0] for k in ("workload", "experiment"))
        if not named:
            key, option = next(iter(given.items()))
            first = owners[key][0].shorthand[0]
            raise ConfigError(
                f"{option} without {first}=",
                f"give {first}=NAME; for an option of another importer, write importer.{option.lstrip('+')}",
            )
        return [*rest, *(f"importer.{option.lstrip('+')}" for option in given.values())]
    first = component.shorthand[0]
    option = given.pop(first)
    values = _values(option.partition("=")[2], multirun)
    files = [v for v in values if names_file(v, registry)]
    own = [f"importer.{o.lstrip('+')}" for o in given.values()]
    if files and len(values) == 1:
        if others := words(argv):
            raise several_programs(option, others[0])
        return [os.path.expanduser(files[0]), *rest, *own]
    importers = {importer_of(os.path.expanduser(v), registry) if v in files else component.name for v in values}
    if len(importers) > 1:
        raise ConfigError(
            f"{option} needs several importers: {', '.join(sorted(importers))}", "sweep over each in turn"
        )
    [importer] = importers
    for other in (*words(argv), *(f"{k}={v}" for k in ("importer", "workload") if (v := take(argv, k)[0]))):
        if other not in (f"importer={importer}", f"workload={NONE}"):
            raise several_programs(option, other)
    text = ",".join(quoted(os.path.expanduser(v) if files else v) if _NO_QUOTES.match(v) else v for v in values)
    key = "path" if files else first
    return [
        f"importer={importer}",
        f"importer.{key}={text}",
        *(a for a in rest if take([a], "importer")[0] is None),
        *own,
    ]


def _values(text: str, multirun: bool) -> list[str]:
    """The values of an option: one, or in a sweep those between commas; `choice(...)` and what has quotes is one value."""
    return text.split(",") if multirun and _NO_QUOTES.match(text) else [text]


def _with_file(argv: list[str], registry: Registry) -> list[str]:
    """The arguments, with the file of a program replaced by the importer that reads it. Raises PlacekitError."""
    files = words(argv)
    if not files:
        return argv
    _check_words(files, registry)
    if len(files) > 1:
        raise ConfigError(f"{len(files)} files: {', '.join(files)}", "give one; all others are OPTION=VALUE")
    importer = importer_of(files[0], registry)
    for key, fitting in (("importer", importer), ("workload", NONE)):
        if (other := take(argv, key)[0]) not in (None, fitting):
            raise several_programs(files[0], f"{key}={other}")
    rest = [a for a in argv if a is not files[0]]
    return [f"importer={importer}", f"importer.path={quoted(files[0])}", *rest]


def several_programs(one: str, other: str) -> ConfigError:
    """The error for two options that name different programs."""
    return ConfigError(f"{one} and {other} both say what is placed", "give one of them")


def words(argv: list[str]) -> list[str]:
    """The arguments that are neither OPTION=VALUE, nor flags, nor the values of flags."""
    return [
        a for i, a in enumerate(argv) if "=" not in a and a[:1] not in "-~+" and (i == 0 or argv[i - 1] not in VALUED)
    ]


def _check_words(words: list[str], registry: Registry) -> None:
    """Raise ConfigError for a word that is no file, but the name of an option or of a choice, or has no ending."""
    options = {*DEFAULT_GROUPS, *RunConfig.model_fields, *shorthands(registry), "resume"}
    files = tuple(endings(registry))
    for word in words:
        if os.path.exists(word) or word.endswith(files) or "/" in word:
            continue
        if word.partition(".")[0] in options:
            raise ConfigError(f"option {word!r} has no value", f"write {word}=VALUE, without spaces")
        if groups := [group for group in GROUPS if word in choices(group, registry)]:
            raise ConfigError(f"no file {word!r}", f"did you mean {groups[0]}={word}?")
        if "." not in word:
            hint = f"{known_files(registry)}; an option is OPTION=VALUE: see `placekit run --help`"
            raise ConfigError(f"no file {word!r}", hint)


FLAGS = ("-m", "--multirun", "--help", "-h", "--hydra-help", "--resolve")
VALUED = ("--cfg", "-c", "--info", "-i", "--config-dir", "-cd")
"""Flags that take the next argument as their value."""


def without_folders(argv: list[str]) -> tuple[list[Path], list[str]]:
    """The folders of presets that `--config-dir DIR` names, and the other arguments."""
    folders, rest, words = [], [], iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag not in ("--config-dir", "-cd"):
            rest.append(word)
            continue
        folder = value if equals else next(words, "")
        if not os.path.isdir(folder):
            wrong = f"no folder {folder!r}" if folder else f"{flag} has no value"
            raise ConfigError(wrong, f"{flag} takes the folder of your own presets")
        folders.append(Path(folder))
    return folders, rest


def quoted(text: str) -> str:
    """`text` as a value that Hydra takes literally."""
    trailing = len(text) - len(text.rstrip("\\"))
    return "'" + text.replace("'", "\\'") + "\\" * trailing + "'"


def chosen(argv: list[str]) -> list[tuple[str, str]]:
    """(kind, name) of every component that the arguments name, sweeps included."""
    found = []
    for token in argv:
        match = OVERRIDE.match(token)
        if match and match["key"] in KINDS and re.fullmatch(r"[\w\-]+(,[\w\-]+)*", match["value"]):
            found += [(match["key"], name) for name in match["value"].split(",")]
    return found


def take(argv: list[str], key: str) -> tuple[str | None, list[str]]:
    """Value of `key=VALUE` if it is there, and the other arguments."""
    values = [a.partition("=")[2] for a in argv if a.partition("=")[0].lstrip("+") == key]
    rest = [a for a in argv if a.partition("=")[0].lstrip("+") != key]
    return (values[-1] if values else None), rest
