"""Finds the device of each tensor when llama.cpp or vLLM runs with a command line.

llama.cpp's devices and overrides follow ggml-org/llama.cpp, src/llama.cpp and common/arg.cpp; it fits by itself as common/fit.cpp
at 08033df does. vLLM's `--cpu-offload-gb` follows vllm-project/vllm, vllm/model_executor/models/utils.py. The code is our own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from placekit_core import ConfigError, PlacementError, Problem
from placekit_runtimes.layers import device_numbers
from placekit_runtimes.llamacpp import buffer_name, gpu_of_layers, remote_devices
from placekit_runtimes.planning.fit import fitted
from placekit_runtimes.planning.read_lines import Line, number
from placekit_runtimes.planning.regular import Regular
from placekit_runtimes.planning.split import Split
from placekit_runtimes.planning.strategies import Strategies
from placekit_runtimes.vllm import stage_layers

EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""The tensors that `--cpu-moe` overrides (llama.cpp, common/common.h)."""


def split_of(line: Line, strategies: Strategies) -> Split:
    """The device of each tensor. Raises PlacekitError if the command line names something that does not exist."""
    return _Vllm(line, strategies).split() if line.runtime == "vllm" else _LlamaCpp(line, strategies).split()


def _visible(line: Line, name: str, devices: list[int]) -> list[int]:
    """The devices that a variable such as CUDA_VISIBLE_DEVICES leaves, in its order. Raises ConfigError."""
    text = line.variables.get(name)
    if text is None:
        return devices
    numbers = [number(name, x) for x in text.split(",") if x.strip() not in ("", "-1")]
    for n in numbers:
        if not 0 <= n < len(devices):
            raise ConfigError(
                f"{name} names GPU {n}, but the machine has {len(devices)} such GPUs", "they are numbered from 0"
            )
    return [devices[n] for n in numbers]


