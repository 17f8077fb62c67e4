"""The policy `metis`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_partitioning.partitioning import Partitioning, Parts, gpus, integers
from pydantic import BaseModel

from placekit_core import NotApplicable, Problem
from placekit_metis import MetisOptions


class Metis(Partitioning):
    """The graph of groups in as many parts as there are GPUs, part i on GPU i (baseline of Post, §4).

    The weight of a vertex is the seconds of a group, the weight of an edge the bytes that two groups exchange, and a part's share
    of the work is its GPU's share of the total speed. Building it raises NotApplicable if there is no pymetis; placing raises
    NotApplicable if the machine has no GPU.
    """

    name = "metis"
    options_class = MetisOptions

    def __init__(self, options: BaseModel | None = None, **values: Any) -> None:
        super().__init__(options, **values)
        load()

    def targets(self, problem: Problem) -> NDArray[np.int64]:
        """[p] the GPUs; with `cpu` all devices."""
        return super().targets(problem) if self.options.cpu else gpus(problem, self.name, "or set policy.cpu=true")

    def parts(self, parts: Parts, rng: Generator) -> NDArray[np.int64]:
        """[k] the part of each vertex."""
        if len(parts.groups) <= len(parts.targets):  # METIS leaves parts empty
            part = np.empty(len(parts.groups), np.int64)
            part[np.argsort(-parts.load, kind="stable")] = np.argsort(-parts.speed, kind="stable")[: len(part)]
            return part
        pymetis = load()
        share = parts.speed / parts.speed.sum()
        options = pymetis.Options(
            ncuts=self.options.cuts,
            seed=int(rng.integers(2**31)),
            ufactor=max(round(1000 * self.options.imbalance), 1),
        )
        exchange = parts.exchange
        with _silent():
            _, found = pymetis.part_graph(
                len(share),
                pymetis.CSRAdjacency(exchange.ptr.tolist(), exchange.neighbour.tolist()),
                vweights=np.maximum(parts.load, 1).tolist(),
                eweights=np.maximum(integers(exchange.bytes_.astype(np.float64)), 1).tolist(),
                tpwgts=share.tolist(),
                recursive=False,
                options=options,
            )
        return np.asarray(found, np.int64)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Within the block, drop the output of C code: METIS complains about empty parts on standard output, which is for results."""
    flush = ctypes.CDLL(None).fflush
    sys.stdout.flush()
    flush(None)
    try:
        kept = os.dup(1)
    except OSError:  # there is no standard output
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        flush(None)
        os.dup2(kept, 1)
        os.close(kept)


def load() -> Any:
    """The module `pymetis`. Raises NotApplicable, with a hint on how to install it."""
    try:
        import pymetis
    except (ImportError, OSError) as e:
        raise NotApplicable(
            f"policy 'metis' needs the package pymetis, which cannot be imported: {e}",
            "pip install pymetis: it has wheels for Linux on x86-64 and for macOS; elsewhere use policy=scotch (which has"
            " wheels for Linux on aarch64), or policy=heft, which needs no library",
        ) from None
    return pymetis
