"""Sphinx: the site that `make docs` builds from the documents, the plugins' READMEs and the docstrings. Needs no network."""

from __future__ import annotations

import os
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docutils import nodes
from pydantic import BaseModel
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring

from placekit_core import __version__, installed

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent

project = "placekit"
release = version = __version__
copyright = "the authors of placekit, Apache-2.0"
extensions = ["myst_nb", "sphinx.ext.autodoc"]  # of MyST and notebooks: myst_nb includes myst_parser
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"placekit {version}"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["placekit.css"]
html_favicon = "_static/placekit.svg"
html_logo = "_static/placekit.svg"

highlight_language = "text"  # of a block without a language

myst_heading_anchors = 4
nb_execution_mode = "off"  # notebooks are shown as docs/notebooks.py ran them

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
add_module_names = False
autodoc_preserve_defaults = True
maximum_signature_line_length = 140  # names of types count in full
python_use_unqualified_type_names = True

suppress_warnings = ["ref.python"]  # a public name may be reached by two paths

# Documents outside of docs/ that are pages of the site: (file, page). Plugins are found, not listed.
PLUGINS = sorted(ROOT.glob("plugins/*/*/README.md"))
CARDS = {p: [*p.parent.glob("*/pretrained/README.md")] for p in PLUGINS}  # of trained policies that a plugin ships
PAGES = {
    ROOT / "plugins" / "README.md": DOCS / "_pages" / "plugins.md",  # whose text is that of `plugin_index`
    **{path: DOCS / "_pages" / "plugins" / f"{path.parent.name}.md" for path in PLUGINS},
    **{c: DOCS / "_pages" / "plugins" / f"{path.parent.name}-pretrained.md" for path in PLUGINS for c in CARDS[path]},
    **{path: DOCS / "_pages" / f"{path.stem.lower()}.md" for path in (ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md")},
    **{path: DOCS / "_pages" / "benchmarks" / path.name for path in sorted(ROOT.glob("benchmarks/results/*.md"))},
}
BENCHMARKS = """\
# Benchmarks

The figures that the scripts in `benchmarks/` printed last, with their commands.

```{toctree}
:glob:
:maxdepth: 1

benchmarks/*
```
"""
SECTIONS = Config(napoleon_use_ivar=True, napoleon_attr_annotations=False)
ARRAY = re.compile(r"~?numpy\.ndarray\[tuple\[~?typing\.Any, \.\.\.\], ~?numpy\.dtype\[([^\[\]]*)\]\]")
WIDE = 88  # characters that fit where the page's own contents stand beside it
COLUMN = re.compile(r"\S {2,}\S")
ALIGNED = re.compile(r"\S {3,}\S")
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")


def write_pages() -> None:
    """Copy the documents outside of docs/ to where Sphinx finds them."""
    texts = {page: path.read_text() for path, page in PAGES.items()}
    texts[DOCS / "_pages" / "plugins.md"] = plugin_index()
    texts[DOCS / "_pages" / "benchmarks.md"] = BENCHMARKS
    texts |= reference()
    for stale in (DOCS / "_pages").rglob("*.md"):
        if stale not in texts:
            stale.unlink()
    for page, text in texts.items():
        page.parent.mkdir(parents=True, exist_ok=True)
        if not page.is_file() or page.read_text() != text:
            page.write_text(text)


def plugin_index() -> str:
    """The page that lists the plugins by role."""
    lines = ["# Plugins", "", "Each is a package of its own. These pages are their READMEs.", ""]
    for role in dict.fromkeys(p.parent.parent.name for p in PLUGINS):
        found = [path for p in PLUGINS if p.parent.parent.name == role for path in (p, *CARDS[p])]
        names = [f"plugins/{PAGES[path].stem}" for path in found]
        lines += ["```{toctree}", f":caption: {role.capitalize()}", ":maxdepth: 1", "", *names, "```", ""]
    return "\n".join(lines)


def reference() -> dict[Path, str]:
    """The pages of the reference: the public names of each package that lists some, and the options of all components."""
    folder, packages = DOCS / "_pages" / "reference", ["placekit_core"]
    packages += sorted(path.parent.name.replace("-", "_") for path in PLUGINS if path.parent.name != "placekit")
    pages = {
        folder / "options.md": options_page(),
        folder / "hooks.md": hooks_page(),
    }
    pages |= {folder / f"{package}.md": package_page(package) for package in packages if public_names(package)}
    names = [page.stem for page in pages]
    index = ["# Reference", "", "Made from the docstrings when this site is built.", ""]
    pages[folder / "index.md"] = "\n".join([*index, "```{toctree}", ":maxdepth: 1", "", *names, "```", ""])
    return pages


def public_names(package: str) -> dict[str, list[str]]:
    """The names that a package exports, by the module that defines them; its `_HOME` lists names of a module or the reverse."""
    found: dict[str, list[str]] = {}
    for key, value in getattr(import_module(package), "_HOME", {}).items():
        by_module = find_spec(f"{package}.{key}") is not None
        module, names = (key, value.split()) if by_module else (value, [key])
        found.setdefault(f"{package}.{module}", []).extend(names)
    return found


def package_page(package: str) -> str:
    """The public names of a package, by module."""
    lines = [f"# {package}", "", f"The public names: `from {package} import NAME`.", ""]
    for module, names in sorted(public_names(package).items()):
        directive = [f".. automodule:: {module}", f"   :members: {', '.join(names)}", "   :show-inheritance:"]
        lines += [f"## `{module}`", "", "```{eval-rst}", *directive, "```", ""]
    return "\n".join(lines)


def hooks_page() -> str:
    """The hooks of plugins, with their arguments."""
    module = import_module("placekit_core.contracts.hookspecs")
    names = [f".. autofunction:: {module.__name__}.{name}" for name in vars(module) if name.startswith("placekit_")]
    about = "[Write a plugin](../../write-a-plugin.md#hooks) explains how a plugin uses them."
    return "\n".join(["# Hooks", "", about, "", "```{eval-rst}", *names, "```", ""])


def options_page() -> str:
    """The options of every component, with their defaults."""
    lines = ["# Options of components", "", "`SECTION.OPTION=VALUE` sets one, as in `policy.samples=8`.", ""]
    for entry in installed().all():
        rows = [
            f"| `{name}` | `{field.get_default(call_default_factory=True)!r}` | {field.description or ''} |"
            for name, field in entry.component.config.model_fields.items()
        ]
        lines += [f"## `{entry.kind}={entry.component.name}`", "", entry.component.summary, ""]
        lines += ["| option | default | meaning |", "|---|---|---|", *rows, ""] if rows else []
    return "\n".join(lines)


def relink(app: Sphinx, docname: str, source: list[str]) -> None:
    """Links go from page to page, wherever the documents are in the repository."""
    page = DOCS / f"{docname}.md"
    original = {p: o for o, p in PAGES.items()}.get(page, page)

    def target(match: re.Match[str]) -> str:
        path = Path(os.path.normpath(original.parent / match.group(1)))
        return os.path.relpath(PAGES.get(path, path), page.parent) if path.exists() else match.group(1)

    source[0] = LINK.sub(target, source[0])


def render(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with `code` and Google's sections; pictures and columns in a module's are kept as they are."""
    paragraphs = re.split(r"\n{2,}", "\n".join(lines).strip("\n"))
    text = "\n\n".join(literal(p) if what == "module" and ALIGNED.search(p) else quoted(p) for p in paragraphs)
    # as what="object", for it takes the text before the first colon of an attribute's docstring for a type
    lines[:] = GoogleDocstring(text, SECTIONS, app, "object", name, obj, options).lines()
    if what == "class" and isinstance(obj, type) and issubclass(obj, BaseModel):
        lines += fields(obj)


def quoted(paragraph: str) -> str:
    """`Code` as reStructuredText has it; code blocks are left alone."""
    return paragraph if paragraph.startswith("    ") else re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", paragraph)


def literal(paragraph: str) -> str:
    """A literal block."""
    return "::\n\n" + "\n".join(f"    {line}" for line in paragraph.split("\n"))


def fields(model: type[BaseModel]) -> list[str]:
    """The fields that a pydantic model adds to its base, with their types as written and their defaults."""
    lines = []
    for name, field in model.model_fields.items():
        if name in model.__annotations__:
            default = (
                "required" if field.is_required() else f"default ``{field.get_default(call_default_factory=True)!r}``"
            )
            about = f": {field.description}" if field.description else ""
            lines.append(f"* ``{name}`` (``{model.__annotations__[name]}``, {default}){about}")
    return ["", "Fields:", "", *lines, ""] if lines else []


def shorten(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Signatures with NDArray as it is written; pydantic models have none, for their fields are listed."""
    if isinstance(obj, type) and issubclass(obj, BaseModel):
        return "", None
    found = [x and ARRAY.sub(r"~numpy.typing.NDArray[\1]", x).replace("<factory>", "...") for x in (signature, returns)]
    return found[0], found[1]


def skip(app: Sphinx, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out what pydantic adds to a class."""
    return True if name in ("model_config", "model_post_init") else None


def mark_wide(app: Sphinx, doctree: nodes.document) -> None:
    """Printed tables that are wider than the page scroll; all else in a block of commands goes on in the next line."""
    for block in doctree.findall(nodes.literal_block):
        printed = [line for line in block.astext().splitlines() if not line.startswith(("$ ", "> "))]
        if any(len(line) > WIDE and len(COLUMN.findall(line)) > 2 for line in printed):
            block["classes"].append("wide")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    write_pages()
    app.add_lexer("csv", TextLexer)  # Pygments has none
    app.connect("source-read", relink)
    app.connect("autodoc-process-docstring", render)
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-skip-member", skip)
    app.connect("doctree-read", mark_wide)