class _LlamaCpp:
    """The split of a command line of llama.cpp."""

    def __init__(self, line: Line, strategies: Strategies) -> None:
        self.line, self.strategies, self.steps = line, strategies, strategies.steps
        self.question, self.layout = self.steps.question, self.steps.layout
        self.devices = self._named(self.steps.decode.problem)

    def _named(self, problem: Problem) -> dict[str, int]:
        """The devices by llama.cpp's names, in its order: those of rpc-servers come first."""
        names, gpus = self.question.cluster.device_names, self.question.gpus
        main = names.index(self.line.box) if self.line.box in names else min(gpus, default=0)
        away = list(remote_devices(problem, main))
        if away and not self.line.box:
            self.line.notes.append(
                f"assumed to run in the box of {names[main]}; for another, end the line with '# in the box of DEVICE'"
            )
        found = {buffer_name(problem, d, main): d for d in away if self.line.last("--rpc")}
        own: dict[str, list[int]] = {}
        for d in sorted({*self.question.gpus} - {*away}):
            own.setdefault(re.sub(r"\d+$", "", buffer_name(problem, d, main)), []).append(d)
        for begin, devices in own.items():
            variable = {"CUDA": "CUDA_VISIBLE_DEVICES", "ROCm": "HIP_VISIBLE_DEVICES"}.get(begin, "")
            if variable in self.line.variables:
                found |= {f"{begin}{i}": d for i, d in enumerate(_visible(self.line, variable, devices))}
            else:
                found |= {buffer_name(problem, d, main): d for d in devices}
        return found

    def split(self) -> Split:
        line, layout, cpu = self.line, self.layout, self.question.cpu
        if line.true("--no-kv-offload"):
            raise ConfigError("placekit keeps the cache of a layer on the layer's device", "leave out --no-kv-offload")
        gpus, layers = self._gpus(), self._layers()
        rules = list(self._rules(gpus))
        fits = line.command != "llama-bench" and line.last("--fit") not in ("off", "0")
        if fits and layers is None and not rules and line.last("--tensor-split") is None and gpus:
            return fitted(self.strategies.regulars, gpus)
        on = gpu_of_layers(layout.layers, self._shares(gpus), layout.layers + 1 if layers is None else layers)
        if cpu is None and -1 in on:
            raise PlacementError(
                f"{on.count(-1)} of {layout.layers + 1} layers are for the CPU, but the machine is described without one",
                "add its memory: '... + 64GB ddr5-5600'",
            )
        home = [gpus[i] if i >= 0 else int(cpu or 0) for i in on]
        found = layout.split(home, home[0] if cpu is None else cpu, tower=gpus[0] if gpus else None)
        return Split(found.home, self._overridden(found, rules))

    def _gpus(self) -> list[int]:
        """The GPUs that are used, in order."""
        line, gpus = self.line, list(self.devices.values())
        if (names := line.last("--device")) is not None:
            gpus = [] if names == "none" else [self._device(n, "--device") for n in re.split("[,/]", names)]
        mode = line.last("--split-mode") or "layer"
        if mode in ("row", "tensor"):
            raise ConfigError(
                f"--split-mode {mode} divides tensors, but placekit places whole tensors", "use --split-mode layer"
            )
        if mode not in ("layer", "none"):
            raise ConfigError(f"llama.cpp has no --split-mode {mode}", "its modes are none, layer, row and tensor")
        if mode == "none" and gpus:
            main = self.line.number("--main-gpu") or 0
            if not 0 <= main < len(gpus):
                raise ConfigError(
                    f"--main-gpu {main} does not exist: there are {len(gpus)} GPUs", "they are numbered from 0"
                )
            return [gpus[main]]
        return gpus

    def _device(self, name: str, flag: str) -> int:
        """A GPU by its name, which may have the address of an rpc-server behind it."""
        name = re.sub(r"\[.*\]$", "", name.strip())
        if name not in self.devices:
            rest = "; GPUs in other boxes need --rpc" if len(self.devices) < len(self.question.gpus) else ""
            raise ConfigError(
                f"{flag} names {name!r}, which does not exist", f"there are {', '.join(['CPU', *self.devices])}{rest}"
            )
        return self.devices[name]

    def _layers(self) -> int | None:
        """How many layers are on GPUs, with the output; None: llama.cpp chooses."""
        text = self.line.last("--n-gpu-layers")
        if text is None or text in ("auto", "-1"):
            return None
        return self.layout.layers + 1 if text == "all" or (n := number("--n-gpu-layers", text)) < 0 else int(n)

    def _shares(self, gpus: Sequence[int]) -> list[float]:
        text = self.line.last("--tensor-split")
        shares = [number("--tensor-split", x, float) for x in re.split("[,/]", text)] if text else []
        if len(shares) > len(gpus):
            names = ", ".join(name for name, d in self.devices.items() if d in gpus) or "none"
            raise ConfigError(
                f"--tensor-split {text} has {len(shares)} shares, but llama.cpp uses {len(gpus)} GPUs",
                f"the GPUs are {names}",
            )
        if min(shares, default=0) < 0:
            raise ConfigError(f"--tensor-split {text} has a negative share", "shares are 0 or more")
        shares += [0.0] * (len(gpus) - len(shares))
        return shares if any(shares) else self.question.cluster.memory_bytes[list(gpus)].tolist()

    def _rules(self, gpus: Sequence[int]) -> Iterator[tuple[str, int]]:
        """Patterns of tensors and their devices, the CPU or one of these GPUs; the first that matches counts."""
        for flag, value in self.line.flags:
            if flag == "--cpu-moe" and value not in ("0", "off", "false"):
                yield EXPERTS, self._cpu(flag)
            elif flag == "--n-cpu-moe":
                count = min(number(flag, value), self.layout.layers)
                yield from ((rf"blk\.{i}{EXPERTS}", self._cpu(flag)) for i in range(count))
            elif flag == "--override-tensor":
                for rule in filter(None, re.split("[,;]", value)):
                    pattern, equals, name = rule.partition("=")
                    if not equals:
                        raise ConfigError(
                            f"--override-tensor {rule!r:.60} is not PATTERN=BUFFER", r"e.g. 'blk\.1\.ffn_.*_exps=CPU'"
                        )
                    if name in ("CPU", "CUDA_Host", "ROCm_Host"):
                        yield pattern, self._cpu(flag)
                        continue
                    device = self._device(name, flag)
                    if device not in gpus:
                        raise ConfigError(
                            f"--override-tensor names {name}, which the command line does not use", "add it to --device"
                        )
                    yield pattern, device

    def _cpu(self, flag: str) -> int:
        if self.question.cpu is None:
            raise ConfigError(
                f"{flag} needs the CPU, but the machine is described without one", "add '... + 64GB ddr5-5600'"
            )
        return self.question.cpu

    def _overridden(self, split: Split, rules: Sequence[tuple[str, int]]) -> NDArray[np.int64]:
        """[t] the devices of tensors with these rules."""
        every = {t.name for t in self.question.checkpoint.tensors}
        names = [f"{n}.weight" if f"{n}.weight" in every else n for n in self.layout.names]
        names = ["token_embd.weight" if n == "output" else n for n in names]  # a tied output is the embedding's tensor
        held, free = split.held.copy(), np.ones(len(names), np.bool_)
        for pattern, device in rules:
            try:
                matches = re.compile(pattern).search
            except (re.error, OverflowError) as e:
                raise ConfigError(
                    f"--override-tensor: {pattern!r:.60} is not a regular expression: {e}", "correct the pattern"
                ) from None
            own = np.asarray([matches(name) is not None for name in names])
            if not own.any() and not any(map(matches, every)) and EXPERTS not in pattern:
                self.line.notes.append(f"--override-tensor: no tensor matches {pattern!r:.60}")
            held[own & free] = device
            free &= ~own
        return held


