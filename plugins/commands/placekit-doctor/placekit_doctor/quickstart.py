"""`placekit quickstart [DIR]`: writes a small project that runs, as a start for your own."""

from __future__ import annotations

import contextlib
import io
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path

from placekit_core import ClusterError, PlacekitError, PluginError, Registry
from placekit_core.cli.console import wrapped
from placekit_core.cli.parser import Parser
from placekit_core.contracts.cluster import load_cluster
from placekit_core.run.config import conf_dir

TEMPLATES = Path(__file__).resolve().parent / "templates" / "quickstart"
FILES = ("model.py", "machine.yaml", "place.py", "README.md")
MACHINE, FIELDS = "machine.yaml", "machine_fields.yaml"
EXAMPLE = "rtx4090_3090"
"""The preset that stands in for a computer without a GPU."""
NEXT = (
    "placekit run model=model.py:make cluster=machine.yaml grouper=module run_dir=mine",
    "placekit apply mine",
    "python place.py",
)


def main(argv: list[str], registry: Registry) -> int:
    """Write the project, and print what to run next. Raises PlacekitError."""
    parser = Parser("quickstart", "Write a small project that runs: a PyTorch model, a machine, a script, a README.")
    parser.add_argument(
        "folder", metavar="DIR", nargs="?", default="quickstart", help="its folder; default: quickstart"
    )
    folder = Path(parser.read(argv).folder)
    if "model" not in registry.names("importer"):
        raise PluginError(
            "the project needs importer 'model', which is not installed", "`pip install placekit-models` installs it"
        )
    refuse_taken(folder)
    machine, about = this_or_example(registry)
    texts = {name: (TEMPLATES / name).read_text(encoding="utf-8") for name in FILES if name != MACHINE}
    write(folder, {**texts, MACHINE: (TEMPLATES / FIELDS).read_text(encoding="utf-8") + machine})
    print(f"{folder}: {', '.join(FILES)}")
    print(wrapped(f"{MACHINE}: {about}"))
    print("next:")
    for command in ([f"cd {shlex.quote(str(folder))}"] if folder.resolve() != Path.cwd() else []) + [*NEXT]:
        print(f"  {command}")
    return 0


def this_or_example(registry: Registry) -> tuple[str, str]:
    """The content of a cluster file, and a description: this computer if it has known GPUs, else an example."""
    example = (conf_dir() / "cluster" / f"{EXAMPLE}.yaml").read_text(encoding="utf-8")
    if "cluster new" not in registry.commands:
        return example, f"an example ({EXAMPLE}); no plugin that reads this computer is installed"
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / MACHINE
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                registry.command("cluster new").run(["auto", str(path)], registry)
        except ClusterError as e:
            return example, f"an example ({EXAMPLE}); this computer cannot be read: {e.message}"
        cluster, text = load_cluster(path), path.read_text(encoding="utf-8")
    if all(cluster.kinds[kind].type != "gpu" for kind in cluster.device_kind):
        return example, f"an example ({EXAMPLE}); no GPU was found here"
    return text, f"this computer, {cluster.description}"


def refuse_taken(folder: Path) -> None:
    """Raise PlacekitError if the folder already has a file of the project."""
    if taken := [name for name in FILES if (folder / name).exists()]:
        raise PlacekitError(
            f"{folder} has {', '.join(taken)} already, so nothing was written",
            "choose another folder: placekit quickstart DIR",
        )


def write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write the files without overwriting any. Raises PlacekitError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as e:
        raise PlacekitError(f"cannot write {folder}: {e.strerror}", "choose a folder that can be written to") from None
