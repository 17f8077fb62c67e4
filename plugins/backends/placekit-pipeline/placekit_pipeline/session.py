"""The base class of this plugin's sessions: evaluates batches by compiled code, over threads."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling import Kernel
from placekit_scheduling.evaluation import evaluate_batch
from placekit_scheduling.fields import Field, lay_out

from placekit_core import BackendError, Measurements, Placement, Placements, Problem, Session, usable_cores
from placekit_pipeline.bounds import with_launches


class KernelSession(Session):
    """One problem on a backend whose evaluation is compiled; a subclass builds it."""

    def __init__(self, problem: Problem, threads: int | None) -> None:
        self.problem = with_launches(problem)
        self.threads = threads or usable_cores()
        self.pool = ThreadPoolExecutor(self.threads, "placekit-pipeline") if self.threads > 1 else None
        self.function, self.fields = self.load()

    @abstractmethod
    def load(self) -> tuple[Any, Sequence[Field]]:
        """The evaluation function and its fields.

        Importing their module compiles it, so the import belongs here: not in the search, and only if a session is opened.
        """

    @abstractmethod
    def build(self) -> Kernel:
        """The compiled evaluation."""

    def reason(self, device: NDArray[np.int16]) -> str:
        """Why the placement `device` [g], whose evaluation gave infinity, has no value."""
        raise NotImplementedError("every placement has a value")

    @cached_property
    def compiled(self) -> Kernel:
        return self.build()

    def kernel(self) -> Kernel:
        return self.compiled

    def evaluate(self, placements: Placements) -> Measurements:
        """Evaluate a batch."""
        problem = self.problem
        events = problem.graph.n + problem.graph.e
        value_s, peaks = evaluate_batch(
            self.kernel(), placements, problem.cluster.size, events, self.threads, self.pool
        )
        failed = np.isinf(value_s)
        error = [self.reason(placements.device[i]) if failed[i] else None for i in range(len(placements))]
        return Measurements(
            value_s=np.where(failed, np.nan, value_s),
            peak_bytes=peaks,
            fits=(peaks <= problem.cluster.memory_bytes).all(axis=1) & ~failed,
            error=tuple(error),
        )

    def value(self, placement: Placement) -> float:
        """The value of a placement, seconds. Raises BackendError if it has none."""
        measured = self.evaluate(placement.batch())
        if measured.error[0] is not None:
            raise BackendError(f"this placement has no schedule: {measured.error[0]}")
        return float(measured.value_s[0])

    def packed(
        self,
        function: Any,
        layout: Sequence[Field],
        numbers: Mapping[str, int],
        arrays: Mapping[str, NDArray[Any]],
        sizes: Mapping[str, int],
    ) -> Kernel:
        """The compiled `function` with its numbers and arrays packed as in `layout`."""
        laid = lay_out(layout, numbers, arrays, sizes)
        return Kernel(function, laid.ints, laid.floats, laid.scratch_ints, laid.scratch_floats)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()
            self.pool = None
