"""The time that a run takes at least after each operation begins; importing it imports numba."""
# mypy: ignore-errors

from __future__ import annotations

from placekit_scheduling.fields import unpacked
from placekit_scheduling.jit import UNCOUNTED, at

from placekit_sim.machine import FIELDS


def _set_tails(m):
    """Seconds on the longest path from each operation to an exit, its own included, with the transfers of the placement."""
    for i in range(m.n - m.n_sources):
        v = at(m.latest_first[i])
        a, longest = at(m.home[v]), 0.0
        for x in range(at(m.output_ptr[v]), at(m.output_ptr[v + 1])):
            for j in range(at(m.consumer_ptr[x]), at(m.consumer_ptr[x + 1])):
                c = at(m.consumer_op[j])
                b, tail = at(m.home[c]), m.tail_s[c]
                if a != b:
                    tail += m.latency_s[a * m.size + b] + m.tensor_bytes[x] * m.s_per_byte[a * m.size + b]
                longest = max(longest, tail)
        m.tail_s[v] = m.op_s[v * m.size + a] + longest


set_tails = unpacked(FIELDS, _set_tails, name="set_tails", cache=True, **UNCOUNTED)