class _Vllm:
    """The split of a command line of vLLM."""

    def __init__(self, line: Line, strategies: Strategies) -> None:
        self.line, self.strategies, self.steps = line, strategies, strategies.steps

    def split(self) -> Split:
        line, q, layers = self.line, self.steps.question, self.steps.layout.layers
        if (line.number("--tensor-parallel-size") or 1) > 1:
            raise ConfigError(
                "--tensor-parallel-size divides tensors, but placekit places whole tensors",
                "use --pipeline-parallel-size",
            )
        numbers = device_numbers(self.steps.decode.problem)
        gpus = _visible(line, "CUDA_VISIBLE_DEVICES", sorted(q.gpus, key=lambda d: numbers[d]))
        stages = line.number("--pipeline-parallel-size") or 1
        if len(set(q.cluster.launchers.host.tolist())) > 1:
            line.notes.append(
                "stages are assumed to use the GPUs in the machine's order; Ray may order boxes differently"
            )
        if not 0 < stages <= len(gpus):
            raise ConfigError(
                f"--pipeline-parallel-size {stages} needs {stages} GPUs, but there are {len(gpus)}", "use fewer stages"
            )
        regular = Regular.plain(gpus[:stages], self._counts(stages, layers), len(self.strategies.regulars.targets))
        split = self.strategies.regulars.split(regular)
        limit = (line.number("--cpu-offload-gb", float) or 0) * 2**30
        return self._offloaded(split, limit) if limit > 0 else split

    def _counts(self, stages: int, layers: int) -> list[int]:
        name = "VLLM_PP_LAYER_PARTITION"
        if (text := self.line.variables.get(name)) is None:
            return stage_layers(layers, stages)
        counts = [int(number(name, x)) for x in text.split(",")]
        if len(counts) != stages or sum(counts) != layers or min(counts) < 0:
            raise ConfigError(
                f"{name}={text} is {len(counts)} stages of {sum(counts)} layers; there are {stages} stages, and the model has"
                f" {layers} layers", "give the number of layers of each stage; they add up to the layers of the model"
            )  # fmt: skip
        return counts

    def _offloaded(self, split: Split, limit: float) -> Split:
        """The first tensors of each stage in host memory, up to `limit` bytes."""
        layout, cpu = self.steps.layout, self.steps.question.cpu
        if cpu is None:
            raise ConfigError(
                "--cpu-offload-gb needs host memory, but the machine is described without it", "add '+ 64GB ddr5-5600'"
            )
        held, taken = split.held.copy(), dict.fromkeys(split.home.tolist(), 0.0)
        inside = (layout.layer >= 0) & (layout.layer < layout.layers)
        for i in np.argsort(layout.layer, kind="stable").tolist():
            home = int(split.home[layout.layer[i]])
            if inside[i] and taken[home] < limit:
                held[i], taken[home] = cpu, taken[home] + layout.bytes[i]
        return Split(split.home, held, True)
