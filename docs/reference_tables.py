"""The tables of names in docs/reference: makes them from the docstrings, so that a page also reads in plain text.

    python docs/reference_tables.py [--write]

A directive such as `.. automodule:: placekit_core.contracts.graph` shows nothing on GitHub. Above each block of directives
stands a table of the public names that the block documents, with the first sentence of each docstring. Modules are parsed,
not imported.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
HEAD = "| name | what it is |\n|---|---|\n"
BLOCK = re.compile(
    rf"(?:{re.escape(HEAD)}(?:\|[^\n]*\n)*\n)?(?P<block>^```\{{eval-rst\}}\n(?P<text>.*?)^```$)",
    re.MULTILINE | re.DOTALL,
)
DIRECTIVE = re.compile(
    r"^\.\. auto(?P<kind>module|class|function|data):: (?P<target>\S+)\n(?P<options>(?:   .*\n)*)", re.M
)
MEMBERS = re.compile(r"^   :members:(.*)$", re.M)


def with_tables(page: str) -> str:
    """The page with the table of each block of directives; a block of functions alone, such as a hook's, has none."""

    def renewed(found: re.Match[str]) -> str:
        rows = [f"| `{name}` | {about} |\n" for name, about in entries(found["text"])]
        return (HEAD + "".join(rows) + "\n" if rows else "") + found["block"]

    return BLOCK.sub(renewed, page)


def entries(directives: str) -> Iterator[tuple[str, str]]:
    """Name and first sentence of everything that a block of directives documents."""
    for found in DIRECTIVE.finditer(directives):
        if found["kind"] == "module":
            members = MEMBERS.search(found["options"])
            named = [n.strip() for n in members.group(1).split(",") if n.strip()] if members else []
            texts = documented(found["target"])
            for name in named or (texts if members else ()):
                yield name, texts[name] if name in texts else imported(found["target"], name)
        elif found["kind"] != "function":
            module, _, name = found["target"].rpartition(".")
            yield name, documented(module).get(name) or imported(module, name)


@cache
def tree(module: str) -> ast.Module:
    """A module of the repository, parsed. Raises FileNotFoundError."""
    parts = module.split(".")
    for base in (ROOT, *ROOT.glob("plugins/*/*")):
        for path in (base.joinpath(*parts).with_suffix(".py"), base.joinpath(*parts, "__init__.py")):
            if path.is_file():
                return ast.parse(path.read_text())
    raise FileNotFoundError(f"no module {module} in the repository")


@cache
def documented(module: str) -> dict[str, str]:
    """The public names that a module defines and describes, in their order, with the first sentence of each description."""
    texts: dict[str, str] = {}
    body = tree(module).body
    for i, node in enumerate(body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            texts[node.name] = sentence(ast.get_docstring(node) or "")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            after = body[i + 1] if i + 1 < len(body) else None
            if isinstance(target, ast.Name) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                texts[target.id] = sentence(str(after.value.value))
    return {name: text for name, text in texts.items() if text and not name.startswith("_")}


def imported(module: str, name: str) -> str:
    """The first sentence about a name that a module imports. Raises LookupError if there is none."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module.startswith("placekit_"):
                    return documented(node.module).get(alias.name) or imported(node.module, alias.name)
    raise LookupError(f"{module} does not describe {name}")


def sentence(text: str) -> str:
    """The first sentence of a description, for a cell of a table; of several clauses, all up to the full stop."""
    first = " ".join(text.strip().split("\n\n")[0].split())
    end = re.search(r"(?<!e\.g)(?<!i\.e)(?<!et al)(?<!vs)\.(?= [A-Z`]|$)", first)
    return (first[: end.end()] if end else first).replace("|", "\\|")


def main() -> int:
    """Check or rewrite the pages; exit code 1 if a table was not as the docstrings say."""
    parser = argparse.ArgumentParser(description="tables of names in docs/reference")
    parser.add_argument("--write", action="store_true", help="replace what differs")
    write = parser.parse_args().write
    code = 0
    for page in PAGES:
        before = page.read_text()
        after = with_tables(before)
        if after != before and write:
            page.write_text(after)
        elif after != before:
            print(f"{page.relative_to(ROOT)} differs: python docs/reference_tables.py --write")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
