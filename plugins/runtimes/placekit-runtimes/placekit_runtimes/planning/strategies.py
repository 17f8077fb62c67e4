"""The rows of a plan: the splits that people would try, and the best one for each runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from placekit_core import Launching, PlacekitError, PlacementError, Problem, Registry, units
from placekit_runtimes.accelerate import RUNTIME as ACCELERATE
from placekit_runtimes.accelerate.device_map import DeviceMap
from placekit_runtimes.exo import ExoMemory
from placekit_runtimes.planning.fit import fitted
from placekit_runtimes.planning.question import Question, RuntimeName
from placekit_runtimes.planning.regular import Regular, Regulars, Space
from placekit_runtimes.planning.split import Split
from placekit_runtimes.planning.steps import Memory, Steps
from placekit_runtimes.vllm import stage_layers


@dataclass(frozen=True)
class Runner:
    """A runtime, as plans know it.

    Attributes:
        title: its name, to show.
        space: the splits that it can express.
        launching: how it launches kernels.
        ubatch: most tokens of a prompt that it computes at once by default; None: all.
    """

    title: str
    space: Space
    launching: Launching
    ubatch: int | None = 512


RUNNERS: dict[RuntimeName, Runner] = {
    "llamacpp": Runner("llama.cpp", Space(on_cpu=True, experts=True, embedding_on_cpu=True), "graph"),
    "vllm": Runner("vLLM", Space(streams=True, alike=True), "graph", 2048),  # vLLM: 8,192 from 70 GiB of memory
    "accelerate": Runner("accelerate", Space(streams=True), "eager", None),
    "exo": Runner("exo", Space(), "graph"),
}


@dataclass(frozen=True, eq=False)
class Row:
    """A strategy and its costs.

    Attributes:
        runtime: which runtime runs it.
        name: the strategy, in words.
        split: its devices; None if the runtime refuses the model, for the reason in `error`.
        decode_s, prompt_s: seconds of a token of all users, and of a prompt of one; nan if it does not fit.
        memory: the memory that it needs.
        error: why it does not work.
        best: whether it is recommended: the best that was found for its runtime, or one with fewer parts that is hardly slower.
        map: accelerate's device map.
    """

    runtime: RuntimeName
    name: str
    split: Split | None
    decode_s: float = np.nan
    prompt_s: float = np.nan
    memory: Memory | None = None
    error: str = ""
    best: bool = False
    map: DeviceMap | None = None

    @property
    def works(self) -> bool:
        """Whether it runs and fits."""
        return not self.error

    def __repr__(self) -> str:
        result = self.error or f"{self.decode_s:.3g} s per token, {self.prompt_s:.3g} s per prompt"
        return f"<Row {self.name}: {result}>"


class Strategies:
    """The strategies of a question for one runtime."""

    def __init__(self, question: Question, runtime: RuntimeName, registry: Registry) -> None:
        self.question, self.runtime, self.runner = question, runtime, RUNNERS[runtime]
        self.steps = Steps(question, registry, self.runner.launching, self.runner.space.embedding_on_cpu)
        self.regulars = Regulars(self.steps, self.runner.space)

    def rows(self) -> Iterator[Row]:
        """The best split, then the splits that people would try."""
        title = self.runner.title
        best = self.regulars.best()
        if best is not None:
            yield self.row(f"{title}, recommended", best, best=True)
        for name, split in self._usual():
            if isinstance(split, str):
                yield Row(self.runtime, name, None, error=split)
            elif best is None or split.key != best.key:
                yield self.row(name, split)

    def row(self, name: str, split: Split, best: bool = False) -> Row:
        """The row of a split; its times are simulated if it fits."""
        memory = self.steps.memory(split)
        if memory.lacking:
            return Row(
                self.runtime,
                name,
                split,
                memory=memory,
                error=f"does not fit, {units.mebibytes(memory.lacking)} missing",
            )
        if self.runtime == "accelerate":
            return self._by_accelerate(name, split, memory, best)
        decode_s, prompt_s = self.steps.seconds([split])
        return Row(self.runtime, name, split, float(decode_s[0]), float(prompt_s[0]), memory, best=best)

    def _usual(self) -> Iterator[tuple[str, Split | str]]:
        """Names with splits, or with the reason why there is no split."""
        q, names = self.question, self.question.cluster.device_names
        kinds = q.cluster.device_kind
        alone = [(d, self._alone(d)) for d in {kinds[d]: d for d in reversed(q.gpus)}.values()]  # one of each kind
        fits = [(d, s) for d, s in alone if not self.steps.memory(s).lacking] or sorted(
            alone, key=lambda x: self.steps.memory(x[1]).lacking
        )[:1]
        for d, split in fits:
            yield f"{self.runner.title}, {names[d]} alone", split
        own: dict[RuntimeName, Callable[[], Split]] = {
            "llamacpp": self._llamacpp, "vllm": self._vllm, "accelerate": self._accelerate, "exo": self._exo,
        }  # fmt: skip
        if len(q.gpus) > 1 or (q.cpu is not None and q.gpus):
            try:
                yield f"{self.runner.title}'s own split", own[self.runtime]()
            except PlacekitError as e:
                yield f"{self.runner.title}'s own split", e.message.partition(":")[0]
        if self.runtime == "llamacpp" and q.cpu is not None:
            if self.regulars.targets and q.gpus:
                yield f"experts in host memory, rest on {names[q.gpus[0]]}", self._experts_in_memory(q.gpus[0])
            yield "all in host memory", self._regular([q.cpu], [self.steps.layout.layers])

    def _regular(self, chain: list[int], counts: list[int], away: list[int] | None = None) -> Split:
        """Layers on devices; the given number of layers of each device has its experts on the CPU."""
        plain = Regular.plain(chain, counts, len(self.regulars.targets))
        if away is not None and self.regulars.targets:
            rest = (0,) * (len(self.regulars.targets) - 1)
            plain = Regular(plain.chain, plain.counts, tuple((n, *rest) for n in away), plain.streamed)
        return self.regulars.split(plain)

    def _alone(self, device: int) -> Split:
        return self._regular([device], [self.steps.layout.layers])

    def _experts_in_memory(self, gpu: int) -> Split:
        layout = self.steps.layout
        return self._regular([gpu], [layout.layers], [int(layout.routed.sum())])

    def _llamacpp(self) -> Split:
        return fitted(self.regulars)

    def _vllm(self) -> Split:
        gpus = sorted(self.question.gpus)
        return self._regular(gpus, stage_layers(self.steps.layout.layers, len(gpus)))

    def _accelerate(self) -> Split:
        placement, cost = ACCELERATE.own_cost(self._problem())
        if placement is None:
            raise PlacementError(cost.error)
        return self._split_of(placement.device)

    def _exo(self) -> Split:
        return self._split_of(ExoMemory().rule(self._problem(), lambda _: None).device)

    def _split_of(self, device: np.ndarray) -> Split:
        step = self.steps.decode
        return Split.of(step.layout, step.graph, step.problem.expand(device))

    def _problem(self) -> Problem:
        """The decode step with the machine's memory."""
        return Problem.of(self.steps.decode.graph, self.question.cluster)

    def _by_accelerate(self, name: str, split: Split, memory: Memory, best: bool) -> Row:
        """One host thread runs the modules and copies between them."""
        seconds, made = [], None
        for step in (self.steps.decode, self.steps.prompt(1, True, False)[0]):
            placement = step.problem.placement(step.operations.devices([split])[0].astype(np.int16))
            found = ACCELERATE.write(step.problem, placement)
            made = made or found
            cost = ACCELERATE.cost(step.problem, found)
            if cost.value_s is None:
                return Row(self.runtime, name, split, memory=memory, error=cost.error)
            seconds.append(cost.value_s)
        decode_s, prompt_s = seconds
        return Row(self.runtime, name, split, decode_s, prompt_s, memory, best=best, map=made)
