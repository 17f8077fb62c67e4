"""Finds where ggml puts the values of a graph, by the rules of ggml/src/ggml-alloc.c."""

from __future__ import annotations

ALIGNMENT = 128
"""Addresses on CUDA devices are multiples of this many bytes."""


class Values:
    """Values of a graph, in the order in which they are computed.

    Attributes:
        steps: bytes of each value, the values that it is computed from, and whether it may take over the block of one of them.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[int, tuple[int, ...], bool]] = []

    def add(self, bytes_: float, *reads: int, over: bool = False) -> int:
        """A value; returns its number."""
        self.steps.append((-(-int(bytes_) // ALIGNMENT) * ALIGNMENT, reads, over))
        return len(self.steps) - 1

    def peak(self) -> int:
        """Bytes of the blocks and of the gaps between them.

        A value gets the smallest free block that holds it, at the highest address, and only without any it gets the end of
        the memory in use (`ggml_dyn_tallocr_alloc`). Or it takes over the block of an operand that nothing else reads
        (`ggml_gallocr_allocate_node`). A block is free after its last reader.
        """
        readers = [0] * len(self.steps)
        for value in (value for _, reads, _ in self.steps for value in reads):
            readers[value] += 1
        free, most, at = [(0, 2**62)], 0, [-1] * len(self.steps)
        for i, (size, reads, over) in enumerate(self.steps):
            taken = next((v for v in reads if over and readers[v] == 1 and at[v] >= 0 and self.steps[v][0] == size), -1)
            if taken >= 0:
                at[i], at[taken] = at[taken], -1
            else:
                hole = min((b for b in free[:-1] if b[1] >= size), key=lambda b: (b[1], -b[0]), default=free[-1])
                at[i], most = hole[0], max(most, hole[0] + size)
                free[free.index(hole)] = (hole[0] + size, hole[1] - size)
            for value in reads:
                readers[value] -= 1
                if not readers[value] and at[value] >= 0:
                    free = _merged([*free, (at[value], self.steps[value][0])])
        return most


def _merged(free: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Free blocks, each an address and a size, with neighbours joined."""
    out: list[tuple[int, int]] = []
    for begin, size in sorted(free):
        if out and sum(out[-1]) == begin:
            out[-1] = (out[-1][0], out[-1][1] + size)
        elif size:
            out.append((begin, size))
    return out
