"""`placekit new-plugin KIND NAME [DIR] [--learnable]`: write a package with a working component.

The packages in `templates/` are real ones, called `my_method`; the command writes a copy with another name.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import shlex
import tempfile
from pathlib import Path

from placekit_core import ConfigError, PlacekitError, Registry, __version__, unknown
from placekit_core.cli.parser import Parser
from placekit_core.contracts.hookspecs import KINDS

TEMPLATES = Path(__file__).resolve().parent / "templates"
LEARNABLE = "learnable"  # the template of a policy that learns
LONGEST = 60  # maximum length of a name, which becomes the name of folders and modules
SOFTMAX = "_softmax"  # ending of the name of the policy that a trainer's package adds, to train it


def main(argv: list[str], registry: Registry) -> int:
    """Write the package, and print what to do next."""
    parser = Parser("new-plugin", "Write a package with a working component, its tests and its README.")
    parser.add_argument("kind", metavar="KIND", help=f"what it contributes: {', '.join(KINDS)}")
    parser.add_argument("name", metavar="NAME", help="what users write: lower-case letters, digits and single dashes")
    parser.add_argument("folder", metavar="DIR", nargs="?", default=".", help="folder to write it in; default: here")
    parser.add_argument("--learnable", action="store_true", help="a policy that learns: a network in torch")
    arguments = parser.read(argv)
    kind, name = arguments.kind, arguments.name.replace("-", "_")
    if kind not in KINDS:
        error = unknown("kind of plugin", kind, KINDS, ConfigError)
        raise ConfigError(
            error.message, f"{error.hint}; a command, preset or runtime goes into any plugin: docs/write-a-plugin.md"
        )
    if arguments.learnable and kind != "policy":
        raise ConfigError(
            f"a {kind} does not learn: --learnable is for policies",
            f"placekit new-plugin policy {arguments.name} --learnable",
        )
    folder = write(kind, name, Path(arguments.folder), registry, LEARNABLE if arguments.learnable else "")
    choice = f"+policy={name}{SOFTMAX}" if kind == "trainer" else f"+{kind}={name}"
    print(f"{folder}: {kind} {name!r}, ready to run; its method is in {folder / f'placekit_{name}' / f'{name}.py'}")
    source = folder if folder.is_absolute() else f"./{folder}"
    print(f"  pip install -e {shlex.quote(f'{source}[test]')}")
    print(f"  placekit run {choice}")
    print(f"  pytest {shlex.quote(str(folder))}")
    return 0


def write(kind: str, name: str, parent: Path, registry: Registry, template: str = "") -> Path:
    """Write the package of a component `name` (with underscores) in `parent`, from a folder of `TEMPLATES`; returns its folder.

    Raises PlacekitError, with nothing written, if the name cannot be used or is taken.
    """
    files = package(kind, name, registry, template)
    folder = parent / f"placekit-{name.replace('_', '-')}"
    if folder.exists():
        raise PlacekitError(f"{folder} exists already", "remove it, or choose another name or folder")
    try:
        with tempfile.TemporaryDirectory(prefix=".placekit-", dir=parent) as partial:
            whole = Path(partial) / folder.name
            for path, text in files.items():
                (whole / path).parent.mkdir(parents=True, exist_ok=True)
                (whole / path).write_text(text, encoding="utf-8")
            whole.rename(folder)
    except OSError as e:
        raise PlacekitError(
            f"cannot write {folder}: {e.strerror}", "choose a folder that exists and is writable"
        ) from None
    return folder


def package(kind: str, name: str, registry: Registry, template: str = "") -> dict[str, str]:
    """The files of the package, text by path; from the template of `kind` unless `template` names another one.

    Raises PlacekitError if the name cannot be used or is taken.
    """
    own = TEMPLATES / (template or kind)
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or len(name) > LONGEST:
        raise PlacekitError(
            f"{name!r} cannot be the name of a plugin",
            f"use lower-case letters, digits and single dashes, at most {LONGEST} characters",
        )
    class_name = "".join(part.capitalize() for part in name.split("_"))
    sources = [TEMPLATES / "pyproject.toml", *own.rglob("*")]  # a template's own pyproject.toml replaces the first
    texts = {p: p.read_text(encoding="utf-8") for p in sources if p.is_file() and "__pycache__" not in p.parts}
    python = "\n".join(text.replace("MyMethod", "") for path, text in texts.items() if path.suffix == ".py")
    if keyword.iskeyword(name) or keyword.iskeyword(class_name) or re.search(rf"\b{class_name}\b", python):
        raise PlacekitError(f"{name!r} cannot be the name of a plugin: its code uses the word", "choose another")
    for other_kind, taken in [(kind, name)] + ([("policy", name + SOFTMAX)] if kind == "trainer" else []):
        for entry in registry.entries.get((other_kind, taken), [])[:1]:
            raise PlacekitError(
                f"{other_kind} {taken!r} is in {entry.distribution} {entry.version} already", "choose another name"
            )
    if importlib.util.find_spec(f"placekit_{name}") is not None:
        raise PlacekitError(f"a package placekit_{name} is installed already", "choose another name, or uninstall it")
    minor = ".".join(__version__.split(".")[:2])
    new = {
        "my-method": name.replace("_", "-"),
        "my_method": name,
        "MyMethod": class_name,
        "KIND": kind,
        "0.0.*": f"{minor}.*",
    }

    def renamed(text: str) -> str:
        return re.sub("|".join(map(re.escape, new)), lambda found: new[found[0]], text)

    return {
        renamed(p.relative_to(TEMPLATES if p.parent == TEMPLATES else own).as_posix()): renamed(text)
        for p, text in texts.items()
    }
