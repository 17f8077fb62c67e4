"""From a model's name to a device_map: seconds of the whole way, beside accelerate's own map.

    python benchmarks/device_map.py [--write]

For each model: `placekit run`, then `placekit apply`, as processes of their own, on a machine of 24 GB, 12 GB and a CPU; and
whether accelerate accepts the map for the model itself, which is built without memory. The seconds of a step are simulated
as accelerate runs a map. `--write` keeps the report in benchmarks/results/device_map.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MACHINE = "rtx4090 + rtx3060 + cpu, pcie4 x8"
MODELS: list[tuple[str, list[str]]] = [
    ("hf:meta-llama/Llama-3.1-8B", ["context=8192"]),
    ("hf:meta-llama/Llama-3.1-8B", ["context=8192", "dtype=float32"]),
    ("hf:meta-llama/Llama-3.1-8B", ["mode=prefill", "context=2048", "dtype=float32"]),
]
ACCEPTS = """
import json, sys
from placekit_torch.vision import declare_torchvision
declare_torchvision()
import accelerate, torch, transformers
from pathlib import Path
import placekit_models
name = sys.argv[1].removeprefix("hf:").replace("/", "--")
config = transformers.AutoConfig.from_pretrained(Path(placekit_models.__file__).parent / "configurations" / f"{name}.json")
with accelerate.init_empty_weights():
    model = getattr(transformers, config.architectures[0])(config)
accelerate.utils.modeling.check_device_map(model, json.load(open("map.json")))
"""


def timed(*command: str) -> tuple[subprocess.CompletedProcess[str], float, float]:
    """A process, its seconds, and its processor time."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done, time.perf_counter() - start, used


def row(number: int, model: str, options: list[str]) -> str:
    """A row of the table: seconds of both commands, and what the map costs."""
    placekit, folder = str(Path(sys.executable).with_name("placekit")), f"run{number}"
    placed, run_s, run_cpu = timed(
        placekit, "run", f"model={model}", *options, "cluster=desk.yaml", f"run_dir={folder}"
    )
    applied, apply_s, apply_cpu = timed(placekit, "apply", folder, "--out", "map.json")
    if placed.returncode or applied.returncode:
        return f"| {model} | {' '.join(options)} | {' '.join((placed.stderr + applied.stderr).split())} |"
    accepts, *_ = timed(sys.executable, "-c", ACCEPTS, model)
    said = " ".join(applied.stderr.split())
    ours = re.search(r"run by accelerate: ([\d.]+ \w+)", said)
    own = re.search(r"accelerate's own map: ([\d.]+ \w+|does not fit|fails)|own map is not compared: ([^:]*)", said)
    where = json.loads(Path("map.json").read_text())
    counts = ", ".join(f"{name}: {list(where.values()).count(name)}" for name in dict.fromkeys(where.values()))
    cells = [
        model,
        " ".join(options),
        f"{run_s:.1f}",
        f"{apply_s:.1f}",
        f"{run_cpu + apply_cpu:.1f}",
        counts,
        "yes" if accepts.returncode == 0 else accepts.stderr.strip().splitlines()[-1],
        ours[1] if ours else "-",
        (own[1] or own[2]) if own else "-",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="keep the report")
    arguments = parser.parse_args()
    report = Path(__file__).resolve().parent / "results" / "device_map.md"
    head = [
        "# From a model's name to a device map",
        "",
        "`python benchmarks/device_map.py --write`: `placekit run model=... cluster=desk.yaml` and `placekit apply`, on"
        f" `{MACHINE}`",
        "",
        "| model | options | run, s | apply, s | processor time of both, s | modules per device | accelerate accepts it |"
        " step by accelerate | step with accelerate's own map |",
        "|---|---|---:|---:|---:|---|---|---:|---:|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        timed(str(Path(sys.executable).with_name("placekit")), "cluster", "new", MACHINE, "desk.yaml")
        rows = []
        for number, (model, options) in enumerate(MODELS):
            rows.append(row(number, model, options))
            print(rows[-1], flush=True)
    load = os.getloadavg()[0]
    tail = [
        "",
        f"machine: {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}; seconds of steps are simulated",
    ]
    if arguments.write:
        report.write_text("\n".join([*head, *rows, *tail]) + "\n")


if __name__ == "__main__":
    main()
