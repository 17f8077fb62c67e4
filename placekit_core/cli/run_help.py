"""The text of `placekit run --help`: in short, for all components (`all`), or for the named ones (`policy=NAME`)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from placekit_core.cli.arguments import without_folders, words
from placekit_core.cli.choices import GROUPS, choices, chosen_models
from placekit_core.cli.console import columns, wrapped
from placekit_core.contracts.errors import ConfigError, unknown
from placekit_core.contracts.files import parse_text, parse_yaml, read_bytes, reading
from placekit_core.contracts.hookspecs import KINDS, Component, ImporterComponent
from placekit_core.run.assembly import SECTIONS
from placekit_core.run.config import RunConfig, conf_dir, defaults_list
from placekit_core.run.detection import chosen_by
from placekit_core.run.entries import Choice
from placekit_core.run.registry import BUILT_IN, LISTING, Registry

_ABOUT = "Places a program on a machine. FILE is a program in a file; without one, `workload` or `importer` says what is placed."
_EXAMPLES = {
    "placekit run +policy=NAME": "another method",
    "placekit run FILE +cluster=v100x8": "a file, on another machine",
    "placekit run -m policy=NAME,NAME seed=1,2,3": "a sweep: every combination",
    "placekit run resume=DIR": "go on with a run or a sweep",
}
_MORE = {
    "placekit run policy=NAME --help": "the options of a component or preset",
    "placekit run --help all": "all names, and the options of everything",
    "placekit run --cfg job OPTION=...": "the configuration that the options give",
    "--config-dir DIR": "a folder of your own presets",
    "--hydra-help": "launchers, sweepers, the rest of Hydra",
}
_HIDDEN = (*SECTIONS, "parallel", "cluster", "workload", "python_objects")  # groups, and what no command line sets
_DEFAULTS = {"run_dir": "outputs/DATE/TIME"}  # as conf/config.yaml makes it


def help_text(argv: list[str], registry: Registry) -> str:
    """The help: for the components in `argv`, for everything with `all`, else in short. Raises PlacekitError."""
    own, argv = without_folders(argv)
    strange = [w for w in words(argv) if w != "all" and not re.search("[./]", w) and not os.path.exists(w)]
    if strange:
        raise ConfigError(f"--help knows no {strange[0]!r}", "`--help`, `--help all`, or `policy=NAME --help`")
    if "all" in argv:
        head = "options of the components:"
        parts = [
            _groups(registry, True),
            *_short_options(registry),
            _run_options(True),
            "\n".join([head, *_components(registry)]),
        ]
    elif named := _named(argv, registry):
        return "\n\n".join("\n".join(_choice(group, name, registry, own)) for group, name in named)
    else:
        parts = [
            _groups(registry, False),
            *_short_options(registry),
            _run_options(False),
            _default_components(registry),
        ]
    first = ["usage: placekit run [FILE] [OPTION=VALUE ...]", "", wrapped(_ABOUT, ""), "", *_examples(_EXAMPLES)]
    tail = ["more:", *_examples(_MORE), wrapped("`placekit COMMAND --help` explains the other commands.", "")]
    return "\n\n".join(["\n".join(first), *parts, "\n".join(tail)])


def _examples(rows: Mapping[str, str]) -> list[str]:
    """Commands and what they do, beside each other if there is room."""
    column = max(map(len, rows)) + 5
    if column + max(map(len, rows.values())) <= columns():
        return [f"  {command:{column - 2}}{meaning}" for command, meaning in rows.items()]
    return [
        line for pair in rows.items() for line in (wrapped(pair[0], " " * 6, "  "), wrapped(pair[1], " " * 6, " " * 6))
    ]


def _named(argv: list[str], registry: Registry) -> list[tuple[str, str]]:
    """(group, name) of everything that the arguments choose, sweeps included."""
    words = [word.lstrip("+").partition("=") for word in argv]
    component = chosen_by([key for key, *_ in words], registry)
    own = [] if component is None else [("importer", component.name)]
    return own + [(group, name) for group, _, names in words if group in GROUPS for name in names.split(",")]


def _groups(registry: Registry, everything: bool) -> str:
    """The groups, each with its default and its other choices."""
    defaults = defaults_list(conf_dir() / "config.yaml")
    lines = [wrapped("groups: the default, and the other choices (GROUP=NAME or +GROUP=NAME):")]
    for group in GROUPS:
        names = [n for n in choices(group.partition("@")[0], registry) if n != defaults.get(group)]
        default = defaults.get(group, "null")
        first = f"  {group:13}  {'-' if default in ('null', 'None') else default:12}  "
        if everything:
            lines.append(wrapped(" ".join(names), " " * 6, first))
            continue
        number = len(names)
        while len(first + _some(names, number)) > columns():
            names = names[:-1]
        lines.append((first + _some(names, number)).rstrip())
    return "\n".join(lines)


def _some(names: list[str], number: int) -> str:
    return " ".join([*names, f"({number - len(names)} more)"] if number > len(names) else names)


def _run_options(everything: bool) -> str:
    """Options of the run itself; the short form leaves out the meaning of special values."""
    found = [(key, text if everything else text.partition(";")[0]) for key, text in _options("", RunConfig, _HIDDEN)]
    column = max(len(key) for key, _ in found) + 4
    lines = (wrapped(text, " " * column, f"  {key:{column - 4}}  ") for key, text in found)
    return "\n".join(["options of the run:", *lines])


def _short_options(registry: Registry) -> Iterator[str]:
    """For each importer that takes options without `importer.`, those options and their defaults."""
    for component in (c for c in registry.importers() if c.shorthand):
        first, *others = component.shorthand
        found = [key for key, _ in _options("", component.config, short=12) if key.partition("=")[0] in others]
        name = f"importer={component.name}"
        head = wrapped(f"{component.summary} (`{name} --help` says more), with", " " * 4, f"{first}=NAME  ")
        yield "\n".join([head, wrapped(" ".join(found), " " * 4, "  ")])


def _default_components(registry: Registry) -> str:
    """The options of the default components, their names and values only."""
    lines = [wrapped("options of the default components (`--help` after one says what they mean):")]
    for section in (s for s in SECTIONS if s not in ("proxy", "trainer")):
        for name, model in chosen_models({}, section, registry).items():
            options = " ".join(key for key, _ in _options("", model, short=12))
            lines += [wrapped(options, " " * 4, f"  {section}={name}  ")] if options else []
    return "\n".join([*lines, "as in importer.batch=64, or policy.threads=1"])


def _components(registry: Registry) -> Iterator[str]:
    """All components, by kind and name."""
    for entry in registry.all():
        yield from _component(entry.kind, entry.component)


def _component(kind: str, component: Component) -> Iterator[str]:
    """A component and its options."""
    name, summary, model = component.name, component.summary, component.config
    shorthand = component.shorthand if isinstance(component, ImporterComponent) else ()
    yield from _wrapped(f"  {kind} {name}", summary)
    for key, text in _options(f"{kind}.", model):
        short = key.removeprefix(f"{kind}.")
        yield from _wrapped(f"    {short if short.partition('=')[0] in shorthand else key}", text)


def _choice(group: str, name: str, registry: Registry, own: Sequence[Path] = ()) -> Iterator[str]:
    """A component, preset or built-in name of a group, with its options; `own` are the folders of the user's presets.

    Raises PlacekitError for another name.
    """
    kind = group.partition("@")[0]
    registry.check_choices({kind: name})
    presets = [p for p in registry.presets() if (p.group, p.name) == (kind, name)]
    paths = [(folder, folder / kind / f"{name}.yaml") for folder in own]
    presets += [Choice(kind, name, str(folder), "", path) for folder, path in paths if os.path.isfile(path)]
    if presets:
        yield from _preset(presets[0], registry)
    elif (kind, name) in BUILT_IN:
        yield from _wrapped(f"  {kind} {name}", BUILT_IN[kind, name])
    elif (kind, name) in registry.entries or any(b.answers(name) for b in registry.broken):
        component = registry.get(kind, name).component
        yield from _component(kind, component)
        trainer = registry.own_trainer(name) if kind == "policy" else ""
        if trainer:
            yield wrapped(f"its own trainer: {trainer} (trainer={trainer} --help)", " " * 6, "    ")
        if component.paper:
            yield wrapped(f"paper: {component.paper}", " " * 6, "    ")
    else:
        known = choices(kind, registry, own)
        raise registry.mention_broken(unknown(group, name, known, ConfigError, LISTING), kind)


def _preset(preset: Choice, registry: Registry) -> Iterator[str]:
    """A preset: its description, what it sets, and the options of the component that it chooses."""
    assert preset.path is not None
    with reading(preset.path, ConfigError):
        text = parse_text(read_bytes(preset.path))
        data = dict(parse_yaml(text.encode()) or {})
    comment = re.match(r"(?:#.*\n)*", text)
    about = [line.lstrip("# ") for line in (comment[0] if comment else "").splitlines() if "@package" not in line]
    yield f"  {preset.group} {preset.name}, a preset of {preset.distribution}"
    yield wrapped(" ".join(" ".join(about).split()), " " * 6, " " * 6)
    if preset.group == "cluster":
        return  # its data are no options of a component
    chosen = defaults_list(preset.path)
    data = {key: value for key, value in data.items() if key not in ("defaults", preset.group)}
    swept = ((data.pop("hydra", None) or {}).get("sweeper") or {}).get("params") or {}
    prefix = f"{preset.group}." if preset.group in KINDS else ""
    given = [f"{group or preset.group}={name}" for group, name in chosen.items()] + list(_flat(prefix, data))
    given += [f"a sweep over {key}: {', '.join(str(values).split(','))}" for key, values in swept.items()]
    if given:
        yield from ("      it stands for", *(wrapped(option, " " * 12, " " * 8) for option in given))
    for kind in KINDS:
        name = chosen.get("" if kind == preset.group else kind)
        if name and (kind, name) in registry.entries:
            yield from _choice(kind, name, registry)


def _flat(prefix: str, data: Mapping[str, Any]) -> Iterator[str]:
    """The options that a preset sets."""
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flat(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}={value if isinstance(value, str) else json.dumps(value, default=str)}"


def _options(
    prefix: str, model: type[BaseModel], hidden: Iterable[str] = (), short: int = 0
) -> Iterator[tuple[str, str]]:
    """`KEY=DEFAULT` and meaning of the fields of a model; a list or mapping longer than `short` is cut to that length."""
    for key, field in model.model_fields.items():
        if key in hidden:
            continue
        value: Any = field.get_default(call_default_factory=True)
        if isinstance(value, BaseModel):
            yield from _options(f"{prefix}{key}.", type(value), short=short)
            continue
        text = _DEFAULTS.get(key) or json.dumps(value, default=str)
        if short and len(text) > short and text[0] in "[{":
            text = f"{text[0]}...{text[-1]}"
        yield f"{prefix}{key}={text}", "; ".join(filter(None, [field.description, _values(field.annotation)]))


def _values(annotation: Any) -> str:
    """The values that a field takes, if they are listed."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else [annotation]
    names = [value for part in parts if get_origin(part) is Literal for value in get_args(part)]
    return f"one of {', '.join(map(str, names))}" if len(names) > 1 else ""


def _wrapped(first: str, text: str) -> list[str]:
    """A name and its meaning: on one line where they fit, else the meaning below, indented."""
    if len(first) <= 32 and len(text) <= columns() - 36:
        return [f"{first:34}{text}".rstrip()]
    return [wrapped(first.lstrip(), " " * 8, " " * (len(first) - len(first.lstrip()))), wrapped(text, " " * 6, " " * 6)]
