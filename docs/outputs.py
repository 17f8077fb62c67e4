"""The commands that the documents show: runs them again, and compares or replaces their output.

    python docs/outputs.py [--write | --refresh] [--slow] [FILE ...]

A ```console block holds commands (`$ placekit ...`; lines that begin with `> ` continue one) and what they print, both
streams together. The commands of a document run in their order in one fresh folder; those of a document that installs
packages in an environment of its own, without a network. In the folder, `benchmarks` and `docs` are links to the
repository's. A block of any other language is written to the folder when it is reached, if its first line names a file
(`# mymodel.py`) or a comment before it does.

Comments on the lines before a block:

    <!-- file: NAME -->       the block is this file
    <!-- adds to: NAME -->    the block is appended to this file
    <!-- not run: REASON -->  its commands are only shown
    <!-- slow -->             its commands run with --slow only
    <!-- needs: VARIABLE -->  its commands run only where this environment variable is set
    <!-- stages -->           its runs also say their stages and what to do next (or else PLACEKIT_QUIET is set)
    <!-- fails -->            one of its commands ends with another exit code than 0, as it should
    <!-- varies: REGEX -->    what matches may differ from one run to the next

`...` on a line of its own stands for any lines. The column `seconds` of a table, the seconds that evaluations took, and dates
in the names of folders may always differ. Lines about compiling, which only a first run prints, are ignored.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "tests")]
from forked import commands  # noqa: E402
from venvs import environment, make_venv  # noqa: E402

PROGRAMS = ("placekit", "python", "pytest", "pip", "cat", "head", "ls")
FENCE = re.compile(r"^(`{3,})([^`]*)$")
COMMENT = re.compile(r"^<!-- (file|adds to|not run|slow|needs|stages|fails|varies)(?:: (.+?))? -->$")
FILE_NAME = re.compile(r"^# ([\w./-]+\.\w+)$")
DATE = re.compile(r"\d{4}-\d\d-\d\d[/ ]\d\d-\d\d-\d\d(-\d+)?")
COMPILING = re.compile("compiling for this computer|another placekit process is compiling")
TOOK = re.compile(r"(?<=evaluation )in [\d.]+ s|(?<=evaluations )in [\d.]+ s")


@dataclass
class Block:
    """A fenced block: where its lines are in the document, and the comments before it."""

    language: str
    start: int
    lines: list[str]
    comments: dict[str, str] = field(default_factory=dict)

    @property
    def file(self) -> str | None:
        """The file that it shows."""
        named = FILE_NAME.match(self.lines[0]) if self.lines and self.language != "console" else None
        return self.comments.get("file") or (named.group(1) if named else None)


@dataclass
class Printed:
    """The output of a command, both streams in their order, and its exit code."""

    lines: list[str]
    code: int


@dataclass
class Step:
    """One command: how it is written, and the lines that the document shows."""

    shown: list[str]
    output: list[str]

    @property
    def command(self) -> str:
        """The command for the shell."""
        return "\n".join(line[2:] for line in self.shown)


def documents() -> list[Path]:
    """Every document that is written by hand."""
    docs = [p for p in ROOT.glob("docs/**/*.md") if not p.relative_to(ROOT / "docs").parts[0].startswith("_")]
    return sorted([ROOT / "README.md", *docs, *ROOT.glob("plugins/*/*/README.md")])


def installs(text: str) -> bool:
    """Whether a document installs packages: `pip` in a block that is run."""
    return any(
        line.startswith("$ pip ") for block in blocks(text) if "not run" not in block.comments for line in block.lines
    )


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a document. Raises ValueError for commands in a block that is not ```console."""
    found: list[Block] = []
    comments: dict[str, str] = {}
    fence, block = "", None
    for number, line in enumerate(text.splitlines()):
        if block is not None:
            if line.strip() == fence:
                if block.language == "" and block.lines and block.lines[0].startswith("$ "):
                    raise ValueError(f"line {block.start}: commands belong into a ```console block")
                found.append(block)
                block = None
            else:
                block.lines.append(line)
        elif match := FENCE.match(line):
            fence, block = match.group(1), Block(match.group(2).strip(), number + 1, [], comments)
            comments = {}
        elif match := COMMENT.match(line.strip()):
            comments[match.group(1)] = match.group(2) or ""
        elif line.strip():
            comments = {}
    return found


