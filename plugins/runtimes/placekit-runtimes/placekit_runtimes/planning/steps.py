"""Seconds and bytes of splits: a token of all users, a prompt of one, and the memory of each device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_models.checkpoint.buffers import CELLS, Buffers, buffers
from placekit_models.checkpoint.gguf_header import bits_of
from placekit_models.decoder import Use, program

from placekit_core import (
    Cluster,
    DeviceKind,
    ErrorBand,
    Graph,
    Launching,
    Placements,
    Problem,
    Registry,
    Session,
    shortened,
)
from placekit_core.contracts.errors import GraphError, ImporterError
from placekit_runtimes.planning.question import Question
from placekit_runtimes.planning.split import Layout, Operations, Split

OFFLOADED = 32
"""llama.cpp multiplies weights in host memory on the GPU if a micro-batch has so many tokens, and copies them there each time."""
SAMPLE = 4
"""Micro-batches of a prompt that a search simulates, from its middle; the table simulates all."""


@dataclass(frozen=True, eq=False)
class Memory:
    """Bytes on each of the D devices.

    Attributes:
        weights, cache, compute: [D] of tensors, of the cache at the full context, and of the runtime's buffers.
        free: [D] what is left of the usable memory; negative where it lacks.
    """

    weights: NDArray[np.float64]
    cache: NDArray[np.float64]
    compute: NDArray[np.float64]
    free: NDArray[np.float64]

    @property
    def used(self) -> NDArray[np.float64]:
        """[D] all that is needed."""
        return self.weights + self.cache + self.compute

    @property
    def lacking(self) -> float:
        """Bytes that lack on all devices together; 0 if everything fits."""
        return float(-np.minimum(self.free, 0).sum())


class _Step:
    """A step of the model as a graph, on the machine without limits of memory: those are checked with runtimes' margins."""

    def __init__(self, name: str, question: Question, use: Use, registry: Registry, launching: Launching) -> None:
        try:
            self.graph: Graph = program(name, question.checkpoint, use)
        except (GraphError, OverflowError) as e:
            raise ImporterError(f"{name} has sizes that no graph can hold: {shortened(str(e))}") from None
        self.layout = Layout.of(self.graph)
        self.operations = Operations(self.layout, self.graph)
        self.problem = Problem.of(self.graph, unlimited(question.cluster, launching))
        self.cpu = question.cpu
        helps = use.mode == "prompt" and min(use.ubatch, use.tokens) >= OFFLOADED and question.gpus
        self.helper = question.gpus[0] if helps else None
        self.registry = registry
        self.sessions: dict[bool, Session] = {}

    def seconds(self, splits: Sequence[Split]) -> NDArray[np.float64]:
        """[b] simulated seconds of the step."""
        found = np.zeros(len(splits))
        device = self.operations.devices(splits, self.cpu, self.helper)
        copies = np.asarray([s.streams or (self.helper is not None and self.cpu in s.held) for s in splits])
        for streams in (False, True):
            rows = np.flatnonzero(copies == streams)
            if len(rows):
                batch = Placements.of(device[rows], np.tile(self.operations.priority, (len(rows), 1)))
                found[rows] = self._session(streams).evaluate(batch).value_s
        return found

    def _session(self, streams: bool) -> Session:
        if streams not in self.sessions:
            options = {"prefetch": 0 if streams else None}
            self.sessions[streams] = self.registry.build("backend", "simulator", options).open(self.problem)
        return self.sessions[streams]


