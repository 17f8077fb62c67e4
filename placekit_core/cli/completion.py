"""`placekit completion bash|zsh|fish`: the script that a shell sources, and what that script asks for candidates.

Candidates come from the registry and the folders of presets; neither torch, numba nor hydra is imported.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from placekit_core.cli import COMMANDS
from placekit_core.cli.apply import FORMATS
from placekit_core.cli.arguments import DEFAULT_GROUPS
from placekit_core.config import RunConfig, conf_dir
from placekit_core.errors import ConfigError, unknown
from placekit_core.hookspecs import KINDS
from placekit_core.registry import BUILT_IN, installed

_BASH = """\
_placekit() {
    local IFS=$'\\n'
    COMPREPLY=($(placekit completion --complete "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null))
}
complete -o nospace -F _placekit placekit
"""

_ZSH = """\
_placekit() {
    local -a found
    found=("${(@f)$(placekit completion --complete "$LBUFFER" 2>/dev/null)}")
    compadd -Q -- ${${(M)found:#* }% }
    compadd -Q -S '' -- ${found:#* }
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _placekit placekit
"""

_FISH = """\
function __placekit_complete
    placekit completion --complete (commandline -cp | string collect) 2>/dev/null | string trim --right
end
complete -c placekit -f -a '(__placekit_complete)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}

_SPECIAL = re.compile(r"[^\w.,+@%=:/~-]")  # what a shell would not take literally
_FLAGS = ("-m", "--multirun", "--cfg", "--help", "--config-dir", "--info")
_GROUPS = (*sorted(DEFAULT_GROUPS), "backend@proxy")
_COMPONENTS = (*KINDS, "proxy")  # sections whose options are a component's
_FILES = ("path", "file", "run_dir")  # options that are files or folders


def main(argv: list[str]) -> int:
    """Print a shell's script, or for `--complete TEXT [BREAKS]` the candidates, one a line. Raises ConfigError."""
    if len(argv) in (2, 3) and argv[0] == "--complete":
        for candidate in complete(*argv[1:]):
            print(candidate)
        return 0
    if len(argv) != 1:
        raise ConfigError(f"usage: placekit completion {'|'.join(SCRIPTS)}")
    if argv[0] not in SCRIPTS:
        raise unknown("shell", argv[0], SCRIPTS, ConfigError)
    print(SCRIPTS[argv[0]], end="")
    return 0


def complete(text: str, breaks: str = "") -> list[str]:
    """What the last word of `text`, the command line up to the cursor, may become.

    A candidate that is a whole word ends with a space; one that goes on (`policy=`, `folder/`) does not. Candidates lack
    what stands before the last of the characters `breaks`: bash replaces only what comes after it.
    """
    words = re.findall(r"(?:\\.|[^\s\\])+", text)[1:]
    word = words.pop() if words and not text[-1].isspace() else ""
    kept = max((word.rfind(c) + 1 for c in breaks if c in "=:@"), default=0)
    return sorted({c[kept:] for c in _candidates(words, word) if c.startswith(word)})


def _candidates(words: list[str], word: str) -> Iterator[str]:
    if not words:
        yield from _whole([*COMMANDS, "--version", "--help"])
        return
    command, *given = words
    if command == "run":
        yield from _options(given, word)
        yield from _whole(_FLAGS)
    elif command == "compare":
        yield from _paths(word)
        if word.startswith("-"):
            yield from _whole(["--json", "--png", "--profile"])
    elif command == "apply":
        if given and given[-1] == "--format":
            yield from _whole(FORMATS)
        else:
            yield from _paths(word, ("",) if given and given[-1] == "--out" else ())
            if word.startswith("-"):
                yield from _whole(["--format", "--out"])
    elif command == "cluster":
        if not given:
            yield from _whole(["show", "profile"])
        elif given == ["profile"]:
            yield from _paths(word)
        elif given[0] == "profile":
            yield from ["repeats=", *_options(given[2:], word)]
        elif given == ["show"]:
            yield from _whole(p.stem for p in (conf_dir() / "cluster").glob("*.yaml"))
            yield from _paths(word, (".yaml", ".yml"))
    elif command == "fidelity":
        yield from _paths(word) if not given else ["placements=", "passes=", *_options(given[1:], word)]
    elif command == "new-plugin" and not given:
        yield from _whole(KINDS)
    elif command == "completion" and not given:
        yield from _whole(SCRIPTS)
    elif command == "graph":
        if not given:
            yield from _whole(["show", "export", "import"])
        elif "=" not in word and len(given) == 1:
            yield from _paths(word, tuple(f for e in installed().all() for f in e.component.files))
        if given and (given[0] == "show" or (given[0] == "export" and len(given) > 1)):
            yield from _options(given[1:], word)


def _options(given: list[str], word: str) -> Iterator[str]:
    """Candidates for an option of `run`: its name, or with `=` its value. In a sweep, each value after a comma."""
    if "=" not in word:
        yield from _names(given, word)
        return
    key, _, value = word.partition("=")
    swept, comma, last = value.rpartition(",")
    before = f"{key}={swept}{comma}"
    # a value may go on with a comma where the run is a sweep
    end = "" if {"-m", "--multirun"} & {*given} or comma else " "
    key = key.lstrip("+")
    if key in _GROUPS:
        group = key.partition("@")[0]
        yield from (f"{before}{name}{end}" for name in choices(group) if name not in swept.split(","))
        if group == "cluster":
            yield from (before + p for p in _paths(last, (".yaml", ".yml")))
    elif key == "resume":
        yield from (before + p for p in _paths(last))
    elif key.rpartition(".")[2] in _FILES:
        yield from (before + p for p in _paths(last, ("",)))
    else:
        section, _, name = key.rpartition(".")
        fields = [m.model_fields[name] for m in _section(given, section) if name in m.model_fields]
        yield from (f"{before}{v}{end}" for f in fields for v in _values(f.annotation))


def _names(given: list[str], word: str) -> Iterator[str]:
    """Candidates for the name of an option: first the section, after its dot the options in it."""
    section, dot, _ = word.rpartition(".")
    if dot:
        yield from (f"{section}.{name}=" for model in _section(given, section) for name in model.model_fields)
        return
    plus = word[: len(word) - len(word.lstrip("+"))]
    yield from (f"{plus}{group}=" for group in _GROUPS)
    for name, field in RunConfig.model_fields.items():
        if name in _COMPONENTS or _is_model(field.annotation):
            yield f"{name}."
        elif name not in DEFAULT_GROUPS:
            yield f"{name}="
    yield "resume="


def _section(given: list[str], section: str) -> list[type[BaseModel]]:
    """The models whose fields are the options of `section`; '' is the run itself."""
    if not section:
        return [RunConfig]
    if section in _COMPONENTS:
        return _models(given, section)
    field = RunConfig.model_fields.get(section)
    return [field.annotation] if field and _is_model(field.annotation) else []  # type: ignore[list-item]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _values(annotation: Any) -> Iterator[str]:
    """The values of a type that has few."""
    if annotation is bool:
        yield from ("true", "false")
    elif annotation is type(None):
        yield "null"
    elif get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    elif get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _values(part)


def _models(given: list[str], section: str) -> list[type[BaseModel]]:
    """Options of the components that `section` stands for: those that the words name, else the default."""
    kind, group = ("backend", "backend@proxy") if section == "proxy" else (section, section)
    chosen = {k.lstrip("+"): v.split(",") for k, _, v in (w.partition("=") for w in given) if v}
    defaults = defaults_list(conf_dir() / "config.yaml")
    names = chosen.get(group)
    if names is None:
        workloads = chosen.get("workload", [defaults.get("workload", "")])
        found = [_preset("workload", w).get(kind) for w in workloads]
        names = [n or defaults.get(group, "") for n in found]
    # a preset of a component's options names the component in its own defaults
    names = [_preset(kind, n).get("", n) for n in names]
    return [e.component.config for n in names for e in installed().entries.get((kind, n), ())]


def _preset(group: str, name: str) -> dict[str, str]:
    found = [p.path for p in installed().presets() if (p.group, p.name) == (group, name)]
    return defaults_list(found[0]) if found and found[0] else {}


def defaults_list(path: Path) -> dict[str, str]:
    """Group to name of a file's defaults list; the group of a bare name is ''."""
    import yaml

    found = {}
    for entry in (yaml.safe_load(path.read_text()) or {}).get("defaults", ()):
        if isinstance(entry, dict):
            for group, name in entry.items():
                found[str(group).removeprefix("override ").lstrip("/")] = str(name)
        elif entry != "_self_":
            found[""] = str(entry)
    return found


def choices(group: str) -> list[str]:
    """Names that `group=` takes: components, presets, and what is built in."""
    registry = installed()
    presets = [p.name for p in registry.presets() if p.group == group]
    built_in = [name for g, name in BUILT_IN if g == group and name != "file"]
    return sorted({*registry.names(group), *presets, *built_in})


def _paths(prefix: str, endings: tuple[str, ...] = ()) -> Iterator[str]:
    """Files with one of `endings` and folders that begin with `prefix`, escaped as it is; folders go on with a slash."""
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


def _whole(words: Iterable[str]) -> Iterator[str]:
    return (f"{w} " for w in words)