def steps(block: Block) -> list[Step]:
    """The commands of a ```console block. Raises ValueError for a command that this tool does not run."""
    found: list[Step] = []
    for line in block.lines:
        if line.startswith("$ "):
            program = line[2:].split()[0]
            if program not in PROGRAMS and "not run" not in block.comments:
                raise ValueError(f"line {block.start}: `{program}` is not run; mark the block <!-- not run: REASON -->")
            found.append(Step([line], []))
        elif line.startswith("> ") and found and not found[-1].output:
            found[-1].shown.append(line)
        elif found:
            found[-1].output.append(line)
        else:
            raise ValueError(f"line {block.start}: a ```console block begins with a command")
    return found


def run(command: str, folder: Path, python: Path, quiet: bool = True, programs: Path | None = None) -> Printed:
    """The output of a command in the environment of `python`, without trailing blanks; with `quiet`, no stages of runs.

    The shell looks for programs in `programs` first.
    """
    kept = {k: v for k, v in environment(python).items() if not k.startswith("HYDRA_") and k != "PLACEKIT_QUIET"}
    variables = {**kept, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1"}
    variables["PLACEKIT_CACHE_DIR"] = os.devnull  # what was printed does not depend on earlier commands
    variables |= {"PLACEKIT_QUIET": "1"} if quiet else {}
    variables |= {"PATH": f"{programs}{os.pathsep}{variables['PATH']}"} if programs else {}
    done = subprocess.run(
        command, shell=True, cwd=folder, env=variables, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    lines = [line.rstrip() for line in done.stdout.splitlines() if not COMPILING.match(line)]
    return Printed(lines, done.returncode)


def masked(lines: list[str], varies: str = "") -> list[str]:
    """Lines without the parts that differ between two runs of a command."""
    result: list[str] = []
    column, width = None, 0
    for line in lines:
        cells = re.split(r"\s{2,}", line.strip())
        if "seconds" in cells:
            column, width = cells.index("seconds"), len(cells)
            line = "  ".join(cells)  # the width of the column may differ with its values
        elif column is not None and len(cells) == width:
            cells[column] = re.sub(r"^\d+\.\d$", "*", cells[column])
            line = "  ".join(cells)
        elif not line:  # other lines may be the rest of a row whose text is wrapped
            column = None
        line = TOOK.sub("in *", DATE.sub("*", line))
        result.append(re.sub(varies, "*", line) if varies else line)
    return result


def agrees(shown: list[str], printed: list[str], varies: str = "") -> bool:
    """Whether a document shows what was printed."""
    parts = [re.escape(line) + "\n" if line != "..." else "(?:.*\n)*?" for line in masked(shown, varies)]
    return re.fullmatch("".join(parts), "".join(line + "\n" for line in masked(printed, varies))) is not None


def shortened(shown: list[str], printed: list[str]) -> list[str]:
    """The output, with `...` where the document had its only one: up to the line after it, or to the last paragraph."""
    if shown.count("...") != 1:
        return printed
    head = shown.index("...")
    tail = shown[head + 1 :]
    if tail and tail[0] in printed[head:]:
        end = printed.index(tail[0], head)
    elif tail and "" in printed[head:]:
        end = len(printed) - printed[::-1].index("")
    else:
        end = len(printed) - len(tail)
    return [*printed[:head], "...", *printed[end:]] if end > head else printed


@dataclass
class Difference:
    """A command whose output differs from the document, or that fails; `code` says why its exit code is wrong."""

    line: int
    step: Step
    printed: list[str]
    code: str = ""

    def __str__(self) -> str:
        shown, printed = ("".join(f"\n    {x}" for x in lines) for lines in (self.step.output, self.printed))
        return f"line {self.line}: {self.step.shown[0]}\n  shows{shown}\n  but printed{printed}\n  {self.code}".rstrip()


def replay(text: str, slow: bool = False) -> Iterator[tuple[Block, list[Step], list[Printed]]]:
    """Run a document: every ```console block that is run, with its commands and what each printed."""
    with tempfile.TemporaryDirectory(prefix="placekit-docs-") as temporary, contextlib.ExitStack() as stack:
        folder = Path(temporary) / "folder"
        folder.mkdir()
        for name in ("benchmarks", "docs"):
            (folder / name).symlink_to(ROOT / name)
        python, programs = Path(sys.executable), None
        if installs(text):
            python = make_venv(Path(temporary) / "venv")
        if text.count("\n$ placekit ") > 1:
            programs = Path(temporary) / "programs"
            stack.enter_context(commands(programs, python))
        for block in blocks(text):
            if block.file is not None:
                path = folder / block.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("\n".join(block.lines) + "\n")
            elif "adds to" in block.comments:
                with (folder / block.comments["adds to"]).open("a") as file:
                    file.write("\n\n" + "\n".join(block.lines) + "\n")
            elif block.language == "console":
                found = steps(block)
                lacks = "needs" in block.comments and block.comments["needs"] not in os.environ
                if "not run" not in block.comments and not lacks and (slow or "slow" not in block.comments):
                    quiet = "stages" not in block.comments
                    yield block, found, [run(s.command, folder, python, quiet, programs) for s in found]


def check(text: str, slow: bool = False, refresh: bool = False) -> tuple[str, list[Difference]]:
    """The document with its outputs replaced where they differ, and the differences.

    With `refresh`, parts that may differ are replaced, too, except in outputs with more than one `...`.
    """
    lines, differences = text.splitlines(), []
    moved = 0
    for block, found, printed in replay(text, slow):
        new: list[str] = []
        fails = "fails" in block.comments
        for step, got in zip(found, printed, strict=True):
            same = agrees(step.output, got.lines, block.comments.get("varies", ""))
            wrong = f"exit code {got.code}" if got.code and not fails else ""
            if (
                "Traceback (most recent call last):" in got.lines
            ):  # no document shows one, also where a command should fail
                wrong = "a traceback"
            stays = bool(wrong) or (same and not (refresh and step.output.count("...") < 2))
            new += step.shown + (step.output if stays else shortened(step.output, got.lines))
            if not same or wrong:
                differences.append(Difference(block.start, step, got.lines, wrong))
        if fails and not any(got.code for got in printed):
            differences.append(Difference(block.start, found[-1], printed[-1].lines, "none of these commands failed"))
        start = block.start + moved
        lines[start : start + len(block.lines)] = new
        moved += len(new) - len(block.lines)
    return "\n".join(lines) + "\n", differences


def main() -> int:
    """Check or rewrite the documents; exit code 1 if one did not show what was printed."""
    parser = argparse.ArgumentParser(description="run the commands that the documents show, and compare their output")
    parser.add_argument("--write", action="store_true", help="replace what differs")
    parser.add_argument("--refresh", action="store_true", help="replace also what may differ, such as seconds")
    parser.add_argument("--slow", action="store_true", help="run the blocks that are marked slow, too")
    parser.add_argument("files", nargs="*", type=Path, help="documents; all by default")
    arguments = parser.parse_args()
    code = 0
    for path in arguments.files or documents():
        try:
            before = path.read_text()
            text, differences = check(before, arguments.slow, arguments.refresh)
        except ValueError as e:
            print(f"{path}: {e}")
            code = 1
            continue
        for difference in differences:
            print(f"{path}: {difference}")
        rewrites = arguments.write or arguments.refresh
        if rewrites and text != before:
            path.write_text(text)
        if any(d.code or not rewrites for d in differences):
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
