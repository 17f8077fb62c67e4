"""Seconds and bytes of splits: a token of all users, a prompt of one, and the memory of each device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_models.checkpoint.buffers import CELLS, OFFLOADED, Buffers, Part
from placekit_models.checkpoint.gguf_header import bits_of
from placekit_models.decoder import Use, program

from placekit_core import (
    Cluster,
    DeviceKind,
    ErrorBand,
    Graph,
    Grouping,
    Launching,
    Placements,
    Problem,
    Registry,
    Session,
    shortened,
)
from placekit_core.contracts.errors import GraphError, ImporterError
from placekit_runtimes.planning.drafts import drafting, tokens_per_check
from placekit_runtimes.planning.question import Question
from placekit_runtimes.planning.split import TOWER, Layout, Operations, Split

SAMPLE = 4
"""Micro-batches of a prompt that a search simulates, from its middle; the table simulates all."""


@dataclass(frozen=True, eq=False)
class Memory:
    """Bytes on each of the D devices.

    Attributes:
        weights, cache, compute: [D] bytes of tensors, of the cache at the full context, and of the runtime's buffers.
        free: [D] usable memory that is left; negative where memory is missing.
        draft: the device of the draft model; -1 without one.
    """

    weights: NDArray[np.float64]
    cache: NDArray[np.float64]
    compute: NDArray[np.float64]
    free: NDArray[np.float64]
    draft: int = -1

    @property
    def used(self) -> NDArray[np.float64]:
        """[D] bytes that are needed in all."""
        return self.weights + self.cache + self.compute

    @property
    def lacking(self) -> float:
        """Missing bytes on all devices together; 0 if everything fits."""
        return float(-np.minimum(self.free, 0).sum())


class _Step:
    """A step of the model as a graph, on the machine without limits of memory: `Steps.memory` checks them with margins."""

    def __init__(self, name: str, question: Question, use: Use, registry: Registry, launching: Launching) -> None:
        try:
            self.graph: Graph = program(name, question.checkpoint, use)
        except (GraphError, OverflowError) as e:
            raise ImporterError(f"{name} has sizes that no graph can hold: {shortened(str(e))}") from None
        self.layout = Layout.of(self.graph)
        self.operations = Operations(self.layout, self.graph)
        self.problem = Problem.of(self.graph, unlimited(question.cluster, launching))
        helps = use.mode == "prompt" and min(use.ubatch, use.tokens) >= OFFLOADED and question.gpus
        self.question, self.helps = question, bool(helps)
        self.registry = registry
        self.sessions: dict[bool, Session] = {}

    def seconds(self, splits: Sequence[Split]) -> NDArray[np.float64]:
        """[b] simulated seconds of the step."""
        found = np.zeros(len(splits))
        first = [first_gpu(s, self.layout, self.question) for s in splits] if self.helps else []
        device = self.operations.devices(splits, self.question.cpu, first)
        copies = np.asarray([s.streams or (self.helps and self.question.cpu in s.held) for s in splits])
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
    """The steps of a question, built when they are needed; `on_host`: the embedding is in host memory, even if the machine is
    described without it."""

    def __init__(self, question: Question, registry: Registry, launching: Launching, on_host: bool) -> None:
        self.question, self.registry, self.launching, self.on_host = question, registry, launching, on_host
        self.prompts: dict[tuple[int, bool, bool], _Step] = {}
        self._alone: dict[tuple[int, int], Memory] = {}
        self._found: dict[tuple[int, int], Buffers] = {}

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
        """The prompt of one user on `gpus` GPUs, and a factor for its seconds.

        `overlap`: GPUs work on several micro-batches at once; `sample`: a part of the prompt.
        """
        o = self.question.options
        tokens = min(o.prompt, SAMPLE * o.ubatch) if sample else o.prompt
        if (key := (gpus, overlap, tokens < o.prompt)) not in self.prompts:
            past, layers = (o.prompt - tokens) // 2, self.question.checkpoint.layers
            use = Use(
                "prompt", past, 1, tokens, o.ubatch, cache_bytes=self._cache_bytes, overlap=overlap,
                stage=layers // gpus if gpus > 1 else 0, copied=True,
                images=o.images if tokens == o.prompt else 0,  # a part of a prompt has none
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
        if self.draft is None:
            return self.decode.seconds(splits), prompt_s
        o, own = self.question.options, [self.draft.alone(self.memory(split).draft) for split in splits]
        token_s, drafted_prompt_s = self.draft.seconds(own, sample)
        round_s = o.draft_tokens * token_s + self.check.seconds(splits)
        return round_s / tokens_per_check(o.accepted, o.draft_tokens), prompt_s + drafted_prompt_s

    @cached_property
    def draft(self) -> Steps | None:
        """The steps of the draft model; None without one."""
        own = self.question.options.draft
        return Steps(drafting(self.question), self.registry, self.launching, self.on_host) if own else None

    @cached_property
    def check(self) -> _Step:
        """The model checks the drafted tokens of all users, and adds one."""
        q, o = self.question, self.question.options
        n = o.draft_tokens + 1
        use = Use("prompt", q.depth, o.users, n, n, cache_bytes=self._cache_bytes, room=o.context, copied=True)
        return self._step("check", use)

    def alone(self, device: int) -> Split:
        """Everything on one device, the embedding on the CPU."""
        cpu = self.question.cpu
        return self.layout.split([device] * (self.layout.layers + 1), device if cpu is None else cpu)

    def _pipelined(self, split: Split) -> bool:
        """Whether llama.cpp computes several micro-batches at once: several GPUs have all layers, and no tensor is apart."""
        layout, homes = self.layout, {*split.home.tolist()}
        apart = (split.held != np.append(split.home, split.held[0])[layout.layer]) & (layout.layer >= 0)
        return len(homes) > 1 and self.question.cpu not in homes and not apart.any()

    def memory(self, split: Split, context: int | None = None) -> Memory:
        """The memory that a split needs on each device, for the context of the question or another one."""
        q, layout, size = self.question, self.layout, self.question.cluster.size
        held = layout.bytes.copy()
        if self.on_host and q.cpu is None:
            held[layout.layer < 0] = 0.0
        elif self._tied and split.home[-1] == split.held[layout.index["token_embd"]]:  # one matrix for both
            held[layout.index["output"]] = 0.0
        needs = self._buffers(split, context or q.options.context)
        weights = sums(split.held, held, size)
        cache = sums(split.home[: layout.layers], np.asarray(needs.cache, np.float64), size)
        compute = np.zeros(size)
        if q.cpu is not None:
            compute[q.cpu] = needs.host if q.gpus else needs.cpu
        at, experts = self._prompt_devices(split)
        for d in {*at.tolist(), *experts.tolist()} & {*q.gpus}:
            computed = self._parts(split, d, at, experts)
            compute[d] = needs.values(computed, begins=d == at[0], ends=d == split.home[-1])
        if q.checkpoint.tower is not None:
            compute[split.held[layout.layer == TOWER][0]] += q.checkpoint.tower.buffer
        free = q.cluster.memory_bytes - weights - cache - compute
        if self.draft is None:
            return Memory(weights, cache, compute, free)
        # the draft model is on the fastest GPU with room for it, else on the one with the most
        gpus = q.gpus or (0,)
        own = {d: self.draft.memory_alone(d, context or q.options.context) for d in gpus}
        device = next((d for d in gpus if free[d] >= own[d].used[d]), max(gpus, key=lambda d: float(free[d])))
        more = own[device]
        parts = (weights + more.weights, cache + more.cache, compute + more.compute)
        return Memory(*parts, free - more.used, device)

    def memory_alone(self, device: int, context: int) -> Memory:
        """The memory that it needs with everything on one device."""
        if (key := (device, context)) not in self._alone:
            self._alone[key] = self.memory(self.alone(device), context)
        return self._alone[key]

    def _prompt_devices(self, split: Split) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[l] the devices that compute a layer and its routed experts in prompts; for host memory, the first GPU."""
        q, layout = self.question, self.layout
        home, away = split.home[: layout.layers], split.away(layout)
        if split.streams:
            return home, home
        helper = first_gpu(split, layout, q)
        return np.where(home == q.cpu, helper, home), np.where(away == q.cpu, helper, away)

    def _parts(self, split: Split, device: int, at: NDArray[np.int64], experts: NDArray[np.int64]) -> list[int]:
        """[l] the part of each layer that a device computes in prompts, see `Part`."""
        cpu, layout = self.question.cpu, self.layout
        home, away, routed = split.home[: layout.layers], split.away(layout), layout.routed
        result = np.where(self._experts_last & routed, experts, at)
        parts = np.where(at == device, Part.LAYER, 0) | np.where((experts == device) & routed, Part.EXPERTS, 0)
        parts |= np.where((parts & Part.LAYER > 0) & (home == cpu), Part.COPIED, 0)
        parts |= np.where((parts & Part.EXPERTS > 0) & (away == cpu), Part.COPIED_EXPERTS, 0)
        parts |= np.where((at == device) & (np.append(at[0], result[:-1]) != device), Part.ARRIVES, 0)
        return [int(p) for p in parts]

    @cached_property
    def _experts_last(self) -> NDArray[np.bool_]:
        """[l] whether the routed experts are the only network of a layer: then its result is where they are."""
        found = np.ones(self.layout.layers, np.bool_)
        for name, layer in zip(self.layout.names, self.layout.layer.tolist(), strict=True):
            if 0 <= layer < self.layout.layers and "ffn_down" in name and "_exps" not in name:
                found[layer] = False
        return found

    def _buffers(self, split: Split, context: int) -> Buffers:
        """llama.cpp's cache and buffers; other runtimes are assumed to need the same."""
        return self._needs(context, 4 if self._pipelined(split) else 1)

    def _needs(self, context: int, copies: int) -> Buffers:
        if (key := (context, copies)) not in self._found:
            o, bits = self.question.options, 8 * self._cache_bytes
            self._found[key] = Buffers(
                self.question.checkpoint, context, o.users, o.ubatch, cache_bits=bits, copies=copies
            )
        return self._found[key]

    @property
    def cache_bytes(self) -> int:
        """Bytes of all caches and states at the full context."""
        return sum(self._needs(self.question.options.context, 1).cache)

    def largest_context(self, split: Split) -> int:
        """The most tokens of context for which a split has room, for each user; a multiple of 256."""
        low, high = 0, 2**14
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (low, middle - 1) if self.memory(split, middle * CELLS).lacking else (middle, high)
        return low * CELLS

    def decode_bound_s(self) -> float | None:
        """A lower bound on the seconds of a token, over all splits of whole layers and their experts that fit.

        None with a draft model.
        """
        q, step = self.question, self.decode
        if q.options.draft:
            return None
        copy = max(t.bytes for t in q.checkpoint.tensors if t.name == "token_embd.weight") if self._tied else 0
        # a tied matrix is counted twice in the graph, and devices are larger by it, so that the bound stays a bound
        cluster = _with_memory(q.cluster, self.launching, lambda kind: {"memory_bytes": kind.memory_bytes + 2 * copy})
        expert = np.isin(step.operations.tensor, np.flatnonzero(self.layout.expert))
        grouping = Grouping.of(2 * step.operations.layer + expert)
        session: Session = self.registry.build("backend", "simulator", {}).open(
            Problem.of(step.graph, cluster, grouping)
        )
        return session.lower_bound()

    @property
    def _tied(self) -> bool:
        return all(t.name != "output.weight" for t in self.question.checkpoint.tensors)

    def error_bands(self, split: Split) -> list[ErrorBand]:
        """How far speeds of tokens and of prompts like these are from published ones; empty for weights that are copied."""
        used = sorted(split.used(self.layout))
        gpus = len({*split.home.tolist()} & {*self.question.gpus})
        problems = [self.decode.problem, self.prompt(gpus, self._pipelined(split), True)[0].problem]
        found = [self.registry.error_band(problem, used) for problem in problems if not split.streams]
        return [band for band in found if band is not None]


def first_gpu(split: Split, layout: Layout, question: Question) -> int:
    """The GPU that llama.cpp lists first, which computes prompts with weights in host memory."""
    apart = split.held[(layout.layer >= 0) & (split.held != np.append(split.home, 0)[layout.layer])]
    used = [d for d in [*split.home.tolist(), *apart.tolist()] if d in question.gpus]
    return next(iter(used), min(question.gpus, default=-1))


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
