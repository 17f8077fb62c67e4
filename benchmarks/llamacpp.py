"""Compares llama.cpp on this computer's CPU with predictions from `placekit cluster profile`.

    python benchmarks/llamacpp.py [--rounds N] [--write]

Writes three models with random weights, and in each round measures the computer and then every model: a prompt of 256 tokens, and
tokens after it. Profiles use one thread per device, and so does llama.cpp here. Seconds of llama.cpp count only while its
thread had a core, and the fastest of all rounds counts, because other programs use the cores, too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from simulator import processor

from placekit_core import Cluster, load_programs, parse_yaml, place

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "plugins" / "importers" / "placekit-models" / "tests"))
from made_gguf import one_type, write  # noqa: E402
from placekit_models.shape import Experts, Shape  # noqa: E402
from real_llama import load  # noqa: E402

RESULT = Path(__file__).parent / "results" / "llamacpp.md"
PROMPT, GENERATE, CONTEXT = 256, 32, 512
LARGE = ("attn_v.", "ffn_down", "output.")
"""Beginnings of the names of matrices that have more bits in files of type q4_k_m."""


@dataclass(frozen=True)
class Model:
    """A model: its shape, and whether its weights are q4_k_m (or q8_0)."""

    shape: Shape
    few_bits: bool

    def type_of(self, name: str) -> str:
        """The type of a tensor."""
        key = name.split(".", 2)[-1]
        return str(one_type(name, ("Q6_K" if key.startswith(LARGE) else "Q4_K") if self.few_bits else "Q8_0"))


MODELS = {
    "dense, q4_k_m": Model(Shape(16, 2048, 32, 8, 8192, ffn=5632, head=64), True),
    "dense, q8_0": Model(Shape(12, 1024, 16, 4, 8192, ffn=2816, head=64), False),
    "experts, q8_0": Model(
        Shape(8, 1024, 16, 4, 8192, head=64, experts=Experts(32, 4, 384), architecture="qwen3moe"), False
    ),
}


def profile(folder: Path) -> Cluster:
    """This computer, measured."""
    options = ["workload=chainmm", "importer.sizes={n: 512}", "backend=cpu", "backend.devices=1", "--repeats", "5"]
    command = [str(Path(sys.executable).with_name("placekit")), "cluster", "profile", str(folder), *options]
    subprocess.run(command, check=True, capture_output=True)
    return Cluster.parse(parse_yaml((folder / "cluster.yaml").read_bytes()))


def faster(a: Cluster, b: Cluster) -> Cluster:
    """The higher rates of both."""
    data = a.model_dump(mode="json")
    own, other = data["kinds"]["cpu"], b.model_dump(mode="json")["kinds"]["cpu"]
    own["memory_bytes_per_s"] = max(own["memory_bytes_per_s"], other["memory_bytes_per_s"])
    own["flops_per_s"] = {k: max(v, other["flops_per_s"][k]) for k, v in own["flops_per_s"].items()}
    return Cluster.parse(data)


def predicted_s(path: Path, cluster: Cluster, mode: str) -> float:
    """Seconds of a step on the only device."""
    options = {"prompt": PROMPT} if mode == "prompt" else {}
    [program] = load_programs(checkpoint=str(path), mode=mode, context=CONTEXT, **options)
    value = place(program, cluster=cluster, policy="single_cpu").value_s
    assert value is not None
    return value


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"into {RESULT.name}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = {
            name: write(folder / f"{i}.gguf", model.shape, model.type_of)
            for i, (name, model) in enumerate(MODELS.items())
        }
        measured: dict[tuple[str, str], float] = {}
        machine: Cluster | None = None
        for i in range(arguments.rounds):
            found = profile(folder / f"profile{i}")
            machine = faster(machine, found) if machine else found
            for name, path in files.items():
                args = ["-m", str(path), "-c", str(CONTEXT), "-np", "1", "-t", "1", "-fa", "on"]
                loaded = load(args, speed=[PROMPT, GENERATE, 2])
                for mode, seconds in (("prompt", loaded.prompt_s), ("decode", loaded.token_s)):
                    measured[name, mode] = min([measured.get((name, mode), 1e9), *seconds])
            print(f"round {i + 1} of {arguments.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
        assert machine is not None
        kind = machine.kinds["cpu"]
        lines = [
            "# llama.cpp on a CPU\n\n`python benchmarks/llamacpp.py --write`: the fastest of"
            f" {arguments.rounds} rounds, one thread, {PROMPT} tokens of prompt, then {GENERATE} tokens, in seconds in which the"
            " thread had a core. Predicted from"
            f" {kind.flops_per_s['float32'] / 1e9:.0f} GFLOP/s and {kind.memory_bytes_per_s / 1e9:.1f} GB/s, the highest rates"
            " of as many profiles.\n\n| model | MB | step | measured, tokens/s | predicted | predicted/measured |",
            "| --- | ---: | --- | ---: | ---: | ---: |",
        ]
        for (name, mode), seconds in measured.items():
            tokens = PROMPT if mode == "prompt" else 1
            guess = predicted_s(files[name], machine, mode)
            size = files[name].stat().st_size / 1e6
            lines.append(
                f"| {name} | {size:.0f} | {mode} | {tokens / seconds:.1f} | {tokens / guess:.1f} | {seconds / guess:.2f} |"
            )
    text = "\n".join([*lines, "", f"machine: {processor()}; load at the end {os.getloadavg()[0]:.1f}", ""])
    print(text)
    if arguments.write:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
