"""Scotch through the ctypes layer of pyscotch: its classes lack weighted targets with links, and fixed vertices.

Everything happens in a Scotch context of its own, with one thread, the deterministic option and a seeded generator: the
mapping depends on the arguments alone, not on the environment (SCOTCH_DETERMINISTIC).
"""

from __future__ import annotations

import contextlib
import io
from ctypes import POINTER, byref
from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_partitioning.exchange import Exchange
from placekit_partitioning.partitioning import integers

from placekit_core import NotApplicable, PlacekitError

# as in scotch.h; pyscotch does not define them
QUALITY, BALANCE = 0x1, 0x4
DETERMINISTIC = 0


def load(policy: str) -> Any:
    """The module `pyscotch.libscotch`. Raises NotApplicable, with a hint on how to install it."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # it prints how it was loaded
            from pyscotch import libscotch
    except (ImportError, OSError, RuntimeError) as e:
        raise NotApplicable(
            f"policy {policy!r} needs the package pyscotch, which cannot be imported: {e}",
            "pip install pyscotch: it has wheels for Linux on x86-64 and aarch64; elsewhere use policy=metis (which has"
            " wheels for macOS), or policy=heft, which needs no library",
        ) from None
    return libscotch


def static_mapping(
    exchange: Exchange,
    load_: NDArray[np.int64],
    speed: NDArray[np.int64],
    link: NDArray[np.int64],
    fixed: NDArray[np.int64],
    imbalance: float,
    seed: int,
) -> NDArray[np.int64]:
    """Map k vertices onto p >= 2 targets, with loads in proportion to speeds and little exchange over costly links.

    Args:
        exchange: the graph of the vertices.
        load_: [k] non-negative loads, of about 1e8 in all.
        speed: [p] positive.
        link: [p, p] positive, symmetric; the diagonal is ignored.
        fixed: [k] target of a vertex that has one, else -1.
        imbalance: share by which a target may be overloaded.
        seed: seed of Scotch's generator, below 2**31.

    Returns:
        [k] target of each vertex.
    """
    lib, targets = load("scotch"), len(speed)
    apart = ~np.eye(targets, dtype=bool)
    complete = Exchange(np.arange(targets + 1) * (targets - 1), np.nonzero(apart)[1], link[apart])
    with contextlib.ExitStack() as stack:
        scotch = _Context(lib, seed, stack)
        machine = scotch.made("SCOTCH_Arch", "archInit", "archExit")
        scotch.call("archBuild2", byref(machine), byref(scotch.graph(complete, speed, complete.bytes_)), 0, None)
        source = scotch.graph(exchange, load_, np.maximum(integers(exchange.bytes_.astype(np.float64)), 1))
        strategy = scotch.made("SCOTCH_Strat", "stratInit", "stratExit")
        scotch.call("stratGraphMapBuild", byref(strategy), QUALITY | BALANCE, targets, imbalance)
        mapping = _own(lib, fixed)
        scotch.call("graphMapFixed", byref(source), byref(machine), byref(strategy), _pointer(lib, mapping))
        return mapping.astype(np.int64)


class _Context:
    """A context of Scotch; `stack` releases it with everything that is made in it."""

    def __init__(self, lib: Any, seed: int, stack: contextlib.ExitStack) -> None:
        self.lib, self.stack = lib, stack
        self.read: list[NDArray[Any]] = []  # Scotch does not copy arrays: they must live as long as its graphs
        self.context = self.made("SCOTCH_Context", "contextInit", "contextExit")
        self.call("contextThreadSpawn", byref(self.context), lib.SCOTCH_Num(1), None)
        self.call("contextOptionSetNum", byref(self.context), DETERMINISTIC, 1)
        self.call("contextRandomClone", byref(self.context))
        lib.SCOTCH_contextRandomSeed(byref(self.context), seed)
        lib.SCOTCH_contextRandomReset(byref(self.context))

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of Scotch. Raises PlacekitError if it fails."""
        if getattr(self.lib, f"SCOTCH_{function}")(*arguments):
            said = self.lib.get_scotch_messages().strip() or "no reason given"
            raise PlacekitError(f"SCOTCH_{function} failed: {said}")

    def made(self, structure: str, begin: str, end: str) -> Any:
        """A structure of Scotch, between its functions `begin` and `end`."""
        thing = getattr(self.lib, structure)()
        self.call(begin, byref(thing))
        self.stack.callback(getattr(self.lib, f"SCOTCH_{end}"), byref(thing))
        return thing

    def graph(self, of: Exchange, weight: NDArray[np.int64], cost: NDArray[np.int64]) -> Any:
        """The graph, bound to the context."""
        plain = self.made("SCOTCH_Graph", "graphInit", "graphExit")
        arrays = [_own(self.lib, a) for a in (of.ptr, weight, of.neighbour, cost)]
        self.read.extend(arrays)
        ptr, loads, neighbours, costs = (_pointer(self.lib, a) for a in arrays)
        self.call("graphBuild", byref(plain), 0, len(weight), ptr, None, loads, None, len(cost), neighbours, costs)
        bound = self.made("SCOTCH_Graph", "graphInit", "graphExit")
        self.call("contextBindGraph", byref(self.context), byref(plain), byref(bound))
        return bound


def _own(lib: Any, values: NDArray[np.int64]) -> NDArray[Any]:
    """A contiguous copy in Scotch's integers."""
    return np.array(values, lib.get_scotch_dtype(), order="C")


def _pointer(lib: Any, values: NDArray[Any]) -> Any:
    return values.ctypes.data_as(POINTER(lib.SCOTCH_Num))
