"""Published measurements and the shapes of their models, as the two files of this package hold them."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from placekit_models.decoder import Use
from placekit_models.shape import Shape, shapes as read_shapes

HERE = Path(__file__).parent
BITS = {
    "Q4_K_M": 4.85, "UD-Q4_K_XL": 5.1, "Q4_K_S": 4.58, "UD-Q5_K_XL": 5.8, "Q6_K": 6.56, "UD-Q3_K_XL": 3.9, "FP8": 8.0, "fp8": 8.0,
    "UD-Q8_K_XL": 9.6, "UD-IQ3_XXS": 3.2, "IQ2_K": 2.7,
}  # fmt: skip
"""Usual bits of a weight, scales included, for rows that do not state the size of the file."""
MXFP4 = 4.25
"""Bits of a weight of experts in MXFP4: four, and eight for each 32 weights; the other weights have the rest of the file."""
MIB = 2**20
OTHER_BACKENDS = ("Vulkan", "SYCL", "OpenCL", "distributed-llama", "ollama")
"""Runtimes with kernels of their own, for every maker's devices, and sources that mix backends and do not state which one ran
(`ollama ...`): their rows are kinds of their own."""


@dataclass(frozen=True)
class Row:
    """A published speed. Attributes are the columns of measurements.csv.

    Flash attention is off where the source does not state it: that was the default of llama.cpp until September 2025.
    """

    id: str
    devices: tuple[str, ...]
    gigabytes: tuple[int, ...]
    slots: tuple[str, ...]
    memory: str
    runtime: str
    model: str
    quantisation: str
    bytes: int
    prompt: bool
    tokens: int
    depth: int
    batch: int
    ubatch: int
    split: str
    held_mib: tuple[tuple[str, int], ...]
    flash: bool
    tokens_per_s: float
    source: str

    @classmethod
    def read(cls, cells: dict[str, str]) -> Row:
        """A line of the file."""
        devices = [d.rsplit("-", 1) for d in cells["devices"].split("+") if d]
        held = tuple((d, int(mib)) for d, mib in (item.split(":") for item in cells["held_mib"].split()))
        return cls(
            id=cells["id"], devices=tuple(k for k, _ in devices), gigabytes=tuple(int(g) for _, g in devices),
            slots=tuple(cells["links"].split(",")) if cells["links"] else (), memory=cells["memory"], runtime=cells["runtime"],
            model=cells["model"], quantisation=cells["quantisation"], bytes=int(cells["bytes"] or 0),
            prompt=cells["test"].startswith("pp"), tokens=int(cells["test"][2:]), depth=int(cells["depth"]),
            batch=int(cells["batch"]), ubatch=int(cells["ubatch"] or 512), split=cells["split"], held_mib=held,
            flash=cells["flash"] == "1", tokens_per_s=float(cells["tokens_per_s"]),
            source=cells["source"],
        )  # fmt: skip

    @property
    def on_cpu(self) -> bool:
        """Whether some weights are in the memory of a host with GPUs."""
        return "=CPU" in self.split

    @property
    def kind(self) -> str:
        """The kind of program and devices: rows of one kind have one error band."""
        other = ", other backend" if any(name in self.runtime for name in OTHER_BACKENDS) else ""
        return f"{'prompt' if self.prompt else 'decode'}, {self.place}{other}"

    @property
    def place(self) -> str:
        """The kind of devices."""
        if self.on_cpu:
            return "experts on the CPU"
        if not self.devices:
            return "CPU"
        if len(self.devices) == 1:
            return "one GPU"
        return "several GPUs"

    @property
    def unlike(self) -> bool:
        """Whether there are several GPUs, and not of one kind."""
        return self.place == "several GPUs" and len({*zip(self.devices, self.gigabytes, strict=True)}) > 1

    @property
    def fits_rates(self) -> bool:
        """Whether the row set a figure; all others are held out.

        Llama-3-8B in the notebooks of XiongjieDai: on one device the rates of parts.yaml and two figures of the program,
        `UNFUSED` and `SCORES`; prompts on several GPUs its third, `QUEUE`. Tokens with experts on the CPU and without
        context: the rate of the host's memory.
        """
        if self.on_cpu:
            return not self.prompt and self.depth == 0 and len(self.devices) <= 2
        notebook = self.model == "Llama-3-8B" and ".ipynb" in self.source
        return notebook and (self.place == "one GPU" or self.prompt)

    @property
    def what(self) -> str:
        """The measurement, in words."""
        counts = {d: self.devices.count(d) for d in self.devices}
        machine = " + ".join(f"{n}x {d}" if n > 1 else d for d, n in counts.items()) or "CPU"
        test = f"{'prompt of' if self.prompt else 'decode,'} {self.tokens}"
        return f"{machine}, {self.model} {self.quantisation}, {test}{f' at {self.depth}' if self.depth else ''}"

    @cached_property
    def use(self) -> Use:
        """How the model was used. A run that generates n tokens is predicted at its mean depth."""
        shape = shapes()[self.model]
        bits, expert_bits = self._bits(shape)
        if self.prompt:
            overlap = shape.experts is None  # products of experts waited for the host in builds of that time
            stage = shape.layers // len(self.devices) if len(self.devices) > 1 else 0
            return Use(
                "prompt", self.depth, 1, self.tokens, self.ubatch, bits, expert_bits, 2.0, self.flash, overlap, stage
            )
        depth = self.depth + self.tokens // 2
        return Use("decode", depth, self.batch, bits=bits, expert_bits=expert_bits, flash=self.flash)

    def _bits(self, shape: Shape) -> tuple[float, float | None]:
        """Bits of a weight, and of a weight of an expert if that is known to differ."""
        total = self.bytes * 8 if self.bytes else BITS[self.quantisation] * shape.weights
        expert = MXFP4 if "MXFP4" in self.quantisation and self.model.startswith("gpt-oss") else None
        mib, on_cpu = dict(self.held_mib).get("CPU", 0), self._experts_on_cpu(shape)
        if mib and on_cpu:
            # other weights never have fewer bits
            expert = min(mib * MIB * 8 / (shape.expert_weights * on_cpu), total / shape.weights)
        rest = total - expert * shape.expert_weights if expert else total
        return rest / (shape.dense_weights if expert else shape.weights), expert

    @cached_property
    def overrides(self) -> list[tuple[re.Pattern[str], str]]:
        """Patterns of names of tensors, with the device for the first that matches: `CPU`, `CUDA0`, ..."""
        rules = (rule.rpartition("=") for rule in self.split.split() if "=" in rule)
        return [(re.compile(pattern), device) for pattern, _, device in rules]

    def override(self, tensor: str) -> str:
        """The device that the overrides give a tensor; empty if none does."""
        return next((device for pattern, device in self.overrides if pattern.search(tensor)), "")

    def _experts_on_cpu(self, shape: Shape) -> float:
        """The share of the layers with experts whose experts are on the CPU."""
        layers = [i for i in range(shape.layers) if shape.routed(i)]
        return sum(self.override(f"blk.{i}.ffn_up_exps.weight") == "CPU" for i in layers) / max(len(layers), 1)


def _read(name: str) -> list[dict[str, str]]:
    with (HERE / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def measurements() -> tuple[Row, ...]:
    """Every row of measurements.csv."""
    return tuple(Row.read(cells) for cells in _read("measurements.csv"))


@cache
def left_out() -> dict[str, int]:
    """The reasons why other rows of the collection are not in the file, with the number of rows."""
    return {cells["reason"]: int(cells["rows"]) for cells in _read("left_out.csv")}


@cache
def shapes() -> dict[str, Shape]:
    """The shapes of the models."""
    return read_shapes()
