"""The text of `placekit run --help`: the groups and the options of a run, or of one choice (`policy=NAME --help`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from placekit_core.cli.arguments import preset_folders
from placekit_core.cli.console import columns, wrapped
from placekit_core.contracts.errors import ConfigError, unknown
from placekit_core.contracts.files import parse_text, read_bytes, reading
from placekit_core.contracts.hookspecs import KINDS, ImporterComponent
from placekit_core.run.config import RunConfig, default_groups, defaults_list, read_preset
from placekit_core.run.detection import chosen_by
from placekit_core.run.registry import BUILT_IN, LISTING, Registry
from placekit_core.run.request import SECTIONS

_ABOUT = "Places a program on a machine. FILE is a program in a file; without one, `workload` or `importer` names the program."
_EXAMPLES = {
    "placekit run +policy=NAME": "another method",
    "placekit run FILE cluster=MACHINE": "a preset, FILE.yaml, or a machine in words",
    "placekit run -m policy=NAME,NAME seed=1,2,3": "a sweep: every combination",
    "placekit run resume=DIR": "continue a run or a sweep",
    "placekit run policy=NAME --help": "the options of a component or preset",
    "placekit run --cfg job OPTION=...": "print the complete configuration",
    "placekit run --config-dir DIR ...": "with a folder of your own presets",
}
_HIDDEN = {*SECTIONS, "parallel", "cluster", "workload", "python_objects"}  # groups, and options for Python only
_DEFAULTS = {"run_dir": "outputs/DATE/TIME"}  # from conf/config.yaml


def help_text(argv: list[str], registry: Registry) -> str:
    """The help about the components and presets that `argv` names; else about `placekit run`. Raises PlacekitError."""
    folders, rest = preset_folders(argv)
    words = [word.lstrip("+").partition("=") for word in rest if "=" in word]
    component = chosen_by([key for key, *_ in words], registry)
    named = [("importer", component.name)] if component is not None else []
    named += [(group, name) for group, _, names in words if group in default_groups() for name in names.split(",")]
    if named:
        return "\n\n".join(
            "\n".join(_choice(group.partition("@")[0], name, registry, folders)) for group, name in named
        )
    return "\n".join([
        "usage: placekit run [FILE] [OPTION=VALUE ...]", "", wrapped(_ABOUT, ""), "", *_rows(_EXAMPLES), "",
        wrapped("groups: the default, and the other choices (GROUP=NAME or +GROUP=NAME):"), *_groups(registry), "",
        "options of the run:", *_rows(dict(_options("", RunConfig))),
    ])  # fmt: skip


def _groups(registry: Registry) -> Iterator[str]:
    """The groups, each with its default and its other choices."""
    names: dict[str, set[str]] = {}
    for choice in registry.choices():
        names.setdefault(choice.group, set()).add(choice.name)
    for group, default in default_groups().items():
        others = sorted(names.get(group.partition("@")[0], set()) - {default, "file", "words"})
        yield wrapped(" ".join(others), " " * 6, f"  {group:13}  {'-' if default == 'null' else default:12}  ")


def _choice(group: str, name: str, registry: Registry, folders: Sequence[Path] = ()) -> Iterator[str]:
    """A component, preset or built-in name of a group, with its options. Raises PlacekitError for another name.

    Presets in `folders` come before those of the registry.
    """
    registry.check_choices({group: name})
    mine = [path for folder in folders if (path := folder / group / f"{name}.yaml").is_file()]
    if paths := [*mine, *(p.path for p in registry.presets() if (p.group, p.name) == (group, name) and p.path)]:
        yield from _preset(group, name, paths[0], registry)
    elif (group, name) in BUILT_IN:
        yield from _rows({f"{group} {name}": BUILT_IN[group, name]})
    elif group in KINDS and ((group, name) in registry.entries or any(b.may_have(name) for b in registry.broken)):
        component = registry.get(group, name).component
        yield from _rows({f"{group} {name}": component.summary})
        short = {key.removeprefix(f"{group}."): text for key, text in _options(f"{group}.", component.config)}
        known = component.shorthand if isinstance(component, ImporterComponent) else ()
        own = {key if key.partition("=")[0] in known else f"{group}.{key}": t for key, t in short.items()}
        yield from _rows(own, "    ")
        if trainer := registry.own_trainer(name) if group == "policy" else "":
            set_here = " ".join(_flat("trainer.", registry.own_trainer_options(name)))
            text = f"its own trainer: {trainer} (trainer={trainer} --help)" + (set_here and f", with {set_here}")
            yield wrapped(text, " " * 6, "    ")
        if component.paper:
            yield wrapped(f"paper: {component.paper}", " " * 6, "    ")
    else:
        names = {c.name for c in registry.choices() if c.group == group}
        raise registry.mention_broken(unknown(group, name, names, ConfigError, LISTING), group)


def _preset(group: str, name: str, path: Path, registry: Registry) -> Iterator[str]:
    """A preset: its description, what it sets, and the options of the component that it chooses."""
    with reading(path, ConfigError):
        comment = re.match(r"(?:#.*\n)*", parse_text(read_bytes(path)))
    about = [line.lstrip("# ") for line in (comment[0] if comment else "").splitlines() if "@package" not in line]
    yield from _rows({f"{group} {name}": " ".join(" ".join(about).split())})
    if group == "cluster":
        return
    chosen, data = defaults_list(path), dict(read_preset(path))
    swept = ((data.pop("hydra", None) or {}).get("sweeper") or {}).get("params") or {}
    options = _flat(
        f"{group}." if group in KINDS else "", {k: v for k, v in data.items() if k not in ("defaults", group)}
    )
    given = [*(f"{kind or group}={n}" for kind, n in chosen.items()), *options]
    given += [f"a sweep over {key}: {', '.join(str(values).split(','))}" for key, values in swept.items()]
    yield from ("      it sets", *(wrapped(option, " " * 12, " " * 8) for option in given)) if given else ()
    for kind in KINDS:
        component = chosen.get("" if kind == group else kind)
        if component and (kind, component) in registry.entries:
            yield from _choice(kind, component, registry)


def _flat(prefix: str, data: Mapping[str, Any]) -> Iterator[str]:
    """The options that a preset sets."""
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flat(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}={value if isinstance(value, str) else json.dumps(value, default=str)}"


def _options(prefix: str, model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """`KEY=DEFAULT` and meaning of the fields of a model."""
    for key, field in model.model_fields.items():
        value: Any = field.get_default(call_default_factory=True)
        if model is RunConfig and key in _HIDDEN:
            continue
        if isinstance(value, BaseModel):
            yield from _options(f"{prefix}{key}.", type(value))
            continue
        annotation = field.annotation
        parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else [annotation]
        names = [str(name) for part in parts if get_origin(part) is Literal for name in get_args(part)]
        allowed = f"one of {', '.join(names)}" if len(names) > 1 else ""
        text = _DEFAULTS.get(key) or json.dumps(value, default=str)
        yield f"{prefix}{key}={text}", "; ".join(filter(None, [field.description, allowed]))


def _rows(rows: Mapping[str, str], indent: str = "  ") -> list[str]:
    """Names and meanings beside each other where they fit; else the meaning below, indented."""
    lines: list[str] = []
    for first, text in rows.items():
        if len(first) <= 44 and len(text) <= columns() - 46 - len(indent):
            lines.append(f"{indent}{first:46}{text}".rstrip())
        else:
            below = indent + " " * 4
            lines += [wrapped(first, below + "  ", indent), *([wrapped(text, below, below)] if text else [])]
    return lines
