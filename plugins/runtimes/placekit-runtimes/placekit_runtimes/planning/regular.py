"""Searches among regular splits: consecutive layers on each device, and the experts of the first of these layers elsewhere.

Such splits can be written as a few arguments of a runtime. A search starts from what people would try, and shifts layers and
experts between devices as long as the answer comes sooner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from placekit_runtimes.planning.split import Split
from placekit_runtimes.planning.steps import Steps

SHIFTS = (16, 8, 4, 2, 1)
"""Layers that a move shifts at once."""
SIMPLER = 0.05
"""A split with fewer parts is preferred if its answer takes at most this much longer, less than the error of predictions."""
LONGEST = 3
"""With up to this many GPUs, all subsets are tried, and experts may be on any GPU. With more, each GPU alone is tried, and the
fastest ones that have room together, or all; experts are on the CPU only."""


@dataclass(frozen=True)
class Space:
    """The splits that a runtime can express.

    Attributes:
        on_cpu: the CPU may run the first layers.
        experts: routed experts may be on another device than their layer.
        streams: the tensors of a GPU's first layers may be in host memory, from which they are copied in every step.
        alike: the same number of such layers for all GPUs: vLLM's `--cpu-offload-gb` is one number.
        embedding_on_cpu: the embedding is in host memory.
    """

    on_cpu: bool = False
    experts: bool = False
    streams: bool = False
    alike: bool = False
    embedding_on_cpu: bool = False


@dataclass(frozen=True)
class Regular:
    """A regular split.

    Attributes:
        chain: devices in the order of the layers.
        counts: layers of each device of the chain.
        away: for each device of the chain, by target, the number of its first layers whose experts are on that target.
        streamed: for each device of the chain, how many of its first layers have their tensors in host memory.
    """

    chain: tuple[int, ...]
    counts: tuple[int, ...]
    away: tuple[tuple[int, ...], ...]
    streamed: tuple[int, ...]

    @classmethod
    def plain(cls, chain: Sequence[int], counts: Sequence[int], targets: int) -> Regular:
        """Layers alone."""
        return cls(tuple(chain), tuple(counts), ((0,) * targets,) * len(chain), (0,) * len(chain))


class Regulars:
    """The regular splits of a question that a runtime can express, and the search among them."""

    def __init__(self, steps: Steps, space: Space) -> None:
        self.steps, self.space, self.layout = steps, space, steps.layout
        q = steps.question
        self.cpu, self.gpus = q.cpu, q.gpus
        found = [*([] if q.cpu is None else [q.cpu]), *(q.gpus if len(q.gpus) <= LONGEST else ())]
        self.targets = found if space.experts and self.layout.routed.any() else []

    def split(self, r: Regular) -> Split:
        """The split with its devices."""
        layout, cpu = self.layout, self.cpu
        home = np.repeat(r.chain, r.counts)
        last = next((d for d, n in zip(r.chain[::-1], r.counts[::-1], strict=True) if n), r.chain[-1])
        first = int(home[0]) if len(home) else last
        embedding = cpu if self.space.embedding_on_cpu and cpu is not None else first
        experts, begin = home.copy(), 0
        for i, count in enumerate(r.counts):
            own = begin + np.flatnonzero(layout.routed[begin : begin + count])
            for target, number in zip(self.targets, r.away[i], strict=True):
                experts[own[:number]] = target
                own = own[number:]
            begin += count
        tower = next((d for d in [*home.tolist(), last] if d in self.gpus), first)
        found = layout.split([*home.tolist(), last], embedding, experts.tolist(), tower)
        if not any(r.streamed):
            return found
        assert cpu is not None
        ends = np.cumsum(r.counts)
        moved = np.concatenate(
            [np.arange(e - c, e - c + s) for e, c, s in zip(ends, r.counts, r.streamed, strict=True)]
        )
        return Split(found.home, np.where(np.isin(layout.layer, moved), cpu, found.held), True)

    def chains(self) -> Iterator[tuple[int, ...]]:
        """Orders of devices to try. The last device has the output."""
        cpu = (self.cpu,) if self.space.on_cpu and self.cpu is not None else ()
        if cpu and not self.gpus:
            yield cpu
        seen = set()
        for own in self._sets():
            for order in (own, own[::-1]):
                chain = (*cpu, *order)
                if (key := self._alike(chain)) not in seen:
                    seen.add(key)
                    yield chain

    def _sets(self) -> Iterator[tuple[int, ...]]:
        """GPUs to use together."""
        gpus, n = self.gpus, len(self.gpus)
        if n <= LONGEST:
            yield from (own for k in range(1, n + 1) for own in combinations(gpus, k))
            return
        yield from ((d,) for d in gpus)
        room, needed = self.steps.question.cluster.memory_bytes, self.layout.layers * self._layer_bytes()
        yield from (gpus[:k] for k in range(2, n + 1) if k == n or room[list(gpus[:k])].sum() >= needed)

    def _alike(self, chain: tuple[int, ...]) -> tuple[object, ...]:
        """Equal for chains of equal devices with equal links."""
        cluster, pairs = self.steps.question.cluster, np.ix_(chain, chain)
        links = cluster.routes.latency_s[pairs].tobytes(), cluster.routes.s_per_byte[pairs].tobytes()
        return (*(cluster.device_kind[d] for d in chain), *links)

    def starts(self, chain: Sequence[int]) -> Iterator[Regular]:
        """The splits that people would try first on these devices."""
        layers, targets = self.layout.layers, len(self.targets)
        gpus = [i for i, d in enumerate(chain) if d != self.cpu] or [0]
        room = self.steps.question.cluster.memory_bytes[list(chain)]
        size = self._layer_bytes()
        yield Regular.plain(chain, self._filled(gpus, len(chain), room, size), targets)
        even = np.full(len(gpus), layers // len(gpus))
        even[: layers % len(gpus)] += 1
        counts = np.zeros(len(chain), int)
        counts[gpus] = even
        yield Regular.plain(chain, counts.tolist(), targets)
        if not self.targets:
            return
        fewest = Regular.plain(chain, np.where(np.arange(len(chain)) == gpus[0], layers, 0).tolist(), targets)
        for first in range(len(self.targets)):
            away = [[0] * targets for _ in chain]
            away[gpus[0]][first] = int(self.layout.routed.sum())
            yield replace(fewest, away=tuple(map(tuple, away)))

    def _layer_bytes(self) -> float:
        """Bytes of the average layer with its cache."""
        inside = (self.layout.layer >= 0) & (self.layout.layer < self.layout.layers)
        return float(self.layout.bytes[inside].sum() + self.steps.cache_bytes) / self.layout.layers

    def _filled(self, gpus: Sequence[int], size: int, room: np.ndarray, layer: float) -> list[int]:
        """Layers of each device if the GPUs are filled from the last, and the first device gets the rest."""
        counts, rest = [0] * size, self.layout.layers
        for i in reversed(gpus):
            counts[i] = min(int(room[i] // layer), rest)
            rest -= counts[i]
        counts[0] += rest
        return counts

    def moves(self, r: Regular, k: int) -> Iterator[Regular]:
        """Regular splits near another one, with `k` layers elsewhere."""
        n = len(r.chain)
        for i in range(n):
            for j in range(n):
                if i != j and r.counts[i] >= k:
                    yield from self._shifted(r, i, j, k)
            for change in (k, -k):
                for t in range(len(self.targets)):
                    yield from self._with_away(r, i, t, change)
                yield from self._with_streamed(r, i, change)

    def _with_streamed(self, r: Regular, i: int, change: int) -> Iterator[Regular]:
        """More or fewer layers of device i, or of all, whose tensors are in the host memory of their box."""
        own = r.chain if self.space.alike else r.chain[i : i + 1]
        host = self.steps.question.cluster.launchers.host
        if not self.space.streams or self.cpu is None or any(d == self.cpu or host[d] != host[self.cpu] for d in own):
            return
        if self.space.alike:
            yield replace(r, streamed=_level(max(r.streamed) + change, r.counts))
        elif 0 <= r.streamed[i] + change <= r.counts[i]:
            yield replace(r, streamed=_changed(r.streamed, i, change))

    def _shifted(self, r: Regular, i: int, j: int, k: int) -> Iterator[Regular]:
        """`k` layers from device i of the chain to device j; also with their experts staying where they are."""
        counts = _changed(_changed(r.counts, i, -k), j, k)
        capped = tuple(map(min, r.streamed, counts))
        moved = replace(
            r,
            counts=counts,
            streamed=_level(max(capped), counts) if self.space.alike else capped,
            away=tuple(self._capped(a, c) for a, c in zip(r.away, counts, strict=True)),
        )
        yield moved
        for t, target in enumerate(self.targets):
            if target == r.chain[i]:
                yield from self._with_away(moved, j, t, k)
            elif r.away[i][t] >= k:
                yield from (m2 for m1 in self._with_away(moved, i, t, -k) for m2 in self._with_away(m1, j, t, k))

    def _with_away(self, r: Regular, i: int, t: int, change: int) -> Iterator[Regular]:
        if self.targets[t] == r.chain[i]:
            return
        row = _changed(r.away[i], t, change)
        if row[t] >= 0 and sum(row) <= r.counts[i]:
            yield replace(r, away=(*r.away[:i], row, *r.away[i + 1 :]))

    @staticmethod
    def _capped(row: tuple[int, ...], count: int) -> tuple[int, ...]:
        """Numbers of layers, reduced from the last until they are at most `count` together."""
        found, left = [], count
        for number in row:
            found.append(min(number, left))
            left -= found[-1]
        return tuple(found)

    def best(self, among: Iterable[tuple[int, ...]] | None = None) -> Split | None:
        """The best split that is found on these chains, by default on all; None if none fits."""
        ends = [self._climbed(start) for chain in among or self.chains() for start in self.starts(chain)]
        fit = [(seconds, r) for lacking, seconds, r in ends if lacking == 0]
        if not fit:
            return None
        splits = [self.split(r) for _, r in fit] + [self._simplified(*min(fit, key=lambda x: x[0]))]
        distinct = list({s.key: s for s in splits}.values())
        answer_s = self.steps.question.answer_s(*self.steps.seconds(distinct))
        near = np.flatnonzero(answer_s <= answer_s.min() * (1 + SIMPLER)).tolist()
        return distinct[min(near, key=lambda i: (distinct[i].parts(self.layout), answer_s[i]))]

    def _climbed(self, r: Regular) -> tuple[float, float, Regular]:
        """Missing bytes, seconds of an answer, and the split where no move is better."""
        (best,) = self._rated([r], np.inf)
        while True:
            for k in SHIFTS:
                near = list(dict.fromkeys(self.moves(best[2], k)))
                better = min(self._rated(near, best[0]), key=lambda x: x[:2], default=best)
                if better[0] < best[0] or (better[0] == best[0] and better[1] < best[1] * (1 - 1e-6)):
                    best = better
                    break
            else:
                return best

    def _simplified(self, seconds: float, r: Regular) -> Split:
        """The split with the fewest parts that moves reach while the answer takes at most `SIMPLER` longer."""
        best = self.split(r).parts(self.layout), seconds, r
        while True:
            rated = self._rated(list(dict.fromkeys(m for k in SHIFTS for m in self.moves(best[2], k))), 0.0)
            near = [(self.split(m).parts(self.layout), s, m) for _, s, m in rated if s <= seconds * (1 + SIMPLER)]
            found = min(near, key=lambda x: x[:2], default=best)
            if found[0] >= best[0]:
                return self.split(best[2])
            best = found

    def _rated(self, found: list[Regular], limit: float) -> list[tuple[float, float, Regular]]:
        """The splits that lack at most `limit` bytes; seconds are simulated for the splits that fit."""
        splits = [self.split(r) for r in found]
        lacking = [self.steps.memory(s).lacking for s in splits]
        fit = [i for i, x in enumerate(lacking) if x == 0]
        seconds = np.zeros(len(found))
        if fit:
            seconds[fit] = self.steps.question.answer_s(*self.steps.seconds([splits[i] for i in fit], sample=True))
        return [(lacking[i], float(seconds[i]), r) for i, r in enumerate(found) if lacking[i] <= limit]


def _level(number: int, counts: Sequence[int]) -> tuple[int, ...]:
    """This number for each device, at most its `counts`."""
    return tuple(min(max(number, 0), count) for count in counts)


def _changed(row: tuple[int, ...], i: int, change: int) -> tuple[int, ...]:
    return (*row[:i], row[i] + change, *row[i + 1 :])
