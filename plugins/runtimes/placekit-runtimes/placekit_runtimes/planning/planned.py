"""The result of a plan: its rows, the recommended row, and facts about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from placekit_models.checkpoint.names import named
from placekit_models.checkpoint.sources import find

from placekit_core import ErrorBand, PlacementError, units
from placekit_runtimes.interface import DeviceName
from placekit_runtimes.planning.lines import lines
from placekit_runtimes.planning.question import Question, RuntimeName
from placekit_runtimes.planning.strategies import RUNNERS, Row, Strategies
from placekit_runtimes.planning.words import described

EQUAL = 0.02
"""Answers that differ by less are equally quick; then the runtime that comes first is chosen."""
SMALLER = ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k")
"""Formats that are tried for the hint if nothing fits, the best first."""


@dataclass(frozen=True, eq=False)
class Planned:
    """The result of a plan.

    Attributes:
        model: the name, folder or file of the model.
        question: the model, the machine and how the model is used.
        strategies: the search for each runtime.
        rows: the splits that were compared, for each runtime its best split first.
    """

    model: str
    question: Question
    strategies: Mapping[RuntimeName, Strategies]
    rows: Sequence[Row]

    @cached_property
    def best(self) -> Row:
        """The row with the quickest answer. Raises PlacementError with the missing memory if nothing fits."""
        fits = [row for row in self.rows if row.works and row.best]
        if not fits:
            raise self._nothing_fits(self.rows)
        quickest = min(self.answer_s(row) for row in fits)
        return next(row for row in fits if self.answer_s(row) <= quickest * (1 + EQUAL))

    def best_of(self, runtime: RuntimeName) -> Row:
        """The best row of a runtime. Raises PlacementError if the runtime is not planned for, or nothing fits there."""
        found = next((row for row in self.rows if row.runtime == runtime and row.best), None)
        if found is None and runtime in self.strategies:
            raise self._nothing_fits([row for row in self.rows if row.runtime == runtime])
        if found is None:
            others = ", ".join(r.title for name, r in RUNNERS.items() if name in self.strategies)
            raise PlacementError(f"there is no plan for {RUNNERS[runtime].title}", f"this plan is for {others}")
        return found

    def answer_s(self, row: Row) -> float:
        """Seconds until all users have their answers; nan if the row does not work."""
        return float(self.question.answer_s(np.asarray(row.decode_s), np.asarray(row.prompt_s)))

    def llama_cpp(self) -> str:
        """The command line of llama-server."""
        return self._lines("llamacpp")

    def vllm(self) -> str:
        """The command line of vLLM."""
        return self._lines("vllm")

    def device_map(self) -> dict[str, DeviceName]:
        """accelerate's map, for `from_pretrained(device_map=...)`."""
        row = self.best_of("accelerate")
        assert row.map is not None
        return dict(row.map.devices)

    def exo(self) -> str:
        """exo's shards, as JSON."""
        return self._lines("exo")

    def _lines(self, runtime: RuntimeName) -> str:
        return lines(self.best_of(runtime), self.strategies[runtime].steps)

    @cached_property
    def verdict(self) -> str:
        """The recommendation, in one sentence."""
        row, q = self.best, self.question
        assert row.split is not None
        return described(q.cluster, self.strategies[row.runtime].steps.layout, row.split)

    @cached_property
    def error_bands(self) -> list[ErrorBand]:
        """How far speeds of tokens and of prompts like those of the best row are from published ones."""
        assert self.best.split is not None
        return self.strategies[self.best.runtime].steps.error_bands(self.best.split)

    @cached_property
    def decode_bound_s(self) -> float | None:
        """A proven lower bound on the seconds of a token, over all placements."""
        return self.strategies[self.best.runtime].steps.decode_bound_s()

    def __repr__(self) -> str:
        q = self.question
        fits = any(row.works and row.best for row in self.rows)
        return f"<{type(self).__name__} {q.name} on {q.cluster.name}: {self.verdict if fits else 'nothing fits'}>"

    def _nothing_fits(self, rows: Sequence[Row]) -> PlacementError:
        q, o = self.question, self.question.options
        known = [row for row in rows if row.memory is not None]
        refused = [row for row in rows if row.memory is None]
        if not known:
            reason = refused[0].error if refused else "they need GPUs"
            return PlacementError(f"no runtime runs {q.name} on {q.cluster.name}: {reason}")
        lacking = min(row.memory.lacking for row in known if row.memory is not None)
        more = "" if q.cpu is not None else "add the host's memory to the machine ('... + 64GB ddr5-5600'), or "
        ways = [self._smaller(lacking), self._less_context(), "fewer users" if o.users > 1 else ""]
        where = q.cluster.name + ("" if rows is self.rows else f" with {RUNNERS[rows[0].runtime].title}")
        return PlacementError(
            f"{q.name} does not fit on {where}: {units.mebibytes(lacking)} are missing; its weights take"
            f" {units.mebibytes(q.checkpoint.bytes)}",
            f"{more}use {' or '.join(way for way in ways if way) or 'a smaller model'}",
        )

    def _smaller(self, lacking: float) -> str:
        """The largest format that frees what is missing, for a hint; empty without one."""
        if self.model.endswith(".gguf"):
            return "a file with fewer bits"
        room = self.question.checkpoint.bytes - lacking
        sizes = {name: find(named(self.model, None)[0], name).bytes for name in SMALLER}
        fits = [f"weights={name} ({units.mebibytes(size)})" for name, size in sizes.items() if size <= room]
        return fits[0] if fits else ""

    def _less_context(self) -> str:
        """The most context for which a row fits, for a hint; empty if no row ever fits."""
        rows = [row for row in self.rows if row.split is not None]
        most = max((self.strategies[r.runtime].steps.largest_context(r.split) for r in rows if r.split), default=0)
        o = self.question.options
        return f"context={most}" if o.prompt + o.generate <= most < o.context else ""
