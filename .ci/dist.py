"""Builds the source archive and the wheel of every distribution of this repository: `python .ci/dist.py FOLDER`.

Each archive has the repository's LICENSE, and only files that git tracks. Wheels are built from the unpacked source archives, as
packagers do, so that neither lacks a file. Package indexes show the READMEs, but not the files beside them, so their relative
links become plain text.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from hatchling.build import build_sdist, build_wheel

ROOT = Path(__file__).resolve().parent.parent
RELATIVE_LINK = re.compile(r"!?\[([^\]]+)\]\((?!https?:)[^()\s]*[.#][^()\s]*\)")


def copy_repository(target: Path) -> None:
    """Copy the files that git tracks."""
    command = ["git", "ls-files", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def without_relative_links(text: str) -> str:
    """The text of a README, with the words of its relative links and pictures in their place."""
    return RELATIVE_LINK.sub(r"\1", text)


def build(out: Path) -> None:
    """Build the distributions of the repository into `out`."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "placekit"
        copy_repository(copy)
        for folder in [copy, *sorted(p.parent for p in copy.glob("plugins/*/*/pyproject.toml"))]:
            if folder != copy:
                shutil.copy(copy / "LICENSE", folder)
            readme = folder / "README.md"
            readme.write_text(without_relative_links(readme.read_text(encoding="utf-8")), encoding="utf-8")
            os.chdir(folder)
            archive = build_sdist(str(out))
            shutil.unpack_archive(out / archive, temporary)
            os.chdir(Path(temporary) / archive.removesuffix(".tar.gz"))
            print(archive, build_wheel(str(out)), flush=True)
        os.chdir(ROOT)


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    build(folder)
