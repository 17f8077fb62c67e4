"""Candidates for the shell's completion: commands, options of a run, files, whole words.

They come from the registry and the folders of presets; neither torch, numba nor hydra is imported.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from placekit_core import Registry
from placekit_core.cli.choices import DEFAULT_GROUPS, GROUPS, choices, chosen_models
from placekit_core.run.assembly import SECTIONS
from placekit_core.run.config import RunConfig
from placekit_core.run.detection import chosen_by, shorthands

_SPECIAL = re.compile(r"[^\w.,+@%=:/~-]")  # characters that a shell does not take literally
_FILES = ("path", "file", "run_dir")  # options that are files or folders


class Candidates:
    """Implements `placekit_core.cli.completion.Completion`."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    def options(self, given: list[str], word: str) -> Iterator[str]:
        """Candidates for an option of `run`: its name, or after `=` its value; in a sweep, each of several values."""
        if "=" not in word:
            yield from _names(given, word, self.registry)
            return
        key, _, value = word.partition("=")
        swept, comma, last = value.rpartition(",")
        before = f"{key}={swept}{comma}"
        # in a sweep, a comma and another value may follow a value
        end = "" if {"-m", "--multirun"} & {*given} or comma else " "
        key = key.lstrip("+")
        if key in GROUPS:
            group = key.partition("@")[0]
            yield from (
                f"{before}{name}{end}" for name in choices(group, self.registry) if name not in swept.split(",")
            )
            if group == "cluster":
                yield from (before + p for p in self.paths(last, (".yaml", ".yml")))
        elif key == "resume":
            yield from (before + p for p in self.paths(last))
        elif key.rpartition(".")[2] in _FILES:
            yield from (before + p for p in self.paths(last, ("",)))
        else:
            section, _, name = key.rpartition(".")
            short = [component.config for component in shorthands(self.registry).get(key, ())]
            models = short or _section(given, section, self.registry)
            fields = [m.model_fields[name] for m in models if name in m.model_fields]
            yield from (f"{before}{v}{end}" for f in fields for v in [*_values(f.annotation), *(f.examples or ())])

    def paths(self, prefix: str, endings: tuple[str, ...] = ()) -> Iterator[str]:
        """Files with one of `endings`, and folders, that begin with `prefix`, escaped as `prefix` is; folders end in a slash."""
        folder, slash, start = prefix.rpartition("/")
        where = Path(re.sub(r"\\(.)", r"\1", folder) + slash).expanduser()
        try:
            inside = sorted(where.iterdir())
        except OSError:
            return
        for path in inside:
            if path.name.startswith(".") and not start.startswith("."):
                continue
            name = folder + slash + _SPECIAL.sub(r"\\\g<0>", path.name)
            if path.is_dir():
                yield f"{name}/"
            elif endings and path.name.endswith(endings):
                yield f"{name} "

    def whole(self, words: Iterable[str]) -> Iterator[str]:
        """`words` as candidates that are whole words: each ends with a space."""
        return (f"{w} " for w in words)


def _names(given: list[str], word: str, registry: Registry) -> Iterator[str]:
    """Candidates for the name of an option: first the section; after the dot, the options in the section."""
    section, dot, _ = word.rpartition(".")
    if dot:
        yield from (f"{section}.{name}=" for model in _section(given, section, registry) for name in model.model_fields)
        return
    plus = word[: len(word) - len(word.lstrip("+"))]
    yield from (f"{plus}{group}=" for group in GROUPS)
    for name, field in RunConfig.model_fields.items():
        if name in SECTIONS or _is_model(field.annotation):
            yield f"{name}."
        elif name not in DEFAULT_GROUPS:
            yield f"{name}="
    chosen = chosen_by([w.lstrip("+").partition("=")[0] for w in given], registry)
    firsts = {c.shorthand[0] for owners in shorthands(registry).values() for c in owners}
    yield from (f"{key}=" for key in (firsts if chosen is None else chosen.shorthand))
    yield "resume="


def _section(given: list[str], section: str, registry: Registry) -> list[type[BaseModel]]:
    """The models whose fields are the options of `section`; '' is the run itself."""
    if not section:
        return [RunConfig]
    if section in SECTIONS:
        named = {k.lstrip("+"): v.split(",") for k, _, v in (w.partition("=") for w in given) if v}
        chosen = chosen_by([w.lstrip("+").partition("=")[0] for w in given], registry)
        if chosen is not None:
            named["importer"] = [chosen.name]
        return list(chosen_models(named, section, registry).values())
    field = RunConfig.model_fields.get(section)
    return [field.annotation] if field and _is_model(field.annotation) else []  # type: ignore[list-item]


def _is_model(annotation: Any) -> bool:
    # in Python 3.10 `list[int]` is a type, too
    return isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, BaseModel)


def _values(annotation: Any) -> Iterator[str]:
    """The values of a type that has only a few."""
    if annotation is bool:
        yield from ("true", "false")
    elif annotation is type(None):
        yield "null"
    elif get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    elif get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _values(part)