class Steps:
    """The steps of a question, built when they are needed."""

    def __init__(self, question: Question, registry: Registry, launching: Launching = "graph") -> None:
        self.question, self.registry, self.launching = question, registry, launching
        self.prompts: dict[tuple[int, bool, bool], _Step] = {}

    @cached_property
    def decode(self) -> _Step:
        """One token of each user, at the depth of the average token of an answer."""
        q, o = self.question, self.question.options
        use = Use("decode", q.depth, o.users, cache_bytes=self._cache_bytes, room=o.context, copied=True)
        return self._step("decode", use)

    @property
    def layout(self) -> Layout:
        """The tensors."""
        return self.decode.layout

    def _step(self, name: str, use: Use) -> _Step:
        return _Step(f"{self.question.name}.{name}", self.question, use, self.registry, self.launching)

    @property
    def _cache_bytes(self) -> float:
        cache = self.question.options.cache
        return 1.0 if cache == "fp8" else bits_of(cache.upper()) / 8

    def prompt(self, gpus: int, overlap: bool, sample: bool) -> tuple[_Step, float]:
        """The prompt of one user on so many GPUs, and what its seconds are multiplied by.

        `overlap`: GPUs work on several micro-batches at once; `sample`: a part of the prompt.
        """
        o = self.question.options
        tokens = min(o.prompt, SAMPLE * o.ubatch) if sample else o.prompt
        if (key := (gpus, overlap, tokens < o.prompt)) not in self.prompts:
            past, layers = (o.prompt - tokens) // 2, self.question.checkpoint.layers
            use = Use(
                "prompt", past, 1, tokens, o.ubatch, cache_bytes=self._cache_bytes, overlap=overlap,
                stage=layers // gpus if gpus > 1 else 0, copied=True,
            )  # fmt: skip
            self.prompts[key] = self._step("prompt", use)
        return self.prompts[key], o.prompt / tokens

    def seconds(self, splits: Sequence[Split], sample: bool = False) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """[b] seconds of a token of all users, and of a prompt of one."""
        prompt_s = np.zeros(len(splits))
        alike: dict[tuple[int, bool], list[int]] = {}
        for i, split in enumerate(splits):
            gpus = len({*split.home.tolist()} & {*self.question.gpus})
            overlap = not self.layout.routed.any() and (split.streams or self._pipelined(split))
            alike.setdefault((gpus, overlap), []).append(i)
        for (gpus, overlap), rows in alike.items():
            step, times = self.prompt(gpus, overlap, sample)
            prompt_s[rows] = times * step.seconds([splits[i] for i in rows])
        return self.decode.seconds(splits), prompt_s

    def _pipelined(self, split: Split) -> bool:
        """Whether llama.cpp computes several micro-batches at once: several GPUs have all layers, and no tensor is apart."""
        layout, homes = self.layout, {*split.home.tolist()}
        apart = (split.held != np.append(split.home, split.held[0])[layout.layer]) & (layout.layer >= 0)
        return len(homes) > 1 and self.question.cpu not in homes and not apart.any()

    def memory(self, split: Split, context: int | None = None) -> Memory:
        """What a split needs on each device, for the context of the question or another one."""
        q, layout, size = self.question, self.layout, self.question.cluster.size
        held = layout.bytes.copy()
        if self._tied and split.home[-1] == split.held[layout.index["token_embd"]]:  # one matrix for both
            held[layout.index["output"]] = 0.0
        needs = self._buffers(split, context or q.options.context)
        weights = sums(split.held, held, size)
        cache = sums(split.home[: layout.layers], np.asarray(needs.cache, np.float64), size)
        compute = np.zeros(size)
        homes = list(dict.fromkeys(split.home.tolist()))
        for d in {*homes, *split.held[layout.layer >= 0].tolist()} & {*q.gpus}:
            ends = d == split.home[-1]
            compute[d] = (
                (needs.only if ends else needs.first) if d == homes[0] else needs.output if ends else needs.layers
            )
        if q.cpu is not None:
            compute[q.cpu] = needs.cpu if q.cpu in homes else needs.host
        free = q.cluster.memory_bytes - weights - cache - compute
        return Memory(weights, cache, compute, free)

    def _buffers(self, split: Split, context: int) -> Buffers:
        """llama.cpp's cache and buffers; those of other runtimes are taken to be like them."""
        layout, cpu = self.layout, self.question.cpu
        on_cpu = layout.expert & (split.held == cpu) & (split.home[layout.layer] != cpu)
        copies = 4 if self._pipelined(split) else 1
        return self._needs(context, int(layout.bytes[on_cpu].max(initial=0)), copies)

    @cache  # noqa: B019 - as long as the plan
    def _needs(self, context: int, streamed: int, copies: int) -> Buffers:
        o = self.question.options
        return buffers(
            self.question.checkpoint, context=context, users=o.users, ubatch=o.ubatch, cache_bits=8 * self._cache_bytes,
            streamed=streamed, copies=copies,
        )  # fmt: skip

    @property
    def cache_bytes(self) -> int:
        """Bytes of all caches and states at the full context."""
        return sum(self._needs(self.question.options.context, 0, 1).cache)

    def largest_context(self, split: Split) -> int:
        """The most tokens of context for which a split has room, for each user; a multiple of 256."""
        low, high = 0, 2**14
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (low, middle - 1) if self.memory(split, middle * CELLS).lacking else (middle, high)
        return low * CELLS

    def decode_bound_s(self) -> float | None:
        """A lower bound on the seconds of a token, over all placements that fit."""
        q = self.question
        copy = max(t.bytes for t in q.checkpoint.tensors if t.name == "token_embd.weight") if self._tied else 0
        # a tied matrix is counted twice in the graph, and devices are larger by it, so that the bound stays a bound
        cluster = _with_memory(q.cluster, self.launching, lambda kind: {"memory_bytes": kind.memory_bytes + 2 * copy})
        backend = self.registry.build("backend", "simulator", {})
        session: Session = backend.open(Problem.of(self.decode.graph, cluster))
        return session.lower_bound()

    @property
    def _tied(self) -> bool:
        return all(t.name != "output.weight" for t in self.question.checkpoint.tensors)

    def error_band(self, split: Split) -> ErrorBand | None:
        """How far speeds of tokens like these are from published ones."""
        return self.registry.error_band(self.decode.problem, sorted(split.used(self.layout)))


def sums(index: NDArray[np.int64], values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """[size] sums of `values` by their `index`."""
    return np.bincount(index, values, size).astype(np.float64)


def unlimited(cluster: Cluster, launching: Launching) -> Cluster:
    """The machine with more memory on each device than anybody needs, and this way of launching."""
    return _with_memory(cluster, launching, lambda _: {"memory_bytes": 2**50, "reserve_bytes": 0, "headroom": 0.0})


def _with_memory(cluster: Cluster, launching: Launching, change: Callable[[DeviceKind], dict[str, Any]]) -> Cluster:
    kinds = {name: kind.model_copy(update=change(kind)) for name, kind in cluster.kinds.items()}
    changed = {"kinds": kinds, "launching": launching}
    return Cluster(**{n: getattr(cluster, n) for n in Cluster.model_fields} | changed)
